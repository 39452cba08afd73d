"""Which of several fitting variants goes first: the caller's words, a device policy, and what the user says.

`EPCTX_PREFER` is the user's word and goes over the application's: on a machine whose NPU driver misbehaves,
``EPCTX_PREFER=!npu`` keeps every application off it. One grammar serves both: words by commas or spaces, each

- a device policy by ONNX Runtime's name (``PREFER_NPU``, ``MAX_EFFICIENCY``, ...; ``-`` for ``_``, in any case);
- an EP by short or registered name, a device (``cpu``, ``gpu``, ``npu``), or a variant's name or glob: what matches
  an earlier word goes first;
- any of the latter after ``!``: what matches is not used at all.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hatch_epctx.errors import LookupFailure
from hatch_epctx.runtime.plugins import full_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["POLICIES", "VARIABLE", "Preference", "preference"]

VARIABLE: Final = "EPCTX_PREFER"

POLICIES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "DEFAULT": (),
        "PREFER_CPU": ("cpu",),
        "PREFER_GPU": ("gpu",),
        "PREFER_NPU": ("npu",),
        "MAX_PERFORMANCE": ("gpu", "npu", "cpu"),
        "MAX_EFFICIENCY": ("npu", "cpu", "gpu"),
        "MIN_OVERALL_POWER": ("npu", "cpu", "gpu"),
    }
)
"""ONNX Runtime's OrtExecutionProviderDevicePolicy and the order of device types that each stands for here; types that
are not named come last, as declared. ONNX Runtime itself takes the first type and then the CPU (1.32: PREFER_GPU for
MAX_PERFORMANCE, PREFER_NPU for the other two); a compiled GPU variant is tried here before nothing at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """An order of variants. Every rank is smaller for what goes first."""

    wanted: tuple[str, ...] = ()
    """EPs, devices, variant names and globs, the most wanted first."""
    unwanted: tuple[tuple[str, str], ...] = ()
    """What must not be used: word, and where it stands."""
    policy: str | None = None

    def rank(self, name: str, ep: str, devices: Iterable[str]) -> int:
        """Place of a variant among `wanted`; behind them all when none means it."""
        named = {name, *devices}
        return next((n for n, word in enumerate(self.wanted) if _means(word, named, ep)), len(self.wanted))

    def policy_rank(self, device: str) -> int:
        """Place of a device type in the policy's order."""
        order = POLICIES[self.policy or "DEFAULT"]
        return order.index(device) if device in order else len(order)

    def excluded_by(self, name: str, ep: str, devices: Iterable[str]) -> str:
        """A clause with the word that rules the variant out, empty when none does."""
        named = {name, *devices}
        return next((f"'!{word}' in {place}" for word, place in self.unwanted if _means(word, named, ep)), "")

    def names(self, variant: str) -> bool:
        """Whether one of the wanted words is the variant's very name."""
        return variant in self.wanted


def _means(word: str, named: set[str], ep: str) -> bool:
    return full_name(word) == ep or any(fnmatchcase(name, word) for name in named)


def preference(prefer: object, environ: Mapping[str, str] = os.environ) -> Preference:
    """The order that counts: the user's, where the environment has one; what the application excludes stays out.

    Args:
        prefer: None, text, a sequence of words, or a member of onnxruntime.OrtExecutionProviderDevicePolicy.
        environ: where `VARIABLE` is looked for.

    Raises:
        ValueError: a word of the caller that is empty, or has a policy's form without being one.
        TypeError: `prefer` is none of these.
        LookupFailure: reason bad-variable: such a word in the environment.
    """
    own = _parse(_words(prefer), "prefer")
    try:
        user = _parse(_split(environ.get(VARIABLE, "")), VARIABLE)
    except ValueError as error:
        raise LookupFailure(str(error), where=VARIABLE, remedy="Correct or unset it.", reason="bad-variable") from None
    speaks = bool(user.wanted) or user.policy is not None
    return replace(user if speaks else own, unwanted=(*user.unwanted, *own.unwanted))


def _words(prefer: object) -> list[str]:
    if prefer is None:
        return []
    if isinstance(prefer, str):
        return _split(prefer)
    name = getattr(prefer, "name", None)
    if isinstance(name, str):
        return [name]
    if not isinstance(prefer, (list, tuple)):
        raise TypeError(f"prefer is {type(prefer).__name__}; expected text, a sequence of it, or a device policy")
    for word in prefer:
        if not isinstance(word, str):
            raise TypeError(f"prefer has {word!r}; expected text")
    return list(prefer)


def _split(text: str) -> list[str]:
    return [word for word in re.split(r"[,\s]+", text) if word]


def _parse(words: list[str], place: str) -> Preference:
    wanted: list[str] = []
    unwanted: list[str] = []
    policy = None
    for word in words:
        name = word.replace("-", "_").upper()
        if name in POLICIES:
            policy = name
        elif re.match(r"(PREFER|MAX|MIN)_[A-Z_]+\Z", name):
            raise ValueError(f"{word!r} in {place} is no device policy; expected one of {', '.join(POLICIES)}")
        elif word.startswith("!"):
            unwanted.append(word[1:])
        else:
            wanted.append(word)
    if not all((*wanted, *unwanted)):
        raise ValueError(f"an empty word in {place}; expected EPs, devices, variants or a device policy")
    return Preference(wanted=tuple(wanted), unwanted=tuple((word, place) for word in unwanted), policy=policy)
