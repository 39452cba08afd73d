"""Checks against the CPU EP: comparing, inputs, what a build demands of a hit, and both real EPs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import OPENVINO_TARGET, QNN_TARGET, STUB_TARGET, epctx, save, small_model
from worker_support import EPS, LOAD_OPTIONS, QNN, compiled, keep_artifacts, put, result_of, run

from hatch_epctx.worker.checking import _fault
from hatch_epctx.worker.comparing import Tolerance, compare, merged, same
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.samples import Input, generated, read_samples

if TYPE_CHECKING:
    from pathlib import Path

    from support import Factory, Tree

    from hatch_epctx.worker.protocol import Result

TOLERANCE = Tolerance(rtol=0.05, atol=0.01)
F32 = np.dtype(np.float32)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


# -- Comparing -------------------------------------------------------------------------------------------------------


def test_figures_of_one_output() -> None:
    found = compare("y", floats(1.0, 2.04, -4.0), floats(1.0, 2.0, -4.0), TOLERANCE)
    assert (found["verdict"], found["values"], found["beyond"]) == ("within", 3, 0)
    assert found["max_abs"] == pytest.approx(0.04, rel=1e-4)
    assert found["max_rel"] == pytest.approx(0.01, rel=1e-4)
    assert found["cosine"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("found", "expected", "verdict", "beyond"),
    [
        (floats(0.009), floats(0.0), "within", 0),
        (floats(0.011), floats(0.0), "beyond", 1),
        (floats(105.0, 106.0), floats(100.0, 100.0), "beyond", 1),
        (floats(np.nan, 1.0), floats(1.0, 1.0), "not-finite", 1),
        (floats(np.inf), floats(1.0), "not-finite", 1),
        (floats(5.0, 1.0), floats(np.nan, 1.0), "within", 0),
        (floats(np.nan, np.nan), floats(np.nan, np.inf), "reference-not-finite", 0),
        (floats(1.0), floats(1.0, 2.0), "shape", 0),
        (floats(1.0), np.array([1.0]), "shape", 0),
        (np.array([1000, 7]), np.array([1001, 7]), "beyond", 1),
        (np.array([1000, 7], dtype=np.int32), np.array([1000, 7], dtype=np.int32), "within", 0),
        (np.array([200], dtype=np.uint8), np.array([201], dtype=np.uint8), "within", 0),
        (np.array([True]), np.array([False]), "beyond", 1),
        (np.array(["a"], dtype=object), np.array(["b"], dtype=object), "beyond", 1),
        (np.array(["a"], dtype=object), np.array(["a"], dtype=object), "within", 0),
        (floats(), floats(), "within", 0),
        ([{1: 0.5}], [{1: 0.5}], "not-compared", 0),
    ],
)
def test_verdicts(found: Any, expected: Any, verdict: str, beyond: int) -> None:
    output = compare("y", found, expected, TOLERANCE)
    assert (output["verdict"], output["beyond"]) == (verdict, beyond)
    json.dumps(output, allow_nan=False)


def test_a_cosine_that_is_too_low_is_beyond() -> None:
    wide = Tolerance(rtol=0.0, atol=10.0, cosine=0.99)
    assert compare("y", floats(1.0, 0.0), floats(0.0, 1.0), wide)["verdict"] == "beyond"
    assert compare("y", floats(1.0, 0.01), floats(1.0, 0.0), wide)["verdict"] == "within"


def test_a_random_output_is_compared_by_shape_and_finiteness() -> None:
    assert compare("y", floats(9.0), floats(1.0), TOLERANCE, random=True)["verdict"] == "random"
    assert compare("y", floats(np.nan), floats(1.0), TOLERANCE, random=True)["verdict"] == "not-finite"
    assert compare("y", floats(1.0, 2.0), floats(1.0), TOLERANCE, random=True)["verdict"] == "shape"


def test_large_values_do_not_overflow_the_cosine() -> None:
    found = compare("y", np.array([1e200, -1e200]), np.array([1e200, -1e200]), TOLERANCE)
    assert found["cosine"] == pytest.approx(1.0)


def test_of_several_samples_the_worst_figures_count() -> None:
    first = compare("y", floats(1.0), floats(1.0), TOLERANCE)
    second = compare("y", floats(3.0), floats(1.0), TOLERANCE)
    found = merged("y", [first, second])
    assert (found["verdict"], found["values"], found["beyond"], found["max_abs"]) == ("beyond", 2, 1, 2.0)


def test_two_runs_are_the_same_with_nan() -> None:
    assert same(floats(np.nan, 1.0), floats(np.nan, 1.0))
    assert not same(floats(1.0), floats(2.0))
    assert same(np.array(["a"], dtype=object), np.array(["a"], dtype=object))


# -- Samples ---------------------------------------------------------------------------------------------------------


X = Input(name="x", dtype=F32, shape=(1, None, 2))
IDS = Input(name="ids", dtype=np.dtype(np.int64), shape=(1,))


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_one_sample_or_several_along_a_further_axis(tmp_path: Path) -> None:
    one = read_samples(npz(tmp_path / "a.npz", x=np.ones((1, 5, 2), F32)), [X])
    assert [sample["x"].shape for sample in one] == [(1, 5, 2)]
    file = npz(tmp_path / "b.npz", x=np.arange(30, dtype=F32).reshape(3, 1, 5, 2), ids=np.array([7]))
    three = read_samples(file, [X, IDS])
    assert [float(sample["x"][0, 0, 0]) for sample in three] == [0.0, 10.0, 20.0]
    assert [sample["ids"].tolist() for sample in three] == [[7]] * 3


def test_scalars_stay_arrays(tmp_path: Path) -> None:
    scalar = Input(name="x", dtype=F32, shape=())
    for samples in (
        read_samples(npz(tmp_path / "one.npz", x=np.float32(2)), [scalar]),
        read_samples(npz(tmp_path / "two.npz", x=np.ones(2, F32)), [scalar]),
        [generated([scalar], seed=0, ranges={}, unknown=1)],
    ):
        assert all(isinstance(sample["x"], np.ndarray) and sample["x"].shape == () for sample in samples)


def test_types_are_widened_and_narrowed_within_their_kind(tmp_path: Path) -> None:
    file = npz(tmp_path / "a.npz", x=np.ones((1, 5, 2), np.float64), ids=np.array([7], np.int32))
    (sample,) = read_samples(file, [X, IDS])
    assert (sample["x"].dtype, sample["ids"].dtype) == (np.float32, np.int64)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.ones((1, 5, 2), F32)}, "it lacks 'ids'"),
        ({"x": np.ones((1, 5, 2), F32), "ids": np.array([1]), "z": np.array([1])}, "the model has no 'z'"),
        ({"x": np.ones((1, 5, 3), F32), "ids": np.array([1])}, "'x' has the shape [1, 5, 3]"),
        ({"x": np.ones((5, 2), F32), "ids": np.array([1])}, "'x' has the shape [5, 2]"),
        ({"x": np.ones((1, 5, 2), F32), "ids": np.array([1.5])}, "'ids' is float64"),
        ({"x": np.ones((3, 1, 5, 2), F32), "ids": np.ones((2, 1), np.int64)}, "different numbers of samples"),
        ({"x": np.ones((0, 1, 5, 2), F32), "ids": np.array([1])}, "'x' holds no sample"),
    ],
)
def test_inputs_that_do_not_fit_are_named(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    with pytest.raises(TaskError) as caught:
        read_samples(npz(tmp_path / "a.npz", **arrays), [X, IDS])
    assert caught.value.reason == "bad-inputs"
    assert words in caught.value.error
    assert caught.value.remedy


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"plain text"])
def test_a_file_that_is_no_npz(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(TaskError, match=r"cannot be read: it is no \.npz file") as caught:
        read_samples(tmp_path / "a.npz", [X])
    assert "pickle" not in caught.value.error


def test_a_compressed_npz_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.arange(1000, dtype=F32))
    data = bytearray(path.read_bytes())
    data[60:120] = b"\xff" * 60
    path.write_bytes(data)
    with pytest.raises(TaskError, match="cannot be read"):
        read_samples(path, [X])


def test_an_array_of_objects_is_never_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([print], dtype=object))
    with pytest.raises(TaskError, match="cannot be read"):
        read_samples(tmp_path / "a.npz", [X])


def test_generated_inputs_keep_to_their_ranges_and_their_seed() -> None:
    inputs = [Input(name="x", dtype=F32, shape=(None, 1000)), Input(name="ids", dtype=np.dtype(np.int64), shape=(999,))]
    ranges: dict[str, Any] = {"x": (-3.0, 255.0), "ids": (5, 7)}
    sample = generated(inputs, seed=1, ranges=ranges, unknown=4)
    assert sample["x"].shape == (1, 1000)
    assert -3.0 <= sample["x"].min() < 0
    assert 200 < sample["x"].max() <= 255.0
    assert set(sample["ids"].tolist()) == {5, 6, 7}
    assert same(generated(inputs, seed=1, ranges=ranges, unknown=4)["x"], sample["x"])
    assert not same(generated(inputs, seed=2, ranges=ranges, unknown=4)["x"], sample["x"])
    with pytest.raises(TaskError, match="no whole number lies in the range of input 'ids'"):
        generated(inputs, seed=1, ranges={"ids": (0.2, 0.8)}, unknown=4)
    with pytest.raises(TaskError, match="the model has no input 'y'"):
        generated(inputs, seed=1, ranges={"y": (0, 1)}, unknown=4)


# -- The worker, with both real EPs ----------------------------------------------------------------------------------


def check(key: str, model: onnx.ModelProto, folder: Path, **fields: Any) -> Result:
    """Compile `model` and check it; `fields` stand over the plan's."""
    put(model, folder)
    keep_artifacts(folder, compiled(EPS[key], folder))
    (folder / "source").mkdir()
    onnx.save(model, folder / "source/model.onnx")
    plan = {"inputs": False, "seed": 0, "ranges": {}, "rtol": 0.05, "atol": 0.01, "cosine": None}
    job: dict[str, Any] = {
        "task": "check",
        "model": "model_ctx.onnx",
        "provider_options": LOAD_OPTIONS[key],
        "optimization": "disable-all",
        "check": {**plan, "reference_optimization": "all", **fields},
    }
    return result_of(run(EPS[key], folder, **job))


