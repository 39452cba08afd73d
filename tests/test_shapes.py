"""Shapes: by input and axis, shape points as variants, dynamic dims told with the line to write; through both EPs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from models import MODELS
from onnx import ModelProto, TensorProto, helper
from support import OPENVINO_TARGET, QNN_TARGET, epctx, save, small_model
from worker_support import QNN, compiled, load, put, refused, stub

from hatch_epctx.config import expand, load_settings
from hatch_epctx.config.project import tomllib
from hatch_epctx.errors import ConfigError
from hatch_epctx.manifest import read_manifest
from hatch_epctx.worker import graphs

if TYPE_CHECKING:
    from support import Factory

STATIC: dict[str, Any] = {"needs_static_shapes": True}


def picture_model(shape: list[Any]) -> ModelProto:
    """The small model with `shape` in place of its input's."""
    model = small_model(batch="n")
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))
    return model


def input_shape(folder: Path) -> Any:
    return graphs.graph_inputs(onnx.load(folder / "model.onnx", load_external_data=False))[0]["shape"]


# -- By input and axis -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "given"),
    [
        ([None, 3, None, None], [2, 3, 8, 8]),
        (["?", 3, "?", "?"], [2, 3, 8, 16]),
        ([-1, 3, 8, 8], [2, 3, 8, 8]),
        (["batch", 3, "h", 8], [2, -1, 8, 8]),
        (None, [2, 3, 8, 8]),
    ],
)
def test_every_dim_is_reached_by_input_and_axis(tmp_path: Path, shape: Any, given: list[int]) -> None:
    model = picture_model(shape)
    if shape and shape[0] == -1:
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    folder = put(model, tmp_path / "job")
    result = compiled(stub(), folder, input_shapes={"x": given}, **STATIC)
    expected = [old if size == -1 else size for old, size in zip(shape or given, given, strict=True)]
    assert result["inputs"][0]["shape"] == expected
    assert input_shape(folder) == expected


def test_another_dim_of_the_same_name_stays(tmp_path: Path) -> None:
    folder = put(picture_model(["?", 3, "?", "?"]), tmp_path / "job")
    result = refused(stub(), folder, input_shapes={"x": [1, 3, 8, -1]}, **STATIC)
    assert "keeps dynamic dims: '?' (axis 3)" in result["error"]


