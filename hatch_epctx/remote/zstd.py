"""Zstandard, where a library for it is there: Python's own (since 3.14) or backports.zstd, its copy for earlier ones.

Nothing needs it. A cache that offers it is spoken to compressed, which pays for ONNX files and little else.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.remote.faults import RemoteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Decompressor", "available", "compress"]

LEVEL: Final = 3
WINDOW_LOG_LIMIT: Final = 27
"""A frame may make us keep 2**27 bytes (128 MiB), what every decoder must accept, and no more."""


def _library() -> Any:
    try:
        return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    except ImportError:
        return None


_ZSTD: Final = _library()


def available() -> bool:
    """Whether there is a library."""
    return _ZSTD is not None


def compress(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """One frame of all `pieces`, in pieces."""
    compressor = _ZSTD.ZstdCompressor(level=LEVEL)
    for piece in pieces:
        if packed := compressor.compress(piece):
            yield packed
    yield compressor.flush()


class Decompressor:
    """Unpacks one frame, never more than `step` bytes at a time, so that a small answer cannot fill the memory."""

    def __init__(self, *, step: int = 1 << 20) -> None:
        options = {_ZSTD.DecompressionParameter.window_log_max: WINDOW_LOG_LIMIT}
        self._frame = _ZSTD.ZstdDecompressor(options=options)
        self._step = step

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What `data` unpacks to.

        Raises:
            RemoteError: it is no Zstandard, or goes on after the frame's end.
        """
        while True:
            if self._frame.eof:
                if data:
                    raise RemoteError("compressed bytes after their end", reason="corrupt")
                return
            try:
                piece = self._frame.decompress(data, max_length=self._step)
            except _ZSTD.ZstdError as error:
                raise RemoteError(f"badly compressed bytes ({error})", reason="corrupt") from error
            data = self._frame.unused_data if self._frame.eof else b""
            if piece:
                yield piece
            elif self._frame.needs_input or not data:
                return
