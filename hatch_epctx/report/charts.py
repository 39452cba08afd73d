"""Charts of the page: bars in per cent of their places, and the same numbers for the tables behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.console import duration, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["PHASES", "anchor", "percent", "sizes", "startups", "timeline"]

PHASES: Final = ("compile", "load", "check")


def timeline(variants: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Lanes of bars, one for each worker; members of a group, which are one piece of work, are one bar."""
    work: dict[tuple[int, float], list[Mapping[str, Any]]] = {}
    for item in variants:
        if item["seconds"]:
            work.setdefault((item["worker"], item["started"]), []).append(item)
    end = max((item["started"] + item["seconds"] for items in work.values() for item in items), default=0.0)
    if not end:
        return {"lanes": [], "rows": [], "ticks": []}
    lanes: dict[int, list[dict[str, Any]]] = {}
    for (worker, started), items in sorted(work.items()):
        lanes.setdefault(worker, []).append(_bar(items, started, end))
    rows = [
        {
            "name": item["name"],
            "status": item["status"],
            "worker": str(item["worker"] + 1),
            "started": _number(item["started"]),
            "seconds": _number(item["seconds"]),
            **{phase: _number(_spent(item).get(phase)) for phase in PHASES},
        }
        for item in variants
        if item["seconds"]
    ]
    ticks = [{"left": percent(step, end), "label": duration(step) if step else "0"} for step in _steps(end)]
    numbered = [{"number": worker + 1, "bars": bars} for worker, bars in lanes.items()]
    return {"lanes": numbered, "rows": rows, "ticks": ticks}


def _spent(item: Mapping[str, Any]) -> Mapping[str, float]:
    """Seconds by phase, of what this build did; of a hit, nothing that an earlier build did counts."""
    return item["times"] if item["status"] == "compiled" else {}


def _bar(items: Sequence[Mapping[str, Any]], started: float, end: float) -> dict[str, Any]:
    first = items[0]
    seconds = max(item["seconds"] for item in items)
    spent = {phase: sum(_spent(item).get(phase, 0.0) for item in items) for phase in PHASES}
    spent["compile"] = max(_spent(item).get("compile", 0.0) for item in items)  # of a group, one for all
    parts = [{"phase": phase, "width": percent(spent[phase], seconds)} for phase in PHASES if spent[phase]]
    name = first["name"] if len(items) == 1 else f"{first['group']}.{first['target']} ({len(items)} models)"
    return {
        "name": name,
        "status": first["status"],
        "left": percent(started, end),
        "width": percent(seconds, end),
        "parts": parts,
        "text": f"{name}: {first['status']} in {duration(seconds)}",
        "roomy": seconds / end > 0.14,
    }


def _steps(end: float) -> list[float]:
    """Four to eight round moments from 0 to `end`."""
    for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200):
        if end / step <= 8:
            return [step * number for number in range(int(end / step) + 1)]
    return [0.0, end]


def startups(variants: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What an application waits for: a session of the compiled model, or the compile and then the session."""
    known = [item for item in variants if {"compile", "session"} <= item["startup"].keys()]
    longest = max((item["startup"]["compile"] + item["startup"]["session"] for item in known), default=0.0)
    rows = []
    for item in known:
        session = item["startup"]["session"]
        compiling = item["startup"]["compile"] + session
        rows.append(
            {
                "name": item["name"],
                "anchor": anchor(item["name"]),
                "session": duration(session),
                "compile": duration(compiling),
                "session_value": _number(session, 4),
                "compile_value": _number(compiling, 4),
                "session_width": percent(session, longest),
                "compile_width": percent(compiling, longest),
                "ratio": f"{compiling / session:.1f}" if session else "-",
            }
        )
    return rows


def sizes(variants: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Artifacts, each content once, the largest first, with the variants that have it."""
    found: dict[str, dict[str, Any]] = {}
    for item in variants:
        for artifact in item["artifacts"]:
            row = found.setdefault(artifact["sha256"], {**artifact, "variants": []})
            row["variants"].append(item["name"])
    largest = max((row["size"] for row in found.values()), default=0)
    total = sum(row["size"] for row in found.values())
    return [
        {
            **row,
            "text": size(row["size"]),
            "width": percent(row["size"], largest),
            "share": f"{row['size'] / total:.1%}" if total else "-",
        }
        for row in sorted(found.values(), key=lambda row: (-row["size"], row["name"]))
    ]


def anchor(name: str) -> str:
    """The identifier of a variant's details."""
    return f"v-{name}"


def percent(part: float, whole: float) -> float:
    """`part` in per cent of `whole`."""
    return round(100 * part / whole, 2) if whole else 0.0


def _number(value: Any, digits: int = 2) -> str:
    return f"{value:.{digits}f}" if isinstance(value, int | float) else "-"
