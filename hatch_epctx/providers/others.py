"""EPs that this project knows but does not run: names, devices and option tables from their documentation.

Their targets are validated like any other one, and shown as "not run here". EPs that write no EPContext models are
here too, each with the reason, so that a target for one is refused in words.

Sources: onnxruntime's documentation of each EP, the option names in its sources (TensorRT, MIGraphX, WebGPU), the
header of NVIDIA's plugin for TensorRT RTX, and AMD's Ryzen AI documentation for Vitis AI.
"""

from __future__ import annotations

from hatch_epctx.epcache import CACHES
from hatch_epctx.providers.base import Option, Phase, Provider, table

__all__ = ["OTHERS"]

_CACHE = "it names a folder of the machine that runs; the target's 'ep-cache' ships what it would hold"
_CONTEXT = "the build itself says where and how the EPContext model is written; use the target's 'embed'"
_DUMP = "it writes files that are no artifacts; use onnxruntime by itself for debugging"
_POINTER = "it is an address in a running process"
_LIBRARY = "it names a library of the machine that runs, which no identity would hold"


def _switch(name: str, doc: str, phase: Phase = "compile") -> Option:
    return Option(name=name, kind="bool", doc=doc, phase=phase)


def _number(name: str, doc: str, phase: Phase = "compile", minimum: int = 0, maximum: int = 2**63 - 1) -> Option:
    return Option(name=name, kind="int", doc=doc, phase=phase, minimum=minimum, maximum=maximum)


def _text(name: str, doc: str, phase: Phase = "compile") -> Option:
    return Option(name=name, kind="string", doc=doc, phase=phase)


def _one_of(name: str, doc: str, *values: str, phase: Phase = "compile") -> Option:
    return Option(name=name, kind="enum", doc=doc, phase=phase, values=values)


def _refused(why: str, *names: str) -> tuple[Option, ...]:
    return tuple(Option(name=name, kind="output-path", doc="Refused in a build.", refuse=why) for name in names)


_PROFILES = "Input shapes of the optimisation profile: 'x:1x3x224x224,y:1x10'. The three go together."

TENSORRT_RTX = Provider(
    key="tensorrt-rtx",
    names=("NvTensorRTRTXExecutionProvider", "NvTensorRtRtxExecutionProvider", "NvTensorRTRTX"),
    title="NVIDIA TensorRT RTX",
    distributions=(
        "onnxruntime-ep-nv-tensorrt-rtx-cu13",
        "onnxruntime-ep-nv-tensorrt-rtx-cu12",
        "onnxruntime-ep-nv-tensorrt-rtx",
    ),
    module="onnxruntime_ep_nv_tensorrt_rtx",
    devices=("gpu",),
    windows_catalog=True,
    system_toolchain=True,
    cache=CACHES["NvTensorRTRTXExecutionProvider"],
    options=table(
        _number("device_id", "CUDA device.", "both"),
        _number("nv_max_workspace_size", "Bytes of workspace of a build; 0 is automatic."),
        _number("nv_max_shared_mem_size", "Bytes of shared memory of a kernel; 0 is automatic."),
        _text("nv_profile_min_shapes", _PROFILES),
        _text("nv_profile_opt_shapes", _PROFILES),
        _text("nv_profile_max_shapes", _PROFILES),
        _switch("nv_multi_profile_enable", "Several optimisation profiles in one engine.", "both"),
        _switch("nv_use_external_data_initializer", "Weights from external data in place of the engine.", "both"),
        _text("nv_op_types_to_exclude", "Operator types to leave to other EPs, separated by commas."),
        _switch("nv_weight_stripped_engine_enable_experimental", "Engines without weights."),
        _switch("nv_detailed_build_log", "Log the build in detail."),
        _switch("enable_cuda_graph", "Capture a CUDA graph; shapes must not change.", "run"),
        _text("nv_weight_streaming_budget", "Memory for streamed weights: 0, -1, 512M, 50%.", "run"),
        _switch("nv_use_sync_gpu_allocator", "cudaMalloc in place of cudaMallocAsync.", "run"),
        _switch("nv_persistent_context_memory", "Keep the memory of execution contexts.", "run"),
        _number("nv_multi_rotary_cache_concat_offset", "Token at which the long rotary cache begins.", "both"),
        *_refused(_CACHE, "nv_runtime_cache_path"),
        *_refused(_DUMP, "nv_dump_subgraphs", "nv_enable_profiling", "nv_profiling_output_file"),
        *_refused(
            _POINTER,
            "has_user_compute_stream",
            "user_compute_stream",
            "user_aux_stream_array",
            "nv_length_aux_stream_array",
            "VkExternalComputeQueueDataParamsNV_data",
        ),
    ),
)

