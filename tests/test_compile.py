"""One compile: what the worker is given, what is left in its folder, and what every failure says."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from epctx_stub.provider import STUB
from support import save, small_model

from hatch_epctx.compile import Compiled, compile_variant, describe, outcomes, probe, rename_references, scan
from hatch_epctx.config.expand import single_variant
from hatch_epctx.digest import digest_bytes, digest_file
from hatch_epctx.errors import CompileError, EpctxError, ModelError, ToolchainError
from hatch_epctx.files import copy_file
from hatch_epctx.providers import find_provider
from hatch_epctx.source import SourceChangedError, SourceModel, digest_option, read_source
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from hatch_epctx.config.variant import Variant
    from hatch_epctx.process import Outcome

PLACE = "tool.epctx.models.detector.source"
OPENVINO = {
    "ep": "openvino",
    "device": "cpu",
    "provider-options": {"load_config": {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}},
}
QNN = {"ep": "qnn", "provider-options": {"backend_type": "htp", "soc_model": "60"}}


class Bench:
    """A source model and folders to compile it in."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self.store = store
        self.path = save(small_model(), folder / "models" / "detector.onnx")
        self.count = 0

    def job(self) -> Path:
        """A new, empty, private folder."""
        self.count += 1
        path = self.folder / f"job-{self.count}"
        path.mkdir()
        return path

    def source(self) -> SourceModel:
        def read(path: Path, digest: str) -> Any:
            return scan(path, digest, self.job(), place=PLACE)

        return read_source(self.path, place=PLACE, store=self.store, scan=read)

    def variant(self, target: dict[str, Any], **model: Any) -> Variant:
        return single_variant(self.path, target, model=model)

    def stub(self, mode: str = "ok", **changes: Any) -> Variant:
        options = {"mode": mode, **changes.pop("options", {})}
        return self.variant({"ep": "stub", "provider-options": options, **changes})

    def compile(self, variant: Variant, folder: Path | None = None) -> tuple[Path, Compiled]:
        folder = folder or self.job()
        digests = {
            option.name: digest_option(option, place="", digest=digest_file)
            for option in variant.provider_options
            if option.is_path
        }
        return folder, compile_variant(variant, self.source(), folder, option_digests=digests)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Remembers what was read of models, for all tests here."""
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def bench(tmp_path: Path, store: Store) -> Bench:
    found = Bench(tmp_path, store)
    found.source()
    return found


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every worker's run: its job and the names in its folder when it starts."""
    runs: list[dict[str, Any]] = []
    real = outcomes.run_worker

    def spy(job: Any, folder: Path, **settings: Any) -> Outcome:
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        runs.append({**job, "files": names, **settings})
        return real(job, folder, **settings)

    monkeypatch.setattr(outcomes, "run_worker", spy)
    return runs


# What is given and what is left.


def test_only_artifacts_are_left_and_they_are_what_the_record_says(bench: Bench) -> None:
    folder, compiled = bench.compile(bench.stub())
    assert {path.name for path in folder.iterdir()} == {artifact.path for artifact in compiled.artifacts}
    for artifact in compiled.artifacts:
        data = (folder / artifact.path).read_bytes()
        assert (artifact.size, artifact.digest) == (len(data), digest_bytes(data))
    assert [artifact.role for artifact in compiled.artifacts] == ["model", "context"]


def test_facts_of_the_compile(bench: Bench) -> None:
    _, compiled = bench.compile(bench.stub())
    facts = compiled.facts
    assert [value["name"] for value in (*facts["inputs"], *facts["outputs"])] == ["x", "y"]
    assert (facts["context_nodes"], facts["nodes_left"], facts["compatibility"]) == (1, 0, "stub:cpu")
    assert facts["seconds"].keys() == {"compile", "load"}
    assert "artifacts" not in facts
    json.dumps(facts, allow_nan=False)


def test_the_load_check_sees_artifacts_alone_and_the_wheels_options(bench: Bench, seen: list[dict[str, Any]]) -> None:
    variant = bench.stub(
        options={"level": 3},
        **{"runtime-options": {"threads": 2}, "session-options": {"session.disable_cpu_ep_fallback": "1"}},
    )
    _, compiled = bench.compile(variant)
    first, second = seen
    assert (first["task"], second["task"]) == ("compile", "load")
    assert first["files"] == ["model.onnx"]
    assert second["files"] == sorted(artifact.path for artifact in compiled.artifacts)
    assert first["provider_options"] == {"level": "3", "mode": "ok"}
    assert second["provider_options"] == {"mode": "ok", "threads": "2"}, "level is of the compile alone"
    assert (first["optimization"], second["optimization"]) == ("basic", "disable-all")
    assert first["session_options"] == {"session.disable_cpu_ep_fallback": "1"}
    assert second["session_options"] == dict(variant.load_session_options)
    assert second["model"] == "model_ctx.onnx"


