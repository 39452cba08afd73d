"""Earlier results: which one is nearest to an identity document, and how long its compile took.

A variant's own last result is the first thing to compare with; where there is none (a new variant, a renamed target,
a store that another project filled), the nearest of the store is: the one with the fewest fields that differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.collect import recent_identities
from hatch_epctx.identity import diff

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hatch_epctx.store import Record, Store

__all__ = ["Earlier", "Estimate", "nearest", "read_recent", "seconds_of"]

_MOST: Final = 300
"""Results of the store that are looked at, the most recently used first."""
_COMPARED: Final = 8
"""Results that are compared field by field: those that share most sections of the document."""
_SECTIONS: Final = ("model", "compile", "target", "toolchain", "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """An earlier result."""

    identity: str
    document: Mapping[str, Any]
    seconds: float | None = None
    """How long its compile and its load check took; None where that is not known."""
    own: bool = False
    """Whether it is the variant's own last result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a compile will cost, by an earlier one."""

    seconds: float
    own: bool
    """Whether that was of the same variant."""


def seconds_of(result: Mapping[str, Any]) -> float | None:
    """Seconds that a result took to make, load checks of all of a group included; None where it does not say."""
    members = result.get("members")
    parts = [result, *(members if isinstance(members, list) else ())]
    found = [part.get("seconds") for part in parts if isinstance(part, dict)]
    times = [
        value
        for seconds in found
        if isinstance(seconds, dict)
        for value in seconds.values()
        if isinstance(value, int | float)
    ]
    return round(sum(times), 3) if times else None


def read_recent(store: Store) -> tuple[Record, ...]:
    """Records of the most recently used results of the store."""
    found = (store.record(identity) for identity in recent_identities(store, _MOST))
    return tuple(record for record in found if record is not None)


def nearest(document: Mapping[str, Any], records: Sequence[Record], last: Earlier | None) -> Earlier | None:
    """The earlier result with the fewest fields that differ; of equals the variant's own last one.

    One that shares neither model nor EP is no neighbour, nor is a shipped source that of a compile: its cost says
    nothing of it. None: there is nothing to compare with.
    """
    candidates = sorted(records, key=lambda record: -_alike(document, record.document))[:_COMPARED]
    best, fewest = last, len(diff(last.document, document)) if last else None
    for record in candidates:
        if not _related(document, record.document):
            continue
        count = len(diff(record.document, document))
        if fewest is None or count < fewest:
            fewest = count
            seconds = seconds_of(record.result)
            best = Earlier(identity=record.identity, document=record.document, seconds=seconds)
    return best


def _alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    same = sum(bool(one.get(name) == other.get(name)) for name in _SECTIONS)
    return 2 * same + int(_related(one, other))


def _related(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if _is_source(one) != _is_source(other):
        return False
    targets = [document.get("target") or {} for document in (one, other)]
    if one.get("model") == other.get("model"):
        return True
    return bool(targets[0]) and [targets[0].get(key) for key in ("ep", "device")] == [
        targets[1].get(key) for key in ("ep", "device")
    ]


def _is_source(document: Mapping[str, Any]) -> bool:
    return (document.get("compile") or {}).get("task") == "source"
