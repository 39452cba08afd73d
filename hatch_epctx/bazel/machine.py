"""The machine that an EP bakes into its results: declared as an input of the action, verified where it executes.

Bazel's key of an action covers its inputs, not the CPU that happens to run it. So the facts of the machine that
stand in the identity (instruction set, visible cores and their topology, the device as the EP reports it) are a file
that the action reads, and an action that lands on any other machine fails before it compiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hatch_epctx import compile as compiling
from hatch_epctx.errors import ConfigError, ToolchainError
from hatch_epctx.identity import diff
from hatch_epctx.providers import check_device, find_provider
from hatch_epctx.toolchain import discover

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hatch_epctx.pipeline import Planned
    from hatch_epctx.store import Store

__all__ = ["FORMAT", "describe_machine", "read_machine", "verify_machine"]

FORMAT: Final = "epctx-machine/1"
_BAKED: Final = ("cores", "device", "isa", "topology")
"""Sections of the toolchain that only an EP which bakes them in fills."""
_ALWAYS: Final = ("architecture", "os")


def describe_machine(ep: str, device: str, store: Store) -> dict[str, Any]:
    """Facts of this machine as the EP takes them up: what `epctx_ep(machine = ...)` names.

    Raises:
        ConfigError: no such EP or device kind.
        ToolchainError: the EP is not installed, or shows no such device.
    """
    provider = find_provider(ep, where="--ep")
    kind = check_device(provider, device or None, where="--device")

    def probe(_components: str) -> list[Any]:
        with store.staging() as staging:
            return list(compiling.probe(provider, kind, staging.path, env={}, place="--ep"))

    found = discover(provider, kind, digest=store.digest, probe=probe).document()
    return {"format": FORMAT, **{name: found[name] for name in sorted((*_ALWAYS, *_BAKED))}}


def read_machine(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`value` as a machine's description.

    Raises:
        ConfigError: it is of another form.
    """
    if value.get("format") != FORMAT or value.keys() != {"format", *_ALWAYS, *_BAKED}:
        raise ConfigError(
            "is no description of a machine", where=where, expected=f"the form {FORMAT}", remedy=_remedy("EP", "KIND")
        )
    return dict(value)


def verify_machine(planned: Planned, declared: Mapping[str, Any] | None, *, cacheable: bool) -> None:
    """Refuse to compile `planned` where its result would not be that of its action's key.

    Raises:
        ConfigError: the EP bakes facts of the machine in, and none are declared.
        ToolchainError: this machine is another; or something in the toolchain cannot be named with certainty, and
            the target is not declared as such.
    """
    if planned.identity is None or planned.variant.is_source:
        return
    variant = planned.variant
    place = f"epctx_ep {variant.base_target}"
    found = planned.identity.document["toolchain"]
    baked = {name: found[name] for name in _BAKED if found[name]}
    if planned.identity.uncertain and cacheable:
        raise ToolchainError(
            f"results cannot be shared: {'; '.join(planned.identity.uncertain)}",
            where=place,
            remedy="Set cacheable = False: the action then never goes to a remote or disk cache.",
            reason="not-cacheable",
        )
    if declared is None:
        if not baked:
            return
        raise ConfigError(
            f"{variant.provider.title} bakes {', '.join(sorted(baked))} of the machine into its results, and no "
            "machine is declared",
            where=place,
            remedy=_remedy(variant.provider.key, variant.device),
            reason="no-machine",
        )
    actual = {name: found[name] for name in _ALWAYS} | baked
    wanted = {name: declared[name] for name in actual}
    changes = diff(wanted, actual)
    if changes:
        raise ToolchainError(
            f"this machine is not the declared one: {'; '.join(map(str, changes))}",
            where=place,
            remedy="Route the action to such a machine (exec_properties, exec_compatible_with), or declare this one.",
            reason="other-machine",
        )


def _remedy(ep: str, device: str) -> str:
    return (
        f"Make a description with 'python -m hatch_epctx.bazel machine --ep {ep} --device {device}' on a machine that "
        "executes the action, and name it in epctx_ep(machine = ...)."
    )
