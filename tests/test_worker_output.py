"""What becomes of a compile's output: the rules it has to keep, content-addressed names, metadata.

The outputs that break a rule are made by the stub EP; what real EPs write is in test_worker_eps.
"""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from support import save, small_model
from worker_support import STUB, compiled, contents, keep_artifacts, put, refused, result_of, run, stub

from hatch_epctx.worker import graphs
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.rewriting import ContentNames, normalise_locations, rename_references, restore_metadata
from hatch_epctx.worker.scanning import facts
from hatch_epctx.worker.shapes import shape_fault
from hatch_epctx.worker.validating import check_interface, check_nodes

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return put(small_model(), tmp_path / "job")


def content_name(data: bytes) -> str:
    return f"sha256-{hashlib.sha256(data).hexdigest()[:32]}.bin"


# -- A whole result --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("embed", [False, True])
def test_artifacts_have_content_addressed_names(folder: Path, embed: bool) -> None:
    result = compiled(stub(), folder, embed=embed)
    roles = [artifact["role"] for artifact in result["artifacts"]]
    assert roles == (["model"] if embed else ["model", "context"])
    for artifact in result["artifacts"]:
        data = (folder / artifact["path"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (artifact["size"], artifact["digest"])
        assert artifact["path"] in ("model_ctx.onnx", content_name(data))
    (node,) = graphs.context_nodes(onnx.load(folder / "model_ctx.onnx"))
    reference = graphs.attribute_text(node, "ep_cache_context")
    assert embed or reference == result["artifacts"][1]["path"]
    assert not (folder / "model_ctx_stub.bin").exists()
    assert (result["context_nodes"], result["nodes_left"]) == (1, 0)
    assert result["compatibility"] == "stub:cpu"
    assert result["inputs"] == [{"name": "x", "type": "float", "shape": [1, 3, 8, 8]}]
    keep_artifacts(folder, result)
    assert result_of(run(stub(), folder, task="load", model="model_ctx.onnx"))["ok"]


def test_nodes_left_are_counted(folder: Path) -> None:
    result = compiled(stub("partial"), folder)
    assert (result["context_nodes"], result["nodes_left"]) == (1, 1)


def test_files_that_nothing_refers_to_are_no_artifacts(folder: Path) -> None:
    result = compiled(stub("orphan"), folder)
    assert (folder / "orphan.bin").exists()
    assert result["unreferenced"] == ["model_ctx_orphan.bin"]
    assert [artifact["role"] for artifact in result["artifacts"]] == ["model", "context"]


def test_two_runs_agree_and_two_random_runs_do_not(tmp_path: Path) -> None:
    first, second = (put(small_model(), tmp_path / name) for name in ("a", "a longer name"))
    assert contents(first, compiled(stub(), first)) == contents(second, compiled(stub(), second))
    assert contents(first, compiled(stub("random"), first)) != contents(second, compiled(stub("random"), second))


@pytest.mark.parametrize(
    ("mode", "reason", "words"),
    [
        ("fail", "ep-error", "the stub fails as it was told"),
        ("no-node", "no-node", "took no node"),
        ("no-context", "no-node", "compiled no node"),
        ("no-output", "invalid-output", "wrote no model"),
        ("old-output", "invalid-output", "wrote no model"),
        ("garbage", "invalid-output", "is no ONNX model"),
        ("empty-payload", "invalid-output", "'model_ctx_stub.bin', which is empty"),
        ("missing-payload", "invalid-output", "'not_there.bin', which is not there"),
        ("link-payload", "invalid-output", "'model_ctx_stub.bin', which is no regular file"),
        ("foreign-source", "invalid-output", "is from OpenVINOExecutionProvider, expected StubExecutionProvider"),
        ("escape", "invalid-output", "'../escaped.bin' leads out of its folder"),
        ("absolute", "invalid-output", "refers to 'model_ctx_stub.bin' by an absolute path"),
        ("memory-address", "invalid-output", "an address in the compiler's memory"),
        ("wrong-input", "invalid-output", "has the inputs 'x_renamed', expected 'x' in this order"),
        ("wrong-type", "invalid-output", "output 'y' of the compiled model has element type double in place of float"),
        ("wrong-shape", "invalid-output", "output 'y' of the compiled model has size 6 in place of 5 on axis 1"),
        ("lost-shape", "invalid-output", "output 'y' of the compiled model has no size in place of 5 on axis 1"),
        ("path-inside", "invalid-output", "holds the path of the folder"),
        ("path-in-binary", "invalid-output", "a context binary holds the path of the folder"),
        ("python-path", "invalid-output", "holds a path of this machine, below a folder "),
        ("no-primary", "invalid-output", "none of the EPContext nodes has a payload"),
        ("two-sources", "invalid-output", "is from CPUExecutionProvider, expected StubExecutionProvider"),
    ],
)
def test_an_output_that_breaks_a_rule_is_refused(folder: Path, mode: str, reason: str, words: str) -> None:
    result = refused(stub(mode), folder)
    assert result["reason"] == reason
    assert words in result["error"]


def test_what_was_to_be_embedded_and_is_not_is_refused(folder: Path) -> None:
    assert "although it was to be embedded" in refused(stub("not-embedded"), folder, embed=True)["error"]


def test_a_path_that_the_source_had_is_not_the_compiles_doing(tmp_path: Path) -> None:
    model = small_model()
    model.metadata_props.add(key="made-by", value=f"{sys.prefix}/lib/exporter.py")
    assert compiled(stub(), put(model, tmp_path / "job"))["ok"]


def test_metadata_that_says_something_else_is_reported(tmp_path: Path) -> None:
    model = small_model()
    model.metadata_props.add(key="labels", value="cat,dog")
    result = compiled(stub("lost-metadata"), put(model, tmp_path / "job"))
    assert result["metadata_lost"] == ["metadata_props.labels"]


def test_an_empty_embedded_payload_is_refused(folder: Path) -> None:
    assert "empty embedded payload" in refused(stub("empty-payload"), folder, embed=True)["error"]


def test_further_spellings_of_a_source_may_be_accepted(folder: Path) -> None:
    sources = ["StubExecutionProvider", "OpenVINOExecutionProvider"]
    assert compiled(stub("foreign-source"), folder, sources=sources)["context_nodes"] == 1


@pytest.mark.parametrize("mode", ["load-fail", "load-fallback", "run-fail"])
def test_a_load_that_fails_says_why(folder: Path, mode: str) -> None:
    keep_artifacts(folder, compiled(stub(mode), folder))
    result = refused(stub(mode), folder, task="load", model="model_ctx.onnx")
    assert result["reason"] == {"load-fail": "load-failed", "load-fallback": "fallback", "run-fail": "run-failed"}[mode]


def test_a_load_that_crashes_has_a_cause(folder: Path) -> None:
    keep_artifacts(folder, compiled(stub("load-crash"), folder))
    outcome = run(stub("load-crash"), folder, task="load", model="model_ctx.onnx")
    assert (outcome.cause, outcome.signal) == ("signal", "SIGSEGV")


# -- Before the EP sees the model ------------------------------------------------------------------------------------


def test_free_dimensions_become_sizes(tmp_path: Path) -> None:
    folder = put(small_model(batch="batch"), tmp_path / "job")
    result = compiled(stub(), folder, free_dimensions={"batch": 2})
    assert result["inputs"][0]["shape"] == [2, 3, 8, 8]


@pytest.mark.parametrize(
    ("fields", "error", "remedy"),
    [
        (
            {"free_dimensions": {"batsh": 1}},
            "no input of the model has the dim 'batsh'; it has 'batch'",
            "Did you mean 'batch'? Correct or remove 'batsh' in free-dimensions.",
        ),
        (
            {"free_dimension_denotations": {"DATA_BACH": 1}},
            "no input of the model has the denotation 'DATA_BACH'; it has 'DATA_BATCH'",
            "Did you mean 'DATA_BATCH'? Correct or remove 'DATA_BACH' in free-dimension-denotations.",
        ),
    ],
)
def test_unknown_dimensions_are_refused(tmp_path: Path, fields: dict[str, Any], error: str, remedy: str) -> None:
    model = small_model(batch="batch")
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    result = refused(stub(), put(model, tmp_path / "job"), **fields)
    assert (result["reason"], result["error"], result["remedy"]) == ("unknown-dimension", error, remedy)


def test_a_model_without_names_says_so(folder: Path) -> None:
    result = refused(stub(), folder, free_dimensions={"batch": 1})
    assert result["error"].endswith("its inputs have no dim with a name")


def dynamic_model() -> ModelProto:
    model = small_model(batch="batch")
    shape: list[Any] = ["batch", "seq.len", None]
    model.graph.input.append(helper.make_tensor_value_info("ids", TensorProto.INT64, shape))
    model.graph.input.append(helper.make_tensor_value_info("any", TensorProto.FLOAT, None))
    return model


def test_dynamic_shapes_are_named_with_the_line_to_write(tmp_path: Path) -> None:
    folder = put(dynamic_model(), tmp_path / "job")
    result = refused(stub(), folder, needs_static_shapes=True)
    assert result["reason"] == "dynamic-shape"
    assert result["error"] == (
        "StubExecutionProvider needs static shapes; input 'x' keeps dynamic dims: 'batch' (axis 0); input 'ids' keeps"
        " dynamic dims: 'batch' (axis 0), 'seq.len' (axis 1), axis 2 (no name); input 'any' has no known rank"
    )
    assert result["remedy"] == (
        "Write under the model: free-dimensions = { batch = 1 } and input-shapes = { ids = [1, 1, 1], any = [1, 3, "
        "224, 224] } (with the sizes you need in place of 1)."
    )


def test_the_line_to_write_keeps_what_is_written_already(tmp_path: Path) -> None:
    folder = put(dynamic_model(), tmp_path / "job")
    result = refused(stub(), folder, needs_static_shapes=True, free_dimensions={"batch": 4})
    assert "'batch'" not in result["error"]
    assert "input-shapes = { ids = [4, 1, 1], any" in result["remedy"]


def test_denotations_make_shapes_static_too(tmp_path: Path) -> None:
    model = small_model(batch="batch")
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    folder = put(model, tmp_path / "job")
    job: dict[str, Any] = {"needs_static_shapes": True, "free_dimension_denotations": {"DATA_BATCH": 1}}
    assert compiled(stub(), folder, **job)["ok"]


def test_dynamic_shapes_are_fine_where_the_ep_takes_them(tmp_path: Path) -> None:
    assert compiled(stub(), put(dynamic_model(), tmp_path / "job"))["ok"]


def test_embedding_beyond_two_gigabytes_is_refused_before_the_compile(tmp_path: Path) -> None:
    model = small_model()
    tensor = TensorProto(name="huge", data_type=TensorProto.FLOAT, dims=[1 << 29], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="huge.bin")
    model.graph.initializer.append(tensor)
    folder = put(small_model(), tmp_path / "job")
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with open(folder / "huge.bin", "wb") as stream:
        stream.truncate(1 << 31)
    result = refused(stub("crash-before"), folder, embed=True)
    assert result["reason"] == "too-large"
    assert "embed = false" in result["remedy"]


def test_a_compiled_source_is_refused_by_every_task(folder: Path) -> None:
    compiled(stub(), folder)
    (folder / "model_ctx.onnx").rename(folder / "model.onnx")
    for task in ("scan", "compile", "source"):
        assert refused(stub(), folder, task=task)["reason"] == "compiled-source"


def test_contained_locations_with_dots_are_made_plain() -> None:
    model = small_model(weights="a/../kernel.bin")
    assert normalise_locations(model)
    assert facts(model)["external_data"] == ["kernel.bin"]
    assert graphs.external_entries(model.graph.initializer[0])["location"] == "kernel.bin"  # type: ignore[index]
    assert not normalise_locations(model)


# -- The source model as a variant -----------------------------------------------------------------------------------


def test_a_source_gets_content_addressed_external_data(tmp_path: Path) -> None:
    model = small_model(weights="sub/kernel.bin")
    folder = tmp_path / "job"
    (folder / "sub").mkdir(parents=True)
    save(model, folder / "model.onnx")
    data = (folder / "sub" / "kernel.bin").read_bytes()
    result = result_of(run(STUB, folder, task="source"))
    assert [(item["role"], item["path"]) for item in result["artifacts"]] == [
        ("model", "model_src.onnx"),
        ("weights", content_name(data)),
    ]
    assert (result["context_nodes"], result["nodes_left"], result["compatibility"]) == (0, 5, "")
    keep_artifacts(folder, result)
    onnx.checker.check_model(folder / "model_src.onnx")
    kept = onnx.load(folder / "model_src.onnx")
    assert kept.graph.initializer[0].raw_data == data


def test_a_source_without_its_external_data_is_refused(tmp_path: Path) -> None:
    folder = put(small_model(), tmp_path / "job")
    model = small_model(weights="kernel.bin")
    save(model, folder / "model.onnx")
    (folder / "kernel.bin").unlink()
    assert "refers to 'kernel.bin', which is not there" in refused(STUB, folder, task="source")["error"]


# -- References wherever they hide -----------------------------------------------------------------------------------


def context(reference: bytes | None, **attributes: Any) -> onnx.NodeProto:
    given = {"embed_mode": 0, "source": "E", **attributes}
    if reference is not None:
        given["ep_cache_context"] = reference
    return helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **given)


def hidden_references() -> ModelProto:
    """EPContext nodes in the main graph, a branch of a branch and a function; one without, one that is secondary."""
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    deepest = helper.make_graph([context(b"two.bin")], "deepest", [], [value])
    outer = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=deepest, else_branch=deepest)], "outer", [], [value]
    )
    function = helper.make_function(
        "local", "F", ["x"], ["y"], [context(b"./three.bin")], [helper.make_opsetid("com.microsoft", 1)]
    )
    nodes = [
        context(b"one.bin", main_context=1),
        context(None, main_context=0),
        context(b"one.bin", main_context=0),
        context(b"embedded bytes", embed_mode=1),
        helper.make_node("If", ["c"], ["z"], then_branch=outer, else_branch=outer),
    ]
    graph = helper.make_graph(nodes, "main", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])], [value])
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights.data")
    tensor.external_data.add(key="offset", value="4096")
    graph.initializer.append(tensor)
    return helper.make_model(graph, functions=[function])


