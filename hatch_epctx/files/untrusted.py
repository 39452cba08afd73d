"""Reading what others may have written: regular files only, bounded sizes, strict JSON.

Markers, facts and stat records lie in a folder of the user's own, yet disks fail, tools tamper and copies go wrong:
whatever reads them treats any surprise as "not there".
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn

from hatch_epctx.files.disk import long_path

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DEPTH_LIMIT", "VALUE_LIMIT", "open_regular", "parse_json", "read_bounded"]

DEPTH_LIMIT: Final = 64
"""Levels of nesting that `parse_json` accepts."""
VALUE_LIMIT: Final = 1 << 20
"""Values, keys apart, that `parse_json` accepts: what is read in bytes may be a hundred times that in memory."""
_INTEGER_DIGITS: Final = 20
"""Digits of an integer: 64 bits; Python's own limit of 4,300 still costs quadratic time."""


def open_regular(path: Path, *, follow: bool = False) -> IO[bytes]:
    """Open a regular file for reading, unbuffered, without ever blocking on a pipe or touching a device.

    Args:
        path: the file.
        follow: accept a link at `path` and open what it leads to; links in the folders above are always followed.

    Raises:
        OSError: as `open`; ELOOP for a link, EINVAL for anything else that is no regular file.
    """
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
        if os.name == "nt" and path.is_symlink():  # pragma: no cover  # no O_NOFOLLOW there
            raise OSError(errno.ELOOP, "is a link", str(path))
    descriptor = os.open(long_path(path), flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering=0)


_GROWTH: Final = 64 * 1024
"""Bytes that are read at a time from a file that grows while it is read."""


def read_bounded(path: Path, limit: int) -> bytes:
    """Content of the regular file at `path`, at most `limit` bytes.

    Raises:
        OSError: as `open_regular`; EFBIG when there is more than `limit`.
    """
    with open_regular(path) as stream:
        parts: list[bytes] = []
        left = limit + 1
        # A read asks the system for all the memory that it may fill: no more than the file has, then what it grew by.
        wanted = os.fstat(stream.fileno()).st_size + 1
        while left and (part := stream.read(min(left, max(wanted, _GROWTH)))):
            parts.append(part)
            left -= len(part)
            wanted -= len(part)
    if not left:
        raise OSError(errno.EFBIG, f"holds more than {limit} bytes", str(path))
    return b"".join(parts)


def parse_json(data: bytes) -> Any:
    """The one value of a strict JSON text (RFC 8259, as I-JSON, RFC 7493, narrows it).

    Raises:
        ValueError: not UTF-8, not JSON, a key twice in one object, NaN or infinity (``1e999`` too), an integer
            beyond 20 digits, an unpaired surrogate, nesting deeper than `DEPTH_LIMIT`, more than `VALUE_LIMIT` values.
    """
    text = data.decode("utf-8")
    if text.count(",") + text.count("[") + text.count("{") >= VALUE_LIMIT:  # a bound from above: strings count too
        raise ValueError("holds too many values")
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_integer,
        )
    except RecursionError:
        raise ValueError("nested too deep") from None
    _check_tree(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return value


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is out of range")
    return value


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > _INTEGER_DIGITS:
        raise ValueError("an integer is out of range")
    return int(text)


def _check_tree(value: Any) -> None:
    """Walk without recursion: what passes can be walked with recursion by others."""
    level = [value]
    for _ in range(DEPTH_LIMIT):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, str):
                item.encode("utf-8")  # an unpaired surrogate is a UnicodeEncodeError, a ValueError
        if not below:
            return
        level = below
    raise ValueError("nested too deep")
