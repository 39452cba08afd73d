"""What a compile reads: source models, and the files and folders behind provider options.

Both are digested for the identity (`read_source`, `digest_option`) and copied into the compile's private folder
(`snapshot`, `snapshot_option`), where the copies must have the digests of the identity: `SourceChangedError` otherwise.
"""

from __future__ import annotations

from hatch_epctx.source.models import (
    ONNX_LIMIT,
    SourceChangedError,
    SourceModel,
    read_source,
    snapshot,
    snapshot_model,
)
from hatch_epctx.source.options import copy_name, digest_option, snapshot_option

__all__ = [
    "ONNX_LIMIT",
    "SourceChangedError",
    "SourceModel",
    "copy_name",
    "digest_option",
    "read_source",
    "snapshot",
    "snapshot_model",
    "snapshot_option",
]
