"""Starting a worker, and reading what became of it: a result, or the error with the cause in words."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Protocol

from hatch_epctx.errors import CompileError, EpctxError, ModelError, ToolchainError
from hatch_epctx.process import Outcome, run_worker

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hatch_epctx.worker.protocol import Job, Result

__all__ = ["Run", "result_of", "run"]


class Run(Protocol):
    """What runs a worker: `run`, or another of its form that runs it elsewhere."""

    def __call__(
        self, job: Job, folder: Path, *, timeout: float, env: Mapping[str, str], memory: int | None = None
    ) -> Outcome:
        """See `run`."""


_ERRORS: Mapping[str, type[EpctxError]] = {
    "invalid-model": ModelError,
    "compiled-source": ModelError,
    "dynamic-shape": ModelError,
    "unknown-dimension": ModelError,
    "unknown-input": ModelError,
    "shape-conflict": ModelError,
    "external-data-escape": ModelError,
    "prepare-failed": ModelError,
    "bad-inputs": ModelError,
    "missing-ep": ToolchainError,
    "custom-ops": ToolchainError,
    "no-device": ToolchainError,
    "not-simulated": ToolchainError,
}
"""Error class of a worker's reason; CompileError for the rest."""


_EXHAUSTED = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What the system says when it has no room for another process."""


def run(job: Job, folder: Path, *, timeout: float, env: Mapping[str, str], memory: int | None = None) -> Outcome:
    """Run one worker to its end (see `process.run_worker`).

    Raises:
        CompileError: the system has no room for another process.
    """
    try:
        return run_worker(job, folder, timeout=timeout, env=env, memory=memory)
    except OSError as error:
        if error.errno not in _EXHAUSTED:
            raise  # of the folder, which the store explains
        raise CompileError(
            f"no worker can be started: {error.strerror}",
            remedy="This machine has no process, memory or file descriptor left for it: set EPCTX_JOBS to a smaller "
            "number, or raise the limit (ulimit).",
            reason="exhausted",
        ) from error


def result_of(outcome: Outcome, *, place: str, what: str, fallback: type[EpctxError], hint: str = "") -> Result:
    """The result of a worker that succeeded, else its error with the cause in words and the log's tail."""
    result = outcome.result
    if outcome.cause == "exit" and result is not None and result.get("ok"):
        return result
    tail = f"last lines of the worker's log:\n{outcome.log_tail}" if outcome.log_tail else ""
    if result is not None and not result.get("ok"):
        kind = _ERRORS.get(result.get("reason", ""), fallback)
        raise kind(
            f"{what} failed: {result.get('error', '').rstrip('.') or 'no reason given'}",
            where=place,
            remedy=_with_hint(result.get("remedy", ""), hint),
            reason=result.get("reason", "ep-error"),
            detail=tail,
        )
    remedy = _with_hint("", hint)
    if outcome.cause == "memory-limit":
        remedy = f"Raise 'memory-limit' of {hint}, or leave the model out of it."
    raise fallback(
        f"{what} failed: the worker {outcome.death}",
        where=place,
        remedy=remedy,
        reason=outcome.cause,
        detail=tail,
    )


def _with_hint(remedy: str, hint: str) -> str:
    general = f"See {hint}: other options, another 'optimization' or a longer 'timeout' may help." if hint else ""
    return remedy or general
