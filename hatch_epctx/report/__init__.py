"""What a build did, for people: one HTML page that needs nothing beside it, and tables in a terminal.

Both show a summary (`pipeline.summary`), which programs take as JSON. `views` gives numbers their form and `charts`
their proportions, `page` fills the template ``page.html``, `terminal` prints tables with rich.
"""

from __future__ import annotations

from hatch_epctx.report.page import default_place, render_page, report_build, write_page
from hatch_epctx.report.terminal import print_report

__all__ = ["default_place", "print_report", "render_page", "report_build", "write_page"]
