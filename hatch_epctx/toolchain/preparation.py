"""The libraries that prepare models: which step uses which, in which version.

Their versions stand in the identity of every variant whose model is prepared. Steps that compute with floats depend
on the CPU's instruction set in the last digit, so it stands there too.
"""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.errors import ToolchainError
from hatch_epctx.toolchain.machine import architecture, read_cpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["read_preparation"]

LIBRARIES: Final[Mapping[str, tuple[str, ...]]] = {
    "infer-shapes": ("onnx",),
    "fold-constants": ("onnx", "onnxscript", "onnx-ir", "ml_dtypes", "numpy"),
    "convert-opset": ("onnx",),
    "static-shapes": ("onnx",),
    "quantize-qdq": ("onnx", "ml_dtypes", "numpy"),
}
"""Distributions whose code a step runs; onnxruntime stands in the toolchain section."""
_COMPUTING: Final = frozenset({"fold-constants", "quantize-qdq"})


def read_preparation(steps: Iterable[str], *, where: str) -> list[dict[str, Any]]:
    """The steps in order, each with its libraries, as they stand in the identity document.

    Args:
        steps: as configured.
        where: their dotted place, for messages.

    Raises:
        ToolchainError: a library is not installed.
    """
    found = []
    for step in steps:
        name = step.partition(":")[0]
        entry: dict[str, Any] = {
            "step": step,
            "libraries": {library: _version(library, step, where) for library in LIBRARIES[name]},
        }
        if name in _COMPUTING:
            entry["cpu"] = {"architecture": architecture(), "isa": list(read_cpu().isa)}
        found.append(entry)
    return found


def _version(library: str, step: str, where: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError as error:
        raise ToolchainError(
            f"{step!r} needs {library}, which is not installed",
            where=where,
            remedy="Install the extra: pip install 'hatch-epctx[prepare]'.",
            reason="missing-distribution",
        ) from error
