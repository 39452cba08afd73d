"""What bites users after the build: limits on sizes and on paths, and models of a package that is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from packaging.utils import parse_wheel_filename

from hatch_epctx.errors import ConfigError, suggest
from hatch_epctx.files import remove_file
from hatch_epctx.manifest import FOLDER_NAME, MANIFEST_NAME
from hatch_epctx.wheelfile import packed_sizes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from hatch_epctx.config import Settings

__all__ = ["judge_wheel", "orphan"]

_NAMED: Final = 5
"""Files that a message names."""
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB")

_WAYS_OUT = (
    "Select fewer targets (EPCTX_TARGETS), make one wheel for each platform or target (epctx build --split), or put "
    "targets into data packages of their own (tool.epctx.wheel.companions)"
)


def judge_wheel(wheel: Path, settings: Settings) -> tuple[str, ...]:
    """Warnings about the finished wheel, each whole lines.

    A wheel beyond a limit that is an error is removed: what a build leaves may be uploaded by the next step.

    Raises:
        ConfigError: it is beyond a limit that the project made an error.
        VerificationError: it is no well-formed wheel.
    """
    sizes = packed_sizes(wheel)
    warnings = [str(error) for error in [_no_package(wheel, sizes, settings)] if error is not None]
    findings = (
        (_too_large(wheel, sizes, settings), settings.wheel.max_size_error),
        (_too_long(wheel, sizes, settings), settings.wheel.max_path_error),
    )
    for error, fatal in findings:
        if error is None:
            continue
        if fatal:
            remove_file(wheel)
            raise error
        warnings.append(str(error))
    return tuple(warnings)


def orphan(names: Collection[str], settings: Settings) -> ConfigError | None:
    """The error of a wheel that has Python packages, but nothing of the one that its models go into.

    One without any packages is a data package on purpose, which the look-up finds by its name.

    Args:
        names: what the wheel will hold beside the package folder; a folder, which may hold anything, has a slash at
            its end.
        settings: of the project.
    """
    folder = settings.package.replace(".", "/")
    known = {name.rpartition("/")[0].replace("/", ".") for name in names if "/" in name and name.endswith(".py")}
    if (
        not known
        or _has_package(names, folder)
        or any(name.endswith("/") and f"{folder}/".startswith(name.lstrip("/")) for name in names)
    ):
        return None
    return ConfigError(
        f"the wheel has nothing of the package {settings.package!r}, which its compiled models would go into",
        where=settings.place("package"),
        expected="the import name of a package in the wheel",
        remedy=suggest(settings.package, known)
        or f"Correct the name, or have {folder}/__init__.py among the files of the wheel.",
        reason="no-package",
    )


def _has_package(names: Collection[str], folder: str) -> bool:
    """Whether anything but the package folder lies in `folder`, or is a module of its name.

    Whatever it is counts, since a namespace package has no module of its own.
    """
    own = f"{folder}/{FOLDER_NAME}/"
    return any(name.startswith((f"{folder}/", f"{folder}.")) and not name.startswith(own) for name in names)


def _no_package(wheel: Path, names: Collection[str], settings: Settings) -> ConfigError | None:
    """Compiled models of a package that the wheel does not have: its name may be misspelt."""
    end = f"/{FOLDER_NAME}/{MANIFEST_NAME}"
    folder = next((name.removesuffix(end) for name in names if name.endswith(end)), "")
    if not folder or _has_package(names, folder):
        return None
    package = folder.replace("/", ".")
    known = (name.rpartition("/")[0].replace("/", ".") for name in names if name.endswith("/__init__.py"))
    return ConfigError(
        f"{wheel.name} holds compiled models of {package!r} and nothing else of that package",
        where=settings.place("package"),
        expected="the import name of a package in the wheel",
        remedy=suggest(package, known) or "The look-up finds the models by this name.",
        reason="no-package",
    )


def _too_large(wheel: Path, sizes: Mapping[str, int], settings: Settings) -> ConfigError | None:
    limit, size = settings.wheel.max_size, wheel.stat().st_size
    if limit is None or size <= limit:
        return None
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:_NAMED]
    return ConfigError(
        f"{wheel.name} has {_amount(size)}",
        where=settings.place("wheel", "max-size"),
        expected=f"at most {_amount(limit)}",
        remedy=f"{_WAYS_OUT}.",
        reason="wheel-too-large",
        detail="The largest files:\n" + "\n".join(f"  {_amount(sizes[name])}  {name}" for name in largest),
    )


def _too_long(wheel: Path, sizes: Mapping[str, int], settings: Settings) -> ConfigError | None:
    """Paths of this project's own making only: the others were there before it."""
    limit = settings.wheel.max_path
    if not _for_windows(wheel):
        return None
    own = [name for name in sizes if f"/{FOLDER_NAME}/" in f"/{name}" and len(name) > limit]
    if not own:
        return None
    longest = sorted(own, key=lambda name: (-len(name), name))[:_NAMED]
    return ConfigError(
        f"{wheel.name} has paths of up to {len(longest[0])} characters; Windows opens 260 with the folder that the "
        "wheel is installed into",
        where=settings.place("wheel", "max-path"),
        expected=f"at most {limit}",
        remedy="Shorten the names of the package, the model or the target.",
        reason="path-too-long",
        detail="The longest paths:\n" + "\n".join(f"  {len(name)}  {name}" for name in longest),
    )


def _for_windows(wheel: Path) -> bool:
    tags = parse_wheel_filename(wheel.name)[3]
    return any(tag.platform == "any" or tag.platform.startswith("win") for tag in tags)


def _amount(size: int) -> str:
    """Bytes for people, rounded so that a size beyond a limit never reads like the limit."""
    value, unit = float(size), "B"
    for larger in _UNITS:
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value == int(value) else f"{value:.3g} {unit} ({size:,} bytes)"
