"""`epctx plan`: every variant, its identity, and whether a build would compile it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_epctx.cli.output import complain, counted, duration, emit_json, say, table
from hatch_epctx.cli.projects import cost, described, open_pipeline, why
from hatch_epctx.findings import coverage_in_words
from hatch_epctx.frontend import misplaced, without_companions

if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["plan"]


def plan(options: Namespace) -> int:
    """Every selected variant: identity, hit or miss, and why. Nothing is compiled."""
    pipeline = open_pipeline(options)
    entries = pipeline.plan()
    if error := misplaced(without_companions(pipeline.project)):
        complain(f"warning: no wheel can be made: {error}")
    if options.json:
        emit_json(options, {"variants": [described(pipeline, entry) for entry in entries]})
        return 0
    rows = []
    costs = [cost(pipeline, entry) for entry in entries]
    for entry, known in zip(entries, costs, strict=True):
        identity = entry.planned.identity
        shown = "-" if identity is None else identity.digest if options.verbose else identity.short
        variant = entry.variant
        coverage = coverage_in_words(entry.facts, variant.provider.names[0])
        price = duration(known["seconds"]) if known else "-"
        place = (variant.name, variant.provider.key, variant.device, shown, entry.status)
        rows.append((*place, price, coverage, why(pipeline, entry)))
    head = ("VARIANT", "EP", "DEVICE", "IDENTITY", "STATUS", "COST", "COVERAGE", "WHY")
    table(head, rows, optional=("COST", "COVERAGE"))
    counts = {status: sum(entry.status == status for entry in entries) for status in ("hit", "miss", "skipped")}
    text = f"{counted(len(entries), 'variant')}: {counted(counts['hit'], 'hit')}, {counts['miss']} to compile"
    if always := sum(bool(entry.uncertain) for entry in entries):
        text += f" ({always} in every build)"
    say(text + (f", {counts['skipped']} skipped" if counts["skipped"] else ""))
    if any(costs):
        unknown = sum(entry.status == "miss" for entry in entries) - sum(map(bool, costs))
        total = duration(sum(known["seconds"] for known in costs if known))
        say(f"about {total} of compiling, by earlier compiles" + (f"; {unknown} not known" if unknown else ""))
    return 0
