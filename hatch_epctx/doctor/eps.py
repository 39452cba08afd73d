"""One EP as it is on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.compile import probe
from hatch_epctx.doctor.trial import try_ep
from hatch_epctx.errors import EpctxError
from hatch_epctx.toolchain import discover, ep_closure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hatch_epctx.providers import Provider
    from hatch_epctx.store import Store
    from hatch_epctx.worker.protocol import ProbedDevice

__all__ = ["STATES", "examine_ep"]

STATES: Final[Mapping[str, str]] = {
    "ready": "can compile here",
    "broken": "is installed and does not work",
    "missing": "is not installed, or shows no device",
    "no-epcontext": "writes no EPContext models",
}


def examine_ep(provider: Provider, store: Store, *, trial: bool) -> dict[str, Any]:
    """What there is of one EP; `state` is one of `STATES`, and `message` says why it is not ready.

    No remembered answer is believed: the libraries are hashed as the stat cache allows, and devices are asked for.
    """
    found: dict[str, Any] = {
        "ep": provider.key,
        "name": provider.names[0],
        "title": provider.title,
        "tested": provider.run_here,
        "offline": provider.offline,
        "state": "ready",
        "message": "",
        "install": _install(provider),
        "distribution": None,
        "version": None,
        "digest": None,
        "closure": None,
        "sdk": {},
        "devices": [],
        "trials": [],
    }
    if not provider.epcontext:
        return {**found, "state": "no-epcontext", "message": provider.epcontext_reason}
    devices: list[ProbedDevice] = []

    def ask(_components: str) -> Sequence[ProbedDevice]:
        devices[:] = _ask(provider, store)
        return devices

    try:
        toolchain = discover(provider, provider.devices[0], digest=store.digest, probe=ask)
        if not devices:
            ask("")
    except EpctxError as error:
        state = "missing" if error.reason in ("missing-ep", "missing-distribution") and not devices else "broken"
        return {**found, "state": state, "message": str(error), "devices": [_shown(device) for device in devices]}
    if toolchain.ep is not None:
        found |= toolchain.ep.document() | {"closure": _closure(provider)}
    found |= {"sdk": dict(toolchain.sdk), "devices": [_shown(device) for device in devices]}
    if not devices:
        return {**found, "state": "missing", "message": "ONNX Runtime shows no device of it on this machine"}
    return _tried(provider, store, found) if trial else found


def _tried(provider: Provider, store: Store, found: dict[str, Any]) -> dict[str, Any]:
    """With the trials: of each kind of device that is here, or of the first where none needs to be."""
    shown = {device["type"] for device in found["devices"]}
    kinds = provider.devices[:1] if provider.offline else [kind for kind in provider.devices if kind in shown]
    trials = [try_ep(provider, kind, store, simulated=provider.simulated and kind not in shown) for kind in kinds]
    if trials and not any(trial["compiles"] for trial in trials):
        return {**found, "trials": trials, "state": "broken", "message": trials[0]["message"]}
    return {**found, "trials": trials}


def _ask(provider: Provider, store: Store) -> list[ProbedDevice]:
    with store.staging() as staging:
        return probe(provider, provider.devices[0], staging.path, env={}, place=provider.title)


def _closure(provider: Provider) -> dict[str, int]:
    """How much the EP's digest covers: files and bytes."""
    sizes = [path.stat().st_size for _, path in ep_closure(provider)]
    return {"files": len(sizes), "size": sum(sizes)}


def _shown(device: ProbedDevice) -> dict[str, Any]:
    metadata = device["metadata"]
    driver = next((text for name, text in metadata.items() if "driver" in name.lower()), None)
    return {"type": device["type"], "vendor": device["vendor"], "driver": driver, "metadata": metadata}


def _install(provider: Provider) -> str:
    """What to install; empty where the system or another build of ONNX Runtime brings it."""
    if provider.extra:
        return f"hatch-epctx[{provider.extra}]"
    return provider.distributions[0] if provider.distributions else ""
