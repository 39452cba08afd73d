"""Editable installs: a package folder in the user's cache, which the look-up reads and `epctx build` refreshes.

An editable wheel carries a pointer (`manifest.pointer`) in place of the package folder. The folder it names lies below
the store's root, ``editable/<key>``, where the key is that of the project's folder and the package; nothing is written
into the source tree. Each build that changes something writes a new generation beside the old one and switches to it
in one step: a process that has the old one open goes on with it, and the generation before that is removed.

A folder whose project is gone, and which no build has changed for a month, is removed by the next build of any project.

Limits: copies, not links, so that nobody writes into the store through them; they take space where the file system
cannot share blocks. A build with another EPCTX_CACHE_DIR than the install had does not find the folder.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from hatch_epctx.digest import digest_bytes
from hatch_epctx.errors import EpctxError, StoreError
from hatch_epctx.files import (
    TEMP_PREFIX,
    atomic_write,
    make_private_dir,
    publish_dir,
    read_bounded,
    remove_file,
    remove_tree,
)
from hatch_epctx.lease import lock
from hatch_epctx.manifest import CURRENT_NAME, MANIFEST_NAME, MAX_BYTES, POINTER_LIMIT, Current, Pointer, pointer_name
from hatch_epctx.store import default_root
from hatch_epctx.wheel import plan_package, write_package
from hatch_epctx.wheelfile import Entry, add_files

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hatch_epctx.folder import FolderPlan
    from hatch_epctx.pipeline import Build

__all__ = ["Install", "add_pointer", "installs", "refresh"]

_EDITABLE: Final = "editable"
_UNFINISHED: Final = ".part"
_GONE: Final = 30 * 86400.0
"""Seconds without a change after which the folder of a project that is gone is removed."""


def add_pointer(built: Build, wheel: Path, *, version: str, environ: Mapping[str, str]) -> FolderPlan | None:
    """Write the package folder of `built` into the cache and add the pointer to the editable wheel at `wheel`.

    Args:
        built: a build without failures.
        wheel: as its build backend finished it.
        version: of the distribution.
        environ: environment variables, for EPCTX_CACHE_DIR.

    Returns:
        What the folder holds; None where every variant was skipped: nothing was written.

    Raises:
        StoreError: the cache or the wheel cannot be written.
        VerificationError: names clash, a file is not what its record says, or the wheel is damaged.
    """
    folder = _folder(built, environ)
    plan = plan_package(built, version=version)
    if plan is None:
        return None
    _switch(built, folder, plan, version)
    package = built.project.settings.package
    pointer = Pointer(package=package, project=str(built.project.root), folder=str(folder))
    add_files(wheel, [Entry(name=pointer_name(package), source=pointer.to_bytes())])
    return plan


def refresh(built: Build, *, environ: Mapping[str, str]) -> FolderPlan | None:
    """Bring the package folder of the project's editable install up to date; None where it has none.

    The folder then holds exactly what was built.

    Raises:
        StoreError: the cache cannot be written.
        VerificationError: names clash, or a file is not what its record says.
    """
    folder = _folder(built, environ)
    current = _current(folder)
    if current is None:
        return None
    plan = plan_package(built, version=current.version)
    if plan is not None:
        _switch(built, folder, plan, current.version)
    return plan


def _folder(built: Build, environ: Mapping[str, str]) -> Path:
    root = built.project.environment.cache_dir or default_root(environ)
    key = f"{built.project.root.resolve()}\0{built.project.settings.package}"
    return root / _EDITABLE / digest_bytes(key.encode("utf-8", "surrogateescape"))[:32]


def _current(folder: Path) -> Current | None:
    file = folder / CURRENT_NAME
    try:
        return Current.from_bytes(read_bounded(file, POINTER_LIMIT), where=str(file))
    except (OSError, EpctxError):
        return None


def _switch(built: Build, folder: Path, plan: FolderPlan, version: str) -> None:
    """Make `plan` what the look-up finds, unless it is that already."""
    try:
        make_private_dir(folder)
        with lock(folder / "lock"):
            old = _current(folder)
            if old is not None and _holds(folder / old.generation, plan):
                return
            name = uuid4().hex
            unfinished = folder / f"{name}{_UNFINISHED}"
            try:
                write_package(built, unfinished, version=version)
                publish_dir(unfinished, folder / name)
            except BaseException:
                remove_tree(unfinished)
                raise
            settings = built.project.settings
            current = Current(
                generation=name, package=settings.package, project=str(built.project.root), version=version
            )
            atomic_write(folder / CURRENT_NAME, current.to_bytes())
            _sweep(folder, {name, old.generation if old else ""})
            _sweep_gone(folder.parent)
    except OSError as error:
        raise StoreError(
            f"the package folder of the editable install cannot be written: {error.strerror or error}",
            where=str(folder),
            remedy="Set EPCTX_CACHE_DIR to a folder that can be written, for the install and for later builds.",
            reason="editable-io",
        ) from error


def _holds(generation: Path, plan: FolderPlan) -> bool:
    """Whether the folder is that of `plan`: its manifest has the digests, and every file is there in its size."""
    try:
        if read_bounded(generation / MANIFEST_NAME, MAX_BYTES) != plan.manifest_bytes:
            return False
        return all((generation / file.name).stat().st_size == file.size for file in plan.files)
    except OSError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """One editable install that has a package folder in the cache."""

    package: str
    """Import name."""
    project: Path
    folder: Path
    size: int
    """Bytes of its generations."""


def installs(root: Path) -> tuple[Install, ...]:
    """The editable installs whose package folders lie below the store's `root`, by project."""
    found = []
    for folder in _folders(root / _EDITABLE):
        current = _current(folder)
        if current is not None:
            project = Path(current.project)
            found.append(Install(package=current.package, project=project, folder=folder, size=_size(folder)))
    return tuple(sorted(found, key=lambda install: (str(install.project), install.package)))


def _folders(base: Path) -> list[Path]:
    return [path for path in base.iterdir() if path.is_dir()] if base.is_dir() else []


def _size(folder: Path) -> int:
    """Bytes of all generations; what a build removes meanwhile counts as nothing."""
    size = 0
    for path in folder.glob("*/*"):
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def _sweep_gone(base: Path) -> None:
    """Remove the folders of projects that are gone, after a month: one may lie on a disk that is not there now."""
    for folder in _folders(base):
        current = _current(folder)
        if current is None or Path(current.project).is_dir():
            continue
        with suppress(OSError):
            if time.time() - (folder / CURRENT_NAME).stat().st_mtime > _GONE:
                remove_tree(folder)


def _sweep(folder: Path, kept: set[str]) -> None:
    """Remove generations that are neither current nor the one before it, and what a killed build left."""
    for path in folder.iterdir():
        if path.is_dir() and path.name not in kept:
            remove_tree(path)
        elif path.name.startswith(TEMP_PREFIX):
            remove_file(path)
