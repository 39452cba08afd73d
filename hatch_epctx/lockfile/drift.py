"""In what a build differs from its lock, variant by variant and field by field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.changes import in_words
from hatch_epctx.errors import VerificationError
from hatch_epctx.identity import diff
from hatch_epctx.lockfile.records import LOCK_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hatch_epctx.identity import Change
    from hatch_epctx.lockfile.records import Lock

__all__ = ["Drift", "describe", "drifts"]

_NOT_LOCKED: Final = "is not locked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One variant that is not as it was locked."""

    name: str
    reason: str
    """not-locked, not-declared, damaged, differs."""
    words: tuple[str, ...]
    """What differs, a clause each."""
    changes: tuple[Change, ...] = ()
    """The same, by field of the identity document; `old` is what was locked."""

    def __str__(self) -> str:
        return "\n".join(f"{self.name}: {text}" for text in self.words)


def drifts(lock: Lock, documents: Mapping[str, Mapping[str, Any]], *, declared: Iterable[str]) -> tuple[Drift, ...]:
    """What differs between `lock` and a build.

    Args:
        lock: what was locked.
        documents: identity documents of the selected variants as they are now, by name.
        declared: names of all variants of the project, selected or not.
    """
    found = [drift for name, document in documents.items() if (drift := _drift(lock, name, document))]
    for name in sorted({*lock.variants, *lock.damaged} - set(declared)):
        words = ("is locked and no longer declared",)
        found.append(Drift(name=name, reason="not-declared", words=words))
    return tuple(found)


def _drift(lock: Lock, name: str, document: Mapping[str, Any]) -> Drift | None:
    if name in lock.damaged:
        return Drift(name=name, reason="damaged", words=(lock.damaged[name],))
    locked = lock.find(name)
    if locked is None:
        return Drift(name=name, reason="not-locked", words=(_NOT_LOCKED,))
    changes = diff(locked.document, document)
    if not changes:
        return None
    words = in_words(locked.document, document) or tuple(str(change) for change in changes)
    return Drift(name=name, reason="differs", words=words, changes=changes)


def describe(found: Iterable[Drift], *, where: str = LOCK_NAME) -> VerificationError:
    """The error that lists every drift."""
    listed = tuple(found)
    count = f"{len(listed)} variants are" if len(listed) > 1 else "a variant is"
    return VerificationError(
        f"{count} not as locked",
        where=where,
        remedy="If that is intended, run 'epctx lock' where the EPs are and commit the file.",
        reason="drift",
        detail="\n".join(f"  {line}" for drift in listed for line in str(drift).splitlines()),
    )
