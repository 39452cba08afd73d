"""Running commands on buildbox-casd's Execution service."""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from reapi_server import Casd, Script, Wire, free_port

from hatch_epctx.remote.action import Input, RemoteCommand, action_of
from hatch_epctx.remote.blobs import blob_of
from hatch_epctx.remote.endpoint import read_endpoint
from hatch_epctx.remote.executor import Executor
from hatch_epctx.remote.faults import RemoteError
from hatch_epctx.remote.proto import reapi_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.reapi


@pytest.fixture(scope="module")
def casd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Casd]:
    with Casd(tmp_path_factory.mktemp("casd"), execute=True) as server:
        yield server


@pytest.fixture
def executor(casd: Casd) -> Iterator[Executor]:
    made = executor_at(casd.url)
    yield made
    made.close()


def executor_at(url: str) -> Executor:
    return Executor(read_endpoint(url, {"EPCTX_REMOTE_RETRIES": "2"}, where="test"))


@contextmanager
def executor_closed(url: str) -> Iterator[Executor]:
    made = executor_at(url)
    try:
        yield made
    finally:
        made.close()


def text(location: str, content: str, **more: Any) -> Input:
    data = content.encode()
    return Input(location=location, blob=blob_of(data), data=data, **more)


def python(code: str, *inputs: Input, timeout: float = 60, **environment: str) -> RemoteCommand:
    """A Python program over some inputs, in the folder ``job``."""
    return RemoteCommand(
        arguments=(sys.executable, "-I", "epctx/program.py"),
        inputs=(text("epctx/program.py", f"import os; os.chdir('job')\n{code}"), *inputs),
        folder="job",
        environment=environment,
        platform={},
        timeout=timeout,
    )


DOUBLE = """
import os, sys
from pathlib import Path
Path("out.bin").write_bytes(Path("in.bin").read_bytes() * 2)
Path("names.txt").write_text(" ".join(sorted(os.listdir("."))))
print("said", os.environ["WORD"])
print("warned", file=sys.stderr)
Path("empty").touch()
sys.exit(3)
"""


def test_a_command_runs_over_its_inputs(executor: Executor, tmp_path: Path) -> None:
    big = bytes(range(256)) * (5 << 12)
    (tmp_path / "in.bin").write_bytes(big)
    inputs = (
        Input(location="job/in.bin", blob=blob_of(big), path=tmp_path / "in.bin"),
        text("job/keep.txt", "kept"),
    )
    command = python(DOUBLE, *inputs, WORD="hello")
    for attempt in range(2):
        folder = tmp_path / f"out-{attempt}"
        folder.mkdir()
        execution = executor.run(command, folder)
        assert execution.exit_code == 3
        assert {item.name for item in execution.outputs} == {"empty", "names.txt", "out.bin"}
        assert (folder / "out.bin").read_bytes() == big * 2
        assert (folder / "names.txt").read_text() == "in.bin keep.txt out.bin"
        assert (folder / "empty").read_bytes() == b""
        assert execution.unchanged == ("in.bin", "keep.txt")
        assert b"said hello" in execution.log
        assert b"warned" in execution.log


def test_an_equal_command_comes_from_the_cache(executor: Executor, tmp_path: Path) -> None:
    command = python("import time; open('t', 'w').write(str(time.time()))")
    texts = []
    for name, fresh in (("a", False), ("b", False), ("c", True)):
        (tmp_path / name).mkdir()
        execution = executor.run(command, tmp_path / name, fresh=fresh)
        texts.append(((tmp_path / name / "t").read_text(), execution.cached))
    assert texts[0][0] == texts[1][0] != texts[2][0]
    assert [cached for _, cached in texts] == [False, True, False]


def test_a_command_beyond_its_time_is_an_error(executor: Executor, tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(RemoteError):
        executor.run(python("import time; time.sleep(60)", timeout=1), tmp_path)
    assert time.monotonic() - start < 20


def test_folders_left_behind_do_not_come_back(executor: Executor, tmp_path: Path) -> None:
    """Neither those of the inputs nor those that the command made, whatever is in them."""
    code = "import os; os.mkdir('d'); os.symlink('/etc', 'd/l'); open('d/x', 'w').write('x'); open('y', 'w').write('y')"
    execution = executor.run(python(code, text("job/in/z", "z")), tmp_path)
    assert [item.name for item in execution.outputs] == ["y"]
    assert [path.name for path in tmp_path.iterdir()] == ["y"]


def test_a_closed_executor_cancels_on_the_service(casd: Casd, tmp_path: Path) -> None:
    """Two at one time; what they run has ended when the executor is closed, and not at its time limit."""
    marks = [f"epctx-cancelled-{number}-{os.getpid()}" for number in range(2)]
    ended: list[BaseException] = []

    def run(executor: Executor, mark: str) -> None:
        (tmp_path / mark).mkdir()
        try:
            executor.run(python(f"import time; time.sleep(90)  # {mark}", text("job/mark", mark)), tmp_path / mark)
        except RemoteError as error:
            ended.append(error)

    with executor_closed(casd.url) as executor:
        threads = [threading.Thread(target=run, args=(executor, mark)) for mark in marks]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(sleeping(casd)) == 2)
        start = time.monotonic()
        executor.close()
        for thread in threads:
            thread.join(30)
        assert time.monotonic() - start < 30
        assert executor.round_trips["CancelOperation"] == 2
        assert len(ended) == 2
    wait_until(lambda: not sleeping(casd))


