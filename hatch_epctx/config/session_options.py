"""Session options of a compile: how they are written, and which ones no target may set.

Every entry of the map reaches ONNX Runtime as text (`SessionOptions.add_session_config_entry`) and stands in the
identity. Refused are the entries that the compiler ignores, that this project sets itself, and that name files:
no identity would hold such a file's content. All other entries pass.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

from hatch_epctx.config.base import bad

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REFUSED", "SessionOptions"]

_EMBED = "the compile ignores it and takes the target's 'embed'"
_OWN = "the compile sets it itself"
_GROUPS = "weight sharing belongs to [tool.epctx.groups], which compiles all members in one process"
_FILE = "it names a file or folder, whose content no identity would hold"
_LEVEL = "the compile ignores it and takes the target's 'optimization'"

REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ep.context_enable": _OWN,
        "ep.context_file_path": _OWN,
        "ep.context_embed_mode": _EMBED,
        "ep.context_model_external_initializers_file_name": _OWN,
        "ep.context_source_model_path": _OWN,
        "ep.share_ep_contexts": _GROUPS,
        "ep.stop_share_ep_contexts": _GROUPS,
        "session.graph_optimization_level": _LEVEL,
        "session.record_ep_graph_assignment_info": "coverage is recorded by the compile itself where it can be had",
        "session.disable_model_compile": "it forbids the very compile that the target asks for",
        "session.compile_only": _OWN,
        "session.load_model_format": "sources are ONNX files",
        "session.save_model_format": "results are ONNX files",
        "session.enable_profiling": "it writes files that are no artifacts",
        "session.profile_file_prefix": _FILE,
        "session.collect_node_memory_stats_to_file": _FILE,
        "session.model_external_initializers_file_folder_path": _FILE,
        "session.optimized_model_external_initializers_file_name": _FILE,
        "session.moe.offload.derived_cache_dir": _FILE,
        "session.moe.offload.popularity_file": _FILE,
    }
)
"""Session options that a target may not set, and why."""


def _check_key(key: str) -> str:
    if not key.strip() or "\0" in key:
        raise bad(f"{key!r} is not a session option", expected="a key such as 'session.disable_cpu_ep_fallback'")
    if reason := REFUSED.get(key):
        raise bad(f"the session option {key!r} cannot be set: {reason}", remedy="Remove it.")
    return key


def _read_value(value: object) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        if "\0" in value:
            raise bad("the value holds a NUL character")
        return value
    if isinstance(value, dict):
        remedy = 'A key with dots stands in quotes, as "session.disable_cpu_ep_fallback" does.'
        raise bad("found a table", expected="a string, an integer or a boolean", remedy=remedy)
    raise bad(f"found {value!r}", expected="a string, an integer or a boolean")


SessionOptions = dict[
    Annotated[str, AfterValidator(_check_key)],
    Annotated[str, BeforeValidator(_read_value), WithJsonSchema({"type": ["string", "integer", "boolean"]})],
]
"""Session options by key; integers and booleans become the text that ONNX Runtime reads ("1" and "0")."""
