"""What is said about a finished wheel: its provenance, and its wheel variant."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from support import OPENVINO_TARGET, STUB_TARGET, Factory, epctx
from test_wheel import built_from, plain_wheel

from hatch_epctx.digest import digest_bytes
from hatch_epctx.wheel import add_package
from hatch_epctx.wheelfile import Entry, add_files, check_wheel

MODEL = '[tool.epctx.models.detector]\nsource = "models/detector.onnx"\nship-source = true\n'


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with a compiled model and its source, whose weights are external."""
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "store"))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent / "stub_ep"))
        tree = Factory(folder).project("")
        tree.write(f"{MODEL}{STUB_TARGET}")
        tree.model("detector", weights="detector.data")
        made = plain_wheel(folder / "dist")
        with built_from(tree) as built:
            add_package(built, made, version="1.2.3")
    return made


def copy_of(wheel: Path, folder: Path) -> Path:
    copy = folder / wheel.name
    copy.write_bytes(wheel.read_bytes())
    return copy


# Provenance


def statement(wheel: Path, *arguments: str) -> Any:
    return epctx("provenance", wheel, *arguments).json


def test_the_statement_is_one_of_in_toto_and_slsa(wheel: Path) -> None:
    from google.protobuf.json_format import ParseDict
    from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance as ProvenanceMessage
    from in_toto_attestation.v1.statement import Statement
    from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage

    document = statement(wheel)
    Statement.copy_from_pb(ParseDict({**document, "type": document.pop("_type")}, StatementMessage())).validate()
    # Strict: a field that SLSA's schema does not have is an error.
    parsed = ParseDict(document["predicate"], ProvenanceMessage())
    assert parsed.build_definition.build_type.startswith("https://")
    assert len(parsed.build_definition.resolved_dependencies) > 3
    assert document["predicateType"] == "https://slsa.dev/provenance/v1"


def test_it_names_the_wheel_the_inputs_and_the_toolchain(wheel: Path) -> None:
    document = statement(wheel)
    assert document["subject"] == [{"name": wheel.name, "digest": {"sha256": digest_bytes(wheel.read_bytes())}}]
    definition = document["predicate"]["buildDefinition"]
    with zipfile.ZipFile(wheel) as archive:
        manifest = json.loads(archive.read("acme_vision/_epctx/manifest.json"))
    variants = manifest["components"]["detector"]["variants"]
    assert definition["internalParameters"]["identities"] == {
        f"detector.{name}": variant["executor_info"]["epctx"]["identity"] for name, variant in variants.items()
    }
    assert definition["externalParameters"]["variants"]["detector.stub"]["ep"] == "StubExecutionProvider"
    dependencies = {item["name"]: item for item in definition["resolvedDependencies"]}
    models = wheel.parent.parent / "project" / "models"
    for name, file in (("model:detector", "detector.onnx"), ("model:detector/detector.data", "detector.data")):
        assert dependencies[name]["digest"]["sha256"] == digest_bytes((models / file).read_bytes())
    (runtime,) = [item for name, item in dependencies.items() if name.startswith("onnxruntime ")]
    assert runtime["uri"].startswith("pkg:pypi/onnxruntime@")
    assert len(runtime["annotations"]["closure-sha256"]) == 64
    byproducts = document["predicate"]["runDetails"]["byproducts"]
    artifacts = [item for variant in variants.values() for item in variant["executor_info"]["epctx"]["artifacts"]]
    assert {item["name"] for item in byproducts} == {f"acme_vision/_epctx/{item['path']}" for item in artifacts}


def test_options_of_the_command(wheel: Path, tmp_path: Path) -> None:
    document = statement(wheel, "--builder-id", "https://ci.example/builder/7")
    assert document["predicate"]["runDetails"]["builder"]["id"] == "https://ci.example/builder/7"
    assert statement(wheel, "--builder-id", "https://ci.example/builder/7") == document, "no time, nothing random"
    assert statement(wheel, "--predicate-only", "--builder-id", "https://ci.example/builder/7") == document["predicate"]
    assert f"wrote {tmp_path / 'it.json'}" in epctx("provenance", wheel, "-o", tmp_path / "it.json").out
    assert json.loads((tmp_path / "it.json").read_text())["subject"] == document["subject"]


def test_a_wheel_that_is_not_what_it_says_gets_no_statement(wheel: Path, tmp_path: Path) -> None:
    damaged = copy_of(wheel, tmp_path)
    data = bytearray(damaged.read_bytes())
    with zipfile.ZipFile(damaged) as archive:
        item = next(item for item in archive.infolist() if item.filename.endswith(".bin"))
    data[item.header_offset + 30 + len(item.filename) + 5] ^= 1
    damaged.write_bytes(data)
    run = epctx("provenance", damaged, check=False)
    assert run.code == 8
    assert "is not what its RECORD says" in run.err
    # RECORD is right, and the manifest is not of these bytes.
    exchanged = copy_of(wheel, tmp_path)
    add_files(exchanged, [Entry(name=item.filename, source=b"other")])
    assert check_wheel(exchanged) == []
    run = epctx("provenance", exchanged, check=False)
    assert run.code == 8
    assert "as the manifest records" in run.err
    run = epctx("provenance", plain_wheel(tmp_path / "plain"), check=False)
    assert "holds no compiled models" in run.err


