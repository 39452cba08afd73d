"""A summary in the form in which it is shown: numbers with units, words for statuses, bars by `charts`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.console import duration, size
from hatch_epctx.report.charts import PHASES, anchor, percent, sizes, startups, timeline
from hatch_epctx.worker.protocol import PASSING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["STATUSES", "view"]

STATUSES: Final[Mapping[str, tuple[str, str]]] = {
    "compiled": ("●", "compiled in this build"),
    "hit": ("✓", "taken from the store"),
    "fetched": ("↓", "taken from the remote cache"),
    "skipped": ("-", "left out: its EP is not here, and the target is not required"),
    "failed": ("✕", "not made, or not what it must be"),
}
"""Sign and meaning of each status, in the order of the legend."""
_LEFT: Final = 6
"""Operators left to the CPU that a row names; the rest is counted."""


def view(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the page shows, section by section."""
    variants = summary["variants"]
    return {
        "project": summary["project"],
        "made": _moment(summary["made"]),
        "made_with": summary["made_with"],
        "jobs": summary["jobs"],
        "locked": summary["locked"],
        "total": {"variants": len(variants), "size": size(summary["size"]), "seconds": duration(summary["seconds"])},
        "counts": [
            {"status": status, "sign": sign, "count": summary["counts"][status], "meaning": meaning}
            for status, (sign, meaning) in STATUSES.items()
        ],
        "failed": summary["counts"]["failed"],
        "matrix": _matrix(summary),
        "failures": [_failure(item) for item in variants if item["error"]],
        "timeline": timeline(variants),
        "coverage": [_coverage(item) for item in variants if item["coverage"]],
        "checks": [row for item in variants if item["check"] for row in _check(item)],
        "startups": startups(variants),
        "sizes": sizes(variants),
        "changes": _changes(summary),
        "variants": [_details(item) for item in variants],
    }


def _moment(text: str) -> dict[str, str]:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return {"machine": text, "people": text}
    return {"machine": text, "people": moment.strftime("%d %B %Y, %H:%M UTC").lstrip("0")}


def _matrix(summary: Mapping[str, Any]) -> dict[str, Any]:
    by_place = {(item["model"], item["target"]): item for item in summary["variants"]}
    rows = []
    for model in summary["models"]:
        items = [by_place.get((model, target)) for target in summary["targets"]]
        rows.append({"model": model, "cells": [None if item is None else _cell(item) for item in items]})
    return {"targets": summary["targets"], "rows": rows}


def _cell(item: Mapping[str, Any]) -> dict[str, str]:
    status = item["status"]
    note = size(item["size"]) if item["size"] else ""
    if item["error"]:
        note = item["error"]["reason"].replace("-", " ")
    if status == "compiled" and item["times"].get("compile"):
        note = f"{duration(item['times']['compile'])}, {note}" if note else duration(item["times"]["compile"])
    return {"status": status, "sign": STATUSES[status][0], "anchor": anchor(item["name"]), "note": note}


def _failure(item: Mapping[str, Any]) -> dict[str, str]:
    error = item["error"]
    return {
        "name": item["name"],
        "anchor": anchor(item["name"]),
        "found": f"{error['found'][:1].upper()}{error['found'][1:]}".rstrip("."),
        "expected": error["expected"],
        "remedy": error["remedy"],
        "detail": error["detail"],
        "exit_code": str(error["exit_code"]),
    }


def _coverage(item: Mapping[str, Any]) -> dict[str, Any]:
    found = item["coverage"]
    taken, total, left = found["taken"], found["total"], found["left"]
    names = [
        {"text": f"{entry.get('count')} {entry.get('operator')}", "reason": str(entry.get("reason") or "")}
        for entry in left[:_LEFT]
    ]
    return {
        "name": item["name"],
        "anchor": anchor(item["name"]),
        "ep": item["title"],
        "known": total is not None,
        "taken": taken,
        "total": total,
        "percent": percent(taken, total) if total else 0.0,
        "share": _share(taken, total) if total else "not measured",
        "context_nodes": found["context_nodes"],
        "nodes_left": found["nodes_left"],
        "left": names,
        "more": sum(int(entry.get("count") or 0) for entry in left[_LEFT:]),
    }


