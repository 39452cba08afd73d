"""What the configuration declares and this version does not do yet.

`UNAVAILABLE` is the one list: a key in it is a known key, so that its spelling, type and docstring stand, and using it
is an error; nothing is ever ignored. To make a part available, delete its line.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hatch_epctx.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["UNAVAILABLE", "refusal", "used_keys"]

_VARIABLE = "EPCTX_"

UNAVAILABLE: Final[Mapping[str, str]] = MappingProxyType({})
"""Dotted key (`*` stands for a name), or variable, and what it would bring, with what to do in its place."""


def refusal(place: str, pattern: str) -> ConfigError:
    """The error for using, at `place`, what `pattern` lists."""
    what = "Unset it." if pattern.startswith(_VARIABLE) else "Remove the key."
    found = f"not available in this version: {UNAVAILABLE[pattern]}"
    return ConfigError(found, where=place, remedy=what, reason="unavailable")


def used_keys(table: Mapping[str, object]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every (pattern, key path) of a listed key that `table` sets, to whatever value."""
    for pattern in UNAVAILABLE:
        if not pattern.startswith(_VARIABLE):
            yield from ((pattern, path) for path in _matches(table, tuple(pattern.split(".")), ()))


def _matches(table: object, parts: tuple[str, ...], path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not parts:
        yield path
    elif isinstance(table, dict):
        for key in table if parts[0] == "*" else parts[:1]:
            if key in table:
                yield from _matches(table[key], parts[1:], (*path, key))
