"""What front ends share: requirements of the selected targets, sources of an sdist, folders of editable installs."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import STUB_TARGET, Factory, Tree, epctx

from hatch_epctx import runtime
from hatch_epctx.config import load_project
from hatch_epctx.errors import ConfigError, LookupFailure, ModelError, StoreError, VerificationError
from hatch_epctx.frontend import add_pointer, build_project, dynamic_requirements, misplaced, refresh, source_files
from hatch_epctx.wheelfile import check_wheel, create_wheel, read_members

if TYPE_CHECKING:
    from hatch_epctx.pipeline import Build

MODEL = '[tool.epctx.models.detector]\nsource = "models/detector.onnx"\n'


def target(name: str, *requires: str, ep: str = "stub") -> str:
    return f'[tool.epctx.targets.{name}]\nep = "{ep}"\nrequires = {list(requires)!r}\n'


# The package


HATCH = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "acme-vision"
version = "1"
[tool.hatch.build.hooks.epctx]
"""
WHEEL = "[tool.hatch.build.targets.wheel]\n"
OTHER = f"{WHEEL}packages = ['other']\n"


@pytest.mark.parametrize(
    ("package", "table", "files", "refused"),
    [
        ("acme_vision", "", "acme_vision/__init__.py", False),
        ("acme_vison", "", "acme_vision/__init__.py", True),
        ("Acme_vision", "", "acme_vision/__init__.py", True),
        ("acme_vision", "", "src/acme_vision/__init__.py", False),
        ("src.acme_vision", "", "src/acme_vision/__init__.py", True),
        ("acme_vision", "", "acme_vision.py", False),
        ("acme_vision.models", "", "acme_vision/__init__.py acme_vision/models/labels.txt", False),
        ("acme_vision.models", "", "acme_vision/__init__.py", True),
        ("acme.vision", f"{WHEEL}packages = ['acme']", "acme/vision/__init__.py", False),
        ("acme", f"{WHEEL}only-include = ['lib']\nsources = {{ 'lib' = 'acme' }}", "lib/__init__.py", False),
        ("acme", f"{OTHER}force-include = {{ 'made' = 'acme' }}", "other/__init__.py made/a.py", False),
        ("acme.sub", f"{OTHER}force-include = {{ 'made' = './acme' }}", "other/__init__.py made/sub/a.py", False),
        ("acme", f"{OTHER}force-include = {{ 'made' = '/' }}", "other/__init__.py made/acme/a.py", False),
        ("acme", f"{OTHER}force-include = {{ 'made' = '.' }}", "other/__init__.py made/acme/a.py", False),
        ("acme", f"{OTHER}force-include = {{ 'made' = 'more' }}", "other/__init__.py made/acme/a.py", True),
        ("acme", f"{OTHER}[tool.hatch.build.hooks.custom]", "other/__init__.py", False),
        ("acme_data", f"{WHEEL}bypass-selection = true", "labels.txt", False),
        ("acme_data", "", "labels.txt", False),
    ],
)
def test_what_hatchling_selects_has_the_package_or_not(
    package: str, table: str, files: str, refused: bool, tmp_path: Path
) -> None:
    for name in files.split():
        tmp_path.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        tmp_path.joinpath(name).touch()
    own = f'[tool.epctx]\npackage = "{package}"\n{MODEL}{STUB_TARGET}'
    tmp_path.joinpath("pyproject.toml").write_text(f"{HATCH}{table}\n{own}", encoding="utf-8")
    error = misplaced(load_project(tmp_path, environ={}, state="wheel"))
    assert (error is not None) == refused
    if error:
        assert (error.where, error.reason) == ("tool.epctx.package", "no-package")


# Requirements


def requirements(tree: Tree, **environ: str) -> tuple[str, ...]:
    return dynamic_requirements(tree.root, environ=environ)


def test_only_selected_targets_bring_their_requirements(factory: Factory) -> None:
    tree = factory.project(target("one", "acme-one>=1", "shared") + target("two", "acme-two; python_version > '3'"))
    assert requirements(tree) == ("acme-one>=1", 'acme-two; python_version > "3"', "shared")
    assert requirements(tree, EPCTX_TARGETS="one") == ("acme-one>=1", "shared")
    assert requirements(tree, EPCTX_SKIP="1") == ()
    # An EP that one of the requirements brings: selection cannot be told before it is installed.
    tree.write(MODEL + target("one", "acme-one", ep="not-known-yet") + target("two", "acme-two"))
    assert requirements(tree, EPCTX_TARGETS="two") == ("acme-one", "acme-two")


def test_targets_of_data_packages_bring_none(factory: Factory) -> None:
    tree = factory.project("")
    tree.write(
        f'{MODEL}{target("one", "acme-one")}{target("two", "acme-two")}[tool.epctx.wheel]\ncompanions = ["t*"]\n'
    )
    assert requirements(tree) == ("acme-one",)


