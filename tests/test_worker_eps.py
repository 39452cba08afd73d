"""Workers with the real EPs: OpenVINO on the CPU, and QNN's offline compiler with its x86 simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from support import save, small_model
from worker_support import (
    CPU,
    EPS,
    OPENVINO,
    QNN,
    compiled,
    contents,
    keep_artifacts,
    load,
    put,
    refused,
    result_of,
    run,
)

from hatch_epctx.process import run_worker

if TYPE_CHECKING:
    from pathlib import Path

both = pytest.mark.parametrize(
    "key",
    [pytest.param("openvino", marks=pytest.mark.ep_openvino), pytest.param("qnn", marks=pytest.mark.ep_qnn)],
)


def left_over_model(*, behind: str = "", rows: int = 64, location: str = "") -> ModelProto:
    """A product that EPs take, and a CDist with a large initialiser that only the CPU EP knows.

    Args:
        behind: an operator that takes the CDist's output and the product, such as "Add".
        rows: of the initialiser; each has 256 bytes.
        location: external data for it.
    """
    random = np.random.default_rng(3)
    weights = random.normal(size=(64, 64)).astype(np.float32) / 8
    points = random.normal(size=(rows, 64)).astype(np.float32)
    end = "d" if behind else "y"
    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["a"], name="product"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("CDist", ["r", "points"], [end], name="distance", domain="com.microsoft", metric="euclidean"),
    ]
    if behind:
        nodes.append(helper.make_node(behind, ["d", "r"], ["y"], name="behind"))
    graph = helper.make_graph(
        nodes,
        "left_over",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, rows])],
        [numpy_helper.from_array(weights, "weights"), numpy_helper.from_array(points, "points")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    if location:
        onnx.external_data_helper.set_external_data(model.graph.initializer[1], location=location)
    return model


# -- Compiles that succeed -------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("embed", [False, True])
def test_a_model_compiles_and_loads_without_its_source(tmp_path: Path, key: str, embed: bool) -> None:
    folder = tmp_path / "job"
    (folder / "sub").mkdir(parents=True)
    save(small_model(batch="batch", weights="sub/kernel.bin"), folder / "model.onnx")
    result = compiled(EPS[key], folder, embed=embed, free_dimensions={"batch": 2})
    assert [artifact["role"] for artifact in result["artifacts"]] == (["model"] if embed else ["model", "context"])
    assert (result["context_nodes"], result["nodes_left"], result["metadata_lost"]) == (1, 0, [])
    assert result["inputs"] == [{"name": "x", "type": "float", "shape": [2, 3, 8, 8]}]
    assert result["outputs"] == [{"name": "y", "type": "float", "shape": [2, 5]}]
    assert result["compatibility"]
    keep_artifacts(folder, result)
    opened = result_of(load(key, folder))
    assert opened["ok"], opened
    assert opened["providers"] == [EPS[key]["ep"], "CPUExecutionProvider"]
    assert "not_run" not in opened["extra"]


@both
@pytest.mark.parametrize("location", ["", "points.bin"])
def test_weights_of_nodes_left_are_an_artifact_of_their_own(tmp_path: Path, key: str, location: str) -> None:
    folder = tmp_path / "job"
    save(left_over_model(location=location), folder / "model.onnx")
    result = compiled(EPS[key], folder)
    assert sorted(artifact["role"] for artifact in result["artifacts"]) == ["context", "model", "weights"]
    assert result["nodes_left"] == 1
    (weights,) = [artifact for artifact in result["artifacts"] if artifact["role"] == "weights"]
    assert weights["size"] == 64 * 64 * 4
    keep_artifacts(folder, result)
    assert result_of(load(key, folder))["ok"]


@both
def test_an_embedding_compile_stays_one_file(tmp_path: Path, key: str) -> None:
    folder = put(left_over_model(), tmp_path / "job")
    result = compiled(EPS[key], folder, embed=True)
    assert [artifact["role"] for artifact in result["artifacts"]] == ["model"]
    keep_artifacts(folder, result)
    assert result_of(load(key, folder))["ok"]


@pytest.mark.ep_qnn
def test_variants_that_leave_the_same_weights_share_them(tmp_path: Path) -> None:
    names = []
    for soc in ("60", "88"):
        folder = put(left_over_model(), tmp_path / soc)
        result = compiled(QNN, folder, provider_options={"backend_type": "htp", "soc_model": soc})
        names.append({artifact["role"]: artifact["path"] for artifact in result["artifacts"]})
    assert names[0]["weights"] == names[1]["weights"]
    assert names[0]["context"] != names[1]["context"]


@both
def test_two_compiles_in_different_folders_agree_in_every_byte(tmp_path: Path, key: str) -> None:
    runs = []
    for name in ("a", "a-folder-whose-name-is-much-longer-than-the-other"):
        folder = put(left_over_model(), tmp_path / name)
        runs.append(contents(folder, compiled(EPS[key], folder)))
    assert runs[0] == runs[1]


@both
def test_coverage_is_told_when_it_is_asked_for(tmp_path: Path, key: str) -> None:
    folder = put(left_over_model(), tmp_path / "job")
    plain = compiled(EPS[key], folder)
    before = contents(folder, plain)
    folder = put(left_over_model(), tmp_path / "another")
    asked = compiled(EPS[key], folder, want_coverage=True)
    assert plain["coverage"] == {}
    assert asked["coverage"] == {"CPUExecutionProvider": 1, EPS[key]["ep"]: 2}
    assert contents(folder, asked) == before, "asking changes no byte"


@both
def test_locations_with_dots_compile(tmp_path: Path, key: str) -> None:
    """ONNX Runtime itself refuses them."""
    folder = put(small_model(), tmp_path / "job")
    model = small_model(weights="kernel.bin")
    save(model, folder / "model.onnx")
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    (entry,) = [entry for entry in model.graph.initializer[0].external_data if entry.key == "location"]
    entry.value = "nowhere/../kernel.bin"
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    assert compiled(EPS[key], folder)["ok"]


@pytest.mark.ep_openvino
def test_a_model_that_stays_dynamic_runs(tmp_path: Path) -> None:
    folder = put(small_model(batch="batch", size=8), tmp_path / "job")
    model = onnx.load(folder / "model.onnx")
    for axis in (2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = f"side{axis}"
    folder = put(model, tmp_path / "job")
    keep_artifacts(folder, compiled(OPENVINO, folder))
    assert result_of(load("openvino", folder))["ok"]


def test_a_source_variant_loads_on_the_cpu(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    save(small_model(weights="kernel.bin"), folder / "model.onnx")
    keep_artifacts(folder, result_of(run(CPU, folder, task="source")))
    opened = result_of(run(CPU, folder, task="load", model="model_src.onnx", optimization="all"))
    assert (opened["ok"], opened["providers"]) == (True, ["CPUExecutionProvider"])


def test_inputs_that_cannot_be_generated_are_not_run(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    nodes = [helper.make_node("SequenceLength", ["s"], ["y"])]
    graph = helper.make_graph(nodes, "g", [sequence], [helper.make_tensor_value_info("y", TensorProto.INT64, [])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    opened = result_of(run(CPU, put(model, tmp_path / "job"), task="load", model="model.onnx"))
    assert opened["ok"]
    assert "seq(tensor(float))" in opened["extra"]["not_run"]


def test_inputs_of_every_plain_type_are_generated(tmp_path: Path) -> None:
    kinds = [TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.INT8, TensorProto.UINT64, TensorProto.BOOL]
    kinds.append(TensorProto.STRING)
    inputs, outputs = (
        [helper.make_tensor_value_info(f"{letter}{kind}", kind, [2, "n"]) for kind in kinds] for letter in "xy"
    )
    nodes = [helper.make_node("Identity", [f"x{kind}"], [f"y{kind}"]) for kind in kinds]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    opened = result_of(run(CPU, put(model, tmp_path / "job"), task="load", model="model.onnx"))
    assert (opened["ok"], opened["extra"]) == (True, {})


# -- Compiles that fail ----------------------------------------------------------------------------------------------


def unknown_operators() -> ModelProto:
    """Operators of ai.onnx.ml, which neither EP takes."""
    nodes = [helper.make_node("Normalizer", ["x"], ["y"], domain="ai.onnx.ml", norm="L2")]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@both
def test_no_node_compiled_names_the_operators(tmp_path: Path, key: str) -> None:
    result = refused(EPS[key], put(unknown_operators(), tmp_path / "job"))
    assert result["reason"] == "no-node"
    assert "its operators are ai.onnx.ml.Normalizer" in result["error"]
    assert "optimization = 'disable-all'" in result["remedy"]


@pytest.mark.ep_qnn
def test_qnn_needs_static_shapes(tmp_path: Path) -> None:
    result = refused(QNN, put(small_model(batch="batch"), tmp_path / "job"))
    assert result["reason"] == "dynamic-shape"
    assert "free-dimensions = { batch = 1 }" in result["remedy"]


@both
def test_a_forbidden_fallback_is_an_error_in_the_eps_words(tmp_path: Path, key: str) -> None:
    folder = put(left_over_model(), tmp_path / "job")
    result = refused(EPS[key], folder, session_options={"session.disable_cpu_ep_fallback": "1"})
    assert result["reason"] in ("ep-error", "no-node")
    assert "Try optimization" in result["remedy"]


@both
def test_a_control_flow_model_ends_in_order(tmp_path: Path, key: str) -> None:
    """An If with initialisers in its branches: QNN leaves an orphan binary, OpenVINO converts it or does not."""
    branches = []
    for name, factor in (("then", 2.0), ("else", 3.0)):
        branches.append(
            helper.make_graph(
                [helper.make_node("Mul", ["x", f"{name}_factor"], [f"{name}_y"])],
                name,
                [],
                [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [4])],
                [numpy_helper.from_array(np.full(4, factor, np.float32), f"{name}_factor")],
            )
        )
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = put(model, tmp_path / "job")
    outcome = run(EPS[key], folder)
    result = result_of(outcome)
    if result["ok"]:
        keep_artifacts(folder, result)
        assert result_of(load(key, folder))["ok"]
    else:
        assert result["reason"] in ("ep-error", "no-node")
        assert "artifacts" not in result


@pytest.mark.ep_openvino
def test_a_model_that_opens_and_fails_at_its_first_inference(tmp_path: Path) -> None:
    folder = put(left_over_model(behind="Add"), tmp_path / "job")
    keep_artifacts(folder, compiled(OPENVINO, folder))
    result = result_of(load("openvino", folder))
    assert (result["ok"], result["reason"]) == (False, "run-failed")
    assert "fails at the first inference" in result["error"]
    assert "/src/" not in result["error"]


@both
def test_a_damaged_context_binary_does_not_load(tmp_path: Path, key: str) -> None:
    folder = put(small_model(), tmp_path / "job")
    result = compiled(EPS[key], folder)
    keep_artifacts(folder, result)
    binary = folder / result["artifacts"][1]["path"]
    whole = binary.read_bytes()
    for data in (whole[:5000], b"", None):
        binary.unlink()
        if data is not None:
            binary.write_bytes(data)
        outcome = load(key, folder)
        if outcome.result is None:
            assert outcome.cause == "signal", outcome.death
        else:
            assert (outcome.result["ok"], outcome.result["reason"]) == (False, "load-failed")
            assert str(folder) not in outcome.result["error"]


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_another_eps_model_is_never_opened_on_the_cpu(tmp_path: Path) -> None:
    folder = put(small_model(), tmp_path / "job")
    keep_artifacts(folder, compiled(OPENVINO, folder))
    result = result_of(load("qnn", folder))
    assert (result["ok"], result["reason"]) == (False, "load-failed")


# -- Probes ----------------------------------------------------------------------------------------------------------


@both
def test_a_probe_is_the_same_in_each_run_and_holds_no_path(tmp_path: Path, key: str) -> None:
    probes = [result_of(run(EPS[key], tmp_path, task="probe")) for _ in range(2)]
    assert probes[0] == probes[1]
    assert probes[0]["ok"]
    assert probes[0]["chosen"] in probes[0]["devices"]
    assert probes[0]["chosen"]["ep"] == EPS[key]["ep"]
    text = repr(probes[0])
    assert "library_path" not in text
    assert ".so" not in text
    assert "site-packages" not in text
    assert probes[0]["onnxruntime"]


@pytest.mark.ep_openvino
def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    result = refused(OPENVINO, tmp_path, task="probe", device="npu")
    assert result["reason"] == "no-device"
    assert "no device of kind 'npu' on this machine; it shows cpu" in result["error"]


@pytest.mark.parametrize("module", ["no_such_ep_module", "json"])
def test_an_ep_that_is_not_there(tmp_path: Path, module: str) -> None:
    result = refused({"ep": "NoneExecutionProvider", "module": module, "device": "cpu"}, tmp_path, task="probe")
    assert result["reason"] == "missing-ep"
    assert f"the EP library of {module} cannot be loaded" in result["error"]
    assert module in result["remedy"]


def test_an_ep_that_the_build_does_not_have(tmp_path: Path) -> None:
    result = refused({"ep": "CUDAExecutionProvider", "module": "", "device": "gpu"}, tmp_path, task="probe")
    assert result["reason"] == "missing-ep"


def test_the_cpu_ep_answers_a_probe(tmp_path: Path) -> None:
    result = result_of(run(CPU, tmp_path, task="probe"))
    assert [device["type"] for device in result["devices"]] == ["cpu"]


# -- Session options -------------------------------------------------------------------------------------------------


def test_session_options_mean_what_they_mean_in_a_model_package(tmp_path: Path) -> None:
    options = {
        "session.graph_optimization_level": "disable_all",
        "session.execution_mode": "parallel",
        "session.intra_op_num_threads": "1",
        "session.use_deterministic_compute": "1",
        "session.disable_cpu_ep_fallback": "0",
    }
    folder = put(small_model(), tmp_path / "job")
    assert result_of(run(CPU, folder, task="load", model="model.onnx", session_options=options))["ok"]


def test_a_session_option_of_the_wrong_type_is_an_error(tmp_path: Path) -> None:
    folder = put(small_model(), tmp_path / "job")
    options = {"session.intra_op_num_threads": "many"}
    result = refused(CPU, folder, task="load", model="model.onnx", session_options=options)
    assert result["reason"] == "load-failed"
    assert "session option session.intra_op_num_threads cannot be 'many'" in result["error"]


EITHER = [pytest.param("openvino", marks=pytest.mark.ep_openvino), pytest.param("qnn", marks=pytest.mark.ep_qnn)]


def odd_model(*, opset: int = 17, operator: str = "Relu") -> onnx.ModelProto:
    shape = [1, 4]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"])],
        "odd",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


@pytest.mark.parametrize("key", EITHER)
@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({"opset": 99}, "Save it for an older operator set and IR version, or install a newer onnxruntime."),
        ({"operator": "Frobnicate"}, "Correct the operator's name, its domain or the model's operator set"),
    ],
)
def test_a_model_that_onnx_runtime_refuses_is_no_fault_of_the_ep(
    key: str, settings: dict[str, Any], remedy: str, tmp_path: Path
) -> None:
    (tmp_path / "model.onnx").write_bytes(odd_model(**settings).SerializeToString())
    result = run_worker({"task": "compile", "optimization": "basic", **EPS[key]}, tmp_path, timeout=120, env={}).result
    assert result is not None
    assert result["reason"] == "invalid-model"
    assert "cannot read the model: " in result["error"]
    assert remedy in result["remedy"]


@pytest.mark.parametrize("key", EITHER)
def test_external_data_without_a_length_reaches_to_the_end_of_its_file(key: str, tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.ones((4, 4), dtype=np.float32), "w")
    (tmp_path / "w.bin").write_bytes(weights.raw_data)
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    weights.external_data.add(key="location", value="w.bin")
    model = odd_model()
    model.graph.node[0].CopyFrom(helper.make_node("MatMul", ["x", "w"], ["y"]))
    model.graph.initializer.append(weights)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    result = run_worker({"task": "compile", "optimization": "basic", **EPS[key]}, tmp_path, timeout=120, env={}).result
    assert result is not None
    assert result["ok"], result


@pytest.mark.ep_qnn
def test_a_sequence_has_no_shape_to_give(tmp_path: Path) -> None:
    model = odd_model()
    model.graph.node[0].CopyFrom(helper.make_node("SequenceAt", ["s", "i"], ["y"]))
    del model.graph.input[:]
    model.graph.input.append(helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, [1, 4]))
    model.graph.input.append(helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    result = run_worker(
        {"task": "compile", "optimization": "basic", **EPS["qnn"]}, tmp_path, timeout=120, env={}
    ).result
    assert result is not None
    assert result["error"].endswith("input 's' is no tensor but of type sequence")
    assert result["remedy"] == "Leave the model out of this target."
