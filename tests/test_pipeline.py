"""The pipeline: what is published and what never is, whatever compilers, files and stores do meanwhile."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from store_support import left_over
from support import REPOSITORY, STUB_TARGET, Factory, Lines, Tree, epctx, pipeline

from hatch_epctx.compile import outcomes
from hatch_epctx.config import load_project
from hatch_epctx.digest import digest_file
from hatch_epctx.errors import CompileError, ConfigError, ModelError, StoreError, ToolchainError
from hatch_epctx.pipeline import Entry, Pipeline, progress
from hatch_epctx.process import worker_runs
from hatch_epctx.store import Generation, Miss, Store
from hatch_epctx.store.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hatch_epctx.process import Outcome

STUB_EP = Path(__file__).parent / "stub_ep"


def target(name: str, mode: str = "ok", level: int = 0, **options: str) -> str:
    """A target of the stub. Equal modes and levels have one identity; `options` are further keys, in TOML."""
    extra = "".join(f"{key} = {value}\n" for key, value in options.items())
    return (
        f'[tool.epctx.targets.{name}]\nep = "stub"\nprovider-options = {{ mode = "{mode}", level = {level} }}\n{extra}'
    )


def tasks(trace: Path) -> list[str]:
    """Tasks of the workers started since EPCTX_TRACE_WORKERS was set."""
    return trace.read_text().split() if trace.exists() else []


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a store remembers of the factory's models and of installed libraries."""
    folder = tmp_path_factory.mktemp("warm")
    tree = Factory(folder).project(STUB_TARGET, models=("detector", "segmenter", "third"))
    store = Store(folder / "store")
    Pipeline(load_project(tree.root, environ={}, state="wheel"), store).prepare()
    return store.layout.base


@pytest.fixture(autouse=True)
def warm_store(warm: Path) -> None:
    """Every test begins with these memories and without generations: reading models is not what is tested here."""
    base = Path(os.environ["EPCTX_CACHE_DIR"]) / "v1"
    for name in ("facts", "stat"):
        shutil.copytree(warm / name, base / name)


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "workers"
    monkeypatch.setenv("EPCTX_TRACE_WORKERS", str(path))
    return path


@pytest.fixture
def on_worker(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str, Path], None]], None]:
    """Have a function called with (task, folder) just before each worker starts."""
    real = outcomes.run_worker

    def install(function: Callable[[str, Path], None]) -> None:
        def run(job: Any, folder: Path, **settings: Any) -> Outcome:
            function(job["task"], folder)
            return real(job, folder, **settings)

        monkeypatch.setattr(outcomes, "run_worker", run)

    return install


def only(entries: tuple[Entry, ...]) -> Entry:
    (entry,) = entries
    return entry


def generation_of(entry: Entry) -> Generation:
    assert entry.generation is not None, entry.error or entry.reason
    return entry.generation


def markers(pipe: Pipeline) -> set[str]:
    """Identities that the store has a marker of."""
    return {path.stem for path in pipe.store.layout.markers.rglob("*.json")}


def check_clean(pipe: Pipeline) -> None:
    """Nothing is left in the store but selected generations."""
    found = left_over(pipe.store)
    assert (found["staging"], found["leases"], found["temporary"]) == ([], [], [])
    assert len(found["generations"]) == len(markers(pipe))


# Faults of compilers.

FAULTS = {
    "crash-before": "exit",
    "crash-after": "exit",
    "crash-late": "exit",
    "kill": "signal",
    "hang": "timeout",
    "no-node": "no-node",
    "empty-payload": "invalid-output",
    "foreign-source": "invalid-output",
    "old-output": "invalid-output",
    "load-crash": "signal",
}


