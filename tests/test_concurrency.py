"""Many builders and one store: one compile per identity, different identities side by side, and waiters that go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import OPENVINO_TARGET, REPOSITORY, Factory, Lines, Tree, pipeline

from hatch_epctx.compile import outcomes

if TYPE_CHECKING:
    from hatch_epctx.process import Outcome

STUB_EP = Path(__file__).parent / "stub_ep"
COUNT = 16

CHILD = """
import json, os, sys
from pathlib import Path
from hatch_epctx.config import load_project
from hatch_epctx.pipeline import Pipeline
from hatch_epctx.store import Store

def report(variant, text):
    print(json.dumps([variant.name if variant else "", text]), file=sys.stderr, flush=True)

project = load_project(Path(sys.argv[1]), environ=os.environ, state="wheel")
pipeline = Pipeline(project, Store(project.environment.cache_dir), report=report)
print("ready", flush=True)
sys.stdin.readline()
with pipeline.build() as built:
    entries = [
        {
            "variant": entry.variant.name,
            "status": entry.status,
            "error": str(entry.error or ""),
            "generation": entry.generation.name if entry.generation else None,
            "digests": [item.digest for item in entry.generation.record.artifacts] if entry.generation else [],
        }
        for entry in built.entries
    ]
print(json.dumps(entries), flush=True)
"""


class Builder:
    """A process that builds a project when it is told to."""

    def __init__(self, root: Path, **env: str) -> None:
        path = os.pathsep.join([str(REPOSITORY), str(STUB_EP)])
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(root)],
            env={**os.environ, "PYTHONPATH": path, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> Builder:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        return self

    def go(self) -> Builder:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self

    def wait_for(self, word: str) -> str:
        """Read standard error up to a line with `word`; return the line."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if word in line:
                return line
        raise AssertionError(f"no line with {word!r}")

    def end(self) -> list[dict[str, Any]]:
        """Entries of the build."""
        out, err = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, err
        entries: list[dict[str, Any]] = json.loads(out.splitlines()[-1])
        return entries


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "workers"
    monkeypatch.setenv("EPCTX_TRACE_WORKERS", str(path))
    return path


def counts(trace: Path) -> Counter[str]:
    return Counter(trace.read_text().split())


def stub(name: str, mode: str = "ok", level: int = 0, seconds: float = 1) -> str:
    options = f'{{ mode = "{mode}", level = {level}, seconds = {seconds} }}'
    return f'[tool.epctx.targets.{name}]\nep = "stub"\nprovider-options = {options}\n'


def check_one_compile(results: list[list[dict[str, Any]]], trace: Path) -> None:
    statuses = Counter(entry["status"] for entries in results for entry in entries)
    assert statuses == {"compiled": 1, "hit": COUNT - 1}, results
    assert len({entry["generation"] for entries in results for entry in entries}) == 1
    assert len({tuple(entry["digests"]) for entries in results for entry in entries}) == 1
    assert (counts(trace)["compile"], counts(trace)["load"]) == (1, 1)


@pytest.mark.ep_openvino
def test_sixteen_processes_build_one_identity_and_one_of_them_compiles(factory: Factory, trace: Path) -> None:
    tree = factory.project(OPENVINO_TARGET)
    pipeline(tree.root).prepare()  # so that the test is about the compile, and not sixteen readings of all libraries
    builders = [Builder(tree.root) for _ in range(COUNT)]
    for builder in builders:
        builder.ready()
    for builder in builders:
        builder.go()
    check_one_compile([builder.end() for builder in builders], trace)


@pytest.mark.ep_openvino
def test_sixteen_threads_build_one_identity_and_one_of_them_compiles(factory: Factory, trace: Path) -> None:
    tree = factory.project(OPENVINO_TARGET)
    pipeline(tree.root).prepare()
    barrier = threading.Barrier(COUNT)

    def build() -> list[dict[str, Any]]:
        pipe = pipeline(tree.root)
        barrier.wait()
        with pipe.build() as built:
            built.raise_for_failures()
            return [
                {
                    "status": entry.status,
                    "generation": entry.generation.name,
                    "digests": [item.digest for item in entry.generation.record.artifacts],
                }
                for entry in built.entries
                if entry.generation is not None
            ]

    with ThreadPoolExecutor(COUNT) as pool:
        results = [future.result() for future in [pool.submit(build) for _ in range(COUNT)]]
    check_one_compile(results, trace)


