"""Generated inputs for one inference: the same for the same model, whatever the machine.

Values are harmless, not meaningful: floats are standard normal, integers are 0 or 1 (they often are indices into
something of unknown size), booleans random, texts "a".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ELEMENT_LIMIT", "NUMPY_TYPES", "UNKNOWN_SIZES", "feeds", "is_dynamic", "not_generated"]

SEED: Final = 20240229
UNKNOWN_SIZES: Final = (1, 16, 64, 224)
"""Sizes to try for dims that stayed dynamic: a pooling or a convolution may refuse 1 and be right."""
ELEMENT_LIMIT: Final = 1 << 24
"""Elements of one generated input; beyond it dynamic dims are 1."""

NUMPY_TYPES: Final = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(int16)": np.int16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32,
    "tensor(uint64)": np.uint64,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}


def not_generated(inputs: Sequence[Any]) -> str:
    """Why no inputs can be generated, such as for a sequence or a type that numpy does not have; else empty."""
    for value in inputs:
        if value.type not in NUMPY_TYPES:
            return f"input {value.name!r} has type {value.type}, for which no value is generated"
    return ""


def is_dynamic(inputs: Sequence[Any]) -> bool:
    """Whether any input's shape, past its first axis, is not fixed."""
    return any(not isinstance(dim, int) or dim < 0 for value in inputs for dim in value.shape[1:]) or any(
        len(value.shape) == 1 and not isinstance(value.shape[0], int) for value in inputs
    )


def feeds(inputs: Sequence[Any], unknown: int) -> dict[str, Any]:
    """Arrays by input name.

    Args:
        inputs: NodeArgs of a session: name, type, shape.
        unknown: size of a dim that stayed dynamic. The first of several axes is taken for a batch and is 1.
    """
    generator = np.random.default_rng(SEED)
    return {
        value.name: _array(generator, np.dtype(NUMPY_TYPES[value.type]), _shape(value.shape, unknown))
        for value in inputs
    }


def _shape(dims: Sequence[int | str | None], unknown: int) -> tuple[int, ...]:
    def filled(size: int) -> tuple[int, ...]:
        return tuple(
            dim if isinstance(dim, int) and dim >= 0 else 1 if axis == 0 and len(dims) > 1 else size
            for axis, dim in enumerate(dims)
        )

    return filled(unknown) if math.prod(filled(unknown)) <= ELEMENT_LIMIT else filled(1)


def _array(generator: np.random.Generator, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    if dtype.kind == "f":
        return generator.standard_normal(shape).astype(dtype)
    if dtype.kind == "O":
        return np.full(shape, "a", dtype=dtype)
    return generator.integers(0, 2, size=shape).astype(dtype)
