"""What is at a path, and everything that can be verified of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hatch_epctx.digest import digest_file
from hatch_epctx.errors import LookupFailure, ModelError
from hatch_epctx.files import contained, open_regular, read_bounded
from hatch_epctx.manifest import FOLDER_NAME, MANIFEST_NAME, MAX_BYTES
from hatch_epctx.runtime.locate import is_import_name, locate
from hatch_epctx.verification.bill import BILL_LIMIT
from hatch_epctx.verification.examining import Examination
from hatch_epctx.verification.installed import distribution_of, record_problems
from hatch_epctx.verification.models import described, references
from hatch_epctx.verification.places import DiskFiles
from hatch_epctx.verification.records import Problem, Report
from hatch_epctx.verification.wheels import verify_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hatch_epctx.store import Store

__all__ = ["installed_folder", "verify"]

_ZIP: Final = b"PK"
_EXPECTED: Final = f"a wheel, a package folder with {MANIFEST_NAME}, an installed package, or an ONNX file"
_HASHED = re.compile(r"\.([0-9a-f]{64})\.bin\Z|sha256-([0-9a-f]{32})\.bin\Z")
"""A context binary that is called by its content: as `epctx compile` and the package folder call it."""


def verify(path: Path, store: Store, *, fit: bool = True) -> Report:
    """Verify what is at `path`.

    Args:
        path: a wheel, a package folder or one that holds it, an ONNX file, or the import name of an installed package.
        store: gives folders to work in; nothing is read from it.
        fit: ask this machine's EPs which variants they can run.

    Raises:
        ModelError: there is nothing at `path` that could be verified.
        OSError: it cannot be read.
    """
    if (installed := installed_folder(path)) is not None:
        return _folder(installed, store, shown=str(path), fit=fit)
    if not path.exists():
        raise _nothing("does not exist", path)
    if path.is_dir() or path.name == MANIFEST_NAME:
        folder = _package_folder(path)
        if folder is None:
            raise _nothing("holds no compiled models", path)
        return _folder(folder, store, shown=str(path), fit=fit)
    with open_regular(path, follow=True) as stream:
        is_zip = stream.read(2) == _ZIP
    if is_zip or path.suffix == ".whl":
        return verify_wheel(path, store, fit=fit)
    return _onnx(path, store)


def installed_folder(path: Path) -> Path | None:
    """The package folder of the installed package whose import name `path` is; None where it can be none.

    Raises:
        ModelError: it is an import name, and no package with compiled models is installed under it.
    """
    # A source tree beside the name of an installed package holds nothing to look at.
    if is_import_name(str(path)) and not path.is_file() and _package_folder(path) is None:
        return _installed(str(path))
    return None


def _installed(name: str) -> Path:
    try:
        found = locate(name)
    except LookupFailure as error:
        raise ModelError(error.found, where=name, expected=_EXPECTED, reason="nothing-to-verify") from error
    if not hasattr(found, "is_dir"):
        found_as = "lies in an archive on the import path"
        raise ModelError(found_as, where=name, expected="an installed package", reason="nothing-to-verify")
    return found  # type: ignore[return-value]  # no archive


def _nothing(found: str, path: Path) -> ModelError:
    return ModelError(found, where=str(path), expected=_EXPECTED, reason="nothing-to-verify")


def _package_folder(path: Path) -> Path | None:
    folder = path.parent if path.name == MANIFEST_NAME else path
    for place in (folder, folder / FOLDER_NAME):
        if (place / MANIFEST_NAME).is_file():
            return place
    return None


def _folder(folder: Path, store: Store, *, shown: str, fit: bool) -> Report:
    data = read_bounded((folder / MANIFEST_NAME).resolve(), MAX_BYTES)
    examination = Examination(store, fit=fit)
    found = distribution_of(folder)
    bills: list[tuple[str, bytes]] = []
    base = ""
    if found is not None:
        distribution, site = found
        examination.problems += record_problems(distribution, site)
        examination.checked.append(f"RECORD of {distribution.metadata['Name']} {distribution.version}")
        names = [name for name in distribution.files or () if name.parent.name == "sboms" and name.suffix == ".json"]
        bills += [(name.as_posix(), read_bounded(site / name, BILL_LIMIT)) for name in names]
        base = f"{folder.absolute().relative_to(site).as_posix()}/"
    examination.package(DiskFiles(folder), data, base=base, bills=bills)
    examination.checked.append("digests of all artifacts")
    return examination.report(shown, "installed" if found else "folder")


def _onnx(path: Path, store: Store) -> Report:
    with store.staging() as staging:
        facts = described(path, staging.path)
    problems = [problem for name in sorted(references(facts)) for problem in _beside(path, name)]
    kinds = {node["source"] for node in facts["context_nodes"]}
    text = f"{len(facts['context_nodes'])} EPContext nodes of {', '.join(sorted(kinds))}" if kinds else "a source model"
    checked = ("files that the model refers to", "digests in the names of context binaries", text)
    return Report(path=str(path), kind="onnx", problems=tuple(problems), checked=checked)


def _beside(path: Path, name: str) -> Iterator[Problem]:
    """What is wrong with one file that an ONNX file refers to."""
    if not contained(name):
        yield Problem(where=str(path), reason="escape", text=f"refers to {name[:120]!r}, which leaves its folder")
        return
    file = path.parent / name
    if not file.is_file():
        yield Problem(where=str(file), reason="missing", text=f"is missing, and {path.name} refers to it")
        return
    match = _HASHED.search(name)
    if match and not digest_file(file).startswith(match[1] or match[2]):
        yield Problem(where=str(file), reason="digest", text="other content than its name says")
    elif not file.stat().st_size:
        yield Problem(where=str(file), reason="size", text="is empty")
