"""The inventory: every generation with its size, its last use, and what names it.

Linear in the store: one look at each marker and at each file of each generation. Markers are not parsed for that:
whatever generation stands in a marker's text counts as named by it, so that doubt keeps a generation. What is
removed is decided again, strictly and under locks (see `removing`).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hatch_epctx.digest import is_digest
from hatch_epctx.files import long_path, read_bounded
from hatch_epctx.store.records import MARKER_LIMIT, is_generation_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hatch_epctx.collect.limits import Deadline
    from hatch_epctx.store import Store
    from hatch_epctx.store.layout import Layout

__all__ = ["Inventory", "Item", "least_recent", "marked_identities", "named_generations", "recent_identities", "survey"]

_NAMED = re.compile(rb'"generation"\s*:\s*"([0-9a-f]{32})"')
_NEVER_READ: Final = frozenset({errno.ENOENT, errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO, errno.EFBIG})
"""Errors of what is no marker and never will be, in contrast to those of a disk that may recover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One generation as a survey saw it."""

    generation: str
    size: int
    """Bytes of its files. A file with several names is counted once in a whole survey."""
    used: float
    """Seconds since 1970 of its last use, or of its making where no marker names it."""
    identities: tuple[str, ...]
    """Whose markers name it; none: superseded, or never selected."""
    pins: tuple[str, ...] = ()
    """Roots that keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What a survey saw."""

    items: tuple[Item, ...]
    """By last use, the oldest first."""
    dangling: tuple[str, ...]
    """Identities whose marker names no generation that is there."""
    unreadable: tuple[Path, ...]
    """Markers that the disk did not give: no generation can be called unnamed meanwhile."""
    finished: bool
    """False: the time was over before everything was seen."""

    @property
    def size(self) -> int:
        """Bytes of all generations."""
        return sum(item.size for item in self.items)


@dataclass(slots=True)
class _Markers:
    """Markers by the generation that each names."""

    naming: dict[str, list[str]] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    nothing: list[str] = field(default_factory=list)
    unreadable: list[Path] = field(default_factory=list)


def survey(store: Store, *, pins: Mapping[str, tuple[str, ...]], deadline: Deadline) -> Inventory:
    """Look at the whole store; nothing is changed, and nothing counts as a use.

    Args:
        store: the store.
        pins: names of roots by identity, see `roots.pins`.
        deadline: when to stop; the inventory is of no use for removing then.

    Raises:
        OSError: a folder of the store cannot be read.
    """
    layout = store.layout
    # Generations first: one that is published meanwhile is not seen, rather than seen without its marker.
    folders = dict(_generations(layout, deadline))
    markers = _read_markers(layout, deadline)
    items = [
        Item(
            generation=name,
            size=size,
            used=max((markers.used[identity] for identity in markers.naming.get(name, ())), default=made),
            identities=tuple(markers.naming.get(name, ())),
            pins=tuple(pin for identity in markers.naming.get(name, ()) for pin in pins.get(identity, ())),
        )
        for name, (size, made) in folders.items()
    ]
    dangling = {identity for name, named in markers.naming.items() if name not in folders for identity in named}
    there = {identity for name, named in markers.naming.items() if name in folders for identity in named}
    return Inventory(
        items=tuple(sorted(items, key=lambda item: (item.used, item.generation))),
        dangling=tuple(sorted({*markers.nothing, *(dangling - there)})),
        unreadable=tuple(markers.unreadable),
        finished=not deadline.over,
    )


def named_generations(layout: Layout) -> set[str] | None:
    """All generations that any marker names at this moment; None when that cannot be told.

    Raises:
        OSError: the folder of markers cannot be read.
    """
    named: set[str] = set()
    for _, path in _marker_files(layout):
        found = _named(path)
        if found is None:
            return None
        named |= found
    return named


def marked_identities(layout: Layout) -> list[str]:
    """All identities that have a marker, in no order.

    Raises:
        OSError: the folder of markers cannot be read.
    """
    return [identity for identity, _ in _marker_files(layout)]


def least_recent(store: Store, *, pins: Mapping[str, tuple[str, ...]]) -> Iterator[Item]:
    """Generations that no root keeps, the least recently used first, each as far as one of its markers tells.

    For a store that cannot be surveyed in time: one look at each marker's status, and then only at what is asked for.

    Raises:
        OSError: the folder of markers cannot be read.
    """
    layout = store.layout
    kept = {name for identity in pins for name in _named(layout.marker(identity)) or ()}
    used: list[tuple[float, str, Path]] = []
    for identity, path in _marker_files(layout):
        with suppress(OSError):  # collected just now
            used.append((long_path(path).lstat().st_mtime, identity, path))
    for when, identity, path in sorted(used):
        if identity in pins:
            continue
        for name in (_named(path) or set()) - kept:
            measured = _measured(layout, name, set())
            if measured is not None:
                yield Item(generation=name, size=measured[0], used=when, identities=(identity,))


def recent_identities(store: Store, most: int) -> list[str]:
    """Identities that have a marker, the most recently used first, so many at most; none where they cannot be read."""
    used: list[tuple[float, str]] = []
    with suppress(OSError):
        for identity, path in _marker_files(store.layout):
            with suppress(OSError):  # collected just now
                used.append((long_path(path).lstat().st_mtime, identity))
    return [identity for _, identity in sorted(used, reverse=True)[:most]]


def _read_markers(layout: Layout, deadline: Deadline) -> _Markers:
    markers = _Markers()
    for identity, path in _marker_files(layout):
        if deadline.over:
            break
        found = _named(path)
        if found is None:
            markers.unreadable.append(path)
            continue
        try:
            markers.used[identity] = long_path(path).lstat().st_mtime
        except OSError:  # collected just now
            continue
        for name in found:
            markers.naming.setdefault(name, []).append(identity)
        if not found:
            markers.nothing.append(identity)
    return markers


def _marker_files(layout: Layout) -> Iterator[tuple[str, Path]]:
    for shard in _entries(layout.markers):
        if len(shard.name) != 2 or not shard.is_dir(follow_symlinks=False):
            continue
        for entry in _entries(layout.markers / shard.name):
            identity, dot, kind = entry.name.partition(".")
            if (dot, kind) == (".", "json") and is_digest(identity) and identity.startswith(shard.name):
                yield identity, layout.markers / shard.name / entry.name


def _named(path: Path) -> set[str] | None:
    """Generations that a marker's text names; empty for what is no marker, None when it cannot be read now."""
    try:
        data = read_bounded(path, MARKER_LIMIT)
    except OSError as error:
        return set() if error.errno in _NEVER_READ else None
    return {match.decode() for match in _NAMED.findall(data)}


def _generations(layout: Layout, deadline: Deadline) -> Iterator[tuple[str, tuple[int, float]]]:
    """(name, (bytes, time of the folder)) of every generation."""
    counted: set[tuple[int, int]] = set()
    for entry in _entries(layout.generations):
        if deadline.over:
            return
        measured = _measured(layout, entry.name, counted) if is_generation_name(entry.name) else None
        if measured is not None:
            yield entry.name, measured


def _measured(layout: Layout, name: str, counted: set[tuple[int, int]]) -> tuple[int, float] | None:
    """(bytes, time of the folder) of a generation without files that are `counted` already; None when it is gone."""
    folder = layout.generations / name
    try:
        made = long_path(folder).lstat().st_mtime
        files = [item.stat(follow_symlinks=False) for item in _entries(folder)]
    except (FileNotFoundError, NotADirectoryError):
        files = []
        made = 0.0
        if not os.path.lexists(folder):
            return None
    size = 0
    for status in files:
        key = (status.st_dev, status.st_ino)
        if stat.S_ISREG(status.st_mode) and (status.st_nlink == 1 or key not in counted):
            counted.add(key) if status.st_nlink > 1 else None
            size += status.st_size
    return size, made


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(long_path(folder)) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