@pytest.mark.slow
@pytest.mark.ep_openvino
def test_sixteen_processes_build_sixteen_identities_each_compiled_once(factory: Factory, trace: Path) -> None:
    """On a store without any memories: digests, facts and devices are found out by all of them at once."""
    tree = factory.project(
        OPENVINO_TARGET + "".join(stub(f"stub-{index}", level=index % 10) for index in range(7)),
        models=("detector", "segmenter"),
    )
    builders = [Builder(tree.root, EPCTX_JOBS="4") for _ in range(COUNT)]
    for builder in builders:
        builder.ready()
    for builder in builders:
        builder.go()
    results = [builder.end() for builder in builders]
    statuses = Counter(entry["status"] for entries in results for entry in entries)
    assert statuses == {"compiled": COUNT, "hit": COUNT * (COUNT - 1)}
    assert counts(trace)["compile"] == COUNT


class Overlap:
    """Watches how many workers run at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 0
        self._now = 0
        self._guard = threading.Lock()
        real = outcomes.run_worker

        def run(job: Any, folder: Path, **settings: Any) -> Outcome:
            with self._guard:
                self._now += 1
                self.most = max(self.most, self._now)
            try:
                return real(job, folder, **settings)
            finally:
                with self._guard:
                    self._now -= 1

        monkeypatch.setattr(outcomes, "run_worker", run)


@pytest.mark.parametrize("jobs", [1, 4])
def test_different_identities_run_side_by_side_as_jobs_allow(
    factory: Factory, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    tree = factory.project("".join(stub(f"stub-{index}", "slow", index, seconds=0.3) for index in range(4)))
    overlap = Overlap(monkeypatch)
    with pipeline(tree.root, EPCTX_JOBS=str(jobs)).build() as built:
        assert [entry.status for entry in built.entries] == ["compiled"] * 4
    assert overlap.most == jobs


def test_one_process_does_not_wait_for_anothers_other_identity(factory: Factory) -> None:
    """The second one finishes while the first one's compile is under way and does not end."""
    first, second = factory.project(stub("one", "hang"), name="first"), factory.project(stub("two"), name="second")
    builder = Builder(first.root).ready().go()
    builder.wait_for("compiling")
    with pipeline(second.root).build() as built:
        assert [entry.status for entry in built.entries] == ["compiled"]
    assert builder.process.poll() is None
    kill(builder)


def kill(builder: Builder) -> None:
    builder.process.kill()
    builder.process.communicate(timeout=60)


def waiting(tree: Tree) -> tuple[threading.Thread, Lines, list[str], threading.Event]:
    """A thread that builds the project; its lines, its statuses, and an event for when it waits."""
    waits = threading.Event()
    statuses: list[str] = []

    def line(_name: str, text: str) -> None:
        if text.startswith("waiting for process"):
            waits.set()

    lines = Lines(line)

    def build() -> None:
        with pipeline(tree.root, report=lines).build() as built:
            statuses.extend(entry.status for entry in built.entries)

    thread = threading.Thread(target=build)
    thread.start()
    return thread, lines, statuses, waits


def test_a_waiter_goes_on_when_the_one_it_waits_for_dies(factory: Factory, trace: Path, tmp_path: Path) -> None:
    tree = factory.project(stub("one", "slow", seconds=3))
    builder = Builder(tree.root).ready().go()
    builder.wait_for("compiling")
    thread, lines, statuses, waits = waiting(tree)
    assert waits.wait(60)
    assert f"waiting for process {builder.process.pid}, since " in lines.of("detector.one")[0]
    kill(builder)
    start = time.monotonic()
    thread.join(60)
    assert statuses == ["compiled"]
    assert time.monotonic() - start < 30
    assert counts(trace)["compile"] == 2


def test_a_waiter_takes_what_the_other_one_made(factory: Factory, trace: Path) -> None:
    tree = factory.project(stub("one", "slow", seconds=3))
    builder = Builder(tree.root).ready().go()
    builder.wait_for("compiling")
    thread, _, statuses, waits = waiting(tree)
    assert waits.wait(60)
    thread.join(60)
    assert statuses == ["hit"]
    assert [entry["status"] for entry in builder.end()] == ["compiled"]
    assert counts(trace)["compile"] == 1


def test_a_failure_is_not_shared(factory: Factory, trace: Path) -> None:
    """Two builds of an identity that fails: each finds out by itself, nothing is published, neither hangs."""
    tree = factory.project(stub("one", "fail"))
    builders = [Builder(tree.root).ready() for _ in range(2)]
    for builder in builders:
        builder.go()
    for builder in builders:
        (entry,) = builder.end()
        assert entry["status"] == "failed"
        assert "the stub fails as it was told" in entry["error"]
    assert counts(trace)["compile"] == 2
