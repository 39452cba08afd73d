"""What a compile and its check found, in words: coverage, operators left to the CPU, figures of outputs.

The facts are those of a generation's record and of a manifest; both may come from elsewhere, so that whatever is not
there, or is of another form, is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["check_in_words", "coverage_in_words", "left_in_words", "share"]

_LEFT_SHOWN: Final = 8
"""Operators that a message names."""
_OUTPUTS_SHOWN: Final = 3


def share(facts: Mapping[str, Any], ep: str) -> tuple[int, int] | None:
    """(nodes that the EP takes, all nodes) of the source; None where ONNX Runtime's account is missing."""
    counts = facts.get("coverage")
    if not isinstance(counts, Mapping) or not counts or not all(isinstance(count, int) for count in counts.values()):
        return None
    return int(counts.get(ep, 0)), sum(counts.values())


def coverage_in_words(facts: Mapping[str, Any], ep: str) -> str:
    """Coverage for a table: "37 of 40", or "-"."""
    found = share(facts, ep)
    return f"{found[0]} of {found[1]}" if found else "-"


def left_in_words(left: Any) -> str:
    """Operators with counts and the EP's reasons: "3 Gather (no such kernel), 1 If"; empty where none was left."""
    items = [item for item in left if isinstance(item, Mapping)] if isinstance(left, Iterable) else []
    said = [
        f"{item.get('count')} {item.get('operator')}{' (' + str(item['reason']) + ')' if item.get('reason') else ''}"
        for item in items
    ]
    more = f" and {len(said) - _LEFT_SHOWN} more operators" if len(said) > _LEFT_SHOWN else ""
    return ", ".join(said[:_LEFT_SHOWN]) + more


def check_in_words(facts: Mapping[str, Any]) -> str:
    """A check in one line: "check passed: y max abs 0.0012, max rel 0.0004, cosine 0.999998 (simulator)"."""
    if facts.get("outcome") != "passed":
        return f"check not run: {facts.get('why') or 'no reason given'}"
    outputs = facts.get("outputs")
    # A manifest has them by name, a record as a list.
    named = outputs.items() if isinstance(outputs, Mapping) else [(item["name"], item) for item in outputs or ()]
    said = [_output(name, output) for name, output in named]
    more = f"; and {len(said) - _OUTPUTS_SHOWN} more outputs" if len(said) > _OUTPUTS_SHOWN else ""
    return f"check passed: {'; '.join(said[:_OUTPUTS_SHOWN])}{more}{' (simulator)' if facts.get('simulated') else ''}"


def _output(name: str, output: Mapping[str, Any]) -> str:
    if output.get("verdict") == "random":
        return f"{name} is random, only its shape was compared"
    if output.get("verdict") == "not-compared":
        return f"{name} is no tensor, not compared"
    figures = [
        f"{title} {output[key]:.{digits}}"
        for key, title, digits in (
            ("max_abs", "max abs", "2g"),
            ("max_rel", "max rel", "2g"),
            ("cosine", "cosine", "6g"),
        )
        if isinstance(output.get(key), int | float)
    ]
    return f"{name} {', '.join(figures) or 'equal'}"
