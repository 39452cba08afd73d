"""Which EP takes how many nodes of a source model, by ONNX Runtime's own assignment record.

ONNX Runtime records assignments only in a session, and a session over the source compiles it once more (measured: as
long as the compile itself), so it is done on demand, after the compile, whose bytes it cannot touch then.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hatch_epctx.worker.protocol import MODEL_NAME
from hatch_epctx.worker.session import session_options
from hatch_epctx.worker.wording import describe

if TYPE_CHECKING:
    from hatch_epctx.worker.protocol import Job
    from hatch_epctx.worker.session import Ep

__all__ = ["coverage"]


def coverage(job: Job, ep: Ep) -> dict[str, int]:
    """Nodes by EP, after the optimisation that the compile uses; empty where ONNX Runtime cannot say."""
    options = session_options(job, ep, overrides=True)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    counts: Counter[str] = Counter()
    try:
        session = ep.runtime.InferenceSession(MODEL_NAME, options, enable_fallback=0)
        for subgraph in session.get_provider_graph_assignment_info():
            counts[str(subgraph.ep_name)] += len(subgraph.get_nodes())
    except Exception as error:  # noqa: BLE001  # a report without this figure is better than no compile
        print(f"coverage: {describe(error)}", flush=True)  # noqa: T201  # into the worker's log
        return {}
    return dict(sorted(counts.items()))
