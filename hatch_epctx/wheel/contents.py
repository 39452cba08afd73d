"""What goes into the wheel: the package folder of one build, and the paths it takes.

The same generations give the same folder and the same bytes, whichever front end asks: `write_package` for a
folder on disk, `add_package` for a finished wheel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.errors import VerificationError
from hatch_epctx.folder import (
    ContentFile,
    FolderPlan,
    ModelContent,
    VariantContent,
    plan_folder,
    write_folder,
)
from hatch_epctx.manifest import FOLDER_NAME, MANIFEST_NAME, ROLES
from hatch_epctx.sbom import FILE_NAME
from hatch_epctx.source import needs_of
from hatch_epctx.wheel.bill import bill_of_materials
from hatch_epctx.wheelfile import Entry as WheelEntry
from hatch_epctx.wheelfile import add_files, metadata_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hatch_epctx.config import Variant
    from hatch_epctx.pipeline import Build, Entry
    from hatch_epctx.providers import OptionValue

__all__ = ["add_package", "folder_in_wheel", "model_contents", "plan_package", "why_empty", "write_package"]

_COVERAGE: Final = ("context_nodes", "nodes_left", "coverage", "left")
_SIGNATURE: Final = ("inputs", "outputs")


def folder_in_wheel(package: str) -> str:
    """Path of the package folder in the wheel, with a slash at its end: "acme_vision/_epctx/"."""
    return f"{package.replace('.', '/')}/{FOLDER_NAME}/"


def plan_package(built: Build, *, version: str) -> FolderPlan | None:
    """Names and manifest of the package folder of `built`; None where every variant was skipped. Writes nothing.

    Raises:
        VerificationError: names clash.
    """
    package, models = built.project.settings.package, model_contents(built)
    return plan_folder(package_name=package, package_version=version, models=models) if models else None


def write_package(built: Build, out: Path, *, version: str) -> FolderPlan | None:
    """Write the package folder of `built` into the new or empty folder `out`.

    Args:
        built: a build without failures.
        out: the folder to fill.
        version: of the project, for the manifest.

    Returns:
        What was written; None where every variant was skipped: nothing was.

    Raises:
        VerificationError: names clash, or a file is not what its record says.
        StoreError: the folder holds something, or cannot be written.
    """
    package, models = built.project.settings.package, model_contents(built)
    if not models:
        return None
    return write_folder(out, package_name=package, package_version=version, models=models)


def add_package(built: Build, wheel: Path, *, version: str, name: str = "", folder: str = "") -> FolderPlan | None:
    """Add the package folder of `built` and its bill of materials to the finished wheel, in one streaming pass.

    Whatever the wheel holds below that folder already (leavings of an earlier build in the source tree) is dropped:
    a target that was renamed must not live on.

    Args:
        built: a build without failures.
        wheel: as its build backend finished it.
        version: of the distribution, for the manifest and the bill of materials.
        name: of the distribution; the project's when left out.
        folder: path of the package folder in the wheel, with a slash at its end; inside the project's package when
            left out.

    Returns:
        What was added; None where every variant was skipped: the wheel stays as it is.

    Raises:
        ToolchainError: the CycloneDX library is not installed.
        VerificationError: names clash, a file is not what its record says, or the wheel is damaged.
        StoreError: the wheel cannot be written.
    """
    settings = built.project.settings
    plan = plan_package(built, version=version)
    if plan is None:
        return None
    base = folder or folder_in_wheel(settings.package)
    entries = [WheelEntry(name=base + file.name, source=file.path, digest=file.digest) for file in plan.files]
    entries.append(WheelEntry(name=base + MANIFEST_NAME, source=plan.manifest_bytes))
    bill = bill_of_materials(built, plan, base=base, name=name or built.project.name, version=version)
    entries.append(WheelEntry(name=f"{metadata_folder(wheel)}/sboms/{FILE_NAME}", source=bill))
    add_files(wheel, entries, compression=settings.wheel.compression, owned=base.rstrip("/"))
    return plan


def why_empty(built: Build) -> str:
    """Why `built` gives no package folder, a clause."""
    return "every variant was skipped" if built.entries else "every selected target goes into a data package of its own"


def model_contents(built: Build) -> tuple[ModelContent, ...]:
    """The models of `built` with their variants, in declaration order, as the folder takes them."""
    by_model: dict[str, list[VariantContent]] = {}
    for entry in built.entries:
        if entry.status != "skipped":
            by_model.setdefault(entry.variant.model, []).append(_content(entry))
    return tuple(ModelContent(name=name, variants=tuple(variants)) for name, variants in by_model.items())


def _content(entry: Entry) -> VariantContent:
    variant, generation, identity = entry.variant, entry.generation, entry.planned.identity
    if generation is None or identity is None:
        raise VerificationError("has no generation", where=variant.name, reason="not-built")
    files = tuple(
        ContentFile(path=generation.file(item), size=item.size, digest=item.digest, role=item.role)
        for item in entry.artifacts
        if item.role in ROLES
    )
    provider = variant.provider
    document, found = identity.document, entry.facts
    return VariantContent(
        name=variant.target,
        ep=provider.names[0],
        files=files,
        kind=variant.kind,
        identity=identity.digest,
        device=variant.device,
        compatibility=str(found.get("compatibility", "")),
        ort_device=provider.manifest_device,
        ort_compatibility=provider.manifest_compatibility,
        session_options=variant.load_session_options,
        provider_options={option.name: option.text for option in variant.load_options},
        options=_options(variant),
        toolchain=document["toolchain"],
        coverage={name: found[name] for name in _COVERAGE if name in found},
        check=_check(entry.check or {}),
        runtime=_runtime(document["toolchain"]) | _custom_ops(variant, document) | _op_packages(variant),
        signature={name: found[name] for name in _SIGNATURE if name in found},
        load_check=str(found.get("load_check", "")),
        ep_cache=found.get("ep_cache") or {},
        group=_group(variant, found),
        reproducible=False if found.get("reproducible") is False else None,
    )


def _group(variant: Variant, found: Mapping[str, Any]) -> dict[str, Any]:
    """The group that the variant was compiled with, for people and tools."""
    if variant.group is None:
        return {}
    members = [member.name for member in variant.group.members]
    return {"name": variant.group.name, "members": members, "shared": bool(found.get("shared"))}


def _options(variant: Variant) -> dict[str, Any]:
    """Effective options of the compile, for people and tools; a path stands as the word "file" or "folder"."""
    return {
        "context_io": variant.context_io,
        "embed": variant.embed,
        "free_dimensions": dict(variant.free_dimensions),
        "free_dimension_denotations": dict(variant.free_dimension_denotations),
        "input_shapes": {name: list(sizes) for name, sizes in variant.input_shapes.items()},
        "optimization": variant.optimization,
        "prepare": list(variant.prepare),
        "provider_options": {option.name: _text(option) for option in variant.provider_options},
        "session_options": dict(variant.session_options),
    }


def _check(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest says of a check: outcome and figures with one digit.

    More digits depend on the CPU that ran the source, and the same inputs are to give the same wheel everywhere.
    """
    if facts.get("outcome") != "passed":
        return {name: facts[name] for name in ("outcome", "why") if name in facts}
    outputs = {
        output["name"]: {
            "verdict": output["verdict"],
            **{name: _one_digit(output[name]) for name in ("max_abs", "max_rel") if output[name] is not None},
            **({"cosine": round(output["cosine"], 3)} if output["cosine"] is not None else {}),
        }
        for output in facts["outputs"]
    }
    return {
        "outcome": facts["outcome"],
        "generated": facts["generated"],
        "samples": facts["samples"],
        "simulated": facts["simulated"],
        "outputs": outputs,
    }


