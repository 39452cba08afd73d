"""Blobs on their way: checked while they come in, checked while they go out.

What comes in is written only as far as it was announced and counts only when its digest is right; what goes out is
held back by one piece until the digest of all of it is known, so that no server is ever told that it has a whole blob
whose bytes are wrong.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from hatch_epctx.digest import CHUNK, Hasher, digest_bytes
from hatch_epctx.files import long_path, open_regular
from hatch_epctx.remote.faults import RemoteError

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["EMPTY", "Blob", "Receiver", "Source", "blob_of"]


@dataclass(frozen=True, slots=True, order=True)
class Blob:
    """The address of content: what the Remote Execution API calls a digest."""

    digest: str
    size: int


def blob_of(data: bytes) -> Blob:
    """Address of `data`."""
    return Blob(digest_bytes(data), len(data))


EMPTY = blob_of(b"")
"""Every cache has it by definition; it is neither sent nor asked for."""


class Receiver:
    """Takes the bytes of one blob, in order, into a new file or into memory.

    Args:
        name: the file in messages.
        blob: what must come.
        path: the file to make, private to this user; None keeps the bytes in memory (`data`).
        abort: set when another part of the same entry failed; taking then ends at once.
    """

    def __init__(self, name: str, blob: Blob, path: Path | None, abort: threading.Event) -> None:
        self.name = name
        self.blob = blob
        self.path = path
        self.data = b""
        self.position = 0
        self._abort = abort
        self._hasher = Hasher()
        self._parts: list[bytes] = []
        self._file: IO[bytes] | None = None

    def restart(self) -> None:
        """Forget what came so far: the blob comes again from its first byte."""
        self.position = 0
        self._hasher = Hasher()
        self._parts.clear()
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            RemoteError: more came than was announced, or the entry is given up.
            OSError: the file cannot be written.
        """
        if self._abort.is_set():
            raise RemoteError(f"{self.name}: given up", reason="failed")
        self.position += len(data)
        if self.position > self.blob.size:
            raise RemoteError(f"{self.name} is oversized: more came than its {self.blob.size} bytes", reason="corrupt")
        self._hasher.update(data)
        if self.path is None:
            self._parts.append(data)
            return
        self._open(self.path).write(data)

    def finish(self) -> None:
        """All has come: judge it, and close the file.

        Raises:
            RemoteError: it is truncated, or not the blob that was asked for.
            OSError: the file cannot be written.
        """
        if self.position != self.blob.size:
            raise RemoteError(
                f"{self.name} is truncated: {self.position} of {self.blob.size} bytes came", reason="corrupt"
            )
        found = self._hasher.hexdigest()
        if found != self.blob.digest:
            raise RemoteError(
                f"{self.name} is poisoned: its bytes have the digest {found[:12]}, not {self.blob.digest[:12]}",
                reason="corrupt",
            )
        if self.path is None:
            self.data = b"".join(self._parts)
        else:
            self._open(self.path)  # an empty blob has no other occasion to make its file
        self.close()

    def close(self) -> None:
        """Close the file, whole or not."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, path: Path) -> IO[bytes]:
        if self._file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_BINARY"):
                flags |= getattr(os, name, 0)
            self._file = os.fdopen(os.open(long_path(path), flags, 0o600), "wb")
        return self._file


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A blob to send: bytes in memory, or a file."""

    name: str
    """In messages."""
    blob: Blob
    data: bytes = b""
    path: Path | None = None

    def read(self) -> bytes:
        """All of it, for small ones.

        Raises:
            RemoteError, OSError: as `chunks`.
        """
        return b"".join(self.chunks())

    def chunks(self) -> Iterator[bytes]:
        """Its bytes in pieces of at most `digest.CHUNK`; the last one comes only when the digest of all is right.

        Raises:
            RemoteError: the file is not what `blob` says.
            OSError: it cannot be read.
        """
        if self.path is None:
            yield from (self.data[start : start + CHUNK] for start in range(0, len(self.data), CHUNK))
            return
        hasher, size, held = Hasher(), 0, b""
        with open_regular(self.path) as stream:
            while size <= self.blob.size and (piece := stream.read(CHUNK)):
                size += len(piece)
                hasher.update(piece)
                if held and size <= self.blob.size:
                    yield held
                held = piece
        if size != self.blob.size or hasher.hexdigest() != self.blob.digest:
            raise RemoteError(f"{self.name} is no longer what its record says", reason="failed")
        if held:
            yield held
