"""The rules that a compiled model has to keep before anything of it is shipped.

* at least one EPContext node, each with the asked EP as its `source`;
* every primary node has a payload, embedded where that was asked, and not empty, or a reference (`rewriting` checks the
  file: there, regular, not empty, inside the folder); one payload there is, whoever is primary;
* inputs and outputs are the source's by name, order and element type, with shapes that fit;
* no reference that leaves the folder or means memory of the process that compiled;
* no path of this machine in the ONNX file that the source did not have, and none of the folder in any binary.

An EP that compiled nothing and one that wrote the model of another EP both report success; so does a file that an
earlier run left behind.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Final

from hatch_epctx.worker import graphs
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.shapes import shape_fault
from hatch_epctx.worker.wording import machine_folders

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from onnx import ModelProto, NodeProto

    from hatch_epctx.worker.protocol import ScannedModel, ValueInfo

__all__ = ["check_binary", "check_interface", "check_nodes", "check_paths", "check_tensors"]

MEMORY_HEAD: Final = "*/_ORT_MEM_ADDR_/*"
"""How ONNX Runtime marks an initialiser that lives in its own memory; such a mark on disk means nothing."""


def check_nodes(model: ModelProto, sources: Collection[str], *, embed: bool = False) -> int:
    """Check the EPContext nodes; return how many there are.

    Args:
        model: the compiled model.
        sources: accepted values of `source`.
        embed: payloads were to be embedded.

    Raises:
        TaskError: invalid-output, or no-node.
    """
    count = payloads = 0
    for node in graphs.context_nodes(model):
        count += 1
        source = graphs.attribute_text(node, "source")
        if source not in sources:
            raise TaskError(
                "invalid-output",
                f"an EPContext node is from {source or 'no EP at all'}, expected {' or '.join(sorted(sources))}",
            )
        payloads += _check_payload(node, embed=embed)
    if count == 0:
        raise TaskError(
            "no-node",
            "the EP compiled no node of the model",
            remedy="Choose another EP or device for this model, or leave it out of the target.",
        )
    if not payloads:
        raise TaskError("invalid-output", "none of the EPContext nodes has a payload or refers to a context binary")
    return count


def _check_payload(node: NodeProto, *, embed: bool) -> bool:
    """Whether the node has a payload; one with `main_context` 0 may leave it to the primary node."""
    found = any(attribute.name == "ep_cache_context" and attribute.s for attribute in node.attribute)
    embedded = graphs.attribute_number(node, "embed_mode", 1) == 1
    if found and embed and not embedded:
        raise TaskError(
            "invalid-output",
            f"the EPContext node {node.name!r} refers to a context binary although it was to be embedded",
            remedy="Set embed = false for the target: this EP does not embed.",
        )
    if not found and graphs.attribute_number(node, "main_context", 1) != 0:
        what = "an empty embedded payload" if embedded else "no reference to a context binary"
        raise TaskError("invalid-output", f"the EPContext node {node.name!r} has {what}")
    return found


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


def check_paths(data: bytes, folder: Path, source: Path) -> None:
    """Refuse an ONNX file that holds a path of this machine: the compile's folder, home, or one of Python's folders.

    Args:
        data: the compiled model's bytes.
        folder: where it was compiled.
        source: the source model; what stands there too, such as its author's paths, is not the compile's doing.

    Raises:
        TaskError: invalid-output.
    """
    if any(needle in data for needle in _spellings(folder)):
        raise TaskError("invalid-output", "the compiled model holds the path of the folder it was compiled in")
    suspects = [path for path in machine_folders() if _holds(data, path)]
    before = source.read_bytes() if suspects else b""
    for path in suspects:
        if not _holds(before, path):
            raise TaskError(
                "invalid-output",
                f"the compiled model holds a path of this machine, below a folder {path.name!r}",
                remedy="Another version of the EP may not write it.",
            )


def check_binary(path: Path, folder: Path) -> None:
    """Refuse a context binary that holds the path of the folder it was compiled in: it differs from build to build.

    Raises:
        TaskError: invalid-output.
    """
    with open(path, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if any(data.find(needle) >= 0 for needle in _spellings(folder)):
            raise TaskError(
                "invalid-output",
                "a context binary holds the path of the folder it was compiled in",
                remedy="Another version of the EP may not write it.",
            )


def _spellings(path: Path) -> list[bytes]:
    """How a path may stand in a file. Short ones, such as /usr, say nothing of a machine."""
    return [os.fsencode(spelling) for spelling in {path, path.resolve()} if len(spelling.parts) > 2]


def _holds(data: bytes, path: Path) -> bool:
    """Whether a path below `path` stands in `data`."""
    return any(needle + separator in data for needle in _spellings(path) for separator in (b"/", b"\\"))