# Wheel variants


def test_a_variant_is_written_beside_the_wheel(wheel: Path, tmp_path: Path) -> None:
    plain = copy_of(wheel, tmp_path)
    run = epctx("variant", plain, "--property", "x86_64 :: level :: v2", "--json")
    assert run.json["label"] == "x86_64_v2"
    made = tmp_path / "acme_vision-1.2.3-py3-none-any-x86_64_v2.whl"
    assert Path(run.json["wheel"]) == made
    with zipfile.ZipFile(made) as archive, zipfile.ZipFile(plain) as original:
        names = set(archive.namelist())
        assert names - set(original.namelist()) == {"acme_vision-1.2.3.dist-info/variant.json"}
        described = json.loads(archive.read("acme_vision-1.2.3.dist-info/variant.json"))
        record = archive.read("acme_vision-1.2.3.dist-info/RECORD").decode()
    assert described["variants"] == {"x86_64_v2": {"x86_64": {"level": ["v2"]}}}
    assert "acme_vision-1.2.3.dist-info/variant.json,sha256=" in record
    # Of check_wheel, the file name alone is strange: the standard is a draft.
    assert {problem.reason for problem in check_wheel(made)} == {"wheel-name"}
    first = made.read_bytes()
    epctx("variant", plain, "--property", "x86_64 :: level :: v2")
    assert made.read_bytes() == first
    epctx("variant", plain, "--property", "x86_64 :: level :: v3", "--label", "new")
    index = json.loads((tmp_path / "acme_vision-1.2.3-variants.json").read_text())
    assert index["variants"].keys() == {"x86_64_v2", "new"}


def install(folder: Path, target: Path) -> str:
    """Install with uv's preview of wheel variants; returns which wheel it took."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--preview-features", "wheel-variants", "--no-cache"]
    command += ["--no-index", "--find-links", str(folder), "--python", sys.executable, "--target", str(target)]
    subprocess.run([*command, "acme-vision"], check=True, capture_output=True, timeout=300)
    (metadata,) = target.glob("acme_vision-*.dist-info")
    found = metadata / "variant.json"
    return next(iter(json.loads(found.read_text())["variants"])) if found.exists() else "plain"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the property is one of x86-64")
def test_an_installer_takes_the_variant_that_fits(wheel: Path, tmp_path: Path) -> None:
    plain = copy_of(wheel, tmp_path)
    epctx("variant", plain, "--property", "x86_64 :: level :: v2")
    assert install(tmp_path, tmp_path / "one") == "x86_64_v2"
    other = tmp_path / "other"
    other.mkdir()
    plain = copy_of(wheel, other)
    epctx("variant", plain, "--property", "nvidia :: sm_arch :: 999")
    assert install(other, tmp_path / "two") == "plain", "this machine has no such device"


@pytest.mark.ep_openvino
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the property is one of x86-64")
def test_the_cpu_that_was_compiled_for_is_derived(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(OPENVINO_TARGET)
    plain = plain_wheel(tmp_path / "dist")
    with built_from(tree) as built:
        add_package(built, plain, version="1.2.3")
    run = epctx("variant", plain, "--json")
    assert run.json["properties"][0] in [f"x86_64 :: level :: v{level}" for level in (2, 3, 4)]
    assert run.json["experimental"] is True
    assert install(plain.parent, tmp_path / "site") == run.json["label"]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((), "none of its compiled models depends on a CPU, and no property is given"),
        (("--property", "fast"), "--property: 'fast' is no property; expected namespace :: feature :: value"),
        (("--property", "moon :: phase :: full"), "nobody is known to provide the namespace 'moon'"),
        (("--property", "x86_64 :: level :: v2", "--label", "UP"), "--label: 'UP' is no label"),
        (("--property", "x86_64 :: level :: v2", "--provider", "x86_64"), "--provider: found 'x86_64'"),
    ],
)
def test_what_a_variant_cannot_be(arguments: tuple[str, ...], found: str, wheel: Path, tmp_path: Path) -> None:
    run = epctx("variant", copy_of(wheel, tmp_path), *arguments, check=False)
    assert run.code == 2
    assert found in run.err


def test_a_variant_of_a_variant_is_refused(wheel: Path, tmp_path: Path) -> None:
    epctx("variant", copy_of(wheel, tmp_path), "--property", "x86_64 :: level :: v2")
    made = tmp_path / "acme_vision-1.2.3-py3-none-any-x86_64_v2.whl"
    run = epctx("variant", made, "--property", "x86_64 :: level :: v3", check=False)
    assert (run.code, "has no plain wheel's name" in run.err) == (8, True)


def test_two_meanings_of_one_label_are_refused(wheel: Path, tmp_path: Path) -> None:
    plain = copy_of(wheel, tmp_path)
    epctx("variant", plain, "--property", "x86_64 :: level :: v2")
    arguments = ("--property", "x86_64 :: level :: v3", "--provider", "x86_64=another-provider")
    run = epctx("variant", plain, *arguments, check=False)
    assert run.code == 2
    assert "cannot take this variant too" in run.err
