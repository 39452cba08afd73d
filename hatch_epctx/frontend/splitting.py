"""Several wheels of one project: one for each platform, or one for each target.

Each is built by the project's own backend, told by EPCTX_TARGETS and EPCTX_PLATFORM, after everything was compiled: a
front end with the same two variables gives the same wheel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hatch_epctx.frontend.backend import Backend
from hatch_epctx.wheel import ANY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from hatch_epctx.config import Project, Variant

__all__ = ["Part", "Split", "build_parts", "parts_of"]

Split = Literal["platform", "target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One wheel."""

    name: str
    """The platform or the target that it is for."""
    targets: tuple[str, ...]
    """Expanded names of its targets; empty for a wheel of shipped sources alone."""
    platform: str


def parts_of(project: Project, split: Split) -> tuple[Part, ...]:
    """The wheels that `project` is split into.

    By platform: a wheel for one platform holds the targets of that platform and those of any, since an installer takes
    it in place of the one for any; a wheel for any holds those of any alone. Targets of data packages are in none, and
    shipped sources in all.
    """
    variants = [variant for variant in project.variants if not variant.companion]
    by_target = {variant.target: _platform(project, variant) for variant in variants if not variant.is_source}
    if split == "target":
        return tuple(Part(name=name, targets=(name,), platform=tag) for name, tag in by_target.items())
    portable = tuple(name for name, platform in by_target.items() if platform == ANY)
    parts = [
        Part(name=tag, targets=tuple(name for name, own in by_target.items() if own in (tag, ANY)), platform=tag)
        for tag in dict.fromkeys(by_target.values())
        if tag != ANY
    ]
    if portable or any(variant.is_source for variant in variants):
        parts.append(Part(name=ANY, targets=portable, platform=ANY))
    return tuple(parts)


def _platform(project: Project, variant: Variant) -> str:
    return variant.platform or project.settings.environment.platform or project.settings.wheel.platform


def build_parts(
    project: Project,
    parts: tuple[Part, ...],
    out: Path,
    *,
    split: Split,
    environ: Mapping[str, str],
    report: Callable[[str], None],
) -> Iterator[tuple[Part, Path]]:
    """Build each part's wheel below `out`.

    All go into one folder; wheels of single targets, which may have one file name, each into one of the target's name.

    Args:
        project: as it was split.
        parts: what `parts_of` gave.
        out: the folder.
        split: how it was split.
        environ: environment variables that the backend sees.
        report: gets warnings about the wheels, one line each.

    Raises:
        ToolchainError: the build backend is not installed, or fails.
    """
    backend = Backend(project.root, environ, report=report)
    for part in parts:
        folder = out / part.name if split == "target" else out
        # A selection of the shipped sources alone is one by their own name.
        settings = {"targets": ",".join(part.targets or ("source",)), "platform": part.platform}
        yield part, backend.build_wheel(folder, settings)
