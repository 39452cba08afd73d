"""One compile: a fresh worker process in a private folder, and a second one that loads what came out.

The folder holds the snapshot of the source under canonical names when the compile starts. When it is done, only the
artifacts are left in it, and the load check opens them there with exactly the options that the wheel will carry: a
compiled model that secretly needs its source fails here and not at the user's.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hatch_epctx.errors import CompileError, EpctxError, ModelError, ToolchainError
from hatch_epctx.files import check_name, copy_file, read_bounded, remove_tree
from hatch_epctx.process import Outcome, run_worker
from hatch_epctx.source import ONNX_LIMIT, copy_name, snapshot, snapshot_model, snapshot_option
from hatch_epctx.store import Artifact
from hatch_epctx.worker.protocol import CONTEXT_NAME, FORMAT, MODEL_NAME, SOURCE_NAME, Job, Result

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hatch_epctx.config import Variant
    from hatch_epctx.providers import Provider
    from hatch_epctx.source import SourceModel
    from hatch_epctx.worker.protocol import ProbedDevice, ScannedModel

__all__ = ["Compiled", "compile_variant", "describe", "probe", "rename_references", "scan"]

SCAN_TIMEOUT = 300.0
"""Seconds for reading the facts of one ONNX file."""
PROBE_TIMEOUT = 120.0
"""Seconds for asking an EP about its devices."""

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

_ERRORS: Mapping[str, type[EpctxError]] = {
    "invalid-model": ModelError,
    "compiled-source": ModelError,
    "dynamic-shape": ModelError,
    "unknown-dimension": ModelError,
    "unknown-input": ModelError,
    "shape-conflict": ModelError,
    "external-data-escape": ModelError,
    "missing-ep": ToolchainError,
    "no-device": ToolchainError,
}
"""Error class of a worker's reason; CompileError for the rest."""


