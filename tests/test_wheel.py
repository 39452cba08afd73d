"""What goes into a wheel beside the artifacts: its bill of materials, its tag, its limits."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import STUB_TARGET, Factory, Tree

from hatch_epctx.config import Variant, load_project, load_settings
from hatch_epctx.digest import digest_bytes
from hatch_epctx.errors import ConfigError
from hatch_epctx.frontend import build_project, without_companions
from hatch_epctx.providers import find_provider
from hatch_epctx.wheel import add_package, judge_wheel, orphan, platform_of
from hatch_epctx.wheelfile import Entry, add_files, check_wheel, create_wheel

if TYPE_CHECKING:
    from hatch_epctx.pipeline import Build

MODEL = '[tool.epctx.models.detector]\nsource = "models/detector.onnx"\nlicense = "Apache-2.0"\nship-source = true\n'


def built_from(tree: Tree, **environ: str) -> Build:
    project = load_project(tree.root, environ={**os.environ, **environ}, state="wheel")
    return build_project(without_companions(project), lambda line: None)


def plain_wheel(folder: Path, platform: str = "any") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"acme_vision-1.2.3-py3-none-{platform}.whl"
    metadata = "Metadata-Version: 2.4\nName: acme-vision\nVersion: 1.2.3\n"
    create_wheel(wheel, metadata=metadata, files={"acme_vision/__init__.py": b""}, time=(2020, 2, 2, 0, 0, 0))
    assert check_wheel(wheel) == []
    return wheel


@pytest.fixture
def tree(factory: Factory) -> Tree:
    tree = factory.project("")
    tree.write(f"{MODEL}{STUB_TARGET}")
    return tree


def test_the_bill_of_materials_names_models_artifacts_and_toolchain(tree: Tree, tmp_path: Path) -> None:
    tree.model("detector", weights="detector.data")
    wheel = plain_wheel(tmp_path / "dist")
    with built_from(tree) as built:
        add_package(built, wheel, version="1.2.3")
        once = wheel.read_bytes()
        add_package(built, wheel, version="1.2.3")
    assert wheel.read_bytes() == once
    assert check_wheel(wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        bill = json.loads(archive.read("acme_vision-1.2.3.dist-info/sboms/hatch-epctx.cdx.json"))
        held = {name: archive.read(name) for name in archive.namelist() if "/_epctx/" in name}
    found = {component["bom-ref"]: component for component in bill["components"]}
    model = found["model:detector"]
    assert model["hashes"][0]["content"] == digest_bytes((tree.root / "models/detector.onnx").read_bytes())
    assert model["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    weights = digest_bytes((tree.root / "models/detector.data").read_bytes())
    assert [part["hashes"][0]["content"] for part in model["components"]] == [weights]
    assert {"variant:detector.stub", "variant:detector.source"} <= found.keys()
    files = {ref.removeprefix("file:"): part["hashes"][0]["content"] for ref, part in found.items() if "file:" in ref}
    assert files == {name: digest_bytes(data) for name, data in held.items() if not name.endswith("manifest.json")}
    assert any(ref.startswith("tool:onnxruntime@") for ref in found)
    assert bill["metadata"]["component"]["name"] == "acme-vision"


def settings_of(**wheel: Any) -> Any:
    return load_settings({"package": "acme_vision", "wheel": wheel}, environ={}, state="wheel")


def variant(target: str, platform: str = "", *, is_source: bool = False) -> Variant:
    return Variant(
        model="m",
        target=target,
        base_target=target,
        source=Path("/m.onnx"),
        provider=find_provider("openvino"),
        device="cpu",
        optimization="basic",
        platform=platform,
        is_source=is_source,
    )


def test_a_wheel_is_of_one_platform_where_all_its_targets_are() -> None:
    source, windows, linux = variant("source", is_source=True), variant("w", "win_arm64"), variant("l", "linux_x86_64")
    assert platform_of(settings_of(), [windows, source]) == "win_arm64"
    assert platform_of(settings_of(), [windows, linux, source]) == "any"
    assert platform_of(settings_of(), [windows, variant("anywhere")]) == "any"
    assert platform_of(settings_of(), [source]) == "any"
    assert platform_of(settings_of(platform="win_arm64"), [windows, variant("anywhere")]) == "win_arm64"
    with pytest.raises(ConfigError, match=r"targets\.l\.platform: the target belongs in a wheel for linux_x86_64"):
        platform_of(settings_of(platform="win_arm64"), [windows, linux])


def test_a_wheel_beyond_its_limit_is_told_with_its_largest_files(tree: Tree, tmp_path: Path) -> None:
    wheel = plain_wheel(tmp_path / "dist")
    with built_from(tree) as built:
        add_package(built, wheel, version="1.2.3")
    assert judge_wheel(wheel, settings_of()) == ()
    assert judge_wheel(wheel, settings_of(**{"max-size": "95MiB"})) == ()
    (warning,) = judge_wheel(wheel, settings_of(**{"max-size": "4KiB"}))
    assert warning.startswith("tool.epctx.wheel.max-size: acme_vision-1.2.3-py3-none-any.whl has ")
    assert "expected at most 4 KiB. Select fewer targets (EPCTX_TARGETS)" in warning
    lines = warning.splitlines()
    assert lines[1] == "The largest files:"
    assert any("4 KiB  acme_vision/_epctx/sha256-" in line for line in lines[2:])
    with pytest.raises(ConfigError) as caught:
        judge_wheel(wheel, settings_of(**{"max-size": "4KiB", "max-size-error": True}))
    assert str(caught.value) == warning
    assert not wheel.exists(), "what is too large is not left to be uploaded"


@pytest.mark.parametrize(
    ("package", "told"),
    [
        ("acme_vision", ""),
        ("acme_vison", "Did you mean 'acme_vision'?"),
        ("other.thing", "The look-up finds the models by this name."),
    ],
)
def test_models_of_a_package_that_the_wheel_does_not_have_are_told(package: str, told: str, tmp_path: Path) -> None:
    wheel = plain_wheel(tmp_path)
    add_files(wheel, [Entry(name=f"{package.replace('.', '/')}/_epctx/manifest.json", source=b"{}")])
    warnings = judge_wheel(wheel, settings_of())
    assert [told in warning for warning in warnings] == ([True] if told else [])
    if told:
        found = f"py3-none-any.whl holds compiled models of {package!r} and nothing else of that package; expected"
        assert found in warnings[0]


@pytest.mark.parametrize(
    ("names", "certain"),
    [
        (["acme/__init__.py"], True),
        (["acme/__init__.py", "acme_vision/_epctx/manifest.json"], True),
        (["acme/vision/model.py"], True),
        (["acme/__init__.py", "acme_visions/x.py"], True),
        (["acme/__init__.py", "acme_vision/labels.txt"], False),
        (["acme/__init__.py", "acme_vision/"], False),
        (["acme/__init__.py", "/"], False),
        (["acme/__init__.py", "acme_vision.py"], False),
        (["labels.txt"], False),
        ([], False),
    ],
)
def test_a_package_that_the_wheel_will_not_have_is_known_beforehand(names: list[str], certain: bool) -> None:
    error = orphan(names, settings_of())
    assert (error is not None) == certain
    if error:
        assert (error.where, error.exit_code) == ("tool.epctx.package", 2)


@pytest.mark.parametrize(("platform", "told"), [("any", True), ("win_amd64", True), ("linux_x86_64", False)])
def test_long_paths_are_told_where_windows_may_meet_them(
    platform: str, told: bool, factory: Factory, tmp_path: Path
) -> None:
    tree = factory.project("")
    name = "t" * 60
    model = "m" * 30
    tree.model(model)
    tree.write(
        f'[tool.epctx.models.{model}]\nsource = "models/{model}.onnx"\n[tool.epctx.targets.{name}]\nep = "stub"\n'
    )
    wheel = plain_wheel(tmp_path / "dist", platform)
    with built_from(tree) as built:
        add_package(built, wheel, version="1.2.3")
    warnings = judge_wheel(wheel, settings_of())
    assert bool(warnings) is told
    if told:
        assert f"  119  acme_vision/_epctx/{model}.{name}_ctx.onnx" in warnings[0]
        with pytest.raises(ConfigError, match="expected at most 105"):
            judge_wheel(wheel, settings_of(**{"max-path-error": True}))
