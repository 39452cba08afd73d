"""Running workers: isolation, limits, causes of death, untrusted results. The faults are a stub EP's."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import small_model
from worker_support import put, result_of, run, stub

from hatch_epctx.process import kill_workers, run_worker, worker_environment, worker_runs
from hatch_epctx.process.logs import log_tail
from hatch_epctx.process.results import RESULT_LIMIT, read_result
from hatch_epctx.worker.protocol import FORMAT, RESULT_NAME

REPOSITORY = Path(__file__).parent.parent

posix = pytest.mark.skipif(os.name != "posix", reason="process groups and signals")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return put(small_model(), tmp_path / "job")


def script(tmp_path: Path, body: str) -> Path:
    """A worker program of a test's own: `body` may use `answer(**fields)` to write a good scan result."""
    path = tmp_path / "program.py"
    path.write_text(
        "import json, os, sys, time\n"
        "def answer(**extra):\n"
        "    scan = dict(inputs=[], outputs=[], external_data=[], nodes=1, opsets={}, denotations=[],\n"
        "                context_sources=[], embedded_size=0)\n"
        f"    value = dict(format={FORMAT}, ok=True, scan=scan, extra=extra)\n"
        "    open('result.json', 'w').write(json.dumps(value))\n"
        f"{body}\n",
        encoding="utf-8",
    )
    return path


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody reaped yet has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


# -- What a worker sees --------------------------------------------------------------------------------------------


@posix
def test_the_environment_is_the_allow_list_and_what_the_target_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("LD_PRELOAD", "")
    program = script(tmp_path, "answer(env=dict(os.environ), cwd=os.getcwd())")
    outcome = run_worker({"task": "scan"}, tmp_path, timeout=30, env={"ORT_FLAG": "1"}, program=program)
    seen = result_of(outcome)["extra"]
    seen["env"].pop("LC_CTYPE", None)  # Python's own coercion of the C locale
    assert seen["env"] == {
        "HOME": ".",
        "LANG": "C.UTF-8",
        "ORT_DISABLE_TELEMETRY": "1",
        "ORT_FLAG": "1",
        "PATH": "/usr/bin:/bin",
        "TMPDIR": ".",
        "TZ": "UTC",
    }
    assert Path(seen["cwd"]) == tmp_path.resolve()


@posix
def test_no_path_stands_in_the_environment(tmp_path: Path) -> None:
    assert worker_environment(tmp_path / "a", {}) == worker_environment(tmp_path / "another", {})


