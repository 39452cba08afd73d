"""Libraries of custom operators: in the identity, in every worker, at run time; one of onnxruntime-extensions."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import OPENVINO_TARGET, Factory, Tree, epctx, save

from hatch_epctx import runtime
from hatch_epctx.config import further_inputs, load_settings
from hatch_epctx.errors import LookupFailure
from hatch_epctx.manifest import MANIFEST_NAME, Facts, Variant
from hatch_epctx.runtime import customops

with pytest.MonkeyPatch.context() as patch:
    # Its import chooses protobuf's implementation in Python for every process that this one starts.
    patch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "upb")
    onnxruntime_extensions = pytest.importorskip("onnxruntime_extensions")  # no wheels for Python 3.14
MODEL = '[tool.epctx.models.detector]\nsource = "models/detector.onnx"\n{keys}\n'
MODULE = 'custom-ops = ["onnxruntime_extensions"]'
LIBRARY = Path(onnxruntime_extensions.get_library_path())


def custom_model() -> onnx.ModelProto:
    """Standard operators around one of onnxruntime-extensions: parts of a tensor below and above zero."""
    kernel = np.random.default_rng(3).normal(size=(4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("NegPos", ["c"], ["below", "above"], name="parts", domain="ai.onnx.contrib"),
        helper.make_node("Sub", ["above", "below"], ["size"], name="size"),
        helper.make_node("GlobalAveragePool", ["size"], ["y"], name="mean"),
    ]
    graph = helper.make_graph(
        nodes,
        "custom",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 1, 1])],
        [numpy_helper.from_array(kernel, "kernel")],
        # Nobody infers the shapes behind a custom operator.
        value_info=[
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 8, 8]) for name in ("below", "above")
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.contrib", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def expected(x: Any) -> Any:
    """What the model computes, without its operators."""
    kernel = numpy_helper.to_array(custom_model().graph.initializer[0])
    padded = np.pad(x[0], ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.abs(np.einsum("chwij,ocij->ohw", windows, kernel)).mean(axis=(1, 2)).reshape(1, 4, 1, 1)


def project(factory: Factory, keys: str, *, target: str = OPENVINO_TARGET) -> Tree:
    tree = factory.project(target)
    tree.write(MODEL.format(keys=keys) + target)
    save(custom_model(), tree.root / "models/detector.onnx")
    return tree


def with_file(factory: Factory, keys: str = "") -> Tree:
    tree = project(factory, f'custom-ops = ["libs/parts.so"]\n{keys}')
    (tree.root / "libs").mkdir()
    shutil.copyfile(LIBRARY, tree.root / "libs/parts.so")
    return tree


def identity(tree: Tree) -> str:
    found: str = epctx("plan", "--json", cwd=tree.root).json["variants"][0]["identity"]
    return found


def facts(folder: Path, variant: str) -> dict[str, Any]:
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    found: dict[str, Any] = manifest["components"]["detector"]["variants"][variant]["executor_info"]["epctx"]
    return found


# ---- the real EP


@pytest.mark.ep_openvino
def test_one_model_without_a_project(factory: Factory, tmp_path: Path) -> None:
    tree = with_file(factory)
    source = tree.root / "models/detector.onnx"
    common = ("compile", source, "--ep", "openvino", "--device", "cpu", "--cores", "1")
    assert "ai.onnx.contrib" in epctx(*common, "-o", tmp_path / "none", cwd=tmp_path, check=False).err
    by_module = epctx(*common, "--custom-ops", "onnxruntime_extensions", "-o", tmp_path / "a", "--json", cwd=tmp_path)
    by_path = epctx(*common, "--custom-ops", "libs/parts.so", "-o", tmp_path / "b", "--json", cwd=tree.root)
    for run in (by_module, by_path):
        assert run.json["facts"]["load_check"] == "passed"
    assert len(list((tmp_path / "b").iterdir())) == 2


@pytest.mark.ep_openvino
def test_a_model_with_a_custom_operator_compiles_is_checked_and_runs(factory: Factory) -> None:
    tree = project(factory, f"{MODULE}\nship-source = true\ncheck = {{ rtol = 0.01, atol = 0.001 }}")
    out = tree.root / "out"
    epctx("build", "--out", out, cwd=tree.root)
    found = facts(out, "intel-cpu")
    assert (found["coverage"]["context_nodes"], found["coverage"]["nodes_left"]) == (2, 1)
    assert found["coverage"]["left"][0]["operator"] == "ai.onnx.contrib.NegPos"
    assert found["check"]["outcome"] == "passed"
    (need,) = found["runtime"]["custom_ops"]
    version = onnxruntime_extensions.__version__
    assert need == {"module": "onnxruntime_extensions", "distribution": "onnxruntime-extensions", "version": version}
    assert facts(out, "source")["runtime"]["custom_ops"] == [need]
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    package = runtime.open(out)
    for ep in ("openvino", "cpu"):
        assert package.lookup("detector", ep=ep).custom_ops == (LIBRARY,)
        (y,) = package.session("detector", ep=ep).run(None, {"x": x})
        np.testing.assert_allclose(y, expected(x), rtol=0.01)


@pytest.mark.ep_openvino
def test_a_library_of_the_project_counts_by_its_content_and_the_application_brings_it(factory: Factory) -> None:
    tree = with_file(factory, "check = { rtol = 0.01, atol = 0.001 }")
    out = tree.root / "out"
    epctx("build", "--out", out, cwd=tree.root)
    (need,) = facts(out, "intel-cpu")["runtime"]["custom_ops"]
    assert (need["file"], set(need)) == ("parts.so", {"file", "digest", "os", "architecture"})
    assert not any(path.suffix == ".so" for path in out.iterdir()), "a wheel does not carry it"
    package = runtime.open(out)
    with pytest.raises(LookupFailure, match=r"needs the library of custom operators 'parts.so'; pass its path"):
        package.lookup("detector")
    (tree.root / "libs/other.so").write_bytes(b"other")
    with pytest.raises(LookupFailure, match=r"none of .*other\.so is that one"):
        package.session("detector", custom_ops=[tree.root / "libs/other.so"])
    session = package.session("detector", custom_ops=[tree.root / "libs/parts.so"])
    x = np.ones((1, 3, 8, 8), dtype=np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected(x), rtol=0.01)
    before = identity(tree)
    with open(tree.root / "libs/parts.so", "ab") as stream:
        stream.write(b"\0")
    assert identity(tree) != before


@pytest.mark.ep_openvino
def test_an_operator_that_nobody_brings_is_explained(factory: Factory) -> None:
    run = epctx("build", cwd=project(factory, "").root, check=False)
    assert run.code == 3
    assert "cannot read the model" in run.err
    assert "NegPos" in run.err
    assert "Name the library that brings the operator in the model's 'custom-ops'" in run.err


@pytest.mark.ep_openvino
def test_a_library_that_cannot_be_loaded_is_named(factory: Factory) -> None:
    tree = with_file(factory)
    (tree.root / "libs/parts.so").write_bytes(b"no library at all")
    run = epctx("build", cwd=tree.root, check=False)
    assert run.code == 4
    assert "the library of custom operators custom-ops-" in run.err
    assert "export RegisterCustomOps" in run.err


# ---- the configuration


def test_what_is_missing_is_said_before_anything_compiles(factory: Factory) -> None:
    run = epctx("plan", cwd=project(factory, 'custom-ops = ["libs/nope.so"]').root, check=False)
    assert run.code == 2
    assert "tool.epctx.models.detector.custom-ops: the library of custom operators cannot be read" in run.err
    tree = project(Factory(factory.folder / "b"), 'custom-ops = ["no_such_module"]')
    run = epctx("plan", cwd=tree.root, check=False)
    assert run.code == 4
    assert "no installed distribution brings the module 'no_such_module'" in run.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("onnxruntime-extensions", "Did you mean 'onnxruntime_extensions'?"),
        ("/opt/parts.so", "is absolute"),
        ("../parts.so", "leaves the project"),
        ("", "names no library"),
    ],
)
def test_names_that_cannot_be(factory: Factory, name: str, message: str) -> None:
    run = epctx("plan", cwd=project(factory, f'custom-ops = ["{name}"]').root, check=False)
    assert run.code == 2
    assert message in run.err


def test_a_library_of_the_project_is_in_its_sdist() -> None:
    table: dict[str, Any] = {"package": "p", "models": {"m": {"source": "m.onnx", "custom-ops": ["a_module", "l.so"]}}}
    settings = load_settings(table, environ={}, state="sdist")
    assert further_inputs(settings, Path("/project")) == (Path("/project/l.so"),)


# ---- what a manifest may not do


def variant(**need: str) -> Variant:
    return Variant(
        name="v", ep="e", model_file="m", facts=Facts(kind="compiled", artifacts=(), runtime={"custom_ops": [need]})
    )


@pytest.mark.parametrize(
    ("need", "reason"),
    [
        ({"module": "os", "distribution": "onnxruntime-extensions"}, "wrong-custom-ops"),
        ({"module": "os; import evil", "distribution": "onnxruntime-extensions"}, "wrong-custom-ops"),
        ({"module": "onnxruntime_extensions", "distribution": "../evil"}, "wrong-custom-ops"),
        ({"module": "onnxruntime_extensions", "distribution": "no-such-thing", "version": "1"}, "missing-custom-ops"),
        ({"module": "numpy", "distribution": "numpy", "version": "1"}, "missing-custom-ops"),
        ({"module": "pygments.__main__", "distribution": "pygments", "version": "1"}, "wrong-custom-ops"),
        ({"file": "/etc/passwd", "digest": "0" * 64}, "missing-custom-ops"),
        ({}, "missing-custom-ops"),
    ],
)
def test_a_manifest_has_no_code_loaded_that_nobody_installed_or_named(need: dict[str, str], reason: str) -> None:
    with pytest.raises(customops.Missing) as error:
        customops.libraries(variant(**need), [])
    assert error.value.reason == reason


def test_a_module_that_ends_the_program_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime_extensions, "get_library_path", lambda: sys.exit(3))
    need = {"module": "onnxruntime_extensions", "distribution": "onnxruntime-extensions", "version": "1"}
    with pytest.raises(customops.Missing, match="gives no library"):
        customops.libraries(variant(**need), [])


def test_another_version_of_the_distribution_is_noted() -> None:
    need = {"module": "onnxruntime_extensions", "distribution": "onnxruntime-extensions", "version": "0.0.1"}
    (path,), note = customops.libraries(variant(**need), [])
    assert path == LIBRARY
    assert note == f"onnxruntime-extensions 0.0.1 recorded, {onnxruntime_extensions.__version__} found"


def test_on_another_platform_the_library_is_known_by_its_name(tmp_path: Path) -> None:
    need = {"file": "parts.so", "digest": "0" * 64, "os": "windows", "architecture": "aarch64"}
    given = [tmp_path / "other.dll", tmp_path / "parts.dll"]
    assert customops.libraries(variant(**need), given)[0] == (given[1], given[0])