def test_a_compile_without_a_load_check(bench: Bench, seen: list[dict[str, Any]]) -> None:
    _, compiled = bench.compile(bench.stub("load-crash", **{"load-check": False}))
    assert [run["task"] for run in seen] == ["compile"]
    assert compiled.facts["seconds"].keys() == {"compile"}


def test_the_environment_and_the_time_limit_of_the_target(bench: Bench, seen: list[dict[str, Any]]) -> None:
    bench.compile(bench.stub(env={"A": "1"}, timeout=77))
    for run in seen:
        assert (run["env"], run["timeout"]) == ({"A": "1"}, 77.0)


def test_files_behind_options_are_copied_and_no_path_reaches_the_worker(
    bench: Bench, seen: list[dict[str, Any]], tmp_path: Path
) -> None:
    tree = tmp_path / "secret-place" / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "a.bin").write_bytes(b"a")
    settings = tmp_path / "secret-place" / "settings.json"
    settings.write_text('{"b": 1, "a": 2}')
    options = {"data": str(tree / "deep" / "a.bin"), "tree": str(tree), "settings": str(settings)}
    bench.compile(bench.stub(options=options))
    compile_run = seen[0]
    assert compile_run["files"] == ["model.onnx", "option-data", "option-tree/deep/a.bin"]
    assert compile_run["provider_options"] == {
        "data": "option-data",
        "mode": "ok",
        "settings": '{"a":2,"b":1}',
        "tree": "option-tree",
    }
    assert "secret-place" not in json.dumps(seen, default=str)
    assert seen[1]["provider_options"].keys() == {"mode"}, "what is a path here means nothing elsewhere"


def test_bytes_depend_on_what_is_behind_an_option(bench: Bench, tmp_path: Path) -> None:
    data = tmp_path / "data.bin"
    variants = []
    for content in (b"one", b"two", b"one"):
        data.write_bytes(content)
        variants.append(bench.compile(bench.stub(options={"data": str(data)}))[1].artifacts)
    assert variants[0] == variants[2] != variants[1]


def test_a_source_variant_is_the_model_itself(bench: Bench) -> None:
    variant = replace(bench.stub(), target="source", provider=find_provider("cpu"), provider_options=(), is_source=True)
    folder, compiled = bench.compile(variant)
    (artifact,) = compiled.artifacts
    assert (folder / artifact.path).read_bytes() == bench.path.read_bytes()
    assert (compiled.facts["context_nodes"], compiled.facts["nodes_left"]) == (0, 5)


def test_a_source_that_changed_is_not_compiled(bench: Bench, seen: list[dict[str, Any]]) -> None:
    source = bench.source()
    save(small_model(seed=9), bench.path)
    with pytest.raises(SourceChangedError, match=r"detector\.onnx changed while it was being read"):
        compile_variant(bench.stub(), source, bench.job(), option_digests={})
    assert not seen


# Failures.

HINT = "See tool.epctx.targets.stub: other options, another 'optimization' or a longer 'timeout' may help."
FAULTS: dict[str, tuple[str, str]] = {
    "fail": ("ep-error", "detector.stub: the compile failed: the stub fails as it was told. Choose another mode."),
    "raise": (
        "ep-error",
        "detector.stub: the compile failed: the worker's procedure failed: RuntimeError: nobody expects",
    ),
    "crash-before": ("exit", "detector.stub: the compile failed: the worker ended with exit status 3 after"),
    "crash-after": ("exit", "detector.stub: the compile failed: the worker ended with exit status 3 after"),
    "crash-late": ("exit", "detector.stub: the compile failed: the worker ended with exit status 3 after"),
    "abort": ("signal", "detector.stub: the compile failed: the worker was killed by SIGABRT (it aborted) after"),
    "kill": ("signal", "the worker was killed by SIGKILL (often the system, out of memory) after"),
    "no-node": ("no-node", "detector.stub: the compile failed: the stub took no node of the model."),
    "no-context": ("no-node", "detector.stub: the compile failed: "),
    "no-output": ("invalid-output", "StubExecutionProvider reported success and wrote no model"),
    "old-output": ("invalid-output", "StubExecutionProvider reported success and wrote no model"),
    "empty-payload": ("invalid-output", "empty"),
    "missing-payload": ("invalid-output", "not_there.bin"),
    "foreign-source": ("invalid-output", "OpenVINOExecutionProvider"),
    "garbage": ("invalid-output", "what StubExecutionProvider wrote is no ONNX model"),
    "memory-address": ("invalid-output", "memory"),
    "exit-zero": ("no-result", "the worker ended without a usable result (result.json: No such file or directory)"),
    "bad-result": ("no-result", "the worker ended without a usable result (result.json: result.artifacts is no list)"),
    "load-fail": ("load-failed", "the load check failed: the stub cannot open the model, as it was told."),
    "load-crash": ("signal", "the load check failed: the worker was killed by SIGSEGV (bad memory access) after"),
    "load-fallback": ("fallback", "the load check failed: ONNX Runtime opened the model on CPUExecutionProvider"),
    "run-fail": ("run-failed", "the load check failed: StubExecutionProvider opens the model and fails"),
}


