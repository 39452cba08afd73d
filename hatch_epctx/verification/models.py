"""An ONNX file and what it refers to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.compile import describe
from hatch_epctx.files import contained
from hatch_epctx.verification.records import Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from hatch_epctx.manifest import Facts, Variant

__all__ = ["described", "references", "variant_problems"]

_INFO: Final = "ep_compatibility_info."


def described(path: Path, folder: Path) -> dict[str, Any]:
    """Facts of an ONNX file, see `compile.describe`.

    Raises:
        ModelError: it is no ONNX model.
    """
    return describe(path, folder)


def references(facts: Mapping[str, Any]) -> set[str]:
    """Names of the files that an ONNX file refers to: context binaries and external data."""
    binaries = {node["binary"] for node in facts["context_nodes"] if node["binary"]}
    return binaries | set(facts["scan"]["external_data"])


def variant_problems(where: str, variant: Variant, facts: Mapping[str, Any], eps: Collection[str]) -> Iterator[Problem]:
    """What an ONNX file has that its variant's entry in the manifest does not, and the other way round.

    Args:
        where: what messages call the file.
        variant: the manifest's entry, with digests.
        facts: of the ONNX file.
        eps: names that the variant's EP writes as the source of its nodes.
    """
    recorded = variant.facts
    if recorded is None:
        return
    if recorded.kind == "compiled":
        yield from _compiled_problems(where, variant, recorded, facts, eps)
    elif facts["context_nodes"]:
        yield Problem(where=where, reason="compiled-source", text="holds EPContext nodes; expected a source model")
    yield from _reference_problems(where, recorded, facts)
    for kind in ("inputs", "outputs"):
        if kind in recorded.signature and recorded.signature[kind] != facts["scan"][kind]:
            yield Problem(where=where, reason="other-signature", text=f"other {kind} than the manifest says")


def _compiled_problems(
    where: str, variant: Variant, recorded: Facts, facts: Mapping[str, Any], eps: Collection[str]
) -> Iterator[Problem]:
    nodes = facts["context_nodes"]
    if not nodes:
        yield Problem(where=where, reason="no-context-node", text="holds no EPContext node; expected a compiled model")
    for node in nodes:
        if node["source"] not in eps:
            text = f"EPContext node {node['name']!r} is of {node['source']!r}; the manifest says {variant.ep}"
            yield Problem(where=where, reason="foreign-source", text=text)
    counted = recorded.coverage.get("context_nodes", len(nodes))
    if counted != len(nodes):
        text = f"{len(nodes)} EPContext nodes; the manifest says {counted}"
        yield Problem(where=where, reason="other-nodes", text=text)
    found = {key.removeprefix(_INFO): text for key, text in facts["metadata"].items() if key.startswith(_INFO)}
    if recorded.compatibility != found.get(variant.ep, ""):
        text = f"compatibility {found.get(variant.ep, '')[:80]!r}; the manifest says {recorded.compatibility[:80]!r}"
        yield Problem(where=where, reason="other-compatibility", text=text)


def _reference_problems(where: str, recorded: Facts, facts: Mapping[str, Any]) -> Iterator[Problem]:
    artifacts = {item.path: item.role for item in recorded.artifacts}
    wanted = references(facts)
    for name in sorted(wanted - artifacts.keys()):
        if not contained(name):
            yield Problem(where=where, reason="escape", text=f"refers to {name[:120]!r}, which leaves its folder")
        else:
            text = f"refers to {name[:120]!r}, which is no artifact of the variant"
            yield Problem(where=where, reason="unknown-reference", text=text)
    named = {name for name, role in artifacts.items() if role in ("context", "weights")}
    for name in sorted(named - wanted):
        yield Problem(where=where, reason="unreferenced", text=f"does not refer to {name}, an artifact of the variant")
