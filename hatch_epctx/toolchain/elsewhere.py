"""A worker's procedure on another machine: what that machine is, and a refusal where it is not what was asked for.

An identity may hold facts of the machine that compiles (operating system, architecture; ISA, cores, topology and
device of EPs that bake them in). A service that executes actions may give each one to another worker, so the worker
itself compares: what it makes on a machine of another kind must not be published under the identity.

It stands around the task's own procedure (`Job.inner`). The answer's ``extra["machine"]`` is `Host.document`.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, Final, cast

from hatch_epctx.toolchain.machine import Host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hatch_epctx.toolchain.records import Toolchain
    from hatch_epctx.worker.protocol import Job, ProbedDevice, Result

__all__ = ["PROCEDURE", "demands_of", "device_facts", "python_version", "run"]

PROCEDURE: Final = "hatch_epctx.toolchain.elsewhere"
"""This module, as a job names it."""


def device_facts(found: ProbedDevice) -> dict[str, Any]:
    """What an identity holds of a device."""
    return {
        "device-id": found["device_id"],
        "metadata": dict(sorted(found["metadata"].items())),
        "type": found["type"],
        "vendor": found["vendor"],
        "vendor-id": found["vendor_id"],
    }


def demands_of(toolchain: Toolchain) -> dict[str, Any]:
    """What the machine of a compile must be: of each fact that the identity holds, its value."""
    section = toolchain.document()
    names = ("os", "architecture", "isa", "cores", "topology", "device")
    return {name: section[name] for name in names if section[name] not in (None, [], {})}


def python_version() -> str:
    """Major and minor version: extension modules are made for one."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def run(job: Job) -> Result:
    """Do `job` where this machine is what `Job.machine` says."""
    here = {**Host.here().document(), "python": python_version()}
    demands = job.get("machine", {})
    # As it would be here: output may be a function of all that a procedure is told.
    inner = cast("Job", {**job, "procedure": job["inner"]})
    inner.pop("inner")
    inner.pop("machine", None)
    result: Result = _refusal(job, demands, here) or importlib.import_module(job["inner"]).run(inner)
    if result.get("ok") and "device" in demands:
        result = _refusal(job, demands, {**here, "device": _device(job, demands["device"]["type"])}) or result
    result.setdefault("extra", {})["machine"] = here
    return result


def _refusal(job: Job, demands: Mapping[str, Any], here: Mapping[str, Any]) -> Result | None:
    other = [name for name, value in demands.items() if name in here and here[name] != value]
    if not other:
        return None
    shown = "; ".join(f"{name} is {here[name]}, asked for was {demands[name]}" for name in sorted(other))
    return {
        "format": job["format"],
        "ok": False,
        "reason": "other-machine",
        "error": f"the worker runs on another machine than the identity names: {shown}",
        "remedy": "Let the platform properties (EPCTX_REMOTE_PLATFORM) choose workers of one kind, and "
        "EPCTX_REMOTE_PYTHON a Python of this machine's version.",
    }


def _device(job: Job, kind: str) -> dict[str, Any]:
    """What this process's ONNX Runtime, in which the EP is registered by now, shows of the first such device."""
    probing = importlib.import_module("hatch_epctx.worker.probing")
    runtime: Any = importlib.import_module("onnxruntime")
    seen = [probing.probed(device) for device in runtime.get_ep_devices()]
    return next((device_facts(item) for item in seen if item["ep"] == job["ep"] and item["type"] == kind), {})
