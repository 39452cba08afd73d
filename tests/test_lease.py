"""Locks and leases over real threads and processes, which are killed without warning."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest
import store_support as support

from hatch_epctx.errors import StoreError
from hatch_epctx.lease import Lease, is_leased, lock, unleased

NAME = uuid.UUID(int=7).hex


def _namespaces() -> bool:
    try:
        probe = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture
def leases(tmp_path: Path) -> Path:
    folder = tmp_path / "leases"
    folder.mkdir()
    return folder


def test_sixteen_processes_hold_one_lock_one_at_a_time(tmp_path: Path) -> None:
    tally = tmp_path / "tally"
    tally.write_text("0")
    with ExitStack() as stack:
        children = [stack.enter_context(support.Child("tally", tmp_path / "a.lock", tally, 10)) for _ in range(16)]
        for child in children:
            child.start()
        for child in children:
            assert child.process.wait(timeout=60) == 0
    assert tally.read_text() == "160"


def test_sixteen_threads_hold_one_lock_one_at_a_time(tmp_path: Path) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(5):
            with lock(tmp_path / "a.lock"):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 80


def test_waiters_hear_of_the_owner_and_give_up_in_time(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.lock"
    heard: list[str] = []
    with support.Child("lock", path) as holder:
        start = time.monotonic()
        with pytest.raises(StoreError) as caught, lock(path, timeout=0.5, on_wait=heard.append):
            pass
        assert 0.5 <= time.monotonic() - start < 5
        assert heard == [heard[0]]
        assert re.fullmatch(rf"process {holder.said}, since \d\d:\d\d:\d\d", heard[0])
        assert caught.value.reason == "lock-timeout"
        assert heard[0] in str(caught.value)
        with pytest.raises(StoreError), lock(path, timeout=0):
            pass
        holder.go()
    with lock(path, timeout=0):
        pass
    assert path.exists()
    assert not path.with_suffix(".owner").exists()


@pytest.mark.parametrize("note", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1, "since": 1e300}', "x" * 9000, '{"pid":1}'])
def test_a_note_that_says_nothing_sensible_names_no_owner(tmp_path: Path, note: str) -> None:
    path = tmp_path / "a.lock"
    with support.Child("lock", path):
        path.with_suffix(".owner").write_text(note)
        with pytest.raises(StoreError, match="by another process"), lock(path, timeout=0.01):
            pass


def test_a_thread_names_its_own_process_and_never_waits_for_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    errors: list[str] = []

    def other() -> None:
        try:
            with lock(path, timeout=0.01):
                pass
        except StoreError as error:
            errors.append(str(error))

    with lock(path):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError, match="already"), lock(path):
            pass
        with pytest.raises(RuntimeError, match="already"), lock(Path(os.path.relpath(path))):
            pass
    assert "another thread of this process" in errors[0]
    with lock(path, timeout=0):
        pass


def test_a_waiter_takes_over_when_the_owner_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    with support.Child("lock", path) as holder:
        killer = threading.Timer(0.4, holder.kill)
        killer.start()
        with lock(path, timeout=30):
            assert killer.finished.is_set()
        killer.join()


def test_lock_files_deleted_by_hand_do_not_let_two_in(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    order: list[str] = []

    def wait() -> None:
        with lock(path):
            order.append("waiter in")
            time.sleep(0.3)
            order.append("waiter out")

    with support.Child("lock", path) as holder:
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.2)
        path.unlink()
        holder.go()
        time.sleep(0.2)  # the waiter holds the file that is there now
        with lock(path):
            order.append("next in")
        thread.join()
    assert order == ["waiter in", "waiter out", "next in"]


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError), lock(tmp_path / "a.lock"):  # noqa: PT011
        pass
    assert not (tmp_path / "victim").exists()


def test_an_exception_in_the_block_gives_the_lock_up(tmp_path: Path) -> None:
    with pytest.raises(KeyError), lock(tmp_path / "a.lock"):
        raise KeyError
    with lock(tmp_path / "a.lock", timeout=0):
        pass


def test_a_program_started_by_the_holder_inherits_nothing(tmp_path: Path, leases: Path) -> None:
    with lock(tmp_path / "a.lock"), Lease.acquire(leases, NAME):
        sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False)
    try:
        with lock(tmp_path / "a.lock", timeout=0):
            pass
        assert not is_leased(leases, NAME)
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_lease_lasts_until_it_is_closed(leases: Path) -> None:
    assert not is_leased(leases, NAME)
    first, second = Lease.acquire(leases, NAME), Lease.acquire(leases, NAME)
    assert is_leased(leases, NAME)
    first.close()
    first.close()
    assert is_leased(leases, NAME)
    assert not is_leased(leases, uuid.UUID(int=8).hex)
    second.close()
    assert not is_leased(leases, NAME)
    assert not (leases / NAME).exists()


def test_a_lease_ends_with_its_process(leases: Path) -> None:
    with support.Child("lease", leases, NAME, "the note") as child, support.Child("lease", leases, NAME) as other:
        assert is_leased(leases, NAME)
        other.go()
        assert is_leased(leases, NAME)
        child.kill()
        assert not is_leased(leases, NAME)
        assert [path.read_bytes() for path in (leases / NAME).iterdir()] == [b"the note"]
        with unleased(leases, NAME) as notes:
            assert notes == ("the note",)
        assert not (leases / NAME).exists()


def test_a_living_lease_bars_removal_and_leaves_dead_ones_alone(leases: Path) -> None:
    with support.Child("lease", leases, NAME, "dead") as child, Lease.acquire(leases, NAME) as mine:
        child.kill()
        with unleased(leases, NAME) as notes:
            assert notes is None
        assert len(list((leases / NAME).iterdir())) == 2
        with unleased(leases, NAME, besides=mine) as notes:
            assert notes == ("dead",)
        assert is_leased(leases, NAME)


def test_no_lease_begins_while_removal_is_decided(leases: Path) -> None:
    began: list[float] = []

    def claim() -> None:
        with Lease.acquire(leases, NAME):
            began.append(time.monotonic())

    with unleased(leases, NAME) as notes:
        assert notes == ()
        thread = threading.Thread(target=claim)
        thread.start()
        time.sleep(0.2)
        end = time.monotonic()
    thread.join()
    assert began[0] >= end


def test_an_error_while_removing_keeps_the_notes(leases: Path) -> None:
    with support.Child("lease", leases, NAME, "dead") as child:
        child.kill()
    with pytest.raises(KeyError), unleased(leases, NAME):
        raise KeyError
    with unleased(leases, NAME) as notes:
        assert notes == ("dead",)


def test_what_is_no_claim_of_ours_counts_as_dead(leases: Path, tmp_path: Path) -> None:
    claims = leases / NAME
    claims.mkdir()
    (claims / "link.lease").symlink_to(tmp_path / "victim")
    (claims / "folder").mkdir()
    os.mkfifo(claims / "pipe")
    assert not is_leased(leases, NAME)
    assert not (tmp_path / "victim").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_neither_keeps_a_lease_nor_ends_it(leases: Path) -> None:
    with support.Child("fork", leases, NAME) as parent:
        pid = int(parent.said)
        try:
            time.sleep(0.2)  # the child has closed what it believed to be its lease
            assert is_leased(leases, NAME)
            parent.start()
            assert parent.line() == "closed"
            os.kill(pid, 0)  # the child lives on
            assert not is_leased(leases, NAME)
        finally:
            os.kill(pid, 9)
        parent.go()


def test_a_fork_at_the_worst_moment_copies_no_lock(tmp_path: Path) -> None:
    """A thread takes a lock while another one forks. The process is killed, its child lives on, the lock is free."""
    path = tmp_path / "a.lock"
    with support.Child("forks", path) as parent:
        child = int(parent.said)
        try:
            parent.kill()
            with lock(path, timeout=5):
                os.kill(child, 0)
        finally:
            os.kill(child, 9)


@pytest.mark.skipif(not _namespaces(), reason="may not make PID namespaces here")
def test_leases_hold_across_pid_namespaces_and_end_with_the_container(leases: Path) -> None:
    """As between containers that share a folder: process numbers mean nothing to the other, locks do."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
    inner = [*command, *support.command_line("lease", leases, NAME, "from inside")]
    container = subprocess.Popen(
        inner, env=support.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert container.stdout is not None
        assert container.stdout.readline() == "ready\n"
        assert is_leased(leases, NAME)
        with unleased(leases, NAME) as notes:
            assert notes is None
        container.kill()  # its standard input stays open: the child inside is killed, and does not end by itself
        end = time.monotonic() + 10
        while is_leased(leases, NAME) and time.monotonic() < end:
            time.sleep(0.05)
        with unleased(leases, NAME) as notes:
            assert notes == ("from inside",)
    finally:
        container.kill()
        container.communicate()


@pytest.mark.skipif(not _namespaces(), reason="may not make PID namespaces here")
def test_a_waiter_in_another_container_is_told_the_right_name(tmp_path: Path) -> None:
    """Both are process 1 of their namespaces: neither takes the other for itself."""
    path = tmp_path / "a.lock"
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    holder = subprocess.Popen(
        [*command, *support.command_line("lock", path)],
        env=support.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "1\n"
        waiter = subprocess.run(
            [*command, *support.command_line("wait", path, 0.5)],
            env=support.environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        assert re.fullmatch(r"process 1, since \d\d:\d\d:\d\d\n", waiter.stdout)
    finally:
        holder.kill()
        holder.communicate()


@pytest.mark.parametrize(
    ("host", "shown"), [("build-7.example", " on build-7.example"), ("\x1b[31m", ""), ("x" * 99, ""), (5, " on 5")]
)
def test_another_host_is_named_if_it_is_a_name(tmp_path: Path, host: object, shown: str) -> None:
    path = tmp_path / "a.lock"
    with support.Child("lock", path):
        note = {"pid": 17, "since": 0, "host": host, "process": "another"}
        path.with_suffix(".owner").write_text(json.dumps(note))
        with pytest.raises(StoreError, match=f"by process 17{shown}, since"), lock(path, timeout=0.01):
            pass


def test_patience_begins_anew_with_the_next_holder(tmp_path: Path) -> None:
    """Sixteen that wait for one failing compile after the other do not all give up because the first was slow."""
    path = tmp_path / "a.lock"
    note = path.with_suffix(".owner")
    with support.Child("lock", path) as holder:

        def relieve() -> None:
            time.sleep(0.3)
            note.write_text(json.dumps({"pid": 4711, "since": 1}))
            time.sleep(0.4)
            holder.go()

        thread = threading.Thread(target=relieve)
        thread.start()
        start = time.monotonic()
        with lock(path, timeout=0.5):
            assert time.monotonic() - start > 0.5
        thread.join()


def test_a_lease_that_cannot_be_written_leaves_nothing(leases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_TEST", "1")
    monkeypatch.setenv("EPCTX_TEST_FAULT", "claim-made:ENOSPC")
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0  # noqa: PTH208
    with pytest.raises(OSError, match="No space"):
        Lease.acquire(leases, NAME)
    assert not (leases / NAME).exists()
    if before:
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_claims_that_come_and_go_at_once_are_never_lost(leases: Path) -> None:
    failures: list[str] = []

    def claim() -> None:
        for _ in range(30):
            with Lease.acquire(leases, NAME), unleased(leases, NAME) as notes:
                if notes is not None:
                    failures.append("a living claim was not seen")

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not (leases / NAME).exists()
