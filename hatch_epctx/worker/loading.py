"""Task load: open a model as its users will, and run it once.

A model may compile and then not load, load and then fail at its first inference, or load on other EPs than the asked
one, because ONNX Runtime falls back without a word (Python's InferenceSession even prints over the cause). So: no
fallback, exactly the options that will be shipped, and a look at the session's providers.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_epctx.worker import contextio
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.feeds import UNKNOWN_SIZES, feeds, is_dynamic, not_generated
from hatch_epctx.worker.protocol import CONTEXT_NAME, Result
from hatch_epctx.worker.session import Ep, is_simulated, open_ep, session_options
from hatch_epctx.worker.wording import describe

if TYPE_CHECKING:
    from hatch_epctx.worker.protocol import Job

__all__ = ["load", "open_model", "run_once"]


def load(job: Job) -> Result:
    """Open `job["model"]` with the job's options, check that the EP is really in use, run one inference.

    Where inputs stayed dynamic, several sizes are tried, and one that runs is enough. Where an input's type is none
    that can be generated, the model is opened and not run, and `extra["not_run"]` says why.

    Raises:
        TaskError: missing-ep, no-device, load-failed, fallback or run-failed.
    """
    start = time.monotonic()
    ep = open_ep(job)
    ready = time.monotonic()
    if (reason := job.get("not_simulated", "")) and is_simulated(job, ep):
        return {"ok": True, "providers": [], "seconds": {"register": ready - start}, "extra": {"not_run": reason}}
    session = open_model(job, ep)
    opened = time.monotonic()
    extra: dict[str, Any] = {}
    if reason := run_once(job, session):
        extra["not_run"] = reason
    done = time.monotonic()
    return {
        "ok": True,
        "providers": [str(name) for name in session.get_providers()],
        "onnxruntime": str(ep.runtime.__version__),
        "seconds": {"register": ready - start, "session": opened - ready, "run": done - opened},
        "extra": extra,
    }


def open_model(job: Job, ep: Ep) -> Any:
    """A session of `job["model"]` that is really on the job's EP.

    Raises:
        TaskError: load-failed or fallback.
    """
    session = _open(job, ep)
    providers = [str(name) for name in session.get_providers()]
    if ep.name not in providers:
        raise TaskError(
            "fallback",
            f"ONNX Runtime opened the model on {', '.join(providers)} in place of {ep.name}",
            remedy="The EP does not take the model on this machine: check its driver, device and version.",
        )
    return session


def _open(job: Job, ep: Ep) -> Any:
    path = Path(job.get("model", CONTEXT_NAME))
    if not path.is_file():
        raise TaskError("load-failed", f"there is no {path.name} to open")
    try:
        # Relative, from the folder that holds the model: context binaries resolve against its folder.
        options = session_options(job, ep, overrides=False)
        if contextio.wants_callbacks(job) and path.name == CONTEXT_NAME:
            contextio.give_back(job, options, ep.runtime, path.absolute().parent)
        return ep.runtime.InferenceSession(str(path), options, enable_fallback=0)
    except TaskError:
        raise
    except Exception as error:  # ONNX Runtime has an exception class per status
        if refused := contextio.refusal(job, describe(error)):
            raise refused from error
        raise TaskError(
            "load-failed",
            f"{ep.name} cannot open the model: {describe(error)}",
            remedy="Try another 'optimization' for the target, or leave the model out of it; "
            "load-check = false ships it unchecked.",
        ) from error


def run_once(job: Job, session: Any) -> str:
    """One inference; where inputs stayed dynamic, the first size that runs is enough.

    Returns:
        Why it was not run: an input's type is none that can be generated; else empty.

    Raises:
        TaskError: run-failed, with the message of the first size.
    """
    if reason := not_generated(session.get_inputs()):
        return reason
    sizes = UNKNOWN_SIZES if is_dynamic(session.get_inputs()) else UNKNOWN_SIZES[:1]
    faults: list[str] = []
    for size in sizes:
        fault = _run_at(session, size)
        if not fault:
            return ""
        faults.append(fault)
    raise TaskError(
        "run-failed",
        f"{job['ep']} opens the model and fails at the first inference: {faults[0]}",
        remedy="Try another 'optimization' or other provider-options for the target, or leave the model out of it.",
    )


def _run_at(session: Any, size: int) -> str:
    """One inference with dynamic dims of `size`; return what went wrong, empty when nothing did."""
    try:
        session.run(None, feeds(session.get_inputs(), size))
    except Exception as error:  # noqa: BLE001  # as above; another size may do
        return describe(error)
    return ""