def test_an_interrupt_of_the_waiting_thread_cancels_on_the_service(
    casd: Casd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_self: Executor, _running: Any, _name: str) -> None:
        original(_self, _running, _name)
        raise KeyboardInterrupt

    original = Executor._named
    monkeypatch.setattr(Executor, "_named", interrupted)
    with executor_closed(casd.url) as executor:
        with pytest.raises(KeyboardInterrupt):
            executor.run(python("import time; time.sleep(91)"), tmp_path)
        assert executor.round_trips["CancelOperation"] == 1
    wait_until(lambda: not sleeping(casd))


def test_an_action_that_somebody_else_cancelled_is_run_again(casd: Casd, tmp_path: Path) -> None:
    """A service may make one operation of two clients' equal actions."""
    with executor_closed(casd.url) as executor, executor_closed(casd.url) as other:
        names: list[str] = []
        original = executor._named
        executor._named = lambda running, name: (names.append(name), original(running, name))[1]  # type: ignore[method-assign]
        thread = threading.Thread(
            target=lambda: (wait_until(lambda: bool(sleeping(casd))), other._cancel([names[0]], 5)), daemon=True
        )
        thread.start()
        execution = executor.run(python("import time; time.sleep(4); open('done', 'w').close()"), tmp_path)
        thread.join()
    assert [item.name for item in execution.outputs] == ["done"]
    assert executor.round_trips["Execute"] == 2


@pytest.mark.parametrize("silent", [False, True])
def test_a_service_that_cannot_cancel_holds_nobody_up(tmp_path: Path, *, silent: bool) -> None:
    """It knows no such method, or does not answer: the executor is closed all the same."""
    release = threading.Event()

    def execute(_request: Any, _context: Any) -> Iterator[Any]:
        yield pb.Operation(name="one")
        release.wait(60)

    def cancel(_request: Any, context: Any) -> bytes:
        if silent:
            release.wait(60)
        else:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
        return b""

    with Script() as script:
        script.executes = True
        script.faults = {"Execute": execute, "CancelOperation": cancel}
        with executor_closed(script.url) as executor:
            ended = threading.Event()

            def run() -> None:
                with pytest.raises(RemoteError):
                    executor.run(python("pass"), tmp_path)
                ended.set()

            threading.Thread(target=run).start()
            wait_until(lambda: "Execute" in script.calls)
            executor.close()
            assert ended.wait(20)
            assert "CancelOperation" in script.calls
        release.set()


def sleeping(casd: Casd) -> list[int]:
    """Programs of `python` that casd runs now."""
    return [
        int(entry.name)
        for entry in Path("/proc").glob("[0-9]*")
        if b"epctx/program.py" in _words(entry)[2:] and casd.process.pid in _ancestors(int(entry.name))
    ]


def _words(entry: Path) -> list[bytes]:
    try:
        words = (entry / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return words if b"python" in words[0] else []


def _ancestors(process: int) -> Iterator[int]:
    with suppress(OSError):
        while process > 1:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
            yield process


def wait_until(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not there():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


def test_what_was_sent_once_is_not_asked_for_again(casd: Casd, tmp_path: Path) -> None:
    """Unless the service lost it meanwhile."""
    with executor_closed(casd.url) as executor:
        for attempt, code in enumerate(("pass", "print()", "print(2)")):
            (tmp_path / str(attempt)).mkdir()
            executor.run(
                python(code, text("job/in.txt", "kept " * 99), text(f"job/{attempt}", "")), tmp_path / str(attempt)
            )
            if attempt == 1:
                casd.blob_path(blob_of(b"kept " * 99).digest).unlink()
        assert executor.round_trips["FindMissingBlobs"] == 4


def test_a_broken_connection_waits_on_for_the_same_action(casd: Casd, tmp_path: Path) -> None:
    command = python("import time; time.sleep(1.5); open('done', 'w').write('yes')")
    with Wire(casd.port) as wire:
        executor = executor_at(f"grpc://127.0.0.1:{wire.port}")
        try:
            threading.Timer(0.7, wire.reset).start()
            execution = executor.run(command, tmp_path)
            assert execution.exit_code == 0
            assert (tmp_path / "done").read_text() == "yes"
        finally:
            executor.close()


def test_a_service_killed_in_the_middle_is_an_error(tmp_path: Path) -> None:
    with Casd(tmp_path / "casd", execute=True) as casd:
        executor = executor_at(casd.url)
        try:
            threading.Timer(0.7, casd.kill).start()
            with pytest.raises(RemoteError) as caught:
                executor.run(python("import time; time.sleep(60)"), tmp_path)
            assert caught.value.reason == "unreachable"
        finally:
            executor.close()


def test_no_service_at_all_is_an_error(tmp_path: Path) -> None:
    executor = executor_at(f"grpc://127.0.0.1:{free_port()}")
    with pytest.raises(RemoteError) as caught:
        executor.run(python("pass"), tmp_path)
    assert caught.value.reason == "unreachable"
    executor.close()


def test_a_cache_alone_executes_nothing(tmp_path: Path) -> None:
    with Script() as script:
        executor = executor_at(script.url)
        with pytest.raises(RemoteError, match="executes nothing"):
            executor.run(python("pass"), tmp_path)
        executor.close()


def test_the_order_of_inputs_does_not_count() -> None:
    inputs = [text("job/b", "1"), text("job/a", "2"), text("epctx/x/y/z", "3"), text("epctx/x-y", "4")]
    one, _ = action_of(python("pass", *inputs, A="1", B="2"))
    other, _ = action_of(python("pass", *inputs[::-1], B="2", A="1"))
    changed, _ = action_of(python("pass", *inputs[:-1], text("epctx/x-y", "5"), A="1", B="2"))
    assert one == other != changed
