"""The manifest of a compile under Bazel: what packing and checking need to know beside the bytes.

It holds the action's configuration, the digests of the sources, and the record that a store's marker would hold;
nothing of the run: the same inputs give the same manifest. It is read as untrusted input, since caches deliver it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.bazel.settings import read_config, read_object
from hatch_epctx.digest import digest_bytes, is_digest
from hatch_epctx.errors import VerificationError
from hatch_epctx.files import check_location, check_name
from hatch_epctx.identity import canonical
from hatch_epctx.manifest import ROLES
from hatch_epctx.store import Marker, Record, marker_document, parse_marker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hatch_epctx.source import SourceModel

__all__ = ["CompiledContext", "Source", "read_manifest", "reproducible", "write_manifest"]

FORMAT: Final = "epctx-context/1"
_KEYS: Final = frozenset({"format", "calibrated", "config", "custom_ops", "options", "sources", "record"})
_FACTS: Final = (
    "artifacts",
    "compatibility",
    "context_nodes",
    "coverage",
    "ep_cache",
    "ep_version",
    "inputs",
    "left",
    "load_check",
    "members",
    "metadata_lost",
    "nodes_left",
    "onnxruntime",
    "outputs",
    "prepared",
    "reproducible",
    "shared",
    "unreferenced",
)
"""What is kept of a record's facts: what does not differ between two runs of the same compile, as seconds do."""
_GENERATION: Final = "0" * 32
"""There is no store, so no generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Digests of one source model."""

    model: str
    digest: str
    size: int
    external: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledContext:
    """One compile's outputs."""

    config: Mapping[str, Any]
    calibrated: tuple[str, ...]
    """Models whose preparation read samples."""
    custom_ops: Mapping[str, tuple[str, ...]]
    """File names of the libraries of custom operators, by model."""
    options: Mapping[str, str]
    """file or folder, by option that names one."""
    sources: tuple[Source, ...]
    record: Record
    folder: Path
    """Where its artifacts lie."""


def reproducible(record: Record) -> Record:
    """`record` without what differs between runs, and with the artifacts alone that a package folder takes."""
    result = {name: value for name, value in record.result.items() if name in _FACTS}
    if "members" in result:
        result["members"] = [
            {name: value for name, value in member.items() if name in _FACTS} for member in result["members"]
        ]
    return replace(
        record, result=result, artifacts=tuple(artifact for artifact in record.artifacts if artifact.role in ROLES)
    )


def write_manifest(
    config: Mapping[str, Any],
    *,
    calibrated: Iterable[str],
    custom_ops: Mapping[str, Iterable[str]],
    options: Mapping[str, str],
    sources: Mapping[str, SourceModel],
    record: Record,
) -> bytes:
    """The manifest of one compile; the same arguments give the same bytes."""
    value = {
        "format": FORMAT,
        "calibrated": sorted(calibrated),
        "config": dict(config),
        "custom_ops": {model: list(names) for model, names in custom_ops.items()},
        "options": dict(options),
        "sources": [
            {
                "model": name,
                "digest": found.digest,
                "size": found.size,
                "external": [list(item) for item in found.external],
            }
            for name, found in sources.items()
        ],
        "record": marker_document(Marker(generation=_GENERATION, record=record)),
    }
    return json.dumps(value, allow_nan=False, sort_keys=True, indent=1).encode() + b"\n"


def read_manifest(path: Path, folder: Path) -> CompiledContext:
    """The compile whose manifest lies at `path` and whose artifacts lie in `folder`. The artifacts are not read.

    Raises:
        ConfigError: it cannot be read.
        VerificationError: it is of another form.
    """
    value = read_object(path, "manifest of a compile")
    try:
        return _context(value, path, folder)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise VerificationError(
            f"is no manifest of a compile: {error}", where=str(path), reason="malformed-manifest"
        ) from error


def _context(value: Mapping[str, Any], path: Path, folder: Path) -> CompiledContext:
    if value.keys() != _KEYS or value["format"] != FORMAT:
        raise ValueError(f"expected the form {FORMAT}")
    return CompiledContext(
        config=read_config(value["config"], str(path)),
        calibrated=tuple(map(str, value["calibrated"])),
        custom_ops={
            str(model): tuple(check_name(name) for name in names) for model, names in value["custom_ops"].items()
        },
        options={str(name): _kind(kind) for name, kind in value["options"].items()},
        sources=tuple(map(_source, value["sources"])),
        record=_record(value["record"]),
        folder=folder,
    )


def _record(value: Mapping[str, Any]) -> Record:
    marker: Marker = parse_marker(json.dumps(value).encode(), str(value["identity"]))
    record = marker.record
    if digest_bytes(canonical(record.document)) != record.identity:
        raise ValueError("the identity is not that of its document")
    return record


def _kind(kind: object) -> str:
    if kind not in ("file", "folder"):
        raise ValueError("an option is of a file or a folder")
    return str(kind)


def _source(value: Mapping[str, Any]) -> Source:
    if not is_digest(value["digest"]) or type(value["size"]) is not int:
        raise ValueError("a source has a digest and a size")
    external = tuple((str(check_location(location)), str(digest)) for location, digest in value["external"])
    if not all(is_digest(digest) for _, digest in external):
        raise ValueError("external data has a digest")
    return Source(model=str(value["model"]), digest=value["digest"], size=value["size"], external=external)
