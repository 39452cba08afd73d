"""A large file under construction that takes another's place in one step."""

from __future__ import annotations

import io
import os
import stat
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from hatch_epctx import files
from hatch_epctx.digest import digest_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from typing_extensions import Buffer

__all__ = ["replacing"]

_ABANDONED = 3600.0
"""Seconds since a part file last grew after which nobody can be writing it any more."""
_NEW_MODE = 0o644
_FLUSH_EVERY = 64 << 20


@contextmanager
def replacing(target: Path) -> Iterator[IO[bytes]]:
    """A new file beside `target` that takes its place when the block ends well and is removed when it does not.

    The new file is durable before it is visible and has the permissions of the old one, 0644 where there was none. A
    process that is killed leaves a hidden ``.epctx-*.part`` file; those of the same target that are an hour old are
    removed here.

    Raises:
        OSError: nothing changed at `target`, except that the last step, the folder's fsync, may fail.
    """
    prefix = f".epctx-{digest_bytes(os.fsencode(target.name))[:16]}-"
    for path in target.parent.iterdir():
        if path.name.startswith(prefix) and path.suffix == ".part":
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    files.remove_file(path)
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=".part", dir=target.parent)
    part = Path(name)
    try:
        with io.BufferedRandom(_PartFile(descriptor)) as stream:
            yield stream
        part.chmod(stat.S_IMODE(target.stat().st_mode) if target.exists() else _NEW_MODE)
        files.fsync_file(part)
        files.move(part, target)
    except BaseException:
        files.remove_file(part)
        raise
    files.fsync_dir(target.parent)


class _PartFile(io.FileIO):
    """A new file whose bytes go to the disk while later ones are still being made, where the system can do that.

    Otherwise the disk would idle until the end and the final fsync would take as long as writing everything.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "r+b")
        self._thread = ThreadPoolExecutor(1, "epctx-flush")
        self._flushing: Future[None] | None = None
        self._unflushed = 0

    def write(self, data: Buffer, /) -> int:
        """Write; raises what an earlier flush met, which the system reports only once."""
        count = super().write(data)
        self._unflushed += count
        if self._unflushed >= _FLUSH_EVERY and hasattr(os, "fdatasync"):
            if self._flushing is not None:
                if not self._flushing.done():
                    return count
                self._flushing.result()
            self._flushing = self._thread.submit(os.fdatasync, self.fileno())
            self._unflushed = 0
        return count

    def close(self) -> None:
        """Wait for the flush under way, then close."""
        self._thread.shutdown()
        super().close()
        if self._flushing is not None:
            self._flushing.result()
            self._flushing = None
