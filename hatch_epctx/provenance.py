"""Provenance of a wheel: an in-toto statement with a SLSA provenance predicate, to be signed by the user's own tool.

    {"_type": "https://in-toto.io/Statement/v1",
     "subject": [{"name": "acme_vision-1.2.3-py3-none-any.whl", "digest": {"sha256": "..."}}],
     "predicateType": "https://slsa.dev/provenance/v1",
     "predicate": {
       "buildDefinition": {
         "externalParameters": {"variants": {"detector.intel-cpu": {"ep": ..., "device": ..., "options": {...}}}},
         "internalParameters": {"identities": {"detector.intel-cpu": "..."}},
         "resolvedDependencies": [models and external data by digest, ONNX Runtime, EPs and SDKs by package URL]},
       "runDetails": {"builder": {"id": ...}, "byproducts": [every artifact in the wheel by digest]}}}

Everything comes out of the wheel itself (manifest and bill of materials), so that it can be made anywhere, and there is
no time in it: the same wheel gives the same statement. It states what the wheel says of itself; that the build happened
so is what a signature by its builder adds.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx import __version__
from hatch_epctx.digest import digest_stream, is_digest
from hatch_epctx.errors import VerificationError
from hatch_epctx.files import open_regular, parse_json
from hatch_epctx.manifest import FOLDER_NAME, MANIFEST_NAME, MAX_BYTES, Manifest, read_manifest
from hatch_epctx.sbom import FILE_NAME
from hatch_epctx.wheelfile import MAX_RECORD, check_wheel, decode_digest, parse_record, read_members

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ["BUILD_TYPE", "LOCAL_BUILDER", "PREDICATE_TYPE", "as_text", "provenance"]

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "https://pypi.org/project/hatch-epctx/provenance/wheel/v1"
"""Says what the parameters mean; see docs/front-ends.md."""
LOCAL_BUILDER: Final = "urn:hatch-epctx:builder:local"
"""The builder of a machine that nobody else vouches for."""


def provenance(wheel: Path, *, builder: str = LOCAL_BUILDER) -> dict[str, Any]:
    """The statement about the wheel at `wheel`.

    Args:
        wheel: a wheel that this project's front ends made; every byte of it is read.
        builder: URI of the platform that built it.

    Raises:
        VerificationError: the wheel is not what its RECORD says, holds no compiled models or no bill of materials, or
            the three disagree.
        OSError: it cannot be read.
    """
    problems = check_wheel(wheel)
    if problems:
        detail = "\n".join(str(problem) for problem in problems[:20])
        raise VerificationError("is not what its RECORD says", where=str(wheel), reason="record", detail=detail)
    manifests, bill = _contents(wheel)
    _refuse_strange(wheel, manifests)
    with open_regular(wheel, follow=True) as stream:
        digest, _ = digest_stream(stream)
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": wheel.name, "digest": {"sha256": digest}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": _definition(manifests, bill),
            "runDetails": {
                "builder": {"id": builder, "version": {"hatch-epctx": _made_by(bill)}},
                "byproducts": list(_artifacts(manifests)),
            },
        },
    }


def _contents(wheel: Path) -> tuple[dict[str, Manifest], dict[str, Any]]:
    """Manifests by the folder they lie in, and the bill of materials."""
    place = f"{FOLDER_NAME}/{MANIFEST_NAME}"

    def wanted(name: str) -> bool:
        path = PurePosixPath(name)
        is_bill = path.parts[1:] == ("sboms", FILE_NAME) and path.parts[0].endswith(".dist-info")
        return is_bill or f"/{name}".endswith(f"/{place}")

    _, contents = read_members(wheel, wanted, limit=MAX_BYTES)
    bills = [data for name, data in contents.items() if name.endswith(FILE_NAME)]
    manifests = {
        name.removesuffix(MANIFEST_NAME): read_manifest(data, where=name)
        for name, data in contents.items()
        if name.endswith(MANIFEST_NAME)
    }
    if not manifests or not bills:
        missing = "compiled models" if not manifests else f"bill of materials (.dist-info/sboms/{FILE_NAME})"
        raise VerificationError(
            f"holds no {missing}", where=str(wheel), remedy="Build it with this version.", reason="nothing-to-state"
        )
    try:
        bill = parse_json(bills[0])
    except ValueError as error:
        raise _malformed(str(error)) from error
    if not isinstance(bill, dict):
        raise _malformed("no object")
    return manifests, bill


def _refuse_strange(wheel: Path, manifests: Mapping[str, Manifest]) -> None:
    """Refuse a wheel whose artifacts are not those of its manifests. Its RECORD was found right before."""
    _, records = read_members(wheel, lambda name: name.endswith(".dist-info/RECORD"), limit=MAX_RECORD)
    rows = [row for data in records.values() for row in parse_record(data)]
    listed = {row.name: decode_digest(row.digest) for row in rows if row.algorithm == "sha256"}
    for base, manifest in manifests.items():
        for artifact in manifest.artifacts():
            found = listed.get(base + artifact.path)
            if found != artifact.digest:
                raise VerificationError(
                    f"{base}{artifact.path} has the digest {found or 'of no file'}",
                    where=str(wheel),
                    expected=f"{artifact.digest} as the manifest records",
                    reason="modified-file",
                )


def _definition(manifests: Mapping[str, Manifest], bill: Mapping[str, Any]) -> dict[str, Any]:
    variants = {
        f"{component.name}.{variant.name}": variant
        for manifest in manifests.values()
        for component in manifest.components
        for variant in component.variants
        if variant.facts is not None
    }
    parameters = {
        name: {
            "ep": variant.ep,
            "device": variant.facts.device,
            "kind": variant.facts.kind,
            "options": dict(variant.facts.options),
        }
        for name, variant in variants.items()
        if variant.facts is not None
    }
    identities = {name: variant.facts.identity for name, variant in variants.items() if variant.facts is not None}
    return {
        "buildType": BUILD_TYPE,
        "externalParameters": {"variants": parameters},
        "internalParameters": {"identities": identities},
        "resolvedDependencies": list(_dependencies(bill)),
    }


def _dependencies(bill: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Models, their external data and the toolchain, as the bill names them."""
    for component in _objects(bill.get("components")):
        reference = str(component.get("bom-ref", ""))
        if reference.startswith("model:"):
            yield _file(f"{reference}", component)
            for part in _objects(component.get("components")):
                yield _file(str(part.get("bom-ref", "")), part)
        elif reference.startswith("tool:"):
            yield _tool(component)


