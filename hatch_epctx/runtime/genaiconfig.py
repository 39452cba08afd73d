"""genai_config.json of onnxruntime-genai: its parts, and options in its words (src/config.cpp, seen with 0.18.0)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.errors import LookupFailure
from hatch_epctx.files import parse_json, read_bounded
from hatch_epctx.runtime import plugins
from hatch_epctx.runtime.options import BOOLEANS, LEVELS, bad_option

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hatch_epctx.runtime.choice import Choice

__all__ = ["CONFIG", "part_options", "parts_of", "read_config"]

CONFIG: Final = "genai_config.json"
_LIMIT: Final = 4 << 20
"""Bytes of a configuration that is read."""
_NAMES: Final = {
    "OpenVINOExecutionProvider": "OpenVINO",
    "QNNExecutionProvider": "QNN",
    "NvTensorRTRTXExecutionProvider": "NvTensorRtRtx",
    "VitisAIExecutionProvider": "VitisAI",
    "WebGpuExecutionProvider": "WebGPU",
    "CUDAExecutionProvider": "cuda",
    "DmlExecutionProvider": "DML",
}
"""What onnxruntime-genai calls EPs; any other one by its registered name (src/config.cpp, NormalizeProviderName)."""
_NUMBERS: Final = (
    "session.intra_op_num_threads",
    "session.inter_op_num_threads",
    "session.log_severity_level",
    "session.log_verbosity_level",
)
_SWITCHES: Final = ("session.enable_cpu_mem_arena", "session.enable_mem_pattern")


def read_config(file: Path) -> dict[str, Any]:
    """The configuration, with an object "model" in it.

    Raises:
        LookupFailure: reason no-config.
    """
    try:
        document = parse_json(read_bounded(file, _LIMIT))
    except OSError as error:
        found = f"cannot be read: {error.strerror or error}"
        raise LookupFailure(found, where=str(file), expected=f"a folder with {CONFIG}", reason="no-config") from error
    except ValueError as error:
        raise LookupFailure(f"no valid JSON: {error}", where=str(file), reason="no-config") from error
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise LookupFailure("has no object 'model'", where=str(file), reason="no-config")
    return document


def parts_of(value: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Objects that name an ONNX file; the stages of a pipeline stand in a list of objects with one member each."""
    for key, inner in value.items():
        name = f"{place}.{key}" if place else key
        if isinstance(inner, dict):
            if isinstance(inner.get("filename"), str):
                yield name, inner
            yield from parts_of(inner, name)
        elif isinstance(inner, list):
            for item in inner:
                if isinstance(item, dict):
                    yield from parts_of(item, name)


def part_options(own: Any, choice: Choice) -> dict[str, Any]:
    """The part's session options with those of the choice over them, in onnxruntime-genai's words.

    Raises:
        LookupFailure: reason bad-option.
    """
    made: dict[str, Any] = dict(own) if isinstance(own, dict) else {}
    for key, text in choice.session_options.items():
        try:
            if key == "session.graph_optimization_level":
                made["graph_optimization_level"] = LEVELS[text.lower()]
            elif key in _NUMBERS:
                made[key.removeprefix("session.")] = int(text)
            elif key in _SWITCHES:
                made[key.removeprefix("session.")] = BOOLEANS[text.lower()]
            else:
                made[key] = text
        except (KeyError, ValueError):
            raise bad_option(key, text) from None
    if choice.ep == plugins.CPU:
        return {**made, "provider_options": []}
    options: dict[str, Any] = dict(choice.provider_options)
    if choice.ep_device is not None:
        options["device_filtering_options"] = {"hardware_device_type": choice.device}
    return {**made, "provider_options": [{_NAMES.get(choice.ep, choice.ep): options}]}