def test_case_11_a_target_that_fails_publishes_nothing_and_the_others_finish(factory: Factory) -> None:
    table = target("good") + "".join(target(mode, mode, timeout="3" if mode == "hang" else "600") for mode in FAULTS)
    tree = factory.project(table + target("late", level=1))
    lines = Lines()
    pipe = pipeline(tree.root, report=lines, EPCTX_JOBS="3")
    with pipe.build() as built:
        entries = {entry.variant.target: entry for entry in built.entries}
        assert list(entries) == ["good", *FAULTS, "late"], "in the order of declaration"
        for name in ("good", "late"):
            assert entries[name].status == "compiled"
            assert generation_of(entries[name]).selected
        for mode, reason in FAULTS.items():
            entry = entries[mode]
            assert (entry.status, entry.generation) == ("failed", None)
            assert isinstance(entry.error, CompileError)
            assert entry.error.reason == reason
            assert lines.of(f"detector.{mode}")[-1] == "failed"
            assert entry.planned.identity is not None
            assert isinstance(pipe.store.find(entry.planned.identity.digest), Miss)
        with pytest.raises(CompileError) as caught:
            built.raise_for_failures()
        assert str(caught.value).startswith(f"{len(FAULTS)} failures of {len(FAULTS) + 2} variants\n")
        assert all(f"detector.{mode}: the " in str(caught.value) for mode in FAULTS)
    assert len(markers(pipe)) == 2
    check_clean(pipe)


def test_case_11_once_the_compiler_is_mended_only_its_target_is_compiled(factory: Factory, trace: Path) -> None:
    tree = factory.project(target("good") + target("bad", "fail"))
    with pipeline(tree.root).build() as built:
        assert [entry.status for entry in built.entries] == ["compiled", "failed"]
    trace.unlink()
    tree.write(declared() + target("good") + target("bad", "ok", optimization='"all"'))
    with pipeline(tree.root).build() as built:
        assert [entry.status for entry in built.entries] == ["hit", "compiled"]
        built.raise_for_failures()
    assert tasks(trace) == ["compile", "load"]


def declared(*models: str) -> str:
    return "".join(f'[tool.epctx.models.{name}]\nsource = "models/{name}.onnx"\n' for name in models or ("detector",))


def test_a_failure_is_the_error_itself(factory: Factory) -> None:
    tree = factory.project(target("bad", "fail"))
    with pipeline(tree.root).build() as built, pytest.raises(CompileError) as caught:
        built.raise_for_failures()
    assert str(caught.value).startswith("detector.bad: the compile failed: the stub fails as it was told.")


def test_case_11_a_failed_build_ends_with_its_exit_code_and_a_right_report(factory: Factory) -> None:
    tree = factory.project(target("good") + target("bad", "crash-before"))
    run = epctx("build", cwd=tree.root, check=False)
    assert run.code == 5
    rows = {line.split()[0]: line.split()[2] for line in run.out.splitlines() if line.startswith("detector.")}
    assert rows == {"detector.good": "compiled", "detector.bad": "failed"}
    assert "epctx: error: detector.bad: the compile failed: the worker ended with exit status 3" in run.err
    described = epctx("build", "--json", cwd=tree.root, check=False).json["variants"]
    assert [item["status"] for item in described] == ["hit", "failed"]


def test_case_12_a_partial_compile_tells_its_coverage(factory: Factory) -> None:
    tree = factory.project(target("part", "partial"))
    with pipeline(tree.root).build() as built:
        facts = generation_of(only(built.entries)).record.result
    assert (facts["context_nodes"], facts["nodes_left"]) == (1, 1)


def test_case_21_logs_of_megabytes_do_not_stop_a_build(factory: Factory) -> None:
    tree = factory.project(target("noisy", "noisy"))
    with pipeline(tree.root).build() as built:
        assert only(built.entries).status == "compiled"


# EPs that are not there.

ABSENT = '[tool.epctx.targets.amd]\nep = "vitisai"\n'


def test_a_missing_ep_is_an_error_before_anything_compiles(factory: Factory, trace: Path) -> None:
    tree = factory.project(STUB_TARGET + ABSENT)
    with pytest.raises(ToolchainError) as caught:
        pipeline(tree.root).build()
    assert caught.value.exit_code == 4
    assert caught.value.where.startswith("tool.epctx.targets.amd")
    assert caught.value.remedy
    assert "compile" not in tasks(trace)
    assert epctx("plan", cwd=tree.root, check=False).code == 4


def test_a_target_that_is_not_required_is_skipped_with_a_line(factory: Factory) -> None:
    tree = factory.project(STUB_TARGET + ABSENT + "required = false\n")
    lines = Lines()
    pipe = pipeline(tree.root, report=lines)
    assert [entry.status for entry in pipe.plan()] == ["miss", "skipped"]
    with pipe.build() as built:
        built.raise_for_failures()
        stub, amd = built.entries
        assert (stub.status, amd.status, amd.generation) == ("compiled", "skipped", None)
        assert amd.reason
        assert lines.of("detector.amd") == [f"skipped: {amd.reason}"]
    rows = epctx("plan", "--json", cwd=tree.root).json["variants"]
    assert [(row["status"], row["identity"] is None) for row in rows] == [("hit", False), ("skipped", True)]


