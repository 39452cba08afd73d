"""Reading an ONNX file without believing it: its facts, without its external data.

The file may be garbage, truncated, text, huge or made to harm. protobuf bounds nesting and types; sizes and names
are bounded here. What native parsers do on top is contained by the process: nobody but this child dies.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError
from onnx import ModelProto

from hatch_epctx.files import check_location, read_bounded
from hatch_epctx.worker import graphs
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.protocol import (
    CALIBRATION_NAME,
    CONTEXT_NAME,
    JOB_NAME,
    LOG_NAME,
    MODEL_NAME,
    PREPARED_NAME,
    RESULT_NAME,
    SOURCE_NAME,
    Result,
    ScannedModel,
)
from hatch_epctx.worker.wording import one_line

if TYPE_CHECKING:
    from onnx import TensorProto

    from hatch_epctx.worker.protocol import Job

__all__ = ["LIMIT", "Source", "facts", "parse", "read_source", "scan"]

LIMIT: Final = (1 << 31) - 1
"""Bytes of an ONNX file: protobuf's own limit."""

_RESERVED_NAMES: Final = {
    JOB_NAME,
    RESULT_NAME,
    LOG_NAME,
    MODEL_NAME,
    SOURCE_NAME,
    PREPARED_NAME,
    CALIBRATION_NAME,
    "quantised.onnx",
    "coverage.log",
}
_RESERVED_HEADS: Final = (CONTEXT_NAME.removesuffix(".onnx"), "option-")
"""Names in a job's folder that are not the model's to use, in lower case: some file systems ignore case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source model as a task reads it."""

    model: ModelProto
    facts: ScannedModel


def scan(job: Job) -> Result:
    """Task scan: the facts of `job["model"]`.

    Raises:
        TaskError: as `read_source`.
    """
    path = Path(job.get("model", MODEL_NAME))
    return {"ok": True, "scan": read_source(path).facts}


def read_source(path: Path) -> Source:
    """Read and check the source model at `path`.

    Raises:
        TaskError: invalid-model, too-large, external-data-escape, or compiled-source.
    """
    model = parse(path)
    found = facts(model)
    if found["context_sources"]:
        makers = ", ".join(sorted(set(found["context_sources"])))
        raise TaskError(
            "compiled-source",
            f"the model is compiled already: it holds EPContext nodes of {makers}",
            remedy="Name the ONNX model that it was compiled from; a compiled model cannot be compiled again.",
        )
    return Source(model=model, facts=found)


def parse(path: Path) -> ModelProto:
    """The ONNX model in the file at `path`, its external data left alone.

    Raises:
        TaskError: invalid-model or too-large.
    """
    try:
        size = path.stat().st_size
        if size > LIMIT:
            raise TaskError(
                "too-large",
                f"the ONNX file has {size:,} bytes; protobuf cannot read more than {LIMIT:,}",
                remedy="Save the model with external data (onnx.save(..., save_as_external_data=True)).",
            )
        data = read_bounded(path, LIMIT)
    except OSError as error:
        raise TaskError("invalid-model", f"the ONNX file cannot be read: {error.strerror or error}") from error
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # the latter from protobuf's implementation in Python
        raise _invalid(f"it cannot be parsed ({one_line(str(error))})") from error
    # An empty file, and some other files, parse as a message without a single known field.
    if not model.HasField("graph") or not model.opset_import:
        raise _invalid("it has no graph or imports no operator set")
    for name in graphs.model_names(model):
        if not isinstance(name, str):
            raise _invalid(f"it holds a name that is no UTF-8: {name[:80]!r}")
    return model


def facts(model: ModelProto) -> ScannedModel:
    """Facts of a parsed model.

    Raises:
        TaskError: invalid-model or external-data-escape.
    """
    try:
        inputs, outputs = graphs.graph_inputs(model), graphs.graph_outputs(model)
    except ValueError as error:
        raise _invalid(f"it uses an unknown element type ({one_line(str(error))})") from error
    nodes = sum(len(graph.node) for graph in graphs.main_and_subgraphs(model))
    if nodes == 0:
        raise _invalid("its graph has no node")
    locations: set[str] = set()
    embedded = 0
    for tensor in graphs.model_tensors(model):
        entries = graphs.external_entries(tensor)
        if entries is None:
            embedded += tensor.ByteSize()
        else:
            locations.add(_location(tensor, entries.get("location", "")))
    denotations = {
        dim.denotation for value in model.graph.input for dim in value.type.tensor_type.shape.dim if dim.denotation
    }
    return ScannedModel(
        inputs=inputs,
        outputs=outputs,
        external_data=sorted(locations),
        nodes=nodes,
        opsets={"" if entry.domain == "ai.onnx" else entry.domain: entry.version for entry in model.opset_import},
        denotations=sorted(denotations),
        context_sources=[graphs.attribute_text(node, "source") or "?" for node in graphs.context_nodes(model)],
        embedded_size=embedded,
    )


def _location(tensor: TensorProto, text: str) -> str:
    """Normal form of a tensor's location.

    Raises:
        TaskError: external-data-escape, or invalid-model for a name that a job's folder needs itself.
    """
    try:
        location = check_location(text)
    except ValueError as error:
        raise TaskError(
            "external-data-escape",
            f"tensor {tensor.name!r} names external data outside the model's folder: {error}",
            remedy="Save the model again with its external data beside it.",
        ) from error
    if _is_reserved(location):
        raise TaskError(
            "invalid-model",
            f"tensor {tensor.name!r} keeps its external data in {location.as_posix()!r}, a name that compiling needs",
            remedy="Save the model again with another name for its external data, such as 'weights.data'.",
        )
    return location.as_posix()


def _is_reserved(location: PurePosixPath) -> bool:
    head = location.parts[0].lower()
    return head in _RESERVED_NAMES or head.startswith(_RESERVED_HEADS)


def _invalid(found: str) -> TaskError:
    return TaskError(
        "invalid-model",
        f"the file is no usable ONNX model: {found}",
        remedy="Check that it was written and copied whole (onnx.checker.check_model says more).",
    )
