"""Tasks pack and warm: a source model as it is shipped with an EP's cache, and a session that fills the cache.

A cache is found again only for the very graph that filled it, so the shipped model is the source with its sizes
written into it: nobody has to repeat the overrides of free dimensions. It keeps no name of this machine.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_epctx.files import read_bounded
from hatch_epctx.worker.compiling import packed, prepare
from hatch_epctx.worker.coverage import CPU, left_operators
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.loading import open_model, run_once
from hatch_epctx.worker.probing import ep_version
from hatch_epctx.worker.protocol import MODEL_NAME, Result
from hatch_epctx.worker.rewriting import ContentNames, rename_references
from hatch_epctx.worker.scanning import LIMIT, facts
from hatch_epctx.worker.session import open_ep
from hatch_epctx.worker.shapes import fill_dimensions

if TYPE_CHECKING:
    from hatch_epctx.worker.protocol import Job

__all__ = ["RECORD", "pack", "warm"]

RECORD = "session.record_ep_graph_assignment_info"
"""Session option by which ONNX Runtime keeps account of which EP takes which node (1.24 and later)."""


def pack(job: Job) -> Result:
    """Task pack: the source model with the job's sizes as `SOURCE_NAME`, external data under content-addressed names.

    Raises:
        TaskError: as `compiling.prepare`; invalid-output where external data is missing or empty.
    """
    source = prepare(job)
    sizes = job.get("free_dimensions", {}), job.get("free_dimension_denotations", {})
    filled = fill_dimensions((*source.model.graph.input, *source.model.graph.output), *sizes)
    names = ContentNames(Path.cwd(), what="the source model")
    referred = rename_references(source.model, names)
    path = Path(job.get("model", MODEL_NAME))
    untouched = read_bounded(path, LIMIT) if not (filled or referred) else None
    return packed(source.model, untouched, referred, facts(source.model))


def warm(job: Job) -> Result:
    """Task warm: open `job["model"]` with its options, among them the cache's folder, and run it once.

    With `want_coverage`, which EP takes how many nodes is reported, and an EP that takes none is an error.

    Raises:
        TaskError: missing-ep, no-device, load-failed, fallback, run-failed or no-node.
    """
    start = time.monotonic()
    ep = open_ep(job)
    session = open_model(job, ep)
    opened = time.monotonic()
    result: Result = {
        "ok": True,
        "providers": [str(name) for name in session.get_providers()],
        "onnxruntime": str(ep.runtime.__version__),
        "ep_version": ep_version(ep.device),
        "extra": {"not_run": reason} if (reason := run_once(job, session)) else {},
        "seconds": {"session": opened - start, "run": time.monotonic() - opened},
    }
    if job.get("want_coverage"):
        result["coverage"], result["left"] = _assigned(job, session)
    return result


def _assigned(job: Job, session: Any) -> tuple[dict[str, int], list[Any]]:
    counts: Counter[str] = Counter()
    left: list[Any] = []
    for subgraph in session.get_provider_graph_assignment_info():
        nodes = subgraph.get_nodes()
        counts[str(subgraph.ep_name)] += len(nodes)
        if subgraph.ep_name == CPU:
            left += nodes
    if not counts.get(job["ep"]):
        raise TaskError(
            "no-node",
            f"{job['ep']} took no node of the model, so that there is nothing to cache",
            remedy="Leave the model out of this target: the CPU EP runs it as it is.",
        )
    return dict(sorted(counts.items())), left_operators(left)
