"""Forgetting: facts and digests that were only remembered to save time, and the leavings of killed writers."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hatch_epctx.files import TEMP_PREFIX, long_path, remove_tree, touch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from hatch_epctx.collect.limits import Deadline
    from hatch_epctx.store.layout import Layout

__all__ = ["FACTS_AGE", "STAT_AGE", "TEMP_AGE", "expire", "settle"]

_DAY: Final = 86_400.0
FACTS_AGE: Final = 180 * _DAY
"""Seconds after which a fact is forgotten; a variant's last identity is written anew by every build."""
STAT_AGE: Final = 30 * _DAY
"""Seconds after which a file's digest is forgotten: isolated builds work on files that never come back."""
TEMP_AGE: Final = 3600.0
"""Seconds after which the file of a writer that has not finished belongs to a dead one."""


def expire(layout: Layout, *, keep: Collection[Path], deadline: Deadline, forget: bool = False) -> int:
    """Remove what is too old; how many were removed. What cannot be removed stays.

    Args:
        layout: the store.
        keep: facts that stay whatever their age.
        deadline: when to stop.
        forget: all facts and digests, whatever their age.
    """
    now = time.time()
    removed = 0
    for folder, age in ((layout.facts, FACTS_AGE), (layout.stat, STAT_AGE)):
        for entry in _files(folder):
            if deadline.over:
                return removed
            if entry.name.startswith(TEMP_PREFIX):
                removed += _expire(entry, now, TEMP_AGE)
            elif Path(entry.path) not in keep:
                removed += _expire(entry, now, 0.0 if forget else age)
    for folder in (layout.markers, layout.roots, layout.leases, layout.locks):
        for entry in _files(folder, depth=1):
            if deadline.over:
                return removed
            if entry.name.startswith(TEMP_PREFIX):
                removed += _expire(entry, now, TEMP_AGE)
    return removed


def _expire(entry: os.DirEntry[str], now: float, limit: float) -> int:
    try:
        age = settle(Path(entry.path), entry.stat(follow_symlinks=False).st_mtime, now)
        if age < limit:
            return 0
        remove_tree(Path(entry.path))
    except OSError:
        return 0
    return 1


def settle(path: Path, used: float, now: float) -> float:
    """Age in seconds of something used at `used`. A time to come, after the clock was set back, becomes now.

    Otherwise it would be the last to go until the clock has caught up. Within a day nothing is done: hosts differ.
    """
    if used > now + _DAY:
        with suppress(OSError):
            touch(path, now)
    return max(0.0, now - used)


def _files(folder: Path, depth: int = 3) -> Iterator[os.DirEntry[str]]:
    """Files below `folder`, and folders with a temporary name; links are not followed."""
    try:
        with os.scandir(long_path(folder)) as entries:
            found = list(entries)
    except OSError:
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(TEMP_PREFIX):
            if depth:
                yield from _files(Path(entry.path), depth - 1)
        else:
            yield entry
