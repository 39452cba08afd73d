"""Copies: clones where the file system can (reflink), plain copies elsewhere, never hard links.

A clone shares blocks until one side is written; a hard link would let a user write into the store through it.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final

from hatch_epctx.digest import CHUNK, digest_stream
from hatch_epctx.files.disk import long_path, remove_file
from hatch_epctx.files.untrusted import open_regular

if sys.platform == "linux":
    import fcntl

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["copy_and_digest", "copy_file"]

_FICLONE: Final = 0x40049409
"""Linux: _IOW(0x94, 9, int), see ioctl_ficlone(2)."""


def copy_file(src: Path, dst: Path) -> None:
    """Copy the regular file that `src` is or leads to into the new file `dst`, private to this user (mode 0600).

    Nothing is left at `dst` after a failure. Not durable: publish does that.

    Raises:
        OSError: `src` cannot be read or is no regular file, `dst` exists or cannot be written.
    """
    with open_regular(src, follow=True) as source:
        _into(dst, source, digest=False)


def copy_and_digest(src: Path, dst: Path) -> tuple[str, int]:
    """As `copy_file`; return (digest, size in bytes) of exactly the bytes that `dst` holds.

    A source that changes meanwhile gives a copy that never existed as a whole, and its true digest.

    Raises:
        OSError: as `copy_file`.
    """
    with open_regular(src, follow=True) as source:
        return _into(dst, source, digest=True)


def _into(dst: Path, source: IO[bytes], *, digest: bool) -> tuple[str, int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(long_path(dst), flags, 0o600)
    try:
        with os.fdopen(descriptor, "w+b") as target:
            if _clone(source, target):
                return digest_stream(target) if digest else ("", 0)
            if digest:
                return digest_stream(source, copy_to=target)
            while chunk := source.read(CHUNK):
                target.write(chunk)
            return "", 0
    except BaseException:
        with suppress(OSError):
            remove_file(dst)
        raise


def _clone(source: IO[bytes], target: IO[bytes]) -> bool:
    """Share the source's blocks with the empty target; False where that cannot be."""
    cloned = False
    if sys.platform == "linux":
        with suppress(OSError):  # another file system, or one without clones: each has its own error number
            fcntl.ioctl(target.fileno(), _FICLONE, source.fileno())
            cloned = True
    return cloned
