"""Session options that a variant is loaded with: one function, for the load check and for the manifest alike."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GRAPH_OPTIMIZATION", "loading_options"]

GRAPH_OPTIMIZATION: Final[Mapping[str, str]] = MappingProxyType(
    {"disable-all": "disable_all", "basic": "enable_basic", "extended": "enable_extended", "all": "enable_all"}
)
"""This project's optimisation levels in the words of ORT's session.graph_optimization_level."""


def loading_options(optimization: str, options: Mapping[str, str], *, compiled: bool = True) -> dict[str, str]:
    """Session options that the manifest carries.

    A compiled model is loaded with its own optimisation level, since the optimiser may change the nodes that are
    left, and is never compiled again at start.

    Args:
        optimization: disable-all, basic, extended or all: of the load.
        options: the target's further session options.
        compiled: False for a source variant.
    """
    level = {"session.graph_optimization_level": GRAPH_OPTIMIZATION[optimization]}
    guard = {"session.disable_model_compile": "1"} if compiled else {}
    return {**level, **guard, **options}
