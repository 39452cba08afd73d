"""Inputs for checks and calibration: read from an .npz file, or generated from the model's own input types.

A file holds one array for each input. An array of the input's rank is one sample; of one rank more, several samples
along its first axis. All inputs that hold several hold equally many; one sample beside them is used with each.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.feeds import ELEMENT_LIMIT, NUMPY_TYPES
from hatch_epctx.worker.wording import describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Input", "generated", "inputs_of", "read_samples"]

SAMPLES: Final = 4096
"""Samples of one file, at most."""

_NUMPY_HEAD: Final = b"\x93NUMPY"
"""How a file of a single array begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of a model: what arrays it takes."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...] | None
    """None stands for an open dim; None in all for an unknown rank."""


def inputs_of(values: Sequence[Any], where: str) -> list[Input]:
    """Inputs from a session's NodeArgs.

    Raises:
        TaskError: bad-inputs: an input is no tensor of a type that numpy has.
    """
    found = []
    for value in values:
        if value.type not in NUMPY_TYPES:
            raise TaskError(
                "bad-inputs",
                f"input {value.name!r} of {where} has type {value.type}, for which there are no arrays",
                remedy="Leave the check out of this model.",
            )
        shape = tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in value.shape)
        found.append(Input(name=value.name, dtype=np.dtype(NUMPY_TYPES[value.type]), shape=shape))
    return found


def read_samples(path: Path, inputs: Sequence[Input]) -> list[dict[str, Any]]:
    """The samples in the file at `path`.

    Raises:
        TaskError: bad-inputs: no .npz file, names that are not the model's, types or shapes that do not fit.
    """
    arrays = _arrays(path)
    names = [value.name for value in inputs]
    missing, unknown = sorted(set(names) - arrays.keys()), sorted(arrays.keys() - set(names))
    if missing or unknown:
        found = "; ".join(
            filter(
                None,
                (
                    f"it lacks {', '.join(map(repr, missing))}" if missing else "",
                    f"the model has no {', '.join(map(repr, unknown))}" if unknown else "",
                ),
            )
        )
        raise _bad(path, found, f"Save one array for each of the inputs {', '.join(map(repr, names))}.")
    stacks = {value.name: _stack(path, value, arrays[value.name]) for value in inputs}
    if empty := [name for name, stack in stacks.items() if not len(stack)]:
        raise _bad(path, f"{', '.join(map(repr, empty))} holds no sample", "Save at least one sample of each input.")
    counts = {len(stack) for stack in stacks.values()} - {1}
    if len(counts) > 1:
        said = ", ".join(f"{name!r} {len(stack)}" for name, stack in stacks.items())
        raise _bad(path, f"its inputs hold different numbers of samples: {said}", "Give all inputs equally many.")
    count = min(max(counts, default=1), SAMPLES)
    # A scalar's sample has to stay an array: ONNX Runtime takes no numpy.float32.
    return [
        {name: np.asarray(stack[index if len(stack) > 1 else 0]) for name, stack in stacks.items()}
        for index in range(count)
    ]


def _arrays(path: Path) -> dict[str, Any]:
    try:
        _check_head(path)
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            if not hasattr(file, "files"):
                raise _bad(path, "it holds a single array", "Save it with numpy.savez(path, name=array, ...).")
            return {name: file[name] for name in file.files}
    except TaskError:
        raise
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, AttributeError) as error:
        raise _bad(
            path, f"it cannot be read: {describe(error)}", "Save it with numpy.savez(path, name=array, ...)."
        ) from error


def _check_head(path: Path) -> None:
    """Refuse what numpy would take for a pickle, advising to load that."""
    with open(path, "rb") as stream:
        if stream.read(len(_NUMPY_HEAD)) != _NUMPY_HEAD and not zipfile.is_zipfile(path):
            raise ValueError("it is no .npz file")


def _stack(path: Path, value: Input, array: Any) -> Any:
    """`array` with the samples along its first axis."""
    if not np.can_cast(array.dtype, value.dtype, casting="same_kind") and array.dtype.kind not in "US":
        raise _bad(path, f"{value.name!r} is {array.dtype}", f"Save it as {value.dtype}.")
    array = array.astype(value.dtype)
    if value.shape is None or array.ndim == len(value.shape):
        array = array[np.newaxis]
    if value.shape is not None and (array.ndim != len(value.shape) + 1 or not _fits(array.shape[1:], value.shape)):
        wanted = "[" + ", ".join("?" if dim is None else str(dim) for dim in value.shape) + "]"
        raise _bad(
            path,
            f"{value.name!r} has the shape {list(array.shape[1:] if len(array) == 1 else array.shape)}",
            f"Save it in the shape {wanted}, or several of these along a further first axis.",
        )
    return array


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return all(dim is None or size == dim for size, dim in zip(shape, wanted, strict=True))


def _bad(path: Path, found: str, remedy: str) -> TaskError:
    return TaskError("bad-inputs", f"the file of {path.stem} is unfit: {found}", remedy=remedy)


def generated(
    inputs: Sequence[Input], *, seed: int, ranges: Mapping[str, Sequence[float]], unknown: int
) -> dict[str, Any]:
    """One sample: floats evenly from the input's range (0 to 1 where none is given), integers likewise with both ends.

    Args:
        inputs: the model's.
        seed: the same seed gives the same sample on every machine.
        ranges: lowest and highest value by input.
        unknown: size of an open dim. The first of several axes is taken for a batch and is 1.

    Raises:
        TaskError: bad-inputs: a range for an input that the model does not have.
    """
    known = {value.name for value in inputs}
    for name in sorted(ranges.keys() - known):
        raise TaskError(
            "bad-inputs",
            f"the model has no input {name!r}; it has {', '.join(map(repr, sorted(known)))}",
            remedy=f"Correct or remove {name!r} in check.ranges.",
        )
    generator = np.random.default_rng(seed)
    return {value.name: _array(generator, value, ranges.get(value.name, (0.0, 1.0)), unknown) for value in inputs}


def _array(generator: np.random.Generator, value: Input, bounds: Sequence[float], unknown: int) -> Any:
    shape = _filled(value.shape or (), unknown)
    if math.prod(shape) > ELEMENT_LIMIT:
        shape = _filled(value.shape or (), 1)
    low, high = bounds
    if value.dtype.kind == "f":
        return np.asarray(low + (high - low) * generator.random(shape), dtype=value.dtype)
    if value.dtype.kind == "O":
        return np.full(shape, "a", dtype=value.dtype)
    low, high = math.ceil(low), math.floor(high)
    if low > high:
        raise TaskError(
            "bad-inputs",
            f"no whole number lies in the range of input {value.name!r}, which is {value.dtype}",
            remedy=f"Give {value.name!r} another range in check.ranges.",
        )
    return np.asarray(generator.integers(low, high, size=shape, endpoint=True), dtype=value.dtype)


def _filled(shape: Sequence[int | None], unknown: int) -> tuple[int, ...]:
    return tuple(
        dim if dim is not None else 1 if axis == 0 and len(shape) > 1 else unknown for axis, dim in enumerate(shape)
    )
