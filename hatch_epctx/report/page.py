"""The HTML page of a build: one file, no network, readable without JavaScript."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.digest import digest_bytes
from hatch_epctx.errors import StoreError
from hatch_epctx.files import atomic_write, make_dir
from hatch_epctx.pipeline import recall_summary, summary
from hatch_epctx.report.views import view

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hatch_epctx.pipeline import Build
    from hatch_epctx.store import Store

__all__ = ["default_place", "render_page", "report_build", "write_page"]

_TEMPLATE: Final = "page.html"
_MODE: Final = 0o644
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]|^[.-]")
_LONGEST: Final = 100
"""Characters of a project's name in a file name."""


def render_page(facts: Mapping[str, Any]) -> str:
    """The page of the summary `facts`; every text in it is escaped."""
    # Only builds that write a page pay for the import.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(_TEMPLATE).render(**view(facts))


def default_place(store: Store, name: str, package: str) -> Path:
    """Where the page of a project's last build stands: in the store, whatever folder the project is built in."""
    key = digest_bytes(f"{name}/{package}".encode())[:8]
    # A name that is none, such as one with slashes, is told to nobody before the project is built.
    plain = _UNFIT.sub("_", name)[:_LONGEST]
    return store.layout.base / "reports" / f"{plain}-{key}.html"


def report_build(built: Build, store: Store, say: Callable[[str], None]) -> None:
    """Write the page of `built` where its project asks for it (`report = true`); a failure is a warning.

    Args:
        built: a build, failed or not; its summary is the store's.
        store: where the summary and the page are.
        say: told one line, where the page is or why there is none.
    """
    project = built.project
    if not project.settings.report:
        return
    place = default_place(store, project.name, project.settings.package)
    found = recall_summary(store, project.name, project.settings.package)
    try:
        write_page(found if found is not None else summary(built), place)
    except StoreError as error:  # the wheel is worth more than its report
        say(f"warning: {error}")
        return
    say(f"report: {place}")


def write_page(facts: Mapping[str, Any], place: Path) -> None:
    """Write the page of the summary `facts` to the file `place`, whole or not at all.

    Raises:
        StoreError: it cannot be written.
    """
    data = render_page(facts).encode("utf-8", "replace")
    try:
        if not place.parent.is_dir():
            make_dir(place.parent)
        atomic_write(place, data, _MODE, durable=False)
    except OSError as error:
        raise StoreError(
            f"the report cannot be written: {error.strerror or error}", where=str(place), reason="unwritable"
        ) from error
