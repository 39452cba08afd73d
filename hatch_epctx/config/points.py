"""Shape points: one model at several sizes of its free dimensions, each a variant of its own.

With `matrix = { batch = [1, 4], seq = [128] }` under a model, its target intel-cpu gives two variants:
<model>.intel-cpu-batch1-seq128 and <model>.intel-cpu-batch4-seq128. The name is the target's, then "-", the
dimension's name and its size, for each dimension in the matrix's order; what cannot stand in a name becomes "-".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic_core import PydanticCustomError

from hatch_epctx.config.scalars import RESERVED_TARGET, check_name
from hatch_epctx.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hatch_epctx.config.models import Model

__all__ = ["Point", "check_points", "points_of"]

_UNFIT = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination of sizes."""

    suffix: str
    """What a variant's name has behind its target's, such as "-batch4"; empty without a matrix."""
    sizes: Mapping[str, int]
    """Free dimensions by name: the model's own and those of the matrix."""


def points_of(model: Model) -> tuple[Point, ...]:
    """The shape points of `model`, the last dimension changing fastest; one without a suffix where it has no matrix."""
    found = []
    for sizes in product(*model.matrix.values()):
        combination = dict(zip(model.matrix, sizes, strict=True))
        suffix = "".join(f"-{_word(name)}{size}" for name, size in combination.items())
        found.append(Point(suffix=suffix, sizes=MappingProxyType({**model.free_dimensions, **combination})))
    return tuple(found)


def _word(dimension: str) -> str:
    return _UNFIT.sub("-", dimension).strip("-")


def check_points(model: Model, targets: Sequence[str], place: Callable[..., str]) -> Iterable[ConfigError]:
    """What is wrong with a model's matrix.

    Args:
        model: the model.
        targets: expanded names of its targets.
        place: dotted place of a key path below the model, for messages.
    """
    for name in model.matrix:
        if name in model.free_dimensions:
            found = f"the dimension {name!r} stands in free-dimensions too"
            yield _bad(found, place("matrix", name), remedy="Remove it from one of them.")
        elif not _word(name):
            yield _bad(
                f"no name can be made of {name!r}",
                place("matrix", name),
                expected="a dimension whose name has a letter or digit",
                remedy="Give the dimension a name in the model, or declare a model for each size with input-shapes.",
            )
    seen: dict[str, str] = {}
    for name in (f"{target}{point.suffix}" for target in targets for point in points_of(model)):
        if name.lower() in seen and model.matrix:
            yield _bad(f"two variants would have the name {name!r}", place("matrix"), remedy="Choose other names.")
        seen[name.lower()] = name
        try:
            check_name(name)
        except PydanticCustomError as error:
            context = error.context or {}
            yield _bad(context["found"], place("matrix"), context["expected"], "Shorten the target's name.")
    if RESERVED_TARGET in seen and model.matrix:
        yield _bad(f"a variant would have the name {RESERVED_TARGET!r}", place("matrix"), remedy="Choose other names.")


def _bad(found: str, where: str, expected: str = "", remedy: str = "") -> ConfigError:
    return ConfigError(found, where=where, expected=expected, remedy=remedy, reason="bad-value")
