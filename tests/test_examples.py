"""The examples as their READMEs use them. `main_job.py` itself runs in .ci/run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest
from support import REPOSITORY

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = REPOSITORY / "examples"


def python(*arguments: str | Path, cwd: Path, path: Path | None = None) -> str:
    """Run this interpreter; `path` goes before everything else that can be imported."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (*([path] if path else []), REPOSITORY)))
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def copy_example(name: str, to: Path) -> Path:
    """A fresh checkout of one example, without what builds leave in it."""
    ignore = shutil.ignore_patterns("__pycache__", "dist", "_epctx", *(["models"] if name == "real-app" else []))
    return shutil.copytree(EXAMPLES / name, to / name, ignore=ignore)


def build_wheel(project: Path) -> Path:
    python("-m", "hatchling", "build", "-t", "wheel", cwd=project)
    (wheel,) = (project / "dist").glob("*.whl")
    return wheel


def unpack(wheel: Path, site: Path) -> Path:
    """What an installer does with a wheel of pure Python, without its scripts."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def test_make_models_gives_the_committed_bytes(tmp_path: Path) -> None:
    python(EXAMPLES / "quickstart" / "make_models.py", tmp_path, cwd=tmp_path)
    committed = EXAMPLES / "quickstart" / "models"
    assert sorted(path.name for path in tmp_path.glob("*.onnx")) == ["classifier.onnx", "encoder.onnx"]
    for path in tmp_path.glob("*.onnx"):
        assert path.read_bytes() == (committed / path.name).read_bytes()
        assert path.stat().st_size < 200_000


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_quickstart_agrees_with_the_cpu_ep(tmp_path: Path) -> None:
    project = copy_example("quickstart", tmp_path)
    site = unpack(build_wheel(project), tmp_path / "site")
    shutil.rmtree(project)
    for ep, variant in (("openvino", "intel-cpu"), ("qnn", "snapdragon-60"), ("cpu", "source")):
        out = python("-m", "acme_vision.demo", "--ep", ep, cwd=tmp_path, path=site)
        assert f"classifier: variant {variant}," in out
        assert f"encoder: variant {variant}," in out


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_real_app_says_which_way_up_a_page_is(tmp_path: Path) -> None:
    project = copy_example("real-app", tmp_path)
    wheel = build_wheel(project)
    with zipfile.ZipFile(wheel) as archive:
        assert "pageup-1.0.0.dist-info/licenses/NOTICE" in archive.namelist()
    site = unpack(wheel, tmp_path / "site")
    shutil.rmtree(project)
    for turn in (0, 90, 180, 270):
        page = tmp_path / f"page-{turn}.png"
        python("-m", "pageup.printing", REPOSITORY / "README.md", page, "--turn", str(turn), cwd=tmp_path, path=site)
    pages = [tmp_path / f"page-{turn}.png" for turn in (0, 90, 180, 270)]
    for ep, variant in (("openvino", "intel-cpu"), ("qnn", "snapdragon-x"), ("cpu", "source")):
        out = python("-m", "pageup", "--ep", ep, "--to", tmp_path / ep, *pages, cwd=tmp_path, path=site)
        for page, words in zip(pages, ("upright", "turned right", "upside down", "turned left"), strict=True):
            assert f"{page}: {words} (" in out
        assert f"variant {variant}, " in out
        assert len({path.read_bytes() for path in (tmp_path / ep).iterdir()}) == 1, "all pages upright are one page"


def test_nothing_third_party_is_committed() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--", "*.onnx", "*.bin", "*.npz"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    allowed = {"examples/quickstart/models/classifier.onnx", "examples/quickstart/models/encoder.onnx"}
    models = {name for name in listed.stdout.splitlines() if name.endswith(".onnx") and not name.startswith("tests/")}
    # Those of the rules have five nodes and random weights, or stand where nothing reads them.
    tiny = {name for name in models if name.startswith("rules/") and (REPOSITORY / name).stat().st_size < 1024}
    assert models - tiny == allowed
