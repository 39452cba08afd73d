"""The bill of materials: valid by CycloneDX's own schema, complete, and the same bytes for the same records."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hatch_epctx.digest import digest_bytes
from hatch_epctx.sbom import SbomFile, SbomModel, SbomProject, SbomTool, SbomVariant, sbom, tools_of

PROJECT = SbomProject(name="Acme_Vision", version="1.0+local.1", licence="MIT OR Apache-2.0")
TOOLCHAIN = {
    "onnxruntime": {"distribution": "onnxruntime", "version": "1.32.0", "digest": digest_bytes(b"onnxruntime")},
    "ep": {"distribution": "onnxruntime-qnn", "version": "2.7.0", "digest": digest_bytes(b"qnn")},
    "onnx": "1.23.2",
    "sdk": {"qairt": "2.40"},
    "os": "linux",
}
WEIGHTS = SbomFile(path="acme_vision/_epctx/sha256-0.bin", role="weights", size=7, digest=digest_bytes(b"weights"))


def variant(stem: str = "detector", target: str = "snapdragon-60", **changes: Any) -> SbomVariant:
    name = f"{stem}.{target}"
    values: dict[str, Any] = {
        "name": name,
        "identity": digest_bytes(name.encode()),
        "model": SbomModel(
            name=stem,
            digest=digest_bytes(stem.encode()),
            external=(("data/weights.bin", digest_bytes(b"w")),),
            licence="Apache-2.0",
        ),
        "ep": "QNNExecutionProvider",
        "device": "npu",
        "files": (
            SbomFile(
                path=f"acme_vision/_epctx/{name}_ctx.onnx", role="model", size=3, digest=digest_bytes(name.encode())
            ),
            WEIGHTS,
        ),
        "tools": tools_of(TOOLCHAIN),
        "facts": {"os": "linux"},
    }
    return SbomVariant(**{**values, **changes})


def validate(document: bytes) -> None:
    pytest.importorskip("jsonschema")
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document.decode()) is None


def components(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {component["bom-ref"]: component for component in document["components"]}


def facts(component: dict[str, Any]) -> dict[str, str]:
    return {item["name"].removeprefix("hatch-epctx:"): item["value"] for item in component["properties"]}


VARIANTS = [
    variant(),
    variant(target="snapdragon-88"),
    variant("classifier", target="source", ep="CPUExecutionProvider", tools=tools_of({**TOOLCHAIN, "ep": None})),
]


def test_the_document_is_valid_and_names_everything_with_its_digest() -> None:
    data = sbom(VARIANTS, project=PROJECT)
    validate(data)
    document = json.loads(data)
    assert document["specVersion"] == "1.6"
    assert document["metadata"]["component"]["purl"] == "pkg:pypi/acme-vision@1.0%2Blocal.1"
    assert document["metadata"]["component"]["licenses"] == [{"expression": "MIT OR Apache-2.0"}]
    found = components(document)

    model = found["model:detector"]
    assert model["type"] == "machine-learning-model"
    assert model["hashes"] == [{"alg": "SHA-256", "content": digest_bytes(b"detector")}]
    assert model["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    assert [(part["name"], part["hashes"][0]["content"]) for part in model["components"]] == [
        ("data/weights.bin", digest_bytes(b"w"))
    ]

    built = found["variant:detector.snapdragon-60"]
    assert built["type"] == "machine-learning-model"
    assert facts(built) == {
        "kind": "variant",
        "identity": digest_bytes(b"detector.snapdragon-60"),
        "ep": "QNNExecutionProvider",
        "device": "npu",
        "os": "linux",
    }
    weights = found[f"file:{WEIGHTS.path}"]
    assert weights["hashes"][0]["content"] == WEIGHTS.digest
    assert facts(weights) == {"role": "weights", "size": "7"}

    ep = next(component for component in found.values() if component["name"] == "onnxruntime-qnn")
    assert ep["purl"] == "pkg:pypi/onnxruntime-qnn@2.7.0"
    assert ep["scope"] == "excluded"
    assert facts(ep) == {"toolchain": "ep", "closure-sha256": digest_bytes(b"qnn")}


def test_dependencies_lead_from_the_project_to_everything() -> None:
    document = json.loads(sbom(VARIANTS, project=PROJECT))
    graph = {item["ref"]: item.get("dependsOn", []) for item in document["dependencies"]}
    assert graph["project"] == sorted(f"variant:{one.name}" for one in VARIANTS)
    assert set(graph["variant:detector.snapdragon-60"]) >= {
        "model:detector",
        f"file:{WEIGHTS.path}",
        "tool:qairt@2.40",
        "tool:onnx@1.23.2",
    }
    assert not any("qnn" in ref for ref in graph["variant:classifier.source"])
    reached, waiting = set(), ["project"]
    while waiting:
        ref = waiting.pop()
        reached.add(ref)
        waiting += [other for other in graph[ref] if other not in reached]
    assert reached == set(graph) == {"project", *components(document)}


def test_nothing_of_time_chance_or_order_is_in_it() -> None:
    first = sbom(VARIANTS, project=PROJECT)
    shuffled = [*VARIANTS]
    random.Random(1).shuffle(shuffled)  # noqa: S311  # an order, no secret
    assert sbom(shuffled, project=PROJECT) == first
    document = json.loads(first)
    assert "timestamp" not in document["metadata"]
    assert document["serialNumber"].startswith("urn:uuid:")
    changed = json.loads(sbom([*VARIANTS[1:], variant(identity="0" * 64)], project=PROJECT))
    assert changed["serialNumber"] != document["serialNumber"]


def test_another_process_writes_the_same_bytes() -> None:
    script = (
        "import sys; from test_sbom import VARIANTS, PROJECT, sbom\n"
        "sys.stdout.buffer.write(sbom(VARIANTS, project=PROJECT))"
    )
    root = Path(__file__).parent
    outputs = set()
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{root}{os.pathsep}{root.parent}"}
        command = [sys.executable, "-W", "error", "-c", script]
        outputs.add(subprocess.run(command, env=environ, check=True, capture_output=True).stdout)
    assert outputs == {sbom(VARIANTS, project=PROJECT)}


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("MIT", [{"license": {"id": "MIT"}}]),
        ("Apache-2.0 WITH LLVM-exception", [{"expression": "Apache-2.0 WITH LLVM-exception"}]),
        ("our own terms, see LICENSE", [{"license": {"name": "our own terms, see LICENSE"}}]),
        ("", None),
    ],
)
def test_licences(licence: str, expected: list[dict[str, Any]] | None) -> None:
    data = sbom([variant(model=SbomModel(name="m", digest="0" * 64, licence=licence))], project=PROJECT)
    validate(data)
    assert components(json.loads(data))["model:m"].get("licenses") == expected


def test_a_project_without_variants() -> None:
    data = sbom([], project=SbomProject(name="acme", version="1"))
    validate(data)
    assert "components" not in json.loads(data)


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (variant(identity="1" * 64), "variant"),
        (variant(target="x", model=SbomModel(name="detector", digest="1" * 64)), "model"),
        (
            variant(target="x", files=(SbomFile(path=WEIGHTS.path, role="weights", size=8, digest="1" * 64),)),
            "file",
        ),
    ],
)
def test_one_name_for_two_records_is_a_mistake(other: SbomVariant, kind: str) -> None:
    with pytest.raises(ValueError, match=f"two different records of the {kind}"):
        sbom([variant(), other], project=PROJECT)


def test_two_builds_of_one_tool_stand_side_by_side() -> None:
    tools = [SbomTool(role="ep", name="onnxruntime-qnn", version="2.7.0", closure=digit * 64) for digit in "12"]
    variants = [variant(target=f"t{index}", tools=(tool,)) for index, tool in enumerate(tools)]
    document = json.loads(sbom(variants, project=PROJECT))
    assert len([part for part in document["components"] if part["name"] == "onnxruntime-qnn"]) == 2


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=15)


@given(TEXT, TEXT, TEXT, st.text(max_size=10).filter(lambda text: text.isprintable()))
@settings(deadline=None, max_examples=40)
def test_any_names_give_a_valid_document(model: str, target: str, path: str, fact: str) -> None:
    one = variant(model, target, files=(SbomFile(path=path, role="model", size=0, digest="0" * 64),), facts={"x": fact})
    validate(sbom([one], project=PROJECT))


def test_importing_the_records_does_not_import_the_library() -> None:
    code = "import sys, hatch_epctx.sbom; assert not [m for m in sys.modules if m.startswith('cyclonedx')]"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)


def test_a_missing_library_is_named() -> None:
    code = (
        "import sys; sys.modules['cyclonedx'] = None\n"
        "from hatch_epctx.errors import ToolchainError\n"
        "from hatch_epctx.sbom import SbomProject, sbom\n"
        "try:\n    sbom([], project=SbomProject(name='a', version='1'))\n"
        "except ToolchainError as error:\n    print(error)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=Path(__file__).parent.parent
    )
    assert "pip install 'hatch-epctx[build]'" in result.stdout
