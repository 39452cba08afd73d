"""Tasks compile and source: from a source model in the job's folder to artifacts under content-addressed names.

Bytes that ONNX Runtime and its EPs write depend on the input's path string, the output's stem, and on what the
process compiled before. So: a fresh process, cwd is the job's folder, the input is always called ``model.onnx``, the
output always ``model_ctx.onnx``.

Initialisers of nodes that stay with the CPU: ONNX Runtime writes those above a threshold to one new file and the rest
into the ONNX, wherever the source kept them (seen with 1.32: without a file they all go into the ONNX, up to
protobuf's 2 GiB). The file is always asked for, so that the compiled model is whole without its source, no size is
too large, and variants that leave the same weights share one artifact. A model that is to embed its context binary
stays one file as long as its source is below `INLINE_LIMIT`.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.digest import digest_bytes
from hatch_epctx.files import atomic_write, read_bounded, remove_tree
from hatch_epctx.worker import contextio, graphs, validating
from hatch_epctx.worker.coverage import coverage, left_operators, nodes_left
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.probing import ep_version
from hatch_epctx.worker.protocol import CONTEXT_NAME, MODEL_NAME, SOURCE_NAME, Artifact, Result, weights_name
from hatch_epctx.worker.rewriting import ContentNames, normalise_locations, rename_references, restore_metadata
from hatch_epctx.worker.scanning import LIMIT, Source, facts, parse, read_source
from hatch_epctx.worker.session import Ep, level, open_ep, session_options
from hatch_epctx.worker.shapes import check_dimensions, check_static, set_input_shapes
from hatch_epctx.worker.wording import describe, shown

if TYPE_CHECKING:
    from collections.abc import Collection

    from onnx import ModelProto

    from hatch_epctx.worker.protocol import Job, ScannedModel

__all__ = ["add_coverage", "compile_model", "finish", "packed", "prepare", "rename_source", "run_compiler"]

WEIGHTS_THRESHOLD: Final = 1024
"""Bytes from which an initialiser of a left-over node goes to the weights file."""
OLDEST_IR: Final = 8
"""IR version below which no compiled model is written: function bodies need it; ONNX Runtime 1.10 and later read it."""
_UNREADABLE: Final = "Load model from "
"""How ONNX Runtime begins when it cannot make anything of a model, before an EP sees it."""
_UNREGISTERED: Final = "is not a registered function/op"
"""What ONNX Runtime says of an operator that nobody brings."""
INLINE_LIMIT: Final = 1 << 30
"""Bytes of a source's weights up to which an embedding compile keeps left-over initialisers inside the ONNX."""


def compile_model(job: Job) -> Result:
    """Task compile.

    Raises:
        TaskError: any reason but load-failed, run-failed and fallback.
    """
    start = time.monotonic()
    source = prepare(job)
    ep = open_ep(job)
    ready = time.monotonic()
    run_compiler(job, ep, source)
    compiled = time.monotonic()
    result = finish(job, source)
    result["ep_version"] = ep_version(ep.device)
    result["onnxruntime"] = str(ep.runtime.__version__)
    done = time.monotonic()
    result["seconds"] = {"prepare": ready - start, "compile": compiled - ready, "finish": done - compiled}
    if job.get("want_coverage"):
        add_coverage(job, ep, result)
        result["seconds"]["coverage"] = time.monotonic() - done
    return result


def add_coverage(job: Job, ep: Ep, result: Result) -> None:
    """Fill in which EP takes how many nodes of the job's model, and what is left."""
    result["coverage"], result["left"] = coverage(job, ep, nodes_left(parse(Path(_output(job)))))


def prepare(job: Job) -> Source:
    """Read and check the source before an EP is touched, and clear the folder of outputs that are not this run's.

    Raises:
        TaskError: invalid-model, compiled-source, external-data-escape, unknown-dimension, unknown-input,
            shape-conflict, dynamic-shape, too-large.
    """
    path = Path(job.get("model", MODEL_NAME))
    source = read_source(path)
    names, denotations = job.get("free_dimensions", {}), job.get("free_dimension_denotations", {})
    if not job.get("prepared"):
        check_dimensions(source.facts, names, denotations)
    shaped = set_input_shapes(source.model, job.get("input_shapes", {}), names, denotations)
    if shaped:
        source = Source(model=source.model, facts=facts(source.model))
    if job.get("needs_static_shapes"):
        check_static(job, source.facts, source.model)
    if job.get("embed") and (size := weights_size(source, path.parent)) > LIMIT:
        raise TaskError(
            "too-large",
            f"the model's weights have {size:,} bytes; what is embedded has to stay below {LIMIT:,}",
            remedy="Set embed = false for the target: the context binary then is a file of its own.",
        )
    if normalise_locations(source.model, path.parent) or shaped:
        atomic_write(path, source.model.SerializeToString(deterministic=True), durable=False)
    # Neither ONNX Runtime nor the EPs mind a file that is there already: a stale one would pass for a result.
    for stale in Path().glob(f"{_output(job).removesuffix('.onnx')}*"):
        remove_tree(stale)
    return source


