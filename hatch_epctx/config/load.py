"""Reading the configuration: which layers count, in which order, and what is wrong with them.

The layers, lowest first:

1. `[tool.epctx]`
2. the hook's own table, `[tool.hatch.build.hooks.epctx]`
3. every `[[overrides]]` table whose condition holds, in order, those of the hook's table last
4. the EPCTX_* environment, which holds settings of a run (see `environment`)

All layers are merged first and then read once, so that a required key may come from any of them; every error names
the layer whose value is wrong. An override whose condition does not hold is read too, over the rest: a mistake in it
is found on every machine, not on the one where it applies.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from hatch_epctx.config.environment import Environment, read_environment
from hatch_epctx.config.errors import findings, raise_all, toml_type
from hatch_epctx.config.layers import Layer, Layers
from hatch_epctx.config.models import Condition, Override, Settings
from hatch_epctx.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hatch_epctx.config.scalars import State

__all__ = ["HATCH_KEYS", "HOOK_PLACE", "TABLE_PLACE", "Machine", "load_settings"]

TABLE_PLACE = "tool.epctx"
HOOK_PLACE = "tool.hatch.build.hooks.epctx"

HATCH_KEYS = frozenset(
    ["dependencies", "enable-by-default", "require-runtime-dependencies", "require-runtime-features"]
)
"""Keys of a hook's table that belong to hatch itself."""

_OVERRIDES = "overrides"
_FALSE = frozenset(["", "0", "false"])
_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64", "i386": "x86", "i686": "x86"}
_SYSTEMS = {"macos": "darwin"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine that builds, as conditions see it."""

    system: str
    """linux, windows, darwin or another, in lower case."""
    architecture: str
    """x86_64, aarch64 or another, in lower case."""

    @classmethod
    def here(cls) -> Machine:
        """The machine that runs this."""
        return cls(system=_system(platform.system()), architecture=_architecture(platform.machine()))


def load_settings(
    table: Mapping[str, Any],
    *,
    hook: Mapping[str, Any] | None = None,
    hook_place: str = HOOK_PLACE,
    environ: Mapping[str, str],
    state: State,
    machine: Machine | None = None,
) -> Settings:
    """The settings of one run, from all layers.

    Args:
        table: `[tool.epctx]`, see `project.read_project`.
        hook: the hook's own table, with or without hatch's own keys.
        hook_place: where that table stands, for messages.
        environ: environment variables, for EPCTX_* and for conditions.
        state: what is being built.
        machine: the machine that builds; this one when left out.

    Raises:
        ConfigError: everything that is wrong with the layers that count, at once: unknown keys, wrong types and
            values, keys that this version cannot serve. Files are not looked at.
    """
    errors: list[ConfigError] = []
    environment = Environment()
    try:
        environment = read_environment(environ)
    except ConfigError as error:
        errors.append(error)
    own = {key: value for key, value in (hook or {}).items() if key not in HATCH_KEYS}
    base = (Layer(place=TABLE_PLACE, table=table), Layer(place=hook_place, table=own))
    applied = Layers(tuple(_without(layer, _OVERRIDES) for layer in base))
    others = []
    for layer, condition in _overrides(base, errors):
        if _holds(condition, environ, state, machine or Machine.here()):
            applied = applied.over(layer)
        else:
            others.append(layer)
    settings, wrong = _read(applied)
    errors += wrong
    for layer in others:
        errors += _only_new(applied, layer)
    raise_all(errors)
    settings = cast("Settings", settings)  # without errors there are settings
    settings._environment = environment  # private to pydantic, not to this package
    settings._layers = applied
    settings._conditional = bool(others)
    return settings


def _without(layer: Layer, key: str) -> Layer:
    return Layer(place=layer.place, table={name: value for name, value in layer.table.items() if name != key})


def _overrides(layers: Iterable[Layer], errors: list[ConfigError]) -> Iterator[tuple[Layer, Condition]]:
    """Each override's table with its condition, in order; what is wrong goes to `errors`."""
    for layer in layers:
        place = f"{layer.place}.{_OVERRIDES}"
        entries = layer.table.get(_OVERRIDES, [])
        if not isinstance(entries, (list, tuple)):
            remedy = f"Write [[{place}]]."
            errors.append(_bad(f"found {toml_type(entries)}", place, "an array of tables", remedy))
            continue
        for position, entry in enumerate(entries):
            if (override := _override(entry, f"{place}[{position}]", errors)) is not None:
                yield override


def _override(entry: Any, place: str, errors: list[ConfigError]) -> tuple[Layer, Condition] | None:
    """One override's table and condition; its further keys are read later, merged over the rest."""
    if not isinstance(entry, dict):
        errors.append(_bad(f"found {toml_type(entry)}", place, "a table"))
        return None
    try:
        condition = Override.model_validate(entry).if_
    except ValidationError as error:
        layers = Layers((Layer(place=place, table=entry),))
        errors += findings(error, Override, layers)
        return None
    if not condition.model_fields_set:
        remedy = "Give one of platform-system, platform-machine, env, state, or write the keys without a condition."
        errors.append(_bad("the condition is empty", f"{place}.if", remedy=remedy))
        return None
    if _OVERRIDES in entry:
        errors.append(_bad("an override holds overrides", place, remedy="Write them side by side."))
        return None
    return _without(Layer(place=place, table=entry), "if"), condition


def _bad(found: str, where: str, expected: str = "", remedy: str = "") -> ConfigError:
    return ConfigError(found, where=where, expected=expected, remedy=remedy, reason="bad-value")


def _read(layers: Layers) -> tuple[Settings | None, list[ConfigError]]:
    try:
        return Settings.model_validate(layers.merged()), []
    except ValidationError as error:
        return None, findings(error, Settings, layers)


def _only_new(applied: Layers, override: Layer) -> list[ConfigError]:
    """What is wrong once `override` is merged over the rest and was not wrong before."""
    known = {str(error) for error in _read(applied)[1]}
    return [error for error in _read(applied.over(override))[1] if str(error) not in known]


def _holds(condition: Condition, environ: Mapping[str, str], state: State, machine: Machine) -> bool:
    tests = [
        condition.platform_system is None or _any(map(_system, condition.platform_system), machine.system),
        condition.platform_machine is None
        or _any(map(_architecture, condition.platform_machine), machine.architecture),
        condition.state is None or state in condition.state,
        *(_variable_holds(environ.get(name, ""), test) for name, test in condition.env.items()),
    ]
    return all(tests)


def _variable_holds(value: str, test: str | bool) -> bool:  # noqa: FBT001  # TOML's own boolean
    if isinstance(test, bool):
        return (value.strip().lower() not in _FALSE) is test
    return fnmatchcase(value, test)


def _any(patterns: Iterable[str], word: str) -> bool:
    return any(fnmatchcase(word, pattern) for pattern in patterns)


def _system(word: str) -> str:
    return _SYSTEMS.get(word.lower(), word.lower())


def _architecture(word: str) -> str:
    return _MACHINES.get(word.lower(), word.lower())
