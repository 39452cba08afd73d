"""Intel's OpenVINO EP: CPUs, GPUs and NPUs, as a plugin (onnxruntime-ep-openvino).

The plugin reads four options; the many options of the EP that older ONNX Runtime builds carried are ignored with a
warning, and everything else goes into `load_config`, OpenVINO's own properties by device. The plugin ignores entries
for other devices in silence, lower-case device names too, and reports a wrong property only while it compiles, so
that both are checked here. Tried with onnxruntime-ep-openvino 1.8.1 (OpenVINO 2026.4.1).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hatch_epctx.epcache import CACHES
from hatch_epctx.errors import ConfigError
from hatch_epctx.providers.base import Contradiction, Option, OptionValue, Provider, SdkVersion, table
from hatch_epctx.providers.values import close_match, read_value, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["CPU_PROPERTIES", "OPENVINO", "OPENVINO_AUTO"]

DEPTH = 8
"""Levels of nested maps that the plugin reads in load_config."""

_DEVICE = "the target's 'device' chooses it"


def _flag(name: str, doc: str) -> Option:
    return Option(name=name, kind="bool", doc=doc, values=("NO", "YES"))


def _number(name: str, doc: str, minimum: int = 0) -> Option:
    return Option(name=name, kind="int", doc=doc, minimum=minimum, maximum=2**31 - 1)


def _one_of(name: str, doc: str, *values: str) -> Option:
    return Option(name=name, kind="enum", doc=doc, values=values)


_CACHE_PRECISIONS = ("f32", "f16", "bf16", "u8", "u4", "u3")

CPU_PROPERTIES = table(
    _one_of("PERFORMANCE_HINT", "Goal of the runtime.", "LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT"),
    _number("PERFORMANCE_HINT_NUM_REQUESTS", "Requests at once that the hint plans for."),
    _one_of("EXECUTION_MODE_HINT", "Keep the model's precision, or compute faster.", "PERFORMANCE", "ACCURACY"),
    _one_of("INFERENCE_PRECISION_HINT", "Precision of the computation.", "f32", "bf16", "f16", "dynamic", "undefined"),
    Option(name="NUM_STREAMS", kind="int", doc="Inferences at once.", minimum=0, values=("AUTO", "NUMA")),
    _number("INFERENCE_NUM_THREADS", "Threads of one inference; 0 is automatic."),
    _flag("ENABLE_CPU_PINNING", "Bind threads to cores."),
    _flag("ENABLE_CPU_RESERVATION", "Keep cores from other models of the process."),
    _flag("ENABLE_HYPER_THREADING", "Use both threads of a core."),
    _one_of("SCHEDULING_CORE_TYPE", "Cores to use.", "ANY_CORE", "PCORE_ONLY", "ECORE_ONLY"),
    _one_of("MODEL_DISTRIBUTION_POLICY", "How a model spreads over sockets.", "", "TENSOR_PARALLEL"),
    _flag("ENABLE_TENSOR_PARALLEL", "Spread tensors over sockets."),
    _number("DYNAMIC_QUANTIZATION_GROUP_SIZE", "Group size of dynamic quantisation; 0 is off."),
    _one_of("KV_CACHE_PRECISION", "Precision of the key-value cache.", *_CACHE_PRECISIONS),
    _one_of("KEY_CACHE_PRECISION", "Precision of the key cache.", *_CACHE_PRECISIONS),
    _one_of("VALUE_CACHE_PRECISION", "Precision of the value cache.", *_CACHE_PRECISIONS),
    _number("KEY_CACHE_GROUP_SIZE", "Group size of the key cache's quantisation."),
    _number("VALUE_CACHE_GROUP_SIZE", "Group size of the value cache's quantisation."),
    _one_of("KEY_CACHE_QUANT_MODE", "Direction of the key cache's quantisation.", "AUTO", "BY_CHANNEL", "BY_TOKEN"),
    _one_of("VALUE_CACHE_QUANT_MODE", "Direction of the value cache's quantisation.", "AUTO", "BY_CHANNEL", "BY_TOKEN"),
    _flag("ENABLE_SAGE_ATTN", "Sage attention."),
    _flag("PERF_COUNT", "Count time by operator."),
    _one_of("CACHE_MODE", "Speed or size of the compiled blob.", "OPTIMIZE_SPEED", "OPTIMIZE_SIZE"),
    _one_of("LOG_LEVEL", "Log level.", "LOG_NONE", "LOG_ERROR", "LOG_WARNING", "LOG_INFO", "LOG_DEBUG", "LOG_TRACE"),
    _flag("CPU_DENORMALS_OPTIMIZATION", "Flush denormal numbers to zero."),
    Option(
        name="CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE",
        kind="float",
        doc="Share of zeros from which weights are kept sparse.",
        minimum=0,
        maximum=1,
    ),
    _number("CPU_RUNTIME_CACHE_CAPACITY", "Entries of the cache of compiled primitives."),
    _one_of("SNIPPETS_MODE", "Fusion of small operators.", "ENABLE", "IGNORE_CALLBACK", "DISABLE"),
    _flag("LP_TRANSFORMS_MODE", "Low-precision transformations of quantised models."),
    _flag("ENABLE_MMAP", "Map files in place of reading them."),
    _number("AUTO_BATCH_TIMEOUT", "Milliseconds to wait for a batch."),
    _flag("ALLOW_AUTO_BATCHING", "Gather requests into batches."),
)
"""Properties that the CPU device of the plugin takes, each tried against it. GPU and NPU have no such table: their
drivers add properties of their own, and none of them runs here."""

REFUSED_PROPERTIES: Mapping[str, str] = {
    "CACHE_DIR": "it names a folder of the machine that runs; the target's 'ep-cache' ships what it would hold",
    "CACHE_ENCRYPTION_CALLBACKS": "it takes functions, not text",
    "WEIGHTS_PATH": "it names a file of the machine that runs",
    "DEVICE_ID": _DEVICE,
}
"""Properties that a target may not set, on any device, and why."""


def _ignored(name: str, text: str) -> Option:
    return Option(name=name, kind="string", doc="An option of the EP inside older ONNX Runtime builds.", ignored=text)


def _instead(name: str, device: str, value: str, example: str) -> Option:
    return _ignored(name, f"the plugin ignores it; set load_config = {{ {device} = {{ {value} = {example} }} }}")


OPTIONS = table(
    Option(
        name="load_config",
        kind="json-or-file",
        doc="OpenVINO's properties by device: {CPU: {INFERENCE_PRECISION_HINT: f32}}. They are not part of the "
        "context binary and travel with it.",
        phase="both",
    ),
    Option(
        name="reshape_input",
        kind="string",
        doc="Shapes or bounds of inputs, such as 'x[1,3,60,80..100]', for dynamic models on the NPU.",
    ),
    Option(
        name="enable_causallm",
        kind="bool",
        doc="Compile a language model as one stateful graph.",
        phase="both",
        values=("false", "true"),
    ),
    Option(
        name="hint_enable_gqa",
        kind="bool",
        doc="Keep GroupQueryAttention whole.",
        phase="both",
        values=("false", "true"),
    ),
    Option(
        name="dump_subgraphs",
        kind="output-path",
        doc="Folder for the graphs that the EP compiles.",
        refuse="it writes files that are no artifacts; use onnxruntime by itself for debugging",
    ),
    _ignored("device_type", f"the plugin ignores it; {_DEVICE}"),
    _ignored("device_id", f"the plugin ignores it; {_DEVICE}"),
    _ignored("device_luid", f"the plugin ignores it; {_DEVICE}"),
    _instead("precision", "CPU", "INFERENCE_PRECISION_HINT", '"f32"'),
    _instead("num_of_threads", "CPU", "INFERENCE_NUM_THREADS", '"4"'),
    _instead("num_streams", "CPU", "NUM_STREAMS", '"1"'),
    _instead("model_priority", "GPU", "MODEL_PRIORITY", '"LOW"'),
    _instead("enable_opencl_throttling", "GPU", "PLUGIN_THROTTLE", '"1"'),
    _instead("enable_qdq_optimizer", "NPU", "NPU_QDQ_OPTIMIZATION", '"YES"'),
    _ignored("cache_dir", "the plugin ignores it; the target's 'ep-cache' ships what the cache would hold"),
    _ignored("disable_dynamic_shapes", "the plugin does not know it; name the model's free dimensions"),
    _ignored("layout", "the plugin does not know it"),
    _ignored("context", "the plugin does not know it"),
)


def contradictions(device: str, options: Mapping[str, OptionValue]) -> Iterator[Contradiction]:
    """Findings inside load_config: entries for other devices, unknown properties, values that do not fit."""
    option = options.get("load_config")
    if option is None:
        return
    wanted = device.upper()
    for name, properties in json.loads(option.text).items():
        if name != wanted and not (wanted == "GPU" and name.startswith("GPU.")):
            yield _finding(
                f"the entry {name!r} does not go with device {device!r}: the EP ignores it",
                expected=repr(wanted),
                remedy=f"Did you mean {wanted!r}?" if name.upper() == wanted else "",
            )
        elif not isinstance(properties, dict):
            yield _finding(f"the entry {name!r} holds {shown(properties)}", expected="a table of properties")
        else:
            for key, value in properties.items():
                yield from _property(name, key, value, known=wanted == "CPU" and option.checked)


def _finding(found: str, *, expected: str = "", remedy: str = "") -> Contradiction:
    return Contradiction(option="load_config", found=found, expected=expected, remedy=remedy)


def _property(device: str, key: str, value: Any, *, known: bool) -> Iterator[Contradiction]:
    place = f"{device}.{key}"
    if reason := REFUSED_PROPERTIES.get(key):
        yield _finding(f"the property {place} cannot be set: {reason}", remedy="Remove it.")
    elif not _readable(value, 2):
        found = f"the property {place} holds {shown(value)}"
        yield _finding(found, expected=f"a string, a number, a boolean or a table, nested {DEPTH} deep at most")
    elif known and key not in CPU_PROPERTIES:
        hint = close_match(key, CPU_PROPERTIES)
        admit = "A newer property is passed when 'allow-unknown-options' names load_config."
        yield _finding(f"unknown property {place}", remedy=f"{hint} {admit}".strip())
    elif known:
        try:
            read_value(CPU_PROPERTIES[key], value, where="", root=None)
        except ConfigError as error:
            yield _finding(f"the property {place}: {error.found}", expected=error.expected, remedy=error.remedy)


def _readable(value: Any, depth: int) -> bool:
    """Whether the plugin reads a value of this form."""
    if isinstance(value, dict):
        return depth < DEPTH and all(_readable(inner, depth + 1) for inner in value.values())
    return isinstance(value, (str, bool, int, float))


_NAME = "OpenVINOExecutionProvider"
_DISTRIBUTIONS = ("onnxruntime-ep-openvino",)
_MODULE = "onnxruntime_ep_openvino"

OPENVINO = Provider(
    key="openvino",
    names=(_NAME, "OpenVINO"),
    title="Intel OpenVINO",
    distributions=_DISTRIBUTIONS,
    module=_MODULE,
    extra="openvino",
    devices=("cpu", "gpu", "npu"),
    run_here=True,
    windows_catalog=True,
    options=OPTIONS,
    contradictions=contradictions,
    cache=CACHES[_NAME],
    bakes_isa=True,
    bakes_cores=True,
    system_toolchain=True,
    sdk=(
        SdkVersion(
            name="openvino",
            files="onnxruntime_ep_openvino/*openvino.*",
            pattern=r"(20\d\d\.\d+\.\d+-\d+-[0-9a-f]{7,40})",
        ),
    ),
    # The first two bound the instruction set that is compiled for, and with it the bytes; the others move nodes to
    # and from the EP.
    run_environment=(
        "ONEDNN_MAX_CPU_ISA",
        "DNNL_MAX_CPU_ISA",
        "ORT_OPENVINO_ACCEPT_OPS",
        "ORT_OPENVINO_REJECT_OPS",
    ),
)

OPENVINO_AUTO = Provider(
    key="openvino-auto",
    names=(f"{_NAME}.AUTO",),
    title="Intel OpenVINO's automatic device",
    distributions=_DISTRIBUTIONS,
    module=_MODULE,
    extra="openvino",
    devices=("cpu", "gpu", "npu"),
    epcontext=False,
    epcontext_reason="it chooses the device while it runs; name the device with ep = 'openvino'",
    run_here=True,
)
