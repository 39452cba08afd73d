"""Starting, watching and killing workers.

On POSIX the whole process group of a worker is killed when its time is over, when this process is interrupted, when
the worker ends and leaves others behind, and when this process dies in whatever way: the worker watches a pipe that
ends with us (``worker/__main__.py``). Processes that leave their group on purpose are not followed. On Windows a job
object stands for the group (not run here).
"""

from __future__ import annotations

import os
import signal
import subprocess  # noqa: TID251  # this package is their owner
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal

from hatch_epctx import worker
from hatch_epctx.files import atomic_write, remove_tree
from hatch_epctx.process.environment import worker_environment
from hatch_epctx.process.logs import log_tail
from hatch_epctx.process.memory import memory_in_use
from hatch_epctx.process.results import read_result
from hatch_epctx.redact import redact, secrets_of
from hatch_epctx.worker.protocol import FORMAT, JOB_NAME, LOG_NAME, RESULT_NAME, Job, Result, Task, job_bytes

if sys.platform == "win32":  # pragma: no cover
    from hatch_epctx.process.windows import start_in_job

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["LOG_LIMIT", "Cause", "Outcome", "kill_workers", "note_start", "read_outcome", "run_worker", "worker_runs"]

LOG_LIMIT: Final = 64 << 20
"""Bytes of a worker's log; a worker that writes more is killed."""
_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.05
"""Seconds between two looks at a worker."""
_LONGEST_PAUSE_OF_MEMORY: Final = 0.02
"""The same, of a worker whose memory is limited."""

Cause = Literal["exit", "signal", "timeout", "log-limit", "memory-limit", "no-result"]
Killed = Literal["timeout", "log-limit", "memory-limit"]
"""How a worker ended.

exit       by itself; with exit status 0 there is a result, with another there is none
signal     by a signal that it or somebody else sent
timeout    killed here, its time was over
log-limit  killed here, its log was too long
memory-limit  killed here, it used too much memory
no-result  by itself with exit status 0, without a readable result
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one worker."""

    task: Task
    result: Result | None
    """Only after exit status 0. `ok` in it may still be false."""
    cause: Cause
    exit_code: int | None
    """None after a signal or a kill."""
    signal: str
    """Name such as "SIGSEGV", empty without one."""
    seconds: float
    log_tail: str
    """Last lines of standard output and error, cleaned."""
    death: str
    """How it ended in words, a clause that reads after "the worker"."""


_lock = threading.Lock()
_live: set[_Worker] = set()
_runs: Counter[str] = Counter()


def worker_runs() -> dict[str, int]:
    """How many workers this process has started, by task."""
    with _lock:
        return dict(_runs)


def kill_workers(threads: Collection[int] | None = None) -> None:
    """Kill workers that this process runs now, with their groups; their `run_worker` calls return soon.

    Args:
        threads: those that these threads started (`threading.get_ident`); None: all of them.
    """
    with _lock:
        live = [running for running in _live if threads is None or running.thread in threads]
    for running in live:
        running.kill()


def run_worker(
    job: Job,
    folder: Path,
    *,
    timeout: float,
    env: Mapping[str, str],
    program: Path | None = None,
    log_limit: int = LOG_LIMIT,
    memory: int | None = None,
) -> Outcome:
    """Run one worker to its end.

    Starts, for debugging and tests, are counted (`worker_runs`) and, where the environment variable
    ``EPCTX_TRACE_WORKERS`` names a file, appended to it, one line with the task each.

    Args:
        job: the job; `format` and `sys_path` are filled in.
        folder: private folder, the worker's cwd. Job, result and log are left in it; an old result is removed.
        timeout: seconds from the start.
        env: variables beside the fixed allow-list.
        program: the worker's program; this package's own when None.
        log_limit: bytes of output.
        memory: bytes that it may use (see `memory`), where this system can tell; None: no limit.

    Raises:
        OSError: the job cannot be written or the process not be started.
        BaseException: what interrupts the wait, after the worker was killed.
    """
    task = job["task"]
    full: Job = {"format": FORMAT, "sys_path": _import_path(), **job}
    for name in (RESULT_NAME, LOG_NAME):
        remove_tree(folder / name)
    atomic_write(folder / JOB_NAME, job_bytes(full), durable=False)
    note_start(task)
    start = time.monotonic()
    with open(folder / LOG_NAME, "xb", buffering=0) as log:
        running = _Worker(program or _own_program(), folder, worker_environment(folder, env), log)
        try:
            killed = running.watch(_Bounds(deadline=start + timeout, log=log_limit, memory=memory), log)
        except BaseException:
            running.kill()
            raise
        finally:
            code = running.close()
    seconds = time.monotonic() - start
    secrets = secrets_of({**os.environ, **env})
    result, note = read_outcome(folder / RESULT_NAME, task, secrets) if code == 0 and not killed else (None, "")
    cause: Cause = killed or ("signal" if code < 0 else "no-result" if note else "exit")
    number = -code if cause == "signal" else 0
    return Outcome(
        task=task,
        result=result,
        cause=cause,
        exit_code=code if cause in ("exit", "no-result") else None,
        signal=_signal_name(number),
        seconds=seconds,
        log_tail=log_tail(folder / LOG_NAME, folder, secrets),
        death=_death(cause, code, seconds, timeout=timeout, log_limit=log_limit, memory=memory or 0, note=note),
    )


def _own_program() -> Path:
    return Path(worker.__path__[0]).resolve() / "__main__.py"


