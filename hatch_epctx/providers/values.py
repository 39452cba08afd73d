"""Reading one option's value: TOML value in, the EP's text out.

Each kind of `Option` has one reader. Files are read here and nowhere else in `providers/`: a JSON file is inlined,
so that its content and not its path stands in the identity.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hatch_epctx.errors import ConfigError
from hatch_epctx.providers.base import OpPackage, OptionValue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hatch_epctx.providers.base import Option

__all__ = ["JSON_LIMIT", "canonical_json", "close_match", "read_value", "shown"]

JSON_LIMIT = 1 << 20
"""Bytes of a JSON file that is inlined into an option."""
JSON_DEPTH = 16
"""Levels of nested tables in a JSON option."""

_PACKAGE = re.compile(
    r"(?P<operator>\w+):(?P<library>[^:,]+):(?P<interface>[A-Za-z_]\w*)(?::(?P<target>CPU|HTP))?\Z", re.ASCII
)
_PACKAGES = "'OPERATOR:LIBRARY:INTERFACE', with ':CPU' or ':HTP' behind it or without, or an array of them"
_INTEGER = re.compile(r"[+-]?\d{1,19}\Z")
_LFS = b"version https://git-lfs.github.com/spec/"
_SHOWN = 12
"""Values up to this number are listed in a message."""


def shown(value: object) -> str:
    """A value as a message has it: quoted text, TOML's booleans, long ones cut."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def close_match(word: str, known: Iterable[str]) -> str:
    """Like `suggest`, but letters of the wrong case and '-' for '_' are no distance; of equals the first one counts."""
    folded: dict[str, str] = {}
    for name in known:
        folded.setdefault(_folded(name), name)
    close = get_close_matches(_folded(word), folded, n=1)
    return f"Did you mean {folded[close[0]]!r}?" if close else ""


def _folded(name: str) -> str:
    return name.casefold().replace("-", "_")


def canonical_json(value: object) -> str:
    """JSON text with sorted keys and without white space: one text for one meaning.

    Raises:
        ValueError: the value holds what JSON cannot say (NaN, a date, a key that is no string) or nests too deep.
    """
    _check_json(value, 0)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def read_value(option: Option, value: object, *, where: str, root: Path | None) -> OptionValue:
    """The value of `option` as the EP receives it.

    Args:
        option: entry of the EP's table.
        value: what TOML or the command line gave.
        where: dotted place, for messages.
        root: what paths are relative to; the current folder when None.

    Raises:
        ConfigError: the value does not fit the table, or its file is not there.
    """
    return _Reader(option, where, root or Path()).read(value)