_EXHAUSTED = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What the system says when it has no room for another process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What a compile left in its folder."""

    artifacts: tuple[Artifact, ...]
    facts: dict[str, Any]


def scan(path: Path, digest: str, folder: Path, *, place: str) -> ScannedModel:
    """Facts of the ONNX file at `path`, read in a fresh process that works on a copy in `folder`.

    Raises:
        ModelError: it is no ONNX model, or compiled already.
        SourceChangedError: its digest is another by now; facts of other bytes must not be remembered.
    """
    snapshot_model(path, digest, folder)
    outcome = _run({**_job("scan"), "model": MODEL_NAME}, folder, timeout=SCAN_TIMEOUT, env={})
    result = _result_of(outcome, place=place, what=f"reading {path.name}", fallback=ModelError)
    return result["scan"]


def probe(provider: Provider, device: str, folder: Path, *, env: Mapping[str, str], place: str) -> list[ProbedDevice]:
    """Devices that the EP reports on this machine, asked in a fresh process.

    Raises:
        ToolchainError: the EP cannot be loaded or shows no such device.
    """
    job: Job = {**_job("probe"), **_ep_fields(provider, device)}
    outcome = _run(job, folder, timeout=PROBE_TIMEOUT, env=env)
    what = f"asking {provider.title} about its devices"
    return _result_of(outcome, place=place, what=what, fallback=ToolchainError)["devices"]


def describe(path: Path, folder: Path) -> dict[str, Any]:
    """Facts of an ONNX file, compiled or not (`scan`), its EPContext nodes and metadata, read in a fresh process.

    Raises:
        ModelError: it is no ONNX model.
    """
    copy_file(path, folder / MODEL_NAME)
    outcome = _run({**_job("inspect"), "model": MODEL_NAME}, folder, timeout=SCAN_TIMEOUT, env={})
    result = _result_of(outcome, place=str(path), what="reading it", fallback=ModelError)
    return {"scan": result["scan"], **result["extra"]}


def rename_references(path: Path, names: Mapping[str, str], folder: Path, *, place: str) -> bytes:
    """The ONNX file at `path` with the files that it refers to called by new names; done in a fresh process.

    Raises:
        CompileError: it refers to a file that `names` does not hold.
    """
    copy_file(path, folder / MODEL_NAME)
    job: Job = {**_job("rename"), "model": MODEL_NAME, "names": dict(names)}
    outcome = _run(job, folder, timeout=SCAN_TIMEOUT, env={})
    _result_of(outcome, place=place, what="renaming its files", fallback=CompileError)
    return read_bounded(folder / CONTEXT_NAME, ONNX_LIMIT)


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
    outcome = _run(_compile_job(variant), folder, timeout=variant.timeout, env=variant.env)
    result = _result_of(outcome, place=variant.name, what="the compile", fallback=CompileError, hint=place)
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
    job = _compile_job(variant)
    job["task"] = "load"
    job["model"] = SOURCE_NAME if variant.is_source else CONTEXT_NAME
    job["provider_options"] = {option.name: option.text for option in variant.load_options}
    job["optimization"] = variant.load_optimization
    job["session_options"] = dict(variant.load_session_options)
    job["free_dimensions"] = job["free_dimension_denotations"] = {}
    outcome = _run(job, folder, timeout=variant.timeout, env=variant.env)
    _result_of(outcome, place=variant.name, what="the load check", fallback=CompileError, hint=hint)
    return outcome.seconds


def _run(job: Job, folder: Path, *, timeout: float, env: Mapping[str, str]) -> Outcome:
    try:
        return run_worker(job, folder, timeout=timeout, env=env)
    except OSError as error:
        if error.errno not in _EXHAUSTED:
            raise  # of the folder, which the store explains
        raise CompileError(
            f"no worker can be started: {error.strerror}",
            remedy="This machine has no process, memory or file descriptor left for it: set EPCTX_JOBS to a smaller "
            "number, or raise the limit (ulimit).",
            reason="exhausted",
        ) from error


def _job(task: Any) -> Job:
    return {"format": FORMAT, "task": task, "procedure": "hatch_epctx.worker.procedure"}


def _ep_fields(provider: Provider, device: str) -> Job:
    return {
        "procedure": provider.procedure,
        "ep": provider.names[0],
        "sources": list(provider.names),
        "module": provider.module,
        "device": device,
        "offline": provider.offline,
        "needs_static_shapes": provider.needs_static_shapes,
    }


def _compile_job(variant: Variant) -> Job:
    return {
        **_job("source" if variant.is_source else "compile"),
        **_ep_fields(variant.provider, variant.device),
        "provider_options": {
            option.name: copy_name(option) if option.is_path else option.text for option in variant.provider_options
        },
        "session_options": dict(variant.session_options),
        "free_dimensions": dict(variant.free_dimensions),
        "free_dimension_denotations": dict(variant.free_dimension_denotations),
        "input_shapes": {name: list(sizes) for name, sizes in variant.input_shapes.items()},
        "optimization": variant.optimization,
        "embed": variant.embed,
        "model": MODEL_NAME,
    }


def _keep_only(folder: Path, names: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in names:
            remove_tree(path)


def _result_of(outcome: Outcome, *, place: str, what: str, fallback: type[EpctxError], hint: str = "") -> Result:
    """The result of a worker that succeeded, else its error with the cause in words and the log's tail."""
    result = outcome.result
    if outcome.cause == "exit" and result is not None and result.get("ok"):
        return result
    tail = f"last lines of the worker's log:\n{outcome.log_tail}" if outcome.log_tail else ""
    if result is not None and not result.get("ok"):
        kind = _ERRORS.get(result.get("reason", ""), fallback)
        raise kind(
            f"{what} failed: {result.get('error') or 'no reason given'}",
            where=place,
            remedy=_with_hint(result.get("remedy", ""), hint),
            reason=result.get("reason", "ep-error"),
            detail=tail,
        )
    raise fallback(
        f"{what} failed: the worker {outcome.death}",
        where=place,
        remedy=_with_hint("", hint),
        reason=outcome.cause,
        detail=tail,
    )


def _with_hint(remedy: str, hint: str) -> str:
    general = f"See {hint}: other options, another 'optimization' or a longer 'timeout' may help." if hint else ""
    return remedy or general
