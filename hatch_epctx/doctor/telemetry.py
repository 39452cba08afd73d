"""Telemetry: ONNX Runtime's own, the only one that a compile could send. hatch-epctx has none.

Builds of ONNX Runtime for Linux and macOS may send usage events over the network unless ORT_DISABLE_TELEMETRY is set
when the process starts (since 1.29; 1 as well as true, yes, on and y). On Windows they are trace events that the
system's own settings govern. Workers have the variable set. Whether a build has the code is read from its libraries.
"""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.process import worker_environment
from hatch_epctx.toolchain import import_folders

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hatch_epctx.store import Store

__all__ = ["VARIABLE", "lines", "look"]

VARIABLE: Final = "ORT_DISABLE_TELEMETRY"
_COLLECTOR: Final = b"events.data.microsoft.com"
"""Stands in a library that can send."""
_YES: Final = ("1", "true", "yes", "on", "y")
_LIBRARIES: Final = ("*onnxruntime*.so*", "*onnxruntime*.dylib", "*onnxruntime*.pyd", "*onnxruntime*.dll")


def look(_store: Store) -> dict[str, Any]:
    """What the installed ONNX Runtime can send; nothing of it is loaded.

    `built_in` is None where no library tells (Windows). `compiles` and `here` (processes started from this environment,
    such as an application) are "off" or "on".
    """
    sends, obeys = _read(_libraries())
    built_in = None if sys.platform == "win32" else sends
    asked = worker_environment(Path(), {}).get(VARIABLE, "") in _YES
    set_here = os.environ.get(VARIABLE, "").strip().lower() in _YES
    return {
        "built_in": built_in,
        "variable": VARIABLE,
        "value": os.environ.get(VARIABLE),
        "compiles": _state(sends=sends, off=obeys and asked),
        "here": _state(sends=sends, off=obeys and set_here),
    }


def lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Nothing where nothing can be sent."""
    if facts["built_in"] is None:
        yield "telemetry: ONNX Runtime's trace events are governed by the system's settings"
    elif not facts["built_in"]:
        yield "telemetry: this ONNX Runtime has none"
    else:
        hint = "" if facts["here"] == "off" else f", unless {VARIABLE}=1 is set"
        yield f"telemetry of ONNX Runtime: {facts['compiles']} in compiles, {facts['here']} in applications{hint}"


def _state(*, sends: bool, off: bool) -> str:
    return "on" if sends and not off else "off"


def _libraries() -> Iterator[Path]:
    for folder in import_folders("onnxruntime"):
        for pattern in _LIBRARIES:
            yield from sorted((folder / "capi").glob(pattern))


def _read(libraries: Iterator[Path]) -> tuple[bool, bool]:
    """Whether any of the libraries can send, and whether each that can reads the variable."""
    senders = []
    for path in libraries:
        try:
            with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                if data.find(_COLLECTOR) >= 0:
                    senders.append(data.find(VARIABLE.encode()) >= 0)
        except (OSError, ValueError):  # unreadable, or empty: the EPs' looks say more
            continue
    return bool(senders), all(senders)
