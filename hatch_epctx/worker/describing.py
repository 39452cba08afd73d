"""Tasks inspect and rename: what an ONNX file refers to, and giving these files other names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_epctx.digest import digest_bytes
from hatch_epctx.files import atomic_write, check_name
from hatch_epctx.worker import graphs
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.protocol import CONTEXT_NAME, Artifact, Result
from hatch_epctx.worker.scanning import facts, parse
from hatch_epctx.worker.wording import shown

if TYPE_CHECKING:
    from onnx import NodeProto

    from hatch_epctx.worker.protocol import Job

__all__ = ["describe_model", "rename_files"]

_NAME_LIMIT = 1024
"""Characters of a reference that are shown; an in-memory or hostile one may be anything."""


def describe_model(job: Job) -> Result:
    """Task inspect: facts of the ONNX file, compiled or not, each EPContext node, and the metadata.

    Raises:
        TaskError: invalid-model, too-large or external-data-escape.
    """
    model = parse(Path(job["model"]))
    nodes = [_context_node(node) for node in graphs.context_nodes(model)]
    metadata = {shown(entry.key): shown(entry.value) for entry in model.metadata_props}
    producer = f"{shown(model.producer_name)} {shown(model.producer_version)}".strip()
    extra = {"context_nodes": nodes, "metadata": metadata, "producer": producer}
    return {"ok": True, "scan": facts(model), "extra": extra}


def _context_node(node: NodeProto) -> dict[str, Any]:
    embedded = graphs.attribute_number(node, "embed_mode", 1) == 1
    payload = next((item.s for item in node.attribute if item.name == "ep_cache_context"), b"")
    return {
        "name": node.name,
        "source": graphs.attribute_text(node, "source") or "",
        "main_context": graphs.attribute_number(node, "main_context", 1) == 1,
        "embedded": embedded,
        "binary": "" if embedded else payload.decode("utf-8", "replace")[:_NAME_LIMIT],
        "embedded_size": len(payload) if embedded else 0,
        "sdk_version": graphs.attribute_text(node, "ep_sdk_version") or "",
        "partition": graphs.attribute_text(node, "partition_name") or "",
    }


def rename_files(job: Job) -> Result:
    """Task rename: write `job["model"]` to `CONTEXT_NAME` with its references renamed as `job["names"]` says.

    The files themselves are the caller's to rename.

    Raises:
        TaskError: invalid-model, or invalid-output where the model refers to a file without a new name.
    """
    model = parse(Path(job["model"]))
    names = {old: check_name(new) for old, new in job["names"].items()}
    for node in graphs.context_nodes(model):
        if graphs.attribute_number(node, "embed_mode", 1) == 0:
            for attribute in node.attribute:
                if attribute.name == "ep_cache_context" and attribute.s:
                    attribute.s = _renamed(attribute.s.decode("utf-8", "replace"), names).encode()
    for tensor in graphs.model_tensors(model):
        if graphs.external_entries(tensor) is not None:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = _renamed(entry.value, names)
    data = model.SerializeToString(deterministic=True)
    atomic_write(Path(CONTEXT_NAME), data, durable=False)
    artifact = Artifact(role="model", path=CONTEXT_NAME, size=len(data), digest=digest_bytes(data))
    return {"ok": True, "artifacts": [artifact]}


def _renamed(old: str, names: dict[str, str]) -> str:
    if old not in names:
        raise TaskError("invalid-output", f"the model refers to {old[:80]!r}, which is none of its artifacts")
    return names[old]