def _share(taken: int, total: int) -> str:
    """In per cent, rounded down: 260 of 261 are not all."""
    return f"{1000 * taken // total / 10:g}%"


def _check(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    check = item["check"]
    base = {"name": item["name"], "anchor": anchor(item["name"]), "outcome": str(check.get("outcome", ""))}
    outputs = check.get("outputs") or []
    if not outputs:
        why = f"not run: {check['why']}" if check.get("why") else base["outcome"]
        return [{**base, "output": "-", "verdict": why, "bad": False, **_figures({})}]
    place = " (simulator)" if check.get("simulated") else ""
    return [
        {
            **base,
            "output": str(output["name"]),
            "verdict": f"{output['verdict'].replace('-', ' ')}{place}",
            "bad": output["verdict"] not in PASSING,
            **_figures(output),
        }
        for output in outputs
    ]


def _figures(output: Mapping[str, Any]) -> dict[str, str]:
    shown = {}
    for key, form in (("max_abs", "{:.3g}"), ("max_rel", "{:.3g}"), ("cosine", "{:.6f}")):
        value = output.get(key)
        shown[key] = form.format(value) if isinstance(value, int | float) else "-"
    return shown


def _changes(summary: Mapping[str, Any]) -> dict[str, Any]:
    before = summary["before"]
    old = before["variants"] if before else {}
    rows = []
    for item in summary["variants"]:
        words = _words(item, old.get(item["name"]), compared=before is not None)
        if words:
            rows.append({"name": item["name"], "anchor": anchor(item["name"]), "words": words})
    return {
        "since": _moment(before["made"]) if before else None,
        "rows": rows,
        "gone": sorted(old.keys() - {item["name"] for item in summary["variants"]}),
        "size": _moved(before["size"], summary["size"]) if before else "",
    }


def _words(item: Mapping[str, Any], old: Mapping[str, Any] | None, *, compared: bool) -> list[str]:
    words = list(item["changed"])
    if item["first"] and compared and item["status"] != "failed":
        words.append("new: this store has no earlier result of it")
    if item["uncertain"]:
        words.append(f"compiled in every build: {'; '.join(item['uncertain'])}")
    if old and item["size"] and old.get("size") and (moved := _moved(old["size"], item["size"])):
        words.append(f"size {moved}")
    if old and _taken(old.get("coverage")) != _taken(item["coverage"]) and item["status"] != "failed":
        words.append(f"coverage {_taken(old.get('coverage'))} → {_taken(item['coverage'])}")
    return words


def _taken(coverage: Mapping[str, Any] | None) -> str:
    if not coverage or coverage.get("total") is None:
        return "not measured"
    return f"{coverage['taken']} of {coverage['total']}"


def _moved(old: int, new: int) -> str:
    """The old size, the new one and the difference in per cent; empty where nothing moved."""
    if not old or size(old) == size(new):
        return ""
    return f"{size(old)} → {size(new)} ({(new - old) / old:+.0%})"


def _details(item: Mapping[str, Any]) -> dict[str, Any]:
    times = [f"{phase} {duration(item['times'][phase])}" for phase in PHASES if item["times"].get(phase)]
    facts = [
        ("Status", f"{item['status']} ({item['reason']})" if item["reason"] else item["status"]),
        ("EP", f"{item['title']} ({item['ep']}), device {item['device']}"),
        ("Group", item["group"] or ""),
        ("Identity", item["identity"] or ""),
        ("Made in", ", ".join(times)),
        ("Load check", item["load_check"] or ""),
        ("Compatibility", item["compatibility"]),
        ("Metadata lost", ", ".join(item["metadata_lost"])),
        ("Not certain", "; ".join(item["uncertain"])),
    ]
    return {
        "name": item["name"],
        "anchor": anchor(item["name"]),
        "status": item["status"],
        "sign": STATUSES[item["status"]][0],
        "facts": [(title, text) for title, text in facts if text],
        "artifacts": [{**artifact, "text": size(artifact["size"])} for artifact in item["artifacts"]],
    }
