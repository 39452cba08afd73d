"""Qualcomm's QNN EP: HTP context binaries for Snapdragon chips, compiled on any x86-64 or ARM machine.

Options are those that onnxruntime-qnn 2.7.0 reads (its documentation, its sources and the strings of its library),
each tried against the EP. It takes wrong values in silence: an unknown chip, architecture or backend compiles for
the oldest architecture, so that every value is held against the table here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_epctx.providers.base import Contradiction, Option, OptionValue, Phase, Provider, SdkVersion, table
from hatch_epctx.providers.socs import SOC_ALIASES, SOCS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["QNN"]

HTP_ARCHS = ("68", "69", "73", "75", "79", "81")
"""Architectures that the EP knows by number; it takes any other one, v85 too, for v68."""
BF16_FROM = 88
"""Smallest `soc_model` for which the EP turns bf16 on; it compares the number, not the architecture."""
UDMA_FROM = 81
"""Smallest architecture with extended UDMA; a compile for an older one fails with "Failed to compose Qnn graph"."""
HTP_LIBRARIES = ("libQnnHtp.so", "QnnHtp.dll")

_WRITES = "it writes files that are no artifacts; use onnxruntime by itself for debugging"
_SIMULATOR = " Not on the x86 simulator: the load check fails there, set load-check = false."


def _switch(name: str, doc: str, phase: Phase = "compile", excludes: tuple[str, ...] = ()) -> Option:
    return Option(name=name, kind="bool", doc=doc, phase=phase, excludes=excludes)


def _debug(name: str) -> Option:
    return Option(name=name, kind="output-path", doc="Debugging output.", refuse=_WRITES)


OPTIONS = table(
    Option(
        name="backend_type",
        kind="enum",
        doc="Backend of QNN. Only HTP writes context binaries; without it the EP finds no backend on x86.",
        phase="both",
        values=("htp",),
        excludes=("backend_path",),
        expected="'htp', the one backend that writes context binaries",
    ),
    Option(
        name="backend_path",
        kind="enum",
        doc="Library of the backend by its file name, in place of backend_type. It binds the wheel to one system.",
        phase="both",
        values=HTP_LIBRARIES,
        expected="'libQnnHtp.so' or 'QnnHtp.dll'; backend_type = 'htp' serves every system. The content of a library "
        "elsewhere would not be part of the toolchain",
    ),
    Option(
        name="soc_model",
        kind="enum",
        doc="Chip that the binary is for: QNN's number, the part name, or the marketing name. May be written soc.",
        values=tuple(SOCS),
        aliases=SOC_ALIASES,
        expected="one chip by number, part name or marketing name, such as '60', 'SC8380XP' or 'snapdragon-x-elite'; "
        "several chips are a matrix",
    ),
    Option(
        name="htp_arch",
        kind="enum",
        doc="Architecture of the HTP, in place of soc_model; the EP then takes the family's smallest VTCM, 4 MiB.",
        values=HTP_ARCHS,
        aliases={f"v{arch}": arch for arch in HTP_ARCHS},
    ),
    Option(
        name="vtcm_mb",
        kind="int",
        doc="MiB of VTCM to use; the chip's own size when left out.",
        minimum=1,
        maximum=64,
    ),
    Option(
        name="htp_graph_finalization_optimization_mode",
        kind="enum",
        doc="Effort of the compiler: 0 default, 1 fast, 3 the most optimal graph.",
        values=("0", "1", "2", "3"),
    ),
    _switch("enable_htp_fp16_precision", "Compute float32 models in fp16. Needs soc_model."),
    _switch("htp_bf16_enable", f"Compute in bfloat16. Needs a soc_model of at least {BF16_FROM}."),
    _switch("enable_htp_fp16_clamp_overflow", "Saturate fp16 overflow in place of NaN, from v79 on."),
    _switch("enable_htp_monolithic_lstm", "Run an LSTM as one HTP kernel in place of unrolled cells."),
    _switch("enable_htp_spill_fill_buffer", "One spill-fill buffer for all graphs of a context.", "both"),
    _switch("enable_htp_graph_splitting", "Split graphs to prepare the parts by themselves. QNN SDK 2.49 and later."),
    Option(
        name="htp_graph_splitting_num_prepare_threads",
        kind="int",
        doc="Threads that prepare the parts of a split graph.",
        minimum=1,
        maximum=2**32 - 1,
    ),
    _switch("enable_block_quant_weight_optimization", "The optimised path for block-quantised weights."),
    _switch("offload_graph_io_quantization", "Leave quantisation of the graph's inputs and outputs to the CPU EP."),
    _switch("extended_udma", f"Extended UDMA, from v{UDMA_FROM} on.", "both"),
    _switch("enable_htp_shared_memory_allocator", "Tensors in memory shared with the HTP." + _SIMULATOR, "both"),
    _switch("enable_dx12_shared_memory_allocator", "Tensors in memory shared with Direct3D 12. Windows only.", "run"),
    Option(
        name="qnn_context_priority",
        kind="enum",
        doc="Priority of the context among others on the HTP; stands in the binary too.",
        phase="both",
        values=("low", "normal_low", "normal", "normal_high", "high", "high_plus", "critical", "critical_plus"),
    ),
    Option(
        name="op_affinity",
        kind="file",
        doc="JSON file that pins operator types to a backend.",
    ),
    Option(
        name="num_graph_prepare_threads",
        kind="int",
        doc="Threads that prepare graphs, for a model in five or more pieces. Windows on ARM only.",
        minimum=1,
        maximum=255,
    ),
    _switch("skip_qnn_version_check", "Take QNN libraries of another version than the EP's own.", "both"),
    Option(
        name="htp_performance_mode",
        kind="enum",
        doc="Clocks and voltages of the HTP while a session runs.",
        phase="run",
        values=(
            "default",
            "burst",
            "balanced",
            "high_performance",
            "sustained_high_performance",
            "low_balanced",
            "high_power_saver",
            "low_power_saver",
            "power_saver",
            "extreme_power_saver",
        ),
    ),
    Option(
        name="rpc_control_latency",
        kind="int",
        doc="Latency of remote procedure calls to the HTP, microseconds.",
        phase="run",
        minimum=0,
        maximum=2**32 - 1,
    ),
    Option(
        name="device_id",
        kind="int",
        doc="Number of the HTP at run time. A compile for another one than 0 fails.",
        phase="run",
        minimum=0,
        maximum=255,
    ),
    Option(
        name="htp_share_resource_optimization",
        kind="enum",
        doc="Share VTCM backup buffers over the sessions of a process." + _SIMULATOR,
        phase="run",
        values=("1",),
        expected="'1'; leave it out for off",
    ),
    _switch(
        "enable_vtcm_backup_buffer_sharing",
        "Older name of htp_share_resource_optimization." + _SIMULATOR,
        "run",
        ("htp_share_resource_optimization",),
    ),
    Option(
        name="htp_reused_io_limit_mb",
        kind="int",
        doc="MiB of input and output buffers to reuse." + _SIMULATOR,
        phase="run",
        minimum=0,
        maximum=2**31 - 1,
    ),
    _switch("disable_file_mapped_weights", "Read context binaries in place of mapping them.", "run"),
    Option(
        name="genie_log_level",
        kind="enum",
        doc="Log level of Genie, for language models.",
        phase="run",
        values=("error", "warn", "info", "verbose"),
    ),
    Option(
        name="op_packages",
        kind="op-packages",
        doc="Libraries of user-defined operators, 'OPERATOR:LIBRARY:INTERFACE[:CPU|HTP]' or an array of such texts. "
        "Each counts by content. The wheel carries none: the application passes those of its device.",
        phase="both",
    ),
    Option(
        name="enable_htp_prepare_only",
        kind="bool",
        doc="Compile without loading.",
        refuse="it is for sessions that compile while they open; a build always compiles ahead",
    ),
    Option(
        name="enable_htp_prepare_and_load",
        kind="bool",
        doc="Compile and load again in one session.",
        refuse="it is for sessions that compile while they open; a build always compiles ahead",
    ),
    Option(
        name="profiling_level",
        kind="enum",
        doc="QNN's profiler.",
        values=("off", "basic", "detailed", "optrace"),
        refuse="it needs profiling_file_path, which writes beside the session; set it where the application runs",
    ),
    _debug("profiling_file_path"),
    _debug("qnn_saver_path"),
    _debug("dump_json_qnn_graph"),
    _debug("json_qnn_graph_dir"),
    _debug("dump_qnn_ir_dlc"),
    _debug("dump_qnn_ir_dlc_dir"),
    _debug("qnn_ir_backend_path"),
    _debug("skip_backend_op_validation"),
    _debug("enable_framework_op_trace"),
    _debug("framework_op_trace_dir"),
    _debug("dump_qnn_ep_input_graph"),
    _debug("dump_qnn_ep_input_graph_dir"),
)


def contradictions(device: str, options: Mapping[str, OptionValue]) -> Iterator[Contradiction]:  # noqa: ARG001
    """What the EP refuses late, in its own words, or takes in silence."""
    text = {name: option.text for name, option in options.items()}
    soc = SOCS.get(text.get("soc_model", ""))
    wanted = {name for name in text if text[name] == "1"}
    if soc and text.get("htp_arch", str(soc.htp_arch)) != str(soc.htp_arch):
        yield Contradiction(
            option="htp_arch",
            found=f"v{text['htp_arch']} does not go with soc_model {soc.model}, whose HTP is v{soc.htp_arch}",
            remedy="Remove htp_arch: the EP follows soc_model.",
        )
    for name in sorted(wanted & {"htp_bf16_enable", "enable_htp_fp16_precision"}):
        if "soc_model" not in text:
            yield Contradiction(option=name, found="the option needs a soc_model", remedy="Name the chip.")
    if soc and "htp_bf16_enable" in wanted and soc.model < BF16_FROM:
        found = f"soc_model {soc.model} ({soc.chip}) has no bfloat16"
        yield Contradiction(option="htp_bf16_enable", found=found, expected=f"a soc_model of at least {BF16_FROM}")
    if soc and "enable_htp_fp16_precision" in wanted and not soc.floating_point:
        found = f"soc_model {soc.model} ({soc.chip}) takes no floating-point models"
        remedy = "Remove the option and quantise the model."
        yield Contradiction(option="enable_htp_fp16_precision", found=found, remedy=remedy)
    arch = str(soc.htp_arch) if soc else text.get("htp_arch", "")
    if "extended_udma" in wanted and arch.isdecimal() and int(arch) < UDMA_FROM:
        found = f"v{arch} has no extended UDMA"
        yield Contradiction(option="extended_udma", found=found, expected=f"a chip with v{UDMA_FROM} or later")


QNN = Provider(
    key="qnn",
    names=("QNNExecutionProvider", "QNN", "QnnExecutionProvider"),
    title="Qualcomm QNN",
    distributions=("onnxruntime-qnn",),
    module="onnxruntime_qnn",
    extra="qnn",
    devices=("npu",),
    run_here=True,
    windows_catalog=True,
    offline=True,
    simulated=True,
    # The process dies of SIGSEGV while the session is made (2.7.0), with and without ep.share_ep_contexts.
    shared_not_simulated="the x86 simulator cannot open a context binary that several models share",
    manifest_device=False,
    # With several sessions in one process its check touches freed memory (2.7.0) and the process dies; the look-up
    # compares chip and SDK itself.
    manifest_compatibility=False,
    options=OPTIONS,
    defaults={"backend_type": "htp"},
    other_names={"soc": "soc_model"},
    needs_any=("soc_model", "htp_arch"),
    needs_any_reason="Without them the EP compiles for v68, which later chips refuse to load.",
    trial_options={"soc_model": "60"},  # any does: the trial asks whether the compiler works
    contradictions=contradictions,
    needs_static_shapes=True,
    sdk=(
        SdkVersion(
            name="qnn",
            files="onnxruntime_qnn/build_and_package_info.py",
            pattern=r"(?m)^qnn_version\s*=\s*['\"]([0-9][0-9A-Za-z.]*)['\"]",
        ),
    ),
    # LogNodeSupport of the EP, at level verbose (2.7.0); the warning before it says which backend's call refused.
    left_pattern=r"(?P<cause>QNN\.backendValidateOpConfig\(\) failed)(?: for node .* with (?P<code>error code \d+))?"
    r"|LogNodeSupport\] Validation (?:PASSED|(?P<failed>FAILED)) for "
    r"|\tOperator type: (?P<operator>\S+) Node name: (?P<node>.*?) Node index: \d+"
    r"|\tREASON : (?P<reason>.+)",
    run_environment=("ORT_QNN_CUSTOM_OP_DOMAINS", "GPE_KWAY_PARTITIONS"),
)
