"""Free dimensions and dynamic shapes, checked before an EP sees the model.

ONNX Runtime ignores the names of free dimensions that a model does not have, and an EP that needs static shapes
takes no node of a dynamic model or fails in words of its own. Both are said here, with the line to write.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from hatch_epctx.worker.dimensions import dimension_fault, input_shape_fault
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.graphs import graph_inputs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onnx import ModelProto, ValueInfoProto

    from hatch_epctx.worker.protocol import Job, ScannedModel, ValueInfo

__all__ = ["check_dimensions", "check_static", "fill_dimensions", "set_input_shapes", "shape_fault"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")


def check_dimensions(scanned: ScannedModel, names: Mapping[str, int], denotations: Mapping[str, int]) -> None:
    """Refuse free dimensions that no input of the model has.

    Raises:
        TaskError: unknown-dimension, listing those it has.
    """
    if fault := dimension_fault(scanned, names, denotations):
        found, remedy = fault
        raise TaskError("unknown-dimension", found, remedy=remedy)


def set_input_shapes(
    model: ModelProto, shapes: Mapping[str, Sequence[int]], names: Mapping[str, int], denotations: Mapping[str, int]
) -> bool:
    """Write sizes into the graph's inputs, by input and axis; return whether anything changed.

    This reaches dims that no override does: those without a name, those written as -1, and several that share one
    name. Only the given axis changes: another dim of the same name stays as it is.

    Args:
        model: the model; its inputs are changed in place.
        shapes: sizes by input, -1 where the model's own dim stays.
        names: free dimensions by name, which must not say otherwise.
        denotations: free dimensions by denotation, likewise.

    Raises:
        TaskError: unknown-input, or shape-conflict where rank or a size is another one already.
    """
    if fault := input_shape_fault(graph_inputs(model), shapes):
        reason, found, remedy = fault
        raise TaskError(reason, found, remedy=remedy)
    inputs = {value.name: value for value in model.graph.input}
    changed = False
    for name, sizes in sorted(shapes.items()):
        changed |= _set_shape(inputs[name], sizes, names, denotations)
    return changed


def _set_shape(
    value: ValueInfoProto, sizes: Sequence[int], names: Mapping[str, int], denotations: Mapping[str, int]
) -> bool:
    if value.type.WhichOneof("value") != "tensor_type":
        raise _conflict(value.name, "is no tensor", "Remove it from input-shapes.")
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        tensor.shape.SetInParent()
        for _ in sizes:
            tensor.shape.dim.add()
    changed = False
    for axis, (dim, size) in enumerate(zip(tensor.shape.dim, sizes, strict=True)):
        if size == -1 or (dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0):
            continue
        said = (names.get(dim.dim_param), denotations.get(dim.denotation))
        other = next((found for found in said if found is not None), size)
        if other != size:
            raise _conflict(
                value.name,
                f"has size {other} on axis {axis} by free-dimensions, and input-shapes gives {size}",
                "Make them say the same.",
            )
        dim.dim_value = size
        changed = True
    return changed


def _conflict(name: str, found: str, remedy: str) -> TaskError:
    return TaskError("shape-conflict", f"input {name!r} {found}", remedy=remedy)


def fill_dimensions(values: Iterable[ValueInfoProto], names: Mapping[str, int], denotations: Mapping[str, int]) -> bool:
    """Write the sizes of free dimensions into graph inputs or outputs; return whether anything changed."""
    changed = False
    for value in values:
        for dim in value.type.tensor_type.shape.dim:
            size = names.get(dim.dim_param, denotations.get(dim.denotation))
            if size is not None and not (dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0):
                dim.dim_value = size
                changed = True
    return changed


_NO_TENSORS: Final = frozenset({"sequence", "map", "optional"})
"""Types of inputs (`ValueInfo`) that have no shape at all."""


def check_static(job: Job, scanned: ScannedModel, model: ModelProto, *, what: str = "") -> None:
    """Refuse inputs that stay dynamic after the overrides.

    Args:
        job: its free dimensions count.
        scanned: facts of the model, input-shapes applied.
        model: the model.
        what: who needs static shapes; the job's EP when empty.

    Raises:
        TaskError: dynamic-shape, naming input and dims and the TOML line that makes them static.
    """
    given = job.get("free_dimensions", {})
    by_denotation = _denoted(model, job.get("free_dimension_denotations", {}))
    findings: list[str] = []
    by_name: list[str] = []
    by_input: dict[str, list[int]] = {}
    for value in scanned["inputs"]:
        shape = value["shape"]
        if value["type"] in _NO_TENSORS:
            findings.append(f"input {value['name']!r} is no tensor but of type {value['type']}")
            continue
        if shape is None:
            findings.append(f"input {value['name']!r} has no known rank")
            by_input[value["name"]] = []
            continue
        known = {axis: _size(dim, axis, value["name"], given, by_denotation) for axis, dim in enumerate(shape)}
        open_dims = [axis for axis, size in known.items() if size is None]
        if not open_dims:
            continue
        said = ", ".join(
            f"{shape[axis]!r} (axis {axis})" if shape[axis] else f"axis {axis} (no name)" for axis in open_dims
        )
        findings.append(f"input {value['name']!r} keeps dynamic dims: {said}")
        if all(shape[axis] and shape.count(shape[axis]) == 1 for axis in open_dims):
            by_name += [str(shape[axis]) for axis in open_dims]
        else:
            by_input[value["name"]] = [size or 1 for size in known.values()]
    if findings and not by_name and not by_input:
        remedy = "Leave the model out of this target."
        raise TaskError(
            "dynamic-shape", f"{what or job['ep']} needs static shapes; {'; '.join(findings)}", remedy=remedy
        )
    if findings:
        raise TaskError(
            "dynamic-shape",
            f"{what or job['ep']} needs static shapes; {'; '.join(findings)}",
            remedy=_static_remedy({**given, **dict.fromkeys(by_name, 1)} if by_name else {}, by_input),
        )


def _size(
    dim: int | str | None, axis: int, name: str, given: Mapping[str, int], denoted: Mapping[tuple[str, int], int]
) -> int | None:
    """The size of a dim after the overrides, None where it stays open."""
    if isinstance(dim, int):
        return dim
    named = None if dim is None else given.get(dim)
    return denoted.get((name, axis)) if named is None else named


def _static_remedy(names: Mapping[str, int], inputs: Mapping[str, Sequence[int]]) -> str:
    """The lines to write: free dimensions for what has a name of its own, whole shapes for the rest."""
    lines = []
    if names:
        table = ", ".join(f"{_toml_key(name)} = {size}" for name, size in names.items())
        lines.append(f"free-dimensions = {{ {table} }}")
    if inputs:
        # Of an input without a known rank nothing is known: a picture's shape stands for it.
        table = ", ".join(f"{_toml_key(name)} = {list(sizes or (1, 3, 224, 224))}" for name, sizes in inputs.items())
        lines.append(f"input-shapes = {{ {table} }}")
    return f"Write under the model: {' and '.join(lines)} (with the sizes you need in place of 1)."


def _toml_key(name: str) -> str:
    return name if _BARE_KEY.match(name) else json.dumps(name, ensure_ascii=False)


def _denoted(model: ModelProto, denotations: Mapping[str, int]) -> dict[tuple[str, int], int]:
    """(input, axis) → size, for axes whose denotation is given a size."""
    return {
        (value.name, axis): denotations[dim.denotation]
        for value in model.graph.input
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if dim.denotation in denotations
    }


def shape_fault(source: ValueInfo, compiled: ValueInfo, sizes: Mapping[str, int]) -> str:
    """Why the compiled value's shape does not fit the source's; empty when it does.

    A dim that the source leaves open may have become a number, by an override or by inference; a number of the
    source stays that number.
    """
    before, after = source["shape"], compiled["shape"]
    if before is None or after is None:
        return ""
    if len(before) != len(after):
        return f"has rank {len(after)} in place of {len(before)}"
    for axis, (old, new) in enumerate(zip(before, after, strict=True)):
        expected = sizes.get(old) if isinstance(old, str) else old
        if isinstance(expected, int) and new != expected and (isinstance(old, int) or isinstance(new, int)):
            found = f"size {new}" if isinstance(new, int) else "no size"
            return f"has {found} in place of {expected} on axis {axis}"
    return ""
