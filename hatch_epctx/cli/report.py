"""`epctx report`: what the last build did, as an HTML page, tables or JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hatch_epctx.cli.output import emit_json, say, writing
from hatch_epctx.cli.projects import environment_of
from hatch_epctx.config import load_project
from hatch_epctx.errors import StoreError
from hatch_epctx.pipeline import recall_summary
from hatch_epctx.report import default_place, print_report, write_page
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["report"]


def report(options: Namespace) -> int:
    """Show the project's last build on this machine, whichever front end started it, and write its page."""
    project = load_project(options.project, environ=environment_of(options), state="wheel")
    store = Store(project.environment.cache_dir)
    found = recall_summary(store, project.name, project.settings.package)
    if found is None:
        raise StoreError(
            f"the store at {store.root} knows no build of {project.name}",
            where="epctx report",
            remedy="Build first, with 'epctx build' or any front end and the same EPCTX_CACHE_DIR.",
            reason="no-report",
        )
    if options.json:
        emit_json(options, found)
    elif not options.quiet:
        with writing():
            print_report(found, sys.stdout)
    if options.out is not None or not options.json:
        place = options.out or default_place(store, project.name, project.settings.package)
        write_page(found, place)
        if not options.json:
            say(f"wrote {place}")
    return 0
