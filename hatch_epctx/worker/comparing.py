"""Comparing outputs of a compiled model with those of its source on the CPU EP: figures and a verdict each.

A value agrees when |found - expected| <= atol + rtol * |expected|. Integers of 32 and 64 bits, booleans and texts are
labels, indices or counts: they agree when they are equal. `max_rel` is the largest difference divided by the largest
expected magnitude of the whole output: beside zero a quotient of single values says nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hatch_epctx.worker.protocol import CheckedOutput

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Tolerance", "compare", "merged", "same"]

_VERDICTS: Final = ("within", "random", "not-compared", "reference-not-finite", "beyond", "not-finite", "shape")
"""From good to bad: the worst of several samples counts."""


class Tolerance:
    """What may differ.

    Args:
        rtol: relative part.
        atol: absolute part.
        cosine: lowest cosine similarity of a floating-point output, or None.
    """

    def __init__(self, *, rtol: float, atol: float, cosine: float | None = None) -> None:
        self.rtol = rtol
        self.atol = atol
        self.cosine = cosine


def compare(name: str, found: Any, expected: Any, tolerance: Tolerance, *, random: bool = False) -> CheckedOutput:
    """One output of one sample.

    Args:
        name: the output's.
        found: the compiled model's array.
        expected: the source model's.
        tolerance: what may differ.
        random: the source gives other values each time, so that only shape and finiteness can be compared.
    """
    if not isinstance(found, np.ndarray) or not isinstance(expected, np.ndarray):
        return _output(name, "not-compared", values=0)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return _output(name, "shape", values=int(expected.size))
    if expected.dtype.kind not in "fiub" and expected.dtype.name != "bfloat16":
        return _equal(name, found, expected)
    wide, reference = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(reference)
    if random:
        bad = int(np.count_nonzero(~np.isfinite(wide) & finite)) if finite.all() else 0
        return _output(name, "not-finite" if bad else "random", values=int(wide.size), beyond=bad)
    if wide.size and not finite.any():
        return _output(name, "reference-not-finite", values=int(wide.size))
    # Where the source itself is not finite, the compiled model may be as it likes, but there alone.
    wide, reference = wide[finite], reference[finite]
    if bad := int(np.count_nonzero(~np.isfinite(wide))):
        return _output(name, "not-finite", values=int(wide.size), beyond=bad)
    if expected.dtype.kind == "b" or (expected.dtype.kind in "iu" and expected.dtype.itemsize >= 4):
        return _equal(name, wide, reference)
    return _close(name, wide, reference, tolerance, floating=expected.dtype.kind not in "iu")


def _close(name: str, found: Any, expected: Any, tolerance: Tolerance, *, floating: bool) -> CheckedOutput:
    difference = np.abs(found - expected)
    beyond = int(np.count_nonzero(difference > tolerance.atol + tolerance.rtol * np.abs(expected)))
    cosine = _cosine(found, expected)
    far = floating and tolerance.cosine is not None and cosine is not None and cosine < tolerance.cosine
    largest = float(difference.max(initial=0.0))
    scale = float(np.abs(expected).max(initial=0.0))
    return _output(
        name,
        "beyond" if beyond or far else "within",
        values=int(found.size),
        beyond=beyond,
        max_abs=largest,
        max_rel=largest / scale if scale else (None if largest else 0.0),
        cosine=cosine,
    )


def _equal(name: str, found: Any, expected: Any) -> CheckedOutput:
    differ = int(np.count_nonzero(found != expected))
    largest = None
    if found.dtype.kind == "f":
        largest = float(np.abs(found - expected).max(initial=0.0))
    return _output(
        name, "beyond" if differ else "within", values=int(found.size), beyond=differ, max_abs=largest, exact=True
    )


def _cosine(found: Any, expected: Any) -> float | None:
    """Cosine similarity of two arrays as vectors; None where one of them is zero."""
    scale_found, scale_expected = (float(np.abs(array).max(initial=0.0)) for array in (found, expected))
    if not scale_found or not scale_expected:
        return None if scale_found != scale_expected else 1.0
    # Scaled first: squares of large values leave the range of a float.
    a, b = found / scale_found, expected / scale_expected
    return float(np.clip(np.sum(a * b) / np.sqrt(np.sum(a * a) * np.sum(b * b)), -1.0, 1.0))


def _output(
    name: str,
    verdict: str,
    *,
    values: int,
    beyond: int = 0,
    max_abs: float | None = None,
    max_rel: float | None = None,
    cosine: float | None = None,
    exact: bool = False,
) -> CheckedOutput:
    return CheckedOutput(
        name=name,
        verdict=verdict,
        values=values,
        beyond=beyond,
        max_abs=max_abs,
        max_rel=max_rel,
        cosine=cosine,
        exact=exact,
    )


def merged(name: str, samples: Iterable[CheckedOutput]) -> CheckedOutput:
    """One output over several samples: the worst of each figure."""
    found = list(samples)

    def worst(key: str, pick: Any) -> float | None:
        values = [item[key] for item in found if item[key] is not None]  # type: ignore[literal-required]
        return pick(values) if values else None

    return CheckedOutput(
        name=name,
        verdict=max((item["verdict"] for item in found), key=_VERDICTS.index),
        values=sum(item["values"] for item in found),
        beyond=sum(item["beyond"] for item in found),
        max_abs=worst("max_abs", max),
        max_rel=worst("max_rel", max),
        cosine=worst("cosine", min),
        exact=any(item["exact"] for item in found),
    )


def same(first: Any, second: Any) -> bool:
    """Whether two runs of the source gave the same output; NaN is NaN."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
    return bool(first == second)