def test_conflicts_name_both_sides_and_the_way_out(factory: Factory) -> None:
    tree = factory.project(target("new", "onnxruntime-ep-x>=2") + target("old", "OnnxRuntime.EP.x<2"))
    with pytest.raises(ConfigError) as caught:
        requirements(tree)
    assert str(caught.value) == (
        "tool.epctx.targets.old.requires: tool.epctx.targets.new.requires asks for onnxruntime-ep-x>=2, and "
        "tool.epctx.targets.old.requires asks for OnnxRuntime.EP.x<2: no version is both. Build them apart "
        "(EPCTX_TARGETS=<one of them> for each): what is compiled stays in the store, and a last build without "
        "isolation takes all of it from there. Or let both ask for the same."
    )
    assert requirements(tree, EPCTX_TARGETS="new") == ("onnxruntime-ep-x>=2",)


def test_two_builds_of_onnxruntime_conflict(factory: Factory) -> None:
    tree = factory.project(target("gpu", "onnxruntime-gpu") + target("amd", "onnxruntime-migraphx"))
    with pytest.raises(ConfigError, match="both bring the module onnxruntime"):
        requirements(tree)


def test_what_the_build_system_asks_for_counts_too(factory: Factory) -> None:
    tree = factory.project(target("one", "onnx<1"))
    pyproject = tree.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('"hatchling",', '"hatchling", "onnx>=1.17",'))
    with pytest.raises(ConfigError, match=r"build-system\.requires asks for onnx>=1\.17, and"):
        requirements(tree)


def test_markers_that_do_not_hold_here_conflict_with_nothing(factory: Factory) -> None:
    tree = factory.project(target("one", "x>=2; sys_platform == 'plan9'") + target("two", "x<2"))
    assert len(requirements(tree)) == 2


# Sources


def names(tree: Tree, **environ: str) -> dict[str, bool]:
    return {file.name: file.linked for file in source_files(tree.root, environ={**os.environ, **environ})}


def test_sources_are_models_external_data_and_what_options_name(factory: Factory) -> None:
    tree = factory.project("")
    tree.write(
        f'{MODEL}[tool.epctx.models.second]\nsource = "models/second.onnx"\ntargets = ["stub"]\n'
        f'[tool.epctx.targets.stub]\nep = "stub"\n'
        'provider-options = { data = "options/data.bin", tree = "options/tree", settings = "options/s.json" }\n'
    )
    tree.model("second", weights="second.data")
    (tree.root / "options" / "tree" / "deep").mkdir(parents=True)
    for name in ("data.bin", "tree/a", "tree/deep/b"):
        (tree.root / "options" / name).write_text(name)
    (tree.root / "options" / "s.json").write_text("{}")
    expected = ["models/detector.onnx", "models/second.data", "models/second.onnx", "options/data.bin"]
    expected += ["options/s.json", "options/tree/a", "options/tree/deep/b"]
    assert list(names(tree)) == expected
    assert list(names(tree, EPCTX_MODELS="detector")) == expected, "an sdist holds everything"
    (tree.root / "epctx.lock").touch()
    assert list(names(tree)) == ["epctx.lock", *expected]


