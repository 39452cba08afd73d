"""The package folder: which file goes where under which name, and its manifest.

    detector.intel-cpu_ctx.onnx                       a compiled model: stable name, stable bytes for one identity
    detector.intel-gpu_src.onnx                       a source model with its sizes, for an EP that is given its cache
    detector.onnx                                     the source model, where it is shipped
    sha256-0f1e2d3c4b5a69788796a5b4c3d2e1f0.bin       a context binary, weights or an EP cache, named by content
    manifest.json                                     ONNX Runtime's manifest with this project's part (see `manifest`)

`plan_folder` is pure: it checks names and makes the manifest's bytes. `write_folder` puts a plan on disk; a wheel
writer can stream the same plan without a folder. Equal content lies there once, whichever variants share it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.digest import content_name, digest_file
from hatch_epctx.errors import StoreError, VerificationError
from hatch_epctx.files import check_name, copy_file
from hatch_epctx.manifest import MANIFEST_NAME, Artifact, Component, Facts, Manifest, Variant, write_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = [
    "ContentFile",
    "FolderPlan",
    "ModelContent",
    "PlannedFile",
    "VariantContent",
    "plan_folder",
    "write_folder",
]

FILE_MODE: Final = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentFile:
    """One file of a generation: where it lies now, what it holds, what it is for (`manifest.ROLES`)."""

    path: Path
    size: int
    digest: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantContent:
    """One variant of a model, ready to be packed."""

    name: str
    ep: str
    """Registered name of the EP."""
    files: tuple[ContentFile, ...]
    """The ONNX file (role model) and whatever it refers to by content name."""
    kind: str = "compiled"
    """compiled, cached or source."""
    identity: str | None = None
    device: str | None = None
    """cpu, gpu or npu."""
    compatibility: str = ""
    ort_device: bool = True
    """Whether ORT may demand the device (not for QNN, which shows no NPU on x86)."""
    ort_compatibility: bool = True
    """Whether ORT may hand the compatibility string to the EP. Not for QNN: its check reads an EP instance that has
    been released (onnxruntime-qnn 2.7.0), so that `ModelPackageContext.select_component` kills the process."""
    session_options: Mapping[str, str] = field(default_factory=dict)
    provider_options: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    toolchain: Mapping[str, Any] = field(default_factory=dict)
    coverage: Mapping[str, Any] = field(default_factory=dict)
    check: Mapping[str, Any] = field(default_factory=dict)
    runtime: Mapping[str, Any] = field(default_factory=dict)
    """distribution and version of the EP, version of onnxruntime (see `manifest.Facts`)."""
    signature: Mapping[str, Any] = field(default_factory=dict)
    load_check: str = ""
    ep_cache: Mapping[str, Any] = field(default_factory=dict)
    """files: artifacts by the EP's own name (see `manifest.Facts`)."""
    reproducible: bool | None = None
    group: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContent:
    """One model and its variants in order of preference: ORT and the look-up break ties by it."""

    name: str
    variants: tuple[VariantContent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """A file of the folder: its final name and where its content lies now."""

    name: str
    path: Path
    size: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderPlan:
    """A whole folder: files sorted by name, and the manifest beside them."""

    files: tuple[PlannedFile, ...]
    manifest: Manifest
    manifest_bytes: bytes


def plan_folder(*, package_name: str, package_version: str, models: Iterable[ModelContent]) -> FolderPlan:
    """Names and manifest of a package folder. Reads nothing.

    Raises:
        VerificationError: two different contents would get one name (128 bits of their digests are equal, or names
            differ in case alone), a name is unsafe, or the manifest would be such as its own reader refuses.
    """
    placed: dict[str, PlannedFile] = {}
    records = tuple(_component(model, placed) for model in models)
    _refuse_twice((record.name for record in records), "models")
    manifest = Manifest(package_name=package_name, package_version=package_version, components=records)
    files = tuple(sorted(placed.values(), key=lambda file: file.name))
    return FolderPlan(files=files, manifest=manifest, manifest_bytes=write_manifest(manifest))


def write_folder(out: Path, *, package_name: str, package_version: str, models: Iterable[ModelContent]) -> FolderPlan:
    """Write a package folder; the same records give the same bytes.

    Args:
        out: a folder that is empty or not there yet: what lay there before must not get into a wheel.
        package_name: import name of the package.
        package_version: its version.
        models: what goes in, in order.

    Raises:
        VerificationError: as `plan_folder`, or a file is not what its record says.
        StoreError: the folder holds something, or cannot be written.
    """
    plan = plan_folder(package_name=package_name, package_version=package_version, models=models)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise StoreError("the folder is not empty", where=str(out), remedy="Name a new folder.", reason="not-empty")
        for file in plan.files:
            _place(file, out / file.name)
        manifest = out / MANIFEST_NAME
        manifest.write_bytes(plan.manifest_bytes)
        manifest.chmod(FILE_MODE)
    except OSError as error:
        raise StoreError(
            f"cannot be written: {error.strerror or error}", where=str(error.filename or out), reason="unwritable"
        ) from error
    return plan


def _place(file: PlannedFile, target: Path) -> None:
    copy_file(file.path, target)
    size, digest = target.stat().st_size, digest_file(target)  # of the copy: nobody else writes that
    if (size, digest) != (file.size, file.digest):
        raise VerificationError(
            f"{size} bytes with digest {digest}",
            where=str(file.path),
            expected=f"{file.size} bytes with digest {file.digest}",
            remedy="It was changed since the build verified it: build again.",
            reason="modified-file",
        )
    target.chmod(FILE_MODE)  # files of the store are private and read-only; a wheel carries the mode


def _component(model: ModelContent, placed: dict[str, PlannedFile]) -> Component:
    variants = tuple(_variant(model.name, variant, placed) for variant in model.variants)
    _refuse_twice((variant.name for variant in variants), f"variants of {model.name}")
    return Component(name=model.name, variants=variants)


def _variant(model: str, content: VariantContent, placed: dict[str, PlannedFile]) -> Variant:
    artifacts = {artifact.path: artifact for artifact in (_artifact(model, content, file) for file in content.files)}
    models = [artifact.path for artifact in artifacts.values() if artifact.role == "model"]
    if len(models) != 1:
        raise VerificationError(
            f"{len(models)} ONNX files", where=f"{model}.{content.name}", expected="one", reason="malformed-manifest"
        )
    for file in content.files:
        name = _artifact(model, content, file).path
        _claim(placed, PlannedFile(name=name, path=file.path, size=file.size, digest=file.digest))
    facts = Facts(
        kind=content.kind,
        artifacts=tuple(artifacts[path] for path in sorted(artifacts)),
        identity=content.identity,
        compatibility=content.compatibility,
        device=content.device,
        options=content.options,
        toolchain=content.toolchain,
        coverage=content.coverage,
        check=content.check,
        runtime=content.runtime,
        signature=content.signature,
        load_check=content.load_check,
        ep_cache=content.ep_cache,
        reproducible=content.reproducible,
        group=content.group,
    )
    return Variant(
        name=content.name,
        ep=content.ep,
        model_file=models[0],
        device=content.device if content.ort_device else None,
        compatibility_string=content.compatibility if content.compatibility and content.ort_compatibility else None,
        session_options=content.session_options,
        provider_options=content.provider_options,
        facts=facts,
    )


def _artifact(model: str, content: VariantContent, file: ContentFile) -> Artifact:
    name = content_name(file.digest) if file.role != "model" else _model_name(model, content)
    return Artifact(path=name, size=file.size, digest=file.digest, role=file.role)


def _model_name(model: str, content: VariantContent) -> str:
    ending = {"compiled": "_ctx.onnx", "cached": "_src.onnx"}.get(content.kind, "")
    name = f"{model}.{content.name}{ending}" if ending else f"{model}.onnx"
    try:
        return check_name(name)
    except ValueError as error:
        raise VerificationError(
            f"the file name {error}", where=f"{model}.{content.name}", reason="unsafe-name"
        ) from error


def _claim(placed: dict[str, PlannedFile], file: PlannedFile) -> None:
    """Give the file its name. Names must differ in more than case, since file systems may not tell case apart."""
    other = placed.setdefault(file.name.casefold(), file)
    if (other.name, other.digest, other.size) != (file.name, file.digest, file.size):
        raise VerificationError(
            f"{other.name!r} and {file.name!r} are one name for two contents ({other.digest} and {file.digest})",
            remedy="Rename the model or the target." if file.name.endswith(".onnx") else "",
            reason="name-clash",
        )


def _refuse_twice(names: Iterable[str], what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise VerificationError(f"{what}: {name!r} stands twice", reason="name-clash")
        seen.add(name)
