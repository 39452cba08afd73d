"""Names of members: which are safe to unpack, and which cannot stand beside each other."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["collisions", "is_metadata", "name_fault"]


def is_metadata(name: str) -> bool:
    """Whether the member lies in a top-level folder ``*.dist-info``."""
    folder, separator, _ = name.partition("/")
    return bool(separator) and folder.endswith(".dist-info")


def name_fault(name: str) -> str:
    """Why a member's name could leave the folder it is unpacked into, or be read differently elsewhere; "" if not."""
    if not name:
        return "empty"
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in name):
        return "control character"
    if "\\" in name:
        return "backslash"
    if name.startswith("/") or name[1:2] == ":":
        return "absolute"
    parts = name.removesuffix("/").split("/")
    if any(part in {"", ".", ".."} for part in parts):
        return "empty, '.' or '..' part"
    return "longer than 4096 characters" if len(name) > 4096 else ""


def collisions(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pairs of names that are one file on some file system (case, Unicode form), or a file and a folder of one name."""
    files: dict[str, str] = {}
    folders: dict[str, str] = {}
    for name in sorted(names):
        key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
        parts = key.removesuffix("/").split("/")
        for depth in range(1, len(parts)):
            folders.setdefault("/".join(parts[:depth]), name)
        if name.endswith("/"):
            folders.setdefault("/".join(parts), name)
        elif (other := files.setdefault(key, name)) != name:
            yield name, other
    for key, name in files.items():
        if key in folders:
            yield name, folders[key]
