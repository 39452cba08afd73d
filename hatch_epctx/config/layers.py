"""Layers of configuration: raw TOML tables, merged in order, that remember where each value came from.

A later layer stands over an earlier one. Tables are merged key by key to any depth; every other value, arrays too, is
replaced as a whole. Messages name the layer whose value counts:

    tool.hatch.build.hooks.epctx.targets.laptop.ep: unknown execution provider 'QNM'
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["NOTHING", "Layer", "Layers", "dotted", "merge", "step"]

NOTHING = object()
"""No value: None may be one."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One table and its dotted place, such as "tool.epctx"."""

    place: str
    table: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers, the lowest first."""

    layers: tuple[Layer, ...] = ()

    def over(self, *layers: Layer) -> Layers:
        """These layers with others above them."""
        return Layers((*self.layers, *layers))

    def merged(self) -> dict[str, Any]:
        """All layers in one table; none of the originals is changed or shared."""
        result: dict[str, Any] = {}
        for layer in self.layers:
            result = merge(result, layer.table)
        return result

    def place(self, keys: Sequence[str | int]) -> str:
        """Dotted place of `keys` in the highest layer that holds the longest part of them."""
        return dotted(self._holder(keys), keys)

    def place_of_table(self, keys: Sequence[str | int]) -> str:
        """Dotted place of the table that holds the last of `keys`, in the layer that `place` names."""
        return dotted(self._holder(keys), keys[:-1])

    def _holder(self, keys: Sequence[str | int]) -> str:
        best, depth = self.layers[0].place if self.layers else "", 0
        for layer in self.layers:
            found = _depth(layer.table, keys)
            if found >= depth and found > 0:
                best, depth = layer.place, found
        return best


def _depth(table: object, keys: Sequence[str | int]) -> int:
    """How many of `keys`, from the first on, lead somewhere in `table`."""
    for depth, key in enumerate(keys):
        table = step(table, key)
        if table is NOTHING:
            return depth
    return len(keys)


def step(node: object, key: str | int) -> object:
    """What stands in a table or array at `key`, `NOTHING` where nothing does."""
    if isinstance(node, Mapping):
        return node.get(key, NOTHING)
    if isinstance(node, (list, tuple)) and isinstance(key, int) and key < len(node):
        return node[key]
    return NOTHING


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`upper` over `lower`: tables are merged at any depth, other values replaced. Keys keep `lower`'s order first."""
    result = {key: _copy(value) for key, value in lower.items()}
    for key, value in upper.items():
        below = result.get(key)
        if isinstance(below, dict) and isinstance(value, Mapping):
            result[key] = merge(below, value)
        else:
            result[key] = _copy(value)
    return result


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy(inner) for inner in value]
    return value


def dotted(base: str, keys: Iterable[str | int]) -> str:
    """`base` and `keys` as TOML spells a dotted key; array positions stand in brackets."""
    text = base
    for key in keys:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            part = key if _BARE_KEY.match(key) else f'"{key}"'
            text += f".{part}" if text else part
    return text
