"""Compiling a unit of work and publishing its result, for whoever holds the lock of its identity.

A result that a variant's own demands refuse (see `checking`) is published all the same: it is a right result of its
identity, and other demands, such as a wider tolerance, may accept it without a new compile.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx import compile as compiling
from hatch_epctx.changes import miss_in_words
from hatch_epctx.errors import CompileError, EpctxError, ModelError, ToolchainError
from hatch_epctx.pipeline.checking import Checker, check_coverage
from hatch_epctx.pipeline.progress import signs_of_life
from hatch_epctx.pipeline.records import artifacts_of, facts_of
from hatch_epctx.process import can_measure
from hatch_epctx.store import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hatch_epctx.compile import Compiled, Run
    from hatch_epctx.config import SharedGroup, Variant
    from hatch_epctx.identity import Identity
    from hatch_epctx.pipeline.farming import Farm
    from hatch_epctx.pipeline.history import History
    from hatch_epctx.pipeline.locking import LockedBytes
    from hatch_epctx.pipeline.preparing import Preparer
    from hatch_epctx.pipeline.progress import Report
    from hatch_epctx.pipeline.records import Planned
    from hatch_epctx.store import Generation, Store

__all__ = ["Published", "Publisher", "compile_unit"]

_LONG: Final = 5.0
"""Seconds of an earlier compile from which on a line says how long this one will take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A compile that was published."""

    generation: Generation
    """Leased."""
    record: Record
    """As the compile gave it; a locked generation tells the lock's facts."""
    failures: Mapping[str, EpctxError]
    """What variants of the unit have against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """Compiles units and publishes what they give. Any thread may use it."""

    store: Store
    preparer: Preparer
    """Asked whether the source is still what was compiled."""
    history: History
    """Told each identity that was compiled."""
    checker: Checker
    report: Report
    farm: Farm
    """Where compiles run."""
    locked: LockedBytes | None
    """The artifacts that a lock demands."""
    keep: bool
    """Keep the folder of a failed compile."""

    def publish(self, unit: Sequence[Planned], identity: Identity, *, why: str) -> Published:
        """Compile and publish, within the identity's lock.

        Args:
            unit: the variants of the unit.
            identity: theirs.
            why: why the store had no generation, as a `Miss` says it.

        Raises:
            CompileError: the compile failed, or its result is none of the asked EP's.
            ModelError: the source is none that this target can be compiled for.
            SourceChangedError: the source changed meanwhile; nothing was published.
        """
        variant, group = unit[0].variant, unit[0].variant.group
        self._announce(unit, identity, why)
        start = time.monotonic()
        with self.store.staging(keep=self.keep) as staging:
            with signs_of_life(self.report, variant):
                compiled = compile_unit(unit[0], staging.path, self.farm.runner(unit[0]))
            failures = self._judged(unit, identity, compiled, staging.path)
            self.preparer.confirm(unit[0])
            record = _record(identity, compiled)
            generation = self.store.publish(staging, record, select=not identity.uncertain)
        if self.locked is not None:
            generation = self.locked.check(unit, generation)
        for planned in unit:
            self.history.remember(planned.variant, identity, compiled.facts)
            if planned.variant.name not in failures:
                done = "packed" if variant.is_source else "compiled"
                self.report(planned.variant, f"{done} {identity.short} in {time.monotonic() - start:.1f} s")
            self._say_losses(planned.variant, facts_of(planned.variant, record))
        if group and not compiled.facts["shared"]:
            self.report(variant, _not_shared(group, variant))
        return Published(generation=generation, record=record, failures=failures)

    def _announce(self, unit: Sequence[Planned], identity: Identity, why: str) -> None:
        """Say what is about to be compiled, why, where, and how long it took before."""
        variant, group = unit[0].variant, unit[0].variant.group
        what = f" with {len(group.members)} members of the group {group.name}" if group else ""
        what += f" on {self.farm.name}" if self.farm.name and not variant.is_source else ""
        # A source model that rides along is checked and copied, not compiled.
        doing = "packing" if variant.is_source else "compiling"
        for planned in unit:
            last = self.history.last(planned.variant)
            about = f", about {last.seconds:.0f} s" if last and last.seconds and last.seconds >= _LONG else ""
            self.report(planned.variant, f"{doing} {identity.short}{what} ({miss_in_words(why)}){about}")
        if variant.memory_limit is not None and (self.farm.name or not can_measure()):
            who = "the executor" if self.farm.name else "this system"
            self.report(variant, f"warning: memory-limit is not held: {who} does not tell what a process uses")

    def _judged(
        self, unit: Sequence[Planned], identity: Identity, compiled: Compiled, folder: Path
    ) -> dict[str, EpctxError]:
        """What the variants' demands have against a result, by variant."""
        failures: dict[str, EpctxError] = {}
        for planned in unit:
            variant, record = planned.variant, _record(identity, compiled)
            facts = facts_of(variant, record)
            try:
                check_coverage(variant, facts)
                if variant.check is not None:
                    artifacts = artifacts_of(variant, record)
                    check = self.checker.run(planned, identity, artifacts, folder, shared=bool(facts.get("shared")))
                    found = compiled.facts
                    own = found["members"][variant.group.position(variant)] if variant.group else found
                    own["check"] = check
            except (CompileError, ModelError) as error:
                failures[variant.name] = error
        return failures

    def _say_losses(self, variant: Variant, facts: Mapping[str, Any]) -> None:
        """What a compile dropped or left behind, as warnings."""
        for lost in facts.get("metadata_lost", ()):
            self.report(variant, f"warning: metadata lost by the compile: {lost}")
        for name in facts.get("unreferenced", ()):
            self.report(variant, f"warning: the compile wrote {name}, which nothing refers to; it is not kept")


def compile_unit(planned: Planned, folder: Path, runner: Run) -> Compiled:
    """The compile of the unit that `planned` belongs to, in the empty `folder`."""
    variant, source, digests = planned.variant, planned.source, planned.option_digests
    if variant.group is not None:
        sources = [member.source for member in planned.members]
        calibrations = [member.calibration for member in planned.members]
        return compiling.compile_group(
            variant.group, sources, folder, option_digests=digests, calibrations=calibrations, runner=runner
        )
    if source is None:
        raise ToolchainError(planned.skipped, where=variant.name, reason="missing-ep")
    return compiling.compile_variant(
        variant, source, folder, option_digests=digests, calibration=planned.calibration, runner=runner
    )


def _record(identity: Identity, compiled: Compiled) -> Record:
    return Record(
        identity=identity.digest,
        document=dict(identity.document),
        artifacts=compiled.artifacts,
        result=compiled.facts,
    )


def _not_shared(group: SharedGroup, variant: Variant) -> str:
    """The line that says so of a group whose members have no context binary in common."""
    return (
        f"warning: the group {group.name} shares nothing: {variant.provider.title} wrote a context binary for each of "
        "its members"
    )
