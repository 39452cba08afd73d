"""Which variants of a model fit this machine, in order of preference, and why the others do not.

Order: what the user or the caller names first (see `preference`); variants on real hardware before simulated ones;
device types as a policy has them; EPs as the manifest first declares them; within one EP by the EP's own verdict; then
as declared, the package's own before its companions'. ORT's model package ranks within one EP alone, in the same way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hatch_epctx.errors import LookupFailure
from hatch_epctx.runtime import plugins
from hatch_epctx.runtime.choice import Rejection
from hatch_epctx.runtime.fit import Fit, device_type, fit
from hatch_epctx.runtime.preference import Preference
from hatch_epctx.runtime.versions import differences

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onnxruntime.capi.onnxruntime_pybind11_state import OrtEpDevice

    from hatch_epctx.manifest import Variant
    from hatch_epctx.runtime.folders import Folder, Held

__all__ = ["Candidate", "Wish", "candidates", "device_for", "remedies", "source_of"]

_DISTRIBUTION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?\Z")
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+!_-]{0,60}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the caller asked for; None is anything."""

    ep: str | None = None
    """Registered name."""
    device: str | None = None
    variant: str | None = None
    unverified: bool = False
    """Variants without digests will do."""
    preference: Preference = field(default_factory=Preference)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A variant that may be tried, and the device that would run it."""

    variant: Variant
    folder: Folder
    fit: Fit
    device: str
    ep_device: OrtEpDevice | None
    differences: str = ""
    """Versions that differ from those of the compile."""


class _Rejected(Exception):  # control flow inside this module
    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


def candidates(held: Iterable[Held], wish: Wish) -> tuple[list[Candidate], list[Rejection]]:
    """Fitting variants, best first, and the rejected ones as declared. Source variants only where asked for."""
    fitting: list[tuple[tuple[int | bool, ...], Candidate]] = []
    rejected: list[Rejection] = []
    order: dict[str, int] = {}
    for index, item in enumerate(held):
        rank = order.setdefault(item.variant.ep, len(order))
        try:
            candidate = _judge(item, wish)
        except _Rejected as no:
            package = item.folder.companion
            rejected.append(Rejection(variant=item.variant.name, reason=no.reason, text=no.text, package=package))
            continue
        if candidate is not None:
            fitting.append(((*_preferred(candidate, wish.preference), rank, -candidate.fit.score, index), candidate))
    fitting.sort(key=lambda ranked: ranked[0])
    return [candidate for _, candidate in fitting], rejected


def _preferred(candidate: Candidate, preference: Preference) -> tuple[int | bool, ...]:
    """Ranks by what was wished for: named ones first, a simulator last, then by the policy's device types."""
    variant = candidate.variant
    named = preference.rank(variant.name, variant.ep, _devices(variant, candidate.device))
    return named, candidate.fit.simulated, preference.policy_rank(candidate.device)


def _devices(variant: Variant, device: str | None = None) -> set[str]:
    """Device types that mean the variant: its target's, and that of the device which would run it."""
    return {kind for kind in (_target_device(variant), device) if kind is not None}


def source_of(held: Iterable[Held], preference: Preference) -> Candidate | None:
    """The shipped source model, for the CPU EP, unless it is ruled out."""
    for item in held:
        variant = item.variant
        if _is_source(variant) and not item.folder.fault:
            excluded = preference.excluded_by(variant.name, variant.ep, _devices(variant, "cpu"))
            return None if excluded else _on_cpu(item)
    return None


def device_for(item: Held, wish: Wish) -> OrtEpDevice | None:
    """The device that would run a variant, whatever else is against it.

    Raises:
        LookupFailure: there is none after all.
    """
    try:
        return _pick(item.variant, wish, plugins.devices(item.variant.ep))
    except (plugins.Missing, _Rejected) as no:
        raise LookupFailure(no.text, reason=no.reason) from no


def remedies(held: Iterable[Held], rejected: Iterable[Rejection]) -> str:
    """The pip commands that would bring the EPs that are missing; empty when none is."""
    missing = {rejection.variant for rejection in rejected if rejection.reason == "missing-ep"}
    commands = [_pip(item.variant) for item in held if item.variant.name in missing]
    known = list(dict.fromkeys(command for command in commands if command))
    return f"Install an EP that it was compiled for: {' or '.join(known)}." if known else ""


def _is_source(variant: Variant) -> bool:
    return variant.facts is not None and variant.facts.kind == "source"