def _file(name: str, component: Mapping[str, Any]) -> dict[str, Any]:
    digests = [item.get("content") for item in _objects(component.get("hashes")) if item.get("alg") == "SHA-256"]
    if len(digests) != 1 or not is_digest(digests[0]):
        raise _malformed(f"{name} has no SHA-256")
    return {"name": name, "digest": {"sha256": digests[0]}}


def _tool(component: Mapping[str, Any]) -> dict[str, Any]:
    """A distribution or an SDK; the digest of its libraries together is none of one file, and stands as a note."""
    found: dict[str, Any] = {"name": f"{component.get('name')} {component.get('version')}"}
    if isinstance(component.get("purl"), str):
        found["uri"] = component["purl"]
    else:
        found["uri"] = f"urn:hatch-epctx:sdk:{component.get('name')}:{component.get('version')}"
    facts = {str(item.get("name")): item.get("value") for item in _objects(component.get("properties"))}
    closure = facts.get("hatch-epctx:closure-sha256")
    if closure:
        found["annotations"] = {"closure-sha256": closure}
    return found


def _artifacts(manifests: Mapping[str, Manifest]) -> Iterator[dict[str, Any]]:
    for base, manifest in sorted(manifests.items()):
        for artifact in manifest.artifacts():
            yield {"name": base + artifact.path, "digest": {"sha256": artifact.digest}}


def _made_by(bill: Mapping[str, Any]) -> str:
    """The version of this project that wrote the bill, and so the wheel."""
    tools = bill.get("metadata", {}).get("tools", {}) if isinstance(bill.get("metadata"), dict) else {}
    for component in _objects(tools.get("components") if isinstance(tools, dict) else None):
        if component.get("name") == "hatch-epctx":
            return str(component.get("version", __version__))
    return __version__


def _objects(value: object) -> Iterable[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _malformed(found: str) -> VerificationError:
    return VerificationError(f"malformed bill of materials: {found}", where=FILE_NAME, reason="malformed-bill")


def as_text(document: Mapping[str, Any]) -> str:
    """JSON with two spaces of indent and a newline at its end."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
