"""`epctx doctor`: EPs, devices and versions on this machine, and what is missing.

"ready" says that the EP's library registers with ONNX Runtime and shows a device, or compiles without one. It does not
say that a certain model compiles.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

import hatch_epctx
from hatch_epctx.cli.output import cut, emit_json, say, table
from hatch_epctx.console import missing_extra
from hatch_epctx.errors import EpctxError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from hatch_epctx.providers import Provider
    from hatch_epctx.store import Store
    from hatch_epctx.worker.protocol import ProbedDevice

__all__ = ["doctor"]

_DISTRIBUTIONS: Final = ("onnxruntime", "onnx", "hatchling", "pydantic", "filelock")
_STATES: Final = {
    "ready": "can compile here",
    "broken": "is installed and does not work",
    "missing": "is not installed, or shows no device",
    "no-epcontext": "writes no EPContext models",
}


def doctor(options: Namespace) -> int:
    """Look at this machine. Exit code 0 when at least one EP can compile here, 4 when none can."""
    facts: dict[str, Any] = {
        "hatch-epctx": hatch_epctx.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "distributions": {name: _version(name) for name in _DISTRIBUTIONS},
    }
    try:
        facts |= _machine()
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        facts |= {"store": None, "providers": [], "message": str(missing)}
    if options.json:
        emit_json(options, facts)
    else:
        _print(facts, verbose=options.verbose)
    return 0 if any(item["state"] == "ready" for item in facts["providers"]) else 4


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> dict[str, Any]:
    """What needs the build extra to find out."""
    from hatch_epctx.config import read_environment
    from hatch_epctx.providers import all_providers
    from hatch_epctx.store import Store

    store = Store(read_environment(os.environ).cache_dir)
    return {
        "store": {"path": str(store.root), "writable": not store.read_only},
        "providers": [_examine(provider, store) for provider in all_providers()],
        "message": "",
    }


def _examine(provider: Provider, store: Store) -> dict[str, Any]:
    """What there is of one EP. States: see `_STATES`."""
    from hatch_epctx.toolchain import discover

    found: dict[str, Any] = {
        "ep": provider.key,
        "name": provider.names[0],
        "title": provider.title,
        "tested": provider.run_here,
        "offline": provider.offline,
        "state": "ready",
        "message": "",
        "devices": [],
    }
    if not provider.epcontext:
        return {**found, "state": "no-epcontext", "message": provider.epcontext_reason}

    devices: list[ProbedDevice] = []

    def ask(_components: str) -> Sequence[ProbedDevice]:  # the doctor believes no remembered answer
        devices[:] = _ask(provider, store)
        return devices

    try:
        toolchain = discover(provider, provider.devices[0], digest=store.digest, probe=ask)
        if provider.module and not devices:
            ask("")
    except EpctxError as error:
        state = "missing" if error.reason in ("missing-ep", "missing-distribution") and not devices else "broken"
        return {**found, "state": state, "message": str(error), "devices": [_shown(device) for device in devices]}
    if toolchain.ep is not None:
        found["distribution"] = toolchain.ep.distribution
        found["version"] = toolchain.ep.version
        found["digest"] = toolchain.ep.digest
    if not devices:
        return {**found, "state": "missing", "message": "ONNX Runtime shows no device of it on this machine"}
    return {**found, "sdk": dict(toolchain.sdk), "devices": [_shown(device) for device in devices]}


def _ask(provider: Provider, store: Store) -> list[ProbedDevice]:
    from hatch_epctx.compile import probe

    with store.staging() as staging:
        return probe(provider, provider.devices[0], staging.path, env={}, place=provider.title)


def _shown(device: ProbedDevice) -> dict[str, Any]:
    return {"type": device["type"], "vendor": device["vendor"], "metadata": device["metadata"]}


def _print(facts: dict[str, Any], *, verbose: bool) -> None:
    say(f"hatch-epctx {facts['hatch-epctx']}, Python {facts['python']}, {facts['platform']}")
    if versions := [f"{name} {version}" for name, version in facts["distributions"].items() if version]:
        say(", ".join(versions))
    if facts["message"]:
        say(facts["message"])
        return
    store = facts["store"]
    say(f"store {store['path']}{'' if store['writable'] else ' (read-only)'}")
    say()
    shown = [item for item in facts["providers"] if verbose or _is_of_interest(item)]
    rows = [(item["ep"], item["state"], _installed(item), _devices(item)) for item in shown]
    table(("EP", "STATE", "INSTALLED", "DEVICES"), rows)
    for item in shown:
        if item["message"] and item["state"] != "ready":
            say(f"{item['ep']}: {item['message'] if verbose else item['message'].partition(chr(10))[0]}")
    if verbose:
        for state, text in _STATES.items():
            say(f"{state}: {text}")
        return
    rest = [item["ep"] for item in facts["providers"] if item["state"] == "missing" and item not in shown]
    if rest:
        say(f"not here: {', '.join(rest)} ('epctx doctor -v' says more)")


def _is_of_interest(item: dict[str, Any]) -> bool:
    """What is installed, and what this project's own tests run."""
    return item["state"] in ("ready", "broken") or (item["tested"] and item["state"] == "missing")


def _installed(item: dict[str, Any]) -> str:
    version = f"{item['distribution']} {item['version']}" if "version" in item else "-"
    return version if item["tested"] else f"{version} (not run here)".removeprefix("- ")


def _devices(item: dict[str, Any]) -> str:
    if item["state"] == "ready" and item["offline"]:
        return "compiles for devices that need not be here"
    names = [
        " ".join(
            part for part in (device["type"], device["metadata"].get("FULL_DEVICE_NAME", device["vendor"])) if part
        )
        for device in item["devices"]
    ]
    return cut(", ".join(names), 60) or "-"
