"""Where things lie in the store, who may own it, and what its failures are called.

``<root>/v1/`` holds ``markers/``, ``generations/``, ``staging/``, ``locks/``, ``leases/``, ``roots/``, ``facts/``
and ``stat/``. All of it is private to one user, or shared with one group (see `access`).
"""

from __future__ import annotations

import errno
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import platformdirs

from hatch_epctx.errors import StoreError
from hatch_epctx.files import is_shared, long_path, make_dir
from hatch_epctx.store.access import check_folder, status_of
from hatch_epctx.store.filesystem import file_system, is_network

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FULL", "READ_ONLY", "Layout", "default_root", "store_error"]

READ_ONLY: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
"""Errors of a folder that this user may not write."""
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk, or a user's share of it, that is full."""

_FOLDERS: Final = ("markers", "generations", "staging", "locks", "leases", "roots", "facts", "stat")
_ELSEWHERE: Final = "set EPCTX_CACHE_DIR to another folder"


def default_root(environ: Mapping[str, str]) -> Path:
    """``EPCTX_CACHE_DIR``, else the user's cache folder as the platform has it.

    Raises:
        StoreError: this user has no home folder.
    """
    named = environ.get("EPCTX_CACHE_DIR", "")
    root = Path(named) if named else platformdirs.user_cache_path("hatch-epctx", appauthor=False)
    try:
        return root.expanduser().absolute()
    except RuntimeError as error:
        raise StoreError(
            "there is no home folder to put the cache in",
            where=str(root),
            remedy="Set EPCTX_CACHE_DIR to a folder.",
            reason="no-home",
        ) from error


class Layout:
    """Paths of one store.

    Args:
        root: the cache folder; need not exist.

    Raises:
        StoreError: it is a link, no folder, or others than its user, or its group, could change it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.base = self.root / "v1"
        self.markers, self.generations, self.staging, self.locks, self.leases, self.roots, self.facts, self.stat = (
            self.base / name for name in _FOLDERS
        )
        self._check()

    @cached_property
    def file_system(self) -> str:
        """Type of the file system, such as "ext4"; empty when that cannot be told."""
        return file_system(self.root)

    @property
    def on_network(self) -> bool:
        """Whether other hosts may use this store: their leases cannot be trusted, so nothing is removed by itself."""
        return is_network(self.file_system)

    @property
    def shared(self) -> bool:
        """Whether a group shares the store."""
        status = status_of(self.root)
        return status is not None and is_shared(status)

    def marker(self, identity: str) -> Path:
        """The marker of `identity`."""
        return self.markers / identity[:2] / f"{identity}.json"

    def lock(self, identity: str) -> Path:
        """The lock file of `identity`."""
        return self.locks / identity[:2] / f"{identity}.lock"

    def make(self) -> bool:
        """Make the folders; False when this user may not write here.

        Raises:
            StoreError: the disk is full or broken, or the folders are unfit.
        """
        for folder in self._folders():
            try:
                make_dir(folder)
            except OSError as error:
                if error.errno in READ_ONLY:
                    return False
                raise store_error(error, folder, "make the folder") from error
        self._check()  # perhaps somebody else made them just now
        return os.access(long_path(self.staging), os.W_OK | os.X_OK)

    def _folders(self) -> tuple[Path, ...]:
        return (self.root, self.base, *(self.base / name for name in _FOLDERS))

    def _check(self) -> None:
        root: os.stat_result | None = None
        for folder in self._folders():
            try:
                status = status_of(folder)
            except OSError as error:
                raise store_error(error, folder, "use the cache folder") from error
            if folder == self.root:
                root = status
            if status is not None:
                check_folder(folder, status, root)


def store_error(error: OSError, path: Path, action: str) -> StoreError:
    """The error for a user: `action` is a clause after "cannot", `path` the place when the system names none."""
    place = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(path)
    if error.errno in FULL:
        reason, remedy = "disk-full", f"Free some space there, or {_ELSEWHERE}."
    elif error.errno in READ_ONLY:
        reason, remedy = "not-writable", f"Give yourself write access, or {_ELSEWHERE}."
    elif error.errno == errno.ENOENT:
        reason, remedy = "vanished", f"If somebody removed files of the store, run the same again; else {_ELSEWHERE}."
    else:
        reason, remedy = "input-output", f"Check the disk and its file system, or {_ELSEWHERE}."
    what = error.strerror or str(error) or type(error).__name__
    return StoreError(f"cannot {action}: {what}", where=place, remedy=remedy, reason=reason)
