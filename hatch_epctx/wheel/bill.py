"""The bill of materials of one wheel, from the entries of its build and the plan of its package folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hatch_epctx.errors import VerificationError
from hatch_epctx.sbom import SbomFile, SbomModel, SbomProject, SbomVariant, sbom, tools_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hatch_epctx.folder import FolderPlan
    from hatch_epctx.manifest import Variant
    from hatch_epctx.pipeline import Build, Entry

__all__ = ["bill_of_materials"]

_FACTS = ("os", "architecture")
"""Facts of the toolchain that stand beside the variant; its distributions and SDKs are components."""


def bill_of_materials(built: Build, plan: FolderPlan, *, base: str, name: str, version: str) -> bytes:
    """The CycloneDX document of what `plan` puts below `base` in the wheel of the distribution `name`.

    Raises:
        ToolchainError: the CycloneDX library is not installed.
    """
    project = SbomProject(name=name, version=version, licence=built.project.licence)
    placed = {(c.name, v.name): v for c in plan.manifest.components for v in c.variants}
    variants = [
        _variant(built, entry, placed[entry.variant.model, entry.variant.target], base)
        for entry in built.entries
        if entry.status != "skipped"
    ]
    return sbom(variants, project=project)


def _variant(built: Build, entry: Entry, placed: Variant, base: str) -> SbomVariant:
    variant, identity, source = entry.variant, entry.planned.identity, entry.planned.source
    if identity is None or source is None or placed.facts is None:
        raise VerificationError("has no generation", where=variant.name, reason="not-built")
    toolchain: Mapping[str, Any] = identity.document["toolchain"]
    model = SbomModel(
        name=variant.model,
        digest=source.digest,
        external=source.external,
        licence=built.project.settings.models[variant.model].license or "",
    )
    return SbomVariant(
        name=variant.name,
        identity=identity.digest,
        model=model,
        ep=variant.provider.names[0],
        device=variant.device,
        files=tuple(
            SbomFile(path=base + item.path, role=item.role, size=item.size, digest=item.digest)
            for item in placed.facts.artifacts
        ),
        tools=tools_of(toolchain),
        facts={name: str(toolchain[name]) for name in _FACTS if toolchain.get(name)},
    )
