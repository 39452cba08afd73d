"""Content digests remembered by file status, so that large files are not read again for every build.

A record holds (device, inode, size, mtime, ctime) and the digest. The kernel sets ctime at every change of content
and users cannot set it back, so equal status means equal content, within these limits:

- A file changed twice within one tick of the file system's clock may keep its times: a file is remembered only when
  both times lie at least `GRAIN` seconds in the past, and one with times in the future never is.
- A program that still writes through a memory map may change bytes long after the kernel noted the time; and whoever
  may set the system clock or write to the raw disk can forge a ctime. What goes into a wheel is therefore never
  verified by this cache (see `store`).
- Windows keeps no such time (`st_ctime` is that of creation): nothing is remembered there, every call reads the file.
- Network file systems: a client may see old times for as long as it caches them.

Records are not flushed to the disk one by one: after a power cut some may be empty, which is a miss like any record
that cannot be read.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.digest import digest_bytes, digest_stream, is_digest
from hatch_epctx.files import atomic_write, long_path, make_dir, open_regular, parse_json, read_bounded

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GRAIN", "StatCache"]

GRAIN: Final = 2.0
"""Seconds: FAT counts by two, everything else is finer."""
_LIMIT: Final = 1024
_FORMAT: Final = "epctx-stat/1"


class StatCache:
    """Digests by file, one small record each, for any number of threads and processes.

    Args:
        folder: where the records lie; made when first needed. One that cannot be written only costs time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def digest(self, path: Path) -> str:
        """Digest of the regular file that `path` is or leads to.

        Raises:
            OSError: it cannot be read, or is no regular file.
        """
        with open_regular(path, follow=True) as stream:
            status = os.fstat(stream.fileno())
            remembered = self._recall(status)
            if remembered is not None:
                return remembered
            digest, size = digest_stream(stream)
            after = os.fstat(stream.fileno())
        if _facts(status) == _facts(after) and size == status.st_size and _settled(status):
            self._remember(status, digest)
        return digest

    def _record(self, status: os.stat_result) -> Path:
        # By device and inode alone: the record of a changed file replaces the old one.
        name = digest_bytes(f"{status.st_dev}:{status.st_ino}".encode())[:32]
        return self._folder / name[:2] / f"{name}.json"

    def _recall(self, status: os.stat_result) -> str | None:
        if os.name == "nt":  # pragma: no cover
            return None
        try:
            record = parse_json(read_bounded(self._record(status), _LIMIT))
        except (OSError, ValueError):
            return None
        if not isinstance(record, dict) or not is_digest(digest := record.pop("digest", None)):
            return None
        return str(digest) if record == _facts(status) else None

    def _remember(self, status: os.stat_result, digest: str) -> None:
        if os.name == "nt":  # pragma: no cover
            return
        path = self._record(status)
        data = json.dumps({**_facts(status), "digest": digest}).encode()
        with suppress(OSError):  # a full or read-only disk: the file is read again next time
            make_dir(path.parent, durable=False)
            atomic_write(long_path(path), data, durable=False, shared=True)


def _facts(status: os.stat_result) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "device": status.st_dev,
        "inode": status.st_ino,
        "size": status.st_size,
        "mtime": status.st_mtime_ns,
        "ctime": status.st_ctime_ns,
    }


def _settled(status: os.stat_result) -> bool:
    """Whether the file's times lie far enough in the past that a change from now on gives it other times."""
    return time.time() - max(status.st_mtime, status.st_ctime) >= GRAIN
