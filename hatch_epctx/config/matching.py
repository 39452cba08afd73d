"""Names and globs of the configuration: what they mean, and the error of one that means nothing."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hatch_epctx.errors import ConfigError, suggest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Named = tuple[str, str]
    """(expanded name, declared name)"""

__all__ = ["bad", "matching"]


def matching(
    patterns: Iterable[str],
    names: Iterable[Named],
    what: str,
    place: Callable[[str], str],
    errors: list[ConfigError],
) -> set[str]:
    """Names that one of the patterns means, by themselves or by the name they are declared under.

    A pattern that means nothing goes to `errors`.
    """
    names = list(names)
    wanted: set[str] = set()
    for pattern in patterns:
        found = {name for name, declared in names if fnmatchcase(name, pattern) or fnmatchcase(declared, pattern)}
        wanted |= found
        if not found:
            known = list(dict.fromkeys(name for name, _ in names))
            errors.append(
                bad(
                    f"{pattern!r} matches no {what}",
                    place(pattern),
                    expected=f"a name or glob of {', '.join(known)}" if known else "",
                    remedy=suggest(pattern.strip("*?"), known),
                )
            )
    return wanted


def bad(found: str, where: str, expected: str = "", remedy: str = "") -> ConfigError:
    """An error of the configuration at the dotted place `where`."""
    return ConfigError(found, where=where, expected=expected, remedy=remedy, reason="bad-value")
