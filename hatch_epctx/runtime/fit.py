"""Does a compiled model fit a device? The EP is asked where its answer can be had; what it leaves open is compared."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hatch_epctx.runtime import qnn

if TYPE_CHECKING:
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtEpDevice

    from hatch_epctx.runtime.plugins import Plugin

__all__ = ["OPTIMAL", "RECOMPILE", "UNANSWERED", "Fit", "fit"]

OPTIMAL: Final = 100
RECOMPILE: Final = 50
UNANSWERED: Final = 0
"""Scores as ORT's own selection gives them; they rank the variants of one EP."""

_SIMULATED: Final = "runs in the EP's simulator: the target hardware was not compared"
_CPU_FLAGS: Final = (
    "sse4_2",
    "avx",
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The verdict: `reason` is empty when the model may be tried, else a word of `Rejection.reason`."""

    score: int = UNANSWERED
    reason: str = ""
    text: str = ""
    """Why not, with what was recorded and what was found."""
    note: str = ""
    """What was not compared, where it may be tried all the same."""
    simulated: bool = False


def fit(plugin: Plugin, device: OrtEpDevice | None, compatibility: str) -> Fit:
    """Judge a compatibility string for one device of its EP (None: an EP that shows no devices)."""
    simulated = plugin.simulates and device is not None and device_type(device) == "cpu"
    if not compatibility:
        note = _SIMULATED if simulated else "the EP recorded nothing about compatibility"
        return Fit(note=note, simulated=simulated)
    if plugin.key == "qnn":
        return _fit_qnn(compatibility, simulated=simulated)
    if device is None or not plugin.asked:
        return Fit(note="the EP was not asked about compatibility")
    return _ask(device, compatibility)


def device_type(device: OrtEpDevice) -> str:
    """cpu, gpu or npu."""
    return str(device.device.type.name).lower()


def _ask(device: OrtEpDevice, compatibility: str) -> Fit:
    from onnxruntime.capi import _pybind_state as state

    ask = getattr(state, "get_model_compatibility_for_ep_devices", None)
    if ask is None:
        return Fit(note="this onnxruntime cannot ask the EP about compatibility")
    try:
        answer = ask([device], compatibility).name
    except RuntimeError as error:
        return Fit(note=f"the EP did not answer: {error}")
    if answer == "EP_UNSUPPORTED":
        return Fit(reason="incompatible", text=_refused(device, compatibility))
    scores = {"EP_SUPPORTED_OPTIMAL": OPTIMAL, "EP_SUPPORTED_PREFER_RECOMPILATION": RECOMPILE}
    if answer in scores:
        note = "the EP would rather have it recompiled" if scores[answer] == RECOMPILE else ""
        return Fit(score=scores[answer], note=note)
    return Fit(note="the EP left compatibility open")


def _fit_qnn(compatibility: str, *, simulated: bool) -> Fit:
    recorded = qnn.parse(compatibility)
    if recorded is None:
        return Fit(note=f"unknown form of compatibility: {compatibility!r}")
    if text := qnn.compare_sdk(recorded, qnn.installed_sdk()):
        return Fit(reason="sdk-mismatch", text=text)
    if simulated:
        return Fit(note=_SIMULATED, simulated=True)
    found = qnn.machine_soc()
    if found is None:
        return Fit(note="this machine's SoC is not known, so it was not compared")
    if text := qnn.compare_soc(recorded, found):
        return Fit(reason="soc-mismatch", text=text)
    return Fit(score=OPTIMAL if qnn.exact(recorded, found) else RECOMPILE)


def _refused(device: OrtEpDevice, compatibility: str) -> str:
    """Recorded and found, side by side, as far as both can be told."""
    recorded = _openvino_fields(compatibility)
    if not recorded:
        return f"the EP refuses it: compiled for {compatibility!r}"
    found = _openvino_here(device)
    parts = [f"{title} {recorded[key]} recorded, {found[key]} found" for key, title in _TITLES if key in recorded]
    return f"the EP refuses it: {'; '.join(parts)}"


_TITLES: Final = (("ov", "OpenVINO"), ("isa", "instruction set"), ("ep", "EP version"))


def _openvino_fields(compatibility: str) -> dict[str, str]:
    """The readable parts of OpenVINO's JSON: versions and instruction set; empty for any other form."""
    try:
        value = json.loads(compatibility)
        pairs = dict(part.split("=", 1) for part in str(value["ov_compat_string"]).split(";") if "=" in part)
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    fields: dict[str, str] = {key: pairs[key] for key in ("ov", "isa") if key in pairs}
    if "ovep_ver" in value:
        fields["ep"] = str(value["ovep_ver"])
    return fields


def _openvino_here(device: OrtEpDevice) -> dict[str, str]:
    metadata = device.ep_metadata
    return {
        "ov": _openvino_version(metadata.get("library_path", "")) or "another or the same",
        "isa": _instruction_sets() or metadata.get("FULL_DEVICE_NAME", "another"),
        "ep": metadata.get("version", "unknown"),
    }


def _openvino_version(library: str) -> str:
    """Version in the name of the runtime beside the plugin: libopenvino.so.2641 is 2026.4.1."""
    if not library:
        return ""
    for path in Path(library).parent.glob("libopenvino.so.*"):
        if match := re.match(r"libopenvino\.so\.(\d\d)(\d)(\d)\Z", path.name):
            return f"20{match[1]}.{match[2]}.{match[3]}"
    return ""


def _instruction_sets() -> str:
    """What this CPU has of the sets that compilers choose by, in Linux's words; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    match = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    have = set(match[1].split()) if match else set()
    return " ".join(flag for flag in _CPU_FLAGS if flag in have)