def test_the_import_path_is_the_parents_without_the_cwd(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "extra" / "seen_procedure.py"
    module.parent.mkdir()
    module.write_text(
        "import sys\ndef run(job):\n    return dict(format=job['format'], ok=False, reason='ep-error',\n"
        "        error='x', extra=dict(path=sys.path))\n"
    )
    (folder / "json.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.setattr(sys, "path", ["", *sys.path, str(module.parent)])
    result = result_of(run({}, folder, procedure="seen_procedure"))
    assert str(module.parent) in result["extra"]["path"]
    assert not {"", ".", str(folder)} & set(result["extra"]["path"])


@posix
def test_a_worker_leads_a_session_without_a_terminal_and_writes_no_core(tmp_path: Path, folder: Path) -> None:
    module = tmp_path / "limits_procedure.py"
    module.write_text(
        "import os, resource\ndef run(job):\n    return dict(format=job['format'], ok=False, reason='ep-error',\n"
        "        error='x', extra=dict(sid=os.getsid(0), group=os.getpgid(0), stdin=os.read(0, 1) == b'',\n"
        "        core=resource.getrlimit(resource.RLIMIT_CORE)))\n"
    )
    result = result_of(run({}, folder, procedure="limits_procedure", sys_path=[*sys.path, str(tmp_path)]))
    facts = result["extra"]
    assert facts["sid"] == facts["group"] != os.getsid(0)
    # 1 keeps Linux from handing a core to a handler, too; where the hard limit is 0, that is as low as it gets.
    assert facts["core"] in ([1, 1], [0, 0])
    assert facts["stdin"]


def test_runs_are_counted_and_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / "trace"
    monkeypatch.setenv("EPCTX_TRACE_WORKERS", str(trace))
    before = worker_runs().get("scan", 0)
    program = script(tmp_path, "answer()")
    with ThreadPoolExecutor(8) as pool:
        folders = [tmp_path / str(index) for index in range(16)]
        for each in folders:
            each.mkdir()
        outcomes = list(
            pool.map(lambda each: run_worker({"task": "scan"}, each, timeout=60, env={}, program=program), folders)
        )
    assert all(result_of(outcome)["ok"] for outcome in outcomes)
    assert worker_runs()["scan"] == before + 16
    assert trace.read_text() == "scan\n" * 16


# -- How a worker ends ---------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize(
    ("mode", "cause", "words"),
    [
        ("crash-before", "exit", "ended with exit status 3"),
        ("crash-after", "exit", "ended with exit status 3"),
        ("crash-late", "exit", "ended with exit status 3"),
        ("abort", "signal", "was killed by SIGABRT (it aborted)"),
        ("kill", "signal", "was killed by SIGKILL (often the system, out of memory)"),
        ("exit-zero", "no-result", "ended without a usable result (result.json: No such file"),
        ("bad-result", "no-result", "ended without a usable result (result.json: result.artifacts is no list"),
        ("huge-result", "no-result", "ended without a usable result (result.json: holds more than 16777216 bytes"),
    ],
)
def test_the_cause_of_death_in_words(folder: Path, mode: str, cause: str, words: str) -> None:
    outcome = run(stub(mode), folder)
    assert (outcome.cause, outcome.result) == (cause, None)
    assert outcome.death.startswith(words), outcome.death
    assert outcome.signal == {"abort": "SIGABRT", "kill": "SIGKILL"}.get(mode, "")
    assert outcome.exit_code == {"exit": 3, "no-result": 0}.get(cause)


def test_a_success(folder: Path) -> None:
    outcome = run(stub(), folder)
    assert (outcome.cause, outcome.exit_code, outcome.signal) == ("exit", 0, "")
    assert result_of(outcome)["ok"]
    assert 0 < outcome.seconds < 60


def test_an_unexpected_exception_is_a_result_with_a_traceback_in_the_log(folder: Path) -> None:
    outcome = run(stub("raise"), folder)
    result = result_of(outcome)
    assert result["reason"] == "ep-error"
    assert result["error"] == "the worker's procedure failed: RuntimeError: nobody expects this in deep/inside"
    assert "Traceback" in outcome.log_tail


def test_a_procedure_that_cannot_be_imported(folder: Path) -> None:
    result = result_of(run({}, folder, procedure="no_such_procedure"))
    assert "No module named 'no_such_procedure'" in result["error"]


def test_another_format_is_refused(folder: Path) -> None:
    result = result_of(run({}, folder, task="scan", format=FORMAT, procedure="hatch_epctx.worker.procedure"))
    assert result["ok"]
    outcome = run({}, folder, task="scan", format=FORMAT + 1)
    assert "format" in result_of(outcome)["error"]


@posix
def test_a_time_limit_kills_the_whole_group(folder: Path) -> None:
    outcome = run(stub("hang-child"), folder, timeout=8)
    assert 8 <= outcome.seconds < 60
    assert (outcome.cause, outcome.result) == ("timeout", None)
    assert outcome.death == "was still running after its time limit of 8 s and was killed"
    grandchild = int((folder / "grandchild.pid").read_text())
    wait_until(lambda: not alive(grandchild))


@posix
def test_what_a_worker_leaves_behind_is_killed(folder: Path) -> None:
    assert result_of(run(stub("leave-child"), folder))["ok"]
    grandchild = int((folder / "grandchild.pid").read_text())
    wait_until(lambda: not alive(grandchild))


@posix
def test_kill_workers_ends_all_of_them(tmp_path: Path) -> None:
    folders = [put(small_model(), tmp_path / str(index)) for index in range(2)]
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(run, stub("hang"), each) for each in folders]
        wait_until(lambda: all((each / "hanging").exists() for each in folders))
        kill_workers()
        outcomes = [future.result(timeout=60) for future in futures]
    assert [(outcome.cause, outcome.signal) for outcome in outcomes] == [("signal", "SIGKILL")] * 2