@pytest.mark.parametrize(
    "key", [pytest.param("openvino", marks=pytest.mark.ep_openvino), pytest.param("qnn", marks=pytest.mark.ep_qnn)]
)
def test_a_right_result_passes_with_figures(tmp_path: Path, key: str) -> None:
    result = check(key, small_model(), tmp_path / "job", ranges={"x": [-1.0, 1.0]})
    assert result["ok"], result
    (output,) = result["check"]["outputs"]
    assert output["verdict"] == "within"
    assert output["cosine"] is not None
    assert output["cosine"] > 0.999
    # The HTP computes in f16: it is never quite the CPU's result; OpenVINO computes in f32 here.
    assert output["max_rel"] is not None
    assert (output["max_rel"] > 1e-6) == (key == "qnn")
    assert result["check"]["device"] == ("cpu" if key == "openvino" else result["check"]["device"])


@pytest.mark.ep_qnn
def test_a_tolerance_that_f16_cannot_keep_fails_with_figures(tmp_path: Path) -> None:
    result = check("qnn", small_model(), tmp_path / "job", rtol=0.0, atol=1e-7)
    assert result["reason"] == "check-failed"
    assert "output 'y': " in result["error"]
    assert " of 5 values beyond rtol 0 and atol 1e-07 (max abs " in result["error"]
    assert "cosine" in result["error"]
    assert result["check"]["outputs"][0]["verdict"] == "beyond"


