"""Free dimensions and dynamic shapes, checked before an EP sees the model.

ONNX Runtime ignores the names of free dimensions that a model does not have, and an EP that needs static shapes
takes no node of a dynamic model or fails in words of its own. Both are said here, with the line to write.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from hatch_epctx.errors import suggest
from hatch_epctx.worker.failure import TaskError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import ModelProto

    from hatch_epctx.worker.protocol import Job, ScannedModel, ValueInfo

__all__ = ["check_dimensions", "check_static", "shape_fault"]

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")


def check_dimensions(scanned: ScannedModel, names: Mapping[str, int], denotations: Mapping[str, int]) -> None:
    """Refuse free dimensions that no input of the model has.

    Raises:
        TaskError: unknown-dimension, listing those it has.
    """
    present = sorted({dim for value in scanned["inputs"] for dim in value["shape"] or () if isinstance(dim, str)})
    for given, known, key in (
        (names, present, "free-dimensions"),
        (denotations, scanned["denotations"], "free-dimension-denotations"),
    ):
        for name in sorted(given):
            if name not in known:
                raise _unknown(name, known, key)


def _unknown(name: str, known: Sequence[str], key: str) -> TaskError:
    what = "dim" if key == "free-dimensions" else "denotation"
    has = "it has " + ", ".join(map(repr, known)) if known else f"its inputs have no {what} with a name"
    remedy = f"{suggest(name, known)} Correct or remove {name!r} in {key}." if known else f"Remove {key}."
    return TaskError(
        "unknown-dimension", f"no input of the model has the {what} {name!r}; {has}", remedy=remedy.strip()
    )


def check_static(job: Job, scanned: ScannedModel, model: ModelProto) -> None:
    """Refuse inputs that stay dynamic after the overrides, for an EP that needs static shapes.

    Raises:
        TaskError: dynamic-shape, naming input and dims and the TOML line that makes them static.
    """
    given = job.get("free_dimensions", {})
    by_denotation = _denoted(model, job.get("free_dimension_denotations", {}))
    findings: list[str] = []
    unnamed: list[str] = []
    names: dict[str, int] = {}
    for value in scanned["inputs"]:
        if value["shape"] is None:
            findings.append(f"input {value['name']!r} has no known rank")
            unnamed.append(f"{value['name']!r}")
            continue
        dims: list[str] = []
        for axis, dim in enumerate(value["shape"]):
            if isinstance(dim, int) or dim in given or (value["name"], axis) in by_denotation:
                continue
            dims.append(f"{dim!r} (axis {axis})" if dim is not None else f"axis {axis} (no name)")
            if dim is None:
                unnamed.append(f"axis {axis} of {value['name']!r}")
            else:
                names[dim] = 1
        if dims:
            findings.append(f"input {value['name']!r} keeps dynamic dims: {', '.join(dims)}")
    if findings:
        raise TaskError(
            "dynamic-shape",
            f"{job['ep']} needs static shapes; {'; '.join(findings)}",
            remedy=_static_remedy({**given, **names} if names else {}, unnamed),
        )


def _static_remedy(line: Mapping[str, int], unnamed: Sequence[str]) -> str:
    sentences = []
    if line:
        table = ", ".join(f"{_toml_key(name)} = {size}" for name, size in line.items())
        sentences.append(
            f"Write under the model: free-dimensions = {{ {table} }} (with the sizes you need in place of 1)."
        )
    if unnamed:
        sentences.append(
            f"Export the model with a fixed size for {', '.join(unnamed)}: what has no name cannot be overridden."
        )
    return " ".join(sentences)


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
        if isinstance(expected, int) and isinstance(new, int) and new != expected:
            return f"has size {new} in place of {expected} on axis {axis}"
    return ""