@dataclass(frozen=True, slots=True)
class _Reader:
    option: Option
    where: str
    root: Path

    def read(self, value: object) -> OptionValue:
        if isinstance(value, str) and "\0" in value:
            raise self._error("the value holds a NUL character")
        kind = self.option.kind
        if kind in ("json", "json-or-file"):
            return self._json(value)
        if kind in ("file", "folder"):
            return self._path(value)
        if kind == "op-packages":
            return self._packages(value)
        readers = {"bool": self._bool, "int": self._int, "float": self._float, "enum": self._enum}
        return self._value(readers.get(kind, self._string)(value))

    def _value(self, text: str, *, file: Path | None = None, folder: Path | None = None) -> OptionValue:
        option = self.option
        return OptionValue(name=option.name, text=text, kind=option.kind, phase=option.phase, file=file, folder=folder)

    def _error(
        self, found: str, *, expected: str = "", remedy: str = "", reason: str = "bad-option-value"
    ) -> ConfigError:
        return ConfigError(found, where=self.where, expected=expected, remedy=remedy, reason=reason)

    def _unknown(self, value: object, expected: str) -> ConfigError:
        found = f"unknown value {shown(value)}" if isinstance(value, str) else f"found {_type(value)}"
        known = tuple(self.option.aliases) + self.option.values
        remedy = close_match(value, known) if isinstance(value, str) else ""
        return self._error(found, expected=self.option.expected or expected, remedy=remedy)

    def _string(self, value: object) -> str:
        if isinstance(value, str):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return _number(value)
        raise self._error(f"found {_type(value)}", expected=self.option.expected or "a string")

    def _bool(self, value: object) -> str:
        false, true = self.option.values or ("0", "1")
        text = str(value).lower() if isinstance(value, (bool, int, str)) else ""
        if text in ("1", "true", true.lower()):
            return true
        if text in ("0", "false", false.lower()):
            return false
        found = f"unknown value {shown(value)}" if isinstance(value, (str, int)) else f"found {_type(value)}"
        raise self._error(found, expected="true or false")

    def _int(self, value: object) -> str:
        low, high = self.option.minimum, self.option.maximum
        if isinstance(value, str) and value in self.option.values:
            return value
        number = _integer(value)
        if number is None or (low is not None and number < low) or (high is not None and number > high):
            found = f"found {shown(value)}" if isinstance(value, (str, int, float)) else f"found {_type(value)}"
            words = "".join(f", or {word!r}" for word in self.option.values)
            raise self._error(found, expected=self.option.expected or f"an integer{_range(low, high)}{words}")
        return str(number)

    def _float(self, value: object) -> str:
        low, high = self.option.minimum, self.option.maximum
        try:
            number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or (low is not None and number < low) or (high is not None and number > high):
            found = f"found {shown(value)}" if isinstance(value, (str, int, float)) else f"found {_type(value)}"
            raise self._error(found, expected=self.option.expected or f"a number{_range(low, high)}")
        return _number(number)

    def _enum(self, value: object) -> str:
        text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else None
        if text is not None and text in self.option.values:
            return text
        if text is not None and (alias := self.option.aliases.get(text.casefold())) is not None:
            return alias
        raise self._unknown(value if text is None else text, _listed(self.option.values))

    def _json(self, value: object) -> OptionValue:
        file: Path | None = None
        if isinstance(value, str) and self.option.kind == "json-or-file" and not value.lstrip().startswith(("{", "[")):
            file = self._existing(value)
            value = self._json_file(file)
        if isinstance(value, str):
            value = self._parsed(value, file)
        if not isinstance(value, Mapping):
            raise self._error(f"found {_type(value)}", expected=self._json_expected())
        try:
            return self._value(canonical_json(dict(value)), file=file)
        except ValueError as error:
            raise self._error(str(error), expected="what JSON can say") from error

    def _json_expected(self) -> str:
        paths = ", or the path of a JSON file" if self.option.kind == "json-or-file" else ""
        return f"a table, or JSON text of an object{paths}"

    def _json_file(self, path: Path) -> str:
        try:
            with path.open("rb") as stream:
                data = stream.read(JSON_LIMIT + 1)
        except OSError as error:
            found = f"the file {path} cannot be read: {error.strerror}"
            raise self._error(found, reason="missing-option-file") from error
        if len(data) > JSON_LIMIT:
            raise self._error(f"the file {path} is too large", expected=f"at most {JSON_LIMIT} bytes of JSON")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise self._error(f"the file {path} is not UTF-8 text", expected="a JSON file") from error

    def _parsed(self, text: str, file: Path | None) -> object:
        source = f"the file {file} is not JSON" if file else "the text is not JSON"
        try:
            return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        except json.JSONDecodeError as error:
            found = f"{source}: {error.msg}, line {error.lineno}, column {error.colno}"
            raise self._error(found, expected=self._json_expected()) from error
        except (ValueError, RecursionError) as error:
            raise self._error(f"{source}: {error}", expected=self._json_expected()) from error

    def _path(self, value: object) -> OptionValue:
        if not isinstance(value, str):
            raise self._error(f"found {_type(value)}", expected=f"the path of a {self.option.kind}")
        path = self._existing(value)
        if self.option.kind == "folder":
            return self._value(value, folder=path)
        return self._value(value, file=path)

    def _packages(self, value: object) -> OptionValue:
        texts = value.split(",") if isinstance(value, str) else value
        if not isinstance(texts, (list, tuple)) or not texts or not all(isinstance(text, str) for text in texts):
            raise self._error(f"found {shown(value)}", expected=_PACKAGES)
        packages = tuple(self._package(text.strip()) for text in texts)
        text = ",".join(text.strip() for text in texts)
        return replace(self._value(text), packages=packages)

    def _package(self, text: str) -> OpPackage:
        match = _PACKAGE.match(text)
        if match is None:
            raise self._error(f"found {shown(text)}", expected=_PACKAGES)
        return OpPackage(
            operator=match["operator"],
            library=self._existing(match["library"].strip()),
            interface=match["interface"],
            target=match["target"] or "",
        )

    def _existing(self, text: str) -> Path:
        """The file or folder that `text` names. Links count as what they lead to."""
        wanted = "folder" if self.option.kind == "folder" else "file"
        if not text.strip():
            raise self._error("the path is empty", expected=f"the path of a {wanted}")
        path = self.root / text
        is_there = path.is_dir() if wanted == "folder" else path.is_file()
        if not is_there:
            state = f"is no {wanted}" if path.exists() else "does not exist"
            remedy = "Paths of options are relative to the project root." if not Path(text).is_absolute() else ""
            raise self._error(
                f"the {wanted} {text!r} of option {self.option.name!r} {state}: {path.absolute()}",
                remedy=remedy,
                reason="missing-option-file",
            )
        if wanted == "file":
            self._refuse_pointer(path, text)
        return path

    def _refuse_pointer(self, path: Path, text: str) -> None:
        try:
            with path.open("rb") as stream:
                head = stream.read(len(_LFS))
        except OSError as error:
            found = f"the file {text!r} cannot be read: {error.strerror}"
            raise self._error(found, reason="missing-option-file") from error
        if head == _LFS:
            raise self._error(
                f"the file {text!r} is a Git LFS pointer, not the file itself",
                remedy="Run 'git lfs pull' in the repository.",
                reason="lfs-pointer",
            )


def _check_json(value: object, depth: int) -> None:
    if depth > JSON_DEPTH:
        raise ValueError(f"tables nest deeper than {JSON_DEPTH} levels")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r} is no string")  # noqa: TRY004  # one class for all that JSON lacks
            _check_json(inner, depth + 1)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_json(inner, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no JSON number")
    elif value is not None and not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r} is nothing that JSON has")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ: of two equal keys JSON readers take the one or the other."""
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return result


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and _INTEGER.match(value.strip()) else None


def _number(value: float) -> str:
    """The one spelling of a number: whole ones without a point."""
    return str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) < 2**53 else repr(value)


def _range(low: int | None, high: int | None) -> str:
    if low is not None and high is not None:
        return f" from {low} to {high}"
    if low is not None:
        return f" of at least {low}"
    return f" of at most {high}" if high is not None else ""


def _listed(values: tuple[str, ...]) -> str:
    return f"one of {', '.join(values)}" if len(values) <= _SHOWN else f"one of {len(values)} known values"


def _type(value: object) -> str:
    """What TOML calls the type of `value`, with its article."""
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    names: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (int, "an integer"),
        (float, "a number"),
        (str, "a string"),
        (Mapping, "a table"),
        ((list, tuple), "an array"),
    )
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)
