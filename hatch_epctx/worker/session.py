"""ONNX Runtime with one EP: registering its library, choosing its device, filling in SessionOptions.

Plugin EPs (a module with ``get_library_path()``) are registered and addressed by their devices. EPs of the
onnxruntime build itself are addressed by devices where it lists them, else by name.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.wording import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hatch_epctx.worker.protocol import Job

__all__ = ["LEVEL_OPTION", "Ep", "is_simulated", "kind", "level", "open_ep", "register_custom_ops", "session_options"]

LEVEL_OPTION: Final = "session.graph_optimization_level"
"""Session option by which a model package carries the load-time optimisation level (ONNX Runtime 1.32)."""

_LEVELS: Final = {
    "disable-all": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_PACKAGE_LEVELS: Final = {
    "disable_all": "disable-all",
    "enable_basic": "basic",
    "enable_extended": "extended",
    "enable_layout": "layout",
    "enable_all": "all",
}

_NUMBERS: Final = {
    "session.intra_op_num_threads": "intra_op_num_threads",
    "session.inter_op_num_threads": "inter_op_num_threads",
    "session.log_severity_level": "log_severity_level",
    "session.log_verbosity_level": "log_verbosity_level",
}
_SWITCHES: Final = {
    "session.enable_cpu_mem_arena": "enable_cpu_mem_arena",
    "session.enable_mem_pattern": "enable_mem_pattern",
    "session.use_per_session_threads": "use_per_session_threads",
    "session.use_deterministic_compute": "use_deterministic_compute",
}
"""Options that ONNX Runtime's model package turns into typed settings, while Python's add_session_config_entry
stores the text without effect (seen with 1.32)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ep:
    """One EP, ready to be added to SessionOptions."""

    name: str
    runtime: Any
    """The module onnxruntime."""
    devices: tuple[Any, ...]
    """Its OrtEpDevices, in ONNX Runtime's order. Empty for an EP that is addressed by name."""
    device: Any
    """The chosen OrtEpDevice, or None for an EP that is addressed by name."""


def open_ep(job: Job) -> Ep:
    """Import onnxruntime, register the job's EP and choose its device.

    Raises:
        TaskError: missing-ep or no-device.
    """
    runtime: Any = importlib.import_module("onnxruntime")
    name = job["ep"]
    if job.get("module"):
        _register(runtime, name, job["module"])
    devices = tuple(device for device in runtime.get_ep_devices() if device.ep_name == name)
    if not devices:
        if not job.get("module") and name in runtime.get_available_providers():
            return Ep(name=name, runtime=runtime, devices=(), device=None)
        raise TaskError(
            "no-device" if job.get("module") else "missing-ep",
            f"ONNX Runtime {runtime.__version__} shows no device of {name} on this machine",
            remedy="Install an onnxruntime build, the EP and the driver that go together.",
        )
    return Ep(name=name, runtime=runtime, devices=devices, device=_choose(job, devices))


def _register(runtime: Any, name: str, module: str) -> None:
    try:
        library = str(importlib.import_module(module).get_library_path())
        runtime.register_execution_provider_library(name, library)
    except Exception as error:  # whatever a foreign module or a native loader may raise
        raise TaskError(
            "missing-ep",
            f"the EP library of {module} cannot be loaded: {describe(error)}",
            remedy=f"Install what brings {module}, in a version for onnxruntime {runtime.__version__}.",
        ) from error


def _choose(job: Job, devices: tuple[Any, ...]) -> Any:
    """The first device of the asked kind; any device for a compile that needs no hardware."""
    wanted = job.get("device", "cpu")
    for device in devices:
        if kind(device) == wanted:
            return device
    if job.get("offline"):
        return devices[0]
    found = ", ".join(sorted({kind(device) for device in devices}))
    raise TaskError(
        "no-device",
        f"{job['ep']} shows no device of kind {wanted!r} on this machine; it shows {found}",
        remedy="Choose one of these for the target, or build where the device is.",
    )


def kind(device: Any) -> str:
    """cpu, gpu or npu."""
    return str(device.device.type.name).lower()


def is_simulated(job: Job, ep: Ep) -> bool:
    """Whether the chosen device stands for another one, such as a CPU that simulates an NPU."""
    return ep.device is not None and kind(ep.device) != job.get("device", kind(ep.device))


def level(runtime: Any, name: str) -> Any:
    """ONNX Runtime's GraphOptimizationLevel for disable-all, basic, extended, layout or all."""
    return getattr(runtime.GraphOptimizationLevel, _LEVELS[name])


def session_options(job: Job, ep: Ep, *, overrides: bool) -> Any:
    """SessionOptions with the job's EP, device, provider and session options, and optimisation level.

    Args:
        job: the job.
        ep: the EP of the job.
        overrides: also set the free dimensions. A compiled model has them already.
    """
    options = ep.runtime.SessionOptions()
    options.graph_optimization_level = level(ep.runtime, job.get("optimization", "all"))
    register_custom_ops(job, options)
    for name, text in sorted(job.get("session_options", {}).items()):
        _set(options, ep.runtime, name, text)
    if overrides:
        for name, size in sorted(job.get("free_dimensions", {}).items()):
            options.add_free_dimension_override_by_name(name, size)
        for name, size in sorted(job.get("free_dimension_denotations", {}).items()):
            options.add_free_dimension_override_by_denotation(name, size)
    provider_options: Mapping[str, str] = job.get("provider_options", {})
    if ep.device is not None:
        options.add_provider_for_devices([ep.device], dict(provider_options))
    elif ep.name != "CPUExecutionProvider":
        options.add_provider(ep.name, dict(provider_options))
    return options


def register_custom_ops(job: Job, options: Any) -> None:
    """Register the libraries of the job's custom operators with `options`.

    Raises:
        TaskError: custom-ops: one is missing, or ONNX Runtime cannot load it.
    """
    for item in job.get("custom_ops", []):
        name = item.get("module") or item.get("file", "")
        try:
            # Absolute: a name without a folder would be looked for in the system's library path.
            module = importlib.import_module(item["module"]) if item.get("module") else None
            options.register_custom_ops_library(str(module.get_library_path() if module else Path(name).absolute()))
        except Exception as error:  # whatever a foreign module or a native loader may raise
            raise TaskError(
                "custom-ops",
                f"the library of custom operators {name} cannot be loaded: {describe(error)}",
                remedy="It has to be built for this machine and for this onnxruntime, to export RegisterCustomOps, and "
                "to find what it loads itself from wherever it is copied to.",
            ) from error


def _set(options: Any, runtime: Any, name: str, text: str) -> None:
    """One session option, with the meaning that it has in a model package.

    Raises:
        ValueError: the option has no such value.
    """
    try:
        _set_typed(options, runtime, name, text)
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"session option {name} cannot be {text!r}") from error


def _set_typed(options: Any, runtime: Any, name: str, text: str) -> None:
    if name == LEVEL_OPTION:
        options.graph_optimization_level = level(runtime, _PACKAGE_LEVELS.get(text, text))
    elif name == "session.execution_mode":
        mode = {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}[text]
        options.execution_mode = getattr(runtime.ExecutionMode, mode)
    elif name in _NUMBERS:
        setattr(options, _NUMBERS[name], int(text))
    elif name in _SWITCHES:
        setattr(options, _SWITCHES[name], {"0": False, "false": False, "1": True, "true": True}[text])
    else:
        options.add_session_config_entry(name, text)
