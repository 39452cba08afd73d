"""Execution providers (EPs): what the build knows of each, and how a target's options are read.

`find_provider` and `check_options` are all that other modules need; EPs are data (`Provider`), and nothing outside
this package asks which one it has. Distributions add EPs through the entry-point group ``hatch_epctx.providers``:

    [project.entry-points."hatch_epctx.providers"]
    acme = "acme_epctx:PROVIDER"
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from hatch_epctx.errors import ConfigError
from hatch_epctx.providers.base import (
    Contradiction,
    Kind,
    OpPackage,
    Option,
    OptionValue,
    Phase,
    Provider,
    SdkVersion,
    table,
)
from hatch_epctx.providers.check import OptionErrors, check_device, check_options
from hatch_epctx.providers.openvino import OPENVINO, OPENVINO_AUTO
from hatch_epctx.providers.others import OTHERS
from hatch_epctx.providers.qnn import QNN
from hatch_epctx.providers.values import canonical_json, close_match

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint

__all__ = [
    "GROUP",
    "Contradiction",
    "Kind",
    "OpPackage",
    "Option",
    "OptionErrors",
    "OptionValue",
    "Phase",
    "Provider",
    "SdkVersion",
    "all_providers",
    "canonical_json",
    "check_device",
    "check_options",
    "find_provider",
    "table",
]

GROUP = "hatch_epctx.providers"
"""Entry-point group of EPs that other distributions bring."""

_OWN: tuple[Provider, ...] = (OPENVINO, QNN, *OTHERS, OPENVINO_AUTO)


def all_providers() -> tuple[Provider, ...]:
    """Every known EP: the project's own first, then those of entry points, sorted by key.

    Raises:
        ConfigError: an entry point does not load, or its EP takes a name that another one has.
    """
    return (*_OWN, *_foreign())


def find_provider(name: str, *, where: str = "") -> Provider:
    """The EP with this short name or full registered name; case counts.

    Entry points are looked at only when none of the project's own EPs has the name.

    Args:
        name: such as "openvino" or "OpenVINOExecutionProvider".
        where: dotted place of the name, for the message.

    Raises:
        ConfigError: no EP has this name, or an entry point does not load.
    """
    for provider in _OWN:
        if name in _names(provider):
            return provider
    for provider in _foreign():
        if name in _names(provider):
            return provider
    known = all_providers()
    keys = [provider.key for provider in known if provider.epcontext or provider.cache]
    spellings = (*(provider.key for provider in known), *(name for provider in known for name in provider.names))
    raise ConfigError(
        f"unknown execution provider {name!r}",
        where=where,
        expected=f"one of {', '.join(keys)}, or a full registered name",
        remedy=close_match(name, spellings),
        reason="unknown-ep",
    )


def _names(provider: Provider) -> tuple[str, ...]:
    return (provider.key, *provider.names)


@cache
def _foreign() -> tuple[Provider, ...]:
    """EPs of entry points, loaded once per process."""
    from importlib import metadata  # noqa: PLC0415  # 30 ms that most builds do not need

    found: dict[str, Provider] = {}
    taken = {name for provider in _OWN for name in _names(provider)}
    for point in sorted(set(metadata.entry_points(group=GROUP)), key=lambda point: (point.name, point.value)):
        provider = _load(point)
        if provider.key in found and found[provider.key] == provider:
            continue
        if clash := next((name for name in _names(provider) if name in taken), ""):
            raise ConfigError(
                f"the entry point {point.name} = {point.value} of group {GROUP} brings an EP named {clash!r}, which"
                " another EP has",
                remedy="Uninstall one of the distributions.",
                reason="duplicate-ep",
            )
        taken.update(_names(provider))
        found[provider.key] = provider
    return tuple(found[key] for key in sorted(found))


def _load(point: EntryPoint) -> Provider:
    place = f"the entry point {point.name} = {point.value} of group {GROUP}"
    remedy = "Uninstall or mend the distribution that brings it."
    try:
        provider = point.load()
    except Exception as error:
        found = f"{place} does not load: {type(error).__name__}: {error}"
        raise ConfigError(found, remedy=remedy, reason="broken-entry-point") from error
    if not isinstance(provider, Provider):
        raise ConfigError(
            f"{place} is {type(provider).__name__}",
            expected="a hatch_epctx.providers.Provider",
            remedy=remedy,
            reason="broken-entry-point",
        )
    if problem := _inconsistent(provider):
        raise ConfigError(f"{place}: {problem}", remedy=remedy, reason="broken-entry-point")
    return provider


def _inconsistent(provider: Provider) -> str:
    """What makes a record unusable, or an empty string."""
    tables: Iterable[tuple[str, Option]] = provider.options.items()
    problems = (
        (not provider.key or not provider.names, "the EP has no name"),
        (not provider.devices, "the EP has no device"),
        (not provider.epcontext and not provider.epcontext_reason, "no reason why it writes no EPContext models"),
        (any(name != option.name for name, option in tables), "an option stands under another name than its own"),
        (not provider.defaults.keys() <= provider.options.keys(), "a default is no option"),
        (not set(provider.needs_any) <= provider.options.keys(), "an option that it needs is no option"),
    )
    return next((text for wrong, text in problems if wrong), "")
