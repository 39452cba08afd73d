"""Task probe: what an EP reports of itself and of its devices.

The answer is remembered and part of identities, so it holds no paths and nothing that changes from run to run or
from boot to boot.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.worker.protocol import ProbedDevice, Result
from hatch_epctx.worker.session import kind, open_ep

if TYPE_CHECKING:
    from hatch_epctx.worker.protocol import Job

__all__ = ["ep_version", "probe", "probed"]

_FLEETING: Final = {
    "library_path",
    "luid",
    "pci_bus_id",
    "cuda_device_id",
    "dxgiadapternumber",
    "dxgihighperformanceindex",
}
"""Names of facts, in lower case, that place a device in this machine or this boot and say nothing of its kind."""
_PATH = re.compile(r"(?:/|[A-Za-z]:[/\\]|\\\\)\S*[/\\]")


def probe(job: Job) -> Result:
    """Register the EP, list its devices and choose one as a compile would.

    Raises:
        TaskError: missing-ep or no-device.
    """
    ep = open_ep(job)
    result: Result = {
        "ok": True,
        "devices": [probed(device) for device in ep.devices],
        "ep_version": ep_version(ep.device),
        "onnxruntime": str(ep.runtime.__version__),
    }
    if ep.device is not None:
        result["chosen"] = probed(ep.device)
    return result


def ep_version(device: Any) -> str:
    """Version as the EP reports it, empty where it does not. QNN's 2.7.0 says 0.1.0: the library's digest counts."""
    return "" if device is None else str(device.ep_metadata.get("version", ""))


def probed(device: Any) -> ProbedDevice:
    """What is reported of one OrtEpDevice."""
    hardware = device.device
    metadata = {**dict(hardware.metadata), **dict(device.ep_metadata)}
    return ProbedDevice(
        ep=str(device.ep_name),
        type=kind(device),
        vendor=str(hardware.vendor),
        vendor_id=int(hardware.vendor_id),
        device_id=int(hardware.device_id),
        metadata={
            str(name): str(text)
            for name, text in sorted(metadata.items())
            if str(name).lower() not in _FLEETING and not _PATH.match(str(text))
        },
    )
