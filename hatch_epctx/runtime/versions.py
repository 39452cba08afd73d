"""Versions that differ between the machine that compiled and this one, named rather than passed over.

A difference alone rejects nothing: the EP judges its own version (see `fit`), and ONNX Runtime loads models of older
ones. It stands in `Choice.note`, in the log, and beside the error of a session that cannot be made.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hatch_epctx.runtime import plugins

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from onnxruntime.capi.onnxruntime_pybind11_state import OrtEpDevice

    from hatch_epctx.runtime.plugins import Plugin

__all__ = ["differences"]


def differences(recorded: Mapping[str, Any], plugin: Plugin, device: OrtEpDevice | None) -> str:
    """One clause for each version that differs; empty when none does or none can be told."""
    ort = str(getattr(plugins.import_onnxruntime(), "__version__", ""))
    pairs = [("onnxruntime", recorded.get("onnxruntime"), ort)]
    if recorded.get("distribution") == plugin.distribution:
        pairs.append((plugin.distribution, recorded.get("version"), _ep_version(plugin, device)))
    return "; ".join(
        f"compiled with {name} {before}, found {now}" for name, before, now in pairs if before and now and before != now
    )


def _ep_version(plugin: Plugin, device: OrtEpDevice | None) -> str:
    """Public version of the plugin's distribution: of its module, or else as the EP reports it."""
    version = str(getattr(sys.modules.get(plugin.module), "__version__", ""))
    if not version and device is not None:
        version = str(device.ep_metadata.get("version", ""))
    return version.partition("+")[0]