def weights_size(source: Source, folder: Path) -> int:
    """Bytes of the source's weights, inside the ONNX and beside it in `folder`."""
    beside = sum((folder / name).stat().st_size for name in source.facts["external_data"])
    return source.facts["embedded_size"] + beside


def _output(job: Job) -> str:
    return job.get("output", CONTEXT_NAME)


def run_compiler(job: Job, ep: Ep, source: Source) -> None:
    """ModelCompiler: the job's model to its output.

    Raises:
        TaskError: no-node, ep-error or callbacks-unsupported.
    """
    embed = job.get("embed", False)
    before = {path.name for path in Path().iterdir()}
    received = None
    path = Path(job.get("model", MODEL_NAME))
    inline = embed and weights_size(source, path.parent) <= INLINE_LIMIT
    try:
        compiler = ep.runtime.ModelCompiler(
            session_options(job, ep, overrides=True),
            path.as_posix(),
            embed_compiled_data_into_model=embed,
            external_initializers_file_path=None if inline else weights_name(_output(job)),
            external_initializers_size_threshold=WEIGHTS_THRESHOLD,
            flags=ep.runtime.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
            graph_optimization_level=level(ep.runtime, job.get("optimization", "basic")),
        )
        if contextio.wants_callbacks(job):
            received = contextio.receive(job, compiler, ep.runtime)
        compiler.compile_to_file(_output(job))
    except TaskError:
        raise
    except Exception as error:  # ONNX Runtime has an exception class per status, below RuntimeError and Exception
        raise _compile_fault(job, ep, source, error) from error
    if received is not None:
        received.check(job, {*before, _output(job), weights_name(_output(job))})


def _compile_fault(job: Job, ep: Ep, source: Source, error: Exception) -> TaskError:
    text = describe(error)
    if refused := contextio.refusal(job, text):
        return refused
    tried = job.get("optimization", "basic")
    others = ", ".join(f"'{name}'" for name in ("basic", "disable-all", "extended", "all") if name != tried)
    if "Unable to compile any nodes" in text:
        return TaskError(
            "no-node",
            f"{job['ep']} took no node of the model; its operators are {_operators(job, ep, source)}",
            remedy=f"Try optimization = {others} (now '{tried}'), give sizes to dynamic dims with free-dimensions, "
            "or leave the model out of this target: the CPU EP runs it as it is.",
        )
    if text.startswith(_UNREADABLE) or _UNREADABLE in text.partition(": ")[2]:
        return TaskError(
            "invalid-model",
            f"ONNX Runtime {ep.runtime.__version__} cannot read the model: {text}",
            remedy=_unreadable_remedy(job, text),
        )
    remedy = f"Try optimization = {others} (now '{tried}'), other provider-options, or leave the model out of it."
    if job.get("embed"):
        remedy += " With embed = true, try embed = false first: what is embedded has to stay below 2 GiB."
    return TaskError("ep-error", f"{job['ep']} failed to compile the model: {text}", remedy=remedy)


def _unreadable_remedy(job: Job, text: str) -> str:
    """What to do about a model that ONNX Runtime itself refuses, whatever the EP."""
    if _UNREGISTERED in text and not job.get("custom_ops"):
        return "Name the library that brings the operator in the model's 'custom-ops'."
    if "No Op registered for" in text or _UNREGISTERED in text:
        return "Correct the operator's name, its domain or the model's operator set; onnx.checker.check_model helps."
    return "Save it for an older operator set and IR version, or install a newer onnxruntime."


