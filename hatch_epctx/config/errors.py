"""From pydantic's findings to this project's messages, and several errors in one.

Every finding names the dotted place, what was found, what was expected and what to do:

    tool.epctx.targets.laptop: unknown key 'provider_options'; expected one of ep, device, .... Did you mean
    'provider-options'?
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hatch_epctx.config.fields import known_keys, summary
from hatch_epctx.config.layers import NOTHING, step
from hatch_epctx.errors import ConfigError, suggest
from hatch_epctx.providers import OptionErrors

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from hatch_epctx.config.base import Table
    from hatch_epctx.config.layers import Layers

__all__ = ["ConfigErrors", "findings", "raise_all", "toml_type"]

_TYPES: Mapping[str, str] = {
    "string_type": "a string",
    "bool_type": "true or false",
    "int_type": "an integer",
    "float_type": "a number",
    "dict_type": "a table",
    "model_type": "a table",
    "tuple_type": "an array",
    "invalid-json-value": "a string, number, boolean, array or table",
}
"""Pydantic's finding of a wrong type, and what was expected."""
_BOUNDS: Mapping[str, str] = {
    "greater_than": "a number above",
    "greater_than_equal": "a number of at least",
    "less_than": "a number below",
    "less_than_equal": "a number of at most",
    "finite_number": "a finite number",
    "too_short": "at least one entry",
}
"""Pydantic's finding of a bound, and what was expected."""

Keys = tuple["str | int", ...]


class ConfigErrors(ConfigError):
    """Several errors of the configuration at once; `detail` lists them, one a line.

    Attributes:
        errors: each of them by itself.
    """

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        self.errors = tuple(errors)
        lines = "\n".join(str(error) for error in self.errors)
        super().__init__(f"{len(self.errors)} errors in the configuration", reason="several", detail=lines)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.errors,))


def raise_all(errors: Iterable[ConfigError]) -> None:
    """Raise the one error, or all of them as one; nothing when there is none. The same text is said once.

    Raises:
        ConfigError: there are errors.
    """
    several = (ConfigErrors, OptionErrors)
    flat = [single for error in errors for single in (error.errors if isinstance(error, several) else (error,))]
    unique = list({str(error): error for error in flat}.values())
    if len(unique) == 1:
        raise unique[0]
    if unique:
        raise ConfigErrors(unique)


def findings(error: ValidationError, model: type[Table], layers: Layers) -> list[ConfigError]:
    """Each finding of `error` at its place, in the order of the model's fields.

    Args:
        error: what pydantic found.
        model: the table that was validated.
        layers: what was validated, merged; they give keys their places.
    """
    data = layers.merged()
    details = error.errors(include_url=False)
    # An array with a bad entry is also "too short" for pydantic, once the entry is left out.
    told = [detail for detail in details if detail["type"] != "too_short" or not detail["input"]]
    return [_finding(detail, model, data, layers) for detail in told]


def toml_type(value: object) -> str:
    """What TOML calls the type of `value`, with its article."""
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a float"),
        (str, "a string"),
        (Mapping, "a table"),
        ((list, tuple), "an array"),
        ((dt.date, dt.time), "a date or time"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), type(value).__name__)


def _finding(detail: ErrorDetails, model: type[Table], data: Mapping[str, Any], layers: Layers) -> ConfigError:
    keys = _keys(detail, data)
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    where = layers.place(keys)
    if kind == "extra_forbidden":
        where = layers.place_of_table(keys)
        said = _unknown_key(str(keys[-1]), known_keys(model, keys[:-1])[0])
    elif kind == "missing":
        said = ("missing", summary(known_keys(model, keys)[1]), "")
    elif kind == "epctx":
        said = (context["found"], context["expected"], context["remedy"])
    elif kind == "literal_error":
        said = _unknown_value(value, str(context["expected"]))
    elif kind in _TYPES:
        said = (f"found {toml_type(value)}, {_shown(value)}", _TYPES[kind], _type_remedy(kind, value, where))
    elif kind in _BOUNDS:
        bound = next((f" {context[name]:g}" for name in ("gt", "ge", "lt", "le") if name in context), "")
        said = (f"found {_shown(value)}", f"{_BOUNDS[kind]}{bound}", "")
    else:
        said = (f"{detail['msg']} (found {_shown(value)})", "", "")
    found, expected, remedy = said
    reason = {"extra_forbidden": "unknown-key", "missing": "missing-key"}.get(kind, "bad-value")
    return ConfigError(found, where=where, expected=expected, remedy=remedy, reason=reason)


def _keys(detail: ErrorDetails, data: Mapping[str, Any]) -> Keys:
    """The location as keys of `data`: pydantic adds marks for a dictionary's key and for the branch of a union."""
    keys: list[str | int] = []
    node: Any = data
    for part in detail["loc"]:
        inner = step(node, part)
        if inner is not NOTHING:
            node = inner
            keys.append(part)
    if detail["type"] == "missing":
        keys.append(detail["loc"][-1])
    return tuple(keys)


def _unknown_key(key: str, known: Sequence[str]) -> tuple[str, str, str]:
    spelled = key.replace("_", "-").lower()
    remedy = f"Did you mean {spelled!r}?" if spelled in known else suggest(spelled, known)
    return f"unknown key {key!r}", f"one of {', '.join(known)}" if known else "", remedy


def _unknown_value(value: object, expected: str) -> tuple[str, str, str]:
    known = expected.replace(" or ", ", ").replace("'", "").split(", ")
    if not isinstance(value, str):
        return f"found {toml_type(value)}, {_shown(value)}", f"one of {', '.join(known)}", ""
    spelled = value.replace("_", "-").lower()
    remedy = f"Did you mean {spelled!r}?" if spelled in known else suggest(spelled, known)
    return f"unknown value {value!r}", f"one of {', '.join(known)}", remedy


def _type_remedy(kind: str, value: object, where: str) -> str:
    if kind == "dict_type" and isinstance(value, list | tuple):
        return f"Give each a name and a table of its own: [{where}.NAME]."
    if not isinstance(value, str):
        return f'Write "{value}", in quotes.' if kind == "string_type" and type(value) in (int, float) else ""
    boolean = kind == "bool_type" and value.strip().lower() in {"true", "false"}
    number = kind in {"int_type", "float_type"} and value.strip().lstrip("-").replace(".", "", 1).isdigit()
    plain = f"Write {value.strip().lower()} without quotes." if boolean or number else ""
    return f"Write [{value!r}]." if kind == "tuple_type" else plain


def _shown(value: object) -> str:
    """A short spelling of `value`, as TOML has it where that is simple."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
