"""Free dimensions and input shapes against a model's facts: said before anything compiles, and once more in the worker.

ONNX Runtime ignores the name of a free dimension that a model does not have, so that a typo would compile another
shape than the one asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from hatch_epctx.errors import suggest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hatch_epctx.worker.protocol import ScannedModel, ValueInfo

__all__ = ["dimension_fault", "input_shape_fault"]

ShapeReason = Literal["unknown-input", "shape-conflict"]


def dimension_fault(
    scanned: ScannedModel, names: Mapping[str, int], denotations: Mapping[str, int]
) -> tuple[str, str] | None:
    """The first free dimension that no input of the model has, as (found, remedy); None when all are there.

    Args:
        scanned: facts of the model that is compiled.
        names: sizes by symbolic name.
        denotations: sizes by denotation.
    """
    present = sorted({dim for value in scanned["inputs"] for dim in value["shape"] or () if isinstance(dim, str)})
    for given, known, key in (
        (names, present, "free-dimensions"),
        (denotations, scanned["denotations"], "free-dimension-denotations"),
    ):
        for name in sorted(given):
            if name not in known:
                return _unknown(name, known, key)
    return None


def input_shape_fault(
    values: Sequence[ValueInfo], shapes: Mapping[str, Sequence[int]]
) -> tuple[ShapeReason, str, str] | None:
    """The first of `shapes` that no input of the model can have, as (reason, found, remedy); None when all can be.

    Args:
        values: the inputs of the model that is compiled.
        shapes: sizes by input and axis, -1 where the model's own dim stays.
    """
    inputs = {value["name"]: value["shape"] for value in values}
    for name, sizes in sorted(shapes.items()):
        if name not in inputs:
            has = f"it has {', '.join(map(repr, inputs))}" if inputs else "it has none"
            remedy = f"{suggest(name, inputs)} Correct or remove {name!r} in input-shapes.".strip()
            return "unknown-input", f"the model has no input {name!r}; {has}", remedy
        own = inputs[name]
        if own is None:
            continue
        if len(own) != len(sizes):
            found = f"input {name!r} has {len(own)} dims, and input-shapes gives {len(sizes)}"
            return "shape-conflict", found, "Give one size for each dim, -1 for one that stays as it is."
        for axis, (dim, size) in enumerate(zip(own, sizes, strict=True)):
            if isinstance(dim, int) and dim >= 0 and size not in (-1, dim):
                found = f"input {name!r} has size {dim} on axis {axis} by the model, and input-shapes gives {size}"
                return "shape-conflict", found, "Make them say the same."
    return None


def _unknown(name: str, known: Sequence[str], key: str) -> tuple[str, str]:
    what = "dim" if key == "free-dimensions" else "denotation"
    has = "it has " + ", ".join(map(repr, known)) if known else f"its inputs have no {what} with a name"
    remedy = f"{suggest(name, known)} Correct or remove {name!r} in {key}." if known else f"Remove {key}."
    return f"no input of the model has the {what} {name!r}; {has}", remedy.strip()
