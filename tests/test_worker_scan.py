"""Task scan: the facts of an ONNX file, and files that are none or mean harm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from support import save, small_model
from worker_support import put, refused, result_of, run

if TYPE_CHECKING:
    from pathlib import Path

from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.rewriting import restore_metadata
from hatch_epctx.worker.scanning import facts, read_source


def external(name: str, location: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="length", value="8")
    return tensor


def sparse(name: str, values: str, indices: str) -> onnx.SparseTensorProto:
    index = external(f"{name}_indices", indices)
    index.data_type = TensorProto.INT64
    return onnx.SparseTensorProto(values=external(name, values), indices=index, dims=[4])


def everywhere() -> ModelProto:
    """A model with external data in every place that can hold a tensor."""
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["k"], value=external("t", "in-branch-attribute.bin"))],
        "inner",
        [],
        [helper.make_tensor_value_info("k", TensorProto.FLOAT, [2])],
        [external("b", "sub/in-branch.bin")],
    )
    function = helper.make_function(
        "local",
        "F",
        ["a"],
        ["b"],
        [
            helper.make_node("Constant", [], ["c"], value=external("c", "in-function.bin")),
            helper.make_node("Add", ["a", "c"], ["b"]),
        ],
        [helper.make_opsetid("", 17)],
        attribute_protos=[helper.make_attribute("w", external("w", "in-function-default.bin"))],
    )
    nodes = [
        helper.make_node("If", ["x"], ["i"], then_branch=inner, else_branch=inner),
        helper.make_node("F", ["i"], ["f"], domain="local"),
        helper.make_node("Constant", [], ["s"], sparse_value=sparse("sv", "sparse-attribute.bin", "sparse-index.bin")),
    ]
    graph = helper.make_graph(
        nodes,
        "main",
        [helper.make_tensor_value_info("x", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("f", TensorProto.FLOAT, [2])],
        [external("m", "./main.bin"), external("m2", "a/../main.bin")],
        sparse_initializer=[sparse("s", "sparse.bin", "sparse.bin")],
    )
    model = helper.make_model(graph, functions=[function], opset_imports=[helper.make_opsetid("", 17)])
    training = model.training_info.add()
    training.algorithm.initializer.add().CopyFrom(external("g", "training.bin"))
    tensors = onnx.AttributeProto(name="list", type=onnx.AttributeProto.TENSORS, tensors=[external("l", "in-list.bin")])
    model.graph.node[1].attribute.append(tensors)
    return model


def test_external_data_is_found_everywhere() -> None:
    assert facts(everywhere())["external_data"] == [
        "in-branch-attribute.bin",
        "in-function-default.bin",
        "in-function.bin",
        "in-list.bin",
        "main.bin",
        "sparse-attribute.bin",
        "sparse-index.bin",
        "sparse.bin",
        "sub/in-branch.bin",
        "training.bin",
    ]


def test_the_facts_of_a_model(tmp_path: Path) -> None:
    model = small_model(batch="batch", weights="kernel.bin")
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    folder = put(small_model(), tmp_path / "job")
    save(model, folder / "model.onnx")
    result = result_of(run({}, folder, task="scan"))
    assert result["scan"] == {
        "inputs": [{"name": "x", "type": "float", "shape": ["batch", 3, 8, 8]}],
        "outputs": [{"name": "y", "type": "float", "shape": ["batch", 5]}],
        "external_data": ["kernel.bin"],
        "nodes": 5,
        "opsets": {"": 17},
        "denotations": ["DATA_BATCH"],
        "context_sources": [],
        "embedded_size": result["scan"]["embedded_size"],
    }
    assert 80 < result["scan"]["embedded_size"] < 200
    (folder / "kernel.bin").unlink(missing_ok=True)
    assert result_of(run({}, folder, task="scan"))["scan"] == result["scan"], "external data is not read"


def test_shapes_of_every_kind() -> None:
    model = small_model()
    shapes: list[Any] = [None, [], [0, 5], ["n", None, -1]]
    for index, shape in enumerate(shapes):
        given = None if shape is None else [None if dim == -1 else dim for dim in shape]
        model.graph.input.append(helper.make_tensor_value_info(f"i{index}", TensorProto.FLOAT16, given))
    # Some exporters write -1 for any size, as a number.
    model.graph.input[-1].type.tensor_type.shape.dim[2].dim_value = -1
    model.graph.output.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None))
    sparse_type = helper.make_sparse_tensor_type_proto(TensorProto.INT8, [3])
    model.graph.output.append(helper.make_value_info("sp", sparse_type))
    model.graph.output.append(onnx.ValueInfoProto(name="untyped"))
    found = facts(model)
    assert [value["shape"] for value in found["inputs"][1:]] == [None, [], [0, 5], ["n", None, None]]
    assert {value["type"] for value in found["inputs"][1:]} == {"float16"}
    assert [(value["type"], value["shape"]) for value in found["outputs"][1:]] == [
        ("sequence", None),
        ("int8", [3]),
        ("undefined", None),
    ]


def test_initialisers_that_old_models_list_as_inputs_are_no_inputs() -> None:
    model = small_model()
    model.graph.input.append(helper.make_tensor_value_info("kernel", TensorProto.FLOAT, [4, 3, 3, 3]))
    assert [value["name"] for value in facts(model)["inputs"]] == ["x"]


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("../w.bin", "leads out"),
        ("a/../../w.bin", "leads out"),
        ("/etc/passwd", "is absolute"),
        ("C:/w.bin", "drive"),
        ("a\\b", "backslash"),
        ("", "names no file"),
        (".", "names no file"),
        ("w\x00.bin", "control"),
        ("w" * 300, "longer"),
    ],
)
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str, words: str) -> None:
    model = small_model()
    model.graph.initializer.append(external("evil", location))
    with pytest.raises(TaskError, match=re.escape(words)) as caught:
        read_source(save_raw(model, tmp_path))
    assert caught.value.reason == "external-data-escape"
    assert "'evil'" in caught.value.error


@pytest.mark.parametrize(
    "location", ["model.onnx", "MODEL.onnx", "job.json", "worker.log", "model_ctx.bin", "model_ctx/x", "option-data"]
)
def test_names_that_a_job_needs_itself_are_refused(tmp_path: Path, location: str) -> None:
    model = small_model()
    model.graph.initializer.append(external("clash", location))
    with pytest.raises(TaskError, match="a name that compiling needs") as caught:
        read_source(save_raw(model, tmp_path))
    assert caught.value.reason == "invalid-model"


def save_raw(model: ModelProto, tmp_path: Path) -> Path:
    """Without onnx.save, which refuses what these tests need."""
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def nested(depth: int) -> bytes:
    """A model whose graphs are nested `depth` deep, written by hand: protobuf itself refuses to build it."""

    def field(number: int, body: bytes) -> bytes:
        size, length = len(body), b""
        while size > 127:
            length += bytes([size & 127 | 128])
            size >>= 7
        return bytes([number << 3 | 2]) + length + bytes([size]) + body

    graph = b""
    for _ in range(depth):
        attribute = field(6, graph)  # AttributeProto.g
        node = field(5, attribute)  # NodeProto.attribute
        graph = field(1, node)  # GraphProto.node
    return field(7, graph) + field(8, b"")  # ModelProto.graph, opset_import


def hostile() -> list[Any]:
    good = small_model().SerializeToString()
    no_graph = ModelProto(ir_version=9)
    no_graph.opset_import.add(domain="", version=17)
    no_opset = ModelProto(ir_version=9, graph=small_model().graph)
    no_node = small_model()
    del no_node.graph.node[:]
    strange = small_model()
    strange.graph.input[0].type.tensor_type.elem_type = 4711
    return [
        pytest.param(b"", id="empty"),
        pytest.param(good[: len(good) // 2], id="truncated"),
        pytest.param(good[:-1], id="one byte short"),
        pytest.param(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n", id="git-lfs pointer"),
        pytest.param(b'{"graph": {}}', id="json"),
        pytest.param(bytes(range(256)) * 64, id="garbage"),
        pytest.param(b"\xff" * 100_000, id="endless varint"),
        pytest.param(b"\x0a\xff\xff\xff\xff\x07", id="length beyond the file"),
        pytest.param(b"\x3a\x00", id="no operator set"),
        pytest.param(nested(2000), id="nested graphs"),
        pytest.param(no_graph.SerializeToString(), id="no graph"),
        pytest.param(no_opset.SerializeToString(), id="no opset"),
        pytest.param(no_node.SerializeToString(), id="no node"),
        pytest.param(strange.SerializeToString(), id="unknown element type"),
    ]


@pytest.mark.parametrize("data", hostile())
def test_what_is_no_onnx_model_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    with pytest.raises(TaskError) as caught:
        read_source(path)
    assert caught.value.reason == "invalid-model"
    assert "\n" not in caught.value.error


@pytest.mark.parametrize("field", ["input", "node", "initialiser", "operator", "domain", "dim", "opset", "attribute"])
def test_a_name_that_is_no_utf8_is_refused(tmp_path: Path, field: str) -> None:
    """Found by fuzzing: protobuf gives such a name as bytes, and a result could not be written."""
    model = small_model(channels=1, size=2, batch="n")
    graph = model.graph
    named = {"input": graph.input[0], "node": graph.node[0], "initialiser": graph.initializer[0]}
    if field in named:
        named[field].name = "QQQQ"
    elif field == "operator":
        graph.node[0].op_type = "QQQQ"
    elif field == "domain":
        graph.node[0].domain = "QQQQ"
    elif field == "dim":
        graph.input[0].type.tensor_type.shape.dim[0].dim_param = "QQQQ"
    elif field == "opset":
        model.opset_import.add(domain="QQQQ", version=1)
    else:
        graph.node[0].attribute[0].name = "QQQQ"
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(b"QQQQ", b"\xff\xfe\xfdx"))
    with pytest.raises(TaskError, match="no UTF-8") as caught:
        read_source(path)
    assert caught.value.reason == "invalid-model"


def test_protobufs_implementation_in_python_refuses_such_names_in_our_words(tmp_path: Path) -> None:
    """Packages that a process imports may choose it; its error is another."""
    model = small_model(channels=1, size=2)
    model.graph.input[0].name = "QQQQ"
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(b"QQQQ", b"\xff\xfe\xfdx"))
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from google.protobuf.internal import api_implementation\n"
        "from hatch_epctx.worker.failure import TaskError\n"
        "from hatch_epctx.worker.scanning import read_source\n"
        "assert api_implementation.Type() == 'python'\n"
        "try:\n"
        "    read_source(Path(sys.argv[1]))\n"
        "except TaskError as error:\n"
        "    print(error.reason, error)\n"
    )
    environ = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("invalid-model ")
    assert "cannot be parsed" in done.stdout


def test_text_that_only_describes_may_be_anything(tmp_path: Path) -> None:
    """Old exporters wrote Latin-1 there. It is shown as well as may be, and said to be lost where it cannot be kept."""
    model = small_model(channels=1, size=2)
    model.doc_string = model.producer_name = model.graph.doc_string = model.graph.input[0].doc_string = "QQQQ"
    model.metadata_props.add(key="author", value="QQQQ")
    model.metadata_props.add(key="licence", value="MIT")
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString().replace(b"QQQQ", b"J\xfcrg"))
    source = read_source(path).model
    compiled = small_model(channels=1, size=2)
    compiled.ClearField("producer_name")
    assert restore_metadata(source, compiled) == [
        "producer_name",
        "doc_string",
        "metadata_props.author",
        "graph.doc_string",
        "inputs.x.doc_string",
    ]
    assert {entry.key: entry.value for entry in compiled.metadata_props} == {"licence": "MIT"}
    extra = result_of(run({}, tmp_path, task="inspect", model="model.onnx"))["extra"]
    assert (extra["producer"], extra["metadata"]["author"]) == ("J\ufffdrg", "J\ufffdrg")


def test_a_worker_refuses_garbage_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\x08\x09\x3a\x05hello")
    result = refused({}, tmp_path, task="scan")
    assert result["reason"] == "invalid-model"
    assert "written and copied whole" in result["remedy"]


def test_a_file_beyond_two_gigabytes_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "model.onnx", "wb") as stream:
        stream.truncate(1 << 31)  # sparse: takes no space
    result = refused({}, tmp_path, task="scan")
    assert result["reason"] == "too-large"
    assert "2,147,483,648 bytes" in result["error"]
    assert "external data" in result["remedy"]


@pytest.mark.parametrize("kind", ["missing", "folder", "link"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.onnx"
    if kind == "folder":
        path.mkdir()
    if kind == "link":
        path.symlink_to(save(small_model(), tmp_path / "elsewhere.onnx"))
    assert refused({}, tmp_path, task="scan")["reason"] == "invalid-model"


def with_context_in_a_branch() -> ModelProto:
    model = everywhere()
    branch = model.graph.node[0].attribute[0].g
    branch.node.append(
        helper.make_node("EPContext", [], ["z"], domain="com.microsoft", source="QNNExecutionProvider", embed_mode=0)
    )
    return model


def test_a_compiled_model_is_refused_as_a_source(tmp_path: Path) -> None:
    save_raw(with_context_in_a_branch(), tmp_path)
    result = refused({}, tmp_path, task="scan")
    assert result["reason"] == "compiled-source"
    assert "EPContext nodes of QNNExecutionProvider" in result["error"]
    assert "compiled from" in result["remedy"]


def test_an_inspection_may_look_at_a_compiled_model(tmp_path: Path) -> None:
    save_raw(with_context_in_a_branch(), tmp_path)
    result = result_of(run({}, tmp_path, task="inspect", model="model.onnx"))
    assert result["scan"]["context_sources"] == ["QNNExecutionProvider"]


def test_training_graphs_and_functions_do_not_count_as_nodes() -> None:
    # The main graph's three nodes and one in each branch.
    assert facts(everywhere())["nodes"] == 5


def test_an_embedded_tensor_counts_where_it_stands() -> None:
    model = small_model()
    before = facts(model)["embedded_size"]
    tensor = numpy_helper.from_array(np.zeros(1000, np.float32), "z")
    model.graph.node[0].attribute.append(helper.make_attribute("extra", tensor))
    assert 4000 <= facts(model)["embedded_size"] - before < 4100
