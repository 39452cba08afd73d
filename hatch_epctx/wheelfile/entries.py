"""What is to be added to a wheel, checked before anything is written."""

from __future__ import annotations

import io
import os
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, TYPE_CHECKING

from hatch_epctx import files
from hatch_epctx.errors import ConfigError
from hatch_epctx.wheelfile.names import collisions, is_metadata, name_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from hatch_epctx.wheelfile.archive import Member

__all__ = ["Entry", "checked", "opened", "refuse_misplaced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file to add.

    Attributes:
        name: path in the wheel, such as ``acme_vision/_epctx/manifest.json``.
        source: the file to read, or the bytes themselves.
        digest: what the content must hash to (64 hexadecimal digits); empty: whatever is read counts.
    """

    name: str
    source: Path | bytes
    digest: str = ""


def checked(entries: Iterable[Entry]) -> list[Entry]:
    """Entries sorted by name; names portable and distinct."""
    result = sorted(entries, key=lambda entry: entry.name)
    for entry in result:
        try:
            for part in entry.name.split("/"):
                files.check_name(part)
        except ValueError as error:
            fault = str(error)
        else:
            fault = name_fault(entry.name)
        if fault:
            raise ConfigError(
                f"{entry.name!r} cannot be a file in a wheel: {fault}",
                expected="a relative path whose parts every file system takes",
                reason="entry-name",
            )
        if is_metadata(entry.name) and entry.name.partition("/")[2] in {"RECORD", "RECORD.jws", "RECORD.p7s"}:
            raise ConfigError(f"{entry.name!r} is the wheel's own", reason="entry-name")
    for entry, following in pairwise(result):
        if entry.name == following.name:
            raise ConfigError(f"{entry.name!r} is added twice", expected="one file of a name", reason="entry-twice")
    return result


def refuse_misplaced(added: Sequence[Entry], members: Sequence[Member], record: Member) -> None:
    """Refuse a second metadata folder, and paths that are one on some file systems."""
    folder = record.name.partition("/")[0]
    for entry in added:
        if is_metadata(entry.name) and entry.name.partition("/")[0] != folder:
            raise ConfigError(f"{entry.name!r} is foreign metadata", expected=f"{folder}/...", reason="entry-name")
    ours = {entry.name for entry in added}
    for name, other in collisions([*ours, *(member.name for member in members)]):
        if {name, other} & ours:
            raise ConfigError(
                f"{name!r} and {other!r} are one path on some file systems",
                expected="names that differ in more than case, and no file where a folder is",
                reason="entry-collision",
            )


@contextmanager
def opened(entry: Entry) -> Iterator[tuple[IO[bytes], int]]:
    """The entry's content and its size; links are followed, since a wheel holds regular files only."""
    if isinstance(entry.source, bytes):
        yield io.BytesIO(entry.source), len(entry.source)
        return
    with files.open_regular(entry.source, follow=True) as stream:
        yield stream, os.fstat(stream.fileno()).st_size
