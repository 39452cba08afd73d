"""Content digests: the only module that hashes.

A digest is the lower-case hexadecimal SHA-256 of bytes (FIPS 180-4). An identity is a digest too, of a canonical
document (see `identity`); this module knows nothing of documents.
"""

from __future__ import annotations

import hashlib
import re
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = [
    "CHUNK",
    "STRONG_ALGORITHMS",
    "Hasher",
    "content_name",
    "digest_ahead",
    "digest_bytes",
    "digest_entries",
    "digest_file",
    "digest_stream",
    "is_digest",
    "new_hasher",
]

CHUNK = 1 << 18
"""Bytes read and written at a time: what was hashed is still in the CPU's cache when it is written (measured)."""

_AHEAD = 1 << 20
"""Bytes that `digest_ahead` reads at a time: large enough that handing them over costs nothing beside hashing."""

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")

Hasher = hashlib.sha256

STRONG_ALGORITHMS = ("sha256", "sha384", "sha512")
"""Algorithms read in foreign records such as a wheel's RECORD; whatever this project writes is SHA-256."""


def new_hasher(algorithm: str) -> hashlib._Hash:
    """A hasher for checking a digest that somebody else recorded.

    Raises:
        ValueError: the algorithm is not one of `STRONG_ALGORITHMS`.
    """
    if algorithm not in STRONG_ALGORITHMS:
        raise ValueError(f"unsupported hash algorithm {algorithm!r}")
    return hashlib.new(algorithm)


def is_digest(text: object) -> bool:
    """Whether `text` is a full digest: 64 lower-case hexadecimal digits."""
    return isinstance(text, str) and _DIGEST.match(text) is not None


def digest_bytes(data: bytes | bytearray | memoryview) -> str:
    """Digest of `data`."""
    return hashlib.sha256(data).hexdigest()


def digest_stream(stream: IO[bytes], *, copy_to: IO[bytes] | None = None) -> tuple[str, int]:
    """Read `stream` to its end; return (digest, size in bytes), writing what was hashed to `copy_to` on the way."""
    hasher = hashlib.sha256()
    size = 0
    buffer = bytearray(CHUNK)
    view = memoryview(buffer)
    while count := stream.readinto(buffer):  # type: ignore[attr-defined]  # every binary stream opened here has it
        hasher.update(view[:count])
        if copy_to is not None:
            copy_to.write(view[:count])
        size += count
    return hasher.hexdigest(), size


def digest_ahead(stream: IO[bytes]) -> tuple[str, int]:
    """As `digest_stream`, for large files: the next part is read by another thread while one is hashed.

    One thread hashes at the hash's own speed instead of at that of reading and hashing in turn.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  # small files do without

    hasher = hashlib.sha256()
    size = 0
    now, ahead = bytearray(_AHEAD), bytearray(_AHEAD)
    read = stream.readinto  # type: ignore[attr-defined]  # every binary stream opened here has it
    with ThreadPoolExecutor(1, thread_name_prefix="epctx-read") as reader:
        count = read(now)
        while count:
            coming = reader.submit(read, ahead)
            hasher.update(memoryview(now)[:count])
            size += count
            count = coming.result()
            now, ahead = ahead, now
    return hasher.hexdigest(), size


def digest_file(path: Path) -> str:
    """Digest of the file's content, read now.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb", buffering=0) as stream:
        return digest_stream(stream)[0]


def digest_entries(entries: Iterable[tuple[str, str]]) -> str:
    """Digest of a set of named contents: sorted (name, content or its digest) pairs, each with its lengths before it.

    Names are relative POSIX paths. The order in which entries are given does not count. Lengths stand before the
    texts so that no two different sets give the same bytes.
    """
    hasher = hashlib.sha256(b"epctx-entries/1\n")
    for name, digest in sorted(entries):
        raw = name.encode("utf-8", "surrogatepass")
        hasher.update(f"{len(raw)}:".encode() + raw + b"=" + digest.encode() + b"\n")
    return hasher.hexdigest()


def content_name(digest: str) -> str:
    """File name of a context binary, weights file or EP cache in the wheel: ``sha256-<32 hex>.bin``.

    128 bits keep names short enough for Windows' MAX_PATH; the full digest stands in the manifest.
    """
    return f"sha256-{digest[:32]}.bin"
