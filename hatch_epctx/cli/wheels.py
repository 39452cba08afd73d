"""`epctx build --split` and `--companions`: several wheels of one build."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hatch_epctx.cli.output import complain, say, size
from hatch_epctx.cli.projects import environment_of
from hatch_epctx.errors import ConfigError
from hatch_epctx.frontend import build_companions, build_parts, missing_extras, parts_of, project_version
from hatch_epctx.wheel import judge_wheel

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from pathlib import Path

    from hatch_epctx.pipeline import Build

__all__ = ["write_wheels"]


def write_wheels(built: Build, options: Namespace) -> Iterator[dict[str, Any]]:
    """Write what ``--split`` and ``--companions`` ask for below ``--out``; describe each wheel.

    Raises:
        ConfigError: no target goes into a data package, or a wheel is beyond a limit that is an error.
        ToolchainError: the project's build backend is not installed, or fails.
        StoreError: a wheel cannot be written.
    """
    environ = environment_of(options)
    project = built.project
    if options.split:
        parts = parts_of(project, options.split)
        wheels = build_parts(project, parts, options.out, split=options.split, environ=environ, report=_passed_on)
        for part, wheel in wheels:
            yield _told(wheel, options, {"split": part.name, "targets": list(part.targets)})
    if options.companions:
        yield from _companions(built, options, environ)


def _companions(built: Build, options: Namespace, environ: dict[str, str]) -> Iterator[dict[str, Any]]:
    project = built.project
    if not any(variant.companion for variant in project.variants):
        raise ConfigError(
            "no selected target goes into a data package",
            where="--companions",
            remedy="Name targets in tool.epctx.wheel.companions.",
            reason="no-companions",
        )
    version = project_version(project, environ)
    for warning in missing_extras(project, version):
        complain(f"warning: {warning}")
    for companion, wheel in build_companions(built, options.out, version=version, environ=environ):
        for warning in judge_wheel(wheel, project.settings):
            complain(f"warning: {warning}")
        yield _told(wheel, options, {"companion": companion.distribution, "targets": [companion.target]})


def _told(wheel: Path, options: Namespace, facts: dict[str, Any]) -> dict[str, Any]:
    if not options.json:
        say(f"wrote {wheel} ({size(wheel.stat().st_size)})")
    return {"path": str(wheel), "size": wheel.stat().st_size, **facts}


def _passed_on(line: str) -> None:
    complain(line.removeprefix("epctx: "))
