"""`cores`: a compile that is held to some physical cores, and inferences that are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import Factory, epctx, save
from test_toolchain import fake

from hatch_epctx.toolchain import machine, pick_cpus

TARGET = '[tool.epctx.targets.cpu]\nep = "openvino"\ncores = {cores}\n'
ALL = '[tool.epctx.targets.cpu]\nep = "openvino"\n'
THREADS = Path(__file__).parent / "inference_threads.py"
TWO_CORES = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or machine.read_cpu().topology.get("physical-cores", 0) < 2,
    reason="needs two physical cores",
)


def wide_model() -> onnx.ModelProto:
    """Convolutions that are worth several threads."""
    random = np.random.default_rng(5)
    kernels = [random.normal(scale=0.05, size=(64, 64, 3, 3)).astype(np.float32) for _ in range(4)]
    nodes = [
        helper.make_node("Conv", [f"v{n}", f"k{n}"], [f"v{n + 1}"], name=f"conv{n}", pads=[1, 1, 1, 1])
        for n in range(4)
    ]
    shape = [1, 64, 56, 56]
    graph = helper.make_graph(
        nodes,
        "wide",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("v4", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(kernel, f"k{n}") for n, kernel in enumerate(kernels)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def plan(root: Path) -> str:
    (variant,) = epctx("plan", "--json", cwd=root).json["variants"]
    identity: str = variant["identity"]
    return identity


def built(root: Path, name: str) -> bytes:
    epctx("build", "--out", root / name, cwd=root)
    (binary,) = (root / name).glob("*.bin")
    return binary.read_bytes()


# ---- which CPUs


def test_one_thread_of_each_core_is_picked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = [{"siblings": "0,2"}, {"siblings": "1,3"}, {"siblings": "0,2"}, {"siblings": "1,3"}]
    fake(tmp_path, monkeypatch, cpus, ["avx2"] * 4)
    assert pick_cpus(1) == {0}
    assert pick_cpus(2) == {0, 1}
    assert machine.read_cpu(pick_cpus(2)).topology["physical-cores"] == 2
    assert pick_cpus(3) == frozenset(), "there are two cores"


def test_cores_of_one_package_before_those_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = [{"siblings": str(n), "package": str(n % 2), "node": str(n % 2)} for n in range(6)]
    fake(tmp_path, monkeypatch, cpus, ["avx2"] * 6)
    assert pick_cpus(3) == {0, 2, 4}
    assert machine.read_cpu(pick_cpus(3)).topology["packages"] == 1
    assert machine.read_cpu(pick_cpus(4)).topology["packages"] == 2


def test_efficiency_cores_come_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, [{"siblings": str(n)} for n in range(4)], ["avx2"] * 4)
    (tmp_path / "sys/cpu_atom").mkdir()
    (tmp_path / "sys/cpu_atom/cpus").write_text("0-1\n", encoding="utf-8")
    assert pick_cpus(2) == {2, 3}
    assert pick_cpus(3) == {0, 2, 3}


def test_a_machine_that_tells_no_cores_picks_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SYS", tmp_path)
    assert pick_cpus(1) == frozenset()


# ---- what is refused


def test_more_cores_than_there_are_is_an_error_before_any_compile(factory: Factory) -> None:
    tree = factory.project(TARGET.format(cores=4096))
    run = epctx("build", cwd=tree.root, check=False)
    assert run.code == 4
    assert "tool.epctx.targets.cpu.cores: the compile cannot be held to 4096 physical cores here" in run.err
    assert "Name a smaller number" in run.err


def test_an_ep_that_bakes_no_cores_refuses_the_key(factory: Factory) -> None:
    tree = factory.project(
        '[tool.epctx.targets.chip]\nep = "qnn"\ncores = 1\nprovider-options = { soc_model = "60" }\n'
    )
    run = epctx("plan", cwd=tree.root, check=False)
    assert run.code == 2
    assert "targets.chip.cores: Qualcomm QNN on the npu does not depend on the number of cores" in run.err
    tree.write('[tool.epctx.models.detector]\nsource = "models/detector.onnx"\n' + TARGET.format(cores=0))
    assert epctx("plan", cwd=tree.root, check=False).code == 2


# ---- the real EP


@pytest.mark.ep_openvino
@TWO_CORES
def test_a_machine_with_fewer_cores_has_the_same_identity_and_bytes(
    factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smaller machine is this one with a smaller affinity mask; one with more cores than two was not at hand."""
    tree = factory.project(TARGET.format(cores=1))
    identity, binary = plan(tree.root), built(tree.root, "many")
    tree.write('[tool.epctx.models.detector]\nsource = "models/detector.onnx"\n' + ALL)
    everything = plan(tree.root), built(tree.root, "all")
    assert everything[0] != identity
    assert everything[1] != binary, "the EP bakes the number in: else the key would do nothing"
    tree.write('[tool.epctx.models.detector]\nsource = "models/detector.onnx"\n' + TARGET.format(cores=1))
    before = os.sched_getaffinity(0)
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(factory.folder / "another-store"))
    os.sched_setaffinity(0, {max(before)})
    try:
        assert (plan(tree.root), built(tree.root, "few")) == (identity, binary)
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.slow
@pytest.mark.ep_openvino
@TWO_CORES
def test_a_model_compiled_on_one_core_runs_with_as_many_threads_as_one_compiled_on_all(factory: Factory) -> None:
    tree = factory.project(TARGET.format(cores=1))
    save(wide_model(), tree.root / "models/detector.onnx")
    pinned = built(tree.root, "one")
    tree.write('[tool.epctx.models.detector]\nsource = "models/detector.onnx"\n' + ALL)
    assert built(tree.root, "all") != pinned
    working = {name: threads(tree.root / name) for name in ("one", "all")}
    assert working["one"] == working["all"] > 1


def threads(package: Path) -> int:
    """Threads that work at an inference. A busy machine may keep one from it for a while: the most of three runs."""
    found = []
    for _ in range(3):
        command = [sys.executable, str(THREADS), str(package), "detector", "60"]
        environment = {**os.environ, "PYTHONPATH": str(THREADS.parents[1])}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, timeout=300)
        found.append(int(json.loads(done.stdout)["working"]))
    return max(found)
