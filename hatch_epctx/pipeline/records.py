"""What a pipeline gives its callers: planned variants, entries, builds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from hatch_epctx.config import Project, Variant
    from hatch_epctx.errors import EpctxError
    from hatch_epctx.identity import Identity
    from hatch_epctx.source import SourceModel
    from hatch_epctx.store import Artifact, Generation, Record
    from hatch_epctx.toolchain import Toolchain

__all__ = ["Build", "Entry", "Member", "Planned", "Status", "artifacts_of", "facts_of", "raise_all", "units_of"]

Status = Literal["hit", "miss", "compiled", "fetched", "skipped", "failed"]

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What was read of one member of a group."""

    source: SourceModel
    calibration: str | None
    """As `Planned` has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A variant with its identity, or the reason why it is skipped."""

    variant: Variant
    source: SourceModel | None = None
    members: tuple[Member, ...] = ()
    """What was read of all members of the variant's group, in the group's order; empty for a variant by itself."""
    identity: Identity | None = None
    toolchain: Toolchain | None = None
    option_digests: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """Content digest of each file or folder option by its name, as the identity has it."""
    calibration: str | None = None
    """Content digest of the samples that model preparation reads, as the identity has it."""
    check_inputs: str | None = None
    """Content digest of the inputs that the check runs; no part of the identity."""
    skipped: str = ""
    borrowed: bool = False
    """The toolchain is that of epctx.lock: the EP is not here, and nothing can be compiled."""
    asked: float = field(default_factory=time.monotonic, compare=False)
    """When all this was so, in seconds of `time.monotonic`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One variant and what became of it."""

    planned: Planned
    status: Status
    reason: str = ""
    """Why it is no hit, why it was skipped, why its generation was not selected."""
    generation: Generation | None = None
    """Leased until `Build.close`."""
    error: EpctxError | None = None
    check: Mapping[str, Any] | None = None
    """What the comparison with the CPU EP found, where the variant demands one; see `checking`."""
    facts: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    """Of the generation's record: coverage, operators left, metadata lost and so on."""
    prepared: Path | None = None
    """The model that was compiled, where it was prepared: in the store, as long as the generation is not collected."""
    changed: tuple[str, ...] = ()
    """What changed since the variant's last result, in words; empty where nothing did, or there is none."""
    first: bool = False
    """There was no last result of the variant."""
    started: float = 0.0
    """When the work on the variant began, in seconds of the build; presentation only, like the two below."""
    seconds: float = 0.0
    """Wall time of this build's work on the variant."""
    worker: int = 0
    """Which of the jobs that ran side by side did it, from 0."""

    @property
    def variant(self) -> Variant:
        """The variant itself."""
        return self.planned.variant

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """What its generation holds of the variant; empty without one."""
        return artifacts_of(self.variant, self.generation.record) if self.generation else ()

    @property
    def uncertain(self) -> tuple[str, ...]:
        """What could not be named with certainty, in words. Not empty: the variant is compiled anew in every build."""
        return self.planned.identity.uncertain if self.planned.identity else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The entries of one build, in declaration order. Close it to give up the leases."""

    project: Project
    entries: tuple[Entry, ...]
    seconds: float = 0.0
    """Wall time, identities included; presentation only."""
    round_trips: Mapping[str, int] = field(default_factory=lambda: _NONE)
    """Requests to the remote cache by method; empty: the network was not touched."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release every generation."""
        for entry in self.entries:
            if entry.generation is not None:
                entry.generation.close()

    def raise_for_failures(self) -> None:
        """Raise the failure of this build; of several, one error that holds them all.

        Raises:
            EpctxError: of the first failed variant's class.
        """
        failures = [entry.error for entry in self.entries if entry.error is not None]
        raise_all(failures, f"of {len(self.entries)} variants")


def facts_of(variant: Variant, record: Record) -> Mapping[str, Any]:
    """What the compile found of this variant; of a group's generation, what holds for all members with its own."""
    found = record.result
    if variant.group is None:
        return found
    common = {name: value for name, value in found.items() if name != "members"}
    return {**common, **found["members"][variant.group.position(variant)]}


def artifacts_of(variant: Variant, record: Record) -> tuple[Artifact, ...]:
    """The variant's artifacts: all of the generation, or of a group's those that its own ONNX file needs."""
    if variant.group is None:
        return record.artifacts
    own = facts_of(variant, record)["artifacts"]
    return tuple(artifact for artifact in record.artifacts if artifact.path in own)


def units_of(planned: Sequence[Planned]) -> tuple[tuple[Planned, ...], ...]:
    """What is found or compiled as one: each variant by itself, the selected members of one group together."""
    units: dict[tuple[str, ...], list[Planned]] = {}
    for item in planned:
        group = item.variant.group
        key = (item.variant.name,) if group is None else tuple(member.name for member in group.members)
        units.setdefault(key, []).append(item)
    return tuple(map(tuple, units.values()))


def raise_all(errors: Sequence[EpctxError], scope: str) -> None:
    """Raise the one error, or one of the first one's class that shows them all; nothing when there is none.

    What several variants meet alike, such as a missing EP, is said once.
    """
    errors = list({str(error): error for error in errors}.values())
    if len(errors) == 1:
        raise errors[0]
    if errors:
        detail = "\n\n".join(str(error) for error in errors)
        raise type(errors[0])(f"{len(errors)} failures {scope}", reason=errors[0].reason, detail=detail)
