"""Workers on a remote-execution service: the same job, program, environment and result as here, on another machine.

`run` stands in for a local worker. What it sends is described in `action`; what comes back is read as a local
worker's result is. The worker refuses (`toolchain.elsewhere`) where its machine is not the one that the identity
names.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, final

from hatch_epctx.digest import digest_file
from hatch_epctx.errors import CompileError, ConfigError
from hatch_epctx.files import atomic_write, make_private_dir, move, remove_tree
from hatch_epctx.process import note_remote_start, outcome_elsewhere, worker_environment
from hatch_epctx.remote.action import Input, RemoteCommand
from hatch_epctx.remote.blobs import Blob
from hatch_epctx.remote.executor import Executor, OverdueError
from hatch_epctx.remote.faults import RemoteError
from hatch_epctx.toolchain import PROCEDURE, program_files, python_version
from hatch_epctx.worker.protocol import JOB_NAME, LOG_NAME, RESULT_NAME, Job, job_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hatch_epctx.process import Outcome
    from hatch_epctx.providers import Provider
    from hatch_epctx.remote.endpoint import Endpoint
    from hatch_epctx.remote.executor import Execution

__all__ = ["RemoteWorkers", "read_platform"]

PROGRAM: Final = "epctx"
"""Folder of the program below the input root; workers mount their own over names such as lib and usr."""
JOB_FOLDER: Final = "job"
_PYTHON: Final = "EPCTX_REMOTE_PYTHON"
_PLATFORM: Final = "EPCTX_REMOTE_PLATFORM"


def read_platform(environ: Mapping[str, str]) -> dict[str, str]:
    """Properties of the farm's workers in EPCTX_REMOTE_PLATFORM, such as ``OSFamily=linux,container-image=...``.

    Raises:
        ConfigError: it is of another form.
    """
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in environ.get(_PLATFORM, "").split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip() or name.strip() in found:
            raise ConfigError(
                f"found {part!r}",
                where=_PLATFORM,
                expected="NAME=VALUE, each name once, by commas",
                reason="bad-variable",
            )
        found[name.strip()] = value.strip()
    return found


@final
class RemoteWorkers:
    """Runs workers on one service. Any thread may use it. Nothing is contacted before the first run.

    Args:
        endpoint: of the service.
        environ: EPCTX_REMOTE_PYTHON and EPCTX_REMOTE_PLATFORM.
        digest: content digest of a file; a stat cache makes a warm call cheap.

    Raises:
        ConfigError: these are wrong.
    """

    def __init__(self, endpoint: Endpoint, environ: Mapping[str, str], *, digest: Callable[[Path], str]) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint
        self.platform = read_platform(environ)
        self.python = environ.get(_PYTHON, "") or os.path.realpath(sys.executable)
        self._digest = digest
        self._programs: dict[str, tuple[Input, ...]] = {}
        self._executor: Executor | None = None
        self._trips: Counter[str] = Counter()
        self._guard = threading.Lock()

    @property
    def round_trips(self) -> dict[str, int]:
        """Requests so far by method."""
        with self._guard:
            return dict(self._trips + Counter(self._executor.round_trips if self._executor else {}))

    def run(
        self,
        job: Job,
        folder: Path,
        *,
        timeout: float,
        env: Mapping[str, str],
        provider: Provider,
        machine: Mapping[str, Any],
        fresh: bool = False,
    ) -> Outcome:
        """Run one worker to its end on the service. What it leaves is brought to `folder`.

        Args:
            job: see `process.run_worker`.
            folder: the private folder of the job; its files are the inputs.
            timeout: seconds that the worker may run; it may wait for a place beyond them.
            env: variables beside the fixed allow-list.
            provider: whose files go along.
            machine: what the worker's machine must be; see `toolchain.elsewhere`.
            fresh: run it even where the service has a result.

        Raises:
            CompileError: the service cannot be reached, refuses, or lost the action.
            ConfigError: the project's cache is no such service.
            OSError: a file cannot be read or written.
        """
        task = job["task"]
        demands = {**machine, "python": python_version()}
        full: Job = {**job, "inner": job["procedure"], "procedure": PROCEDURE, "machine": demands, "sys_path": []}
        for name in (RESULT_NAME, LOG_NAME):
            remove_tree(folder / name)
        atomic_write(folder / JOB_NAME, job_bytes(full), durable=False)
        program = f"{PROGRAM}/hatch_epctx/worker/__main__.py"
        command = RemoteCommand(
            # -S: the libraries that came along count, not those that the farm has for itself.
            arguments=(self.python, "-I", "-S", program, f"{JOB_FOLDER}/{JOB_NAME}"),
            inputs=(*self._program(provider), *_job_inputs(folder)),
            folder=JOB_FOLDER,
            environment=worker_environment(folder, env),
            platform=self.platform,
            timeout=timeout,
        )
        note_remote_start(task)
        start = time.monotonic()
        try:
            execution = self._run(command, folder, fresh=fresh)
        except OverdueError:
            seconds = time.monotonic() - start
            return outcome_elsewhere(task, folder, exit_code=None, seconds=seconds, log=b"", env=env, timeout=timeout)
        outcome = outcome_elsewhere(
            task,
            folder,
            exit_code=execution.exit_code,
            seconds=time.monotonic() - start,
            log=execution.log,
            env=env,
            timeout=timeout,
        )
        if execution.cached and not fresh and not (outcome.result or {}).get("ok"):
            # Services keep what ended with status 0, and a worker's refusal does: what failed once may do now.
            return self.run(job, folder, timeout=timeout, env=env, provider=provider, machine=machine, fresh=True)
        return outcome

    def close(self) -> None:
        """End what is under way; a later run connects again."""
        with self._guard:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.close()
            with self._guard:
                self._trips += Counter(executor.round_trips)

    def _run(self, command: RemoteCommand, folder: Path, *, fresh: bool) -> Execution:
        with self._guard:
            executor = self._executor = self._executor or Executor(self._endpoint)
        outputs = folder / f"remote-{uuid.uuid4().hex}"
        make_private_dir(outputs, durable=False)
        try:
            execution = executor.run(command, outputs, fresh=fresh)
            for item in execution.outputs:
                remove_tree(folder / item.name)
                move(item.path, folder / item.name)
        except OverdueError:
            raise
        except RemoteError as error:
            raise CompileError(
                f"the executor {self.name}: {error}",
                remedy="See that the service runs and that this user may execute there ('epctx doctor' asks it), or "
                'compile on this machine with executor = "local".',
                reason="executor",
            ) from error
        finally:
            remove_tree(outputs)
        return execution

    def _program(self, provider: Provider) -> tuple[Input, ...]:
        with self._guard:
            known = self._programs.get(provider.key)
        if known is None:
            known = tuple(
                _input(f"{PROGRAM}/{name}", path, self._digest(path)) for name, path in program_files(provider)
            )
            with self._guard:
                self._programs[provider.key] = known
        return known


def _job_inputs(folder: Path) -> list[Input]:
    """Every file of the job's folder; it is private, so that nothing changes it meanwhile."""
    return [
        _input(f"{JOB_FOLDER}/{path.relative_to(folder).as_posix()}", path, digest_file(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def _input(location: str, path: Path, digest: str) -> Input:
    return Input(location=location, blob=Blob(digest, path.stat().st_size), path=path)