TENSORRT = Provider(
    key="tensorrt",
    names=("TensorrtExecutionProvider", "TensorRTExecutionProvider", "TensorRT"),
    title="NVIDIA TensorRT",
    distributions=("onnxruntime-gpu",),
    devices=("gpu",),
    system_toolchain=True,
    cache=CACHES["TensorrtExecutionProvider"],
    options=table(
        _number("device_id", "CUDA device.", "both"),
        _number("trt_max_partition_iterations", "Attempts at partitioning the model.", minimum=1),
        _number("trt_min_subgraph_size", "Nodes of the smallest subgraph to take.", minimum=1),
        _number("trt_max_workspace_size", "Bytes of workspace of a build."),
        _switch("trt_fp16_enable", "Compute in fp16."),
        _switch("trt_bf16_enable", "Compute in bfloat16."),
        _switch("trt_int8_enable", "Compute in int8."),
        Option(name="trt_int8_calibration_table_name", kind="file", doc="Calibration of models that are not QDQ."),
        _switch("trt_int8_use_native_calibration_table", "The calibration table is TensorRT's own."),
        _switch("trt_dla_enable", "Use the deep-learning accelerator."),
        _number("trt_dla_core", "Its core."),
        _switch("trt_force_sequential_engine_build", "Build engines one after another."),
        _switch("trt_context_memory_sharing_enable", "Share memory between subgraphs.", "both"),
        _switch("trt_layer_norm_fp32_fallback", "Layer normalisation in fp32."),
        _switch("trt_timing_cache_enable", "Keep timings of kernels while building."),
        _switch("trt_force_timing_cache", "Take timings of another GPU model."),
        _switch("trt_detailed_build_log", "Log the build in detail."),
        _switch("trt_build_heuristics_enable", "Heuristics in place of timing."),
        _switch("trt_sparsity_enable", "Use sparse kernels."),
        _number("trt_builder_optimization_level", "Effort of the build.", maximum=5),
        _number("trt_auxiliary_streams", "Streams beside each inference's; -1 is automatic.", "both", minimum=-1),
        _text("trt_tactic_sources", "Tactics to add or remove: '-CUDNN,+CUBLAS'."),
        _text("trt_profile_min_shapes", _PROFILES),
        _text("trt_profile_opt_shapes", _PROFILES),
        _text("trt_profile_max_shapes", _PROFILES),
        _text("trt_preview_features", "Preview features of TensorRT, separated by commas."),
        _text("trt_op_types_to_exclude", "Operator types to leave to other EPs, separated by commas."),
        _switch("trt_engine_hw_compatible", "Engines for every GPU of the Ampere generation and later."),
        _switch("trt_weight_stripped_engine_enable", "Engines without weights."),
        _switch("trt_cuda_graph_enable", "Capture a CUDA graph; shapes must not change.", "run"),
        *_refused(_CONTEXT, "trt_dump_ep_context_model", "trt_ep_context_file_path", "trt_ep_context_embed_mode"),
        *_refused(
            _CACHE,
            "trt_engine_cache_enable",
            "trt_engine_cache_path",
            "trt_engine_cache_prefix",
            "trt_timing_cache_path",
            "trt_onnx_model_folder_path",
        ),
        *_refused(_DUMP, "trt_dump_subgraphs"),
        *_refused(_LIBRARY, "trt_extra_plugin_lib_paths", "trt_engine_decryption_lib_path"),
        *_refused("it needs a library of the machine that runs", "trt_engine_decryption_enable"),
        *_refused(
            _POINTER,
            "has_user_compute_stream",
            "user_compute_stream",
            "trt_onnx_bytestream",
            "trt_onnx_bytestream_size",
            "trt_external_data_bytestream",
            "trt_external_data_bytestream_size",
        ),
    ),
)