def noisy_model() -> onnx.ModelProto:
    """The small model with a second output that is random in each run."""
    model = small_model()
    node = helper.make_node("RandomNormal", [], ["noise"], name="noise", shape=[3], dtype=TensorProto.FLOAT)
    model.graph.node.append(node)
    model.graph.output.append(helper.make_tensor_value_info("noise", TensorProto.FLOAT, [3]))
    return model


@pytest.mark.ep_openvino
def test_a_random_output_is_recognised(tmp_path: Path) -> None:
    result = check("openvino", noisy_model(), tmp_path / "job")
    assert result["ok"], result
    verdicts = {output["name"]: output["verdict"] for output in result["check"]["outputs"]}
    assert verdicts == {"y": "within", "noise": "random"}


@pytest.mark.ep_openvino
def test_a_source_that_is_not_finite_is_recognised(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "k"], ["z"], name="mul"), helper.make_node("Log", ["z"], ["y"], name="log")],
        "log",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.full((1, 4), -1.0, np.float32), "k")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    result = check("openvino", model, tmp_path / "job", ranges={"x": [1.0, 2.0]})
    assert result["reason"] == "check-failed"
    assert "the source itself gives no finite value for these inputs" in result["error"]
    assert "check.inputs" in result["remedy"]
    assert check("openvino", model, tmp_path / "other", ranges={"x": [-2.0, -1.0]})["ok"]


