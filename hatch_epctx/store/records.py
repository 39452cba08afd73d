"""Records: what a marker says of an identity, written strictly and read as untrusted input.

A marker is one JSON file, ``markers/<2 hex>/<identity>.json``::

    {"format": "epctx-marker/1", "generation": "<32 hex>", "identity": "<64 hex>", "document": {...},
     "artifacts": [{"role": ..., "path": ..., "size": ..., "digest": ...}, ...], "result": {...}}

It selects the generation of an identity and lists the digests of its artifacts; whatever is not exactly of this
form is taken as absent, so that a damaged store costs a compile and nothing else.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final

from hatch_epctx.digest import is_digest
from hatch_epctx.files import check_name, parse_json

__all__ = [
    "FORMAT",
    "MARKER_LIMIT",
    "Artifact",
    "Marker",
    "Record",
    "is_generation_name",
    "marker_bytes",
    "marker_document",
    "parse_marker",
]

FORMAT: Final = "epctx-marker/1"
MARKER_LIMIT: Final = 4 << 20
"""Bytes of a marker that is read or written: a model with ten thousand external-data files needs about two million."""
_ARTIFACTS: Final = 4096
"""Artifacts of one generation, at most."""
_SIZE: Final = 1 << 50
"""Bytes of one artifact, at most."""

_GENERATION = re.compile(r"[0-9a-f]{32}\Z")
_ROLE = re.compile(r"[a-z][a-z-]{0,31}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One output file of a compile."""

    role: str
    """model, context, weights, ep-cache: `hatch_epctx.worker.protocol.Role`."""
    path: str
    """Flat name in the generation's folder."""
    size: int
    """Bytes."""
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is kept of one compile beside its bytes."""

    identity: str
    document: dict[str, Any]
    """The identity document, so that a later miss can be explained field by field."""
    artifacts: tuple[Artifact, ...]
    result: dict[str, Any]
    """Facts that the worker found: inputs, outputs, compatibility, coverage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A selected generation and its record."""

    generation: str
    record: Record


def is_generation_name(text: object) -> bool:
    """Whether `text` is the name of a generation or a staging folder: a UUID in 32 hexadecimal digits."""
    return isinstance(text, str) and _GENERATION.match(text) is not None


def marker_document(marker: Marker) -> dict[str, Any]:
    """What is written of a marker, as JSON values."""
    record = marker.record
    return {
        "format": FORMAT,
        "generation": marker.generation,
        "identity": record.identity,
        "document": record.document,
        "artifacts": [
            {"role": item.role, "path": item.path, "size": item.size, "digest": item.digest}
            for item in record.artifacts
        ],
        "result": record.result,
    }


def marker_bytes(marker: Marker) -> bytes:
    """The marker as it is written.

    It may be longer than `MARKER_LIMIT`, and must not be written then.

    Raises:
        ValueError, TypeError: `parse_marker` would refuse it: a name, a digest or a value that cannot be.
    """
    data = json.dumps(marker_document(marker), allow_nan=False, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    parse_marker(data, marker.record.identity)
    return data


def parse_marker(data: bytes, identity: str) -> Marker:
    """Read a marker of `identity`; the caller bounds its size.

    Raises:
        ValueError: it is not exactly of the form above, names another identity, or lists an artifact whose name is
            unsafe, or the same as another's where case does not count.
    """
    value = _fields(parse_json(data), {"format", "generation", "identity", "document", "artifacts", "result"})
    if value["format"] != FORMAT:
        raise ValueError(f"format {value['format']!r:.40} is not {FORMAT!r}")
    if not is_digest(identity) or value["identity"] != identity:
        raise ValueError("the marker is of another identity")
    if not is_generation_name(value["generation"]):
        raise ValueError("generation is no UUID")
    if not isinstance(value["document"], dict) or not isinstance(value["result"], dict):
        raise ValueError("document and result are objects")  # noqa: TRY004  # one error for all refusals
    record = Record(
        identity=identity,
        document=value["document"],
        artifacts=_artifacts(value["artifacts"]),
        result=value["result"],
    )
    return Marker(generation=value["generation"], record=record)


def _fields(value: Any, names: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != names:
        raise ValueError(f"expected an object with {', '.join(sorted(names))}")
    return value


def _artifacts(value: Any) -> tuple[Artifact, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= _ARTIFACTS:
        raise ValueError(f"artifacts is a list of 1 to {_ARTIFACTS}")
    artifacts = tuple(_artifact(item) for item in value)
    if len({artifact.path.casefold() for artifact in artifacts}) != len(artifacts):
        raise ValueError("two artifacts have one name")
    return artifacts


def _artifact(value: Any) -> Artifact:
    item = _fields(value, {"role", "path", "size", "digest"})
    role, size, digest = item["role"], item["size"], item["digest"]
    if not isinstance(role, str) or not _ROLE.match(role):
        raise ValueError("an artifact's role is a word")
    if type(size) is not int or not 0 <= size <= _SIZE:
        raise ValueError("an artifact's size is a number of bytes")
    if not is_digest(digest):
        raise ValueError("an artifact's digest is no SHA-256")
    return Artifact(role=role, path=check_name(item["path"]), size=size, digest=digest)
