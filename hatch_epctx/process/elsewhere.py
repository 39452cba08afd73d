"""The outcome of a worker that another machine ran: read with the same distrust as that of one which ran here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hatch_epctx.files import remove_tree
from hatch_epctx.process.logs import log_tail
from hatch_epctx.process.running import Outcome, note_start, read_outcome
from hatch_epctx.redact import secrets_of
from hatch_epctx.worker.protocol import LOG_NAME, RESULT_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hatch_epctx.process.running import Cause
    from hatch_epctx.worker.protocol import Task

__all__ = ["note_remote_start", "outcome_elsewhere"]


def note_remote_start(task: Task) -> None:
    """Count a worker that is started on another machine, as ``remote-<task>``; see `running.run_worker`."""
    note_start(f"remote-{task}")


def outcome_elsewhere(
    task: Task,
    folder: Path,
    *,
    exit_code: int | None,
    seconds: float,
    log: bytes,
    env: Mapping[str, str],
    timeout: float,
) -> Outcome:
    """What became of a worker whose files were brought to `folder`.

    Args:
        task: what it was to do.
        folder: the private folder of its job; the log is written there.
        exit_code: of its process; None: its time was over.
        seconds: as long as it took, the way there and back included.
        log: what it printed.
        env: the target's own variables; what is secret among them is cut from the log.
        timeout: its time limit, for the message.

    Raises:
        OSError: the log cannot be written.
    """
    secrets = secrets_of({**os.environ, **env})
    remove_tree(folder / LOG_NAME)
    (folder / LOG_NAME).write_bytes(log)
    result, note = read_outcome(folder / RESULT_NAME, task, secrets) if exit_code == 0 else (None, "")
    cause: Cause = "timeout" if exit_code is None else "no-result" if note else "exit"
    if exit_code is None:
        death = f"was still running after its time limit of {timeout:g} s and was ended by the executor"
    elif note:
        death = f"ended without a usable result ({note})"
    else:
        death = f"ended with exit status {exit_code} on the executor after {seconds:.1f} s"
    return Outcome(
        task=task,
        result=result,
        cause=cause,
        exit_code=exit_code,
        signal="",
        seconds=seconds,
        log_tail=log_tail(folder / LOG_NAME, folder, secrets),
        death=death,
    )
