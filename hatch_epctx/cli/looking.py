"""`epctx inspect` and `epctx schema`: looking at what is there."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING, Any

from hatch_epctx.cli.output import emit_json, size, table
from hatch_epctx.errors import ModelError, VerificationError
from hatch_epctx.manifest import FOLDER_NAME, MANIFEST_NAME, MAX_BYTES, Manifest, read_manifest

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from hatch_epctx.manifest import Variant

__all__ = ["inspect", "schema"]


def inspect(options: Namespace) -> int:
    """What a wheel, a package folder or an ONNX file holds."""
    path: Path = options.path
    if path.suffix == ".onnx" and path.is_file():
        return _inspect_onnx(path, as_json=options.json)
    found = _wheel_manifests(path) if path.is_file() and path.suffix == ".whl" else _folder_manifests(path)
    described = [{"folder": place, **_described(manifest)} for place, manifest in found]
    if options.json:
        emit_json({"path": str(path), "packages": described})
        return 0
    for package in described:
        print(f"{package['folder']}: {package['package']} {package['version']}, {size(package['size'])}")
        rows = [
            (
                row["variant"],
                row["ep"],
                row["device"] or "-",
                (row["identity"] or "-")[:12],
                row["nodes"],
                size(row["size"]),
                row["compatibility"] or "-",
            )
            for row in package["variants"]
        ]
        table(("VARIANT", "EP", "DEVICE", "IDENTITY", "NODES", "SIZE", "COMPATIBILITY"), rows)
    return 0


def _wheel_manifests(path: Path) -> list[tuple[str, Manifest]]:
    """(folder in the wheel, manifest) of every package folder of the wheel."""
    try:
        with zipfile.ZipFile(path) as archive:
            suffix = f"{FOLDER_NAME}/{MANIFEST_NAME}"
            infos = [info for info in archive.infolist() if info.filename.endswith(suffix)]
            found = [(info.filename.rpartition("/")[0], _read_member(archive, info)) for info in infos]
    except zipfile.BadZipFile as error:
        raise VerificationError(f"is no wheel: {error}", where=str(path), reason="malformed-wheel") from error
    return _some(found, path)


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Manifest:
    with archive.open(info) as stream:
        # One byte more than allowed: a declared size is only a claim.
        return read_manifest(stream.read(MAX_BYTES + 1), where=info.filename)


def _folder_manifests(path: Path) -> list[tuple[str, Manifest]]:
    candidates = [path] if path.name == MANIFEST_NAME else [path / MANIFEST_NAME, path / FOLDER_NAME / MANIFEST_NAME]
    manifests = [candidate for candidate in candidates if candidate.is_file()]
    return _some([(str(m.parent), read_manifest(m.read_bytes(), where=str(m))) for m in manifests], path)


def _some(found: list[tuple[str, Manifest]], path: Path) -> list[tuple[str, Manifest]]:
    if not found:
        raise ModelError(
            "holds no compiled models" if path.exists() else "does not exist",
            where=str(path),
            expected="a wheel, a package folder with manifest.json, or an ONNX file",
            reason="nothing-to-inspect",
        )
    return found


def _described(manifest: Manifest) -> dict[str, Any]:
    variants = [
        _variant(component.name, variant) for component in manifest.components for variant in component.variants
    ]
    return {
        "package": manifest.package_name,
        "version": manifest.package_version,
        "size": sum(artifact.size for artifact in manifest.artifacts()),
        "variants": variants,
    }


def _variant(model: str, variant: Variant) -> dict[str, Any]:
    facts = variant.facts
    coverage = dict(facts.coverage) if facts else {}
    compiled, left = coverage.get("context_nodes", 0), coverage.get("nodes_left", 0)
    artifacts = facts.artifacts if facts else ()
    return {
        "variant": f"{model}.{variant.name}",
        "ep": variant.ep,
        "device": (facts.device if facts else None) or variant.device,
        "identity": facts.identity if facts else None,
        "nodes": f"{compiled} EPContext, {left} left" if compiled else f"{left} source",
        "size": sum(artifact.size for artifact in artifacts),
        "compatibility": facts.compatibility if facts else "",
        "model_file": variant.model_file,
        "session_options": dict(variant.session_options),
        "provider_options": dict(variant.provider_options),
        "artifacts": [
            {"role": item.role, "path": item.path, "size": item.size, "sha256": item.digest} for item in artifacts
        ],
        "coverage": coverage,
        "options": dict(facts.options) if facts else {},
        "toolchain": dict(facts.toolchain) if facts else {},
    }


def _inspect_onnx(path: Path, *, as_json: bool) -> int:
    from hatch_epctx.compile import describe
    from hatch_epctx.store import Store

    with Store().staging() as staging:
        facts = describe(path, staging.path)
    if as_json:
        emit_json({"path": str(path), **facts})
        return 0
    scan, nodes = facts["scan"], facts["context_nodes"]
    print(f"{path}: {scan['nodes']} nodes, {len(nodes)} of them EPContext; {facts['producer'] or 'unknown producer'}")
    for kind in ("inputs", "outputs"):
        for value in scan[kind]:
            print(f"  {kind[:-1]} {value['name']}: {value['type']} {_shape(value['shape'])}")
    for name in scan["external_data"]:
        print(f"  external data {name}{'' if (path.parent / name).is_file() else ' (missing)'}")
    for node in nodes:
        binary = f"{size(node['embedded_size'])} embedded" if node["embedded"] else node["binary"] or "in the main node"
        if node["binary"]:
            beside = path.parent / node["binary"]
            binary += f" ({size(beside.stat().st_size)})" if beside.is_file() else " (missing)"
        print(f"  EPContext {node['name']}: {node['source']}, {binary}")
    for key, value in facts["metadata"].items():
        if key.startswith("ep_compatibility_info."):
            print(f"  compatibility {key.partition('.')[2]}: {value}")
    return 0


def _shape(shape: list[int | str | None] | None) -> str:
    if shape is None:
        return "of unknown rank"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"


def schema(options: Namespace) -> int:  # noqa: ARG001  # every command takes the options
    """Print the JSON Schema of [tool.epctx]."""
    from hatch_epctx.config import schema as make_schema

    emit_json(make_schema())
    return 0