@pytest.mark.parametrize(
    ("fields", "reason", "error", "remedy"),
    [
        (
            {"input_shapes": {"X": [1, 3, 8, 8]}},
            "unknown-input",
            "the model has no input 'X'; it has 'x'",
            "Correct or remove 'X' in input-shapes.",
        ),
        (
            {"input_shapes": {"kernel": [4, 3, 3, 3]}},
            "unknown-input",
            "the model has no input 'kernel'; it has 'x'",
            "Correct or remove 'kernel' in input-shapes.",
        ),
        (
            {"input_shapes": {"x": [1, 3, 8]}},
            "shape-conflict",
            "input 'x' has 4 dims, and input-shapes gives 3",
            "Give one size for each dim, -1 for one that stays as it is.",
        ),
        (
            {"input_shapes": {"x": [1, 4, 8, 8]}},
            "shape-conflict",
            "input 'x' has size 3 on axis 1 by the model, and input-shapes gives 4",
            "Make them say the same.",
        ),
        (
            {"input_shapes": {"x": [2, 3, 8, 8]}, "free_dimensions": {"batch": 1}},
            "shape-conflict",
            "input 'x' has size 1 on axis 0 by free-dimensions, and input-shapes gives 2",
            "Make them say the same.",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    tmp_path: Path, fields: dict[str, Any], reason: str, error: str, remedy: str
) -> None:
    folder = put(picture_model(["batch", 3, 8, 8]), tmp_path / "job")
    result = refused(stub("crash-before"), folder, **fields)
    assert (result["reason"], result["error"], result["remedy"]) == (reason, error, remedy)


def test_a_size_that_free_dimensions_say_too_is_fine(tmp_path: Path) -> None:
    folder = put(picture_model(["batch", 3, "?", "?"]), tmp_path / "job")
    result = compiled(stub(), folder, input_shapes={"x": [2, 3, 8, 8]}, free_dimensions={"batch": 2}, **STATIC)
    assert result["inputs"][0]["shape"] == [2, 3, 8, 8]


def test_the_line_for_shared_names_is_the_whole_shape(tmp_path: Path) -> None:
    folder = put(picture_model(["?", 3, "?", 8]), tmp_path / "job")
    result = refused(stub(), folder, **STATIC)
    assert result["remedy"].startswith("Write under the model: input-shapes = { x = [1, 3, 1, 8] } (")
    line = result["remedy"].removeprefix("Write under the model: ").partition(" (")[0]
    assert compiled(stub(), folder, input_shapes=tomllib.loads(line)["input-shapes"], **STATIC)["ok"]


@pytest.mark.ep_qnn
def test_a_real_model_whose_dims_have_no_names_compiles_for_qnn(tmp_path: Path) -> None:
    source = MODELS["ppocr-cls"].path()
    if source is None:
        pytest.skip("rapidocr is not installed")
    folder = put(source, tmp_path / "job")
    result = refused(QNN, folder)
    assert result["reason"] == "dynamic-shape"
    assert "input-shapes = { x = [1, 3, 1, 1] }" in result["remedy"]
    result = compiled(QNN, folder, input_shapes={"x": [1, 3, 48, 192]})
    assert result["inputs"] == [{"name": "x", "type": "float", "shape": [1, 3, 48, 192]}]
    assert (result["context_nodes"], result["nodes_left"]) == (1, 0)
    loaded = load("qnn", folder)
    assert loaded.result is not None
    assert loaded.result["ok"], loaded.result


# -- Shape points ----------------------------------------------------------------------------------------------------


MATRIX = (
    '[models.a]\nsource = "a.onnx"\nfree-dimensions = { w = 8 }\nmatrix = { batch = [1, 4], "seq.len" = [64, 128] }\n'
)
TARGETS = (
    '[targets.intel-cpu]\nep = "openvino"\n'
    """[targets.snapdragon]
ep = "qnn"
matrix = { soc_model = ["60", "88"] }
provider-options = { backend_type = "htp" }
"""
)


def variants(text: str, **environ: str) -> dict[str, dict[str, int]]:
    table = {"package": "acme", **tomllib.loads(text)}
    found = expand(load_settings(table, environ=environ, state="wheel"), Path("/project"))
    return {variant.name: dict(variant.free_dimensions) for variant in found}


def test_each_combination_is_a_variant_named_by_target_and_sizes() -> None:
    found = variants(MATRIX + TARGETS)
    assert list(found)[:4] == [
        "a.intel-cpu-batch1-seq-len64",
        "a.intel-cpu-batch1-seq-len128",
        "a.intel-cpu-batch4-seq-len64",
        "a.intel-cpu-batch4-seq-len128",
    ]
    assert found["a.snapdragon-88-batch4-seq-len64"] == {"w": 8, "batch": 4, "seq.len": 64}
    assert len(found) == 12


def test_the_source_is_shipped_once() -> None:
    text = MATRIX.replace("a.onnx", "a.onnx", 1).replace('source = "a.onnx"', 'source = "a.onnx"\nship-source = true')
    assert [name for name in variants(text + TARGETS) if name.endswith("source")] == ["a.source"]


@pytest.mark.parametrize(
    ("targets", "count"),
    [("intel-cpu", 4), ("*-batch4-*", 6), ("snapdragon", 8), ("snapdragon-60", 4), ("intel-cpu-batch1-seq-len64", 1)],
)
def test_points_are_selected_by_target_or_by_their_own_name(targets: str, count: int) -> None:
    assert len(variants(MATRIX + TARGETS, EPCTX_TARGETS=targets)) == count


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            MATRIX.replace("w = 8", "batch = 8") + TARGETS,
            (
                "tool.epctx.models.a.matrix.batch: the dimension 'batch' stands in free-dimensions too. "
                "Remove it from one of them."
            ),
        ),
        (
            '[models.a]\nsource = "a.onnx"\nmatrix = { "?" = [1, 2] }\n' + TARGETS,
            (
                "tool.epctx.models.a.matrix.\"?\": no name can be made of '?'; expected a dimension whose name has a "
                "letter or digit. Give the dimension a name in the model, or declare a model for each size with "
                "input-shapes."
            ),
        ),
        (
            '[models.a]\nsource = "a.onnx"\nmatrix = { batch = [1, 1] }\n[targets.t]\nep = "openvino"\n',
            "tool.epctx.models.a.matrix: two variants would have the name 't-batch1'. Choose other names.",
        ),
        (
            (
                '[models.a]\nsource = "a.onnx"\nmatrix = { batch = [1] }\n[targets.t]\nep = "openvino"\n'
                '[targets.t-batch1]\nep = "openvino"\n[models.b]\nsource = "b.onnx"\n'
            ),
            None,
        ),
        (
            '[models.a]\nsource = "a.onnx"\nmatrix = { batch = [0] }\n[targets.t]\nep = "openvino"\n',
            "tool.epctx.models.a.matrix.batch[0]: found 0; expected a number of at least 1",
        ),
        (
            '[models.a]\nsource = "a.onnx"\ninput-shapes = { x = [0, 3] }\n[targets.t]\nep = "openvino"\n',
            (
                "tool.epctx.models.a.input-shapes.x: found the size 0; expected sizes of at least 1, or -1 for one "
                "that stays as it is"
            ),
        ),
    ],
)
def test_a_matrix_that_cannot_be_is_refused(text: str, message: str | None) -> None:
    if message is None:
        assert "a.t-batch1-batch1" in variants(text)
        return
    with pytest.raises(ConfigError) as caught:
        variants(text)
    assert str(caught.value) == message


