"""The check of one variant: its artifacts against the source on the CPU EP, in a fresh process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.compile.jobs import load_job
from hatch_epctx.compile.outcomes import result_of, run
from hatch_epctx.errors import CompileError, ToolchainError
from hatch_epctx.files import remove_tree
from hatch_epctx.providers import find_provider
from hatch_epctx.source import snapshot, snapshot_custom_ops, snapshot_inputs, snapshot_packages
from hatch_epctx.worker.protocol import INPUTS_NAME, SOURCE_FOLDER, CheckJob

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hatch_epctx.compile.outcomes import Run
    from hatch_epctx.config import CheckPlan, Variant
    from hatch_epctx.process import Outcome
    from hatch_epctx.source import SourceModel
    from hatch_epctx.worker.protocol import Result

__all__ = ["check_variant"]

NOT_RUN: Final = "not-run"
PASSED: Final = "passed"
FAILED: Final = "failed"
_REFERENCE: Final = "cpu"
"""The EP that runs the source."""


def check_variant(
    variant: Variant,
    plan: CheckPlan,
    source: SourceModel,
    folder: Path,
    *,
    inputs: str | None,
    option_digests: Mapping[str, str],
    shared: bool = False,
    runner: Run = run,
) -> dict[str, Any]:
    """Check the artifacts of `variant` that lie in the private `folder`.

    Args:
        variant: a compiled one.
        plan: what to run and what to demand.
        source: what it was compiled from.
        folder: holds the artifacts; the source and the inputs are copied into it and left there.
        inputs: digest of the plan's file of inputs.
        option_digests: what stands in the identity, of each file or folder option by its name.
        shared: whether its context binary is shared with other members of its group.
        runner: runs the worker.

    Returns:
        `outcome` "passed" with the figures, or "not-run" with the reason `why` where the target's device is not on
        this machine and nothing stands for it, or where what stands for it cannot open a shared context binary.

    Raises:
        CompileError: outputs differ beyond the tolerance (reason check-failed, with the figures as
            ``facts["check"]``), or a run failed.
        ModelError: the inputs do not fit the model.
        SourceChangedError: the source or the file of inputs is not what its digest says.
    """
    for name in (SOURCE_FOLDER, INPUTS_NAME):  # of the check of another member
        remove_tree(folder / name)
    (folder / SOURCE_FOLDER).mkdir()
    snapshot(source, folder / SOURCE_FOLDER)
    snapshot_custom_ops(source.custom_ops, folder)
    snapshot_packages(variant, folder, option_digests)
    if plan.inputs is not None:
        snapshot_inputs(plan.inputs, folder / INPUTS_NAME, inputs or "")
    job = load_job(variant, shared=shared)
    job["task"] = "check"
    # A compile needs no hardware where a check does, unless a simulator stands for it.
    job["offline"] = variant.provider.offline and variant.provider.simulated
    job["check"] = _check_job(plan)
    outcome = runner(job, folder, timeout=variant.timeout, env=variant.env, memory=variant.memory_limit)
    try:
        result = result_of(
            outcome,
            place=variant.name,
            what="the check against the CPU EP",
            fallback=CompileError,
            hint=f"tool.epctx.models.{variant.model}.check",
        )
    except ToolchainError as error:
        if error.reason == "not-simulated":
            return {"outcome": NOT_RUN, "why": variant.provider.shared_not_simulated}
        if error.reason != "no-device":
            raise
        return {"outcome": NOT_RUN, "why": f"no such device: {variant.device}"}
    except CompileError as error:
        if outcome.result is not None and "check" in outcome.result:
            error.facts = {"check": _facts(FAILED, variant, outcome, outcome.result)}
        raise
    return _facts(PASSED, variant, outcome, result)


def _facts(word: str, variant: Variant, outcome: Outcome, result: Result) -> dict[str, Any]:
    checked = result["check"]
    simulated = checked["device"] != variant.device
    return {"outcome": word, **checked, "simulated": simulated, "seconds": round(outcome.seconds, 3)}


def _check_job(plan: CheckPlan) -> CheckJob:
    return {
        "inputs": plan.inputs is not None,
        "seed": plan.seed,
        "ranges": {name: list(bounds) for name, bounds in plan.ranges.items()},
        "rtol": plan.rtol,
        "atol": plan.atol,
        "cosine": plan.cosine,
        "reference_optimization": find_provider(_REFERENCE).load_optimization,
    }