def test_references_are_rewritten_wherever_they_hide(tmp_path: Path) -> None:
    files = {"one.bin": b"1", "two.bin": b"2", "three.bin": b"1", "weights.data": b"w"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    model = hidden_references()
    assert check_nodes(model, ["E"]) == 9
    artifacts = rename_references(model, ContentNames(tmp_path))
    one, two, weights = content_name(b"1"), content_name(b"2"), content_name(b"w")
    found = [graphs.attribute_text(node, "ep_cache_context") for node in graphs.context_nodes(model)]
    assert found.count(one) == 3, "one.bin twice, and three.bin, which has the same content"
    assert found.count(two) == 4
    assert found.count(None) == found.count("embedded bytes") == 1
    entries = graphs.external_entries(model.graph.initializer[0])
    assert entries == {"location": weights, "offset": "4096"}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([one, two, weights])
    assert {item["path"]: item["role"] for item in artifacts} == {
        one: "context",
        two: "context",
        weights: "weights",
    }


def test_files_that_the_source_needs_are_copied(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"w")
    names = ContentNames(tmp_path, keep=["w.bin"])
    assert names.name("./w.bin", "weights")["path"] == content_name(b"w")
    assert (tmp_path / "w.bin").exists()


def test_a_primary_node_without_a_payload_is_refused() -> None:
    model = helper.make_model(helper.make_graph([context(None)], "g", [], []))
    with pytest.raises(TaskError, match="no reference to a context binary"):
        check_nodes(model, ["E"])


# -- Interfaces and shapes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "sizes", "fault"),
    [
        ([1, 3], [1, 3], {}, ""),
        ([1, 3], [1, 4], {}, "has size 4 in place of 3 on axis 1"),
        (["n", 3], [7, 3], {}, ""),
        (["n", 3], [7, 3], {"n": 7}, ""),
        (["n", 3], [6, 3], {"n": 7}, "has size 6 in place of 7 on axis 0"),
        (["n", 3], ["n", 3], {"n": 7}, ""),
        ([None, 3], [2, None], {}, "has no size in place of 3 on axis 1"),
        (None, [1], {}, ""),
        ([1], None, {}, ""),
        ([1, 1], [1], {}, "has rank 1 in place of 2"),
        ([], [], {}, ""),
    ],
)
def test_shapes_that_fit(before: Any, after: Any, sizes: dict[str, int], fault: str) -> None:
    value = {"name": "x", "type": "float"}
    assert shape_fault({**value, "shape": before}, {**value, "shape": after}, sizes) == fault  # type: ignore[typeddict-item]


