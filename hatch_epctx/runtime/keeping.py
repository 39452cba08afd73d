"""Folders of this user's own that hold what can be had again: kept while in use, collected when long unused.

Below one base folder lie folders named by 32 hexadecimal digits, each with a lock file beside it, and folders under
way. What a live process uses is kept by a shared lock of its own (`Hold`); the rest goes once it has not been used for
`KEPT` seconds.

Windows (not run there): a folder with open files cannot be renamed, which takes the lock's place.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hatch_epctx.files import make_private_dir, move, remove_tree
from hatch_epctx.runtime.places import is_private, private_folder

if os.name != "nt":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["KEPT", "Hold", "collect", "discard", "fill", "private_base", "staging_in"]

KEPT: Final = 30 * 86400.0
"""Seconds after its last use for which a folder stays."""
_ABANDONED: Final = 86400.0
"""Seconds after which a folder under way belonged to a process that died."""
_STAGING: Final = ".tmp-"
_KEY = re.compile(r"[0-9a-f]{32}\Z")


def private_base(kind: str) -> Path:
    """The base folder for one kind of thing, made where it is not there.

    Raises:
        OSError: there is no place for it, or others may write to it.
    """
    base = private_folder(kind)
    if base is None:
        raise OSError("this user has no cache folder")
    make_private_dir(base, durable=False)
    if not is_private(base):
        raise OSError(f"{base} may be written by others")
    return base


def staging_in(base: Path) -> Path:
    """A new, private folder for what is under way."""
    staging = base / f"{_STAGING}{os.urandom(8).hex()}"
    staging.mkdir(0o700)
    return staging


def fill(base: Path, target: Path, write: Callable[[Path], None], publish: Callable[[Path, Path], None] = move) -> None:
    """Make the folder `target` of what `write` puts into a new folder; whoever sees it sees it whole.

    Raises:
        OSError: it cannot be made. That somebody else was faster, with the same bytes, is no error.
    """
    staging = staging_in(base)
    try:
        write(staging)
        try:
            publish(staging, target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        with suppress(OSError):
            remove_tree(staging)


def discard(path: Path) -> None:
    """Put a folder out of the way at once, then remove it.

    Raises:
        OSError: it cannot be moved or removed.
    """
    aside = path.parent / f"{_STAGING}{os.urandom(8).hex()}"
    move(path, aside)
    remove_tree(aside)


class Hold:
    """Keeps one unpacked folder from being collected for as long as this object lives."""

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        with suppress(OSError):  # without locks (some network file systems) age alone protects it
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
            self._descriptor = os.open(path, flags, 0o600)
            os.utime(self._descriptor if os.utime in os.supports_fd else path)
            if os.name != "nt":
                fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def collect(base: Path) -> None:
    """Remove what nobody uses and nobody has used for long. Best effort: a later start tries again."""
    now = time.time()
    for path in list(base.iterdir()):
        with suppress(OSError):
            if path.name.startswith(_STAGING):
                if now - path.lstat().st_mtime > _ABANDONED:
                    remove_tree(path)
            elif _KEY.match(path.name):
                _remove_unused(path, now)


def _remove_unused(path: Path, now: float) -> None:
    """Remove a folder unless it was used lately or is in use.

    Raises:
        OSError: it is in use, or cannot be removed.
    """
    lock = path.with_suffix(".lock")
    if now - lock.stat().st_mtime < KEPT:
        return
    descriptor = os.open(lock, os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0))
    try:
        if os.name != "nt":
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        aside = path.parent / f"{_STAGING}{os.urandom(8).hex()}"
        move(path, aside)  # within the lock: who comes now finds nothing and makes it anew
    finally:
        os.close(descriptor)
    remove_tree(aside)
