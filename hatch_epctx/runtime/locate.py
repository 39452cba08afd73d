"""Finding the package folder: by import name without importing the package, or by path, on disk or in an archive."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

__all__ = ["absolute", "import_path", "is_file", "is_import_name", "locate"]


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
    if is_import_name(name_or_path):
        return _by_name(text)
    path = absolute(text)
    if path is None:
        found = "the path is relative, and the current folder is gone"
        raise LookupFailure(found, where=text, remedy="Pass an absolute path.", reason="no-manifest")
    return _by_path(path)


def absolute(text: str) -> Path | None:
    """The path, absolute; None where it is relative to a current folder that is gone."""
    try:
        return Path(text).absolute()
    except FileNotFoundError:
        return None


def is_file(path: Path) -> bool:
    """Whether there is a regular file; a path that cannot be, such as one that is too long, leads to none."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_dir(path: Path) -> bool:
    """Whether there is a folder, likewise."""
    try:
        return path.is_dir()
    except OSError:
        return False


def import_path() -> list[Path]:
    """The folders and archives of `sys.path`, absolute; what an import would pass over is left out."""
    given: list[Any] = list(sys.path)
    entries = (absolute(entry) for entry in given if isinstance(entry, str))
    return [entry for entry in entries if entry is not None]


def _by_name(name: str) -> Path | Archive:
    """Look in the package's own folders, then for the pointer of an editable install, then below the import path.

    The last is for files that were installed beside an editable package, which hides them from everything that asks
    the package itself.
    """
    top, *rest = name.split(".")
    locations = _locations(top)
    entries = import_path()
    own, others = [Path(location, *rest) for location in locations], [Path(entry, top, *rest) for entry in entries]
    folders = own + others
    found = _first(folder / FOLDER_NAME for folder in own) or _pointed(name, entries)
    found = found or _first(folder / FOLDER_NAME for folder in others)
    if found is not None:
        return found
    archive = _in_archive(folder / FOLDER_NAME for folder in folders)
    if archive is not None:
        return archive
    plain = absolute(name)
    found = _first([plain, plain / FOLDER_NAME]) if plain is not None else None
    if found is not None:
        return found
    if not locations and not any(is_dir(folder) for folder in folders):
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
        detail="Looked in:\n" + "\n".join(f"  {folder}" for folder in dict.fromkeys(folders) if is_dir(folder)),
    )


def _pointed(name: str, entries: Iterable[Path]) -> Path | None:
    """The package folder of an editable install; None where no entry of the import path has a pointer to one.

    Raises:
        LookupFailure: the folder that the pointer names is gone, or was never built.
        VerificationError: the pointer is malformed.
    """
    file = next((entry / pointer_name(name) for entry in entries if is_file(entry / pointer_name(name))), None)
    if file is None:
        return None
    pointer = Pointer.from_bytes(read_bounded(file, POINTER_LIMIT), where=str(file))
    current = Path(pointer.folder, CURRENT_NAME)
    try:
        generation = Current.from_bytes(read_bounded(current, POINTER_LIMIT), where=str(current)).generation
    except OSError as error:
        raise _gone(name, pointer, current) from error
    folder = current.parent / generation
    if not is_file(folder / MANIFEST_NAME):
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
    if path.name == MANIFEST_NAME and is_file(path):
        return path.parent
    found = _first([path, path / FOLDER_NAME]) or _in_archive([path])
    if found is None:
        raise LookupFailure(
            f"no {MANIFEST_NAME} there" if is_dir(path) else "no such folder",
            where=str(path),
            expected=f"a package folder, or a folder that holds one as {FOLDER_NAME}",
            reason="no-manifest",
        )
    return found


def _first(folders: Iterable[Path]) -> Path | None:
    return next((folder for folder in folders if is_file(folder / MANIFEST_NAME)), None)


def _in_archive(paths: Iterable[Path]) -> Archive | None:
    """The first package folder among `paths` that lead into a zip file."""
    for path in paths:
        if any(is_file(parent) for parent in (path, *path.parents)):
            from hatch_epctx.runtime.archives import archive_at

            if found := archive_at(path):
                return found
    return None
