"""Checking the store: every byte of every selected generation, against what its marker says."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hatch_epctx.collect.inventory import marked_identities
from hatch_epctx.errors import StoreError
from hatch_epctx.lease import Lease
from hatch_epctx.store import Miss
from hatch_epctx.store.generation import verify_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hatch_epctx.store import Marker, Store

__all__ = ["Checked", "check"]

_LOOKS: Final = 3
"""Times that a marker which changes under our eyes is followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One identity and what its marker selects."""

    identity: str
    generation: str = ""
    size: int = 0
    """Bytes that the marker lists."""
    miss: Miss | None = None
    """What is wrong; None when every byte is right. Absent: it was collected meanwhile, and nothing is wrong."""


def check(store: Store, identities: Iterable[str] | None = None, *, content: bool = True) -> Iterator[Checked]:
    """Look at every byte of what the markers select; nothing is changed, and nothing counts as a use.

    What is replaced or collected meanwhile is no damage. In a store that may be written each generation is leased
    while it is read.

    Args:
        store: the store.
        identities: whose; None: all that have a marker, in order.
        content: False looks at names and sizes alone, which is quick and finds less.

    Raises:
        OSError: the folder of markers cannot be read.
    """
    for identity in sorted(marked_identities(store.layout)) if identities is None else identities:
        yield _check(store, identity, content=content)


def _check(store: Store, identity: str, *, content: bool) -> Checked:
    seen = ""
    found = Checked(identity=identity, miss=Miss(reason="absent"))
    for _ in range(_LOOKS):
        marker = store.marker(identity)
        if isinstance(marker, Miss):
            return Checked(identity=identity, miss=marker)
        if marker.generation == seen:
            return found
        seen = marker.generation
        found = Checked(
            identity=identity,
            generation=marker.generation,
            size=sum(artifact.size for artifact in marker.record.artifacts),
            miss=_verify(store, marker, content=content),
        )
        if found.miss is None:
            return found
    return found


def _verify(store: Store, marker: Marker, *, content: bool) -> Miss | None:
    with ExitStack() as claims:
        try:
            if not store.read_only:
                claims.enter_context(Lease.acquire(store.layout.leases, marker.generation))
        except (OSError, StoreError):
            pass  # a full disk: what is collected meanwhile is seen by the next look at the marker
        return verify_folder(store.layout.generations / marker.generation, marker.record, content=content)
