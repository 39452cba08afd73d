"""Which EP takes how many nodes of a source model, and why the rest is left, by ONNX Runtime's own account.

ONNX Runtime records which EP gets a node when it partitions the graph, before anything compiles; compiling is what
takes the time. So a session over the source is begun with ``session.disable_model_compile``: it ends with
ModelRequiresCompilation as soon as the EP would compile, and has the record (seen with 1.32; 0.1 to 0.7 s where the
compile takes 0.6 to 4 s, the same counts as a session that compiles). What was left stands in the compiled model.

An EP that says why it leaves a node says so in its verbose log, each in words of its own: `Provider.left_pattern`
reads them. The session's log goes to a file of its own, so that it does not flood the worker's.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.worker import graphs
from hatch_epctx.worker.protocol import MODEL_NAME, LeftOperator
from hatch_epctx.worker.session import session_options
from hatch_epctx.worker.wording import describe, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from onnx import ModelProto, NodeProto

    from hatch_epctx.worker.protocol import Job
    from hatch_epctx.worker.session import Ep

__all__ = ["coverage", "left_operators", "nodes_left", "reasons"]

CPU: Final = "CPUExecutionProvider"
LOG: Final = "coverage.log"
LOG_LIMIT: Final = 64 << 20
"""Bytes of the session's log that are read."""
_VERBOSE: Final = 0


def nodes_left(model: ModelProto) -> list[NodeProto]:
    """Nodes of a compiled model, in every graph, that are no EPContext nodes."""
    nodes = (node for graph in graphs.main_and_subgraphs(model) for node in graph.node)
    return [node for node in nodes if (node.domain, node.op_type) != graphs.CONTEXT_OP]


def coverage(job: Job, ep: Ep, left: Iterable[NodeProto]) -> tuple[dict[str, int], list[LeftOperator]]:
    """Nodes by EP, after the optimisation that the compile uses, and the operators left with the EP's reasons.

    Args:
        job: a compile's; its source is still in the folder.
        ep: the job's EP.
        left: `nodes_left` of what was compiled.

    Returns:
        No counts where ONNX Runtime cannot say (a release before 1.24); the operators always.
    """
    left = list(left)
    pattern = job.get("left_pattern", "") if left else ""
    try:
        counts = _assignments(job, ep, verbose=bool(pattern))
    except Exception as error:  # noqa: BLE001  # a report without this figure is better than no compile
        print(f"coverage: {describe(error)}", flush=True)  # noqa: T201  # into the worker's log
        return {}, left_operators(left)
    # The session ended before the CPU EP got its nodes; those are in the compiled model.
    counts.pop(CPU, None)
    if left:
        counts[CPU] = len(left)
    return dict(sorted(counts.items())), left_operators(left, reasons(_log(), pattern) if pattern else {})


def _assignments(job: Job, ep: Ep, *, verbose: bool) -> Counter[str]:
    """Nodes by EP as far as a session gets that may not compile."""
    native: Any = importlib.import_module("onnxruntime.capi._pybind_state")
    options = session_options(job, ep, overrides=True)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_session_config_entry("session.disable_model_compile", "1")
    if verbose:
        options.log_severity_level = _VERBOSE
    with _output_in(LOG) if verbose else _nowhere():
        # Python's InferenceSession is gone when its creation fails; the one below it is not.
        session = native.InferenceSession(options, job.get("model", MODEL_NAME), True, False)  # noqa: FBT003  # it knows no keywords
        with suppress(native.ModelRequiresCompilation):
            session.initialize_session([], [], set())
    counts: Counter[str] = Counter()
    for subgraph in session.get_provider_graph_assignment_info():
        counts[str(subgraph.ep_name)] += len(subgraph.get_nodes())
    return counts


@contextmanager
def _nowhere() -> Iterator[None]:
    yield


@contextmanager
def _output_in(name: str) -> Iterator[None]:
    """Send what this process and its native code print to the file `name`."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in enumerate(kept, start=1):
            os.dup2(copy, number)
            os.close(copy)
        os.close(file)


def _log() -> str:
    with open(LOG, "rb") as stream:
        return stream.read(LOG_LIMIT).decode("utf-8", "replace")


def reasons(log: str, pattern: str) -> dict[tuple[str, str], str]:
    """Why an EP left a node, by operator and node name, the last word on each.

    Args:
        log: the EP's verbose log.
        pattern: see `Provider.left_pattern`.
    """
    found: dict[tuple[str, str], str] = {}
    nodes: list[tuple[str, str]] = []
    cause = ""
    for match in re.finditer(pattern, log):
        groups = match.groupdict()
        if groups.get("cause"):
            cause = " with ".join(filter(None, (groups["cause"], groups.get("code"))))
        elif groups.get("operator"):
            nodes.append((groups["operator"], groups["node"]))
        elif groups.get("reason"):
            for node in nodes:
                found[node] = _sentence(groups["reason"], cause, node[1])
            nodes, cause = [], ""
        else:  # the head of a block
            nodes = []
            cause = cause if groups.get("failed") else ""
    return found


def _sentence(reason: str, cause: str, node: str) -> str:
    """One clause without the node's own name, so that all nodes of an operator can share it."""
    # Some EPs join sentences without a space; the first one says it.
    text = re.split(r"(?<=[a-zA-Z])\.(?=[A-Z`])", reason.strip())[0].rstrip(".")
    if cause:
        text += f" ({cause})"
    return one_line(text.replace(f"node `{node}`", "it") if node else text)


def left_operators(
    nodes: Iterable[NodeProto], found: Mapping[tuple[str, str], str] | None = None
) -> list[LeftOperator]:
    """Operators of the nodes, the most frequent first, each with its count and its nodes' most frequent reason."""
    counts: Counter[str] = Counter()
    said: dict[str, Counter[str]] = {}
    for node in nodes:
        name = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        counts[name] += 1
        if reason := (found or {}).get((node.op_type, node.name), ""):
            said.setdefault(name, Counter())[reason] += 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [LeftOperator(operator=name, count=count, reason=_usual(said.get(name))) for name, count in ordered]


def _usual(reasons: Counter[str] | None) -> str:
    return min(reasons.items(), key=lambda item: (-item[1], item[0]))[0] if reasons else ""
