"""`epctx build`: bring every variant into the store; with --out, write the package folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_epctx.cli.output import complain, emit_json, say, size, table
from hatch_epctx.cli.projects import described, open_pipeline
from hatch_epctx.wheel import write_package

if TYPE_CHECKING:
    from argparse import Namespace

    from hatch_epctx.pipeline import Build

__all__ = ["build"]


def build(options: Namespace) -> int:
    """Compile what changed. A failed variant stops no other one; the folder is written when none failed."""
    pipeline = open_pipeline(options)
    with pipeline.build() as built:
        if options.json:
            emit_json(options, {"variants": [described(pipeline, entry) for entry in built.entries]})
        else:
            _print(built)
        built.raise_for_failures()
        if options.out is not None:
            written = write_package(built, options.out, version=pipeline.project.version)
            if written is None:
                complain(f"warning: every variant was skipped: {options.out} was not written")
            elif not options.json:
                say(f"wrote {options.out}")
    return 0


def _print(built: Build) -> None:
    rows = []
    for entry in built.entries:
        artifacts = entry.generation.record.artifacts if entry.generation else ()
        rows.append(
            (
                entry.variant.name,
                entry.planned.identity.short if entry.planned.identity else "-",
                entry.status,
                f"{entry.seconds:.1f} s",
                size(sum(artifact.size for artifact in artifacts)) if artifacts else "-",
            )
        )
    table(("VARIANT", "IDENTITY", "STATUS", "TIME", "SIZE"), rows)