@pytest.mark.ep_qnn
def test_hardware_that_is_not_here_is_no_failure_of_the_model(tmp_path: Path) -> None:
    folder = put(small_model(), tmp_path / "job")
    compiled(QNN, folder)
    result = result_of(run({**QNN, "offline": False}, folder, task="check", check={}))
    assert (result["ok"], result["reason"]) == (False, "no-device")


# -- A build that demands a check ------------------------------------------------------------------------------------


MODEL = '[tool.epctx.models.detector]\nsource = "models/detector.onnx"\n'


def demand(tree: Tree, text: str, target: str = OPENVINO_TARGET) -> None:
    tree.write(f"{MODEL}{text}{target}")


def tasks(trace: Path) -> list[str]:
    found = trace.read_text().split() if trace.exists() else []
    trace.unlink(missing_ok=True)
    return found


@pytest.mark.ep_openvino
def test_a_hit_without_the_demanded_check_is_checked_and_not_compiled(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(OPENVINO_TARGET)
    trace = tmp_path / "trace"

    def build(*, check: bool = True) -> tuple[Any, list[str]]:
        done = epctx("build", "--json", "-q", cwd=tree.root, env={"EPCTX_TRACE_WORKERS": str(trace)}, check=check)
        return done, tasks(trace)

    done, ran = build()
    assert "compile" in ran
    assert "check" not in ran
    assert "check" not in done.json["variants"][0]

    demand(tree, "check = { ranges = { x = [-1, 1] } }\n")
    done, ran = build()
    assert ran == ["check"]
    (variant,) = done.json["variants"]
    assert variant["status"] == "hit"
    assert variant["check"]["outcome"] == "passed"
    assert variant["check"]["outputs"][0]["max_abs"] < 1e-4
    assert build()[1] == []  # remembered

    np.savez(tree.root / "inputs.npz", x=np.ones((2, 1, 3, 8, 8), np.float32))
    demand(tree, 'check = { inputs = "inputs.npz" }\n')
    done, ran = build()
    assert ran == ["check"]
    assert done.json["variants"][0]["check"]["samples"] == 2
    np.savez(tree.root / "inputs.npz", x=np.full((2, 1, 3, 8, 8), 2, np.float32))
    assert build()[1] == ["check"]  # other inputs

    np.savez(tree.root / "inputs.npz", y=np.ones((1, 3, 8, 8), np.float32))
    done, ran = build(check=False)
    assert (done.code, ran) == (3, ["check"])
    assert "it lacks 'x'; the model has no 'y'" in done.err

    (tree.root / "inputs.npz").unlink()
    done, ran = build(check=False)
    assert (done.code, ran) == (2, [])
    assert "tool.epctx.models.detector.check.inputs: the file of inputs cannot be read" in done.err


@pytest.mark.ep_qnn
def test_a_failed_check_fails_the_build_and_a_wider_tolerance_needs_no_new_compile(
    factory: Factory, tmp_path: Path
) -> None:
    target = QNN_TARGET.replace(', "88"', "")
    tree = factory.project(target)
    demand(tree, "check = { rtol = 0, atol = 1e-9 }\n", target)
    for expected in ({"compile", "load", "check"}, {"check"}):
        trace = tmp_path / "trace"
        env = {"EPCTX_TRACE_WORKERS": str(trace)}
        done = epctx("build", "--out", tmp_path / "out", "-q", cwd=tree.root, env=env, check=False)
        assert done.code == 5
        assert "detector.snapdragon-60: the check against the CPU EP failed: the compiled model differs" in done.err
        assert "beyond rtol 0 and atol 1e-09" in done.err
        assert not (tmp_path / "out").exists()
        assert expected == set(tasks(trace)) - {"scan", "probe"}
    reported = epctx("report", "--json", cwd=tree.root).json["variants"][0]["check"]
    assert (reported["outcome"], reported["outputs"][0]["verdict"]) == ("failed", "beyond")
    assert reported["outputs"][0]["max_abs"] > 1e-9
    demand(tree, "check = { rtol = 0.05, atol = 0.01 }\n", target)
    done = epctx("build", "--out", tmp_path / "out", "--json", "-q", cwd=tree.root, env=env)
    assert tasks(trace) == ["check"]
    assert done.json["variants"][0]["check"]["simulated"]
    shown = epctx("inspect", tmp_path / "out", "--json").json["packages"][0]["variants"][0]
    assert shown["check"]["outcome"] == "passed"
    assert shown["check"]["outputs"]["y"]["verdict"] == "within"
    text = epctx("inspect", tmp_path / "out", "-v").out
    assert "check passed: y max abs" in text
    assert "(simulator)" in text


def test_a_device_that_is_not_here_is_said_and_nothing_pretends(factory: Factory, tmp_path: Path) -> None:
    target = STUB_TARGET + 'provider-options = { mode = "check-no-device" }\n'
    tree = factory.project(target)
    demand(tree, "check = {}\n", target)
    done = epctx("build", "--out", tmp_path / "out", cwd=tree.root)
    assert "check not run: no such device: cpu" in done.err
    assert "not-run" in done.out
    shown = epctx("inspect", tmp_path / "out", "--json").json["packages"][0]["variants"][0]
    assert shown["check"] == {"outcome": "not-run", "why": "no such device: cpu"}


def test_the_models_file_name_and_order_of_keys_do_not_count_for_a_passed_check(factory: Factory) -> None:
    """A check is remembered by what it runs: the same plan in another project passes at once."""
    target = STUB_TARGET + 'provider-options = { mode = "check-pass" }\n'
    one, other = factory.project(target, name="one"), factory.project(target, name="other")
    trace = one.root / "trace"
    for tree, text in ((one, "check = { rtol = 0.1, atol = 0.2 }\n"), (other, "check = { atol = 0.2, rtol = 0.1 }\n")):
        demand(tree, text, target)
        epctx("build", "-q", cwd=tree.root, env={"EPCTX_TRACE_WORKERS": str(trace)})
    assert tasks(trace).count("check") == 1


def test_a_model_whose_source_changes_is_checked_against_the_new_one(factory: Factory) -> None:
    target = STUB_TARGET + 'provider-options = { mode = "check-pass" }\n'
    tree = factory.project(target)
    demand(tree, "check = {}\n", target)
    trace = tree.root / "trace"
    for seed in (1, 2):
        save(small_model(seed=seed), tree.root / "models/detector.onnx")
        epctx("build", "-q", cwd=tree.root, env={"EPCTX_TRACE_WORKERS": str(trace)})
        assert tasks(trace).count("check") == 1


@pytest.mark.parametrize(("max_abs", "said"), [(131007.6, True), (65503.2, True), (3.0, False), (None, False)])
def test_an_overflow_of_16_bit_floats_is_said(max_abs: float | None, said: bool) -> None:
    output = compare("y", floats(1.0), floats(2.0), TOLERANCE, random=False) | {"max_abs": max_abs}
    fault = _fault([output], TOLERANCE, generated_inputs=True, facts={"ok": True})  # type: ignore[list-item]
    assert ("the limit of 16-bit floats" in fault.remedy) is said
    assert "Generated inputs may be nothing that the model knows" in fault.remedy
