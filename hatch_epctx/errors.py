"""The one error family of hatch-epctx.

Library code raises subclasses of `EpctxError` and never exits; the command line and the build hooks turn them
into a message and an exit code. A message says where, what was found, what was expected and what to do:

    tool.epctx.targets.laptop.ep: unknown execution provider 'QNM'; expected one of openvino, qnn. Did you mean 'qnn'?

Exit codes: 1 is a bug (any other exception), the rest stand on the classes below.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "CompileError",
    "ConfigError",
    "EpctxError",
    "LookupFailure",
    "ModelError",
    "StoreError",
    "ToolchainError",
    "VerificationError",
    "suggest",
]


class EpctxError(Exception):
    """Base of every error that a user can cause or meet.

    Attributes:
        where: the place: a dotted configuration path, a file, a variant. Empty when there is none.
        found: what is wrong there, a clause without a full stop.
        expected: what would have been right, a clause that reads after "expected". May be empty.
        remedy: what to do, one or more whole sentences. May be empty.
        reason: a stable word for programs, such as "unknown-option"; never shown alone.
        detail: further lines (a log tail, a list of candidates), shown below the message.
        facts: figures behind the message, for reports; empty for most. They do not cross processes.
    """

    exit_code: ClassVar[int] = 1
    facts: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        found: str,
        *,
        where: str = "",
        expected: str = "",
        remedy: str = "",
        reason: str = "",
        detail: str = "",
    ) -> None:
        self.where = where
        self.found = found
        self.expected = expected
        self.remedy = remedy
        self.reason = reason
        self.detail = detail
        super().__init__(found)

    def __str__(self) -> str:
        text = f"{self.where}: {self.found}" if self.where else self.found
        if self.expected:
            text += f"; expected {self.expected}"
        if self.remedy:
            text += f". {self.remedy}"
        if self.detail:
            text += "\n" + self.detail
        return text

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process pools; the default would lose the keyword-only attributes.
        return (_rebuild, (type(self), self.found, self._keywords()))

    def _keywords(self) -> dict[str, str]:
        names = ("where", "expected", "remedy", "reason", "detail")
        return {name: getattr(self, name) for name in names}


def _rebuild(kind: type[EpctxError], found: str, keywords: dict[str, str]) -> EpctxError:
    return kind(found, **keywords)


class ConfigError(EpctxError):
    """The configuration is wrong."""

    exit_code = 2


class ModelError(EpctxError):
    """A source model or its external data is missing, broken or unfit."""

    exit_code = 3


class ToolchainError(EpctxError):
    """An EP, ONNX Runtime or a required distribution is missing or unfit."""

    exit_code = 4


class CompileError(EpctxError):
    """A compile failed, or its result did not pass validation or the load check."""

    exit_code = 5


class StoreError(EpctxError):
    """The store cannot be used: permissions, space, a lock that nobody gave up."""

    exit_code = 6


class LookupFailure(EpctxError):
    """No variant fits this machine; `detail` lists every candidate with its first reason."""

    exit_code = 7


class VerificationError(EpctxError):
    """Bytes are not what a manifest or a lock says."""

    exit_code = 8


def suggest(word: str, known: Iterable[str]) -> str:
    """Return "Did you mean 'x'?" for the closest of `known`, or an empty string."""
    from difflib import get_close_matches  # noqa: PLC0415  # the look-up imports this module and must start fast

    close = get_close_matches(word, list(known), n=1)
    return f"Did you mean {close[0]!r}?" if close else ""
