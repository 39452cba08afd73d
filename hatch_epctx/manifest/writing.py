"""Manifest records to bytes: equal records give equal bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hatch_epctx.manifest.reading import read_manifest
from hatch_epctx.manifest.records import FORMAT, SCHEMA_VERSION

if TYPE_CHECKING:
    from hatch_epctx.manifest.records import Facts, Manifest, Variant

__all__ = ["write_manifest"]


def write_manifest(manifest: Manifest) -> bytes:
    """The manifest's bytes: UTF-8 JSON, two spaces of indent, a newline at the end, equal for equal records.

    Raises:
        VerificationError: the records are such as `read_manifest` refuses.
    """
    document = _sorted(
        {
            "schema_version": SCHEMA_VERSION,
            "package_name": manifest.package_name,
            "package_version": manifest.package_version,
            "layout": "portable",
        }
    )
    document["components"] = {
        component.name: {"variants": {variant.name: _variant_document(variant) for variant in component.variants}}
        for component in manifest.components
    }
    data = (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "surrogatepass")
    read_manifest(data, where="the manifest to be written")
    return data


def _variant_document(variant: Variant) -> dict[str, Any]:
    ort = {
        "model_file": variant.model_file,
        "session_options": dict(variant.session_options),
        "provider_options": dict(variant.provider_options),
    }
    document: dict[str, Any] = {"variant_directory": ".", "ep": variant.ep, "executor_info": {"ort": ort}}
    if variant.device is not None:
        document["device"] = variant.device
    if variant.compatibility_string is not None:
        document["compatibility_string"] = variant.compatibility_string
    if variant.facts is not None:
        document["executor_info"]["epctx"] = _facts_document(variant.facts)
    result: dict[str, Any] = _sorted(document)
    return result


def _facts_document(facts: Facts) -> dict[str, Any]:
    artifacts = sorted(facts.artifacts, key=lambda artifact: artifact.path)
    document: dict[str, Any] = {
        "format": FORMAT,
        "kind": facts.kind,
        "artifacts": [{"path": a.path, "size": a.size, "sha256": a.digest, "role": a.role} for a in artifacts],
        "compatibility": facts.compatibility,
        "options": facts.options,
        "toolchain": facts.toolchain,
        "coverage": facts.coverage,
        "runtime": facts.runtime,
        "signature": facts.signature,
    }
    document |= {"ep_cache": facts.ep_cache} if facts.ep_cache else {}
    if facts.check:
        document["check"] = facts.check
    document |= {"group": facts.group} if facts.group else {}
    document |= {"load_check": facts.load_check} if facts.load_check else {}
    document |= {"reproducible": facts.reproducible} if facts.reproducible is not None else {}
    if facts.identity is not None:
        document["identity"] = facts.identity
    if facts.device is not None:
        document["device"] = facts.device
    return document


def _sorted(value: Any) -> Any:
    """Plain JSON values with every mapping sorted by key."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [_sorted(item) for item in value]
    return value
