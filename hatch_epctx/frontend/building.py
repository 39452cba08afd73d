"""One build, as every front end runs it: variants into the store, failures in one error."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hatch_epctx.console import Lines
from hatch_epctx.pipeline import Pipeline
from hatch_epctx.report import report_build
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from hatch_epctx.config import Project
    from hatch_epctx.pipeline import Build

__all__ = ["build_project", "without_companions"]


def without_companions(project: Project) -> Project:
    """`project` without the variants that go into data packages of their own: what its own wheel holds."""
    return replace(project, variants=tuple(variant for variant in project.variants if not variant.companion))


def build_project(project: Project, write: Callable[[str], None]) -> Build:
    """Bring the project's variants into the store; close what is returned.

    Args:
        project: with the variants to build.
        write: prints one line of progress.

    Raises:
        EpctxError: what is wrong, all of it at once; nothing is held then.
    """
    store = Store(project.environment.cache_dir)
    lines = Lines(write, level=project.environment.log)
    lines.debug(f"store {store.root}{' (read-only)' if store.read_only else ''}, {project.environment.jobs} jobs")
    built = Pipeline(project, store, report=lines).build()
    try:
        report_build(built, store, lambda text: lines(None, text))
        built.raise_for_failures()
    except BaseException:
        built.close()
        raise
    return built
