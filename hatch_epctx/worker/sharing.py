"""Task share: the members of a weight-sharing group, compiled one after another in this one process.

Every compile gets ``ep.share_ep_contexts``, the last one ``ep.stop_share_ep_contexts`` too: only then does the EP write
the shared context binary, and a process that ends without it aborts (seen with onnxruntime-qnn 2.7.0). So no member is
validated before all are compiled. The binary has the name of the first member; every member's ONNX file lies beside
it, in the job's folder, while the sources lie in folders of their own, so that their external data cannot clash.

An EP that does not know the two options ignores them and writes a binary for each member: a valid group that shares
nothing, which the artifacts show.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hatch_epctx.worker import graphs
from hatch_epctx.worker.compiling import add_coverage, finish, prepare, run_compiler
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.probing import ep_version
from hatch_epctx.worker.protocol import MODEL_NAME, Result, member_context, member_folder
from hatch_epctx.worker.rewriting import ContentNames
from hatch_epctx.worker.scanning import parse
from hatch_epctx.worker.session import open_ep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hatch_epctx.worker.protocol import Job

__all__ = ["SHARE", "STOP", "about", "check_partitions", "compile_group", "member_jobs"]

SHARE = "ep.share_ep_contexts"
STOP = "ep.stop_share_ep_contexts"


def compile_group(job: Job) -> Result:
    """Compile every member; see the module's docstring.

    Raises:
        TaskError: as `compile_model`; `facts["extra"]["member"]` says which member it is about.
    """
    start = time.monotonic()
    jobs = member_jobs(job)
    sources = []
    for position, member in enumerate(jobs):
        with about(position):
            sources.append(prepare(member))
    ep = open_ep(job)
    ready = time.monotonic()
    for position, (member, source) in enumerate(zip(jobs, sources, strict=True)):
        with about(position):
            run_compiler(member, ep, source)
    compiled = time.monotonic()
    names = ContentNames(Path.cwd())
    results = []
    for position, (member, source) in enumerate(zip(jobs, sources, strict=True)):
        with about(position):
            results.append(finish(member, source, names))
    check_partitions([member["output"] for member in jobs])
    if job.get("want_coverage"):
        for member, result in zip(jobs, results, strict=True):
            add_coverage(member, ep, result)
    done = time.monotonic()
    return {
        "ok": True,
        "members": results,
        "ep_version": ep_version(ep.device),
        "onnxruntime": str(ep.runtime.__version__),
        "seconds": {"prepare": ready - start, "compile": compiled - ready, "finish": done - compiled},
    }


def member_jobs(job: Job) -> list[Job]:
    """The compile of each member, with the job's own fields, its places in the folder and the options of sharing."""
    common = {name: value for name, value in job.items() if name != "members"}
    last = len(job["members"]) - 1
    jobs = []
    for position, member in enumerate(job["members"]):
        sharing = {SHARE: "1", **({STOP: "1"} if position == last else {})}
        merged = {**common, **member, "task": "compile"}
        merged["model"] = f"{member_folder(position)}/{MODEL_NAME}"
        merged["output"] = member_context(position)
        merged["session_options"] = {**job.get("session_options", {}), **sharing}
        jobs.append(cast("Job", merged))
    return jobs


def check_partitions(outputs: Sequence[str]) -> None:
    """Refuse two EPContext nodes that name one partition of one binary: each would run the other's graph.

    Raises:
        TaskError: invalid-output.
    """
    seen: dict[tuple[str, str], str] = {}
    for output in outputs:
        for node in graphs.context_nodes(parse(Path(output))):
            name, binary = (graphs.attribute_text(node, key) or "" for key in ("partition_name", "ep_cache_context"))
            other = seen.setdefault((binary, name), output) if name and binary else output
            if other != output:
                raise TaskError("invalid-output", f"two members name the same partition {name!r} of their binary")


@contextmanager
def about(position: int) -> Iterator[None]:
    """Say in an error's facts which member it is about."""
    try:
        yield
    except TaskError as error:
        error.facts = {**error.facts, "extra": {**error.facts.get("extra", {}), "member": position}}
        raise
