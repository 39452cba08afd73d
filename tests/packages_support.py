"""The projects of tests/packages, copied and given their models, and what their package folders must be."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support import STUB_TARGET, epctx, save, small_model

from hatch_epctx.wheelfile import check_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGES = Path(__file__).parent / "packages"
LEAVINGS = ("build", "dist", "__pycache__", ".eggs")
"""Folders that build backends leave in a project."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One project of tests/packages."""

    path: str
    """Below tests/packages: its own folder, or one inside the folder that is copied."""
    package: str = "acme_vision"
    model: str = "models/detector.onnx"
    """Where the model is put, relative to the project."""
    sources: tuple[str, ...] = ("models/detector.data", "models/detector.onnx")
    """What its sdist must hold of the model."""
    module: str = "acme_vision/__init__.py"
    """The source module, relative to the project."""
    linked: str = ""
    """Folder, relative to the project, that holds the files which the model's places are links to."""
    generated: tuple[str, ...] = ()
    """Files that its build makes in the tree."""
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def backend(self) -> str:
        """hatchling or setuptools."""
        text = (PACKAGES / self.path / "pyproject.toml").read_text(encoding="utf-8")
        return "hatchling" if "hatchling.build" in text else "setuptools"

    @property
    def folder(self) -> str:
        """Package folder in the wheel."""
        return f"{self.package.replace('.', '/')}/_epctx/"

    def copy(self, to: Path, *, target: str = "") -> Path:
        """A checkout below the new folder `to`, with its model; returns the project's own folder.

        Args:
            to: the folder.
            target: TOML that takes the place of the stub's table.
        """
        top = PACKAGES / self.path.partition("/")[0]
        # Several samples may share one checkout: both projects of the monorepo do.
        if not to.exists():
            shutil.copytree(top, to, ignore=shutil.ignore_patterns(*LEAVINGS, "*.egg-info"))
        root = to / self.path.partition("/")[2] if "/" in self.path else to
        place = root / self.model
        if target:
            pyproject = root / "pyproject.toml"
            text = pyproject.read_text(encoding="utf-8")
            assert text.count(STUB_TARGET) == 1
            pyproject.write_text(text.replace(STUB_TARGET, target), encoding="utf-8")
        if not self.linked:
            save(small_model(weights="detector.data" if len(self.sources) > 1 else None), place)
            return root
        origin = root / self.linked
        if not origin.exists():
            save(small_model(weights="detector.data"), origin / "detector.onnx")
        place.parent.mkdir(parents=True, exist_ok=True)
        for name in ("detector.onnx", "detector.data"):
            (place.parent / name).symlink_to(Path(os.path.relpath(origin, place.parent), name))
        return root


SAMPLES = (
    Sample(path="hatch-src", module="src/acme_vision/__init__.py"),
    Sample(
        path="hatch-flat",
        model="acme_vision/models/detector.onnx",
        sources=("acme_vision/models/detector.data", "acme_vision/models/detector.onnx"),
    ),
    Sample(path="hatch-namespace", package="acme.vision", module="src/acme/vision/__init__.py"),
    Sample(
        path="hatch-generated",
        model="origin/detector.onnx",
        sources=("origin/detector.onnx",),
        generated=("generated/detector.onnx",),
    ),
    Sample(path="gitignore-above/project"),
    Sample(path="gitignore-above/second", package="acme_second", module="acme_second/__init__.py"),
    Sample(path="hatch-links", linked="blobs"),
    Sample(path="hatch-custom-target"),
    Sample(path="hatch-custom-global"),
    Sample(path="hatch-companions"),
    Sample(
        path="monorepo/one",
        package="acme_one",
        model="shared/detector.onnx",
        sources=("shared/detector.data", "shared/detector.onnx"),
        module="acme_one/__init__.py",
        linked="../../monorepo-models",
    ),
    Sample(
        path="monorepo/two",
        package="acme_two",
        model="shared/detector.onnx",
        sources=("shared/detector.data", "shared/detector.onnx"),
        module="acme_two/__init__.py",
        linked="../../monorepo-models",
    ),
    Sample(path="hatch-platforms"),
    Sample(path="setuptools-src", module="src/acme_vision/__init__.py"),
    Sample(path="setuptools-flat"),
    Sample(path="setuptools-namespace", package="acme.vision", module="src/acme/vision/__init__.py"),
    Sample(
        path="setuptools-setup-py",
        model="origin/detector.onnx",
        sources=("origin/detector.onnx",),
        generated=("generated/detector.onnx",),
    ),
    Sample(path="setuptools-backend"),
    Sample(path="setuptools-platforms"),
)
BY_NAME = {sample.path: sample for sample in SAMPLES}


def held(wheel: Path, folder: str) -> dict[str, bytes]:
    """Content by name of what lies below `folder` in a wheel that is in every respect what its RECORD says."""
    assert check_wheel(wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        return {name.removeprefix(folder): archive.read(name) for name in archive.namelist() if folder in name}


def expected(root: Path, out: Path, env: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """The package folder as the command line writes it for the project in `root`."""
    epctx("build", "-C", root, "--out", out, env=dict(env or {}))
    return {path.name: path.read_bytes() for path in out.iterdir()}


def variants(folder: Mapping[str, bytes]) -> list[str]:
    """Names of the variants of the one model of a package folder."""
    (component,) = json.loads(folder["manifest.json"])["components"].values()
    return list(component["variants"])


def sdist_files(sdist: Path) -> dict[str, Any]:
    """Members of an sdist by their path in the project."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2]: member for member in archive.getmembers() if not member.isdir()}


def tree_of(root: Path) -> set[str]:
    """Files of a project, without what build backends leave."""
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if not path.is_dir() and not any(part in LEAVINGS or part.endswith(".egg-info") for part in path.parts)
    }
