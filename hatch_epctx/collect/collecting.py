"""Collection: leavings of the dead, what nothing names, what is too old, and what is too much, in this order."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from hatch_epctx.collect.expiry import expire, settle
from hatch_epctx.collect.inventory import least_recent, survey
from hatch_epctx.collect.limits import Deadline
from hatch_epctx.collect.removing import Remover
from hatch_epctx.collect.roots import LAST, pins, read_roots
from hatch_epctx.collect.usage import remember_size
from hatch_epctx.errors import StoreError
from hatch_epctx.lease import lock
from hatch_epctx.store.facts import Facts
from hatch_epctx.store.layout import store_error
from hatch_epctx.store.sweep import sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from hatch_epctx.collect.inventory import Inventory, Item
    from hatch_epctx.collect.limits import Limits
    from hatch_epctx.collect.roots import Root
    from hatch_epctx.store import Store

__all__ = ["Collected", "Why", "clear", "collect", "look", "select"]

Why = Literal["superseded", "age", "size", "asked"]
"""superseded: no marker names it; age, size: beyond a limit; asked: `clear`."""


@dataclass(slots=True, kw_only=True)
class Collected:
    """What a collection did, or would do."""

    removed: list[tuple[Item, Why]] = field(default_factory=list)
    busy: list[Item] = field(default_factory=list)
    """Should have gone; somebody uses them, or has used them since the survey."""
    failed: list[str] = field(default_factory=list)
    """What the disk refused, sentences."""
    staging: int = 0
    """Staging folders and generations of dead processes that went."""
    dangling: int = 0
    """Markers that named nothing."""
    expired: int = 0
    """Remembered facts and digests that went."""
    size: int = 0
    """Bytes of the generations that are left."""
    finished: bool = True
    """False: the time was over; another collection goes on."""

    @property
    def freed(self) -> int:
        """Bytes of the removed generations."""
        return sum(item.size for item, _ in self.removed)


def collect(
    store: Store,
    limits: Limits,
    *,
    seconds: float | None = None,
    headroom: float = 0.0,
    known: int = 0,
    dry_run: bool = False,
    alone: bool = False,
    on_wait: Callable[[str], None] | None = None,
) -> Collected:
    """Bring the store down to its limits.

    Args:
        store: the store.
        limits: what it may keep. What is pinned or leased stays, and counts.
        seconds: time after which nothing further is begun; then another collector is not waited for either.
        headroom: share of the size limit to free beyond it, once it is exceeded.
        known: bytes that the store is believed to hold: what counts where half of `seconds` is not enough to survey
            it. Then only the size limit is kept, least recently used first.
        dry_run: only tell what would go; leases are not looked at.
        alone: the caller vouches that no other host uses a store on a network file system.
        on_wait: told who collects at the moment, see `lease.lock`.

    Raises:
        StoreError: the store is read-only, on a network file system, or cannot be read; or another collector is at
            work (reason "lock-timeout", with `seconds` only).
    """
    deadline = Deadline(seconds)
    with _at_work(store, alone=alone, dry_run=dry_run, deadline=deadline, on_wait=on_wait):
        swept = None if dry_run else sweep(store.layout, seconds=deadline.left)
        inventory = look(store, deadline=Deadline(None if seconds is None else seconds / 2))
        done = Collected(size=inventory.size, finished=inventory.finished)
        if swept is not None:
            done.staging = swept.staging + swept.generations
        run = _Run(store, done, deadline, dry_run=dry_run)
        if not inventory.finished:
            done.size = max(done.size, known)
            run.evict_unsurveyed(limits, headroom=headroom)
            remember_size(store, done.size, 0.0)  # not measured: the next build is to try again
            return done
        run.superseded(inventory)
        run.evict(inventory, limits, headroom=headroom)
        run.dangling(inventory)
        if not dry_run:
            done.expired = expire(store.layout, keep=_followed(store), deadline=deadline)
            remember_size(store, done.size)
    return done


def clear(
    store: Store,
    identities: Iterable[str] | None = None,
    *,
    pinned: bool = False,
    alone: bool = False,
    on_wait: Callable[[str], None] | None = None,
) -> Collected:
    """Remove everything, or what the markers of `identities` select; what is leased stays, and what is pinned.

    Args:
        store: the store.
        identities: whose; None: all, and what was only remembered, too.
        pinned: pinned ones as well; their roots stay, and claim what is built next.
        alone: as in `collect`.
        on_wait: as in `collect`.

    Raises:
        StoreError: as `collect`.
    """
    deadline = Deadline()
    with _at_work(store, alone=alone, dry_run=False, deadline=deadline, on_wait=on_wait):
        swept = sweep(store.layout)
        inventory = look(store, deadline=deadline, unpinned=pinned)
        done = Collected(size=inventory.size, staging=swept.staging + swept.generations)
        run = _Run(store, done, deadline, despite_pins=pinned, despite_use=True)
        wanted = None if identities is None else set(identities)
        run.superseded(inventory)
        for item in inventory.items:
            if item.identities and not item.pins and (wanted is None or not wanted.isdisjoint(item.identities)):
                run.take(item, "asked")
        run.dangling(inventory)
        if wanted is None:
            keep = frozenset() if pinned else _followed(store)
            done.expired = expire(store.layout, keep=keep, deadline=deadline, forget=True)
        remember_size(store, done.size)
    return done


def look(
    store: Store,
    *,
    deadline: Deadline | None = None,
    unpinned: bool = False,
    roots: Iterable[Root] | None = None,
) -> Inventory:
    """The inventory with what is pinned in it.

    Args:
        store: the store.
        deadline: see `survey`.
        unpinned: leave roots out.
        roots: those that count; read from the store when left out.

    Raises:
        StoreError: a root or a folder cannot be read.
    """
    claims = {} if unpinned else pins(store, read_roots(store) if roots is None else roots)
    try:
        return survey(store, pins=claims, deadline=deadline or Deadline())
    except OSError as error:
        raise store_error(error, store.root, "survey the store") from error


def select(inventory: Inventory, limits: Limits, now: float) -> Iterator[tuple[Item, Why]]:
    """Generations that may go, in the order in which they go: those too old, then all others by last use.

    Pinned ones are not among them, nor are those that no marker names. Those with the reason "size" go as long as the
    store is too large, and no longer.
    """
    rest: list[Item] = []
    for item in inventory.items:
        if not item.identities or item.pins:
            continue
        if limits.max_age is not None and now - item.used > limits.max_age:
            yield item, "age"
        else:
            rest.append(item)
    yield from ((item, "size") for item in rest)


class _Run:
    """One collection at work."""

    def __init__(
        self,
        store: Store,
        done: Collected,
        deadline: Deadline,
        *,
        dry_run: bool = False,
        despite_pins: bool = False,
        despite_use: bool = False,
    ) -> None:
        self._store = store
        self._done = done
        self._deadline = deadline
        self._dry_run = dry_run
        self._remover = Remover(store, despite_pins=despite_pins, despite_use=despite_use)

    def superseded(self, inventory: Inventory) -> None:
        """Generations that no marker names any more."""
        items = [item for item in inventory.items if not item.identities]
        if inventory.unreadable:
            self._done.failed += [
                f"{path} cannot be read: what it names is not known." for path in inventory.unreadable
            ]
            return
        if not self._dry_run:
            try:
                items = self._remover.superseded(items)
            except (OSError, StoreError) as error:
                self._done.failed.append(str(error))
                return
        for item in items:
            self.take(item, "superseded")

    def evict(self, inventory: Inventory, limits: Limits, *, headroom: float) -> None:
        """Generations beyond a limit, those used longest ago first."""
        now = time.time()
        floor = limits.max_size * (1 - headroom) if self._done.size > limits.max_size else limits.max_size
        for item, why in select(inventory, limits, now):
            if why == "size" and self._done.size <= floor:
                break
            self.take(item, why)
        if not self._dry_run:
            for item in inventory.items:
                for identity in item.identities:
                    settle(self._store.layout.marker(identity), item.used, now)

    def evict_unsurveyed(self, limits: Limits, *, headroom: float) -> None:
        """As `evict`, of a store too large to be surveyed in time: by size only, as much as the time allows."""
        if self._done.size <= limits.max_size:
            return
        floor = limits.max_size * (1 - headroom)
        try:
            for item in least_recent(self._store, pins=pins(self._store, read_roots(self._store))):
                if self._done.size <= floor or self._deadline.over:
                    break
                self.take(item, "size")
        except OSError as error:
            raise store_error(error, self._store.root, "survey the store") from error

    def dangling(self, inventory: Inventory) -> None:
        """Markers that name nothing."""
        for identity in inventory.dangling:
            if self._deadline.over:
                self._done.finished = False
                return
            try:
                self._done.dangling += self._dry_run or self._remover.drop(identity)
            except (OSError, StoreError) as error:
                self._done.failed.append(str(error))

    def take(self, item: Item, why: Why) -> None:
        """Remove one generation, unless the time is over or somebody uses it."""
        if self._deadline.over:
            self._done.finished = False
            return
        try:
            gone = self._dry_run or (self._remover.evict(item) if item.identities else self._remover.discard(item))
        except (OSError, StoreError) as error:
            self._done.failed.append(str(error))
            return
        if gone:
            self._done.removed.append((item, why))
            self._done.size -= item.size
        else:
            self._done.busy.append(item)


@contextmanager
def _at_work(
    store: Store, *, alone: bool, dry_run: bool, deadline: Deadline, on_wait: Callable[[str], None] | None
) -> Iterator[None]:
    """Refuse where nothing may be removed; keep other collectors away, which would only do the same work."""
    if dry_run:
        yield
        return
    if store.read_only:
        raise StoreError(
            "the store is read-only for this user",
            where=str(store.root),
            remedy="Collect as the user whose store it is.",
            reason="not-writable",
        )
    if store.layout.on_network and not alone:
        raise StoreError(
            f"the store lies on a network file system ({store.layout.file_system}), where this host cannot tell what"
            " others are using",
            where=str(store.root),
            remedy="Make sure that no other host uses the store at the moment, then say --alone.",
            reason="network-file-system",
        )
    timeout = None if deadline.left is None else 0.0
    path = store.layout.locks / "collect.lock"
    with ExitStack() as held:
        try:
            held.enter_context(lock(path, timeout=timeout, on_wait=on_wait))
        except OSError as error:
            raise store_error(error, path, "lock the collection") from error
        yield


def _followed(store: Store) -> frozenset[Path]:
    """Facts that roots live on."""
    facts = Facts(store.layout.facts)
    return frozenset(facts.path(LAST, root.follows) for root in read_roots(store) if root.follows)