VITISAI = Provider(
    key="vitisai",
    names=("VitisAIExecutionProvider", "VitisAI"),
    title="AMD Vitis AI",
    distributions=("onnxruntime-vitisai",),
    devices=("npu",),
    windows_catalog=True,
    system_toolchain=True,
    cache=CACHES["VitisAIExecutionProvider"],
    options=table(
        Option(name="config_file", kind="file", doc="JSON file with settings of the compiler."),
        Option(name="xclbin", kind="file", doc="Overlay of the NPU, for the X1 target."),
        _one_of("target", "Generation of the int8 compiler.", "X1", "X2"),
        _one_of("opt_level", "Effort of the compiler.", "0", "1", "2", "3", "65536"),
        _one_of("log_level", "Log level.", "info", "warning", "error", "fatal", phase="both"),
        *_refused(_CACHE, "cache_dir", "cache_key", "enable_cache_file_io_in_mem"),
        *_refused(_CONTEXT, "ep_context_enable", "ep_context_embed_mode", "ep_context_file_path"),
        *_refused("a key in a configuration file is no secret, and the wheel would carry it", "encryption_key"),
        *_refused("a key in a configuration file is no secret, and the wheel would carry it", "encryptionKey"),
        *_refused(_LIBRARY, "external_ep_library"),
        *_refused(_DUMP, "ai_analyzer_visualization", "ai_analyzer_profiling"),
    ),
    run_environment=("XLNX_TARGET_NAME", "XLNX_ENABLE_CACHE"),
)

MIGRAPHX = Provider(
    key="migraphx",
    names=("MIGraphXExecutionProvider", "MIGraphX"),
    title="AMD MIGraphX",
    distributions=("onnxruntime-migraphx",),
    devices=("gpu",),
    epcontext=False,
    epcontext_reason="it keeps compiled programs in migraphx_model_cache_dir on the machine that runs",
    windows_catalog=True,
    system_toolchain=True,
    cache=CACHES["MIGraphXExecutionProvider"],
    options=table(
        _number("device_id", "HIP device.", "both"),
        _one_of("migraphx_compile_target", "What to compile for.", "gpu", "cpu", "ref", "mps"),
        _switch("migraphx_fp16_enable", "Compute in fp16."),
        _switch("migraphx_bf16_enable", "Compute in bfloat16."),
        _switch("migraphx_fp8_enable", "Compute in fp8."),
        _switch("migraphx_int8_enable", "Compute in int8."),
        Option(name="migraphx_int8_calibration_table_name", kind="file", doc="Calibration of an int8 model."),
        _switch("migraphx_int8_use_native_calibration_table", "The calibration table is MIGraphX's own."),
        _switch("migraphx_exhaustive_tune", "Tune exhaustively."),
        _number("migraphx_max_dynamic_batch", "Largest batch to compile for; 0 is off."),
        _text("migraphx_compile_batches", "Batch sizes to compile for."),
        _number("migraphx_mem_limit", "Bytes of the memory arena.", "run"),
        _one_of(
            "migraphx_arena_extend_strategy",
            "How the arena grows.",
            "kNextPowerOfTwo",
            "kSameAsRequested",
            phase="run",
        ),
        _switch("migraphx_hip_graph_enable", "Capture a HIP graph.", "run"),
        *_refused(_CACHE, "migraphx_model_cache_dir"),
        *_refused(_POINTER, "migraphx_external_alloc", "migraphx_external_free", "migraphx_external_empty_cache"),
    ),
)

COREML = Provider(
    key="coreml",
    names=("CoreMLExecutionProvider", "CoreML"),
    title="Apple Core ML",
    devices=("npu", "gpu", "cpu"),
    epcontext=False,
    epcontext_reason="it keeps compiled models in ModelCacheDirectory on the machine that runs",
    system_toolchain=True,
    cache=CACHES["CoreMLExecutionProvider"],
    options=table(
        _one_of("ModelFormat", "Format of the Core ML model.", "NeuralNetwork", "MLProgram"),
        _one_of(
            "MLComputeUnits",
            "Units that may compute.",
            "CPUOnly",
            "CPUAndNeuralEngine",
            "CPUAndGPU",
            "ALL",
            phase="both",
        ),
        _switch("RequireStaticInputShapes", "Take only nodes with static input shapes."),
        _switch("EnableOnSubgraphs", "Take nodes in bodies of control flow."),
        _one_of("SpecializationStrategy", "Goal of the specialisation.", "Default", "FastPrediction"),
        _switch("ProfileComputePlan", "Log which unit computes what.", "run"),
        _switch("AllowLowPrecisionAccumulationOnGPU", "Accumulate in fp16 on the GPU.", "both"),
        *_refused(_CACHE, "ModelCacheDirectory"),
    ),
)

