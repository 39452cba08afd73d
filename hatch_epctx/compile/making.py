"""One compile: a fresh worker process in a private folder, and a second one that loads what came out.

The folder holds the snapshot of the source under canonical names when the compile starts. When it is done, only the
artifacts are left in it, and the load check opens them there with exactly the options that the wheel will carry: a
compiled model that secretly needs its source fails here and not at the user's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hatch_epctx.compile.jobs import compile_job
from hatch_epctx.compile.outcomes import result_of, run
from hatch_epctx.errors import CompileError
from hatch_epctx.files import check_name, remove_tree
from hatch_epctx.source import snapshot, snapshot_option
from hatch_epctx.store import Artifact
from hatch_epctx.worker.protocol import CONTEXT_NAME, SOURCE_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hatch_epctx.config import Variant
    from hatch_epctx.source import SourceModel

__all__ = ["Compiled", "compile_variant"]

_FACTS = (
    "inputs",
    "outputs",
    "compatibility",
    "context_nodes",
    "nodes_left",
    "coverage",
    "metadata_lost",
    "ep_version",
    "onnxruntime",
)
"""What a generation's record keeps of the worker's result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What a compile left in its folder."""

    artifacts: tuple[Artifact, ...]
    facts: dict[str, Any]


def compile_variant(
    variant: Variant, source: SourceModel, folder: Path, *, option_digests: Mapping[str, str]
) -> Compiled:
    """Compile `variant` in the empty, private `folder` and check that the result loads.

    Args:
        variant: the declaration, expanded and validated.
        source: what stands in the identity, of the model.
        folder: where to work; the artifacts alone are left in it.
        option_digests: what stands in the identity, of each file or folder option by its name.

    Raises:
        CompileError: the worker failed, died or overran its time; the result is not valid; it does not load.
        ModelError: the model and the target do not go together (dynamic shapes, unknown dimensions).
        ToolchainError: the EP or its device is not there.
        SourceChangedError: the source, or what is behind an option, is not what its digest says.
    """
    snapshot(source, folder)
    for option in variant.provider_options:
        if option.is_path:
            snapshot_option(option, folder, option_digests[option.name])
    place = (
        f"tool.epctx.targets.{variant.base_target}" if not variant.is_source else f"tool.epctx.models.{variant.model}"
    )
    outcome = run(compile_job(variant), folder, timeout=variant.timeout, env=variant.env)
    result = result_of(outcome, place=variant.name, what="the compile", fallback=CompileError, hint=place)
    artifacts = tuple(
        Artifact(role=item["role"], path=check_name(item["path"]), size=item["size"], digest=item["digest"])
        for item in result["artifacts"]
    )
    _keep_only(folder, {artifact.path for artifact in artifacts})
    facts: dict[str, Any] = {name: result[name] for name in _FACTS if name in result}  # type: ignore[literal-required]
    facts["seconds"] = {"compile": round(outcome.seconds, 3)}
    if variant.load_check:
        facts["seconds"]["load"] = round(_load_check(variant, folder, hint=place), 3)
        _keep_only(folder, {artifact.path for artifact in artifacts})
    return Compiled(artifacts=artifacts, facts=facts)


def _load_check(variant: Variant, folder: Path, *, hint: str) -> float:
    """Open the artifacts in a second fresh process and run once; return the seconds it took."""
    job = compile_job(variant)
    job["task"] = "load"
    job["model"] = SOURCE_NAME if variant.is_source else CONTEXT_NAME
    job["provider_options"] = {option.name: option.text for option in variant.load_options}
    job["optimization"] = variant.load_optimization
    job["session_options"] = dict(variant.load_session_options)
    job["free_dimensions"] = job["free_dimension_denotations"] = {}
    outcome = run(job, folder, timeout=variant.timeout, env=variant.env)
    result_of(outcome, place=variant.name, what="the load check", fallback=CompileError, hint=hint)
    return outcome.seconds


def _keep_only(folder: Path, names: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in names:
            remove_tree(path)
