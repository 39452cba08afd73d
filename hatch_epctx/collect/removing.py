"""Taking away without hurting anybody: one generation, one marker at a time.

Order of a removal: the locks of all identities that name the generation (whoever compiles or looks it up under its
lock is not waited for: it is in use), the gate of its leases, then marker away, that durable, folder out of sight in
one step. Whatever dies in between leaves no marker that names less than a whole generation. The bytes go last, with
nothing held.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from hatch_epctx.collect.inventory import named_generations
from hatch_epctx.collect.roots import pins, read_roots, roots_seen
from hatch_epctx.errors import StoreError
from hatch_epctx.files import fault_point, fsync_dir, long_path, remove_tree
from hatch_epctx.lease import is_leased, unleased
from hatch_epctx.store import Marker
from hatch_epctx.store.sweep import move_away

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hatch_epctx.collect.inventory import Item
    from hatch_epctx.store import Store

__all__ = ["Remover"]


class Remover:
    """Removes what a survey saw, if it is still as the survey saw it.

    Args:
        store: a store that may be written.
        despite_pins: roots do not count.
        despite_use: a use since the survey does not count; leases always do.
    """

    def __init__(self, store: Store, *, despite_pins: bool = False, despite_use: bool = False) -> None:
        self._store = store
        self._despite_pins = despite_pins
        self._despite_use = despite_use
        self._seen: frozenset[tuple[str, int]] | None = None
        self._pinned: frozenset[str] = frozenset()

    def evict(self, item: Item) -> bool:
        """Remove the generation and the markers that name it; False when it is in use, pinned or has changed.

        Raises:
            OSError, StoreError: the disk failed, or that cannot be told. The store is whole all the same.
        """
        layout = self._store.layout
        with ExitStack() as held:
            for identity in sorted(item.identities):
                try:
                    held.enter_context(self._store.lock(identity, timeout=0))
                except StoreError as error:
                    if error.reason == "lock-timeout":
                        return False
                    raise
            if not self._unchanged(item):
                return False
            notes = held.enter_context(unleased(layout.leases, item.generation))
            # Within the gate: a claim that is made from now on finds the generation gone, and says so.
            if notes is None or self._is_pinned(item.identities):
                return False
            fault_point("collect-before")
            self._unmark(item.identities)
            fault_point("collect-unmarked")
            moved = move_away(layout, item.generation)
        _remove(moved)
        return True

    def drop(self, identity: str) -> bool:
        """Remove a marker that names no generation which is there; False when that is no longer so.

        Raises:
            OSError, StoreError: the disk failed.
        """
        layout = self._store.layout
        try:
            with self._store.lock(identity, timeout=0):
                marker = self._store.marker(identity)
                if isinstance(marker, Marker) and (layout.generations / marker.generation).is_dir():
                    return False
                self._unmark([identity])
        except StoreError as error:
            if error.reason == "lock-timeout":
                return False
            raise
        return True

    def superseded(self, items: Iterable[Item]) -> list[Item]:
        """Those of `items`, named by no marker when they were surveyed, that none names now or ever will.

        Whoever writes a marker has a lease on the generation that it names. So one that has no lease, and is named by
        no marker that is read after that, is never selected any more.

        Raises:
            OSError, StoreError: that cannot be told.
        """
        free = [item for item in items if not is_leased(self._store.layout.leases, item.generation)]
        named = named_generations(self._store.layout) if free else set()
        return [] if named is None else [item for item in free if item.generation not in named]

    def discard(self, item: Item) -> bool:
        """Remove a generation that `superseded` named; False when somebody reads it still.

        Raises:
            OSError, StoreError: the disk failed.
        """
        layout = self._store.layout
        with unleased(layout.leases, item.generation) as notes:
            if notes is None:
                return False
            fault_point("collect-superseded")
            moved = move_away(layout, item.generation)
        _remove(moved)
        return True

    def _unchanged(self, item: Item) -> bool:
        """Whether every marker still names the generation and none was used since the survey. Under their locks."""
        for identity in item.identities:
            marker = self._store.marker(identity)
            if isinstance(marker, Marker):
                if marker.generation != item.generation:
                    return False
            elif marker.reason == "unreadable-marker":
                return False  # the disk may give it again
            if self._despite_use:
                continue
            try:
                if long_path(self._store.layout.marker(identity)).lstat().st_mtime > item.used:
                    return False
            except FileNotFoundError:
                continue
        return True

    def _is_pinned(self, identities: Iterable[str]) -> bool:
        if self._despite_pins:
            return False
        seen = roots_seen(self._store)
        if seen != self._seen:
            self._pinned = frozenset(pins(self._store, read_roots(self._store)))
            self._seen = seen
        return not self._pinned.isdisjoint(identities)

    def _unmark(self, identities: Iterable[str]) -> None:
        for identity in identities:
            path = self._store.layout.marker(identity)
            remove_tree(path)  # a file, or whatever somebody put there
            fsync_dir(path.parent)


def _remove(moved: Path | None) -> None:
    """Remove the bytes of a generation that was moved out of sight."""
    fault_point("collect-moved")
    if moved is not None:
        remove_tree(moved)