def test_everything_that_is_wrong_is_said_at_once_and_once(factory: Factory, trace: Path) -> None:
    tree = factory.project(target("one") + target("two") + ABSENT, models=("detector", "segmenter", "third"))
    (tree.root / "models" / "detector.onnx").unlink()
    (tree.root / "models" / "third.onnx").write_bytes(b"")
    with pytest.raises(ModelError) as caught:
        pipeline(tree.root).build()
    text = str(caught.value)
    assert text.startswith("3 failures before anything was compiled\n")
    assert text.count("tool.epctx.models.detector.source: model does not exist") == 1
    assert text.count("tool.epctx.models.third.source: model is empty") == 1
    assert text.count("tool.epctx.targets.amd.ep: ") == 1
    assert tasks(trace) == []


# Offline.


def test_offline_a_hit_is_a_hit_and_a_miss_an_error(factory: Factory, trace: Path) -> None:
    tree = factory.project(target("one"))
    with pipeline(tree.root).build():
        pass
    trace.unlink()
    with pipeline(tree.root, EPCTX_OFFLINE="1").build() as built:
        assert only(built.entries).status == "hit"
    tree.write(declared() + target("one") + target("two", "noisy"))
    with pipeline(tree.root, EPCTX_OFFLINE="1").build() as built:
        hit, miss = built.entries
        assert (hit.status, miss.status) == ("hit", "failed")
        assert str(miss.error) == (
            "detector.two: no usable generation in the store (absent) and EPCTX_OFFLINE is set. "
            "Build once without EPCTX_OFFLINE, or point EPCTX_CACHE_DIR at the store that holds it."
        )
    assert tasks(trace) == []
    assert epctx("build", cwd=tree.root, env={"EPCTX_OFFLINE": "1"}, check=False).code == 5


# Sources that change.


def check_is_of(entry: Entry, path: Path) -> None:
    """The entry's generation is of the model as it is now at `path`."""
    assert generation_of(entry).record.document["model"]["onnx"] == digest_file(path)


@pytest.mark.parametrize("when", ["before the snapshot", "during the compile", "during the load check"])
def test_a_source_that_changes_is_compiled_again_and_never_published_stale(
    factory: Factory, on_worker: Callable[..., None], when: str
) -> None:
    tree = factory.project(STUB_TARGET)
    model = tree.root / "models" / "detector.onnx"
    changes: list[str] = []

    def change() -> None:
        if not changes:
            changes.append(when)
            tree.model(seed=99)

    def line(_name: str, text: str) -> None:
        if when == "before the snapshot" and text.startswith("compiling"):
            change()

    def worker(task: str, _folder: Path) -> None:
        if (task, when) in {("compile", "during the compile"), ("load", "during the load check")}:
            change()

    on_worker(worker)
    lines = Lines(line)
    pipe = pipeline(tree.root, report=lines)
    (stale,) = pipe.prepare()
    with pipe.build() as built:
        entry = only(built.entries)
        assert entry.status == "compiled"
        check_is_of(entry, model)
    assert changes == [when]
    assert stale.identity is not None
    assert entry.planned.identity is not None
    assert markers(pipe) == {entry.planned.identity.digest} != {stale.identity.digest}
    assert [text for text in lines.of("detector.stub") if text.endswith("; trying again")]
    check_clean(pipe)


def test_a_source_that_never_comes_to_rest_is_an_error(factory: Factory, on_worker: Callable[..., None]) -> None:
    tree = factory.project(STUB_TARGET)
    seeds = iter(range(100, 200))
    on_worker(lambda task, _folder: tree.model(seed=next(seeds)) if task == "compile" else None)
    pipe = pipeline(tree.root)
    with pipe.build() as built:
        error = only(built.entries).error
    assert isinstance(error, ModelError)
    assert str(error) == (
        "detector.stub: the source changed 3 times while it was being compiled. "
        "Let detector.onnx come to rest and build again; nothing was published."
    )
    assert next(seeds) == 103
    assert markers(pipe) == set()
    check_clean(pipe)


