"""Small models and projects that the tests make, and how they start what users start."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import sysconfig
import venv
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hatch_epctx.config import load_project
from hatch_epctx.pipeline import Pipeline
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from hatch_epctx.config import Variant

REPOSITORY = Path(__file__).parent.parent

STUB_TARGET = '[tool.epctx.targets.stub]\nep = "stub"\n'
OPENVINO_TARGET = """[tool.epctx.targets.intel-cpu]
ep = "openvino"
device = "cpu"
provider-options = { load_config = { CPU = { INFERENCE_PRECISION_HINT = "f32" } } }
"""
QNN_TARGET = """[tool.epctx.targets.snapdragon]
ep = "qnn"
matrix = { soc_model = ["60", "88"] }
provider-options = { backend_type = "htp" }
"""


def small_model(
    *, seed: int = 1, channels: int = 4, size: int = 8, batch: int | str = 1, weights: str | None = None
) -> onnx.ModelProto:
    """A convolution, a ReLU, a global pool and a matrix product; both real EPs take it whole.

    Args:
        seed: of the weights.
        channels: of the convolution.
        size: input height and width.
        batch: a number, or a symbolic dimension's name.
        weights: name of an external-data file for the convolution's weights; inside the model when None.
    """
    random = np.random.default_rng(seed)
    kernel = random.normal(size=(channels, 3, 3, 3)).astype(np.float32)
    head = random.normal(size=(channels, 5)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
        helper.make_node("MatMul", ["f", "head"], ["y"], name="head_product"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 5])],
        [numpy_helper.from_array(kernel, "kernel"), numpy_helper.from_array(head, "head")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    if weights is not None:
        tensor = model.graph.initializer[0]
        onnx.external_data_helper.set_external_data(tensor, location=weights)
    return model


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write `model` and its external data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


@dataclass
class Tree:
    """One project on disk."""

    root: Path

    def write(self, table: str) -> None:
        """Replace pyproject.toml; `table` is TOML below `[tool.epctx]`."""
        (self.root / "pyproject.toml").write_text(
            '[build-system]\nrequires = ["hatchling", "hatch-epctx[build]"]\nbuild-backend = "hatchling.build"\n\n'
            '[project]\nname = "acme-vision"\nversion = "1.2.3"\n\n'
            '[tool.hatch.build.targets.wheel]\npackages = ["acme_vision"]\n\n'
            "[tool.hatch.build.hooks.epctx]\n\n"
            f'[tool.epctx]\npackage = "acme_vision"\n{table}',
            encoding="utf-8",
        )

    def model(self, name: str = "detector", **settings: Any) -> Path:
        """Make a small model at models/<name>.onnx."""
        return save(small_model(**settings), self.root / "models" / f"{name}.onnx")


class Factory:
    """Makes models and projects below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def project(self, table: str, *, name: str = "project", models: tuple[str, ...] = ("detector",)) -> Tree:
        """A hatchling project with small models, `table` below [tool.epctx]."""
        tree = Tree(self.folder / name)
        package = tree.root / "acme_vision"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text('"""Acme."""\n', encoding="utf-8")
        for seed, model in enumerate(models, start=1):
            tree.model(model, seed=seed)
        declared = "".join(f'[tool.epctx.models.{model}]\nsource = "models/{model}.onnx"\n' for model in models)
        tree.write(f"{declared}{table}")
        return tree


class Lines(list[tuple[str, str]]):
    """A report that keeps (variant's name or "", line), and may do something when a line comes."""

    def __init__(self, on_line: Callable[[str, str], None] = lambda _name, _text: None) -> None:
        super().__init__()
        self._on_line = on_line

    def __call__(self, variant: Variant | None, text: str) -> None:
        name = variant.name if variant else ""
        self.append((name, text))
        self._on_line(name, text)

    def of(self, name: str) -> list[str]:
        """The lines of one variant."""
        return [text for variant, text in self if variant == name]


def pipeline(root: Path, *, report: Lines | None = None, **environ: str) -> Pipeline:
    """The pipeline of the project in `root`, with the test's own store and EPCTX_* variables."""
    project = load_project(root, environ=environ, state="wheel")
    return Pipeline(project, Store(Path(os.environ["EPCTX_CACHE_DIR"])), report=Lines() if report is None else report)


@dataclass(frozen=True)
class Run:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def here(*arguments: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None, check: bool = True) -> Run:
    """Run the command line in this process: for tests that look at answers, many times faster than `epctx`."""
    from hatch_epctx.cli import main

    out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
    try:
        os.chdir(cwd or before)
        with redirect_stdout(out), redirect_stderr(err), patch.dict(os.environ, env or {}):
            code = main([str(argument) for argument in arguments])
    finally:
        os.chdir(before)
    run = Run(code=code, out=out.getvalue(), err=err.getvalue())
    assert "Traceback" not in run.err, run.err
    if check:
        assert run.code == 0, run.err + run.out
    return run


def epctx(
    *arguments: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None, check: bool = True
) -> Run:
    """Run the command line in a process of its own."""
    merged = {**os.environ, **(env or {})}
    merged["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), merged.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "hatch_epctx", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=merged, capture_output=True, text=True, timeout=600, check=False)
    run = Run(code=done.returncode, out=done.stdout, err=done.stderr)
    assert "Traceback" not in run.err, run.err
    if check:
        assert run.code == 0, run.err + run.out
    return run


EPS = ("onnxruntime_ep_openvino", "onnxruntime_qnn", "onnxruntime-ep-openvino", "onnxruntime-qnn")
"""Heads of what the EPs' distributions install."""


def environment_without_eps(folder: Path, *, changed: dict[str, str] | None = None) -> Path:
    """The interpreter of a new environment with links to everything that this one has, but the EPs.

    Args:
        folder: where to make it.
        changed: packages, those of EPs too, that get a further file of this content: other libraries than here.
    """
    venv.create(folder, symlinks=True)
    names = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", names))
    own = Path(sysconfig.get_path("purelib"))
    for path in own.iterdir():
        if path.name in (changed or {}):
            (site / path.name).mkdir()
            for inner in path.iterdir():
                (site / path.name / inner.name).symlink_to(inner)
            (site / path.name / "further.bin").write_text((changed or {})[path.name])
        elif not path.name.startswith(EPS) or _belongs(path.name, changed or {}):
            (site / path.name).symlink_to(path)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    program = folder / "bin" / "epctx"
    program.write_text(f'#!/bin/sh\nexec {python} -m hatch_epctx "$@"\n')
    program.chmod(0o755)
    return python


def _belongs(name: str, packages: dict[str, str]) -> bool:
    """Whether an entry of site-packages is metadata or libraries of one of `packages`."""
    return any(name.replace("-", "_").startswith(package) for package in packages)