def _import_path() -> list[str]:
    """Our own import path without the empty entry: the worker's cwd must not count."""
    return [str(Path(entry).absolute()) for entry in sys.path if entry]


def note_start(task: str) -> None:
    """Count a worker that is started; see `run_worker`."""
    with _lock:
        _runs[task] += 1
    if trace := os.environ.get("EPCTX_TRACE_WORKERS"):
        # One write of a few bytes to a file opened for appending stays whole among several processes.
        with open(trace, "ab", buffering=0) as stream:
            stream.write(f"{task}\n".encode())


def read_outcome(path: Path, task: Task, secrets: tuple[str, ...]) -> tuple[Result | None, str]:
    """The result that a worker left, without secrets, or why there is none."""
    try:
        result = read_result(path, task)
    except OSError as error:
        return None, f"{path.name}: {error.strerror or error}"
    except ValueError as error:
        return None, f"{path.name}: {str(error)[:200]}"
    if "error" in result:
        result["error"] = redact(result["error"], secrets)
    return result, ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """What a worker may use."""

    deadline: float
    """By `time.monotonic`."""
    log: int
    memory: int | None


class _Worker:
    """One running worker and its process group."""

    def __init__(self, program: Path, folder: Path, environment: Mapping[str, str], log: IO[bytes]) -> None:
        command = [sys.executable, "-I", str(program), JOB_NAME]
        self._guard = threading.Lock()
        self._ended = False
        self._lifeline = -1
        if sys.platform == "win32":
            self._process, self._job = start_in_job(command, folder, environment, log)
        else:
            reader, self._lifeline = os.pipe()
            try:
                self._process = subprocess.Popen(
                    [*command, "--lifeline"],
                    cwd=folder,
                    env=environment,
                    stdin=reader,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except BaseException:
                os.close(self._lifeline)
                raise
            finally:
                os.close(reader)
        self.thread = threading.get_ident()
        with _lock:
            _live.add(self)

    def watch(self, bounds: _Bounds, log: IO[bytes]) -> Killed | None:
        """Wait for the end; return why the worker was killed, None when it ended by itself."""
        pause = _FIRST_PAUSE
        longest = _LONGEST_PAUSE if bounds.memory is None else _LONGEST_PAUSE_OF_MEMORY
        while not self._is_over():
            if why := self._beyond(bounds, log):
                self.kill()
                return why
            time.sleep(max(0.0, min(pause, bounds.deadline - time.monotonic())))
            pause = min(pause * 1.5, longest)
        return None

    def _beyond(self, bounds: _Bounds, log: IO[bytes]) -> Killed | None:
        if os.fstat(log.fileno()).st_size > bounds.log:
            return "log-limit"
        if bounds.memory is not None and memory_in_use(self._process.pid) > bounds.memory:
            return "memory-limit"
        return "timeout" if time.monotonic() >= bounds.deadline else None

    def _is_over(self) -> bool:
        """Whether the worker has ended. Where the system can, it is not reaped: its group's number stays its own."""
        if hasattr(os, "waitid"):
            try:
                found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:  # reaped by others: SIGCHLD is ignored, or somebody waits for any child
                return True
            return found is not None
        with self._guard:
            return self._process.poll() is not None

    def kill(self) -> None:
        """Kill the whole group, now."""
        with self._guard:
            if not self._ended:
                self._kill_group()

    def _kill_group(self) -> None:
        if sys.platform == "win32":
            self._job.kill()
        else:
            # EPERM: macOS says so of a group that has only zombies left.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> int:
        """Reap the worker, killing whatever is left of its group; return its exit code, negative for a signal."""
        with self._guard:
            self._kill_group()
            code = self._process.wait()
            self._ended = True
        if self._lifeline >= 0:
            os.close(self._lifeline)
        with _lock:
            _live.discard(self)
        return code


def _signal_name(number: int) -> str:
    if number == 0:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_SIGNALS: Final[Mapping[str, str]] = {
    "SIGABRT": "it aborted",
    "SIGBUS": "bad memory access",
    "SIGFPE": "arithmetic error",
    "SIGILL": "an instruction that this CPU does not have",
    "SIGKILL": "often the system, out of memory",
    "SIGSEGV": "bad memory access",
}
_WINDOWS_STATUS: Final[Mapping[int, str]] = {
    0xC0000005: "bad memory access",
    0xC000001D: "an instruction that this CPU does not have",
    0xC0000017: "out of memory",
    0xC0000409: "it aborted",
}


def _death(cause: Cause, code: int, seconds: float, *, timeout: float, log_limit: int, memory: int, note: str) -> str:
    if cause == "timeout":
        return f"was still running after its time limit of {timeout:g} s and was killed"
    if cause == "log-limit":
        return f"wrote more than {log_limit >> 20} MiB of log and was killed"
    if cause == "memory-limit":
        return f"used more than its memory limit of {memory / (1 << 20):,.0f} MiB and was killed after {seconds:.1f} s"
    if cause == "no-result":
        return f"ended without a usable result ({note})"
    if cause == "signal":
        name = _signal_name(-code)
        meaning = f" ({_SIGNALS[name]})" if name in _SIGNALS else ""
        return f"was killed by {name}{meaning} after {seconds:.1f} s"
    if code in _WINDOWS_STATUS:
        return f"ended with status {code:#x} ({_WINDOWS_STATUS[code]}) after {seconds:.1f} s"
    return f"ended with exit status {code} after {seconds:.1f} s"