def test_a_source_that_goes_away_is_an_error(factory: Factory, on_worker: Callable[..., None]) -> None:
    tree = factory.project(STUB_TARGET)
    model = tree.root / "models" / "detector.onnx"
    on_worker(lambda task, _folder: model.unlink(missing_ok=True) if task == "compile" else None)
    with pipeline(tree.root).build() as built:
        error = only(built.entries).error
    assert isinstance(error, ModelError)
    assert error.reason == "missing-model"


@pytest.mark.parametrize("what", ["option", "library"])
def test_options_and_libraries_that_change_count_too(
    factory: Factory, on_worker: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    site = stub_copy(tmp_path / "site", monkeypatch)
    tree = factory.project(f'{STUB_TARGET}provider-options = {{ data = "data.bin" }}\n')
    (tree.root / "data.bin").write_bytes(b"before")
    changing = tree.root / "data.bin" if what == "option" else site / "epctx_stub" / "libepctx_stub.so"
    on_worker(lambda task, _folder: changing.write_bytes(b"after") if task == "compile" else None)
    lines = Lines()
    pipe = pipeline(tree.root, report=lines)
    (stale,) = pipe.prepare()
    with pipe.build() as built:
        entry = only(built.entries)
    assert entry.status == "compiled"
    assert "the source or its toolchain changed meanwhile; trying again" in lines.of("detector.stub")
    assert stale.identity is not None
    assert stale.identity.digest not in markers(pipe)
    assert len(markers(pipe)) == 1


def stub_copy(site: Path, monkeypatch: pytest.MonkeyPatch, *, without: tuple[str, ...] = ()) -> Path:
    """The stub EP's distribution in another place, found first."""
    shutil.copytree(STUB_EP, site, ignore=shutil.ignore_patterns("__pycache__", *without))
    monkeypatch.syspath_prepend(site)
    return site


@contextmanager
def other_process_holds(pipe: Pipeline, identity: str) -> Iterator[subprocess.Popen[str]]:
    """Another process holds the identity's lock until its standard input ends."""
    code = (
        "import sys; from pathlib import Path; from hatch_epctx.store import Store\n"
        "with Store(Path(sys.argv[1])).lock(sys.argv[2]): print('held', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(pipe.store.root), identity],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=60)


@pytest.mark.parametrize("outcome", ["miss", "hit"])
def test_a_source_that_changes_while_the_variant_waits_for_its_turn(
    factory: Factory, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is the old source compiled, nor is a hit on the old one taken for the build of the new one."""
    tree = factory.project(STUB_TARGET)
    model = tree.root / "models" / "detector.onnx"
    if outcome == "hit":
        with pipeline(tree.root).build():
            pass
    changed = threading.Event()

    def line(_name: str, text: str) -> None:
        if text.startswith("waiting for process") and not changed.is_set():
            tree.model(seed=99)
            changed.set()

    lines = Lines(line)
    pipe = pipeline(tree.root, report=lines)
    (stale,) = pipe.prepare()
    assert stale.identity is not None
    monkeypatch.setattr("hatch_epctx.pipeline.obtaining._FRESH", 0.1)
    with other_process_holds(pipe, stale.identity.digest) as holder:

        def release() -> None:
            assert changed.wait(60)
            assert holder.stdin is not None
            holder.stdin.close()

        releaser = threading.Thread(target=release)
        releaser.start()
        with pipe.build() as built:
            check_is_of(only(built.entries), model)
        releaser.join()
    waits = [text for text in lines.of("detector.stub") if text.startswith("waiting for process")]
    assert waits[0].endswith(f"which compiles the same identity {stale.identity.short}")
    assert len(markers(pipe)) == (2 if outcome == "hit" else 1)


# Variants that cannot be cached.


def test_what_is_not_certain_is_compiled_anew_and_never_selected(
    factory: Factory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trace: Path
) -> None:
    stub_copy(tmp_path / "site", monkeypatch, without=("*.so", "driver.txt"))
    tree = factory.project(STUB_TARGET)
    why = "not cacheable: epctx-stub has no library that could be named"
    pipe = pipeline(tree.root)
    planned = only(pipe.plan())
    assert (planned.status, planned.reason) == ("miss", why)
    assert planned.uncertain == ("epctx-stub has no library that could be named",)
    folders = []
    for _ in range(2):
        with pipe.build() as built:
            entry = only(built.entries)
            assert (entry.status, entry.reason) == ("compiled", why)
            generation = generation_of(entry)
            assert not generation.selected
            assert all(generation.file(item).is_file() for item in generation.record.artifacts)
            folders.append(generation.path)
        assert not generation.path.exists(), "it was this build's alone"
    assert len(set(folders)) == 2
    assert markers(pipe) == set()
    assert tasks(trace).count("compile") == 2
    check_clean(pipe)


def test_what_is_not_certain_waits_for_nobody(
    factory: Factory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stub_copy(tmp_path / "site", monkeypatch, without=("*.so", "driver.txt"))
    tree = factory.project(STUB_TARGET)
    pipe = pipeline(tree.root)
    (planned,) = pipe.prepare()
    assert planned.identity is not None
    with other_process_holds(pipe, planned.identity.digest), pipe.build() as built:
        assert only(built.entries).status == "compiled"


def test_the_plan_shows_what_is_not_certain(factory: Factory, tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(STUB_EP, site, ignore=shutil.ignore_patterns("__pycache__", "*.so", "driver.txt"))
    tree = factory.project(STUB_TARGET)
    env = {"PYTHONPATH": str(site)}
    for _ in range(2):  # the second time a last identity is known, with which nothing differs
        shown = epctx("plan", cwd=tree.root, env=env).out
        assert "not cacheable: epctx-stub has no library that could be named" in shown
        (row,) = epctx("plan", "--json", cwd=tree.root, env=env).json["variants"]
        assert row["uncertain"] == ["epctx-stub has no library that could be named"]
        epctx("build", cwd=tree.root, env=env)
    tree.write(declared() + target("stub", "noisy"))
    shown = epctx("plan", cwd=tree.root, env=env).out
    assert "not cacheable: " in shown, "a change does not hide it"


# Stores that fail.


@pytest.mark.parametrize("point", ["marker-before", "marker-temp"])
def test_a_marker_that_cannot_be_written_leaves_the_compile_usable(
    factory: Factory, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    tree = factory.project(STUB_TARGET)
    lines = Lines()
    pipe = pipeline(tree.root, report=lines)
    monkeypatch.setenv("EPCTX_TEST", "1")
    monkeypatch.setenv("EPCTX_TEST_FAULT", f"{point}:ENOSPC")
    with pipe.build() as built:
        built.raise_for_failures()
        generation = generation_of(only(built.entries))
        assert not generation.selected
        assert all(digest_file(generation.file(item)) == item.digest for item in generation.record.artifacts)
        (warning,) = [text for text in lines.of("detector.stub") if text.startswith("warning: ")]
        assert "The compile is used once and not kept" in warning
    assert markers(pipe) == set()
    check_clean(pipe)
    monkeypatch.delenv("EPCTX_TEST_FAULT")
    with pipe.build() as built:
        assert generation_of(only(built.entries)).selected


def test_a_disk_that_is_full_while_publishing_fails_the_variant_alone(
    factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = factory.project(target("one") + target("two", "noisy"))
    pipe = pipeline(tree.root, EPCTX_JOBS="1")
    pipe.prepare()  # remembering facts takes some of the points
    monkeypatch.setenv("EPCTX_TEST", "1")
    monkeypatch.setenv("EPCTX_TEST_FAULT", "staged@1:ENOSPC")
    with pipe.build() as built:
        first, second = built.entries
        assert (first.status, second.status) == ("failed", "compiled")
        assert isinstance(first.error, StoreError)
        assert first.error.reason == "disk-full"
        assert first.error.remedy
    check_clean(pipe)


def test_case_25_a_read_only_store_gives_hits_and_compiles_elsewhere(
    factory: Factory, monkeypatch: pytest.MonkeyPatch, trace: Path
) -> None:
    tree = factory.project(target("one"))
    with pipeline(tree.root).build():
        pass
    before = markers(pipeline(tree.root))
    trace.unlink()
    monkeypatch.setattr(Layout, "make", lambda _self: False)
    tree.write(declared() + target("one") + target("two", "noisy"))
    lines = Lines()
    pipe = pipeline(tree.root, report=lines)
    with pipe.build() as built:
        hit, miss = built.entries
        assert (hit.status, miss.status) == ("hit", "compiled")
        generation = generation_of(miss)
        assert not generation.selected
        assert not generation.path.is_relative_to(pipe.store.root)
        assert "cannot be written" in generation.warning
        assert [text for text in lines.of("detector.two") if text == f"warning: {generation.warning}"]
    assert not generation.path.exists()
    assert markers(pipe) == before


def test_case_22_an_entry_that_vanishes_is_a_miss(factory: Factory) -> None:
    tree = factory.project(STUB_TARGET)
    pipe = pipeline(tree.root)
    with pipe.build() as built:
        path = generation_of(only(built.entries)).path
    shutil.rmtree(path)
    assert [(entry.status, entry.reason) for entry in pipe.plan()] == [("miss", "missing-generation")]
    with pipe.build() as built:
        assert (only(built.entries).status, only(built.entries).reason) == ("compiled", "missing-generation")


def test_a_cache_that_is_removed_during_a_build_is_an_error_in_words(
    factory: Factory, on_worker: Callable[..., None]
) -> None:
    tree = factory.project(STUB_TARGET)
    pipe = pipeline(tree.root)
    on_worker(lambda task, _folder: shutil.rmtree(pipe.store.root) if task == "compile" else None)
    with pipe.build() as built:
        error = only(built.entries).error
    assert isinstance(error, StoreError)
    assert error.reason == "vanished"


def test_an_option_file_that_goes_away_after_the_configuration_was_read(factory: Factory) -> None:
    tree = factory.project(f'{STUB_TARGET}provider-options = {{ data = "data.bin" }}\n')
    data = tree.root / "data.bin"
    data.write_bytes(b"data")
    pipe = pipeline(tree.root)
    data.unlink()
    with pytest.raises(ConfigError) as caught:
        pipe.build()
    assert caught.value.where == "tool.epctx.targets.stub.provider-options.data"
    assert f"No such file or directory: {data}" in str(caught.value)


# One build.


def test_two_names_of_one_identity_are_compiled_once(factory: Factory, trace: Path) -> None:
    tree = factory.project(STUB_TARGET)
    shutil.copy(tree.root / "models" / "detector.onnx", tree.root / "models" / "copy.onnx")
    tree.write(declared("detector", "copy") + target("one") + target("two"))
    pipe = pipeline(tree.root, EPCTX_JOBS="4")
    with pipe.build() as built:
        assert sorted(entry.status for entry in built.entries) == ["compiled", "hit", "hit", "hit"]
        assert len({generation_of(entry).name for entry in built.entries}) == 1
    assert sorted(tasks(trace)) == ["compile", "load"]


def test_a_damaged_generation_is_replaced(factory: Factory) -> None:
    tree = factory.project(STUB_TARGET)
    pipe = pipeline(tree.root)
    with pipe.build() as built:
        generation = generation_of(only(built.entries))
        (context,) = (item for item in generation.record.artifacts if item.role == "context")
        path = generation.file(context)
    data = path.read_bytes()
    path.parent.chmod(0o700)
    path.chmod(0o600)
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with pipe.build() as built:
        entry = only(built.entries)
        assert (entry.status, entry.reason) == ("compiled", "modified-artifact")
        assert generation_of(entry).file(context).read_bytes() == data


def test_what_is_leased_stays_and_closing_twice_does_nothing(factory: Factory) -> None:
    tree = factory.project(STUB_TARGET)
    pipe = pipeline(tree.root)
    built = pipe.build()
    assert left_over(pipe.store)["leases"] == [generation_of(only(built.entries)).name]
    built.close()
    built.close()
    check_clean(pipe)


def test_the_last_identity_is_remembered_by_name(factory: Factory) -> None:
    tree = factory.project(STUB_TARGET)
    pipe = pipeline(tree.root)
    (variant,) = pipe.project.variants
    assert pipe.last(variant) is None
    with pipe.build() as built:
        identity = only(built.entries).planned.identity
    assert identity is not None
    last = pipe.last(variant)
    assert last is not None
    assert (last.identity, last.document, last.own) == (identity.digest, identity.document, True)
    tree.root.rename(tree.root.with_name("moved"))
    assert pipeline(tree.root.with_name("moved")).last(variant) == pipe.last(variant)


def test_a_long_compile_gives_signs_of_life(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.3)
    tree = factory.project(target("slow", "slow"))
    lines = Lines()
    with pipeline(tree.root, report=lines).build() as built:
        built.raise_for_failures()
    said = lines.of("detector.slow")
    signs = [text for text in said if text.startswith("still compiling (")]
    assert len(signs) >= 3
    assert all(text.endswith(" s)") for text in signs)
    assert said[-1].startswith("compiled ")
    time.sleep(0.7)
    assert lines.of("detector.slow") == said, "no sign after the end"


def test_a_report_that_fails_costs_signs_of_life_only(factory: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "INTERVAL", 0.1)

    def fail(_name: str, text: str) -> None:
        if text.startswith("still"):
            raise BrokenPipeError

    tree = factory.project(STUB_TARGET)
    with pipeline(tree.root, report=Lines(fail)).build() as built:
        assert only(built.entries).status == "compiled"


def test_workers_are_counted(factory: Factory) -> None:
    before = worker_runs()
    with pipeline(factory.project(STUB_TARGET).root).build():
        pass
    grown = {task: count - before.get(task, 0) for task, count in worker_runs().items()}
    assert {task: count for task, count in grown.items() if count} == {"compile": 1, "load": 1}


# Interrupts.


def start_build(tree: Tree, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hatch_epctx", "build"],
        cwd=tree.root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(STUB_EP)]), **env},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def interrupt_when(process: subprocess.Popen[str], word: str) -> tuple[int, str, float]:
    """SIGINT once a line with `word` comes; (exit code, standard error, seconds that the end took)."""
    assert process.stderr is not None
    said = ""
    with process:
        for line in process.stderr:
            said += line
            if word in line:
                break
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        said += process.stderr.read()
        code = process.wait(timeout=60)
    return code, said, time.monotonic() - start


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_an_interrupt_ends_workers_and_leaves_nothing(factory: Factory) -> None:
    tree = factory.project("".join(target(f"hang{index}", "hang", index) for index in range(4)))
    process = start_build(tree, EPCTX_JOBS="2")
    code, said, seconds = interrupt_when(process, "compiling")
    assert (code, seconds < 10) == (130, True), said
    assert "Traceback" not in said
    assert said.rstrip().endswith("epctx: interrupted")
    assert said.count(": compiling") == 2, "nothing further was started"
    pipe = pipeline(tree.root)
    assert left_over(pipe.store) == {"staging": [], "leases": [], "generations": [], "temporary": []}


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_an_interrupt_ends_a_wait_for_another_process(factory: Factory) -> None:
    tree = factory.project(STUB_TARGET)
    pipe = pipeline(tree.root)
    (planned,) = pipe.prepare()
    assert planned.identity is not None
    with other_process_holds(pipe, planned.identity.digest):
        code, said, seconds = interrupt_when(start_build(tree), "waiting for process")
    assert (code, seconds < 10) == (130, True), said


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ("y = [1, 3, 8, 8]", "the model has no input 'y'; it has 'x'. Correct or remove 'y' in input-shapes."),
        ("x = [1, 3, 8]", "input 'x' has 4 dims, and input-shapes gives 3. Give one size for each dim"),
        ("x = [1, 4, -1, -1]", "input 'x' has size 3 on axis 1 by the model, and input-shapes gives 4. Make them say"),
    ],
)
def test_shapes_that_the_source_cannot_have_are_refused_by_a_plan(shapes: str, message: str, factory: Factory) -> None:
    tree = factory.project(f"input-shapes = {{ {shapes} }}\n{STUB_TARGET}")
    tree.model("detector", batch="batch")
    run = epctx("plan", "-C", tree.root, check=False)
    assert run.code == 3
    assert f"tool.epctx.models.detector.input-shapes: {message}" in run.err


def test_a_misspelt_free_dimension_is_refused_before_anything_compiles(factory: Factory) -> None:
    tree = factory.project(f"free-dimensions = {{ batsh = 1 }}\n{STUB_TARGET}")
    tree.model("detector", batch="batch")
    trace = factory.folder / "trace"
    run = epctx("build", "-C", tree.root, env={"EPCTX_TRACE_WORKERS": str(trace)}, check=False)
    assert run.code == 3
    assert "tool.epctx.models.detector: no input of the model has the dim 'batsh'; it has 'batch'." in run.err
    assert "Did you mean 'batch'?" in run.err
    assert trace.read_text().split() == ["scan"]
