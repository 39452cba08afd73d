"""The package manifest: ONNX Runtime's model package schema 1.0, and this project's part of it.

One flat folder holds `manifest.json`, every ONNX file and every context binary (ORT 1.32, model_package/README.md):

    {"schema_version": "1.0", "layout": "portable", "components": {"detector": {"variants": {"intel-cpu": {
      "variant_directory": ".", "ep": "OpenVINOExecutionProvider", "device": "cpu", "compatibility_string": "...",
      "executor_info": {
        "ort":   {"model_file": "detector.intel-cpu_ctx.onnx", "session_options": {}, "provider_options": {}},
        "epctx": {"format": "epctx-manifest/1", "identity": "...", "artifacts": [...], ...}}}}}}}

A model is ORT's component. `executor_info.ort` is what ORT itself reads; `executor_info.epctx` is ours: artifacts with
full digests, compatibility, and the facts of the compile. Components and variants keep their declared order, since ORT
breaks ties by it; every other mapping is sorted, so that equal records give equal bytes.

The reader takes untrusted bytes and accepts the subset that this project writes: inline components, one flat folder,
no shared assets. What ORT calls unknown it refuses, and paths that leave the folder; keys of ours that it does not
know it ignores, as long as the format is the same.
"""

from hatch_epctx.manifest.loading import GRAPH_OPTIMIZATION, loading_options
from hatch_epctx.manifest.pointer import CURRENT_NAME, POINTER_LIMIT, Current, Pointer, pointer_name
from hatch_epctx.manifest.reading import MAX_BYTES, read_manifest
from hatch_epctx.manifest.records import (
    FOLDER_NAME,
    FORMAT,
    MANIFEST_NAME,
    ROLES,
    SCHEMA_VERSION,
    Artifact,
    Component,
    Facts,
    Manifest,
    Variant,
)
from hatch_epctx.manifest.writing import write_manifest

__all__ = [
    "CURRENT_NAME",
    "FOLDER_NAME",
    "FORMAT",
    "GRAPH_OPTIMIZATION",
    "MANIFEST_NAME",
    "MAX_BYTES",
    "POINTER_LIMIT",
    "ROLES",
    "SCHEMA_VERSION",
    "Artifact",
    "Component",
    "Current",
    "Facts",
    "Manifest",
    "Pointer",
    "Variant",
    "loading_options",
    "pointer_name",
    "read_manifest",
    "write_manifest",
]
