"""Checking a target's device and options against its EP's table, before anything compiles.

EPs take wrong options in silence: an unknown chip becomes the oldest one, a misspelt key does nothing. Here every
option must stand in the table, fit its kind, and go together with the others and with the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hatch_epctx.errors import ConfigError
from hatch_epctx.providers.base import Contradiction, OptionValue
from hatch_epctx.providers.values import close_match, read_value, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hatch_epctx.providers.base import Option, Provider

__all__ = ["OptionErrors", "check_device", "check_options"]

Place = Callable[[str], str]
"""Dotted place of an option, by its name."""

_ONE = "Remove one of them."
_LISTED = 12
"""Options up to this number are listed in a message."""


class OptionErrors(ConfigError):
    """Several findings in one option table; `detail` lists them, one a line.

    Attributes:
        errors: each of them by itself.
    """

    def __init__(self, errors: Iterable[ConfigError]) -> None:
        self.errors = tuple(errors)
        lines = "\n".join(str(error) for error in self.errors)
        super().__init__(f"{len(self.errors)} errors in provider options", reason="several", detail=lines)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.errors,))


def check_device(provider: Provider, device: str | None, *, where: str) -> str:
    """The device of a target: the one named, or the EP's first.

    Raises:
        ConfigError: the EP has no such device.
    """
    if device is None:
        return provider.devices[0]
    if device not in provider.devices:
        raise ConfigError(
            f"{provider.title} has no device {device!r}",
            where=where,
            expected=f"one of {', '.join(provider.devices)}",
            remedy=close_match(device, provider.devices),
            reason="bad-device",
        )
    return device


def check_options(
    provider: Provider,
    device: str,
    values: Mapping[str, object],
    *,
    where: str | Place,
    root: Path | None = None,
    allow_unknown: Iterable[str] = (),
    runtime: bool = False,
) -> tuple[OptionValue, ...]:
    """The options that the EP receives, validated and normalised, sorted by name.

    The EP's defaults fill what is left out, except at run time. An option named in `allow_unknown` is passed as
    text without being held against the table; options that the table refuses stay refused.

    Args:
        provider: the EP.
        device: one of its devices.
        values: the complete options of one expanded target, as TOML or the command line gave them.
        where: dotted place of the option table, or a function from an option's name to its place.
        root: what file and folder options are relative to; the current folder when None. Found files are given
            back as `root / path`.
        allow_unknown: options to pass unchecked.
        runtime: the options go to loading alone: nothing is demanded and no default added.

    Raises:
        ConfigError: unknown, refused, ignored, ill-typed or contradictory options, a missing file; `OptionErrors`
            when there are several.
    """
    table = where
    place: Place = table if callable(table) else lambda name: f"{table}.{name}"
    checker = _Checker(provider, place, root, frozenset(allow_unknown))
    values = checker.renamed(values)
    checked = checker.read(values)
    if not runtime:
        checked |= {name: value for name, value in checker.defaults(values).items() if name not in checked}
    checker.cross_check(device, checked, complete=not runtime)
    checker.raise_all()
    return tuple(checked[name] for name in sorted(checked))


class _Checker:
    """One option table; findings are gathered so that all of them are told at once."""

    def __init__(self, provider: Provider, place: Place, root: Path | None, unchecked: frozenset[str]) -> None:
        self._provider = provider
        self._place = place
        self._root = root
        self._unchecked = unchecked
        self._errors: list[ConfigError] = []
        self._written: dict[str, str] = {}
        """Names of options as they were given, by the EP's."""

    def renamed(self, values: Mapping[str, object]) -> dict[str, object]:
        """The options under the names that the EP reads; one that is given under two names is an error."""
        others = self._provider.other_names
        for name in values:
            if others.get(name) in values:
                found = f"{name!r} and {others[name]!r} are one option"
                self._errors.append(
                    ConfigError(found, where=self._place(name), remedy=_ONE, reason="contradictory-options")
                )
        self._written = {others[name]: name for name in values if name in others}
        return {others.get(name, name): value for name, value in values.items()}

    def read(self, values: Mapping[str, object]) -> dict[str, OptionValue]:
        """Each option by itself."""
        tried = {name: self._try(name, value) for name, value in values.items()}
        return {name: value for name, value in tried.items() if value is not None}

    def _try(self, name: str, value: object) -> OptionValue | None:
        try:
            return self._read(name, value)
        except ConfigError as error:
            self._errors.append(error)
            return None

    def defaults(self, values: Mapping[str, object]) -> dict[str, OptionValue]:
        """The EP's defaults, except those that the options given take the place of."""
        options = self._provider.options
        return {
            name: OptionValue(name=name, text=text, kind=options[name].kind, phase=options[name].phase)
            for name, text in self._provider.defaults.items()
            if name not in values and not any(other in values for other in options[name].excludes)
        }

    def cross_check(self, device: str, options: Mapping[str, OptionValue], *, complete: bool) -> None:
        """All options together; only what passed by itself is looked at."""
        provider = self._provider
        for name in options.keys() & provider.options.keys():
            for other in (other for other in provider.options[name].excludes if other in options):
                self._add(Contradiction(option=name, found=f"{name!r} and {other!r} exclude each other", remedy=_ONE))
        for found in provider.contradictions(device, options):
            self._add(found)
        wrong = {error.where for error in self._errors}
        needed = provider.needs_any
        if complete and needed and not any(name in options or self._at(name) in wrong for name in needed):
            names = " or ".join(map(repr, needed))
            expected = provider.options[needed[0]].expected
            self._add(
                Contradiction(
                    option=needed[0],
                    found=f"missing; {names} must be set",
                    expected=expected,
                    remedy=provider.needs_any_reason,
                )
            )

    def _at(self, name: str) -> str:
        """Dotted place of an option, under the name that it was given."""
        return self._place(self._written.get(name, name))

    def raise_all(self) -> None:
        """Raise what was found."""
        if len(self._errors) == 1:
            raise self._errors[0]
        if self._errors:
            raise OptionErrors(self._errors)

    def _add(self, found: Contradiction) -> None:
        self._errors.append(
            ConfigError(
                found.found,
                where=self._at(found.option),
                expected=found.expected,
                remedy=found.remedy,
                reason="contradictory-options",
            )
        )

    def _read(self, name: str, value: object) -> OptionValue:
        option = self._provider.options.get(name)
        if option is not None and (text := option.refuse or option.ignored):
            verb = "is refused" if option.refuse else "has no effect"
            reason = "refused-option" if option.refuse else "ignored-option"
            raise ConfigError(f"the option {name!r} {verb}: {text}", where=self._at(name), reason=reason)
        if name in self._unchecked:
            return self._pass(name, value, option)
        if option is None:
            raise self._unknown(name)
        return read_value(option, value, where=self._at(name), root=self._root)

    def _pass(self, name: str, value: object, option: Option | None) -> OptionValue:
        """An option that is not held against the table."""
        if option is not None and option.kind not in ("string", "bool", "int", "float", "enum"):
            return replace(read_value(option, value, where=self._at(name), root=self._root), checked=False)
        phase = option.phase if option else "both"
        if isinstance(value, bool):
            return OptionValue(name=name, text="1" if value else "0", phase=phase, checked=False)
        if isinstance(value, (str, int, float)):
            return OptionValue(name=name, text=str(value), phase=phase, checked=False)
        raise ConfigError(
            f"found {shown(value)} for an option that is passed as it stands",
            where=self._at(name),
            expected="a string, a number or a boolean",
            reason="bad-option-value",
        )

    def _unknown(self, name: str) -> ConfigError:
        usable = tuple(
            key for key, option in self._provider.options.items() if not option.refuse and not option.ignored
        )
        expected = f"one of {', '.join(usable)}" if 0 < len(usable) <= _LISTED else ""
        hint = close_match(name, usable)
        remedy = f"{hint} " if hint else ""
        return ConfigError(
            f"unknown option {name!r} of {self._provider.title}",
            where=self._at(name),
            expected=expected,
            remedy=f"{remedy}An option that only a newer EP knows is passed when 'allow-unknown-options' names it.",
            reason="unknown-option",
        )
