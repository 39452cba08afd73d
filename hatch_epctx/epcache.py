"""Caches that EPs keep of their own: which option names the place, and what fills it. Standard library only.

An EP that compiles while it loads may keep what it made in a folder: whole compiled graphs (OpenVINO, Core ML,
MIGraphX), engines and timings (TensorRT), kernels (TensorRT RTX). With ``ep-cache = true`` a build fills such a folder
in a fresh process and ships it; the look-up restores it to a private folder and names that to the EP. The build and
the look-up read one table, this one: no manifest can say which option gets a folder's path.

Filled by "source" means that only a session over a source model writes to the cache, so that the variant is shipped as
its source model: seen with OpenVINO, where loading an EPContext model neither reads nor writes CACHE_DIR
(onnxruntime-ep-openvino 1.8.1, device CPU). Filled by "compiled" means that loading the EPContext model does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CACHES", "EpCache", "cache_of", "clash", "names_a_place", "with_folder"]

_DEVICE: Final = "{DEVICE}"


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class EpCache:
    """One EP's cache in the file system."""

    option: str
    """Provider option that names the folder."""
    filled_by: Literal["source", "compiled"]
    inside: tuple[str, ...] = ()
    """Keys down the JSON of the option, where it is JSON; "{DEVICE}" is the device in upper case."""
    also: tuple[str, ...] = ()
    """Further options that name the same folder."""
    switches: Mapping[str, str] = field(default_factory=_nothing)
    """Options that go with it."""
    holds: str
    """What the EP keeps there, for the documentation."""
    run_here: bool = False
    """Whether this project's own tests run it."""

    def document(self) -> dict[str, Any]:
        """What of it may change the content of the cache, for the identity."""
        return {
            "filled-by": self.filled_by,
            "inside": list(self.inside),
            "options": [self.option, *self.also],
            "switches": dict(self.switches),
        }


CACHES: Final[Mapping[str, EpCache]] = MappingProxyType(
    {
        "OpenVINOExecutionProvider": EpCache(
            option="load_config",
            inside=(_DEVICE, "CACHE_DIR"),
            filled_by="source",
            holds="compiled graphs",
            run_here=True,
        ),
        "NvTensorRTRTXExecutionProvider": EpCache(
            option="nv_runtime_cache_path", filled_by="compiled", holds="kernels compiled for the GPU"
        ),
        "TensorrtExecutionProvider": EpCache(
            option="trt_engine_cache_path",
            also=("trt_timing_cache_path",),
            switches=MappingProxyType(
                {
                    "trt_engine_cache_enable": "1",
                    "trt_timing_cache_enable": "1",
                    # Without a prefix the model's file name is part of an engine's name.
                    "trt_engine_cache_prefix": "epctx",
                }
            ),
            filled_by="source",
            holds="engines and timings",
        ),
        "VitisAIExecutionProvider": EpCache(
            option="cache_dir",
            switches=MappingProxyType({"cache_key": "epctx"}),
            filled_by="source",
            holds="compiled graphs",
        ),
        "CoreMLExecutionProvider": EpCache(
            option="ModelCacheDirectory",
            filled_by="source",
            holds="compiled models, by the source's metadata COREML_CACHE_KEY",
        ),
        "MIGraphXExecutionProvider": EpCache(
            option="migraphx_model_cache_dir", filled_by="source", holds="compiled programs"
        ),
    }
)
"""Caches by the EP's registered name. Those that are not run here are as onnxruntime's documentation has them."""


def cache_of(ep: str) -> EpCache | None:
    """The cache of the EP with this registered name; None where it keeps none, or none is known."""
    return CACHES.get(ep)


def names_a_place(cache: EpCache, device: str, options: Mapping[str, str]) -> bool:
    """Whether `options` name a place for the cache already, or have its option in a form that none can be put into."""
    if any(name in options for name in cache.also):
        return True
    if not cache.inside:
        return cache.option in options
    value = _parsed(options.get(cache.option, "{}"))
    for key in _keys(cache, device)[:-1]:
        value = value.get(key, {}) if isinstance(value, dict) else None
    return not isinstance(value, dict) or _keys(cache, device)[-1] in value


def with_folder(cache: EpCache, device: str, options: Mapping[str, str], folder: str) -> dict[str, str]:
    """`options` with the cache in `folder`; they must not name a place yet (`names_a_place`)."""
    made = {**cache.switches, **options, **dict.fromkeys(cache.also, folder)}
    if not cache.inside:
        return {**made, cache.option: folder}
    document = _parsed(options.get(cache.option, "{}"))
    inner = document
    *outer, last = _keys(cache, device)
    for key in outer:
        inner = inner.setdefault(key, {})
    inner[last] = folder
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {**made, cache.option: text}


def clash(names: Iterable[str]) -> bool:
    """Whether two names of files below one folder are one where case does not count, or one lies inside another."""
    every = [name.casefold() for name in names]
    known = set(every)
    return len(known) != len(every) or any(
        "/".join(parts[:end]) in known for parts in (name.split("/") for name in known) for end in range(1, len(parts))
    )


def _keys(cache: EpCache, device: str) -> tuple[str, ...]:
    return tuple(device.upper() if key == _DEVICE else key for key in cache.inside)


def _parsed(text: str) -> Any:
    """The JSON of an option; None for what is none, such as the path of a file."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