def test_links_are_followed(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(STUB_TARGET)
    tree.model("detector", weights="detector.data")
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for name in ("detector.onnx", "detector.data"):
        path = tree.root / "models" / name
        path.rename(blobs / f"blob-of-{name}")
        path.symlink_to(blobs / f"blob-of-{name}")
    found = source_files(tree.root, environ=os.environ)
    assert [(file.name, file.path.name, file.linked) for file in found] == [
        ("models/detector.data", "blob-of-detector.data", True),
        ("models/detector.onnx", "blob-of-detector.onnx", True),
    ]


def test_a_model_that_is_not_there_yet_is_left_out_and_an_unfit_one_refused(factory: Factory) -> None:
    tree = factory.project(STUB_TARGET)
    model = tree.root / "models" / "detector.onnx"
    model.unlink()
    assert names(tree) == {}
    model.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    with pytest.raises(ModelError, match="Git-LFS pointer"):
        names(tree)


# Editable installs


def built_from(tree: Tree) -> Build:
    return build_project(load_project(tree.root, environ=os.environ, state="editable"), lambda line: None)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path, as site-packages is."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def install(tree: Tree, site: Path) -> Path:
    """What an editable install leaves: the pointer, and the project on the import path."""
    wheel = site.parent / "acme_vision-1.2.3-py3-none-any.whl"
    metadata = "Metadata-Version: 2.4\nName: acme-vision\nVersion: 1.2.3\n"
    create_wheel(wheel, metadata=metadata, files={"acme.pth": b""}, time=(2020, 2, 2, 0, 0, 0))
    with built_from(tree) as built:
        assert add_pointer(built, wheel, version="1.2.3", environ=os.environ) is not None
    assert check_wheel(wheel) == []
    name = "__editable__.acme_vision.epctx.json"
    _, contents = read_members(wheel, lambda member: member == name, limit=10_000)
    (site / name).write_bytes(contents[name])
    sys.path.append(str(tree.root))
    return site / name


@pytest.fixture
def tree(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(sys, "path", list(sys.path))
    return factory.project(STUB_TARGET)


def test_the_pointer_leads_to_the_last_build(tree: Tree, site: Path) -> None:
    install(tree, site)
    first = runtime.open("acme_vision")
    assert first.version == "1.2.3"
    assert first.models == ("detector",)
    tree.model("detector", seed=9)
    with built_from(tree) as built:
        refresh(built, environ=os.environ)
    second = runtime.open("acme_vision")
    assert second.path != first.path
    assert first.path.is_dir()


def test_a_project_without_an_editable_install_is_left_alone(tree: Tree) -> None:
    with built_from(tree) as built:
        assert refresh(built, environ=os.environ) is None
    assert not (Path(os.environ["EPCTX_CACHE_DIR"]) / "editable").exists()


def test_a_damaged_folder_is_written_anew(tree: Tree, site: Path) -> None:
    install(tree, site)
    first = runtime.open("acme_vision").path
    (victim,) = first.glob("*.bin")
    first.chmod(0o755)
    victim.unlink()
    with built_from(tree) as built:
        refresh(built, environ=os.environ)
    second = runtime.open("acme_vision").path
    assert second != first
    assert {path.name for path in second.iterdir()} == {path.name for path in first.iterdir()} | {victim.name}


def test_a_package_folder_in_the_source_tree_stands_above_the_pointer(tree: Tree, site: Path) -> None:
    install(tree, site)
    own = tree.root / "acme_vision" / "_epctx"
    shutil.copytree(runtime.open("acme_vision").path, own)
    assert runtime.open("acme_vision").path == own


def test_the_message_says_what_to_do_when_the_folder_is_gone(tree: Tree, site: Path) -> None:
    install(tree, site)
    folder = runtime.open("acme_vision").path
    shutil.rmtree(folder)
    with pytest.raises(LookupFailure, match="compiled models of the editable install") as caught:
        runtime.open("acme_vision")
    assert f"Run 'epctx build' in {tree.root}" in str(caught.value)
    with built_from(tree) as built:
        refresh(built, environ=os.environ)
    assert runtime.open("acme_vision").path.is_dir()
    shutil.rmtree(folder.parent)
    with pytest.raises(LookupFailure, match="compiled models of the editable install"):
        runtime.open("acme_vision")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"format": "epctx-editable/2"}', b'{"format": "epctx-editable/1", "package": "x"}']
)
def test_a_malformed_pointer_is_refused(content: bytes, tree: Tree, site: Path) -> None:
    (site / "__editable__.acme_vision.epctx.json").write_bytes(content)
    with pytest.raises(VerificationError, match=r"__editable__\.acme_vision\.epctx\.json"):
        runtime.open("acme_vision")


def test_a_generation_outside_the_folder_is_refused(tree: Tree, site: Path) -> None:
    install(tree, site)
    current = runtime.open("acme_vision").path.parent / "current.json"
    name = runtime.open("acme_vision").path.name
    current.write_text(current.read_text().replace(name, "../../elsewhere"))
    with pytest.raises(VerificationError, match="unsafe name"):
        runtime.open("acme_vision")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a user that permissions bind")
def test_a_cache_that_cannot_be_written_is_an_error(tree: Tree, tmp_path: Path) -> None:  # pragma: no cover
    wheel = tmp_path / "acme_vision-1.2.3-py3-none-any.whl"
    with built_from(tree) as built:
        cache = Path(os.environ["EPCTX_CACHE_DIR"])
        cache.chmod(0o500)
        try:
            with pytest.raises(StoreError, match="cannot be written"):
                add_pointer(built, wheel, version="1", environ=os.environ)
        finally:
            cache.chmod(0o700)


def test_the_cache_tells_of_editable_installs_and_forgets_projects_that_are_gone(
    tree: Tree, site: Path, factory: Factory
) -> None:
    install(tree, site)
    folder = runtime.open("acme_vision").path.parent
    (told,) = epctx("cache", "info", "--json").json["editable"]
    assert told == {"package": "acme_vision", "project": str(tree.root), "size": told["size"]}
    assert told["size"] > 4096
    assert f"editable     acme_vision of {tree.root}, " in epctx("cache", "info").out
    other = factory.project(STUB_TARGET, name="other")
    shutil.rmtree(tree.root)
    install(other, site)
    assert folder.is_dir(), "the disk may only be away"
    month = time.time() - 31 * 86400
    os.utime(folder / "current.json", (month, month))
    other.model("detector", seed=3)
    with built_from(other) as built:
        refresh(built, environ=os.environ)
    assert not folder.exists()