@pytest.mark.parametrize("mode", FAULTS)
def test_case_11_what_a_compiler_can_do_wrong_is_said_in_words(bench: Bench, mode: str) -> None:
    reason, words = FAULTS[mode]
    with pytest.raises(CompileError) as caught:
        bench.compile(bench.stub(mode))
    error = caught.value
    assert (error.exit_code, error.where, error.reason) == (5, "detector.stub", reason)
    assert words in str(error)
    assert error.remedy, "a failure says what to do"
    assert str(bench.folder) not in str(error), "no path of the job's folder"


@pytest.mark.parametrize(("mode", "what", "limit"), [("hang", "the compile", 2), ("load-hang", "the load check", 8)])
def test_case_11_what_hangs_is_ended_by_the_time_limit(bench: Bench, mode: str, what: str, limit: int) -> None:
    with pytest.raises(CompileError) as caught:
        bench.compile(bench.stub(mode, timeout=limit))
    assert str(caught.value).startswith(
        f"detector.stub: {what} failed: the worker was still running after its time limit of {limit} s and was killed. "
        f"{HINT}"
    )
    assert caught.value.reason == "timeout"


def test_case_21_megabytes_on_both_streams_do_not_hang(bench: Bench) -> None:
    _, compiled = bench.compile(bench.stub("noisy"))
    assert compiled.artifacts


def test_case_21_a_log_without_end_is_ended_and_its_tail_is_shown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = outcomes.run_worker

    def small(job: Any, folder: Path, **settings: Any) -> Outcome:
        return real(job, folder, **settings, log_limit=1 << 20)

    monkeypatch.setattr(outcomes, "run_worker", small)
    with pytest.raises(CompileError) as caught:
        bench.compile(bench.stub("flood"))
    assert "the worker wrote more than 1 MiB of log and was killed" in str(caught.value)
    assert caught.value.reason == "log-limit"
    assert "last lines of the worker's log:\n" in caught.value.detail
    assert "flood flood" in caught.value.detail


def test_case_21_the_tail_is_shown_on_failure_without_escapes(bench: Bench) -> None:
    with pytest.raises(CompileError) as caught:
        bench.compile(bench.stub("escapes"))
    assert caught.value.detail == "last lines of the worker's log:\ncompiling 100%\nin deep"


