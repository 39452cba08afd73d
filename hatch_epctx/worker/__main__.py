"""Start of the child: ``python -I <this file> job.json [--lifeline] [--pinned]``.

Started as a file, it knows nothing but the standard library until it has read the job's import path. In order:

1. Core dumps off.
2. A compile on Linux starts itself anew without address-space randomisation: QNN's bytes for some models depend on
   addresses (measured: 8 different context binaries of 8 compiles with it, 1 of 8 without). Where the system
   forbids it (containers' seccomp filters do), the compile goes on as it is. Then cwd is the job's folder.
3. With ``--lifeline``, standard input is a pipe that the parent holds open and never writes to. The process forks:
   the child does the job, this one waits, and kills the whole process group as soon as the pipe ends, that is when
   the parent has died in whatever way. It ends as its child did, exit status or signal.
4. The job's procedure runs; ``result.json`` appears whole or not at all.

Exit status: 0 when a result was written, whatever it says.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

LIFELINE = "--lifeline"
PINNED = "--pinned"
"""The second start: not to be repeated."""

ADDR_NO_RANDOMIZE = 0x0040000
"""personality(2)."""
PR_SET_PDEATHSIG = 1
"""prctl(2)."""


def main(argv: list[str]) -> None:
    """Do the job in the file `argv[1]`."""
    path = Path(argv[1])
    job: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    _no_core_dumps()
    compiles = job.get("task") in ("compile", "share")
    pinned = compiles and sys.platform == "linux" and _addresses_pinned()
    if compiles and sys.platform == "linux" and not pinned and PINNED not in argv:
        _start_anew()  # before the folder changes: on an executor this program's path is relative
    os.chdir(path.parent)
    if LIFELINE in argv and os.name == "posix":
        _fork_below_lifeline()
    _set_import_path(job)
    result = _result(job)
    if compiles:
        result.setdefault("extra", {})["pinned_addresses"] = pinned
    _write(result)
    sys.stdout.flush()
    sys.stderr.flush()
    # Native libraries may crash or hang while they are unloaded, after all work is done.
    os._exit(0)


def _no_core_dumps() -> None:
    """No core file, which would hold the model, and no core for a handler either.

    Linux ignores the limit where a handler takes cores by a pipe (core_pattern "|..."), unless it is 1 (core(5)).
    """
    with suppress(ImportError):
        import resource

        for limit in (1, 0) if sys.platform == "linux" else (0,):
            with suppress(OSError, ValueError):  # the hard limit may be 0 already
                resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
                return


def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _addresses_pinned() -> bool:
    """Whether this process runs without address-space randomisation."""
    with suppress(ImportError, OSError, AttributeError):
        persona: int = _libc().personality(0xFFFFFFFF)
        return persona != -1 and bool(persona & ADDR_NO_RANDOMIZE)
    return False


def _start_anew() -> None:
    """Replace this process by itself with randomisation off; return when that cannot be done."""
    with suppress(ImportError, OSError, AttributeError):
        libc = _libc()
        persona: int = libc.personality(0xFFFFFFFF)
        if persona != -1 and libc.personality(persona | ADDR_NO_RANDOMIZE) != -1:
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], PINNED])  # noqa: S606  # this very program


def _fork_below_lifeline() -> None:
    """Fork; return in the child, which dies with this process. See the module's docstring."""
    import select
    import signal

    wake, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(wake)
        os.close(waker)
        _die_with(supervisor)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        return
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 64)
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                _end_as(status)
        if 0 in ready:
            os.killpg(0, signal.SIGKILL)


def _die_with(supervisor: int) -> None:
    """Ask Linux for SIGKILL when the supervising process dies first."""
    if sys.platform != "linux":
        return
    import signal

    with suppress(ImportError, OSError, AttributeError):
        _libc().prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != supervisor:
        os._exit(1)


def _end_as(status: int) -> None:
    """End with the exit status or the signal that `status` says, as waitpid gave it."""
    import signal

    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        with suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def _set_import_path(job: dict[str, Any]) -> None:
    """The parent's import path; relative entries would mean the job's folder."""
    given = [entry for entry in job.get("sys_path", []) if Path(entry).is_absolute()]
    if given:
        sys.path[:] = given
    package_root = str(Path(__file__).resolve().parents[2])
    if package_root not in sys.path:
        sys.path.append(package_root)


def _result(job: dict[str, Any]) -> dict[str, Any]:
    name = job.get("procedure") or "hatch_epctx.worker.procedure"
    try:
        if job.get("cpus"):
            os.sched_setaffinity(0, job["cpus"])
        return dict(importlib.import_module(name).run(job))
    except Exception as error:  # noqa: BLE001  # a procedure and the native code below it may raise anything
        traceback.print_exc()
        return {
            "format": job.get("format"),
            "ok": False,
            "reason": "ep-error",
            "error": f"the worker's procedure failed: {type(error).__name__}: {_one_line(error)}",
            "remedy": "The worker's log says where; options, versions and the EP's driver are the usual causes.",
        }


def _one_line(error: Exception) -> str:
    try:
        from hatch_epctx.worker.wording import describe
    except ImportError:  # the import path is what is wrong
        return " ".join(str(error).split())
    return describe(error)


def _write(result: dict[str, Any]) -> None:
    # files.atomic_write may not be importable here: an import path that is wrong has to be reported too.
    temporary = Path("result.json.tmp")
    temporary.write_text(json.dumps(result, sort_keys=True), encoding="utf-8")
    temporary.replace("result.json")


if __name__ == "__main__":
    main(sys.argv)
