"""The CycloneDX document. Importing this module imports the CycloneDX library.

    metadata.component            the distribution                    project
    metadata.tools                hatch-epctx
    components                    source models (ML models)           model:<name>, its external data inside
                                  variants (ML models)                variant:<model>.<target>
                                  artifacts (files)                   file:<path in the wheel>
                                  ONNX Runtime, EPs, SDKs             tool:<name>@<version>[#<closure>]
    dependencies                  project -> variants; variant -> its model, its files, its tools

Facts without a field of their own are properties named ``hatch-epctx:<fact>``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.model.lifecycle import LifecyclePhase, PredefinedLifecycle
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.spdx import is_expression, is_supported_id
from packageurl import PackageURL

from hatch_epctx import __version__
from hatch_epctx.digest import digest_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hatch_epctx.sbom.records import SbomFile, SbomModel, SbomProject, SbomTool, SbomVariant

__all__ = ["write"]

_SERIAL = UUID("6f2a5c1e-9d0b-4a7e-8c55-2b9f0d3e71aa")
"""Name space of serial numbers (RFC 9562, version 5): any fixed UUID serves."""

T = TypeVar("T")


def write(variants: Sequence[SbomVariant], project: SbomProject) -> bytes:
    """See `hatch_epctx.sbom.sbom`."""
    by_name = _unique("variant", ((variant.name, variant) for variant in variants))
    models = _unique("model", ((variant.model.name, variant.model) for variant in variants))
    files = _unique("file", ((file.path, file) for variant in variants for file in variant.files))
    tools = _unique("tool", ((_tool_ref(tool), tool) for variant in variants for tool in variant.tools))

    root = _project(project)
    built = {name: _variant(variant) for name, variant in by_name.items()}
    parts = {
        **{_model_ref(name): _model(model) for name, model in models.items()},
        **{_file_ref(path): _file(file) for path, file in files.items()},
        **{ref: _tool(tool) for ref, tool in tools.items()},
    }
    metadata = BomMetaData(component=root, lifecycles=[PredefinedLifecycle(LifecyclePhase.BUILD)])
    metadata.tools = ToolRepository(components=[_generator()])
    bom = Bom(metadata=metadata, components=[*built.values(), *parts.values()])
    bom.register_dependency(root, built.values())
    for name, variant in by_name.items():
        refs = [_model_ref(variant.model.name), *(_file_ref(file.path) for file in variant.files)]
        refs += [_tool_ref(tool) for tool in variant.tools]
        bom.register_dependency(built[name], [parts[ref] for ref in refs])
    return _reproducible(json.loads(JsonV1Dot6(bom).output_as_string()))


def _reproducible(document: dict[str, Any]) -> bytes:
    """Canonical text without the library's time and random serial number, which both are optional."""
    document["metadata"].pop("timestamp", None)
    document.pop("serialNumber", None)
    content = json.dumps(document, sort_keys=True, ensure_ascii=False).encode("utf-8")
    document["serialNumber"] = uuid5(_SERIAL, digest_bytes(content)).urn
    return (json.dumps(document, sort_keys=True, ensure_ascii=False, indent=2) + "\n").encode("utf-8")


def _unique(kind: str, items: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Records by name, sorted; one name for two different records is a mistake of the caller's."""
    found: dict[str, T] = {}
    for name, record in items:
        if found.setdefault(name, record) != record:
            raise ValueError(f"two different records of the {kind} {name!r}")
    return dict(sorted(found.items()))


def _project(project: SbomProject) -> Component:
    return Component(
        type=ComponentType.LIBRARY,
        name=project.name,
        version=project.version,
        bom_ref="project",
        licenses=_licences(project.licence),
        purl=_purl(project.name, project.version),
    )


def _generator() -> Component:
    return Component(
        type=ComponentType.APPLICATION,
        name="hatch-epctx",
        version=__version__,
        bom_ref="generator",
        purl=_purl("hatch-epctx", __version__),
    )


def _model(model: SbomModel) -> Component:
    """A source model; it may or may not be in the wheel itself: its variants' files say that."""
    ref = _model_ref(model.name)
    data = [
        Component(type=ComponentType.DATA, name=location, bom_ref=f"{ref}/{location}", hashes=_hashes(digest))
        for location, digest in model.external
    ]
    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=model.name,
        bom_ref=ref,
        hashes=_hashes(model.digest),
        licenses=_licences(model.licence),
        components=data,
        properties=_properties({"kind": "source model"}),
    )


def _variant(variant: SbomVariant) -> Component:
    facts = {"kind": "variant", "identity": variant.identity, "ep": variant.ep, "device": variant.device}
    models = [file for file in variant.files if file.role == "model"]
    return Component(
        type=ComponentType.MACHINE_LEARNING_MODEL,
        name=variant.name,
        bom_ref=f"variant:{variant.name}",
        hashes=_hashes(models[0].digest) if len(models) == 1 else None,
        licenses=_licences(variant.model.licence),
        properties=_properties({**variant.facts, **facts}),
    )


def _file(file: SbomFile) -> Component:
    return Component(
        type=ComponentType.FILE,
        name=file.path,
        bom_ref=_file_ref(file.path),
        hashes=_hashes(file.digest),
        properties=_properties({"role": file.role, "size": str(file.size)}),
    )


def _tool(tool: SbomTool) -> Component:
    """A part of the toolchain: it made the artifacts and is not in the wheel."""
    facts = {"toolchain": tool.role, **({"closure-sha256": tool.closure} if tool.closure else {})}
    return Component(
        type=ComponentType.FRAMEWORK if tool.role == "sdk" else ComponentType.LIBRARY,
        name=tool.name,
        version=tool.version,
        bom_ref=_tool_ref(tool),
        scope=ComponentScope.EXCLUDED,
        purl=_purl(tool.name, tool.version) if tool.is_distribution else None,
        properties=_properties(facts),
    )


def _model_ref(name: str) -> str:
    return f"model:{name}"


def _file_ref(path: str) -> str:
    return f"file:{path}"


def _tool_ref(tool: SbomTool) -> str:
    return f"tool:{tool.name}@{tool.version}" + (f"#{tool.closure[:32]}" if tool.closure else "")


def _hashes(digest: str) -> list[HashType]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=digest)]


def _properties(facts: Mapping[str, str]) -> list[Property]:
    return [Property(name=f"hatch-epctx:{name}", value=value) for name, value in sorted(facts.items())]


def _licences(text: str) -> list[DisjunctiveLicense | LicenseExpression]:
    if not text:
        return []
    if is_supported_id(text):
        return [DisjunctiveLicense(id=text)]
    return [LicenseExpression(text)] if is_expression(text) else [DisjunctiveLicense(name=text)]


def _purl(name: str, version: str) -> PackageURL:
    return PackageURL(type="pypi", name=name, version=version)
