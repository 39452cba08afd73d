"""The worker's procedure: one job in, one result out.

An EP that needs another way of compiling brings a module of its own with a function `run` of the same form and names
it in `Provider.procedure`; it may hand every task that it does not do itself to this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.protocol import FORMAT, Job, Result, Task

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["failed", "run"]


def run(job: Job) -> Result:
    """Do `job` in the current folder.

    A task that cannot be done gives a result with `ok` false. Any other exception is a fault of the EP, of ONNX
    Runtime or of this program; `__main__` reports it.
    """
    if job.get("format") != FORMAT:
        return {
            "format": FORMAT,
            "ok": False,
            "reason": "ep-error",
            "error": f"the worker speaks format {FORMAT} and the job format {job.get('format')}",
            "remedy": "Install one version of hatch-epctx; two are on the import path.",
        }
    try:
        return {"format": FORMAT, **_task(job["task"])(job)}
    except TaskError as error:
        return failed(error)


def failed(error: TaskError) -> Result:
    """The result of a task that cannot be done."""
    result: Result = {**error.facts, "format": FORMAT, "ok": False, "reason": error.reason, "error": error.error}
    if error.remedy:
        result["remedy"] = error.remedy
    return result


def _task(name: Task) -> Callable[[Job], Result]:
    """The function of a task, imported when it is needed: a scan does without onnxruntime, a probe without onnx."""
    if name == "scan":
        from hatch_epctx.worker.scanning import scan

        return scan
    if name == "probe":
        from hatch_epctx.worker.probing import probe

        return probe
    if name == "load":
        from hatch_epctx.worker.loading import load

        return load
    if name == "prepare":
        from hatch_epctx.worker.preparation import prepare_model

        return prepare_model
    if name == "check":
        from hatch_epctx.worker.checking import check

        return check
    if name in ("inspect", "rename"):
        from hatch_epctx.worker import describing

        return describing.describe_model if name == "inspect" else describing.rename_files
    if name in ("pack", "warm"):
        from hatch_epctx.worker import caching

        return caching.pack if name == "pack" else caching.warm
    if name == "share":
        from hatch_epctx.worker.sharing import compile_group

        return compile_group
    from hatch_epctx.worker import compiling

    return compiling.compile_model if name == "compile" else compiling.rename_source