def test_files_of_inputs_may_be_named_by_sizes() -> None:
    text = (
        '[models.a]\nsource = "a.onnx"\nmatrix = { batch = [1, 4] }\nprepare = ["quantize-qdq"]\n'
        'calibration = "cal-{batch}.npz"\ncheck = { inputs = "in-{batch}.npz" }\n[targets.t]\nep = "openvino"\n'
    )
    table = {"package": "acme", **tomllib.loads(text)}
    found = expand(load_settings(table, environ={}, state="wheel"), Path("/project"))
    assert [(v.calibration, v.check.inputs) for v in found if v.check] == [
        (Path(f"/project/cal-{size}.npz"), Path(f"/project/in-{size}.npz")) for size in (1, 4)
    ]


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_two_sizes_of_one_model_are_variants_of_one_package(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(OPENVINO_TARGET + QNN_TARGET.replace(', "88"', ""))
    save(small_model(batch="batch"), tree.root / "models/detector.onnx")
    text = (tree.root / "pyproject.toml").read_text()
    shapes = 'source = "models/detector.onnx"\nmatrix = { batch = [1, 4] }\n'
    (tree.root / "pyproject.toml").write_text(text.replace('source = "models/detector.onnx"\n', shapes))
    epctx("build", "--out", tmp_path / "out", "-q", cwd=tree.root)
    (component,) = read_manifest((tmp_path / "out/manifest.json").read_bytes()).components
    found = {variant.name: variant.facts.options["free_dimensions"] for variant in component.variants if variant.facts}
    assert found == {
        "intel-cpu-batch1": {"batch": 1},
        "intel-cpu-batch4": {"batch": 4},
        "snapdragon-60-batch1": {"batch": 1},
        "snapdragon-60-batch4": {"batch": 4},
    }
    code = (
        "import sys, numpy as np; from hatch_epctx import runtime\n"
        "package = runtime.open(sys.argv[1])\n"
        "for name in package.variants('detector'):\n"
        "    session = package.session('detector', variant=name, fallback='error')\n"
        "    batch = 4 if name.endswith('4') else 1\n"
        "    print(name, session.run(None, {'x': np.ones((batch, 3, 8, 8), np.float32)})[0].shape)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "out")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith(("intel", "snap"))] == [
        "intel-cpu-batch1 (1, 5)",
        "intel-cpu-batch4 (4, 5)",
        "snapdragon-60-batch1 (1, 5)",
        "snapdragon-60-batch4 (4, 5)",
    ]
