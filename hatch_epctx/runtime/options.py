"""Options of a session: merging the manifest's with the caller's, and putting them on `SessionOptions`.

ORT's model package takes every session option as text, while Python's `add_session_config_entry` leaves typed ones
such as the optimisation level alone (ORT 1.32): those are set as attributes here, with the same words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hatch_epctx.errors import LookupFailure

if TYPE_CHECKING:
    from types import ModuleType

    from onnxruntime.capi.onnxruntime_pybind11_state import SessionOptions

__all__ = ["BOOLEANS", "LEVELS", "as_texts", "bad_option", "session_options"]

LEVELS: Mapping[str, str] = {
    "disable_all": "ORT_DISABLE_ALL",
    "enable_basic": "ORT_ENABLE_BASIC",
    "enable_extended": "ORT_ENABLE_EXTENDED",
    "enable_layout": "ORT_ENABLE_LAYOUT",
    "enable_all": "ORT_ENABLE_ALL",
}
"""Values of session.graph_optimization_level, by the member of ORT's GraphOptimizationLevel."""

_NUMBERS = {
    "session.intra_op_num_threads": "intra_op_num_threads",
    "session.inter_op_num_threads": "inter_op_num_threads",
    "session.log_severity_level": "log_severity_level",
    "session.log_verbosity_level": "log_verbosity_level",
}
_SWITCHES = {
    "session.enable_mem_pattern": "enable_mem_pattern",
    "session.enable_cpu_mem_arena": "enable_cpu_mem_arena",
    "session.use_deterministic_compute": "use_deterministic_compute",
    "session.use_per_session_threads": "use_per_session_threads",
}
BOOLEANS: Mapping[str, bool] = {"1": True, "true": True, "0": False, "false": False}
"""Values of session options that are switches."""


def as_texts(options: Mapping[str, str] | None, argument: str) -> dict[str, str]:
    """A copy of a caller's options.

    Raises:
        TypeError: not a mapping of text to text.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise TypeError(f"{argument} is {type(options).__name__}; expected a mapping of str to str")
    given: Mapping[Any, Any] = options
    for key, value in given.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"{argument}[{key!r}] is {value!r}; expected str, as ONNX Runtime takes it")
    return dict(options)


def session_options(ort: ModuleType, options: Mapping[str, str], base: SessionOptions | None) -> SessionOptions:
    """`SessionOptions` with `options` on it.

    Args:
        ort: ONNX Runtime.
        options: by key, as ORT's model package spells them.
        base: the caller's own, changed and returned; what differs from ORT's default there stays.

    Raises:
        LookupFailure: reason bad-option: a typed option has a value that ORT does not know.
    """
    made: Any = base if base is not None else ort.SessionOptions()
    default: Any = ort.SessionOptions()
    for key, value in options.items():
        typed = _typed(ort, key, value)
        if typed is None:
            if not (base is not None and _has_entry(base, key)):
                made.add_session_config_entry(key, value)
        elif getattr(made, typed[0]) == getattr(default, typed[0]):
            setattr(made, *typed)
    return made


def _typed(ort: ModuleType, key: str, value: str) -> tuple[str, Any] | None:
    """(attribute, value) of an option that is an attribute; None for all others."""
    try:
        if key == "session.graph_optimization_level":
            return "graph_optimization_level", getattr(ort.GraphOptimizationLevel, LEVELS[value.lower()])
        if key == "session.execution_mode":
            return "execution_mode", getattr(ort.ExecutionMode, f"ORT_{value.upper()}")
        if key == "session.log_id":
            return "logid", value
        if key in _NUMBERS:
            return _NUMBERS[key], int(value)
        if key in _SWITCHES:
            return _SWITCHES[key], BOOLEANS[value.lower()]
    except (KeyError, AttributeError, ValueError):
        raise bad_option(key, value) from None
    return None


def bad_option(key: str, value: str) -> LookupFailure:
    """The error for a session option whose value ONNX Runtime does not know."""
    return LookupFailure(f"the session option {key} = {value!r} is not one of ONNX Runtime's", reason="bad-option")


def _has_entry(options: Any, key: str) -> bool:
    try:
        options.get_session_config_entry(key)
    except RuntimeError:
        return False
    return True