PARENT = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from worker_support import run, stub
try:
    run(stub("hang-child"), Path(sys.argv[1]), timeout=300)
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(130)
"""


def start_parent(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """Another process that runs a hanging worker; with it the numbers of all processes below it."""
    path = [str(REPOSITORY), str(REPOSITORY / "tests"), str(REPOSITORY / "tests" / "stub_ep")]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(path=path), str(folder)], stdout=subprocess.PIPE, text=True
    )
    wait_until((folder / "hanging").exists)
    below: list[int] = []
    waiting = [parent.pid]
    while waiting:
        children = Path(f"/proc/{waiting.pop()}/task").glob("*/children")
        found = [int(pid) for each in children for pid in each.read_text().split()]
        below += found
        waiting += found
    assert len(below) == 3, "a supervisor, a worker, and what the worker started"
    assert all(alive(pid) for pid in below)
    return parent, below


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_and_its_group_die_with_their_parent(folder: Path, number: signal.Signals) -> None:
    parent, below = start_parent(folder)
    parent.send_signal(number)
    parent.communicate(timeout=60)
    wait_until(lambda: not any(alive(pid) for pid in below))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_interrupt_kills_the_group_and_goes_on(folder: Path) -> None:
    parent, below = start_parent(folder)
    parent.send_signal(signal.SIGINT)
    out, _ = parent.communicate(timeout=60)
    assert (out, parent.returncode) == ("interrupted\n", 130)
    wait_until(lambda: not any(alive(pid) for pid in below))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_dies_with_its_supervisor(folder: Path) -> None:
    parent, below = start_parent(folder)
    os.kill(below[0], signal.SIGKILL)  # what the parent started
    parent.communicate(timeout=60)
    wait_until(lambda: not any(alive(pid) for pid in below))


# -- Logs ----------------------------------------------------------------------------------------------------------


def test_megabytes_of_log_do_not_block(folder: Path) -> None:
    outcome = run(stub("noisy"), folder, timeout=60)
    assert result_of(outcome)["ok"]
    assert (folder / "worker.log").stat().st_size >= 8 << 20
    assert len(outcome.log_tail) < 40 * 401


def test_a_log_without_end_is_ended(folder: Path) -> None:
    outcome = run_worker({"task": "compile", **stub("flood")}, folder, timeout=60, env={}, log_limit=2 << 20)
    assert (outcome.cause, outcome.result) == ("log-limit", None)
    assert outcome.death == "wrote more than 2 MiB of log and was killed"


def test_the_tail_is_plain_text_without_the_folder(folder: Path) -> None:
    assert run(stub("escapes"), folder).log_tail == "compiling 100%\nin deep"


def test_the_tail_is_forty_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"line {index}\n\n" for index in range(100_000)) + "x" * 1000)
    lines = log_tail(log, tmp_path).split("\n")
    assert len(lines) == 40
    assert lines[0] == "line 99961"
    assert lines[-1] == "x" * 397 + "..."
    assert log_tail(tmp_path / "absent", tmp_path) == ""


def test_the_tail_hides_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    log = tmp_path / "log"
    log.write_bytes(b"in /home/ada/.cache/x and /srv/home/ada/x and /home/adam \xff\x00\x07")
    assert log_tail(log, tmp_path) == "in ~/.cache/x and /srv/home/ada/x and /home/adam \N{REPLACEMENT CHARACTER}"


# -- Results are untrusted -----------------------------------------------------------------------------------------


def test_a_result_of_an_earlier_run_does_not_count(folder: Path) -> None:
    assert result_of(run(stub(), folder))["ok"]
    assert (folder / RESULT_NAME).exists()
    assert run(stub("exit-zero"), folder).cause == "no-result"


ARTIFACT = {"role": "model", "path": "model_ctx.onnx", "size": 1, "digest": "0" * 64}
VALUE = {"name": "x", "type": "float", "shape": [1, "n", None]}
GOOD: dict[str, Any] = {
    "format": FORMAT,
    "ok": True,
    "artifacts": [ARTIFACT],
    "inputs": [VALUE],
    "outputs": [{**VALUE, "shape": None}],
    "compatibility": "",
    "context_nodes": 1,
    "nodes_left": 0,
    "coverage": {"A": 1},
    "seconds": {"compile": 0.5},
    "metadata_lost": [],
    "extra": {"anything": [1, {"a": None}]},
}


def written(tmp_path: Path, value: object) -> Path:
    path = tmp_path / RESULT_NAME
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a_good_result_is_read(tmp_path: Path) -> None:
    assert read_result(written(tmp_path, GOOD), "compile") == GOOD


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": FORMAT + 1}, "format"),
        ({"ok": 1}, "ok is no boolean"),
        ({"ok": False}, "error is missing"),
        ({"surprise": 1}, "unknown field 'surprise'"),
        ({"artifacts": []}, "not exactly one model"),
        ({"artifacts": [ARTIFACT, ARTIFACT]}, "twice"),
        ({"artifacts": [{**ARTIFACT, "path": "../x"}]}, "artifacts[0].path"),
        ({"artifacts": [{**ARTIFACT, "path": "C:x"}]}, "artifacts[0].path"),
        ({"artifacts": [{**ARTIFACT, "size": -1}]}, "size is negative"),
        ({"artifacts": [{**ARTIFACT, "size": True}]}, "size is no integer"),
        ({"artifacts": [{**ARTIFACT, "size": 1.0}]}, "size is no integer"),
        ({"artifacts": [{**ARTIFACT, "digest": "0" * 63}]}, "digest is no digest"),
        ({"artifacts": [{**ARTIFACT, "role": "binary"}]}, "role is none of"),
        ({"artifacts": [{**ARTIFACT, "mode": 1}]}, "unknown field 'mode'"),
        ({"artifacts": [{"role": "model"}]}, "has no digest"),
        ({"artifacts": {}}, "is no list"),
        ({"inputs": [{**VALUE, "shape": [1.5]}]}, "shape[0] is no integer"),
        ({"inputs": [{**VALUE, "shape": [-1]}]}, "shape[0] is negative"),
        ({"inputs": [{**VALUE, "type": 1}]}, "type is no text"),
        ({"inputs": ["x"]}, "inputs[0] is no object"),
        ({"coverage": {"A": "1"}}, "coverage.A is no integer"),
        ({"seconds": {"compile": "1"}}, "is no duration"),
        ({"seconds": {"compile": -1}}, "is no duration"),
        ({"seconds": []}, "is no object"),
        ({"metadata_lost": [1]}, "metadata_lost[0] is no text"),
        ({"context_nodes": None}, "is no integer"),
        ({"extra": 1}, "extra is no object"),
    ],
)
def test_a_result_with_a_wrong_field_is_none(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        read_result(written(tmp_path, {**GOOD, **change}), "compile")


@pytest.mark.parametrize("name", ["artifacts", "inputs", "outputs", "compatibility", "context_nodes", "nodes_left"])
def test_a_success_has_what_its_task_owes(tmp_path: Path, name: str) -> None:
    value = {key: item for key, item in GOOD.items() if key != name}
    with pytest.raises(ValueError, match=f"{name} is missing"):
        read_result(written(tmp_path, value), "compile")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        '{"ok": true, "ok": true}',
        '{"format": 1, "ok": NaN}',
        "[" * 100_000,
        '"\\ud800"',
        "\ufeff{}",
    ],
)
def test_text_that_is_no_result(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_result(written(tmp_path, text), "compile")


def test_a_result_that_is_no_regular_file(tmp_path: Path) -> None:
    path = tmp_path / RESULT_NAME
    with pytest.raises(OSError, match="result"):
        read_result(path, "scan")
    path.mkdir()
    with pytest.raises(OSError, match="result"):
        read_result(path, "scan")
    path.rmdir()
    if os.name == "posix":
        path.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").write_text(json.dumps(GOOD))
        with pytest.raises(OSError, match="result"):
            read_result(path, "compile")
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(OSError, match="result"):  # and does not wait for a writer
            read_result(path, "compile")


def test_a_result_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD)
    path.write_bytes(path.read_bytes().ljust(RESULT_LIMIT))
    assert read_result(path, "compile") == GOOD
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(OSError, match="more than"):
        read_result(path, "compile")


def test_workers_of_several_threads_do_not_hold_each_other(tmp_path: Path) -> None:
    """A pipe or a log of one worker that another inherited would keep the first from ending."""
    slow = put(small_model(), tmp_path / "slow")
    quick = put(small_model(), tmp_path / "quick")
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run, stub("hang"), slow)
        wait_until((slow / "hanging").exists)
        assert result_of(run(stub(), quick))["ok"]
        assert not future.done()
        kill_workers()
        assert future.result(timeout=60).cause == "signal"
