"""`epctx build`: bring every variant into the store; with --out, write the package folder, or wheels."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hatch_epctx.cli.output import complain, counted, emit_json, say, size, table
from hatch_epctx.cli.projects import described, open_pipeline
from hatch_epctx.cli.wheels import write_wheels
from hatch_epctx.errors import ConfigError
from hatch_epctx.findings import coverage_in_words, left_in_words
from hatch_epctx.frontend import project_version, refresh
from hatch_epctx.manifest import ROLES
from hatch_epctx.report import report_build
from hatch_epctx.wheel import check_out, replace_package

if TYPE_CHECKING:
    from argparse import Namespace

    from hatch_epctx.pipeline import Build

__all__ = ["build"]


def build(options: Namespace) -> int:
    """Compile what changed. A failed variant stops no other one; what goes to --out is written when none failed."""
    wheels_wanted = bool(options.split or options.companions)
    if wheels_wanted and options.out is None:
        where = "--split" if options.split else "--companions"
        raise ConfigError("no folder is named", where=where, remedy="Add --out DIR for the wheels.", reason="no-out")
    pipeline = open_pipeline(options)
    if options.out is not None and not wheels_wanted:
        check_out(options.out)
    with pipeline.build() as built:
        described_ = {
            "variants": [described(pipeline, entry) for entry in built.entries],
            "remote": {"round_trips": dict(built.round_trips)},
        }
        if not options.json:
            _print(built)
        report_build(built, pipeline.store, complain)
        try:
            built.raise_for_failures()
            if wheels_wanted:
                described_["wheels"] = list(write_wheels(built, options))
            elif options.out is not None:
                _write_folder(built, options)
        finally:
            if options.json:
                emit_json(options, described_)
        plan = refresh(built, environ=os.environ)
        if plan is not None and not options.json:
            variants = sum(len(component.variants) for component in plan.manifest.components)
            these = f"{'this' if variants == 1 else 'these'} {counted(variants, 'variant')}"
            # Nothing of ours runs when one is uninstalled: whether there is one still is not known.
            say(f"an editable install of {built.project.settings.package} finds {these} now")
    return 0


def _write_folder(built: Build, options: Namespace) -> None:
    written = replace_package(built, options.out, version=project_version(built.project, os.environ))
    if written is None:
        complain(f"warning: every variant was skipped: {options.out} was not written")
    elif not options.json:
        say(f"wrote {options.out}")


def _print(built: Build) -> None:
    rows = []
    for entry in built.entries:
        artifacts = [artifact for artifact in entry.artifacts if artifact.role in ROLES]
        rows.append(
            (
                entry.variant.name,
                entry.planned.identity.short if entry.planned.identity else "-",
                entry.status,
                f"{entry.seconds:.1f} s",
                size(sum(artifact.size for artifact in artifacts)) if artifacts else "-",
                coverage_in_words(entry.facts, entry.variant.provider.names[0]),
                str(entry.check.get("outcome", "-")) if entry.check else "-",
            )
        )
    table(("VARIANT", "IDENTITY", "STATUS", "TIME", "SIZE", "COVERAGE", "CHECK"), rows, optional=("COVERAGE", "CHECK"))
    for entry in built.entries:
        if left := left_in_words(entry.facts.get("left")):
            say(f"{entry.variant.name}: left to the CPU: {left}")
