"""Coverage: ONNX Runtime's account, the EP's reasons, floors, and what a user sees; cases 12 and 13 with real EPs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from frontend_support import front_end
from models import MODELS
from onnx import TensorProto, helper, numpy_helper
from support import OPENVINO_TARGET, QNN_TARGET, REPOSITORY, epctx, save, small_model
from worker_support import EPS, OPENVINO, QNN, compiled, put, refused

from hatch_epctx.config import single_variant
from hatch_epctx.errors import CompileError
from hatch_epctx.findings import coverage_in_words, left_in_words, share
from hatch_epctx.pipeline.checking import check_coverage
from hatch_epctx.providers import find_provider
from hatch_epctx.worker.coverage import left_operators, reasons

if TYPE_CHECKING:
    from pathlib import Path

    from support import Factory

QNN_ONE = QNN_TARGET.replace(', "88"', "")
CUSTOM = "ai.onnx.ml"
EITHER = [pytest.param("openvino", marks=pytest.mark.ep_openvino), pytest.param("qnn", marks=pytest.mark.ep_qnn)]


def partial_model(*, weights: str | None = None) -> onnx.ModelProto:
    """The small model and behind it nodes that neither EP takes, one of which has weights of its own.

    Args:
        weights: external-data file of the left node's initialiser.
    """
    model = small_model()
    table = np.random.default_rng(5).standard_normal((4096, 5)).astype(np.float32)
    scale = {"offset": [0.0] * 5, "scale": [2.0] * 5}
    model.graph.node.extend(
        [
            helper.make_node("Scaler", ["y"], ["scaled"], name="scaler", domain=CUSTOM, **scale),
            helper.make_node(
                "CDist", ["scaled", "table"], ["out"], name="distance", domain="com.microsoft", metric="euclidean"
            ),
        ]
    )
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 4096]))
    model.opset_import.extend([helper.make_opsetid(CUSTOM, 3), helper.make_opsetid("com.microsoft", 1)])
    if weights is not None:
        onnx.external_data_helper.set_external_data(model.graph.initializer[-1], location=weights)
    return model


# -- The account and the reasons -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", EITHER)
def test_nodes_by_ep_add_up_and_what_is_left_is_named(tmp_path: Path, key: str) -> None:
    folder = put(partial_model(), tmp_path / "job")
    provider = find_provider(key)
    result = compiled(EPS[key], folder, want_coverage=True, left_pattern=provider.left_pattern)
    name = EPS[key]["ep"]
    assert (
        result["coverage"]["CPUExecutionProvider"]
        == result["nodes_left"]
        == sum(item["count"] for item in result["left"])
    )
    assert result["coverage"][name] >= 5
    by_operator = {item["operator"]: item for item in result["left"]}
    assert "ai.onnx.ml.Scaler" in by_operator
    assert bool(by_operator["ai.onnx.ml.Scaler"]["reason"]) == (key == "qnn")  # OpenVINO says nothing
    if key == "qnn":
        assert "not supported by QNN EP" in by_operator["ai.onnx.ml.Scaler"]["reason"]


@pytest.mark.parametrize("key", EITHER)
def test_measuring_does_not_touch_the_bytes(tmp_path: Path, key: str) -> None:
    model = partial_model()
    with_it = compiled(EPS[key], put(model, tmp_path / "a"), want_coverage=True, left_pattern="x")
    without = compiled(EPS[key], put(model, tmp_path / "b"))
    assert [item["digest"] for item in with_it["artifacts"]] == [item["digest"] for item in without["artifacts"]]


@pytest.mark.ep_openvino
def test_a_whole_model_leaves_nothing(tmp_path: Path) -> None:
    result = compiled(OPENVINO, put(small_model(), tmp_path / "job"), want_coverage=True)
    assert (result["coverage"], result["left"]) == ({"OpenVINOExecutionProvider": 5}, [])


@pytest.mark.ep_qnn
def test_a_real_quantised_model_says_what_is_left_and_why(tmp_path: Path) -> None:
    source = MODELS["bilstm"].path()
    if source is None:
        pytest.skip("text2tashkeel is not installed")
    pattern = find_provider("qnn").left_pattern
    folder = put(source, tmp_path / "job")
    fields = {"free_dimensions": dict(MODELS["bilstm"].free_dimensions), "want_coverage": True}
    result = compiled(QNN, folder, left_pattern=pattern, **fields)
    assert result["coverage"] == {"CPUExecutionProvider": 6, "QNNExecutionProvider": 34}
    assert result["left"][0] == {
        "operator": "com.microsoft.DynamicQuantizeLSTM",
        "count": 3,
        "reason": "Operators of type `DynamicQuantizeLSTM` are not supported by QNN EP",
    }
    assert all(item["reason"] for item in result["left"])


LOG = """
[W:onnxruntime:, x.cc:5 Create] QNN.backendValidateOpConfig() failed for node `g` of type `Gather` with error code 3110
[V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation FAILED for 2 nodes in OrtNodeUnit (Gather) :
\tOperator type: Gather Node name: g Node index: 0
\tOperator type: DequantizeLinear Node name: d Node index: 1
\tREASON : Failed to add node.

[V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation PASSED for 1 nodes in OrtNodeUnit (Add) :
\tOperator type: Add Node name: a Node index: 2

[V:onnxruntime:, qnn_execution_provider.cc:1713 LogNodeSupport] Validation FAILED for 1 nodes in OrtNodeUnit (LSTM) :
\tOperator type: LSTM Node name: l Node index: 15
\tREASON : Operators of type `LSTM` are not supported by QNN EP.LSTM node `l` will not be assigned to QNN EP.
"""


def test_reasons_are_read_from_the_log() -> None:
    found = reasons(LOG, find_provider("qnn").left_pattern)
    refused_by = "Failed to add node (QNN.backendValidateOpConfig() failed with error code 3110)"
    assert found == {
        ("Gather", "g"): refused_by,
        ("DequantizeLinear", "d"): refused_by,
        ("LSTM", "l"): "Operators of type `LSTM` are not supported by QNN EP",
    }
    nodes = [helper.make_node("LSTM", [], [], name="l"), helper.make_node("LSTM", [], [], name="other")]
    nodes.append(helper.make_node("Gather", [], [], name="g", domain="com.acme"))
    assert left_operators(nodes, found) == [
        {"operator": "LSTM", "count": 2, "reason": "Operators of type `LSTM` are not supported by QNN EP"},
        {"operator": "com.acme.Gather", "count": 1, "reason": refused_by},
    ]


def test_words_pass_over_what_is_not_there() -> None:
    assert share({}, "X") is None
    assert share({"coverage": {"X": "many"}}, "X") is None
    assert coverage_in_words({"coverage": {"CPUExecutionProvider": 3}}, "X") == "0 of 3"
    assert left_in_words(None) == ""
    assert left_in_words([{"count": 1, "operator": "If"}, {"count": 2, "operator": "Pad", "reason": "no"}]) == (
        "1 If, 2 Pad (no)"
    )


# -- Case 12: no node, part of the nodes, a floor --------------------------------------------------------------------


@pytest.mark.parametrize("key", EITHER)
def test_no_node_is_an_error_that_names_operators_and_reasons(tmp_path: Path, key: str) -> None:
    source = MODELS["logreg-iris"].path()
    assert source is not None
    folder = put(source, tmp_path / "job")
    result = refused(EPS[key], folder, left_pattern=find_provider(key).left_pattern)
    assert result["reason"] == "no-node"
    assert "ai.onnx.ml.LinearClassifier" in result["error"]
    assert ("not supported by QNN EP" in result["error"]) == (key == "qnn")
    assert "the CPU EP runs it as it is" in result["remedy"]


def floor(value: float | None) -> Any:
    import dataclasses
    from pathlib import Path

    variant = single_variant(Path("m.onnx"), {"ep": "openvino"})
    return dataclasses.replace(variant, min_coverage=value)


def test_a_floor_is_a_share_of_nodes() -> None:
    facts = {"coverage": {"OpenVINOExecutionProvider": 9, "CPUExecutionProvider": 1}}
    check_coverage(floor(0.9), facts)
    check_coverage(floor(None), {})
    with pytest.raises(CompileError) as caught:
        check_coverage(floor(0.91), facts)
    assert caught.value.reason == "low-coverage"
    assert "takes 9 of 10 nodes (90.0%)" in str(caught.value)
    assert "expected at least 91% (min-coverage)" in str(caught.value)
    with pytest.raises(CompileError, match="coverage was not measured"):
        check_coverage(floor(0.1), {"coverage": {}})


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_a_floor_fails_the_build_and_names_the_operators(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(OPENVINO_TARGET + QNN_ONE)
    save(partial_model(), tree.root / "models/detector.onnx")
    model = '[tool.epctx.models.detector]\nsource = "models/detector.onnx"\n'
    tree.write(f"{model}min-coverage = 0.95\n{OPENVINO_TARGET}{QNN_ONE}")
    done = epctx("build", "--out", tmp_path / "out", cwd=tree.root, check=False)
    assert done.code == 5
    assert not (tmp_path / "out").exists()
    assert "expected at least 95% (min-coverage). Lower tool.epctx.models.detector.min-coverage" in done.err
    assert "detector.intel-cpu: Intel OpenVINO takes 5 of " in done.err
    assert "left to the CPU: 1 ai.onnx.ml.Scaler" in done.err.partition("Qualcomm QNN takes")[0]
    assert "ai.onnx.ml.Scaler (Operators of type `Scaler` are not supported by QNN EP" in done.err

    tree.write(f"{model}min-coverage = 0.5\n{OPENVINO_TARGET}{QNN_ONE}")  # the same bytes meet a lower floor
    done = epctx("build", "--out", tmp_path / "out", cwd=tree.root)
    assert done.out.count(" hit ") == 2
    assert "detector.intel-cpu: left to the CPU: " in done.out
    plan = epctx("plan", cwd=tree.root).out
    assert "COVERAGE" in plan
    assert "5 of " in plan
    rows = epctx("inspect", tmp_path / "out", "--json").json["packages"][0]["variants"]
    assert all(row["coverage"]["CPUExecutionProvider"] == row["nodes_left"] for row in rows)
    assert rows[1]["left"][0]["reason"]
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    variants = manifest["components"]["detector"]["variants"]
    assert variants["intel-cpu"]["executor_info"]["epctx"]["coverage"]["left"] == rows[0]["left"]

    tree.write(f"{model}min-coverage = 0.95\n{OPENVINO_TARGET}{QNN_ONE}")  # and a hit must meet a higher one
    done = epctx("build", cwd=tree.root, check=False)
    assert done.code == 5
    assert "compiling" not in done.err


# -- Case 13: a partial graph with external weights ------------------------------------------------------------------

RUN = """
import json, sys
import numpy as np
from hatch_epctx import runtime

package = runtime.open(sys.argv[1])
x = np.random.default_rng(3).standard_normal((1, 3, 8, 8)).astype("float32")
found = {}
for name in package.variants("detector"):
    session = package.session("detector", variant=name, fallback="error")
    found[name] = session.run(None, {"x": x})[0].tolist()
print(json.dumps(found))
"""


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_case_13_a_partial_model_runs_from_its_wheel_without_its_source_and_its_external_weights(
    factory: Factory, tmp_path: Path
) -> None:
    tree = factory.project(OPENVINO_TARGET + QNN_ONE)
    source = save(partial_model(weights="table.bin"), tree.root / "models/detector.onnx")
    x = np.random.default_rng(3).standard_normal((1, 3, 8, 8)).astype(np.float32)
    import onnxruntime

    (expected,) = onnxruntime.InferenceSession(str(source), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    wheel, site = front_end("backend", tree.root, out=tmp_path / "dist").wheel, tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, timeout=300)
    shutil.rmtree(tree.root)
    shutil.rmtree(tmp_path / "epctx-cache")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(REPOSITORY)])}
    command = [sys.executable, "-c", RUN, "acme_vision"]
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found) == ["intel-cpu", "snapdragon-60"]
    for values in found.values():
        np.testing.assert_allclose(np.array(values), expected, rtol=0.01, atol=0.01)
