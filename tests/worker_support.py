"""Jobs for real workers: the two real EPs and the stub, small models, and folders that hold only artifacts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import onnx

from hatch_epctx.files import remove_tree
from hatch_epctx.process import Outcome, run_worker
from hatch_epctx.worker.protocol import CONTEXT_NAME, MODEL_NAME, Job, Result

OPENVINO: Job = {
    "ep": "OpenVINOExecutionProvider",
    "module": "onnxruntime_ep_openvino",
    "device": "cpu",
    "provider_options": {"load_config": '{"CPU":{"INFERENCE_PRECISION_HINT":"f32"}}'},
}
QNN: Job = {
    "ep": "QNNExecutionProvider",
    "module": "onnxruntime_qnn",
    "device": "npu",
    "offline": True,
    "needs_static_shapes": True,
    "provider_options": {"backend_type": "htp", "soc_model": "60"},
}
CPU: Job = {"ep": "CPUExecutionProvider", "module": "", "device": "cpu"}
STUB: Job = {"ep": "StubExecutionProvider", "module": "", "device": "cpu", "procedure": "epctx_stub.procedure"}

EPS = {"openvino": OPENVINO, "qnn": QNN}
LOAD_OPTIONS = {"openvino": OPENVINO["provider_options"], "qnn": {"backend_type": "htp"}}


def stub(mode: str = "ok", **options: str) -> Job:
    """The stub's part of a job."""
    return {**STUB, "provider_options": {"mode": mode, **options}}


def put(model: onnx.ModelProto | Path, folder: Path) -> Path:
    """`model` as the source in `folder`, which is made; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(model, Path):
        shutil.copy(model, folder / MODEL_NAME)
    else:
        onnx.save(model, folder / MODEL_NAME)
    return folder


def run(base: Job, folder: Path, **fields: Any) -> Outcome:
    """One compile, or `task`, of `base` with further fields, in `folder`."""
    timeout = fields.pop("timeout", 120.0)
    job: Job = {"task": "compile", "optimization": "basic", **base, **fields}  # type: ignore[typeddict-item]
    return run_worker(job, folder, timeout=timeout, env={})


def result_of(outcome: Outcome) -> Result:
    """The result, with the outcome as the assertion's message when there is none."""
    assert outcome.result is not None, f"{outcome.death}\n{outcome.log_tail}"
    return outcome.result


def compiled(base: Job, folder: Path, **fields: Any) -> Result:
    """The result of a compile that succeeds."""
    result = result_of(run(base, folder, **fields))
    assert result["ok"], result
    return result


def refused(base: Job, folder: Path, **fields: Any) -> Result:
    """The result of a task that fails in an orderly way: one line, a reason, no path of the folder."""
    result = result_of(run(base, folder, **fields))
    assert not result["ok"], result
    assert result["error"]
    assert "\n" not in result["error"]
    assert str(folder) not in result["error"] + result.get("remedy", "")
    return result


def keep_artifacts(folder: Path, result: Result) -> None:
    """Remove everything from `folder` but the artifacts: source, its external data, job, log."""
    names = {artifact["path"] for artifact in result["artifacts"]}
    for path in folder.iterdir():
        if path.name not in names:
            remove_tree(path)


def load(key: str, folder: Path, **fields: Any) -> Outcome:
    """Open what a compile left in `folder` as its users will."""
    options = {"provider_options": LOAD_OPTIONS[key], "optimization": "disable-all", "model": CONTEXT_NAME}
    return run(EPS[key], folder, **{"task": "load", **options, **fields})


def contents(folder: Path, result: Result) -> dict[str, bytes]:
    """Name → bytes of the artifacts."""
    return {artifact["path"]: (folder / artifact["path"]).read_bytes() for artifact in result["artifacts"]}
