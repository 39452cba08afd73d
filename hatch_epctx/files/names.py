"""Which names are safe: flat names of artifacts, and locations of external data inside a folder.

Both rules are the same on every system, because a wheel built here is installed elsewhere; they judge text alone
and never look at a disk. Whoever opens the file still has to refuse links (`open_regular`).
"""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import PurePosixPath
from typing import Final

__all__ = ["NAME_LIMIT", "check_location", "check_name", "contained"]

NAME_LIMIT: Final = 200
"""Bytes of a flat name in UTF-8: every file system takes 255, and temporary names need some of them."""
_LOCATION_LIMIT: Final = 1024
_PART_LIMIT: Final = 255

_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]')
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DRIVE = re.compile(r"[A-Za-z]:")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])", re.IGNORECASE)


def check_name(name: object) -> str:
    """Return `name` when it is one flat file name that is safe on Linux, macOS and Windows.

    Refused: separators, drive letters and alternate data streams (``:``), ``.`` and ``..``, NUL and other control
    characters, the characters Windows forbids, its device names (with any extension), a trailing dot or space
    (Windows drops them), text that is not Unicode in normal form C (macOS changes it), more than 200 bytes.

    Raises:
        ValueError: the name is refused; the message is a clause that says why.
    """
    if not isinstance(name, str):
        raise ValueError(f"a name is text, not {type(name).__name__}")  # noqa: TRY004  # one error for all refusals
    reason = _name_fault(name)
    if reason:
        raise ValueError(f"{_shown(name)} {reason}")
    return name


def contained(name: object) -> bool:
    """Whether `check_name` accepts `name`."""
    return isinstance(name, str) and not _name_fault(name)


def _name_fault(name: str) -> str:
    """Why `name` is refused, a clause that reads after it; empty when it is not."""
    if name in ("", ".", ".."):
        return "names no file"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not Unicode"
    if size > NAME_LIMIT:
        return f"has {size} bytes, more than {NAME_LIMIT}"
    if found := _FORBIDDEN.search(name):
        return f"holds {found.group()!r}, which a flat name must not"
    if name[-1] in ". ":
        return "ends with a dot or a space, which Windows drops"
    if _DEVICE.fullmatch(name.partition(".")[0].rstrip(" ")):
        return "is a device on Windows"
    if unicodedata.normalize("NFC", name) != name:
        return "is not in Unicode's normal form C"
    return ""


def check_location(location: object) -> PurePosixPath:
    """Return the normal form of a location of external data: a relative POSIX path inside its folder.

    ``a/../b`` and ``./b`` are ``b``: read as text, before any link is followed, so that every reader of the same
    location means the same file. A colon is refused where it would be a drive, and everywhere on Windows.

    Raises:
        ValueError: empty, absolute, with a drive or a backslash, with control characters, too long, not Unicode,
            or leading out of the folder; the message is a clause that says why.
    """
    if not isinstance(location, str):
        raise ValueError(f"a location is text, not {type(location).__name__}")  # noqa: TRY004  # as above
    reason = _location_fault(location)
    if reason:
        raise ValueError(f"{_shown(location)} {reason}")
    parts: list[str] = []
    for part in location.split("/"):
        if part in ("", "."):
            continue
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            raise ValueError(f"{_shown(location)} leads out of its folder")
    if not parts:
        raise ValueError(f"{_shown(location)} names no file")
    if _DRIVE.match(parts[0]):  # "./c:x" is one without its dot
        raise ValueError(f"{_shown(location)} names a drive")
    return PurePosixPath(*parts)


def _location_fault(location: str) -> str:
    try:
        size = len(location.encode())
    except UnicodeEncodeError:
        return "is not Unicode"
    if size > _LOCATION_LIMIT or any(len(part.encode()) > _PART_LIMIT for part in location.split("/")):
        return f"is longer than {_LOCATION_LIMIT} bytes, or a part of it than {_PART_LIMIT}"
    if _CONTROL.search(location):
        return "holds control characters"
    if "\\" in location:
        return "holds a backslash"
    if location.startswith("/"):
        return "is absolute"
    if _DRIVE.match(location) or (os.name == "nt" and ":" in location):
        return "names a drive or a stream"
    return ""


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
