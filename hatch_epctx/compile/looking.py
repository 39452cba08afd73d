"""Looks at ONNX files and EPs, each in a fresh process, and new names for the files that a model refers to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hatch_epctx.compile.jobs import base_job, ep_fields, held_to
from hatch_epctx.compile.outcomes import result_of, run
from hatch_epctx.errors import CompileError, ModelError, ToolchainError
from hatch_epctx.files import copy_file, read_bounded
from hatch_epctx.manifest import MANIFEST_NAME
from hatch_epctx.source import ONNX_LIMIT, snapshot_model
from hatch_epctx.worker.protocol import CONTEXT_NAME, MODEL_NAME, Job

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hatch_epctx.compile.outcomes import Run
    from hatch_epctx.providers import Provider
    from hatch_epctx.worker.protocol import ProbedDevice, ScannedModel

__all__ = ["describe", "judge", "probe", "probe_with", "rename_references", "scan"]

SCAN_TIMEOUT = 300.0
"""Seconds for reading the facts of one ONNX file."""
PROBE_TIMEOUT = 120.0
"""Seconds for asking an EP about its devices."""


def scan(path: Path, digest: str, folder: Path, *, place: str) -> ScannedModel:
    """Facts of the ONNX file at `path`, read in a fresh process that works on a copy in `folder`.

    Raises:
        ModelError: it is no ONNX model, or compiled already.
        SourceChangedError: its digest is another by now; facts of other bytes must not be remembered.
    """
    snapshot_model(path, digest, folder)
    outcome = run({**base_job("scan"), "model": MODEL_NAME}, folder, timeout=SCAN_TIMEOUT, env={})
    result = result_of(outcome, place=place, what=f"reading {path.name}", fallback=ModelError)
    return result["scan"]


def probe(
    provider: Provider, device: str, folder: Path, *, env: Mapping[str, str], place: str, cores: int | None = None
) -> list[ProbedDevice]:
    """Devices that the EP reports on this machine, asked in a fresh process that is held to `cores` physical cores.

    Raises:
        ToolchainError: the EP cannot be loaded or shows no such device.
    """
    return probe_with(run, provider, device, folder, env=env, place=place, cores=cores)[0]


def probe_with(
    runner: Run,
    provider: Provider,
    device: str,
    folder: Path,
    *,
    env: Mapping[str, str],
    place: str,
    cores: int | None = None,
) -> tuple[list[ProbedDevice], dict[str, Any]]:
    """As `probe`, by a worker that `runner` runs; with the further facts of its result.

    Raises:
        ToolchainError: the EP cannot be loaded or shows no such device.
        CompileError: the worker cannot be run.
    """
    job: Job = {**base_job("probe"), **ep_fields(provider, device), "cpus": held_to(cores)}
    outcome = runner(job, folder, timeout=PROBE_TIMEOUT, env=env)
    what = f"asking {provider.title} about its devices"
    result = result_of(outcome, place=place, what=what, fallback=ToolchainError)
    return result["devices"], result.get("extra", {})


def describe(path: Path, folder: Path) -> dict[str, Any]:
    """Facts of an ONNX file, compiled or not (`scan`), its EPContext nodes and metadata, read in a fresh process.

    Raises:
        ModelError: it is no ONNX model.
    """
    copy_file(path, folder / MODEL_NAME)
    outcome = run({**base_job("inspect"), "model": MODEL_NAME}, folder, timeout=SCAN_TIMEOUT, env={})
    result = result_of(outcome, place=str(path), what="reading it", fallback=ModelError)
    return {"scan": result["scan"], **result["extra"]}


def judge(manifest: bytes, folder: Path) -> list[dict[str, Any]]:
    """Verdicts on every variant of a package manifest by the look-up's rules, found in a fresh process.

    Raises:
        ToolchainError: ONNX Runtime or an EP cannot be asked.
    """
    (folder / MANIFEST_NAME).write_bytes(manifest)
    job: Job = {**base_job("judge"), "procedure": "hatch_epctx.runtime.judging", "model": MANIFEST_NAME}
    outcome = run(job, folder, timeout=PROBE_TIMEOUT, env={})
    result = result_of(outcome, place="", what="asking the EPs about compatibility", fallback=ToolchainError)
    return list(result["extra"]["verdicts"])


def rename_references(path: Path, names: Mapping[str, str], folder: Path, *, place: str) -> bytes:
    """The ONNX file at `path` with the files that it refers to called by new names; done in a fresh process.

    Raises:
        CompileError: it refers to a file that `names` does not hold.
    """
    copy_file(path, folder / MODEL_NAME)
    job: Job = {**base_job("rename"), "model": MODEL_NAME, "names": dict(names)}
    outcome = run(job, folder, timeout=SCAN_TIMEOUT, env={})
    result_of(outcome, place=place, what="renaming its files", fallback=CompileError)
    return read_bounded(folder / CONTEXT_NAME, ONNX_LIMIT)
