"""Execution providers of this process: which plugins there are, and registering them once.

A plugin EP is a distribution whose import package names the shared library. Only the packages of `PLUGINS` are ever
imported: a manifest is untrusted input and may name a distribution in a message, never a module to import.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hatch_epctx.errors import LookupFailure, suggest

if TYPE_CHECKING:
    from types import ModuleType

    from onnxruntime.capi.onnxruntime_pybind11_state import OrtEpDevice

__all__ = ["CPU", "PLUGINS", "Missing", "Plugin", "devices", "full_name", "import_onnxruntime", "known", "present"]

CPU = "CPUExecutionProvider"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One EP as the look-up knows it. The build has its own, fuller table (`providers`)."""

    key: str
    ep: str
    module: str = ""
    """Import package with get_library_path(); empty: built into some builds of onnxruntime."""
    distribution: str = ""
    pin: str = ">="
    """How a compiled model binds the distribution's version: "==" where the EP loads its own version alone."""
    asked: bool = True
    """Whether the EP is asked about compatibility. QNN is not: after a session has been released, asking touches freed
    memory and kills the process (onnxruntime-qnn 2.7.0); `qnn` compares in its place."""
    simulates: bool = False
    """A CPU device of this EP is a simulator that takes every model."""


PLUGINS: tuple[Plugin, ...] = (
    Plugin(key="cpu", ep=CPU),
    Plugin(
        key="openvino",
        ep="OpenVINOExecutionProvider",
        module="onnxruntime_ep_openvino",
        distribution="onnxruntime-ep-openvino",
        pin="==",
    ),
    Plugin(
        key="qnn",
        ep="QNNExecutionProvider",
        module="onnxruntime_qnn",
        distribution="onnxruntime-qnn",
        asked=False,
        simulates=True,
    ),
    Plugin(
        key="tensorrt-rtx",
        ep="NvTensorRTRTXExecutionProvider",
        module="onnxruntime_ep_nv_tensorrt_rtx",
        distribution="onnxruntime-ep-nv-tensorrt-rtx",
    ),
    Plugin(key="tensorrt", ep="TensorrtExecutionProvider", distribution="onnxruntime-gpu"),
    Plugin(key="vitisai", ep="VitisAIExecutionProvider"),
)
"""EPs that run compiled models, by the names that `ep=` accepts. Any other EP is used under its registered name when
it is there already, and never imported."""


class Missing(Exception):  # names a finding; it never leaves the look-up
    """An EP that cannot be used: reason (missing-ep or ep-not-loadable) and a clause that says why."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


_lock = threading.Lock()
_failures: dict[str, Missing] = {}
_done: set[str] = set()


def import_onnxruntime() -> ModuleType:
    """ONNX Runtime itself, with a plain message where it is missing, broken or too old for plugin EPs.

    Raises:
        LookupFailure: reason no-onnxruntime.
    """
    remedy = 'Install a build for your hardware, for example: pip install "onnxruntime>=1.24".'
    try:
        import onnxruntime
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == "onnxruntime"
        text = "ONNX Runtime is not installed" if absent else f"ONNX Runtime cannot be imported: {error}"
        raise LookupFailure(text, where=sys.prefix, remedy=remedy, reason="no-onnxruntime") from error
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        version = getattr(onnxruntime, "__version__", "of an unknown version")
        raise LookupFailure(
            f"onnxruntime {version} has no plugin execution providers", remedy=remedy, reason="no-onnxruntime"
        )
    return onnxruntime


def full_name(ep: str) -> str:
    """Registered name of an EP given by that name or by its short one, in any case; unknown ones as they are."""
    wanted = ep.casefold()
    return next((plugin.ep for plugin in PLUGINS if wanted in (plugin.key, plugin.ep.casefold())), ep)


def likely(ep: str) -> str:
    """For a message about an EP that is in no table: ". Did you mean ...?", or nothing."""
    names = [name for plugin in PLUGINS for name in (plugin.key, plugin.ep)]
    hint = "" if ep in names else suggest(ep, names)
    return f". {hint}" if hint else ""


def known(ep: str) -> Plugin:
    """The table's entry of an EP by its registered name, or a bare one."""
    return next((plugin for plugin in PLUGINS if plugin.ep == ep), Plugin(key=ep, ep=ep))


def devices(ep: str) -> tuple[OrtEpDevice, ...]:
    """Devices of the EP with this registered name, its plugin registered first if need be.

    Registers at most once per process, under the EP's own name, from any number of threads; a plugin that the
    application registered itself is used as it is.

    Returns:
        Empty for an EP that is built into this onnxruntime without showing devices.

    Raises:
        Missing: the EP is not installed, its library does not load, or it shows no device on this machine.
    """
    ort = import_onnxruntime()
    found = _shown(ort, ep)
    if found:
        return found
    plugin = known(ep)
    with _lock:
        if ep not in _done and not _shown(ort, ep):
            _done.add(ep)
            try:
                _register(ort, plugin)
            except Missing as missing:
                _failures[ep] = missing
        failure = _failures.get(ep)
    found = _shown(ort, ep)
    if found or ep in ort.get_available_providers():
        return found
    if failure is not None:
        raise failure
    raise Missing("no-device", f"{ep} finds none of its devices on this machine")


def present() -> tuple[str, ...]:
    """EPs that could be used: those of this onnxruntime, registered plugins, and installed ones not yet registered."""
    ort = import_onnxruntime()
    names = {device.ep_name for device in ort.get_ep_devices()} | set(ort.get_available_providers())
    names |= {plugin.ep for plugin in PLUGINS if plugin.module and _installed(plugin.module)}
    names -= {ep for ep in _failures if not _shown(ort, ep)}
    # Azure calls a service, and a name with a dot is another way to the same EP.
    return tuple(sorted(name for name in names if name != "AzureExecutionProvider" and "." not in name))


def _shown(ort: ModuleType, ep: str) -> tuple[OrtEpDevice, ...]:
    return tuple(device for device in ort.get_ep_devices() if device.ep_name == ep)


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _register(ort: ModuleType, plugin: Plugin) -> None:
    if not plugin.module or not _installed(plugin.module):
        if plugin.ep in ort.get_available_providers():
            return
        raise Missing("missing-ep", f"needs {plugin.ep}, which is not installed")
    try:
        module: Any = import_module(plugin.module)
        library = str(module.get_library_path())
        ort.register_execution_provider_library(plugin.ep, library)
    except Exception as error:  # a plugin's package may raise whatever it likes
        raise Missing("ep-not-loadable", f"{plugin.ep} is installed but does not load: {error}") from error
