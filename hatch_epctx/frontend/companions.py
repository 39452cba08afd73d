"""Companion data packages: distributions that hold the variants of one target and no code.

    acme_vision_epctx_snapdragon-1.2.3-py3-none-any.whl
        acme_vision_epctx_snapdragon/__init__.py            says what it is
        acme_vision_epctx_snapdragon/_epctx/manifest.json   names the package acme_vision and its version
        acme_vision_epctx_snapdragon-1.2.3.dist-info/...    asks for acme-vision==1.2.3

The look-up finds them by their names (see `runtime.folders`). Users ask for them by an extra of the main distribution,
which the project declares itself: metadata are the project's.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from hatch_epctx.manifest import FOLDER_NAME
from hatch_epctx.wheel import add_package, platform_of
from hatch_epctx.wheelfile import create_wheel, reproducible_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hatch_epctx.config import Project
    from hatch_epctx.pipeline import Build

__all__ = ["Companion", "build_companions", "companions_of", "missing_extras"]

_MARK: Final = "epctx"
"""Stands between the project's name and the target's (see `runtime.folders`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """One data package."""

    target: str
    """The declared target whose variants it holds."""
    distribution: str
    package: str
    """Import name."""


def companions_of(project: Project) -> tuple[Companion, ...]:
    """The data packages of the selected variants, in the order of their targets."""
    targets = dict.fromkeys(variant.base_target for variant in project.variants if variant.companion)
    return tuple(_companion(project, target) for target in targets)


def _companion(project: Project, target: str) -> Companion:
    word = re.sub(r"\W", "_", target).lower()
    return Companion(
        target=target,
        distribution=f"{canonicalize_name(project.name)}-{_MARK}-{canonicalize_name(target)}",
        package=f"{project.settings.package.replace('.', '_')}_{_MARK}_{word}",
    )


def missing_extras(project: Project, version: str) -> tuple[str, ...]:
    """A warning for each data package that no extra of the project asks for, with the line to write.

    None where the project leaves its extras to the build backend: they are not known here.
    """
    if project.extras is None:
        return ()
    asked = {name for requirements in project.extras.values() for name in map(_name, requirements)}
    return tuple(
        f"no extra asks for {companion.distribution}: add to [project.optional-dependencies] "
        f'{canonicalize_name(companion.target)} = ["{companion.distribution}=={version}"]'
        for companion in companions_of(project)
        if companion.distribution not in asked
    )


def _name(requirement: str) -> str:
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:
        return ""


def build_companions(
    built: Build, out: Path, *, version: str, environ: Mapping[str, str]
) -> Iterator[tuple[Companion, Path]]:
    """Write a wheel into `out` for each data package of `built`; one whose variants were all skipped is left out.

    Args:
        built: a build without failures.
        out: the folder; made where it is missing. A wheel of the same name is replaced.
        version: of the project; it is the data packages' version too.
        environ: environment variables, for SOURCE_DATE_EPOCH.

    Raises:
        ConfigError: SOURCE_DATE_EPOCH, or targets of one data package belong in wheels of several platforms.
        StoreError: a wheel cannot be written.
    """
    project = built.project
    for companion in companions_of(project):
        own = tuple(
            entry
            for entry in built.entries
            if entry.variant.base_target == companion.target and entry.status != "skipped"
        )
        if not own:
            continue
        platform = platform_of(project.settings, (entry.variant for entry in own))
        stem = companion.distribution.replace("-", "_")
        wheel = Path(out, f"{stem}-{version}-py3-none-{platform}.whl")
        out.mkdir(parents=True, exist_ok=True)
        create_wheel(
            wheel,
            metadata=_metadata(project, companion, version),
            files={f"{companion.package}/__init__.py": _module(project, companion).encode()},
            time=reproducible_time(environ),
        )
        add_package(
            replace(built, entries=own),
            wheel,
            version=version,
            name=companion.distribution,
            folder=f"{companion.package}/{FOLDER_NAME}/",
        )
        yield companion, wheel


def _metadata(project: Project, companion: Companion, version: str) -> str:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {companion.distribution}",
        f"Version: {version}",
        f"Summary: Compiled models of {project.name} for the target {companion.target}",
        f"Requires-Dist: {canonicalize_name(project.name)}=={version}",
    ]
    with suppress(InvalidLicenseExpression):  # none, or the text of the older table
        lines.append(f"License-Expression: {canonicalize_license_expression(project.licence)}")
    return "\n".join(lines) + "\n"


def _module(project: Project, companion: Companion) -> str:
    return f'"""Compiled models of {project.settings.package} for the target {companion.target}; data only."""\n'
