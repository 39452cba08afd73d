"""Manners of the front ends: what hatch's options do, uv's cache keys, requirements and settings of the backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from frontend_support import NAMES, Workers, environment_like_this_one, front_end, run_front_end
from packages_support import BY_NAME, held, variants
from support import STUB_TARGET, Factory, epctx, save, small_model

HATCH = [sys.executable, "-m", "hatch"]


@pytest.fixture
def hatch_project(tmp_path: Path) -> Path:
    return BY_NAME["hatch-src"].copy(tmp_path / "checkout")


def run(command: list[Any], root: Path, out: Path, **env: str) -> Any:
    return run_front_end([str(part) for part in command], root, out=out, env=env)


# hatch


def test_hooks_only_compiles_and_makes_no_wheel(hatch_project: Path, tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    out = tmp_path / "dist"
    run([*HATCH, "build", "-t", "wheel", "--hooks-only", out], hatch_project, out, **workers.env)
    assert workers.new().count("compile") == 1
    assert list(out.iterdir()) == []
    built = run([*HATCH, "build", "-t", "wheel", out], hatch_project, out, **workers.env)
    assert workers.new() == []
    assert len(built.wheels) == 1


def test_sdist_alone_compiles_nothing(hatch_project: Path, tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    built = run([*HATCH, "build", "-t", "sdist", tmp_path / "dist"], hatch_project, tmp_path / "dist", **workers.env)
    assert len(built.sdists) == 1
    assert workers.new() == ["scan"]


def test_clean_removes_what_hatch_built_and_leaves_the_store(hatch_project: Path, tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    dist = hatch_project / "dist"
    run([*HATCH, "build"], hatch_project, dist, **workers.env)
    (dist / "notes.txt").write_text("the user's own")
    workers.new()
    built = run([*HATCH, "build", "-c"], hatch_project, dist, **workers.env)
    assert (len(built.wheels), len(built.sdists)) == (1, 1)
    assert workers.new() == [], "the store is every project's"
    run([*HATCH, "clean"], hatch_project, dist)
    assert [path.name for path in dist.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["hatch-src", "setuptools-src"])
def test_an_sdist_without_a_model_says_so(name: str, tmp_path: Path) -> None:
    root = BY_NAME[name].copy(tmp_path / "checkout")
    (root / "models" / "detector.onnx").rename(root / "models" / "detectr.onnx")
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path / "dist"]
    built = run(command, root, tmp_path / "dist")
    assert len(built.sdists) == 1
    told = (
        "epctx: warning: tool.epctx.models.detector.source: models/detector.onnx does not exist: the sdist goes without"
    )
    assert built.output.count(told) == 1
    assert "epctx: warning" not in run(command, root, tmp_path / "dist", EPCTX_SKIP="1").output


# Metadata and requirements: no work


@pytest.mark.parametrize("name", ["hatch-src", "setuptools-src"])
def test_metadata_and_requirements_start_nothing(name: str, tmp_path: Path) -> None:
    root = BY_NAME[name].copy(tmp_path / "checkout")
    (root / "models" / "detector.onnx").write_bytes(b"not even read")
    code = (
        "import sys, importlib, tempfile\n"
        "backend = importlib.import_module(sys.argv[1])\n"
        "folder = tempfile.mkdtemp()\n"
        "print(backend.get_requires_for_build_wheel(), backend.get_requires_for_build_sdist())\n"
        "print(backend.prepare_metadata_for_build_wheel(folder))\n"
        "assert not {'onnx', 'onnxruntime', 'numpy'} & sys.modules.keys()\n"
    )
    workers = Workers(tmp_path)
    backend = "hatchling.build" if name.startswith("hatch") else "setuptools.build_meta"
    built = run([sys.executable, "-c", code, backend], root, tmp_path, **workers.env)
    assert "acme_vision-1.2.3.dist-info" in built.output
    assert workers.new() == []
    assert not Path(os.environ["EPCTX_CACHE_DIR"]).exists()


def test_pip_and_hatchling_build_once_for_metadata_and_wheel(hatch_project: Path, tmp_path: Path) -> None:
    workers = Workers(tmp_path)
    built = front_end("pip", hatch_project, out=tmp_path / "dist", env=workers.env)
    assert workers.new().count("compile") == 1
    preparing, compiled, building = (
        built.output.index(text) for text in ("Preparing metadata", "detector.stub: compiled", "Building wheel for")
    )
    assert preparing < compiled < building
    assert variants(held(built.wheel, "acme_vision/_epctx/")) == ["stub"]


def requires(root: Path, backend: str, hook: str = "wheel", **settings: str) -> str:
    code = (
        "import sys, importlib, json\n"
        "backend = importlib.import_module(sys.argv[1])\n"
        "print('found', getattr(backend, f'get_requires_for_build_{sys.argv[2]}')(json.loads(sys.argv[3]) or None))\n"
    )
    command = [sys.executable, "-c", code, backend, hook, json.dumps(settings)]
    built = run_front_end(command, root, out=root)
    return next(line for line in built.output.splitlines() if line.startswith("found"))


def test_the_hook_asks_for_what_selected_targets_need(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = factory.project(f'{STUB_TARGET}requires = ["acme-ep>=3"]\n')
    assert "acme-ep>=3" in requires(tree.root, "hatchling.build")
    assert "acme-ep" not in requires(tree.root, "hatchling.build", "sdist")
    assert "acme-ep>=3" in requires(tree.root, "hatchling.build", "editable")
    monkeypatch.setenv("EPCTX_SKIP", "1")
    assert "acme-ep" not in requires(tree.root, "hatchling.build")


def test_conflicting_requirements_stop_the_build_with_both_places(factory: Factory, tmp_path: Path) -> None:
    other = '[tool.epctx.targets.other]\nep = "stub"\nrequires = ["acme-ep<3"]\n'
    tree = factory.project(f'{STUB_TARGET}requires = ["acme-ep>=3"]\n{other}')
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist")]
    built = run_front_end(command, tree.root, out=tmp_path / "dist", check=False)
    assert built.code != 0
    assert "tool.epctx.targets.stub.requires asks for acme-ep>=3, and" in built.output
    assert "no version is both. Build them apart" in built.output


# The backend


def test_the_backend_asks_for_selected_targets_and_takes_settings(tmp_path: Path) -> None:
    root = BY_NAME["setuptools-backend"].copy(tmp_path / "checkout")
    backend = "hatch_epctx.setuptools.build_meta"
    assert requires(root, backend) == "found ['packaging>=20', 'pip>=20']"
    assert requires(root, backend, **{"epctx.targets": "other"}) == "found ['pip>=20']"
    assert requires(root, backend, "sdist") == "found []"
    assert requires(root, "setuptools.build_meta") == "found []"
    out = tmp_path / "dist"
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "-w", str(out), "."]
    built = run_front_end([*command, "-C", "epctx.targets=other"], root, out=out)
    assert variants(held(built.wheel, "acme_vision/_epctx/")) == ["other"]
    assert "the project's own build command" in built.output
    wrong = run_front_end([*command, "-C", "epctx.target=other"], root, out=tmp_path / "wrong", check=False)
    assert "epctx: error: -C epctx.target: no such setting; expected one of epctx.cache-dir, " in wrong.output
    assert "Did you mean 'epctx.targets'?" in wrong.output


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "pip" else pytest.mark.slow) for name in NAMES if name != "hatch"]
)
def test_a_mistake_is_a_message_with_setuptools(name: str, tmp_path: Path) -> None:
    root = BY_NAME["setuptools-src"].copy(tmp_path / "checkout")
    pyproject = root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace('ep = "stub"', 'ep = "stab"'))
    built = front_end(name, root, out=tmp_path / "dist", check=False)
    assert built.code in (1, 2)
    assert "epctx: error: tool.epctx.targets.stub.ep: unknown execution provider 'stab'" in built.output


@pytest.mark.parametrize("name", ["hatch-flat", "hatch-src", "setuptools-src"])
def test_a_package_that_the_wheel_does_not_have_is_refused_before_any_compile(name: str, tmp_path: Path) -> None:
    root, workers = BY_NAME[name].copy(tmp_path / "checkout"), Workers(tmp_path)
    pyproject = root / "pyproject.toml"
    package = BY_NAME[name].folder.partition("/")[0]
    right = pyproject.read_text()
    assert right.count(f'\npackage = "{package}"') == 1
    pyproject.write_text(right.replace(f'\npackage = "{package}"', f'\npackage = "{package}s"'))
    front = "backend" if name.startswith("hatch") else "pip"
    built = front_end(front, root, out=tmp_path / "dist", env=workers.env, check=False)
    assert built.code in (1, 2)
    assert f"tool.epctx.package: the wheel has nothing of the package '{package}s'" in built.output
    assert f"Did you mean '{package}'?" in built.output
    assert "compile" not in workers.new()
    assert built.wheels == []
    if front == "backend":
        told = epctx("plan", "-C", root).err
        assert "epctx: warning: no wheel can be made: tool.epctx.package: the wheel has nothing of the pack" in told
        pyproject.write_text(right)
        assert "no wheel can be made" not in epctx("plan", "-C", root).err


def test_a_project_without_the_table_is_left_alone(tmp_path: Path) -> None:
    """Every setuptools build in an environment with this distribution comes by."""
    root = tmp_path / "other"
    (root / "other").mkdir(parents=True)
    (root / "other" / "__init__.py").touch()
    project = '[project]\nname = "other"\nversion = "1"\n[tool.setuptools]\npackages = ["other"]\n'
    (root / "pyproject.toml").write_text(project)
    code = (
        "import sys, setuptools\nsetuptools.setup(script_args=['-q', 'build'])\n"
        "loaded = sorted(name for name in sys.modules if name.startswith('hatch_epctx'))\nprint('loaded', *loaded)\n"
    )
    built = run([sys.executable, "-c", code], root, tmp_path)
    assert "loaded hatch_epctx hatch_epctx.setuptools\n" in built.output


# uv


def test_uv_builds_anew_when_a_model_changes(hatch_project: Path, tmp_path: Path) -> None:
    """With the cache keys of docs/front-ends.md."""
    documentation = (Path(__file__).parent.parent / "docs" / "front-ends.md").read_text(encoding="utf-8")
    keys = documentation[documentation.index("[tool.uv]") :]
    pyproject = hatch_project / "pyproject.toml"
    pyproject.write_text(f"{keys[: keys.index('```')]}\n{pyproject.read_text()}")
    python = environment_like_this_one(tmp_path / "environment")
    cache = {"UV_CACHE_DIR": str(tmp_path / "uv-cache")}
    command = [sys.executable, "-m", "uv", "pip", "install", "-v", "--python", str(python), "--no-deps"]
    command += ["--no-build-isolation", "--reinstall-package", "acme-vision", str(hatch_project)]

    def installed() -> bytes:
        run_front_end(command, tmp_path, out=tmp_path, env=cache)
        (manifest,) = Path(python).parent.parent.glob("lib/*/site-packages/acme_vision/_epctx/manifest.json")
        return manifest.read_bytes()

    first = installed()
    assert installed() == first
    save(small_model(seed=5, weights="detector.data"), hatch_project / "models" / "detector.onnx")
    assert installed() != first
    assert epctx("plan", "-C", hatch_project, "--json").json["variants"][0]["status"] == "hit"


# setuptools


@pytest.mark.parametrize("mode", [pytest.param("lenient", marks=pytest.mark.slow), "strict"])
def test_epctx_build_refreshes_an_editable_install(mode: str, tmp_path: Path) -> None:
    root = BY_NAME["setuptools-flat"].copy(tmp_path / "checkout")
    python = environment_like_this_one(tmp_path / "environment")
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps"]
    run_front_end([*command, "--no-build-isolation", "-C", f"editable_mode={mode}", "-e", "."], root, out=tmp_path)
    code = "from hatch_epctx import runtime\nprint(runtime.open('acme_vision').path)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}

    def folder() -> str:
        return subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout

    first = folder()
    save(small_model(seed=5, weights="detector.data"), root / "models" / "detector.onnx")
    assert folder() == first
    assert "an editable install of acme_vision finds this 1 variant now" in epctx("build", "-C", root).out
    assert folder() != first


def test_the_commands_by_themselves(tmp_path: Path) -> None:
    root = BY_NAME["setuptools-src"].copy(tmp_path / "checkout")
    setup = [sys.executable, "-c", "import setuptools; setuptools.setup()"]
    built = run([*setup, "build_epctx"], root, tmp_path)
    assert "epctx: detector.stub: compiled" in built.output
    folder = root / "build" / "lib" / "acme_vision" / "_epctx"
    assert "manifest.json" in {path.name for path in folder.iterdir()}
    out = tmp_path / "dist"
    built = run([*setup, "-q", "bdist_wheel", "--dist-dir", out, "--build-number", "7"], root, out)
    assert built.wheel.name == "acme_vision-1.2.3-7-py3-none-any.whl"
    with zipfile.ZipFile(built.wheel) as archive:
        assert [name for name in archive.namelist() if name.endswith("_epctx/manifest.json")]
    assert not folder.exists(), "the wheel's package folder is streamed from the store"
