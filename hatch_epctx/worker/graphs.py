"""Walking an ONNX model: every graph, node and tensor in it, wherever they hide, and its inputs and outputs.

Nothing here recurses, and no external data is read: the model may be hostile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    ValueInfoProto,
)

from hatch_epctx.worker.protocol import ValueInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "CONTEXT_OP",
    "attribute_number",
    "attribute_text",
    "context_nodes",
    "external_entries",
    "graph_inputs",
    "graph_outputs",
    "main_and_subgraphs",
    "model_names",
    "model_nodes",
    "model_tensors",
]

CONTEXT_OP: Final = ("com.microsoft", "EPContext")
"""Domain and operator of ONNX Runtime's compiled nodes."""


def main_and_subgraphs(model: ModelProto) -> Iterator[GraphProto]:
    """The main graph and all graphs in its nodes' attributes, at any depth."""
    for body in _bodies([model.graph]):
        if isinstance(body, GraphProto):
            yield body


def model_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every node: main graph, subgraphs, function bodies, training graphs."""
    for body in _all_bodies(model):
        yield from body.node


def model_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor: initialisers (dense and sparse) and those in attributes, in every body of the model."""
    for body in _all_bodies(model):
        if isinstance(body, GraphProto):
            yield from body.initializer
            yield from _parts(body.sparse_initializer)
        else:
            yield from _attribute_tensors(body.attribute_proto)
        for node in body.node:
            yield from _attribute_tensors(node.attribute)


def model_names(model: ModelProto) -> Iterator[str | bytes]:
    """Every name that other parts of a model, messages or results refer to; not what only describes it.

    Text that is no UTF-8 comes as bytes, whatever protobuf's types say.
    """
    yield from (opset.domain for opset in model.opset_import)
    for value in (*model.graph.input, *model.graph.output):
        yield value.name
        shape = value.type.sparse_tensor_type.shape if value.type.HasField("sparse_tensor_type") else None
        for dim in (shape or value.type.tensor_type.shape).dim:
            yield dim.dim_param
            yield dim.denotation
    for tensor in model_tensors(model):
        yield tensor.name
        for entry in tensor.external_data:
            yield entry.key
            yield entry.value
    for node in model_nodes(model):
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name


def context_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every EPContext node of the model."""
    for node in model_nodes(model):
        if (node.domain, node.op_type) == CONTEXT_OP:
            yield node


def _all_bodies(model: ModelProto) -> Iterator[GraphProto | FunctionProto]:
    roots: list[GraphProto | FunctionProto] = [model.graph, *model.functions]
    for training in model.training_info:
        roots += [training.algorithm, training.initialization]
    yield from _bodies(roots)


def _bodies(roots: Iterable[GraphProto | FunctionProto]) -> Iterator[GraphProto | FunctionProto]:
    waiting = list(roots)[::-1]
    while waiting:
        body = waiting.pop()
        yield body
        below: list[GraphProto | FunctionProto] = []
        attributes = [attribute for node in body.node for attribute in node.attribute]
        if isinstance(body, FunctionProto):
            attributes += body.attribute_proto
        for attribute in attributes:
            if attribute.HasField("g"):
                below.append(attribute.g)
            below += attribute.graphs
        waiting += below[::-1]


def _attribute_tensors(attributes: Iterable[AttributeProto]) -> Iterator[TensorProto]:
    for attribute in attributes:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("sparse_tensor"):
            yield from _parts([attribute.sparse_tensor])
        yield from _parts(attribute.sparse_tensors)


def _parts(tensors: Iterable[SparseTensorProto]) -> Iterator[TensorProto]:
    for tensor in tensors:
        yield tensor.values
        yield tensor.indices


def external_entries(tensor: TensorProto) -> dict[str, str] | None:
    """Key and value pairs of a tensor whose data is external; None where its data is inside the model."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return None
    return {entry.key: entry.value for entry in tensor.external_data}


def attribute_text(node: NodeProto, name: str) -> str | None:
    """The string attribute `name`, or None. Bytes that are no UTF-8 are replaced: the value is untrusted."""
    for attribute in node.attribute:
        if attribute.name == name:
            return attribute.s.decode("utf-8", "replace")
    return None


def attribute_number(node: NodeProto, name: str, default: int) -> int:
    """The integer attribute `name`, or `default`."""
    for attribute in node.attribute:
        if attribute.name == name:
            return attribute.i
    return default


def graph_inputs(model: ModelProto) -> list[ValueInfo]:
    """Inputs that a caller has to give: those of the main graph without initialisers of the same name.

    Models before IR version 4 list every initialiser as an input too; ONNX Runtime calls those overridable.

    Raises:
        ValueError: an element type that this onnx does not know.
    """
    own = {tensor.name for tensor in model.graph.initializer}
    own |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    return [_value(value) for value in model.graph.input if value.name not in own]


def graph_outputs(model: ModelProto) -> list[ValueInfo]:
    """Outputs of the main graph.

    Raises:
        ValueError: an element type that this onnx does not know.
    """
    return [_value(value) for value in model.graph.output]


def _value(value: ValueInfoProto) -> ValueInfo:
    kind = value.type.WhichOneof("value")
    if kind not in ("tensor_type", "sparse_tensor_type"):
        # "sequence_type" and "map_type" lose their tail, "optional_type" too; an untyped output has no kind.
        return ValueInfo(name=value.name, type=(kind or "undefined").removesuffix("_type"), shape=None)
    tensor = value.type.tensor_type if kind == "tensor_type" else value.type.sparse_tensor_type
    element = TensorProto.DataType.Name(tensor.elem_type).lower()
    shape: list[int | str | None] | None = None
    if tensor.HasField("shape"):
        shape = []
        for dim in tensor.shape.dim:
            if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
                shape.append(dim.dim_value)
            else:
                # Some exporters write -1 for "any": a dim with neither number nor name.
                shape.append(dim.dim_param or None)
    return ValueInfo(name=value.name, type=element, shape=shape)