WEBGPU = Provider(
    key="webgpu",
    names=("WebGpuExecutionProvider", "WebGPUExecutionProvider", "WebGPU"),
    title="WebGPU",
    distributions=("onnxruntime-ep-webgpu", "onnxruntime-webgpu"),
    module="onnxruntime_ep_webgpu",
    devices=("gpu",),
    epcontext=False,
    epcontext_reason="it compiles shaders while it runs",
    options=table(
        _one_of("preferredLayout", "Layout of tensors.", "NCHW", "NHWC", phase="run"),
        _switch("enableGraphCapture", "Capture and replay.", "run"),
        _switch("enableInt64", "64-bit integers.", "run"),
        _one_of("dawnBackendType", "Graphics interface.", "D3D12", "Vulkan", phase="run"),
        _one_of("powerPreference", "Which adapter.", "high-performance", "low-power", phase="run"),
        _one_of("validationMode", "Checks.", "disabled", "wgpuOnly", "basic", "full", phase="run"),
        _text("forceCpuNodeNames", "Nodes to leave to the CPU EP, one a line.", "run"),
    ),
)


def _plain(key: str, name: str, title: str, why: str, *devices: str, spellings: tuple[str, ...] = ()) -> Provider:
    """An EP without EPContext models, of which nothing more needs to be known."""
    return Provider(
        key=key, names=(name, *spellings), title=title, devices=devices, epcontext=False, epcontext_reason=why
    )


_KERNELS = "it runs kernels that are compiled already, there is nothing to compile ahead"
_ON_DEVICE = "it compiles in the driver of the machine that runs"

CPU = Provider(
    key="cpu",
    names=("CPUExecutionProvider",),
    title="ONNX Runtime's CPU EP",
    epcontext=False,
    epcontext_reason=_KERNELS,
    run_here=True,
    # A shipped source model is opened the way ONNX Runtime opens any model.
    load_optimization="all",
)

OTHERS: tuple[Provider, ...] = (
    TENSORRT_RTX,
    TENSORRT,
    VITISAI,
    MIGRAPHX,
    COREML,
    WEBGPU,
    CPU,
    _plain("cuda", "CUDAExecutionProvider", "NVIDIA CUDA", _KERNELS, "gpu", spellings=("CUDA",)),
    _plain("dml", "DmlExecutionProvider", "DirectML", _ON_DEVICE, "gpu", "npu", spellings=("DML",)),
    _plain("rocm", "ROCMExecutionProvider", "AMD ROCm", _KERNELS, "gpu"),
    _plain("xnnpack", "XnnpackExecutionProvider", "XNNPACK", _KERNELS, "cpu", spellings=("XNNPACK",)),
    _plain("dnnl", "DnnlExecutionProvider", "oneDNN", _KERNELS, "cpu"),
    _plain("acl", "ACLExecutionProvider", "Arm Compute Library", _KERNELS, "cpu"),
    _plain("armnn", "ArmNNExecutionProvider", "Arm NN", _ON_DEVICE, "cpu", "gpu"),
    _plain("nnapi", "NnapiExecutionProvider", "Android NNAPI", _ON_DEVICE, "npu", "gpu", "cpu"),
    _plain("rknpu", "RknpuExecutionProvider", "Rockchip RKNPU", _ON_DEVICE, "npu"),
    _plain("vsinpu", "VSINPUExecutionProvider", "VeriSilicon NPU", _ON_DEVICE, "npu"),
    _plain("cann", "CANNExecutionProvider", "Huawei CANN", _ON_DEVICE, "npu"),
    _plain("webnn", "WebNNExecutionProvider", "WebNN", "it runs in browsers", "cpu", "gpu", "npu"),
    _plain("js", "JsExecutionProvider", "JSEP", "it runs in browsers", "gpu"),
    _plain("azure", "AzureExecutionProvider", "Azure", "it calls a remote service", "cpu"),
)
