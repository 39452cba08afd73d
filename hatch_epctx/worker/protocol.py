"""What parent and worker say to each other: one JSON job in, one JSON result out.

The parent writes ``job.json`` into a private folder, starts ``python -I <worker/__main__.py> job.json`` with that
folder as its cwd, and reads ``result.json`` when the child has ended. Nothing is pickled or evaluated; the parent
reads the result as untrusted input (`process.results`). Standard library only.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal, TypedDict

__all__ = [
    "CALIBRATION_NAME",
    "CONTEXT_NAME",
    "FORMAT",
    "INPUTS_NAME",
    "JOB_NAME",
    "LOG_NAME",
    "MODEL_NAME",
    "PASSING",
    "PREPARED_NAME",
    "RESULT_NAME",
    "SOURCE_FOLDER",
    "SOURCE_NAME",
    "Artifact",
    "CheckJob",
    "Checked",
    "CheckedOutput",
    "CustomOpsJob",
    "Job",
    "LeftOperator",
    "ProbedDevice",
    "Reason",
    "Result",
    "Role",
    "ScannedModel",
    "Task",
    "ValueInfo",
    "job_bytes",
    "member_context",
    "member_folder",
    "member_prepared",
    "weights_name",
]

FORMAT: Final = 1
"""Version of the compile procedure; part of every identity. Raise it whenever the same job may give other bytes."""

JOB_NAME: Final = "job.json"
RESULT_NAME: Final = "result.json"
LOG_NAME: Final = "worker.log"
MODEL_NAME: Final = "model.onnx"
"""The canonical name of the source: output bytes depend on the input path string."""
CONTEXT_NAME: Final = "model_ctx.onnx"
SOURCE_NAME: Final = "model_src.onnx"
SOURCE_FOLDER: Final = "source"
"""Where the source lies in the folder of a check."""
INPUTS_NAME: Final = "inputs.npz"
"""The file of a check's inputs."""
CALIBRATION_NAME: Final = "calibration.npz"
"""The file of inputs that quantising reads."""
PREPARED_NAME: Final = "prepared.onnx"
"""The prepared model as it is kept to be looked at."""


def member_folder(position: int) -> str:
    """Folder, below the job's, of the source of a group's member; its ONNX file is called `MODEL_NAME` there."""
    return f"member-{position}"


def member_context(position: int) -> str:
    """`CONTEXT_NAME` of a group's member."""
    return f"model-{position}_ctx.onnx"


def member_prepared(position: int) -> str:
    """`PREPARED_NAME` of a group's member."""
    return f"prepared-{position}.onnx"


def weights_name(context: str) -> str:
    """File for the initialisers that stay with the CPU, of the compiled model called `context`."""
    return f"{context.removesuffix('.onnx')}_weights.data"


Task = Literal[
    "scan",
    "probe",
    "compile",
    "share",
    "source",
    "load",
    "prepare",
    "check",
    "inspect",
    "rename",
    "judge",
    "pack",
    "warm",
]
Role = Literal["model", "context", "weights", "ep-cache", "log", "prepared", "prepared-data"]
Reason = Literal[
    "no-node",
    "dynamic-shape",
    "unknown-dimension",
    "unknown-input",
    "shape-conflict",
    "compiled-source",
    "external-data-escape",
    "missing-ep",
    "custom-ops",
    "no-device",
    "not-simulated",
    "ep-error",
    "invalid-output",
    "invalid-model",
    "prepare-failed",
    "too-large",
    "load-failed",
    "run-failed",
    "fallback",
    "callbacks-unsupported",
    "other-machine",
    "bad-inputs",
    "check-failed",
]
"""Stable words for programs: why a task failed.

no-node            the EP took no node of the model
dynamic-shape      the EP needs static shapes and the model's inputs keep dynamic dims
unknown-dimension  a free dimension that the model does not have
unknown-input      a shape for an input that the model does not have
shape-conflict     a shape that the model or a free dimension contradicts
compiled-source    the source holds EPContext nodes already
external-data-escape  external data outside the model's folder
missing-ep         the EP's library cannot be imported or registered
custom-ops         a library of custom operators cannot be loaded
no-device          the EP shows no device of the asked kind
not-simulated      the device is simulated, and the simulator cannot open the model
ep-error           the EP or ONNX Runtime failed, or the procedure did
invalid-output     the compiled model breaks a rule of `validating`
invalid-model      the source is no usable ONNX model
prepare-failed     a step of model preparation cannot be done on this model
too-large          beyond protobuf's 2 GiB
load-failed        the compiled model cannot be opened
run-failed         it opens, and its first inference fails
fallback           it opens on other EPs than the asked one
callbacks-unsupported  ONNX Runtime or the EP has no EPContext data callbacks, and they were asked for
other-machine      the worker runs on another machine than the identity names
bad-inputs         a file of inputs that does not fit the model
check-failed       its outputs differ from the source's beyond the tolerance
"""


