"""What stands behind the driver's options, taken as it is: a file may be called ``-x.bin`` or ``--out``.

The rules write every option apart from its values, and how many values it has never differs. So the values are marked
before argparse sees them, which would otherwise read one that begins with a dash as an option, and are taken off the
mark when they are read.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["add_option", "number", "path", "shielded", "text", "whole"]

_T = TypeVar("_T")

_MARK: Final = "\0"
"""No argument of a process holds it."""
_VALUES: Final = {
    "--atol": 1,
    "--calibration": 2,
    "--config": 1,
    "--context": 2,
    "--cosine": 1,
    "--custom-ops": 2,
    "--data": 3,
    "--description": 1,
    "--device": 1,
    "--ep": 1,
    "--file": 2,
    "--inputs": 1,
    "--machine": 1,
    "--manifest": 1,
    "--model": 2,
    "--option": 2,
    "--out": 1,
    "--package": 1,
    "--rtol": 1,
    "--seed": 1,
    "--version": 1,
}
"""How many values an option has, in every command."""


def add_option(parser: argparse.ArgumentParser, flag: str, **keywords: Any) -> None:
    """Add an option of `_VALUES` to `parser`; one of several values may be given again and again."""
    count = _VALUES[flag]
    several = {"nargs": count, "action": "append", "default": []} if count > 1 else {}
    parser.add_argument(flag, **{"type": text, **several, **keywords})


def shielded(arguments: Iterable[str]) -> list[str]:
    """The arguments, with the values behind options marked, whatever they look like."""
    marked, left = [], 0
    for argument in arguments:
        marked.append(_MARK + argument if left else argument)
        left = left - 1 if left else _VALUES.get(argument, 0)
    return marked


def text(value: str) -> str:
    """The value as it was given."""
    return value.removeprefix(_MARK)


def path(value: str) -> Path:
    """The same as a path."""
    return Path(text(value))


def number(value: str) -> float:
    """The same as a number.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    return _read(value, float, "a number")


def whole(value: str) -> int:
    """The same as a whole number.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    return _read(value, int, "a whole number")


def _read(value: str, kind: Callable[[str], _T], expected: str) -> _T:
    try:
        return kind(text(value))
    except ValueError:
        raise argparse.ArgumentTypeError(f"found {text(value)!r}; expected {expected}") from None
