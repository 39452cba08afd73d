"""`epctx plan`: every variant, its identity, and whether a build would compile it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_epctx.cli.output import emit_json, say, table
from hatch_epctx.cli.projects import described, open_pipeline, why
from hatch_epctx.findings import coverage_in_words

if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["plan"]


def plan(options: Namespace) -> int:
    """Every selected variant: identity, hit or miss, and why. Nothing is compiled."""
    pipeline = open_pipeline(options)
    entries = pipeline.plan()
    if options.json:
        emit_json(options, {"variants": [described(pipeline, entry) for entry in entries]})
        return 0
    rows = []
    for entry in entries:
        identity = entry.planned.identity
        shown = "-" if identity is None else identity.digest if options.verbose else identity.short
        variant = entry.variant
        coverage = coverage_in_words(entry.facts, variant.provider.names[0])
        row = (variant.name, variant.provider.key, variant.device, shown, entry.status, coverage, why(pipeline, entry))
        rows.append(row)
    table(("VARIANT", "EP", "DEVICE", "IDENTITY", "STATUS", "COVERAGE", "WHY"), rows)
    counts = {status: sum(entry.status == status for entry in entries) for status in ("hit", "miss", "skipped")}
    text = f"{len(entries)} variants: {counts['hit']} hits, {counts['miss']} to compile"
    if always := sum(bool(entry.uncertain) for entry in entries):
        text += f" ({always} in every build)"
    say(text + (f", {counts['skipped']} skipped" if counts["skipped"] else ""))
    return 0