class CheckJob(TypedDict):
    """What a check runs and demands."""

    inputs: bool
    """Whether `INPUTS_NAME` holds the inputs; they are generated otherwise."""
    seed: int
    ranges: dict[str, list[float]]
    rtol: float
    atol: float
    cosine: float | None
    reference_optimization: str
    """Level at which the CPU EP loads the source."""


class CustomOpsJob(TypedDict, total=False):
    """A library of custom operators: one of the two."""

    module: str
    """Import name of a module with get_library_path()."""
    file: str
    """File in the job's folder."""


class Job(TypedDict, total=False):
    """One run of a worker. Fields by task: scan (none further), probe (ep...), compile, share, source, load."""

    format: int
    task: Task
    procedure: str
    sys_path: list[str]
    """The parent's import path: isolated builds set it in ways a scrubbed environment would lose. Absolute entries
    only; `process.run_worker` fills it in when it is left out."""
    ep: str
    """Full registered EP name."""
    module: str
    """Import name of the plugin helper, empty for a built-in EP."""
    device: str
    """cpu, gpu or npu."""
    offline: bool
    """Any device of the EP serves (cross-compile)."""
    sources: list[str]
    """Spellings that the EP may write as `source` of its EPContext nodes; `ep` alone when left out."""
    needs_static_shapes: bool
    """compile: refuse a model whose inputs keep dynamic dims, before the EP sees it."""
    want_coverage: bool
    """compile: fill in `Result.coverage` and the reasons in `Result.left`."""
    left_pattern: str
    """compile: reads from the EP's verbose log why it leaves nodes; see `Provider.left_pattern`."""
    provider_options: dict[str, str]
    session_options: dict[str, str]
    free_dimensions: dict[str, int]
    free_dimension_denotations: dict[str, int]
    input_shapes: dict[str, list[int]]
    """Sizes by input, -1 where the model's own dim stays; written into the graph before the compile."""
    prepare: list[str]
    """prepare: the steps, in order."""
    prepared: bool
    """compile: the source has been prepared, so that free dimensions may be written into it already."""
    optimization: str
    """disable-all, basic, extended, all: of the compile, or of the load for task load."""
    embed: bool
    context_io: str
    """files or callbacks: how context data gets from the EP to the job's folder and back. Files when left out."""
    model: str
    """File in the job's folder to read; MODEL_NAME for scan, compile and source, the compiled ONNX for the rest."""
    custom_ops: list[CustomOpsJob]
    """Libraries of custom operators that every session of the model registers, in order."""
    cpus: list[int]
    """CPUs that the process may use; all that its parent may when empty. Linux alone."""
    output: str
    """compile: the compiled ONNX file; CONTEXT_NAME when left out."""
    members: list[Job]
    """share: what each member's compile differs in, in order; the job's own fields count for all."""
    not_simulated: str
    """load, check: why a simulator cannot open the model, where that is so. It is not opened in one then: a load says
    so in `Result.extra["not_run"]`, a check fails with the reason not-simulated."""
    check: CheckJob
    inner: str
    """Module of the task's own procedure, where another one stands around it (`toolchain.elsewhere`)."""
    machine: dict[str, Any]
    """Facts of the machine that the identity holds; a worker that finds others refuses (`toolchain.elsewhere`)."""
    names: dict[str, str]
    """rename: new flat names of the files that the model refers to, by their old ones."""