def _one_digit(value: float) -> float:
    return float(f"{value:.0e}")


def _text(option: OptionValue) -> str:
    if not option.is_path:
        return option.text
    return "folder" if option.folder is not None else "file"


def _custom_ops(variant: Variant, document: Mapping[str, Any]) -> dict[str, Any]:
    """The libraries of custom operators that running the variant needs, and the platform that files are for."""
    if not variant.custom_ops:
        return {}
    own = document if variant.group is None else document["members"][variant.group.position(variant)]
    toolchain = document["toolchain"]
    platform = {"os": toolchain["os"], "architecture": toolchain["architecture"]}
    needs = needs_of(own["model"], variant.custom_ops)
    return {"custom_ops": [need | platform if "file" in need else need for need in needs]}


def _op_packages(variant: Variant) -> dict[str, Any]:
    """The operators of the EP's own packages, which the application has to bring for the device."""
    found = [
        {"operator": package.operator, "interface": package.interface}
        for option in variant.provider_options
        for package in option.packages
    ]
    return {"op_packages": found} if found else {}


def _runtime(toolchain: Mapping[str, Any]) -> dict[str, Any]:
    """What running the variant needs: versions that the look-up can name in its messages."""
    ep = toolchain.get("ep") or {}
    runtime = {"distribution": ep.get("distribution"), "version": ep.get("version")}
    runtime["onnxruntime"] = (toolchain.get("onnxruntime") or {}).get("version")
    return {name: value for name, value in runtime.items() if value}
