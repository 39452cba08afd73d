"""`epctx doctor`: EPs, devices and versions on this machine, and what is missing."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any

import hatch_epctx
from hatch_epctx.cli.output import emit_json
from hatch_epctx.compile import probe
from hatch_epctx.config import read_environment
from hatch_epctx.errors import EpctxError
from hatch_epctx.providers import all_providers
from hatch_epctx.store import Store
from hatch_epctx.toolchain import discover

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from hatch_epctx.providers import Provider
    from hatch_epctx.worker.protocol import ProbedDevice

__all__ = ["doctor"]

_DISTRIBUTIONS = ("onnxruntime", "onnx", "hatchling", "pydantic", "filelock")


def doctor(options: Namespace) -> int:
    """Look at this machine. Exit code 0 when at least one EP can compile here, 4 when none can."""
    store = Store(read_environment(os.environ).cache_dir)
    providers = [_examine(provider, store) for provider in all_providers()]
    facts = {
        "hatch-epctx": hatch_epctx.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "distributions": {name: _version(name) for name in _DISTRIBUTIONS},
        "store": {"path": str(store.root), "writable": not store.read_only},
        "providers": providers,
    }
    if options.json:
        emit_json(facts)
    else:
        _print(facts, all_of_them=options.verbose)
    return 0 if any(item["state"] == "ready" for item in providers) else 4


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _examine(provider: Provider, store: Store) -> dict[str, Any]:
    """What there is of one EP. States: ready, missing, broken, no-epcontext."""
    found: dict[str, Any] = {
        "ep": provider.key,
        "name": provider.names[0],
        "title": provider.title,
        "tested": provider.run_here,
        "state": "ready",
        "message": "",
        "devices": [],
    }
    if not provider.epcontext:
        return {**found, "state": "no-epcontext", "message": provider.epcontext_reason}

    devices: list[ProbedDevice] = []

    def ask(components: str) -> Sequence[ProbedDevice]:  # noqa: ARG001  # the doctor believes no remembered answer
        devices[:] = _ask(provider, store)
        return devices

    try:
        toolchain = discover(provider, provider.devices[0], digest=store.digest, probe=ask)
        if provider.module and not devices:
            ask("")
    except EpctxError as error:
        state = "missing" if error.reason == "missing-ep" and not devices else "broken"
        return {**found, "state": state, "message": str(error), "devices": [_shown(device) for device in devices]}
    if toolchain.ep is not None:
        found["distribution"] = toolchain.ep.distribution
        found["version"] = toolchain.ep.version
        found["digest"] = toolchain.ep.digest
    if not devices:
        return {**found, "state": "missing", "message": "ONNX Runtime shows no device of it on this machine"}
    return {**found, "sdk": dict(toolchain.sdk), "devices": [_shown(device) for device in devices]}


def _ask(provider: Provider, store: Store) -> list[ProbedDevice]:
    with store.staging() as staging:
        return probe(provider, provider.devices[0], staging.path, env={}, place=provider.title)


def _shown(device: ProbedDevice) -> dict[str, Any]:
    return {"type": device["type"], "vendor": device["vendor"], "metadata": device["metadata"]}


def _print(facts: dict[str, Any], *, all_of_them: bool) -> None:
    print(f"hatch-epctx {facts['hatch-epctx']}, Python {facts['python']}, {facts['platform']}")
    for name, version in facts["distributions"].items():
        print(f"  {name} {version or 'is not installed: pip install hatch-epctx[build]'}")
    store = facts["store"]
    print(f"  store {store['path']}{'' if store['writable'] else ' (read-only)'}")
    for item in facts["providers"]:
        if item["state"] in ("missing", "no-epcontext") and not (all_of_them or item["tested"]):
            continue
        version = f" {item['distribution']} {item['version']}" if "version" in item else ""
        print(f"{item['ep']}: {item['state']}{version}{'' if item['tested'] else ' (not run here)'}")
        for device in item["devices"]:
            name = device["metadata"].get("FULL_DEVICE_NAME", "")
            print(f"  device {device['type']} ({device['vendor']}){f': {name}' if name else ''}")
        if item["message"]:
            print(f"  {item['message']}")
    rest = [item["ep"] for item in facts["providers"] if item["state"] in ("missing", "no-epcontext")]
    if rest and not all_of_them:
        print(f"not installed or without EPContext models: {', '.join(rest)} (epctx doctor -v says more)")
