"""Finding the package folder: by import name without importing the package, or by path, on disk or in an archive."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_epctx.errors import LookupFailure
from hatch_epctx.files import read_bounded
from hatch_epctx.manifest import (
    CURRENT_NAME,
    FOLDER_NAME,
    MANIFEST_NAME,
    POINTER_LIMIT,
    Current,
    Pointer,
    pointer_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike

    from hatch_epctx.runtime.archives import Archive

__all__ = ["is_import_name", "locate"]


def is_import_name(name_or_path: str | PathLike[str]) -> bool:
    """Whether this is text that could be an import name; such text is one first, and then a path."""
    return isinstance(name_or_path, str) and all(part.isidentifier() for part in name_or_path.split("."))


def locate(name_or_path: str | PathLike[str]) -> Path | Archive:
    """The absolute folder that holds manifest.json, or its place in an archive.

    Raises:
        LookupFailure: nothing was found; the message lists where it was looked for. Or an archive that is given
            itself holds several.
    """
    text = os.fspath(name_or_path)
    return _by_name(text) if is_import_name(name_or_path) else _by_path(Path(text).absolute())


def _by_name(name: str) -> Path | Archive:
    """Look in the package's own folders, then for the pointer of an editable install, then below the import path.

    The last is for files that were installed beside an editable package, which hides them from everything that asks
    the package itself.
    """
    top, *rest = name.split(".")
    locations = _locations(top)
    entries = [Path(entry).absolute() for entry in sys.path]
    own, others = [Path(location, *rest) for location in locations], [Path(entry, top, *rest) for entry in entries]
    folders = own + others
    found = _first(folder / FOLDER_NAME for folder in own) or _pointed(name, entries)
    found = found or _first(folder / FOLDER_NAME for folder in others)
    if found is not None:
        return found
    archive = _in_archive(folder / FOLDER_NAME for folder in folders)
    if archive is not None:
        return archive
    plain = Path(name).absolute()
    found = _first([plain, plain / FOLDER_NAME])
    if found is not None:
        return found
    if not locations and not any(folder.is_dir() for folder in folders):
        raise LookupFailure(
            f"there is no package {name!r} on the import path",
            where=name,
            remedy=f"Install the distribution that brings it into this environment ({sys.prefix}), or pass a path.",
            reason="unknown-package",
        )
    raise LookupFailure(
        f"the package {name!r} has no {FOLDER_NAME}/{MANIFEST_NAME}",
        where=name,
        remedy="Build and install its wheel with the epctx hook on; a checkout that was never built has none.",
        reason="no-manifest",
        detail="Looked in:\n" + "\n".join(f"  {folder}" for folder in dict.fromkeys(folders) if folder.is_dir()),
    )


def _pointed(name: str, entries: Iterable[Path]) -> Path | None:
    """The package folder of an editable install; None where no entry of the import path has a pointer to one.

    Raises:
        LookupFailure: the folder that the pointer names is gone, or was never built.
        VerificationError: the pointer is malformed.
    """
    file = next((entry / pointer_name(name) for entry in entries if (entry / pointer_name(name)).is_file()), None)
    if file is None:
        return None
    pointer = Pointer.from_bytes(read_bounded(file, POINTER_LIMIT), where=str(file))
    current = Path(pointer.folder, CURRENT_NAME)
    try:
        generation = Current.from_bytes(read_bounded(current, POINTER_LIMIT), where=str(current)).generation
    except OSError as error:
        raise _gone(name, pointer, current) from error
    folder = current.parent / generation
    if not (folder / MANIFEST_NAME).is_file():
        raise _gone(name, pointer, folder)
    return folder


def _gone(name: str, pointer: Pointer, place: Path) -> LookupFailure:
    return LookupFailure(
        f"the compiled models of the editable install of {name!r} are not there",
        where=str(place),
        remedy=f"Run 'epctx build' in {pointer.project}, with the same EPCTX_CACHE_DIR as the install had.",
        reason="editable-not-built",
    )


def _locations(top: str) -> list[str]:
    """Folders of the top-level package, found without importing it."""
    try:
        spec = find_spec(top)
    except ValueError:  # imported without a spec, as __main__ is
        return list(getattr(sys.modules.get(top), "__path__", ()))
    except ImportError:
        return []
    return list(spec.submodule_search_locations or ()) if spec is not None else []


def _by_path(path: Path) -> Path | Archive:
    if path.name == MANIFEST_NAME and path.is_file():
        return path.parent
    found = _first([path, path / FOLDER_NAME]) or _in_archive([path])
    if found is None:
        raise LookupFailure(
            f"no {MANIFEST_NAME} there" if path.is_dir() else "no such folder",
            where=str(path),
            expected=f"a package folder, or a folder that holds one as {FOLDER_NAME}",
            reason="no-manifest",
        )
    return found


def _first(folders: Iterable[Path]) -> Path | None:
    return next((folder for folder in folders if (folder / MANIFEST_NAME).is_file()), None)


def _in_archive(paths: Iterable[Path]) -> Archive | None:
    """The first package folder among `paths` that lead into a zip file."""
    for path in paths:
        if any(parent.is_file() for parent in (path, *path.parents)):
            from hatch_epctx.runtime.archives import archive_at

            if found := archive_at(path):
                return found
    return None
