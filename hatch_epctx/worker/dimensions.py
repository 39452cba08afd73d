"""Free dimensions against a model's facts: said before anything compiles, and once more in the worker.

ONNX Runtime ignores the name of a free dimension that a model does not have, so that a typo would compile another
shape than the one asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_epctx.errors import suggest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hatch_epctx.worker.protocol import ScannedModel

__all__ = ["dimension_fault"]


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


def _unknown(name: str, known: Sequence[str], key: str) -> tuple[str, str]:
    what = "dim" if key == "free-dimensions" else "denotation"
    has = "it has " + ", ".join(map(repr, known)) if known else f"its inputs have no {what} with a name"
    remedy = f"{suggest(name, known)} Correct or remove {name!r} in {key}." if known else f"Remove {key}."
    return f"no input of the model has the {what} {name!r}; {has}", remedy.strip()
