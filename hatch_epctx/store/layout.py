"""Where things lie in the store, who may own it, and what its failures are called.

``<root>/v1/`` holds ``markers/``, ``generations/``, ``staging/``, ``locks/``, ``leases/``, ``roots/``, ``facts/``
and ``stat/``. All of it is private to one user: what a compile reads from here ends up in wheels.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import platformdirs

from hatch_epctx.errors import StoreError
from hatch_epctx.files import long_path, make_private_dir

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
        StoreError: it is a link, no folder, another user's, or writable by everybody (POSIX; Windows' access lists
            are not examined).
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.base = self.root / "v1"
        self.markers, self.generations, self.staging, self.locks, self.leases, self.roots, self.facts, self.stat = (
            self.base / name for name in _FOLDERS
        )
        for folder in (self.root, self.base, *(self.base / name for name in _FOLDERS)):
            _check_folder(folder)

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
        for folder in (self.root, self.base, *(self.base / name for name in _FOLDERS)):
            try:
                make_private_dir(folder)
            except OSError as error:
                if error.errno in READ_ONLY:
                    return False
                raise store_error(error, folder, "make the folder") from error
            _check_folder(folder)  # perhaps somebody else made it just now
        return os.access(long_path(self.staging), os.W_OK | os.X_OK)


def _check_folder(path: Path) -> None:
    try:
        status = long_path(path).lstat()
    except (FileNotFoundError, PermissionError):
        return  # made, or reported, when it is used
    except OSError as error:
        raise store_error(error, path, "use the cache folder") from error
    remedy = f"Correct that, or {_ELSEWHERE}."
    if stat.S_ISLNK(status.st_mode):
        raise StoreError(
            "the cache folder is a link, and whoever may change the link chooses what is built from",
            where=str(path),
            expected="a folder",
            remedy="Set EPCTX_CACHE_DIR to the folder it leads to.",
            reason="link",
        )
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError("is no folder", where=str(path), remedy=remedy, reason="not-a-folder")
    if sys.platform != "win32":
        _check_owner(path, status)


def _check_owner(path: Path, status: os.stat_result) -> None:
    if sys.platform != "win32" and status.st_uid not in {os.geteuid(), 0}:  # root could change everything anyway
        raise StoreError(
            f"the cache folder belongs to user {status.st_uid}, who could change what is built from it",
            where=str(path),
            expected=f"a folder of user {os.geteuid()}",
            remedy=f"Change its owner, or {_ELSEWHERE}.",
            reason="foreign-owner",
        )
    if status.st_mode & stat.S_IWOTH:
        raise StoreError(
            f"the cache folder is writable by everybody (mode {stat.S_IMODE(status.st_mode):04o})",
            where=str(path),
            expected="a private folder",
            remedy=f"Run 'chmod o-w' on it after looking at what it holds, or {_ELSEWHERE}.",
            reason="world-writable",
        )


def store_error(error: OSError, path: Path, action: str) -> StoreError:
    """The error for a user: `action` is a clause after "cannot", `path` the place when the system names none."""
    place = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(path)
    if error.errno in FULL:
        reason, remedy = "disk-full", f"Free some space there, or {_ELSEWHERE}."
    elif error.errno in READ_ONLY:
        reason, remedy = "not-writable", f"Give yourself write access, or {_ELSEWHERE}."
    elif error.errno == errno.ENOENT:
        reason, remedy = "vanished", "Somebody removed files of the store meanwhile: run the same again."
    else:
        reason, remedy = "input-output", f"Check the disk and its file system, or {_ELSEWHERE}."
    what = error.strerror or str(error) or type(error).__name__
    return StoreError(f"cannot {action}: {what}", where=place, remedy=remedy, reason=reason)
