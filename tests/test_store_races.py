"""Many processes and threads on one store: one compile, and never a wrong or missing byte."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import store_support as support
from store_support import build, check, compile_into, identity_of, left_over

from hatch_epctx.store import Store

if TYPE_CHECKING:
    from pathlib import Path


def _start(command: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        support.command_line(command, *arguments),
        env=support.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _all_end_well(processes: list[subprocess.Popen[str]]) -> list[str]:
    said = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        said.append(out.strip())
    return said


def test_sixteen_processes_compile_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = _all_end_well([_start("build", tmp_path / "cache", "m", log, "0.2") for _ in range(16)])
    assert said == ["selected"] * 16
    assert len(log.read_text().splitlines()) == 1
    left = left_over(Store(tmp_path / "cache"))
    assert len(left.pop("generations")) == 1
    assert not any(left.values()), left


def test_sixteen_threads_compile_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    _all_end_well([_start("threads", tmp_path / "cache", "m", log, 16)])
    assert len(log.read_text().splitlines()) == 1


def test_threads_of_several_processes_compile_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    _all_end_well([_start("threads", tmp_path / "cache", "m", log, 4) for _ in range(4)])
    assert len(log.read_text().splitlines()) == 1


def test_different_identities_compile_side_by_side(tmp_path: Path) -> None:
    log = tmp_path / "log"
    start = time.monotonic()
    _all_end_well([_start("build", tmp_path / "cache", f"m{number}", log, "3") for number in range(4)])
    assert len(log.read_text().splitlines()) == 4
    assert time.monotonic() - start < 11  # one after the other would take 12


def test_a_builder_takes_over_from_a_killed_one(tmp_path: Path) -> None:
    store, identity = Store(tmp_path / "cache"), identity_of("m")
    with build(store, identity_of("warm")):
        pass
    doomed = _start("build", store.root, "m", tmp_path / "log", "60")
    while not (tmp_path / "log").exists():
        time.sleep(0.01)
    heard: list[str] = []
    with ExitStack() as stack:
        stack.callback(doomed.communicate)
        stack.callback(doomed.kill)
        with pytest.raises(Exception, match=str(doomed.pid)), store.lock(identity, timeout=0.3, on_wait=heard.append):
            pass
        assert str(doomed.pid) in heard[0]
        doomed.kill()
        with build(store, identity) as generation:
            check(generation, identity)


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_readers_see_whole_generations_while_others_replace_and_collect_them(tmp_path: Path, seconds: int) -> None:
    root = tmp_path / "cache"
    compile_into(Store(root), identity_of("m"), salt="first").close()
    churn = [_start("churn", root, "m", seconds)]
    readers = [_start("read", root, "m", seconds) for _ in range(3)]
    counts = [int(text) for text in _all_end_well(churn + readers)]
    assert all(count > 5 for count in counts), counts
    left = left_over(Store(root))
    assert not left["leases"]
    assert not left["temporary"]
