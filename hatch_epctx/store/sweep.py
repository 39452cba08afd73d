"""Sweeping: what dead processes left half done goes away; what lives, or was selected, stays.

Only the folders ``staging`` and ``leases`` are listed. Both hold no more than the work of living processes and of
those that died since the last sweep, so the cost does not grow with the store. No clock takes part.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hatch_epctx.digest import is_digest
from hatch_epctx.errors import StoreError
from hatch_epctx.files import fault_point, long_path, move, read_bounded, remove_tree
from hatch_epctx.lease import unleased
from hatch_epctx.store.records import MARKER_LIMIT, is_generation_name, parse_marker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hatch_epctx.lease import Lease
    from hatch_epctx.store.layout import Layout

__all__ = ["Swept", "discard", "move_away", "selects", "sweep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep removed."""

    staging: int = 0
    """Staging folders of dead processes."""
    generations: int = 0
    """Generations that no marker names and whose maker is dead."""
    finished: bool = True
    """False: the limit was reached, or something could not be removed; a later sweep goes on."""


def sweep(layout: Layout, *, limit: int | None = None, seconds: float | None = None) -> Swept:
    """Remove staging folders and unselected generations of dead processes.

    Args:
        layout: the store.
        limit: claims and folders to look at, at most.
        seconds: time after which no further one is begun.
    """
    budget = _Budget(limit, seconds)
    staging = generations = 0
    whole = True
    for name in _names(layout.leases):
        if not budget.spend():
            return Swept(generations=generations, finished=False)
        try:
            generations += _sweep_claims(layout, name)
        except (OSError, StoreError):
            whole = False
    for name in _names(layout.staging):
        if not budget.spend():
            return Swept(staging=staging, generations=generations, finished=False)
        try:
            staging += _sweep_staging(layout, name)
        except (OSError, StoreError):
            whole = False
    return Swept(staging=staging, generations=generations, finished=whole)


class _Budget:
    def __init__(self, limit: int | None, seconds: float | None) -> None:
        self._left = limit
        self._end = None if seconds is None else time.monotonic() + seconds

    def spend(self) -> bool:
        if self._end is not None and time.monotonic() >= self._end:
            return False
        if self._left is None:
            return True
        self._left -= 1
        return self._left >= 0


def _names(folder: Path) -> Iterator[str]:
    """Names of our kind, as the folder has them when asked; those that go meanwhile are met as missing."""
    try:
        names = [path.name for path in long_path(folder).iterdir()]
    except OSError:
        return
    yield from (name for name in names if is_generation_name(name))


def _sweep_claims(layout: Layout, name: str) -> int:
    """Drop the claims on `name` if all are dead, and the generation if its maker never selected it."""
    with unleased(layout.leases, name) as notes:
        if notes is None:
            return 0
        fault_point("sweep-before")
        makers = [note for note in notes if is_digest(note)]
        if not makers or any(selects(layout, identity, name) is not False for identity in makers):
            return 0
        moved = move_away(layout, name)
    if moved is None:
        return 0
    fault_point("sweep-moved")
    remove_tree(moved)
    return 1


def _sweep_staging(layout: Layout, name: str) -> int:
    with unleased(layout.leases, name) as notes:
        if notes is None:
            return 0
    # Names are never used twice: what is dead now stays dead.
    remove_tree(layout.staging / name)
    return 1


def selects(layout: Layout, identity: str, generation: str) -> bool | None:
    """Whether the marker of `identity` names `generation`; None when that cannot be told."""
    try:
        return parse_marker(read_bounded(layout.marker(identity), MARKER_LIMIT), identity).generation == generation
    except (FileNotFoundError, ValueError):
        return False
    except OSError:
        return None


def discard(layout: Layout, identity: str, lease: Lease) -> None:
    """Remove the generation that its own maker, who holds `lease`, is done with.

    It stays when the marker names it after all, or somebody else has a lease. What cannot be removed now is swept
    when this process is dead.
    """
    fault_point("discard-before")
    with suppress(OSError, StoreError):
        with unleased(layout.leases, lease.name, besides=lease) as notes:
            if notes is None or selects(layout, identity, lease.name) is not False:
                return
            moved = move_away(layout, lease.name)
        fault_point("discard-moved")
        if moved is not None:
            remove_tree(moved)


def move_away(layout: Layout, generation: str) -> Path | None:
    """Take a generation out of sight in one step; None when it is not there.

    Where it goes, among the staging folders, nobody claims it: if this process dies now, the next sweep finds it.
    """
    away = layout.staging / uuid.uuid4().hex
    try:
        move(layout.generations / generation, away)
    except FileNotFoundError:
        return None
    return away
