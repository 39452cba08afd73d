"""Model preparation: each step, its place in the identity, the prepared model kept to be looked at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from models import MODELS
from onnx import TensorProto, helper, numpy_helper
from support import OPENVINO_TARGET, QNN_TARGET, epctx, save, small_model
from worker_support import QNN, compiled, contents, put, result_of, run

from hatch_epctx.config import expand, load_settings
from hatch_epctx.config.project import tomllib
from hatch_epctx.errors import ConfigError, ToolchainError
from hatch_epctx.toolchain import preparation as preparation_module
from hatch_epctx.toolchain import read_preparation
from hatch_epctx.worker import graphs

if TYPE_CHECKING:
    from support import Factory

    from hatch_epctx.worker.protocol import Result

BASE: Any = {"ep": "", "procedure": "hatch_epctx.worker.procedure"}
MODEL = '[tool.epctx.models.detector]\nsource = "models/detector.onnx"\nfree-dimensions = { batch = 1 }\n'


def prepare(folder: Path, *steps: str, **fields: Any) -> Result:
    return result_of(run(BASE, folder, task="prepare", prepare=list(steps), **fields))


def prepared(folder: Path, *steps: str, **fields: Any) -> onnx.ModelProto:
    """The model after `steps`, and the copy that is kept says the same."""
    result = prepare(folder, *steps, **fields)
    assert result["ok"], result
    model = onnx.load(folder / "model.onnx")
    kept = onnx.load(folder / "prepared.onnx")
    assert [node.op_type for node in kept.graph.node] == [node.op_type for node in model.graph.node]
    roles = [item["role"] for item in result["artifacts"]]
    assert roles[0] == "prepared"
    assert set(roles[1:]) <= {"prepared-data"}
    return model


def shapely_model() -> onnx.ModelProto:
    """x [batch, 12] reshaped by what Shape says of it: nothing but overhead once the batch is known."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], name="shape"),
        helper.make_node("Gather", ["s", "zero"], ["b"], name="batch"),
        helper.make_node("Concat", ["b", "rest"], ["target"], name="target", axis=0),
        helper.make_node("Reshape", ["x", "target"], ["r"], name="reshape"),
        helper.make_node("Mul", ["two", "three"], ["six"], name="six"),
        helper.make_node("Mul", ["r", "six"], ["y"], name="times"),
    ]
    graph = helper.make_graph(
        nodes,
        "shapely",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.array([0]), "zero"),
            numpy_helper.from_array(np.array([3, 4]), "rest"),
            numpy_helper.from_array(np.float32(2.0), "two"),
            numpy_helper.from_array(np.float32(3.0), "three"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


# -- The steps -------------------------------------------------------------------------------------------------------


def test_infer_shapes_notes_inner_values(tmp_path: Path) -> None:
    model = prepared(put(small_model(), tmp_path / "job"), "infer-shapes")
    shapes = {value["name"]: value["shape"] for value in map(graphs._value, model.graph.value_info)}
    assert shapes["c"] == [1, 4, 8, 8]


def test_fold_constants_computes_what_is_known(tmp_path: Path) -> None:
    model = prepared(put(shapely_model(), tmp_path / "job"), "fold-constants")
    assert "six" not in [node.name for node in model.graph.node]
    assert "Shape" in [node.op_type for node in model.graph.node]  # the batch is not known


def test_static_shapes_then_folding_removes_shape_arithmetic(tmp_path: Path) -> None:
    folder = put(shapely_model(), tmp_path / "job")
    model = prepared(folder, "static-shapes", "fold-constants", free_dimensions={"batch": 2})
    assert [node.op_type for node in model.graph.node] == ["Reshape", "Mul"]
    assert graphs.graph_inputs(model)[0]["shape"] == [2, 12]


def test_static_shapes_names_what_stays_dynamic(tmp_path: Path) -> None:
    result = prepare(put(shapely_model(), tmp_path / "job"), "static-shapes")
    assert result["reason"] == "dynamic-shape"
    assert result["error"].startswith("the step 'static-shapes' needs static shapes; input 'x' keeps dynamic dims")
    assert "free-dimensions = { batch = 1 }" in result["remedy"]


def test_static_shapes_takes_input_shapes(tmp_path: Path) -> None:
    model = prepared(put(shapely_model(), tmp_path / "job"), "static-shapes", input_shapes={"x": [5, 12]})
    assert graphs.graph_inputs(model)[0]["shape"] == [5, 12]


@pytest.mark.parametrize("opset", [18, 21])
def test_convert_opset(tmp_path: Path, opset: int) -> None:
    model = prepared(put(small_model(), tmp_path / "job"), f"convert-opset:{opset}")
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", opset)]


def test_a_step_that_cannot_be_done_is_named(tmp_path: Path) -> None:
    result = prepare(put(small_model(), tmp_path / "job"), "infer-shapes", "convert-opset:1")
    assert (result["ok"], result["reason"]) == (False, "prepare-failed")
    assert result["error"].startswith("the step 'convert-opset:1' failed: ")
    assert "Remove 'convert-opset:1' from prepare" in result["remedy"]


@pytest.mark.parametrize("argument", ["", ":a16w8"])
def test_quantize_qdq(tmp_path: Path, argument: str) -> None:
    folder = put(small_model(batch="batch"), tmp_path / "job")
    random = np.random.default_rng(1)
    np.savez(folder / "calibration.npz", x=random.standard_normal((8, 1, 3, 8, 8)).astype(np.float32))
    model = prepared(folder, "infer-shapes", f"quantize-qdq{argument}", free_dimensions={"batch": 1})
    kinds = {node.op_type for node in model.graph.node}
    assert {"QuantizeLinear", "DequantizeLinear", "Conv"} <= kinds
    types = {tensor.data_type for tensor in model.graph.initializer}
    assert (TensorProto.UINT16 if argument else TensorProto.UINT8) in types
    assert TensorProto.INT8 in types


def test_samples_that_do_not_fit_are_named(tmp_path: Path) -> None:
    folder = put(small_model(), tmp_path / "job")
    np.savez(folder / "calibration.npz", image=np.zeros((1, 3, 8, 8), np.float32))
    result = prepare(folder, "quantize-qdq")
    assert result["reason"] == "bad-inputs"
    assert "the file of calibration is unfit: it lacks 'x'; the model has no 'image'" in result["error"]


ALL = ("static-shapes", "infer-shapes", "fold-constants", "convert-opset:18", "quantize-qdq")


def test_all_steps_give_the_same_bytes_each_time(tmp_path: Path) -> None:
    found = []
    for name in ("a", "a longer name"):
        folder = put(small_model(batch="batch"), tmp_path / name)
        np.savez(folder / "calibration.npz", x=np.ones((2, 1, 3, 8, 8), np.float32))
        result = prepare(folder, *ALL, free_dimensions={"batch": 1})
        assert result["ok"], result
        assert [entry["step"] for entry in result["extra"]["steps"]] == list(ALL)
        found.append(contents(folder, result))
    assert found[0] == found[1]


def test_external_data_stays_where_it_is_and_is_kept_too(tmp_path: Path) -> None:
    folder = put(small_model(weights="kernel.bin"), tmp_path / "job")
    before = (folder / "kernel.bin").read_bytes()
    result = prepare(folder, "fold-constants", "infer-shapes")
    assert [item["role"] for item in result["artifacts"]] == ["prepared", "prepared-data"]
    assert (folder / "kernel.bin").read_bytes() == before
    location = onnx.load(folder / "prepared.onnx", load_external_data=False).graph.initializer[0].external_data[0].value
    assert location == result["artifacts"][1]["path"]
    assert (folder / location).read_bytes() == before


def test_metadata_survives_preparation(tmp_path: Path) -> None:
    model = small_model()
    model.metadata_props.add(key="labels", value="cat,dog")
    model.graph.input[0].doc_string = "RGB"
    model.doc_string = "detects"
    kept = prepared(put(model, tmp_path / "job"), "fold-constants", "convert-opset:18", "infer-shapes")
    assert {entry.key: entry.value for entry in kept.metadata_props}["labels"] == "cat,dog"
    assert (kept.graph.input[0].doc_string, kept.doc_string) == ("RGB", "detects")


# -- Configuration and identity --------------------------------------------------------------------------------------


def error_of(text: str) -> str:
    table = {"package": "acme", **tomllib.loads(text + '[targets.t]\nep = "openvino"\n')}
    with pytest.raises(ConfigError) as caught:
        expand(load_settings(table, environ={}, state="wheel"), Path("/project"))
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("prepare = ['infer-shape']", "prepare[0]: unknown step 'infer-shape'; expected one of infer-shapes, fold-"),
        ("prepare = ['infer-shape']", "Did you mean 'infer-shapes'?"),
        ("prepare = ['convert-opset']", "found 'convert-opset'; expected an operator set's number after it"),
        ("prepare = ['fold-constants:2']", "expected 'fold-constants' without an argument"),
        ("prepare = ['quantize-qdq:a4w4']\ncalibration = 'c.npz'", "'quantize-qdq:a8w8' or 'quantize-qdq:a16w8'"),
        ("prepare = ['quantize-qdq']", "'quantize-qdq' needs samples of the model's inputs"),
        (
            "prepare = ['quantize-qdq', 'infer-shapes', 'quantize-qdq:a16w8']\ncalibration = 'c.npz'",
            "'quantize-qdq' stands there twice",
        ),
        ("calibration = 'c.npz'", "calibration: no step of 'prepare' reads it"),
    ],
)
def test_steps_that_cannot_be_are_refused(line: str, words: str) -> None:
    assert words in error_of(f"[models.m]\nsource = 'm.onnx'\n{line}\n")


