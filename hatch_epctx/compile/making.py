"""One compile: a fresh worker process in a private folder, and a second one that loads what came out.

The folder holds the snapshot of the source under canonical names when the compile starts. When it is done, only the
artifacts are left in it, and the load check opens them there with exactly the options that the wheel will carry: a
compiled model that secretly needs its source fails here and not at the user's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hatch_epctx.compile.jobs import compile_job, load_job, prepare_job
from hatch_epctx.compile.outcomes import result_of, run
from hatch_epctx.errors import CompileError
from hatch_epctx.files import check_name, remove_tree
from hatch_epctx.source import snapshot, snapshot_inputs, snapshot_option
from hatch_epctx.store import Artifact
from hatch_epctx.worker.protocol import CALIBRATION_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hatch_epctx.config import Variant
    from hatch_epctx.source import SourceModel
    from hatch_epctx.worker.protocol import Result

__all__ = ["Compiled", "compile_variant"]

_FACTS = (
    "inputs",
    "outputs",
    "compatibility",
    "context_nodes",
    "nodes_left",
    "coverage",
    "left",
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
    variant: Variant,
    source: SourceModel,
    folder: Path,
    *,
    option_digests: Mapping[str, str],
    calibration: str | None = None,
) -> Compiled:
    """Compile `variant` in the empty, private `folder` and check that the result loads.

    Args:
        variant: the declaration, expanded and validated.
        source: what stands in the identity, of the model.
        folder: where to work; the artifacts alone are left in it.
        option_digests: what stands in the identity, of each file or folder option by its name.
        calibration: what stands in the identity, of the file of samples that model preparation reads.

    Raises:
        CompileError: the worker failed, died or overran its time; the result is not valid; it does not load.
        ModelError: the model and the target do not go together (dynamic shapes, unknown dimensions), or a step of its
            preparation cannot be done.
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
    kept, prepared = (
        _prepare(variant, folder, calibration=calibration, hint=f"tool.epctx.models.{variant.model}.prepare")
        if variant.prepare
        else ((), {})
    )
    outcome = run(compile_job(variant), folder, timeout=variant.timeout, env=variant.env)
    result = result_of(outcome, place=variant.name, what="the compile", fallback=CompileError, hint=place)
    made = _artifacts(result)
    _keep_only(folder, {artifact.path for artifact in (*made, *kept)})
    facts: dict[str, Any] = {name: result[name] for name in _FACTS if name in result}  # type: ignore[literal-required]
    if prepared:
        facts["prepared"] = prepared
    facts["seconds"] = {"compile": round(outcome.seconds, 3)}
    if variant.load_check:
        facts["seconds"]["load"] = round(_load_check(variant, folder, hint=place), 3)
        _keep_only(folder, {artifact.path for artifact in (*made, *kept)})
    # Weights that the compile left as they were have the name and the content of what was kept.
    names = {artifact.path for artifact in made}
    return Compiled(artifacts=(*made, *(item for item in kept if item.path not in names)), facts=facts)


def _prepare(
    variant: Variant, folder: Path, *, calibration: str | None, hint: str
) -> tuple[tuple[Artifact, ...], dict[str, Any]]:
    """Run the steps of model preparation in a process of their own; return what is kept of them, and facts."""
    if variant.calibration is not None:
        snapshot_inputs(variant.calibration, folder / CALIBRATION_NAME, calibration or "")
    outcome = run(prepare_job(variant), folder, timeout=variant.timeout, env={})
    result = result_of(outcome, place=variant.name, what="model preparation", fallback=CompileError, hint=hint)
    remove_tree(folder / CALIBRATION_NAME)
    facts = {"steps": result.get("extra", {}).get("steps", []), "metadata_lost": result.get("metadata_lost", [])}
    return _artifacts(result), facts


def _load_check(variant: Variant, folder: Path, *, hint: str) -> float:
    """Open the artifacts in a second fresh process and run once; return the seconds it took."""
    outcome = run(load_job(variant), folder, timeout=variant.timeout, env=variant.env)
    result_of(outcome, place=variant.name, what="the load check", fallback=CompileError, hint=hint)
    return outcome.seconds


def _artifacts(result: Result) -> tuple[Artifact, ...]:
    return tuple(
        Artifact(role=item["role"], path=check_name(item["path"]), size=item["size"], digest=item["digest"])
        for item in result["artifacts"]
    )


def _keep_only(folder: Path, names: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in names:
            remove_tree(path)