def test_a_machine_without_room_for_a_worker(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    source = bench.source()

    def full(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(outcomes, "run_worker", full)
    with pytest.raises(CompileError, match="no worker can be started: Resource temporarily unavailable") as caught:
        compile_variant(bench.stub(), source, bench.job(), option_digests={})
    assert "EPCTX_JOBS" in caught.value.remedy


def test_dynamic_shapes_and_unknown_dimensions_are_the_models(bench: Bench) -> None:
    save(small_model(batch="batch"), bench.path)
    with pytest.raises(ModelError) as caught:
        bench.compile(bench.variant({"ep": "stub"}, **{"free-dimensions": {"bacth": 1}}))
    assert (caught.value.reason, caught.value.exit_code) == ("unknown-dimension", 3)
    assert "bacth" in str(caught.value)
    assert "batch" in caught.value.remedy


@pytest.mark.ep_qnn
def test_dynamic_shapes_are_refused_before_qnn_sees_them(bench: Bench) -> None:
    save(small_model(batch="batch"), bench.path)
    with pytest.raises(ModelError) as caught:
        bench.compile(bench.variant(QNN))
    assert (caught.value.reason, caught.value.exit_code) == ("dynamic-shape", 3)
    assert "free-dimensions" in caught.value.remedy


# Real EPs.


@pytest.mark.parametrize(
    "target", [pytest.param(OPENVINO, marks=pytest.mark.ep_openvino), pytest.param(QNN, marks=pytest.mark.ep_qnn)]
)
def test_the_same_input_gives_the_same_bytes_anywhere(bench: Bench, target: dict[str, Any], tmp_path: Path) -> None:
    deep = tmp_path / "another" / "much deeper" / "place"
    deep.mkdir(parents=True)
    first, second = bench.compile(bench.variant(target)), bench.compile(bench.variant(target), deep)
    assert first[1].artifacts == second[1].artifacts
    assert first[1].facts["context_nodes"] == 1


@pytest.mark.ep_openvino
def test_case_20_a_compiled_model_given_as_source_is_refused(bench: Bench, tmp_path: Path) -> None:
    folder, _ = bench.compile(bench.variant(OPENVINO))
    bench.path = folder / "model_ctx.onnx"
    with pytest.raises(EpctxError) as caught:
        bench.source()
    error = caught.value
    assert isinstance(error, ModelError)
    assert (error.reason, error.where) == ("compiled-source", PLACE)
    assert "the model is compiled already: it holds EPContext nodes of OpenVINO" in str(error)
    assert "Name the ONNX model that it was compiled from; a compiled model cannot be compiled again." in error.remedy


@pytest.mark.ep_openvino
def test_case_12_no_node_compiled_is_an_error_by_default(bench: Bench) -> None:
    node = onnx.helper.make_node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER")
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.STRING, [4]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([node], "strings", values[:1], values[1:])
    opset = [onnx.helper.make_opsetid("", 17)]
    save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), bench.path)
    with pytest.raises(CompileError) as caught:
        bench.compile(bench.variant(OPENVINO))
    assert caught.value.reason == "no-node"
    assert "took no node of the model; its operators are StringNormalizer" in str(caught.value)
    assert "the CPU EP runs it as it is" in caught.value.remedy


# The other tasks.


def test_a_scan_refuses_other_bytes_than_it_was_told_of(bench: Bench) -> None:
    with pytest.raises(SourceChangedError):
        scan(bench.path, "0" * 64, bench.job(), place=PLACE)


def test_a_probe_asks_the_ep(bench: Bench) -> None:
    (device,) = probe(STUB, "cpu", bench.job(), env={}, place="tool.epctx.targets.stub.ep")
    assert (device["ep"], device["metadata"]["driver"]) == ("StubExecutionProvider", "1.2.3")


def test_a_probe_of_an_ep_that_is_not_there(bench: Bench) -> None:
    gone = replace(find_provider("openvino"), module="no_such_plugin")
    with pytest.raises(ToolchainError) as caught:
        probe(gone, "cpu", bench.job(), env={}, place="tool.epctx.targets.t.ep")
    assert (caught.value.reason, caught.value.where) == ("missing-ep", "tool.epctx.targets.t.ep")
    assert "no_such_plugin" in str(caught.value)


def test_describing_and_renaming_a_compiled_model(bench: Bench) -> None:
    folder, compiled = bench.compile(bench.stub())
    path = folder / "model_ctx.onnx"
    (context,) = (artifact.path for artifact in compiled.artifacts if artifact.role == "context")
    (node,) = describe(path, bench.job())["context_nodes"]
    assert (node["source"], node["binary"]) == ("StubExecutionProvider", context)
    renamed = bench.job() / "renamed.onnx"
    renamed.write_bytes(rename_references(path, {context: "detector.bin"}, bench.job(), place="detector.stub"))
    (node,) = describe(renamed, bench.job())["context_nodes"]
    assert node["binary"] == "detector.bin"
    with pytest.raises(CompileError, match="renaming its files failed") as caught:
        rename_references(path, {}, bench.job(), place="detector.stub")
    assert caught.value.where == "detector.stub"


def test_describing_what_is_no_model(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(b"garbage")
    with pytest.raises(ModelError, match=r"x\.onnx: reading it failed: the file is no usable ONNX model"):
        describe(path, bench.job())


def test_jobs_work_on_copies(bench: Bench, tmp_path: Path) -> None:
    copy = tmp_path / "copy.onnx"
    copy_file(bench.path, copy)
    describe(copy, bench.job())
    assert copy.read_bytes() == bench.path.read_bytes()