def _on_cpu(item: Held) -> Candidate:
    return Candidate(variant=item.variant, folder=item.folder, fit=Fit(), device="cpu", ep_device=None)


def _judge(item: Held, wish: Wish) -> Candidate | None:
    """The candidate; None for a source variant that nobody asked for.

    Raises:
        _Rejected: the first reason against it.
    """
    variant = item.variant
    if _is_source(variant) and not _asks_for_source(variant, wish):
        return None
    _check_wish(variant, wish)
    if item.folder.fault:
        raise _Rejected("version-mismatch", item.folder.fault)
    if variant.facts is None and not wish.unverified:
        raise _Rejected("unverifiable", "records no digests (made by another tool); verify='never' opens it")
    if variant.ep == plugins.CPU:
        return _on_cpu(item)
    plugin = plugins.known(variant.ep)
    try:
        found = plugins.devices(variant.ep)
    except plugins.Missing as missing:
        raise _Rejected(missing.reason, _missing_text(variant, missing)) from missing
    device = _pick(variant, wish, found)
    verdict = fit(plugin, device, _compatibility(variant))
    if verdict.reason:
        raise _Rejected(verdict.reason, verdict.text)
    if verdict.simulated and variant.facts and variant.facts.group.get("shared"):
        # onnxruntime-qnn 2.7.0 ends the process there.
        raise _Rejected("not-simulated", "shares its context binary with other models, which no simulator opens")
    recorded = variant.facts.runtime if variant.facts else {}
    return Candidate(
        variant=variant,
        folder=item.folder,
        fit=verdict,
        device=device_type(device) if device is not None else _target_device(variant) or "cpu",
        ep_device=device,
        differences=differences(recorded, plugin, device),
    )


def _asks_for_source(variant: Variant, wish: Wish) -> bool:
    return wish.variant == variant.name or wish.ep == variant.ep or wish.preference.names(variant.name)


def _check_wish(variant: Variant, wish: Wish) -> None:
    if wish.variant is not None and variant.name != wish.variant:
        raise _Rejected("not-asked", f"the variant {wish.variant} was asked for")
    if wish.ep is not None and variant.ep != wish.ep:
        raise _Rejected("not-asked", f"is for {variant.ep}; {wish.ep} was asked for{plugins.likely(wish.ep)}")
    target = _target_device(variant)
    if wish.device is not None and target is not None and target != wish.device:
        raise _Rejected("not-asked", f"is for the device {target}; {wish.device} was asked for")
    if word := wish.preference.excluded_by(variant.name, variant.ep, _devices(variant)):
        raise _Rejected("excluded", f"is ruled out by {word}")


def _target_device(variant: Variant) -> str | None:
    return variant.device or (variant.facts.device if variant.facts else None)


def _compatibility(variant: Variant) -> str:
    return (variant.facts.compatibility if variant.facts else "") or variant.compatibility_string or ""


def _pick(variant: Variant, wish: Wish, found: tuple[OrtEpDevice, ...]) -> OrtEpDevice | None:
    """The device to run on: of the type that the manifest demands; else of the target's type if there is one."""
    if not found:
        return None
    demanded = variant.device or (wish.device if _target_device(variant) is None else None)
    wanted = demanded or _target_device(variant)
    matching = [device for device in found if device_type(device) == wanted]
    if demanded and not matching:
        have = ", ".join(sorted({device_type(device) for device in found}))
        raise _Rejected("no-device", f"needs a device of type {demanded} for {variant.ep}; found {have}")
    return (matching or list(found))[0]


def _missing_text(variant: Variant, missing: plugins.Missing) -> str:
    if missing.reason != "missing-ep":
        return missing.text
    command = _pip(variant)
    there = ", ".join(plugins.present())
    return f"{missing.text}; there is {there}" + (f". Install it: {command}" if command else "")


def _pip(variant: Variant) -> str:
    """The command that installs the variant's EP.

    The manifest's own words go into it only when they are a plain name and version.
    """
    plugin = plugins.known(variant.ep)
    recorded = variant.facts.runtime if variant.facts else {}
    name, version = str(recorded.get("distribution", "")), str(recorded.get("version", ""))
    distribution = plugin.distribution or name
    if not _DISTRIBUTION.match(distribution):
        return ""
    if name == distribution and _VERSION.match(version):
        return f'pip install "{distribution}{plugin.pin}{version}"'
    return f"pip install {distribution}"