def test_each_step_stands_with_its_libraries() -> None:
    steps = read_preparation(ALL, where="here")
    assert [step["step"] for step in steps] == list(ALL)
    assert all(version for step in steps for version in step["libraries"].values())
    assert {"onnxscript", "onnx-ir", "ml_dtypes"} <= steps[2][
        "libraries"
    ].keys()  # folding casts to bfloat16 with ml_dtypes
    assert "isa" in steps[4]["cpu"]
    assert "cpu" not in steps[1]


def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    libraries = {**preparation_module.LIBRARIES, "fold-constants": ("onnx", "epctx-no-such-distribution")}
    monkeypatch.setattr(preparation_module, "LIBRARIES", libraries)
    with pytest.raises(ToolchainError) as caught:
        read_preparation(["fold-constants"], where="tool.epctx.models.m.prepare")
    assert str(caught.value) == (
        "tool.epctx.models.m.prepare: 'fold-constants' needs epctx-no-such-distribution, which is not installed. "
        "Install the extra: pip install 'hatch-epctx[prepare]'."
    )


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_a_prepared_model_is_built_checked_kept_and_not_shipped(factory: Factory, tmp_path: Path) -> None:
    target = OPENVINO_TARGET + QNN_TARGET.replace(', "88"', "").replace(
        'backend_type = "htp"', 'backend_type = "htp", offload_graph_io_quantization = "0"'
    )
    tree = factory.project(target)
    save(small_model(batch="batch", weights="kernel.bin"), tree.root / "models/detector.onnx")
    random = np.random.default_rng(1)
    np.savez(tree.root / "samples.npz", x=random.standard_normal((16, 1, 3, 8, 8)).astype(np.float32))
    np.savez(tree.root / "inputs.npz", x=random.standard_normal((4, 1, 3, 8, 8)).astype(np.float32))
    text = (
        f"{MODEL}prepare = [{', '.join(map(repr, ALL))}]\ncalibration = 'samples.npz'\nmin-coverage = 0.9\n"
        "check = { inputs = 'inputs.npz', rtol = 0.1, atol = 0.5, cosine = 0.99 }\n"
    )
    tree.write(text + target)
    rows = epctx("build", "--out", tmp_path / "out", "--json", "-q", cwd=tree.root).json["variants"]
    for row in rows:
        kept = Path(row["prepared"])
        assert kept.name == "prepared.onnx"
        assert "QuantizeLinear" in {node.op_type for node in onnx.load(kept).graph.node}
        steps = row["facts"]["prepared"]["steps"]
        assert steps[-1]["nodes"] > steps[0]["nodes"]
        # Quantised, and compared with the source as it was.
        assert row["check"]["outputs"][0]["max_rel"] > 1e-3
        assert epctx("inspect", kept, cwd=tree.root).out.startswith(str(kept))
    shipped = {path.name for path in (tmp_path / "out").iterdir()}
    assert "prepared.onnx" not in shipped
    assert not [name for name in shipped if name.endswith(".npz")]
    assert str(rows[0]["prepared"]) in epctx("explain", "detector.intel-cpu", cwd=tree.root).out

    plan = epctx("plan", "--json", cwd=tree.root).json["variants"]
    assert [row["status"] for row in plan] == ["hit", "hit"]
    np.savez(tree.root / "samples.npz", x=random.standard_normal((16, 1, 3, 8, 8)).astype(np.float32))
    plan = epctx("plan", "--json", cwd=tree.root).json["variants"]
    assert [row["status"] for row in plan] == ["miss", "miss"]
    assert "samples for quantising" in plan[0]["why"]
    (tree.root / "samples.npz").unlink()
    done = epctx("plan", cwd=tree.root, check=False)
    assert done.code == 2
    assert "tool.epctx.models.detector.calibration: the file of inputs cannot be read" in done.err


@pytest.mark.ep_qnn
def test_preparing_brings_a_real_model_to_the_npu_whole(tmp_path: Path) -> None:
    """A model with a dim named "?" twice and a batch of -1: static, folded, and compiled without an override."""
    source = MODELS["ppocr-cls"].path()
    if source is None:
        pytest.skip("rapidocr is not installed")
    folder = put(source, tmp_path / "job")
    model = prepared(folder, "static-shapes", "fold-constants", input_shapes={"x": [1, 3, 48, 192]})
    assert graphs.graph_inputs(model)[0]["shape"] == [1, 3, 48, 192]
    result = compiled(QNN, folder, prepared=True, free_dimensions={"?": 48})
    assert (result["context_nodes"], result["nodes_left"]) == (1, 0)
