"""`epctx inspect`: what a wheel, an installed package, a package folder or an ONNX file says it holds.

Files may come from anywhere: they are read with limits, nothing is unpacked or run, and ONNX files are opened in a
process of their own. Digests are not checked.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.cli.output import cut, emit_json, say, size, table
from hatch_epctx.errors import ModelError
from hatch_epctx.files import contained, open_regular, read_bounded
from hatch_epctx.findings import check_in_words, coverage_in_words, left_in_words
from hatch_epctx.manifest import FOLDER_NAME, MANIFEST_NAME, MAX_BYTES, Manifest, read_manifest
from hatch_epctx.verification import installed_folder
from hatch_epctx.wheelfile import read_members

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping
    from pathlib import Path

    from hatch_epctx.manifest import Variant

__all__ = ["inspect"]

_ZIP: Final = b"PK"
_Found = list[tuple[str, Manifest, "Mapping[str, int]"]]
"""Place of a package folder, its manifest, and the size of each file that lies there."""


def inspect(options: Namespace) -> int:
    """What there is at ``PATH``."""
    path = _place(options.path)
    if not path.exists():
        raise _nothing("does not exist", path)
    try:
        facts: dict[str, Any] = {}
        if path.is_dir() or path.name == MANIFEST_NAME:
            found = _in_folder(path)
        elif _is_zip(path):
            found = _in_wheel(path)
        else:
            found, facts = [], _read_onnx(path)
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror or error}", where=str(path), reason="unreadable") from error
    return _packages(found, options) if found else _onnx(path, facts, options)


def _place(path: Path) -> Path:
    """Where to look: what is at `path`, or the installed package that it names."""
    try:
        return installed_folder(path) or path
    except ModelError:
        if path.exists():  # a folder: it says itself what it lacks
            return path
        raise


def _is_zip(path: Path) -> bool:
    if path.suffix == ".whl":
        return True
    with open_regular(path, follow=True) as stream:
        return stream.read(2) == _ZIP


def _in_wheel(path: Path) -> _Found:
    suffix = f"{FOLDER_NAME}/{MANIFEST_NAME}"
    sizes, contents = read_members(path, lambda name: f"/{name}".endswith(f"/{suffix}"), limit=MAX_BYTES)
    found: _Found = []
    for name, data in contents.items():
        base = name.removesuffix(MANIFEST_NAME)
        beside = {other.removeprefix(base): count for other, count in sizes.items() if other.startswith(base)}
        found.append((base.rstrip("/"), read_manifest(data, where=name), beside))
    if not found:
        raise _nothing("holds no compiled models", path)
    return found


def _in_folder(path: Path) -> _Found:
    folder = path.parent if path.name == MANIFEST_NAME else path
    for place in (folder, folder / FOLDER_NAME):
        file = place / MANIFEST_NAME
        if file.is_file():
            manifest = read_manifest(read_bounded(file.resolve(), MAX_BYTES), where=str(file))
            sizes = {item.name: item.stat().st_size for item in place.iterdir() if item.is_file()}
            return [(str(place), manifest, sizes)]
    raise _nothing("holds no compiled models", path)


def _nothing(found: str, path: Path) -> ModelError:
    expected = f"a wheel, a package folder with {MANIFEST_NAME}, an installed package, or an ONNX file"
    return ModelError(found, where=str(path), expected=expected, reason="nothing-to-inspect")


def _packages(found: _Found, options: Namespace) -> int:
    packages = [{"folder": place, **_described(manifest, sizes)} for place, manifest, sizes in found]
    if options.json:
        emit_json(options, {"path": str(options.path), "packages": packages})
        return 0
    for package in packages:
        name = " ".join(part for part in (package["package"], package["version"]) if part) or "(no name)"
        say(f"{package['folder']}: {name}, {size(package['size'])}")
        head = ("VARIANT", "EP", "DEVICE", "IDENTITY", "COVERAGE", "CHECK", "SIZE", "BUILT WITH")
        table(head, [_row(row) for row in package["variants"]], optional=("COVERAGE", "CHECK"))
        for row in package["variants"] if options.verbose else ():
            _print_variant(row)
        for problem in package["problems"]:
            say(f"problem: {problem}")
    return 0


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    runtime = row["runtime"]
    built = " ".join(str(runtime[key]) for key in ("distribution", "version") if key in runtime)
    identity = (row["identity"] or "-")[:12]
    coverage, check = coverage_in_words(row, row["ep"]), str(row["check"].get("outcome", "-"))
    ep = row["ep"].removesuffix("ExecutionProvider") or row["ep"]
    return (
        row["variant"],
        ep,
        row["device"] or "-",
        identity,
        coverage,
        check,
        size(row["size"]),
        cut(built or "-", 48),
    )


def _print_variant(row: Mapping[str, Any]) -> None:
    say(f"{row['variant']}:")
    say(f"  identity {row['identity'] or '(none)'}")
    if row["compatibility"]:
        say(f"  compatibility {_short(row['compatibility'])}")
    _print_findings(row)
    for key, title in (("session_options", "session option"), ("provider_options", "provider option")):
        for name, value in row[key].items():
            say(f"  {title} {name} = {cut(value, 80)}")
    for item in row["artifacts"]:
        say(f"  {item['role']} {item['path']}, {size(item['size'])}, sha256 {item['sha256']}")


def _print_findings(row: Mapping[str, Any]) -> None:
    """What the compile, the load check and the check found."""
    if row["kind"] == "compiled":
        say(f"  {row['context_nodes']} EPContext nodes, {row['nodes_left']} other ones")
    if row["kind"] == "cached":
        say("  a source model with the EP's cache")
    if row["coverage"]:
        say(f"  coverage {coverage_in_words(row, row['ep'])} nodes")
    if left := left_in_words(row["left"]):
        say(f"  left to the CPU: {left}")
    if row["check"]:
        say(f"  {check_in_words(row['check'])}")
    if row["group"]:
        words = "shares" if row["group"].get("shared") else "shares nothing"
        say(f"  group {row['group'].get('name')} {words}: {', '.join(map(str, row['group'].get('members', ())))}")
    if row["reproducible"] is False:
        say("  not reproducible: another compile gave other bytes")
    if row["load_check"]:
        say(f"  load check {cut(row['load_check'], 120)}")


def _short(text: str) -> str:
    """A compatibility text in one line: of JSON, what is short in it (OpenVINO lists every CPU feature)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return cut(text, 80)
    if not isinstance(value, dict):
        return cut(text, 80)
    parts = [f"{key} {item}" for key, item in value.items() if isinstance(item, str) and len(item) <= 40]
    return cut(", ".join(parts) or text, 120)


