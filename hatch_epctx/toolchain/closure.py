"""The closure of a distribution: the files that its libraries can load, found on disk and not in a list.

Rule. Every regular file below the distribution's package folders and below the folders of bundled libraries beside
them (`<package>.libs`, `<distribution>.libs`), and its single files beside them, except Python source and byte code
(*.py, *.pyc, __pycache__), for which the version stands. A file counts whether RECORD lists it or not: a plugin loads
what lies beside it. A link counts as what it leads to. Names are relative to the folder that holds the packages;
times, owners and modes do not count.

What this does not cover: libraries of the system (libc, drivers), and what a library loads from other places.
"""

from __future__ import annotations

import os
import re
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_epctx.digest import digest_entries
from hatch_epctx.errors import ToolchainError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from importlib.metadata import Distribution

__all__ = ["closure_digest", "closure_files", "import_folders", "site_folder"]

_SKIPPED = (".py", ".pyc")
_BYTE_CODE = (".pyc",)
_METADATA = (".dist-info", ".egg-info", ".data")

Entry = tuple[str, Path]


def closure_digest(files: Iterable[Entry], digest: Callable[[Path], str]) -> str:
    """Digest of a closure, from the digest of each file.

    Raises:
        ToolchainError: a file went away or cannot be read.
    """
    try:
        return digest_entries((name, digest(path)) for name, path in files)
    except OSError as error:
        raise ToolchainError(
            f"a library cannot be read: {error}",
            remedy="Let no installation run at the same time, and see to the file's permissions.",
            reason="unreadable-library",
        ) from error


def closure_files(distribution: Distribution | None, module: str = "", *, code: bool = False) -> list[Entry]:
    """(name, path) of every file of the closure, sorted by name.

    Args:
        distribution: the installed distribution; None for a module that none brings.
        module: import name whose folder counts too, wherever it is imported from.
        code: Python source too: everything that is needed to run it elsewhere.

    Raises:
        ToolchainError: a folder cannot be listed.
    """
    entries: dict[str, Path] = {}
    folders: list[Path] = []
    if distribution is not None:
        site = site_folder(distribution)
        packages, single = _top_level(distribution, code=code)
        folders += [site / name for name in packages]
        folders += [site / f"{name}.libs" for name in (*packages, _normalized(distribution.metadata["Name"]))]
        entries |= {name: site / name for name in single if (site / name).is_file()}
    for folder in import_folders(module):
        folders += [folder, folder.with_name(f"{folder.name}.libs")]
    for folder in dict.fromkeys(folders):
        if folder.is_dir():
            entries |= dict(_walk(folder, folder.name, frozenset(), _BYTE_CODE if code else _SKIPPED))
    return sorted(entries.items())


def import_folders(module: str) -> tuple[Path, ...]:
    """The folders that `import module` would take, without importing it: of a dotted name those of its first part.

    Empty where there is none. A namespace package has several.
    """
    package = module.partition(".")[0]
    spec = PathFinder.find_spec(package) or find_spec(package) if package else None
    return tuple(map(Path, (spec and spec.submodule_search_locations) or ()))


def site_folder(distribution: Distribution) -> Path:
    """The folder that holds the distribution's packages."""
    return Path(str(distribution.locate_file("")))


def _top_level(distribution: Distribution, *, code: bool) -> tuple[list[str], list[str]]:
    """(package folders, single files) that the distribution installs beside its metadata."""
    packages: dict[str, None] = {}
    single: dict[str, None] = {}
    for path in distribution.files or ():
        first, *rest = path.parts
        if first in ("..", "__pycache__") or first.endswith(_METADATA) or Path(first).is_absolute():
            continue
        if rest:
            packages[first] = None
        elif not first.endswith((*(_BYTE_CODE if code else _SKIPPED), ".pth")):
            single[first] = None
    if not packages and (listed := distribution.read_text("top_level.txt")):
        packages = dict.fromkeys(listed.split())
    return list(packages), list(single)


def _normalized(name: str) -> str:
    """A distribution's name as wheel builders write it in folder names."""
    return re.sub(r"[-_.]+", "_", name)


def _walk(folder: Path, name: str, above: frozenset[str], skipped: tuple[str, ...]) -> Iterator[Entry]:
    """Files below `folder`, named below `name`; `above` holds the real paths of the folders on the way here."""
    real = os.path.realpath(folder)
    if real in above:  # a link that leads back to a folder above it
        return
    try:
        found = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise ToolchainError(
            f"the folder {folder} cannot be listed: {error.strerror}", reason="unreadable-library"
        ) from error
    for entry in found:
        place = f"{name}/{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _walk(Path(entry.path), place, above | {real}, skipped)
        elif entry.is_file() and not entry.name.endswith(skipped):
            yield place, Path(entry.path)
