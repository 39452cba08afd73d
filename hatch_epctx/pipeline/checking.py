"""What a build demands of a result beyond its identity: a floor for coverage, and a passed check.

Both judge bytes and do not change them, so they stand beside the identity. A generation that was published without a
check, or with another one (other inputs, another tolerance), is checked when a build demands it: without a compile,
from its own files, in a fresh process. What passed is remembered by everything that counts (`check_key`); a failure
is not, and neither is a check that could not run here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hatch_epctx import compile as compiling
from hatch_epctx.digest import digest_bytes
from hatch_epctx.errors import CompileError
from hatch_epctx.files import copy_file
from hatch_epctx.findings import check_in_words, left_in_words, share
from hatch_epctx.identity import canonical
from hatch_epctx.pipeline.progress import signs_of_life
from hatch_epctx.pipeline.records import artifacts_of, facts_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hatch_epctx.config import Variant
    from hatch_epctx.identity import Identity
    from hatch_epctx.pipeline.farming import Farm
    from hatch_epctx.pipeline.progress import Report
    from hatch_epctx.pipeline.records import Planned
    from hatch_epctx.store import Artifact, Generation, Store

__all__ = ["Checker", "check_coverage", "check_key"]

_FORMAT: Final = "epctx-check/1"
_KIND: Final = "check"


def check_coverage(variant: Variant, facts: Mapping[str, Any]) -> None:
    """Refuse a result that leaves more nodes to the CPU than `min-coverage` allows.

    Args:
        variant: what demands it.
        facts: of the generation's record.

    Raises:
        CompileError: reason low-coverage; the message names the operators left and what the EP says about them.
    """
    floor = variant.min_coverage
    if floor is None or variant.is_source:
        return
    place = f"tool.epctx.models.{variant.model}.min-coverage"
    found = share(facts, variant.provider.names[0])
    if found is None:
        raise CompileError(
            "coverage was not measured: ONNX Runtime keeps no account of which EP takes which node",
            where=variant.name,
            remedy=f"Use onnxruntime 1.24 or later, or remove {place}.",
            reason="no-coverage",
        )
    taken, total = found
    if taken / total >= floor:
        return
    raise CompileError(
        f"{variant.provider.title} takes {taken} of {total} nodes ({taken / total:.1%}); left to the CPU: "
        f"{left_in_words(facts.get('left') or ())}",
        where=variant.name,
        expected=f"at least {floor * 100:g}% (min-coverage)",
        remedy=f"Lower {place}, try another 'optimization' for the target or steps of 'prepare' for the model, or "
        "leave the model out of this target.",
        reason="low-coverage",
    )


def check_key(planned: Planned, identity: Identity, artifacts: Iterable[Artifact]) -> str:
    """Under which a passed check is remembered: identity, files, inputs, seed, ranges and tolerances."""
    plan = planned.variant.check
    document = {
        "format": _FORMAT,
        "identity": identity.digest,
        "artifacts": sorted([item.path, item.digest] for item in artifacts),
        "inputs": planned.check_inputs,
        "plan": None
        if plan is None
        else {
            "rtol": plan.rtol,
            "atol": plan.atol,
            "cosine": plan.cosine,
            "seed": plan.seed,
            "ranges": {name: list(bounds) for name, bounds in plan.ranges.items()},
        },
    }
    return digest_bytes(canonical(document))


class Checker:
    """Runs checks, and remembers which passed. Any thread may use it.

    Args:
        store: remembers.
        report: told what goes on.
        farm: where they run; here when left out.
    """

    def __init__(self, store: Store, *, report: Report, farm: Farm | None = None) -> None:
        self._store = store
        self._report = report
        self._farm = farm

    def known(self, planned: Planned, identity: Identity, generation: Generation) -> dict[str, Any] | None:
        """The passed check of `generation` that its record or the store knows, as the variant demands it."""
        key = check_key(planned, identity, artifacts_of(planned.variant, generation.record))
        for facts in (facts_of(planned.variant, generation.record).get("check"), self._store.recall(_KIND, key)):
            if isinstance(facts, dict) and facts.get("key") == key and facts.get("outcome") == "passed":
                return facts
        return None

    def ensure(
        self, planned: Planned, identity: Identity, generation: Generation, *, fresh: bool = False
    ) -> Mapping[str, Any] | None:
        """What the check that the variant demands says of `generation`; None where it demands none.

        Args:
            planned: the variant.
            identity: its identity.
            generation: leased.
            fresh: it was compiled and checked just now: a check that could not run is not tried again.

        Raises:
            CompileError, ModelError, SourceChangedError: as `compile.check_variant`.
        """
        if planned.variant.check is None:
            return None
        if known := self.known(planned, identity, generation):
            return known
        found = facts_of(planned.variant, generation.record)
        artifacts = artifacts_of(planned.variant, generation.record)
        facts = found.get("check")
        if planned.borrowed and facts and facts.get("key") == check_key(planned, identity, artifacts):
            return dict(facts)  # it could not run where it was locked, and cannot here
        if fresh and facts:
            return dict(facts)
        with self._store.staging() as staging:
            for artifact in artifacts:
                copy_file(generation.file(artifact), staging.path / artifact.path)
            facts = self.run(planned, identity, artifacts, staging.path, shared=bool(found.get("shared")))
        if facts["outcome"] == "passed":
            self._store.remember(_KIND, facts["key"], facts)
        return facts

    def run(
        self,
        planned: Planned,
        identity: Identity,
        artifacts: Iterable[Artifact],
        folder: Path,
        *,
        shared: bool = False,
    ) -> dict[str, Any]:
        """Check the artifacts in `folder`; `shared` as `compile.check_variant` has it.

        Raises:
            CompileError, ModelError, SourceChangedError: as `compile.check_variant`.
        """
        variant = planned.variant
        if variant.check is None or planned.source is None:
            raise ValueError("the variant demands no check")
        self._report(variant, "checking against the CPU EP")
        with signs_of_life(self._report, variant, "still checking"):
            facts = compiling.check_variant(
                variant,
                variant.check,
                planned.source,
                folder,
                inputs=planned.check_inputs,
                option_digests=planned.option_digests,
                shared=shared,
                runner=self._farm.runner(planned) if self._farm else compiling.run,
            )
        facts["key"] = check_key(planned, identity, artifacts)
        self._report(variant, check_in_words(facts))
        return facts