class ValueInfo(TypedDict):
    """One graph input or output."""

    name: str
    type: str
    """ONNX element type in lower case, such as "float", "int64"; "sequence", "map" or "optional" for the rest."""
    shape: list[int | str | None] | None
    """A dim is a number, a symbolic name, or None where it has neither; None in all where the rank is unknown."""


class ScannedModel(TypedDict):
    """Facts of an ONNX file that the parent remembers by the file's digest."""

    inputs: list[ValueInfo]
    outputs: list[ValueInfo]
    external_data: list[str]
    """Sorted relative POSIX locations of external data, in subgraphs, functions and sparse tensors too."""
    nodes: int
    """Nodes of the main graph and all subgraphs."""
    opsets: dict[str, int]
    denotations: list[str]
    """Denotations of input dims."""
    context_sources: list[str]
    """`source` of each EPContext node: not empty means the model is compiled already."""
    embedded_size: int
    """Bytes of initialisers inside the file."""


class ProbedDevice(TypedDict):
    """What the EP reports of one device, without paths."""

    ep: str
    type: str
    vendor: str
    vendor_id: int
    device_id: int
    metadata: dict[str, str]


class Artifact(TypedDict):
    """One output file, named relative to the job's folder."""

    role: Role
    path: str
    size: int
    digest: str


class LeftOperator(TypedDict):
    """An operator whose nodes were left to the CPU."""

    operator: str
    """With its domain, where that is not ONNX's own."""
    count: int
    reason: str
    """What the EP says about most of its nodes; empty where it says nothing."""


PASSING: Final = frozenset({"within", "random", "not-compared"})
"""Verdicts on an output that fail no check."""


class CheckedOutput(TypedDict):
    """How one output of the compiled model compares with the source's."""

    name: str
    verdict: str
    """within, beyond; random (the source gives other values each time), not-compared (no tensor), not-finite (where
    the source is), reference-not-finite, shape."""
    values: int
    beyond: int
    """Values that do not agree."""
    max_abs: float | None
    max_rel: float | None
    """Largest difference, relative to the largest expected magnitude of the output."""
    cosine: float | None
    exact: bool
    """Equality was demanded: labels, indices, booleans, texts."""


class Checked(TypedDict):
    """What a check found."""

    samples: int
    generated: bool
    device: str
    """Kind of the device that ran the compiled model; another than the target's where it was a simulator."""
    outputs: list[CheckedOutput]


class Result(TypedDict, total=False):
    """What a worker reports. `ok` false comes with `error`, `reason` and perhaps `remedy`."""

    format: int
    ok: bool
    error: str
    """What went wrong, one line, without paths of this machine."""
    reason: str
    """One of `Reason`; procedures of third parties may bring words of their own."""
    remedy: str
    """What to do, one or more whole sentences. May be missing."""
    scan: ScannedModel
    devices: list[ProbedDevice]
    """probe: all devices of the EP, in ONNX Runtime's order."""
    chosen: ProbedDevice
    """probe: the device that compiles and loads would use."""
    ep_version: str
    onnxruntime: str
    members: list[Result]
    """share: a compile's result for each member, in order. Members may have artifacts in common."""
    artifacts: list[Artifact]
    """compile, source: artifacts under their content-addressed final names; the ONNX keeps CONTEXT_NAME or
    SOURCE_NAME."""
    inputs: list[ValueInfo]
    outputs: list[ValueInfo]
    compatibility: str
    """`ep_compatibility_info.<EP>` of the compiled model, empty where the EP wrote none."""
    context_nodes: int
    nodes_left: int
    """Nodes of the compiled model that are no EPContext nodes."""
    coverage: dict[str, int]
    """Source nodes by EP as ORT's assignment info says; empty where it cannot be had."""
    left: list[LeftOperator]
    """compile: operators of the nodes left, the most frequent first."""
    providers: list[str]
    """load: the session's providers."""
    check: Checked
    unreferenced: list[str]
    """compile: files beside the output that nothing refers to; they are no artifacts."""
    metadata_lost: list[str]
    seconds: dict[str, float]
    """Wall time by step: presentation only."""
    extra: dict[str, Any]
    """Further facts for reports: presentation only."""


def job_bytes(job: Job) -> bytes:
    """Content of ``job.json``: the same bytes for the same job."""
    return json.dumps(job, sort_keys=True).encode()
