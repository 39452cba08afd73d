"""Running workers and other tools: the only place that starts processes.

Each run is a fresh interpreter in a session of its own, with a scrubbed environment, its output in a bounded file, a
time limit, and a result that is read as untrusted input. `running` starts, watches and kills; `environment` says what
a worker sees; `results` reads what it wrote; `logs` makes the tail of its log fit to show; `memory` tells what it uses.
"""

from __future__ import annotations

from hatch_epctx.process.elsewhere import note_remote_start, outcome_elsewhere
from hatch_epctx.process.environment import worker_environment
from hatch_epctx.process.memory import can_measure
from hatch_epctx.process.results import check_fields
from hatch_epctx.process.running import LOG_LIMIT, Cause, Outcome, kill_workers, run_worker, worker_runs
from hatch_epctx.process.tools import ToolRun, run_tool

__all__ = [
    "LOG_LIMIT",
    "Cause",
    "Outcome",
    "ToolRun",
    "can_measure",
    "check_fields",
    "kill_workers",
    "note_remote_start",
    "outcome_elsewhere",
    "run_tool",
    "run_worker",
    "worker_environment",
    "worker_runs",
]