def _operators(job: Job, ep: Ep, source: Source) -> str:
    """The model's operators, the most frequent first, a handful of them, with what the EP says against them."""
    left = coverage(job, ep, graphs.model_nodes(source.model))[1]
    names = [f"{item['operator']} ({item['reason']})" if item["reason"] else item["operator"] for item in left]
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def finish(job: Job, source: Source, names: ContentNames | None = None) -> Result:
    """Validate the job's output in its folder and give its artifacts their final names.

    Args:
        job: the compile.
        source: what `prepare` gave.
        names: names what is referred to, for several models that share files; one of its own when None.

    Raises:
        TaskError: no-node, invalid-output or too-large. What is in the folder then means nothing.
    """
    folder = Path.cwd()
    model = _read_compiled(job)
    count = validating.check_nodes(model, job.get("sources") or [job["ep"]], embed=job.get("embed", False))
    validating.check_tensors(model)
    validating.check_interface(model, source.facts, job.get("free_dimensions", {}))
    names = names or ContentNames(folder, keep=source.facts["external_data"])
    referred = rename_references(model, names)
    lost = restore_metadata(source.model, model)
    # ONNX Runtime writes its newest IR version, which older releases refuse; what is left of the source needs its own.
    model.ir_version = min(model.ir_version, max(source.model.ir_version, OLDEST_IR))
    data = _serialise(job, model)
    validating.check_paths(data, folder, Path(job.get("model", MODEL_NAME)))
    for artifact in referred:
        if artifact["role"] == "context":
            validating.check_binary(Path(artifact["path"]), folder)
    left = nodes_left(model)
    return {
        "ok": True,
        "artifacts": [_written(_output(job), data), *referred],
        "inputs": graphs.graph_inputs(model),
        "outputs": graphs.graph_outputs(model),
        "compatibility": _compatibility(model, job["ep"]),
        "context_nodes": count,
        "nodes_left": len(left),
        "coverage": {},
        "left": left_operators(left),
        "metadata_lost": lost,
        "unreferenced": _unreferenced(_output(job), [item["path"] for item in referred]),
    }


def _unreferenced(output: str, names: Collection[str]) -> list[str]:
    """Files with the output's stem that the compile wrote and nothing refers to, in the order of their names."""
    stem = output.removesuffix(".onnx")
    return sorted(path.name for path in Path().glob(f"{stem}*") if path.name not in (output, *names))


def _read_compiled(job: Job) -> ModelProto:
    path = Path(_output(job))
    if path.is_symlink() or not path.is_file():
        raise TaskError("invalid-output", f"{job['ep']} reported success and wrote no model")
    if path.stat().st_size in (0, LIMIT + 1) or path.stat().st_size > LIMIT:
        raise _too_large(job)
    try:
        return parse(path)
    except TaskError as error:
        raise TaskError("invalid-output", f"what {job['ep']} wrote is no ONNX model: {error.error}") from error


def _serialise(job: Job, model: ModelProto) -> bytes:
    if model.ByteSize() > LIMIT:
        raise _too_large(job)
    return model.SerializeToString(deterministic=True)


def _too_large(job: Job) -> TaskError:
    remedy = "Set embed = false for the target." if job.get("embed") else "Leave the model out of this target."
    return TaskError("too-large", "the compiled ONNX file is empty or larger than protobuf's 2 GiB", remedy=remedy)


def _written(name: str, data: bytes) -> Artifact:
    atomic_write(Path(name), data, durable=False)
    return Artifact(role="model", path=name, size=len(data), digest=digest_bytes(data))


def _compatibility(model: ModelProto, ep: str) -> str:
    properties: dict[str, Any] = {entry.key: entry.value for entry in model.metadata_props}
    return shown(properties.get(f"ep_compatibility_info.{ep}", ""))


def rename_source(job: Job) -> Result:
    """Task source: the source model as `SOURCE_NAME`, its external data under content-addressed names.

    Raises:
        TaskError: invalid-model, compiled-source, external-data-escape, too-large, or invalid-output where external
            data is missing or empty.
    """
    path = Path(job.get("model", MODEL_NAME))
    source = read_source(path)
    names = ContentNames(Path.cwd(), what="the source model")
    referred = rename_references(source.model, names)
    # A model that is one file ships as it is, byte for byte.
    return packed(source.model, read_bounded(path, LIMIT) if not referred else None, referred, source.facts)


def packed(model: ModelProto, untouched: bytes | None, referred: list[Artifact], found: ScannedModel) -> Result:
    """Write a source model as `SOURCE_NAME` and report it.

    Args:
        model: the model.
        untouched: its file's own bytes, where they are shipped as they are.
        referred: what it refers to.
        found: its facts.

    Raises:
        TaskError: too-large.
    """
    data = _serialise({}, model) if untouched is None else untouched
    return {
        "ok": True,
        "artifacts": [_written(SOURCE_NAME, data), *referred],
        "inputs": found["inputs"],
        "outputs": found["outputs"],
        "compatibility": "",
        "context_nodes": 0,
        "nodes_left": found["nodes"],
        "coverage": {},
        "metadata_lost": [],
    }
