"""Small real projects, built by every front end: the payload is complete and the same, and the tree stays as it was.

By default each project is built by one front end; --slow builds all by all. What tools of this kind got wrong has its
number from the project's list of cases in the test's name; see also test_hatch, and test_wheelfile for large binaries.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from frontend_support import NAMES, Workers, environment_like_this_one, front_end, run_front_end
from packages_support import BY_NAME, SAMPLES, Sample, expected, held, sdist_files, tree_of, variants
from packaging.utils import parse_wheel_filename
from support import OPENVINO_TARGET, REPOSITORY, Factory, epctx

from hatch_epctx.runtime import open as open_package
from hatch_epctx.runtime.verify import verify_files

IDS = [sample.path for sample in SAMPLES]


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Projects of the same model and target need one compile in all: identities hold no names and no places."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture(autouse=True)
def _shared(shared_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(shared_store))


def cases() -> list[object]:
    """Every project with every front end; all but one of each are slow."""
    found = []
    for number, sample in enumerate(SAMPLES):
        # hatch needs a table of its own to build without isolation, which projects of setuptools do not have.
        names = [name for name in NAMES if name != "hatch" or sample.backend == "hatchling"]
        usual = names[number % len(names)]
        for name in names:
            marks = () if name == usual else (pytest.mark.slow,)
            found.append(pytest.param(sample, name, id=f"{sample.path}-{name}", marks=marks))
    return found


@pytest.mark.parametrize(("sample", "name"), cases())
def test_the_payload_is_complete_and_the_tree_stays_as_it_was(sample: Sample, name: str, tmp_path: Path) -> None:
    root = sample.copy(tmp_path / "checkout")
    before = tree_of(root)
    built = front_end(name, root, out=tmp_path / "dist", env=sample.env)
    assert tree_of(root) == before | set(sample.generated if name in ("pip", "hatch") else ())
    found = held(built.wheel, sample.folder)
    main = {"EPCTX_TARGETS": "small"} if sample.path == "hatch-companions" else {}
    for generated in sample.generated:
        if not (root / generated).exists():
            (root / generated).parent.mkdir()
            shutil.copy(root / sample.model, root / generated)
    assert found == expected(root, tmp_path / "folder", main)
    for sdist in built.sdists:
        check_sdist(sample, sdist)
    with zipfile.ZipFile(built.wheel) as archive:
        assert [item for item in archive.namelist() if item.endswith(".dist-info/sboms/hatch-epctx.cdx.json")]


def check_sdist(sample: Sample, sdist: Path) -> None:
    """Sources as regular files, no artifacts."""
    members = sdist_files(sdist)
    assert set(sample.sources) <= members.keys()
    assert all(members[source].isreg() and members[source].size for source in sample.sources)
    assert not [member for member in members if "_epctx" in member or member.endswith(".bin")]


EDITABLE = [
    ("hatch-src", ""),
    ("hatch-namespace", ""),
    ("setuptools-src", "lenient"),
    ("setuptools-flat", "lenient"),
    ("setuptools-flat", "strict"),
    ("setuptools-flat", "compat"),
]
"""What runs by default; the rest is slow."""


def editable_cases() -> list[object]:
    found = []
    for sample in SAMPLES:
        for mode in [""] if sample.backend == "hatchling" else ["lenient", "strict", "compat"]:
            marks = () if (sample.path, mode) in EDITABLE else (pytest.mark.slow,)
            found.append(pytest.param(sample, mode, id=f"{sample.path}{mode and '-'}{mode}", marks=marks))
    return found


@pytest.mark.parametrize(("sample", "mode"), editable_cases())
def test_case_31_in_an_editable_install_source_modules_win_and_artifacts_are_found(
    sample: Sample, mode: str, tmp_path: Path
) -> None:
    """Source modules win, the look-up finds the artifacts, and nothing is written into the source tree."""
    root = sample.copy(tmp_path / "checkout")
    before = tree_of(root)
    python = environment_like_this_one(tmp_path / "environment")
    settings = ["-C", f"editable_mode={mode}"] if mode else []
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-v", "--no-deps"]
    run_front_end([*command, "--no-build-isolation", *settings, "-e", "."], root, out=tmp_path)
    assert tree_of(root) == before | set(sample.generated)
    code = (
        f"import {sample.package} as module, hatch_epctx.runtime as runtime\n"
        f"print(module.__file__)\nprint(runtime.open({sample.package!r}).path)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    run = subprocess.run(
        [python, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    module, folder = (Path(line) for line in run.stdout.splitlines())
    # In strict mode, setuptools makes a tree of links to the modules.
    assert module.resolve() == root / sample.module
    assert folder.is_relative_to(os.environ["EPCTX_CACHE_DIR"])
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected(root, tmp_path / "folder")


IGNORED = ("hatch-generated", "gitignore-above/project", "gitignore-above/second", "setuptools-setup-py")


@pytest.mark.ep_openvino
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "second" in name else ()) for name in IGNORED]
)
def test_case_28_ignored_files_are_in_the_direct_wheel_and_in_the_one_from_the_sdist(name: str, tmp_path: Path) -> None:
    sample = BY_NAME[name]
    env = {"SOURCE_DATE_EPOCH": "1700000000"}
    wheels = []
    for front in ("pip", "uv"):
        root = sample.copy(tmp_path / front, target=OPENVINO_TARGET)
        wheels.append(front_end(front, root, out=tmp_path / f"dist-{front}", env=env).wheel)
    found = held(wheels[0], sample.folder)
    assert {"manifest.json", "detector.intel-cpu_ctx.onnx"} <= found.keys()
    assert len(found) == 3
    assert held(wheels[1], sample.folder) == found
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


@pytest.mark.ep_openvino
@pytest.mark.parametrize("name", ["setuptools-src", "hatch-src"])
def test_case_30_an_sdist_compiles_nothing_and_its_wheel_hits(name: str, tmp_path: Path) -> None:
    sample = BY_NAME[name]
    workers = Workers(tmp_path)
    env = {**workers.env, "EPCTX_CACHE_DIR": str(tmp_path / "store")}
    sdist = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", str(tmp_path / "sdist")]
    root = sample.copy(tmp_path / "one", target=OPENVINO_TARGET)
    built = run_front_end(sdist, root, out=tmp_path / "sdist", env=env)
    check_sdist(sample, built.sdists[0])
    assert workers.new() == ["scan"], "the model is read for its external data"
    front_end("build", root, out=tmp_path / "both", env=env)
    assert workers.new().count("compile") == 1
    elsewhere = sample.copy(tmp_path / "elsewhere", target=OPENVINO_TARGET)
    front_end("uv", elsewhere, out=tmp_path / "again", env=env)
    assert workers.new() == []


def test_case_32_and_34_leavings_are_one_entry_and_a_renamed_target_is_gone(tmp_path: Path) -> None:
    """For setuptools, which keeps its build folder; test_hatch has them for hatchling."""
    sample = BY_NAME["setuptools-flat"]
    root = sample.copy(tmp_path / "checkout")
    pyproject = root / "pyproject.toml"
    text = pyproject.read_text()
    pyproject.write_text(text.replace("[tool.epctx]", '[tool.setuptools.package-data]\n"*" = ["**/*"]\n\n[tool.epctx]'))
    (root / "acme_vision" / "_epctx").mkdir()
    for name in ("manifest.json", "old.bin"):
        (root / "acme_vision" / "_epctx" / name).write_bytes(b"old")
    first = front_end("build", root, out=tmp_path / "first")
    found = held(first.wheel, sample.folder)
    assert "detector.stub_ctx.onnx" in found
    assert b"old" not in found.values()
    check_sdist(sample, first.sdists[0])
    # The commands themselves leave the package folder in the build folder.
    run_front_end([sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "build"], root, out=tmp_path)
    kept = root / "build" / "lib" / "acme_vision" / "_epctx"
    assert {path.name for path in kept.iterdir()} == found.keys()
    pyproject.write_text(pyproject.read_text().replace("targets.stub", "targets.renamed"))
    second = held(front_end("pip", root, out=tmp_path / "second").wheel, sample.folder)
    assert variants(second) == ["renamed"]
    assert second.keys() == {name.replace("stub", "renamed") for name in found}
    skipped = front_end("pip", root, out=tmp_path / "skipped", env={"EPCTX_SKIP": "1"})
    assert "epctx: warning: EPCTX_SKIP is set" in skipped.output
    assert held(skipped.wheel, sample.folder) == {}


@pytest.mark.parametrize("name", ["hatch-platforms", "setuptools-platforms"])
def test_case_29_the_tag_follows_the_selected_targets(name: str, tmp_path: Path) -> None:
    sample = BY_NAME[name]
    root = sample.copy(tmp_path / "checkout")
    cases = {"": "any", "windows": "win_arm64", "linux": "manylinux_2_28_x86_64", "windows anywhere": "any"}
    for targets, platform in cases.items():
        out = tmp_path / f"dist {targets}"
        built = front_end("pip", root, out=out, env={"EPCTX_TARGETS": targets})
        assert built.wheel.name == f"acme_vision-1.2.3-py3-none-{platform}.whl"
        with zipfile.ZipFile(built.wheel) as archive:
            text = archive.read("acme_vision-1.2.3.dist-info/WHEEL").decode()
            modules = [item for item in archive.namelist() if item.endswith("__init__.py")]
        assert f"Tag: py3-none-{platform}\n" in text
        assert f"Root-Is-Purelib: {str(platform == 'any').lower()}\n" in text
        assert modules == ["acme_vision/__init__.py"]
        selected = targets.split() or ["windows", "linux", "anywhere"]
        assert set(variants(held(built.wheel, sample.folder))) == {*selected, "source"}


def test_the_same_bytes_whatever_builds(tmp_path: Path) -> None:
    """One package folder for hatchling and setuptools."""
    folders = []
    for name in ("hatch-src", "setuptools-src"):
        sample = BY_NAME[name]
        wheel = front_end("pip", sample.copy(tmp_path / name), out=tmp_path / f"dist-{name}").wheel
        folders.append(held(wheel, sample.folder))
    assert folders[0] == folders[1]


@pytest.mark.parametrize("name", ["hatch-custom-target", "hatch-custom-global"])
def test_the_custom_target_is_left_alone(name: str, tmp_path: Path) -> None:
    sample = BY_NAME[name]
    root = sample.copy(tmp_path / "checkout")
    workers = Workers(tmp_path)
    command = [sys.executable, "-m", "hatch", "build", "-t", "custom", str(tmp_path / "dist")]
    run_front_end(command, root, out=tmp_path / "dist", env=workers.env)
    assert [path.name for path in (tmp_path / "dist").iterdir()] == ["version.txt"]
    assert workers.new() == []


def test_case_35_installed_trees_verify_wherever_they_are_moved(tmp_path: Path) -> None:
    sample = BY_NAME["monorepo/two"]
    wheel = front_end("pip", sample.copy(tmp_path / "checkout"), out=tmp_path / "dist").wheel
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel], check=True)
    moved = tmp_path / "elsewhere" / "deep"
    moved.parent.mkdir()
    site.rename(moved)
    package = open_package(moved / "acme_two")
    assert package.models == ("detector",)
    verify_files(package.path, package.manifest.artifacts(), "always")


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_case_29_a_target_of_real_hardware_gives_its_platform_to_the_wheel(factory: Factory, tmp_path: Path) -> None:
    """A compile for Snapdragon under Windows and one for the CPU under Linux; each is installed where it belongs."""
    snapdragon = '[tool.epctx.targets.laptop]\nep = "qnn"\nplatform = "win_arm64"\n'
    snapdragon += 'provider-options = { backend_type = "htp", soc_model = "60" }\n'
    tree = factory.project(f'{OPENVINO_TARGET}platform = "manylinux_2_28_x86_64"\n{snapdragon}')
    cases = {"laptop": ("win_arm64", "false"), "intel-cpu": ("manylinux_2_28_x86_64", "false"), "*": ("any", "true")}
    for targets, (platform, pure) in cases.items():
        built = front_end("backend", tree.root, out=tmp_path / platform, env={"EPCTX_TARGETS": targets})
        tags = parse_wheel_filename(built.wheel.name)[3]
        assert {(tag.abi, tag.platform) for tag in tags} == {("none", platform)}
        with zipfile.ZipFile(built.wheel) as archive:
            lines = archive.read("acme_vision-1.2.3.dist-info/WHEEL").decode().splitlines()
        assert f"Tag: py3-none-{platform}" in lines
        assert f"Root-Is-Purelib: {pure}" in lines
        selected = ["intel-cpu", "laptop"] if targets == "*" else [targets]
        assert variants(held(built.wheel, "acme_vision/_epctx/")) == selected


@pytest.mark.parametrize("name", ["hatch-platforms", "setuptools-platforms"])
def test_split_by_platform(name: str, tmp_path: Path) -> None:
    """A wheel for one platform has the portable targets too; a front end told the same makes the same wheel."""
    sample = BY_NAME[name]
    root = sample.copy(tmp_path / "checkout")
    out = tmp_path / "dist"
    env = {"SOURCE_DATE_EPOCH": "1700000000"}
    run = epctx("build", "-C", root, "--split", "--out", out, "--json", env=env)
    wheels = {item["split"]: Path(item["path"]) for item in run.json["wheels"]}
    assert {tag: wheel.name for tag, wheel in wheels.items()} == {
        tag: f"acme_vision-1.2.3-py3-none-{tag}.whl" for tag in ("win_arm64", "manylinux_2_28_x86_64", "any")
    }
    held_by = {tag: variants(held(wheel, sample.folder)) for tag, wheel in wheels.items()}
    assert held_by == {
        "win_arm64": ["anywhere", "windows", "source"],
        "manylinux_2_28_x86_64": ["anywhere", "linux", "source"],
        "any": ["anywhere", "source"],
    }
    told = {**env, "EPCTX_TARGETS": "anywhere,windows", "EPCTX_PLATFORM": "win_arm64"}
    same = front_end("pip", root, out=tmp_path / "same", env=told)
    assert same.wheel.read_bytes() == wheels["win_arm64"].read_bytes()


def test_split_by_target(tmp_path: Path) -> None:
    sample = BY_NAME["hatch-platforms"]
    root = sample.copy(tmp_path / "checkout")
    epctx("build", "-C", root, "--split", "target", "--targets", "anywhere,windows", "--out", tmp_path / "dist")
    assert sorted(path.relative_to(tmp_path / "dist").as_posix() for path in tmp_path.rglob("dist/*/*")) == [
        "anywhere/acme_vision-1.2.3-py3-none-any.whl",
        "windows/acme_vision-1.2.3-py3-none-win_arm64.whl",
    ]
    (wheel,) = (tmp_path / "dist" / "windows").iterdir()
    assert variants(held(wheel, sample.folder)) == ["windows", "source"]


def test_a_failing_backend_is_a_message(tmp_path: Path) -> None:
    sample = BY_NAME["hatch-platforms"]
    root = sample.copy(tmp_path / "checkout")
    pyproject = root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text() + '\n[tool.epctx.wheel]\nmax-size = "1KiB"\nmax-size-error = true\n')
    run = epctx("build", "-C", root, "--split", "--out", tmp_path / "dist", check=False)
    assert run.code == 4
    assert "the build backend hatchling.build failed in build_wheel" in run.err
    assert "tool.epctx.wheel.max-size: acme_vision-1.2.3-py3-none-" in run.err
    pyproject.write_text(pyproject.read_text().replace('"hatchling.build"', '"not_installed.build"'))
    run = epctx("build", "-C", root, "--split", "--out", tmp_path / "dist", check=False)
    found = (
        "build backend not_installed.build cannot be imported (ModuleNotFoundError: No module named 'not_installed')"
    )
    assert f"{found}. Install it: pip install 'hatchling'" in run.err


def test_companions_are_packages_that_the_look_up_finds(tmp_path: Path) -> None:
    sample = BY_NAME["hatch-companions"]
    root = sample.copy(tmp_path / "checkout")
    main = front_end("pip", root, out=tmp_path / "dist")
    assert variants(held(main.wheel, sample.folder)) == ["small", "source"]
    advice = "no extra asks for acme-vision-epctx-huge: add to [project.optional-dependencies] "
    advice += 'huge = ["acme-vision-epctx-huge==1.2.3"]'
    assert f"epctx: warning: {advice}" in main.output
    run = epctx("build", "-C", root, "--companions", "--out", tmp_path / "dist", "--json")
    assert run.err.count("no extra asks for") == 1
    assert advice in run.err
    wheels = {item["companion"]: Path(item["path"]) for item in run.json["wheels"]}
    assert {name: wheel.name for name, wheel in wheels.items()} == {
        "acme-vision-epctx-big": "acme_vision_epctx_big-1.2.3-py3-none-any.whl",
        "acme-vision-epctx-huge": "acme_vision_epctx_huge-1.2.3-py3-none-any.whl",
    }
    assert variants(held(wheels["acme-vision-epctx-big"], "acme_vision_epctx_big/_epctx/")) == ["big-1", "big-2"]
    before = {name: wheel.read_bytes() for name, wheel in wheels.items()}
    epctx("build", "-C", root, "--companions", "--out", tmp_path / "dist")
    assert {name: wheel.read_bytes() for name, wheel in wheels.items()} == before
    python = environment_like_this_one(tmp_path / "environment")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-index", "--find-links"]
    subprocess.run([*command, tmp_path / "dist", "acme-vision[big]"], check=True)
    code = "from hatch_epctx import runtime\nprint(*runtime.open('acme_vision').variants('detector'))"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    run_code = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run_code.stdout.split() == ["small", "source", "big-1", "big-2"]
    with zipfile.ZipFile(wheels["acme-vision-epctx-big"]) as archive:
        metadata = archive.read("acme_vision_epctx_big-1.2.3.dist-info/METADATA").decode()
    assert "License-Expression: MIT\n" in metadata
    assert "Requires-Dist: acme-vision==1.2.3\n" in metadata


def test_wheels_need_a_folder_and_companions_a_declaration(tmp_path: Path) -> None:
    root = BY_NAME["hatch-src"].copy(tmp_path / "checkout")
    run = epctx("build", "-C", root, "--split", check=False)
    assert (run.code, "--split: no folder is named. Add --out DIR for the wheels." in run.err) == (2, True)
    run = epctx("build", "-C", root, "--companions", "--out", tmp_path / "out", check=False)
    assert (run.code, "--companions: no selected target goes into a data package" in run.err) == (2, True)