def _described(manifest: Manifest, sizes: Mapping[str, int]) -> dict[str, Any]:
    pairs = [(component.name, variant) for component in manifest.components for variant in component.variants]
    artifacts = manifest.artifacts()
    problems = [f"{item.path} is missing" for item in artifacts if item.path not in sizes]
    problems += [
        f"{item.path} has {sizes[item.path]} bytes; the manifest says {item.size}"
        for item in artifacts
        if sizes.get(item.path, item.size) != item.size
    ]
    known = {MANIFEST_NAME, *(item.path for item in artifacts), *(variant.model_file for _, variant in pairs)}
    problems += [f"{name} is in no variant" for name in sorted(set(sizes) - known)]
    return {
        "package": manifest.package_name,
        "version": manifest.package_version,
        "size": sum(item.size for item in artifacts),
        "variants": [_variant(model, variant) for model, variant in pairs],
        "problems": problems,
    }


def _variant(model: str, variant: Variant) -> dict[str, Any]:
    facts = variant.facts
    coverage = dict(facts.coverage) if facts else {}
    artifacts = facts.artifacts if facts else ()
    return {
        "variant": f"{model}.{variant.name}",
        "kind": facts.kind if facts else "foreign",
        "ep": variant.ep,
        "device": (facts.device if facts else None) or variant.device,
        "identity": facts.identity if facts else None,
        "context_nodes": coverage.get("context_nodes"),
        "nodes_left": coverage.get("nodes_left"),
        "coverage": coverage.get("coverage", {}),
        "left": coverage.get("left", []),
        "check": dict(facts.check) if facts else {},
        "size": sum(artifact.size for artifact in artifacts),
        "compatibility": (facts.compatibility if facts else "") or variant.compatibility_string or "",
        "runtime": dict(facts.runtime) if facts else {},
        "load_check": facts.load_check if facts else "",
        "reproducible": facts.reproducible if facts else None,
        "group": dict(facts.group) if facts else {},
        "session_options": dict(variant.session_options),
        "provider_options": dict(variant.provider_options),
        "artifacts": [
            {"role": item.role, "path": item.path, "size": item.size, "sha256": item.digest} for item in artifacts
        ],
    }


def _read_onnx(path: Path) -> dict[str, Any]:
    from hatch_epctx.compile import describe
    from hatch_epctx.config import read_environment
    from hatch_epctx.store import Store

    with Store(read_environment(os.environ).cache_dir).staging() as staging:
        return describe(path, staging.path)


def _onnx(path: Path, facts: Mapping[str, Any], options: Namespace) -> int:
    if options.json:
        emit_json(options, {"path": str(path), **facts})
        return 0
    scan, nodes = facts["scan"], facts["context_nodes"]
    say(f"{path}: {scan['nodes']} nodes, {len(nodes)} of them EPContext; {facts['producer'] or 'unknown producer'}")
    for kind in ("inputs", "outputs"):
        for value in scan[kind]:
            say(f"  {kind[:-1]} {value['name']}: {value['type']} {_shape(value['shape'])}")
    for name in scan["external_data"]:
        say(f"  external data {name}{'' if (path.parent / name).is_file() else ' (missing)'}")
    for node in nodes:
        say(f"  EPContext {node['name']}: {node['source']}, {_binary(node, path.parent)}")
    for key, value in facts["metadata"].items():
        if key.startswith("ep_compatibility_info."):
            say(f"  compatibility {key.partition('.')[2]}: {value if options.verbose else _short(value)}")
    return 0


def _binary(node: Mapping[str, Any], folder: Path) -> str:
    if node["embedded"]:
        return f"{size(node['embedded_size'])} embedded"
    if not node["binary"]:
        return "in the main node"
    if not contained(node["binary"]):
        return f"{node['binary']} (outside its folder: no EP opens it)"
    beside = folder / node["binary"]
    return f"{node['binary']} ({size(beside.stat().st_size) if beside.is_file() else 'missing'})"


def _shape(shape: list[int | str | None] | None) -> str:
    if shape is None:
        return "of unknown rank"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"
