"""kill -9 of real builds at random moments: nothing half-written is visible, and the next build is right.

`test_store_faults` kills at each step of a publish; here a whole build with OpenVINO is hit anywhere, by the clock.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest
from store_support import left_over
from support import OPENVINO_TARGET, REPOSITORY, Factory, Tree, epctx

from hatch_epctx.files import remove_tree
from hatch_epctx.store import Generation, Store
from hatch_epctx.store.records import parse_marker

pytestmark = [
    pytest.mark.ep_openvino,
    pytest.mark.skipif(sys.platform != "linux", reason="finds workers through /proc"),
]

Artifacts = dict[str, list[str]]


@dataclass
class Campaign:
    """Builds of one project that are killed, each followed by one that is not."""

    tree: Tree
    cache: Path
    seed: int
    stages: Counter[str] = field(default_factory=Counter)
    """How far the killed builds had come, for the figures."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311  # moments to kill at
        self.reference = self.build()
        self.forget()
        start = time.monotonic()
        assert self.build() == self.reference, "two builds agree"
        self.seconds = time.monotonic() - start
        start = time.monotonic()
        epctx("plan", cwd=self.tree.root, env=self.environment)
        self.begins = min(time.monotonic() - start, self.seconds)
        """Seconds until the first compile, about."""
        """Of one build that compiles everything and has read everything before."""

    @property
    def store(self) -> Store:
        return Store(self.cache)

    def build(self) -> Artifacts:
        """A whole build: every variant with the digests of its artifacts."""
        rows = epctx("build", "--json", cwd=self.tree.root, env=self.environment).json["variants"]
        assert {row["status"] for row in rows} <= {"hit", "compiled"}
        return {row["variant"]: [item["sha256"] for item in row["artifacts"]] for row in rows}

    @property
    def environment(self) -> dict[str, str]:
        return {"EPCTX_CACHE_DIR": str(self.cache), "EPCTX_JOBS": "2"}

    def forget(self) -> None:
        """Have everything compiled again: as if the user had cleared what was published."""
        for marker in self.store.layout.markers.rglob("*.json"):
            generation = parse_marker(marker.read_bytes(), marker.stem).generation
            marker.unlink()
            remove_tree(self.store.layout.generations / generation)

    def round(self) -> None:
        """Kill one build somewhere, look, and build."""
        self.forget()
        with (self.cache.parent / "said").open("w+") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "hatch_epctx", "build"],
                cwd=self.tree.root,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY), **self.environment},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
            victim = self.strike(process, log)
            code = process.wait(timeout=300)
            log.seek(0)
            said = log.read()
        self.stages[stage(victim, said, code)] += 1
        assert "Traceback" not in said, said
        self.check_visible()
        self.check_workers_end()
        assert self.build() == self.reference
        plan = epctx("plan", "--json", cwd=self.tree.root, env=self.environment).json["variants"]
        assert {row["status"] for row in plan} == {"hit"}

    def strike(self, process: subprocess.Popen[bytes], log: IO[str]) -> str:
        """Kill the build or one of its workers, in most rounds after the first compile has begun."""
        moment = self.random.uniform(0.05, self.seconds)
        if self.random.random() < 0.75:
            while process.poll() is None and ": compiling" not in self.read(log):
                time.sleep(0.01)
            moment = self.random.uniform(0.0, self.seconds - self.begins)
        time.sleep(moment)
        workers = self.workers()
        if workers and self.random.random() < 0.3:
            kill(self.random.choice(workers))
            return "worker"
        process.kill()
        return "build"

    def read(self, log: IO[str]) -> str:
        return Path(log.name).read_text()

    def workers(self) -> list[int]:
        """Processes whose working folder is in the store."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    folder = os.readlink(entry / "cwd")  # noqa: PTH115  # of a process that may be gone by now
                except OSError:
                    continue
                if folder.startswith(str(self.cache)):
                    found.append(int(entry.name))
        return found

    def check_visible(self) -> None:
        """Whatever the store shows is whole."""
        store = self.store
        shown = [path for path in store.layout.markers.rglob("*") if path.is_file() and not path.name.startswith(".")]
        for marker in shown:
            found = store.find(marker.stem)
            assert isinstance(found, Generation), found
            with found:
                digests = [item.digest for item in found.record.artifacts]
                assert digests in self.reference.values()

    def check_workers_end(self) -> None:
        """Workers of a dead build die with it."""
        end = time.monotonic() + 20
        while self.workers():
            assert time.monotonic() < end, "a worker outlived its build"
            time.sleep(0.05)

    def check_swept(self) -> None:
        """Of all the dead builds nothing is left once a sweep has gone over the store."""
        store = self.store
        assert store.sweep_dead().finished
        found = left_over(store)
        markers = [json.loads(path.read_bytes())["generation"] for path in store.layout.markers.rglob("*.json")]
        assert (found["staging"], found["leases"]) == ([], [])
        assert found["generations"] == sorted(markers)


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def stage(victim: str, said: str, code: int) -> str:
    """How far a build had come when it was hit."""
    if code == 0:
        return "finished before the kill"
    if victim == "worker":
        return "worker killed"
    compiled, begun = said.count(": compiled "), said.count(": compiling ")
    if not begun:
        return "before the first compile"
    return "between publishing" if compiled else "compiling, nothing published"


def campaign(factory: Factory, tmp_path: Path, rounds: int, seed: int) -> Campaign:
    tree = factory.project(OPENVINO_TARGET, models=("detector", "segmenter"))
    found = Campaign(tree, tmp_path / "cache", seed)
    for _ in range(rounds):
        found.round()
    found.check_swept()
    print(f"one build took {found.seconds:.1f} s; {rounds} kills: {dict(found.stages.most_common())}")
    return found


def test_builds_that_are_killed_leave_nothing_half_written(factory: Factory, tmp_path: Path) -> None:
    campaign(factory, tmp_path, rounds=4, seed=20)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_fifty_builds_that_are_killed_leave_nothing_half_written(factory: Factory, tmp_path: Path) -> None:
    assert sum(campaign(factory, tmp_path, rounds=50, seed=5).stages.values()) == 50
