"""What a build refuses to ship and what it brings through, from the user's side: cases 15, 16 and 20."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from models import MODELS
from onnx import TensorProto, helper
from support import OPENVINO_TARGET, QNN_TARGET, STUB_TARGET, epctx, save, small_model

if TYPE_CHECKING:
    from pathlib import Path

    from support import Factory

QNN_ONE = QNN_TARGET.replace(', "88"', "")
EITHER = [
    pytest.param("openvino", OPENVINO_TARGET, marks=pytest.mark.ep_openvino),
    pytest.param("qnn", QNN_ONE, marks=pytest.mark.ep_qnn),
]


# -- Case 15: what is embedded, and what is no data ------------------------------------------------------------------


def test_case_15_embedding_beyond_two_gigabytes_is_refused_before_the_compile(factory: Factory, tmp_path: Path) -> None:
    target = STUB_TARGET + 'embed = true\nprovider-options = { mode = "crash-before" }\n'
    tree = factory.project(target)
    model = small_model()
    tensor = TensorProto(name="huge", data_type=TensorProto.FLOAT, dims=[1 << 29], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="huge.bin")
    model.graph.initializer.append(tensor)
    (tree.root / "models/detector.onnx").write_bytes(model.SerializeToString())
    with open(tree.root / "models/huge.bin", "wb") as stream:
        stream.truncate(1 << 31)  # a hole: it takes no space
    done = epctx("build", "--out", tmp_path / "out", cwd=tree.root, check=False)
    assert done.code == 5
    assert "what is embedded has to stay below 2,147,483,647" in done.err
    assert "Set embed = false for the target" in done.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("memory-address", "initialiser 'address' is an address in the compiler's memory, not data"),
        ("foreign-source", "is from OpenVINOExecutionProvider, expected StubExecutionProvider"),
        ("missing-payload", "'not_there.bin', which is not there"),
        ("empty-payload", "which is empty"),
        ("escape", "leads out of its folder"),
        ("absolute", "by an absolute path"),
        ("wrong-shape", "has size 6 in place of 5 on axis 1"),
        ("path-in-binary", "holds the path of the folder"),
    ],
)
def test_case_15_a_result_that_breaks_a_rule_is_not_published(
    factory: Factory, tmp_path: Path, mode: str, words: str
) -> None:
    tree = factory.project(STUB_TARGET + f'provider-options = {{ mode = "{mode}" }}\n')
    done = epctx("build", "--out", tmp_path / "out", cwd=tree.root, check=False)
    assert done.code == 5
    assert words in done.err
    assert not (tmp_path / "out").exists()
    assert epctx("plan", "--json", cwd=tree.root).json["variants"][0]["status"] == "miss"


# -- Case 16: metadata -----------------------------------------------------------------------------------------------

READ = """
import json, sys
from hatch_epctx import runtime

session = runtime.open(sys.argv[1]).session("detector", fallback="error")
meta = session.get_modelmeta()
print(json.dumps({"custom": meta.custom_metadata_map, "description": meta.description, "version": meta.version,
                  "domain": meta.domain, "producer": meta.producer_name}))