def test_inputs_keep_their_order() -> None:
    model = small_model()
    model.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [1]))
    swapped = ModelProto()
    swapped.CopyFrom(model)
    del swapped.graph.input[:]
    swapped.graph.input.extend(reversed(model.graph.input))
    check_interface(model, facts(model), {})
    with pytest.raises(TaskError, match="has the inputs 'b', 'x', expected 'x', 'b' in this order"):
        check_interface(swapped, facts(model), {})


# -- Metadata --------------------------------------------------------------------------------------------------------


def test_dropped_metadata_is_put_back_and_a_loss_is_told() -> None:
    source, output = small_model(), small_model()
    source.doc_string, source.domain, source.model_version, source.producer_name = "what", "ai.acme", 7, "trainer"
    source.graph.doc_string = "graph"
    source.graph.input[0].doc_string = "an image"
    source.graph.input[0].metadata_props.add(key="range", value="0..1")
    for key, value in (("labels", "cat,dog"), ("shared", "mine")):
        source.metadata_props.add(key=key, value=value)
    output.producer_name = ""
    output.metadata_props.add(key="shared", value="theirs")
    assert restore_metadata(source, output) == ["metadata_props.shared"]
    assert (output.doc_string, output.domain, output.model_version) == ("what", "ai.acme", 7)
    assert (output.producer_name, output.graph.doc_string) == ("trainer", "graph")
    assert output.graph.input[0].doc_string == "an image"
    assert output.graph.input[0].metadata_props[0].value == "0..1"
    assert {entry.key: entry.value for entry in output.metadata_props} == {"shared": "theirs", "labels": "cat,dog"}
    assert restore_metadata(source, output) == ["metadata_props.shared"]
    assert len(output.metadata_props) == 2


def test_metadata_survives_a_compile(tmp_path: Path) -> None:
    model = small_model()
    model.metadata_props.add(key="labels", value="cat,dog")
    model.graph.output[0].doc_string = "scores"
    folder = put(model, tmp_path / "job")
    assert compiled(stub(), folder)["metadata_lost"] == []
    output = onnx.load(folder / "model_ctx.onnx")
    assert output.graph.output[0].doc_string == "scores"
    assert ("labels", "cat,dog") in {(entry.key, entry.value) for entry in output.metadata_props}


def test_old_models_that_list_initialisers_as_inputs_compile(tmp_path: Path) -> None:
    model = small_model()
    model.ir_version = 3
    kernel = numpy_helper.to_array(model.graph.initializer[0])
    for tensor in model.graph.initializer:
        dims = list(tensor.dims)
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, dims))
    assert kernel.size
    folder = put(model, tmp_path / "job")
    assert [value["name"] for value in compiled(stub(), folder)["inputs"]] == ["x"]
