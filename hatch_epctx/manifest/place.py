"""Strict JSON with a memory of places, so that every complaint names the dotted place it is about."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from hatch_epctx.errors import VerificationError
from hatch_epctx.files import check_name, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Place"]

_KINDS: Final = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    type(None): "null",
    int: "an integer",
    float: "a number",
}

_SHOWN: Final = 80
"""Characters of a key that messages show."""
_LONGEST: Final = 500
"""Characters that messages say of what was found."""


class Place:
    """A value and where it stands; each method checks one thing or raises `VerificationError` with the place."""

    __slots__ = ("file", "path", "value")

    def __init__(self, value: Any, file: str, path: tuple[str, ...] = ()) -> None:
        self.value = value
        self.file = file
        self.path = path

    @classmethod
    def parse(cls, data: bytes, file: str, path: tuple[str, ...] = ()) -> Place:
        """Parse strict JSON (see `files.parse_json`)."""
        place = cls(None, file, path)
        try:
            place.value = parse_json(data)
        except ValueError as error:
            remedy = "It is damaged or was changed: build or install it again."
            place.fail(f"no valid JSON: {error}", remedy=remedy, reason="malformed-json")
        return place

    def fail(self, found: str, *, expected: str = "", remedy: str = "", reason: str = "malformed-manifest") -> NoReturn:
        """Raise the complaint."""
        where = f"{self.file}: {'.'.join(map(_key, self.path))}" if self.path else self.file
        if len(found) > _LONGEST:  # a value of megabytes, quoted
            found = f"{found[:_LONGEST]}..."
        raise VerificationError(found, where=where, expected=expected, remedy=remedy, reason=reason)

    def inside(self, key: str, value: Any = None) -> Place:
        """The place one step further in."""
        return Place(value, self.file, (*self.path, key))

    def members(self, required: Iterable[str] = ()) -> dict[str, Place]:
        """An object's members, `required` ones among them."""
        if not isinstance(self.value, dict):
            self.wrong("an object")
        for key in required:
            if key not in self.value:
                self.inside(key).fail("missing")
        return {key: self.inside(key, value) for key, value in self.value.items()}

    def fields(self, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Place]:
        """An object's members, with unknown ones refused as ORT does."""
        fields = self.members(required)
        known = {*required, *optional}
        for key, place in fields.items():
            if key not in known:
                place.fail("unknown field", expected=f"one of {', '.join(sorted(known))}", reason="unknown-field")
        return fields

    def named(self) -> dict[str, Place]:
        """A non-empty object whose keys are names that are safe in file names."""
        members = self.members()
        if not members:
            self.fail("empty", expected="at least one entry")
        for key, place in members.items():
            place._check_flat(key)
        return members

    def items(self) -> Iterator[Place]:
        """An array's items."""
        if not isinstance(self.value, list):
            self.wrong("an array")
        return (self.inside(str(index), item) for index, item in enumerate(self.value))

    def text(self) -> str:
        """A string without NUL."""
        if not isinstance(self.value, str):
            self.wrong("a string")
        if "\0" in self.value:
            self.fail("a NUL character in the text")
        return self.value

    def flag(self) -> bool:
        """A boolean."""
        if not isinstance(self.value, bool):
            self.wrong("a boolean")
        return self.value

    def one_of(self, words: tuple[str, ...]) -> str:
        """One of the given words."""
        if self.text() not in words:
            self.fail(f"found {self.value!r}", expected=f"one of {', '.join(words)}")
        return self.text()

    def flat(self) -> str:
        """The name of a file in this very folder."""
        return self._check_flat(self.text())

    def _check_flat(self, name: str) -> str:
        try:
            return check_name(name)
        except ValueError as error:
            self.fail(f"unsafe name {name!r} ({error})", expected="the name of a file in this folder", reason="escape")

    def strings(self) -> Mapping[str, str]:
        """An object whose values are strings."""
        return MappingProxyType({key: place.text() for key, place in self.members().items()})

    def free(self) -> Mapping[str, Any]:
        """A free-form object."""
        self.members()
        return MappingProxyType(self.value)

    def texts(self) -> Iterator[str]:
        """Every string inside the value, keys apart."""
        level = [self.value]
        while level:
            value = level.pop()
            if isinstance(value, (dict, list)):
                level.extend(value.values() if isinstance(value, dict) else value)
            elif isinstance(value, str):
                yield value

    def wrong(self, expected: str) -> NoReturn:
        """Complain about the value's type."""
        self.fail(f"found {_KINDS[type(self.value)]}", expected=expected)


def _key(key: str) -> str:
    """A key as messages show it: an attacker may have chosen it, to be huge or to drive a terminal."""
    shown = key if len(key) <= _SHOWN else f"{key[:_SHOWN]}..."
    return shown if shown.isprintable() else ascii(shown)[1:-1]