"""


@pytest.mark.parametrize(("key", "target"), EITHER)
def test_case_16_metadata_survives_to_the_session(factory: Factory, tmp_path: Path, key: str, target: str) -> None:
    tree = factory.project(target)
    model = small_model()
    model.metadata_props.add(key="labels", value="cat,dog")
    model.doc_string, model.domain, model.model_version = "finds cats", "acme.vision", 7
    model.producer_name = "acme-trainer"
    model.graph.input[0].doc_string = "RGB, 0 to 1"
    model.graph.output[0].doc_string = "scores"
    save(model, tree.root / "models/detector.onnx")
    (variant,) = epctx("build", "--out", tmp_path / "out", "--json", "-q", cwd=tree.root).json["variants"]
    assert variant["facts"]["metadata_lost"] == []
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "out")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["custom"]["labels"] == "cat,dog"
    assert {key: found[key] for key in ("description", "version", "domain", "producer")} == {
        "description": "finds cats",
        "version": 7,
        "domain": "acme.vision",
        "producer": "acme-trainer",
    }
    (path,) = (tmp_path / "out").glob("*_ctx.onnx")
    shipped = onnx.load(path, load_external_data=False)
    assert (shipped.graph.input[0].doc_string, shipped.graph.output[0].doc_string) == ("RGB, 0 to 1", "scores")


def test_a_file_that_nothing_refers_to_is_said_and_not_kept(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(STUB_TARGET + 'provider-options = { mode = "orphan" }\n')
    done = epctx("build", "--out", tmp_path / "out", "--json", cwd=tree.root)
    assert "warning: the compile wrote model_ctx_orphan.bin, which nothing refers to; it is not kept" in done.err
    assert [item["role"] for item in done.json["variants"][0]["artifacts"]] == ["model", "context"]


def test_case_16_metadata_that_is_lost_is_said(factory: Factory) -> None:
    tree = factory.project(STUB_TARGET + 'provider-options = { mode = "lost-metadata" }\n')
    model = small_model()
    model.metadata_props.add(key="labels", value="cat,dog")
    save(model, tree.root / "models/detector.onnx")
    done = epctx("build", "--json", cwd=tree.root)
    assert "warning: metadata lost by the compile: metadata_props.labels" in done.err
    assert done.json["variants"][0]["facts"]["metadata_lost"] == ["metadata_props.labels"]


# -- Case 20: a compiled model as the source -------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "target"), EITHER)
def test_a_compiled_model_is_refused_as_a_source(factory: Factory, tmp_path: Path, key: str, target: str) -> None:
    tree = factory.project(target)
    epctx("build", "--out", tmp_path / "out", "-q", cwd=tree.root)
    (path,) = (tmp_path / "out").glob("*_ctx.onnx")
    for other, again in (("same", target), ("other", OPENVINO_TARGET if key == "qnn" else QNN_ONE)):
        second = factory.project(again, name=other)
        for file in (tmp_path / "out").iterdir():
            (second.root / "models" / file.name).write_bytes(file.read_bytes())
        (second.root / "models/detector.onnx").write_bytes(path.read_bytes())
        done = epctx("build", cwd=second.root, check=False)
        assert done.code == 3
        assert "is compiled already: it holds EPContext nodes of " in done.err
        assert "Name the" in done.err


def test_an_epcontext_node_deep_inside_counts_too(factory: Factory) -> None:
    tree = factory.project(STUB_TARGET)
    inner = helper.make_graph(
        [helper.make_node("EPContext", ["x"], ["z"], domain="com.microsoft", source="QNN", embed_mode=1)],
        "then",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1])],
    )
    model = small_model()
    node = helper.make_node("If", ["c"], ["branch"], name="if", then_branch=inner, else_branch=inner)
    model.graph.node.append(node)
    model.graph.initializer.append(helper.make_tensor("c", TensorProto.BOOL, [], [True]))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    (tree.root / "models/detector.onnx").write_bytes(model.SerializeToString())
    done = epctx("build", cwd=tree.root, check=False)
    assert done.code == 3
    assert "compiled already" in done.err


# -- Validation is the same for a real model -------------------------------------------------------------------------


@pytest.mark.ep_qnn
def test_a_real_partial_model_keeps_all_rules(factory: Factory, tmp_path: Path) -> None:
    model = MODELS["rawi"]
    source = model.path()
    if source is None:
        pytest.skip(f"{model.distribution} is not installed")
    tree = factory.project(QNN_ONE)
    (tree.root / "models/detector.onnx").write_bytes(source.read_bytes())
    dims = ", ".join(f"{name} = {size}" for name, size in model.free_dimensions.items())
    text = f'[tool.epctx.models.detector]\nsource = "models/detector.onnx"\nfree-dimensions = {{ {dims} }}\n'
    tree.write(f"{text}check = {{ ranges = {{ input = [1, 30] }}, atol = 0.5 }}\n{QNN_ONE}")
    done = epctx("build", "--out", tmp_path / "out", "--json", "-q", cwd=tree.root)
    row: dict[str, Any] = done.json["variants"][0]
    assert row["facts"]["nodes_left"] == 5
    assert row["check"]["outcome"] == "passed"
