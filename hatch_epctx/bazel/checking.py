"""The test of a compile against the CPU EP, in the very checker that builds use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hatch_epctx.bazel.packing import opened
from hatch_epctx.bazel.settings import project_of, table_of
from hatch_epctx.console import Lines
from hatch_epctx.errors import CompileError, VerificationError
from hatch_epctx.files import copy_file
from hatch_epctx.identity import Identity
from hatch_epctx.pipeline import Planned, Preparer
from hatch_epctx.pipeline.checking import Checker, check_coverage
from hatch_epctx.pipeline.records import artifacts_of, facts_of
from hatch_epctx.source import digest_inputs
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hatch_epctx.bazel.records import CompiledContext
    from hatch_epctx.bazel.settings import ActionInputs
    from hatch_epctx.config import CheckPlan, Variant

__all__ = ["check_action"]


def check_action(
    context: CompiledContext,
    inputs: ActionInputs,
    plan: CheckPlan,
    *,
    allow_not_run: bool,
    scratch: Path,
    write: Callable[[str], None],
) -> None:
    """Run every variant of `context` and its source on the CPU EP; outputs must agree within the plan's tolerance.

    Args:
        context: the compile.
        inputs: the models that it was made of.
        plan: inputs and tolerances.
        allow_not_run: a variant whose device is not here passes; otherwise it fails.
        scratch: a private, empty folder.
        write: prints a line.

    Raises:
        CompileError: outputs differ, a run failed, or it could not run.
        VerificationError: the artifacts are not what the manifest says, or the model is not the compile's.
    """
    project = project_of(table_of(context.config, inputs, scratch / "inputs"), scratch / "inputs")
    store = Store(scratch / "store")
    checker = Checker(store, report=Lines(write))
    generation = opened(context, scratch / "artifacts")
    digest = digest_inputs(plan.inputs, place="inputs", digest=store.digest) if plan.inputs else None
    for declared in project.variants:
        variant = replace(declared, check=plan)
        source = Preparer(store).source(variant)
        compiled = next((item.digest for item in context.sources if item.model == variant.model), None)
        if source.digest != compiled:
            raise VerificationError(
                "the model is not the one that was compiled", where=variant.name, reason="other-source"
            )
        if [library.document() for library in source.custom_ops] != _libraries(variant, context.record.document):
            raise VerificationError(
                "the libraries of custom operators are not those of the compile",
                where=variant.name,
                reason="other-source",
            )
        identity = Identity(digest=context.record.identity, document=context.record.document)
        planned = Planned(variant=variant, source=source, identity=identity, check_inputs=digest)
        check_coverage(variant, facts_of(variant, context.record))
        folder = scratch / f"run-{variant.model}"
        folder.mkdir()
        artifacts = artifacts_of(variant, context.record)
        for artifact in artifacts:
            copy_file(generation.file(artifact), folder / artifact.path)
        shared = bool(facts_of(variant, context.record).get("shared"))
        _judge(checker.run(planned, identity, artifacts, folder, shared=shared), variant, allow_not_run=allow_not_run)


def _libraries(variant: Variant, document: Mapping[str, Any]) -> list[Any]:
    own = document if variant.group is None else document["members"][variant.group.position(variant)]
    return list(own["model"].get("custom-ops", ()))


def _judge(facts: dict[str, object], variant: Variant, *, allow_not_run: bool) -> None:
    if facts["outcome"] == "passed" or allow_not_run:
        return
    raise CompileError(
        f"could not run: {facts.get('why', 'no reason given')}",
        where=variant.name,
        remedy="Run the test where the device is, or set allow_not_run = True.",
        reason="not-run",
    )
