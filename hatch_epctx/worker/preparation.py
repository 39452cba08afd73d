"""Task prepare: steps that change the source before the compile, in a process of their own.

The steps run in the order given, on `MODEL_NAME` in the job's folder, which they replace. External data stays where
it is; what a step makes anew goes into the ONNX. Inputs and outputs stay the source's by name, order and type.

A copy of the result is kept as `PREPARED_NAME` with its external data under content-addressed names, so that a user
can look at what was compiled.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onnx import ModelProto, shape_inference, version_converter

from hatch_epctx.digest import digest_bytes
from hatch_epctx.files import atomic_write
from hatch_epctx.worker import graphs
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.protocol import CALIBRATION_NAME, MODEL_NAME, PREPARED_NAME, Artifact, Result
from hatch_epctx.worker.rewriting import ContentNames, normalise_locations, rename_references, restore_metadata
from hatch_epctx.worker.samples import inputs_of, read_samples
from hatch_epctx.worker.scanning import LIMIT, facts, parse, read_source
from hatch_epctx.worker.shapes import check_dimensions, check_static, fill_dimensions, set_input_shapes
from hatch_epctx.worker.validating import check_interface
from hatch_epctx.worker.wording import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hatch_epctx.worker.protocol import Job

    Step = Callable[[ModelProto, Job, str], ModelProto]

__all__ = ["prepare_model"]

_QUANTISED: Final = "quantised.onnx"


def prepare_model(job: Job) -> Result:
    """Run the job's steps.

    Raises:
        TaskError: as `compiling.prepare`; prepare-failed, naming the step; bad-inputs of the calibration file.
    """
    source = read_source(Path(MODEL_NAME))
    check_dimensions(source.facts, job.get("free_dimensions", {}), job.get("free_dimension_denotations", {}))
    model = ModelProto()
    model.CopyFrom(source.model)
    normalise_locations(model)
    counts: list[dict[str, Any]] = []
    for step in job["prepare"]:
        name, _, argument = step.partition(":")
        try:
            model = _STEPS[name](model, job, argument)
        except TaskError:
            raise
        except Exception as error:  # whatever a library says of a model that it does not like
            raise TaskError(
                "prepare-failed",
                f"the step {step!r} failed: {describe(error)}",
                remedy=f"Remove {step!r} from prepare, or put it elsewhere among the steps.",
            ) from error
        counts.append({"step": step, "nodes": len(list(graphs.model_nodes(model)))})
    check_interface(model, source.facts, job.get("free_dimensions", {}), what="the prepared model")
    lost = restore_metadata(source.model, model)
    data = _bytes(model)
    atomic_write(Path(MODEL_NAME), data, durable=False)
    return {"ok": True, "artifacts": _kept(data, model), "metadata_lost": lost, "extra": {"steps": counts}}


def _bytes(model: ModelProto) -> bytes:
    if model.ByteSize() > LIMIT:
        raise TaskError(
            "too-large",
            "the prepared model is larger than protobuf's 2 GiB",
            remedy="Leave out the step that folds or rewrites the weights.",
        )
    return model.SerializeToString(deterministic=True)


def _kept(data: bytes, model: ModelProto) -> list[Artifact]:
    """The copy to look at, and its external data."""
    names = ContentNames(Path.cwd(), keep=facts(model)["external_data"], what="the prepared model")
    referred = rename_references(model, names)
    shown = _bytes(model) if referred else data
    atomic_write(Path(PREPARED_NAME), shown, durable=False)
    onnx = Artifact(role="prepared", path=PREPARED_NAME, size=len(shown), digest=digest_bytes(shown))
    return [onnx, *(Artifact(**{**item, "role": "prepared-data"}) for item in referred)]


def _infer_shapes(model: ModelProto, job: Job, argument: str) -> ModelProto:  # noqa: ARG001  # all steps are called alike
    return shape_inference.infer_shapes(model, data_prop=True)


def _convert_opset(model: ModelProto, job: Job, argument: str) -> ModelProto:  # noqa: ARG001
    return version_converter.convert_version(model, int(argument))


def _fold_constants(model: ModelProto, job: Job, argument: str) -> ModelProto:  # noqa: ARG001
    """Onnxscript's folding, and the nodes that nobody needs after it; its rewrite rules stay out."""
    ir: Any = importlib.import_module("onnx_ir")
    external: Any = importlib.import_module("onnx_ir.external_data")
    optimizer: Any = importlib.import_module("onnxscript.optimizer")
    read = ir.from_proto(model)
    external.set_base_dir(read.graph, str(Path.cwd()))
    optimizer.fold_constants(read)
    optimizer.remove_unused_nodes(read)
    made: ModelProto = ir.to_proto(read)
    return made


def _static_shapes(model: ModelProto, job: Job, argument: str) -> ModelProto:  # noqa: ARG001
    """Write free dimensions and input shapes into the graph, and infer the rest from them.

    Shapes that the graph notes of inner values may be of other sizes: they are forgotten first.
    """
    names, denotations = job.get("free_dimensions", {}), job.get("free_dimension_denotations", {})
    set_input_shapes(model, job.get("input_shapes", {}), names, denotations)
    fill_dimensions((*model.graph.input, *model.graph.output), names, denotations)
    check_static(job, facts(model), model, what="the step 'static-shapes'")
    for graph in graphs.main_and_subgraphs(model):
        del graph.value_info[:]
    return shape_inference.infer_shapes(model, data_prop=True)


def _quantize_qdq(model: ModelProto, job: Job, argument: str) -> ModelProto:  # noqa: ARG001
    """ONNX Runtime's static quantisation with QuantizeLinear/DequantizeLinear pairs, ranges from the samples."""
    runtime: Any = importlib.import_module("onnxruntime")
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    atomic_write(Path(MODEL_NAME), _bytes(model), durable=False)
    options = runtime.SessionOptions()
    session = runtime.InferenceSession(MODEL_NAME, options, providers=["CPUExecutionProvider"])
    samples = iter(read_samples(Path(CALIBRATION_NAME), inputs_of(session.get_inputs(), "the model")))

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # known at run time only
        def get_next(self) -> Any:
            return next(samples, None)

    kinds = quantization.QuantType
    quantization.quantize_static(
        MODEL_NAME,
        _QUANTISED,
        Reader(),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=kinds.QUInt16 if argument == "a16w8" else kinds.QUInt8,
        weight_type=kinds.QInt8,
    )
    return parse(Path(_QUANTISED))


_STEPS: Final[Mapping[str, Step]] = {
    "infer-shapes": _infer_shapes,
    "fold-constants": _fold_constants,
    "convert-opset": _convert_opset,
    "static-shapes": _static_shapes,
    "quantize-qdq": _quantize_qdq,
}
