"""The plugin EP of tests/plugin_ep: built once per run, registered once per process, and models for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

HERE = Path(__file__).parent / "plugin_ep"
EP = "EpctxTestExecutionProvider"
INPUT = {"x": np.arange(8, dtype=np.float32)}


@cache
def build() -> Path:
    """A folder for the import path that holds the EP as an installed distribution. Skips without a C++ compiler."""
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None or sys.platform != "linux":
        pytest.skip("the test EP needs a C++ compiler on Linux")
    site = Path(mkdtemp(prefix="epctx-test-ep-"))
    for folder in ("epctx_test_ep", "epctx_test_ep-1.0.dist-info"):
        shutil.copytree(HERE / folder, site / folder, ignore=shutil.ignore_patterns("__pycache__"))
    library = site / "epctx_test_ep" / "libepctx_test_ep.so"
    command = [compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(HERE / "src" / "ep.cc")], check=True, timeout=300)
    return site


def library() -> Path:
    return build() / "epctx_test_ep" / "libepctx_test_ep.so"


@cache
def register() -> None:
    """Register the EP in this process, as an application would. Skips where ONNX Runtime has no callbacks."""
    ort: Any = pytest.importorskip("onnxruntime")
    if not hasattr(ort.SessionOptions, "set_ep_context_data_read_func"):
        pytest.skip(f"onnxruntime {ort.__version__} has no EPContext data callbacks")
    ort.register_execution_provider_library(EP, str(library()))


def device() -> Any:
    import onnxruntime as ort

    register()
    return next(device for device in ort.get_ep_devices() if device.ep_name == EP)


def neg_model(count: int = 1) -> onnx.ModelProto:
    """`count` times Neg, with Abs between them, which the EP leaves to the CPU: as many context binaries."""
    names = ["x", *(f"v{n}" for n in range(1, 2 * count - 1)), "y"]
    nodes = [
        helper.make_node(("Neg", "Abs")[n % 2], [names[n]], [names[n + 1]], name=f"node{n}")
        for n in range(2 * count - 1)
    ]
    value = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [8])  # noqa: E731
    graph = helper.make_graph(nodes, "neg", [value("x")], [value("y")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def expected(count: int = 1) -> Any:
    return -np.abs(INPUT["x"]) if count > 1 else -INPUT["x"]
