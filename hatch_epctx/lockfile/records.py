"""What a lock holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hatch_epctx.store import Artifact, Record

__all__ = ["FACTS", "LOCK_NAME", "Lock", "LockedVariant"]

LOCK_NAME: Final = "epctx.lock"

_OF_VARIANT: Final = (
    "check",
    "compatibility",
    "context_nodes",
    "coverage",
    "ep_cache",
    "inputs",
    "left",
    "load_check",
    "nodes_left",
    "outputs",
)
FACTS: Final = (*_OF_VARIANT, "members", "reproducible", "shared")
"""Facts of a generation's record that stand in a wheel's manifest, so that a lock gives the same wheel as the store."""

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def _kept(facts: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: facts[name] for name in names if facts.get(name) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedVariant:
    """One variant as it was locked."""

    name: str
    """<model>.<target>."""
    identity: str
    document: dict[str, Any]
    """The identity document; `identity` is its digest."""
    artifacts: tuple[Artifact, ...]
    """Sorted by path."""
    facts: dict[str, Any]
    """Members of `FACTS`."""

    @classmethod
    def of(
        cls,
        name: str,
        record: Record,
        check: Mapping[str, Any] | None = None,
        *,
        position: int | None = None,
        unstable: bool = False,
    ) -> LockedVariant:
        """The variant `name` as a generation's record has it, with the check that it passed.

        Of a member of a group, `position` is where it stands in the group: the record is that of all members.
        `unstable` says that another compile gives other bytes.
        """
        passed = {"check": dict(check)} if check else {}
        if position is None:
            result = {**record.result, **passed}
        else:
            members = [_kept(member, (*_OF_VARIANT, "artifacts")) for member in record.result["members"]]
            members[position] |= passed
            result = {**record.result, "members": members}
        return cls(
            name=name,
            identity=record.identity,
            document=record.document,
            artifacts=tuple(sorted(record.artifacts, key=lambda artifact: artifact.path)),
            facts=_kept(result, FACTS) | ({"reproducible": False} if unstable else {}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """The content of one epctx.lock."""

    variants: Mapping[str, LockedVariant]
    """By name."""
    unlocked: frozenset[str] = frozenset()
    """Names of variants that have a place in the file and nothing in it yet."""
    damaged: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """What is wrong, by name of the variant; only where the file was read leniently."""

    def find(self, name: str) -> LockedVariant | None:
        """The variant of this name."""
        return self.variants.get(name)
