"""Finished wheels in the hands of others: every installer takes what the front ends made, however large it is."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from frontend_support import front_end
from packages_support import BY_NAME, held
from packaging.utils import parse_wheel_filename
from support import Factory, epctx

from hatch_epctx.digest import digest_file
from hatch_epctx.wheelfile import check_wheel

if TYPE_CHECKING:
    from pathlib import Path

PYTHON = sys.executable


TOOLS = ("pip", "uv", "installer", "wheel")


def unpack(tool: str, wheel: Path, target: Path) -> None:
    """Install `wheel` below the new folder `target`."""
    command = {
        "pip": [PYTHON, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)],
        "uv": [PYTHON, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--target", str(target), str(wheel)],
        "installer": [PYTHON, "-m", "installer", "--validate-record", "all", "--prefix", str(target), str(wheel)],
        "wheel": [PYTHON, "-m", "wheel", "unpack", "--dest", str(target), str(wheel)],
    }[tool]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, (tool, done.stdout + done.stderr)


@pytest.mark.parametrize("name", ["hatch-src", "setuptools-src"])
def test_every_installer_takes_the_wheel_of_a_real_project(name: str, tmp_path: Path) -> None:
    sample = BY_NAME[name]
    wheel = front_end("pip", sample.copy(tmp_path / "checkout"), out=tmp_path / "dist").wheel
    content = held(wheel, sample.folder)
    assert parse_wheel_filename(wheel.name)[0] == "acme-vision"
    for tool in TOOLS:
        unpack(tool, wheel, tmp_path / tool)
        (folder,) = (tmp_path / tool).rglob("_epctx")
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == content, tool
        epctx("verify", folder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_case_33_weights_above_four_gigabytes_are_built_installed_and_verified(
    factory: Factory, tmp_path: Path
) -> None:
    """The whole way of a user: source model with 4.2 GB of weights, hatchling, pip, `epctx verify`. Takes 17 GB."""
    tree = factory.project('[tool.epctx.targets.stub]\nep = "stub"\n')
    source = tree.model(weights="detector.data")
    weights = source.with_name("detector.data")
    with weights.open("r+b") as stream:
        stream.truncate(4_200_000_000)  # the model reads its beginning alone
        stream.seek(4_199_999_990)
        stream.write(b"the end...")
    pyproject = tree.root / "pyproject.toml"
    text = pyproject.read_text(encoding="utf-8")
    pyproject.write_text(text.replace('detector.onnx"\n', 'detector.onnx"\nship-source = true\n'), encoding="utf-8")
    expected = digest_file(weights)
    wheel = front_end("pip", tree.root, out=tmp_path / "dist").wheel
    weights.unlink()
    assert wheel.stat().st_size > 4_200_000_000
    assert check_wheel(wheel) == []
    target = tmp_path / "site"
    unpack("pip", wheel, target)
    wheel.unlink()
    folder = target / "acme_vision" / "_epctx"
    manifest = json.loads((folder / "manifest.json").read_bytes())
    (component,) = manifest["components"].values()
    (large,) = [
        artifact
        for artifact in component["variants"]["source"]["executor_info"]["epctx"]["artifacts"]
        if artifact["size"] > 4_000_000_000
    ]
    assert (large["size"], large["sha256"]) == (4_200_000_000, expected)
    assert digest_file(folder / large["path"]) == expected
    epctx("verify", folder)
