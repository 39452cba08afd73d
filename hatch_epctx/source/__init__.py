"""What a compile reads: source models, files of inputs, and the files and folders behind provider options.

All are digested for the identity (`read_source`, `digest_option`) and copied into the compile's private folder
(`snapshot`, `snapshot_option`), where the copies must have the digests of the identity: `SourceChangedError` otherwise.
"""

from __future__ import annotations

from hatch_epctx.source.custom import CustomOpsLibrary, needs_of, read_custom_ops, snapshot_custom_ops
from hatch_epctx.source.inputs import digest_inputs, snapshot_inputs
from hatch_epctx.source.models import (
    ONNX_LIMIT,
    SourceChangedError,
    SourceModel,
    read_source,
    snapshot,
    snapshot_model,
)
from hatch_epctx.source.options import copy_name, digest_option, snapshot_option, snapshot_packages, walk_folder

__all__ = [
    "ONNX_LIMIT",
    "CustomOpsLibrary",
    "SourceChangedError",
    "SourceModel",
    "copy_name",
    "digest_inputs",
    "digest_option",
    "needs_of",
    "read_custom_ops",
    "read_source",
    "snapshot",
    "snapshot_custom_ops",
    "snapshot_inputs",
    "snapshot_model",
    "snapshot_option",
    "snapshot_packages",
    "walk_folder",
]
