"""The bill of materials of a wheel against the manifest of a package folder in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.files import parse_json
from hatch_epctx.verification.records import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hatch_epctx.manifest import Manifest

__all__ = ["BILL_LIMIT", "bill_problems", "read_bill"]

BILL_LIMIT: Final = 64 << 20
"""Bytes of a bill of materials that is read."""
_OURS: Final = "hatch-epctx:"


def read_bill(data: bytes) -> list[dict[str, Any]]:
    """The components of a CycloneDX document.

    Raises:
        ValueError: it is no such document.
    """
    try:
        document = parse_json(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON: {error}") from error
    if not isinstance(document, dict) or document.get("bomFormat") != "CycloneDX":
        raise ValueError("is no CycloneDX document")
    components = document.get("components", [])
    if not isinstance(components, list) or not all(isinstance(item, dict) for item in components):
        raise ValueError("has components that are no objects")
    return components


def bill_problems(where: str, components: list[dict[str, Any]], base: str, manifest: Manifest) -> Iterator[Problem]:
    """What the bill says of the files below `base` and of the variants, and the manifest does not.

    Args:
        where: what messages call the bill.
        components: of the bill.
        base: path of the package folder in the wheel, with a slash at its end.
        manifest: of the package folder.
    """
    files = {item["name"]: _sha256(item) for item in components if _is(item, "file") and item["name"].startswith(base)}
    expected = {base + artifact.path: artifact.digest for artifact in manifest.artifacts()}
    for name in sorted(expected.keys() - files.keys()):
        yield Problem(where=where, reason="bill-missing", text=f"does not list {name}")
    for name in sorted(files.keys() - expected.keys()):
        yield Problem(where=where, reason="bill-unknown", text=f"lists {name}, which the manifest does not")
    for name in sorted(files.keys() & expected.keys()):
        if files[name] != expected[name]:
            text = f"{name}: SHA-256 {files[name] or '(none)'}; the manifest says {expected[name]}"
            yield Problem(where=where, reason="bill-digest", text=text)
    yield from _variant_problems(where, components, manifest)


def _variant_problems(where: str, components: list[dict[str, Any]], manifest: Manifest) -> Iterator[Problem]:
    listed = {item["name"]: _facts(item) for item in components if _is(item, "machine-learning-model")}
    for component in manifest.components:
        for variant in component.variants:
            name = f"{component.name}.{variant.name}"
            identity = variant.facts.identity if variant.facts else None
            if name not in listed:
                yield Problem(where=where, reason="bill-missing", text=f"does not list the variant {name}")
            elif identity and listed[name].get("identity") != identity:
                text = f"{name}: identity {listed[name].get('identity')}; the manifest says {identity}"
                yield Problem(where=where, reason="bill-identity", text=text)


def _is(component: dict[str, Any], kind: str) -> bool:
    return component.get("type") == kind and isinstance(component.get("name"), str)


def _sha256(component: dict[str, Any]) -> str:
    hashes = component.get("hashes")
    for item in hashes if isinstance(hashes, list) else ():
        if isinstance(item, dict) and item.get("alg") == "SHA-256":
            return str(item.get("content", ""))
    return ""


def _facts(component: dict[str, Any]) -> dict[str, str]:
    properties = component.get("properties")
    return {
        str(item.get("name", "")).removeprefix(_OURS): str(item.get("value", ""))
        for item in (properties if isinstance(properties, list) else ())
        if isinstance(item, dict)
    }
