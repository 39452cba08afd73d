"""The rules that a compiled model has to keep before anything of it is shipped.

* at least one EPContext node, each with the asked EP as its `source`;
* every primary node has a payload: embedded and not empty, or a reference (`rewriting` checks the file);
* inputs and outputs are the source's by name, order and element type, with shapes that fit;
* no reference that leaves the folder or means memory of the process that compiled;
* no path of this machine inside the ONNX file.

An EP that compiled nothing and one that wrote the model of another EP both report success; so does a file that an
earlier run left behind.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from hatch_epctx.worker import graphs
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.shapes import shape_fault

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from onnx import ModelProto, NodeProto

    from hatch_epctx.worker.protocol import ScannedModel, ValueInfo

__all__ = ["check_interface", "check_nodes", "check_paths", "check_tensors"]

MEMORY_HEAD: Final = "*/_ORT_MEM_ADDR_/*"
"""How ONNX Runtime marks an initialiser that lives in its own memory; such a mark on disk means nothing."""


def check_nodes(model: ModelProto, sources: Collection[str]) -> int:
    """Check the EPContext nodes; return how many there are.

    Args:
        model: the compiled model.
        sources: accepted values of `source`.

    Raises:
        TaskError: invalid-output, or no-node.
    """
    count = 0
    for node in graphs.context_nodes(model):
        count += 1
        source = graphs.attribute_text(node, "source")
        if source not in sources:
            raise TaskError(
                "invalid-output",
                f"an EPContext node is from {source or 'no EP at all'}, expected {' or '.join(sorted(sources))}",
            )
        _check_payload(node)
    if count == 0:
        raise TaskError(
            "no-node",
            "the EP compiled no node of the model",
            remedy="Choose another EP or device for this model, or leave it out of the target.",
        )
    return count


def _check_payload(node: NodeProto) -> None:
    """A node with `main_context` 0 may leave its payload to the primary node."""
    if graphs.attribute_number(node, "main_context", 1) == 0:
        return
    if not any(attribute.name == "ep_cache_context" and attribute.s for attribute in node.attribute):
        embedded = graphs.attribute_number(node, "embed_mode", 1) == 1
        what = "an empty embedded payload" if embedded else "no reference to a context binary"
        raise TaskError("invalid-output", f"the EPContext node {node.name!r} has {what}")


def check_tensors(model: ModelProto) -> None:
    """Refuse initialisers that point into the memory of the process that compiled.

    Raises:
        TaskError: invalid-output.
    """
    for tensor in graphs.model_tensors(model):
        location = (graphs.external_entries(tensor) or {}).get("location", "")
        if location.startswith(MEMORY_HEAD):
            raise TaskError(
                "invalid-output",
                f"initialiser {tensor.name!r} is an address in the compiler's memory, not data",
                remedy="Use another version of onnxruntime, or another 'optimization' for the target.",
            )


def check_interface(
    model: ModelProto, source: ScannedModel, sizes: Mapping[str, int], *, what: str = "the compiled model"
) -> None:
    """Check inputs and outputs against the source's.

    Args:
        model: what was made.
        source: facts of what it was made from.
        sizes: free dimensions by name.
        what: what was made, for messages.

    Raises:
        TaskError: invalid-output.
    """
    _check_values("input", source["inputs"], graphs.graph_inputs(model), sizes, what)
    # An overridden name may be inferred otherwise on the way to an output: only numbers of the source bind there.
    _check_values("output", source["outputs"], graphs.graph_outputs(model), {}, what)


def _check_values(
    kind: str, before: Sequence[ValueInfo], after: Sequence[ValueInfo], sizes: Mapping[str, int], what: str
) -> None:
    names, found = [value["name"] for value in before], [value["name"] for value in after]
    if names != found:
        raise TaskError(
            "invalid-output",
            f"{what} has the {kind}s {_list(found)}, expected {_list(names)} in this order",
        )
    for old, new in zip(before, after, strict=True):
        if old["type"] != new["type"]:
            fault = f"has element type {new['type']} in place of {old['type']}"
        else:
            fault = shape_fault(old, new, sizes)
        if fault:
            raise TaskError("invalid-output", f"{kind} {old['name']!r} of {what} {fault}")


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "(none)"


def check_paths(data: bytes, folder: Path) -> None:
    """Refuse an ONNX file that holds the path of the folder that it was compiled in.

    Raises:
        TaskError: invalid-output.
    """
    for path in {folder, folder.resolve()}:
        if len(path.parts) > 2 and os.fsencode(path) in data:
            raise TaskError("invalid-output", "the compiled model holds the path of the folder it was compiled in")
