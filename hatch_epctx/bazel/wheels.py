"""The action that makes a wheel: Python files and metadata, then the package folder by the plugin's own packer."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename

from hatch_epctx.bazel.compiling import scratch_beside
from hatch_epctx.bazel.packing import Packed, build_of
from hatch_epctx.bazel.settings import read_object
from hatch_epctx.errors import ConfigError
from hatch_epctx.files import check_location, read_bounded
from hatch_epctx.wheel import add_package
from hatch_epctx.wheelfile import check_wheel, create_wheel, reproducible_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hatch_epctx.bazel.records import CompiledContext

__all__ = ["wheel_action"]

LIMIT: Final = 256 << 20
"""Bytes of one file of the package itself. Compiled models come by another way and have no such limit."""
_ONE: Final = (
    ("Summary", "summary"),
    ("Home-page", "homepage"),
    ("Author", "author"),
    ("Author-email", "author_email"),
    ("License-Expression", "license"),
    ("Requires-Python", "python_requires"),
)


def wheel_action(
    config_file: Path,
    contexts: Sequence[CompiledContext],
    *,
    files: Sequence[tuple[str, Path]],
    description: Path | None,
    out: Path,
) -> None:
    """Write the wheel `out`, whose name says distribution, version and tags.

    Args:
        config_file: JSON of the rule's attributes.
        contexts: compiles for the package folder; none: a wheel without one.
        files: (path in the wheel, file), in any order.
        description: the long description.
        out: where it goes.

    Raises:
        EpctxError: anything that a user can cause.
    """
    config = read_object(config_file, "configuration of a wheel")
    content = _contents(files)
    folder = f"{'-'.join(out.name.split('-')[:2])}.dist-info"
    for name, text in config["distinfo"].items():
        content[f"{folder}/{name}"] = text.encode()
    metadata = _metadata(config, _text("description_file", description) if description else "")
    with scratch_beside(out) as scratch:
        wheel = scratch / out.name
        try:
            create_wheel(wheel, metadata=metadata, files=content, time=reproducible_time({}))
        except InvalidWheelFilename as error:
            raise ConfigError(f"is no name of a wheel: {error}", where=out.name, reason="bad-value") from error
        if contexts:
            packed = Packed(
                package=config["package"],
                name=config["distribution"],
                version=config["version"],
                licence=config["license"],
                compression=config["compression"],
            )
            add_package(build_of(contexts, packed, scratch / "build"), wheel, version=packed.version)
        problems = check_wheel(wheel)
        if problems:
            raise ConfigError(
                f"would not be a valid wheel: {'; '.join(map(str, problems))}", where=out.name, reason="bad-value"
            )
        wheel.replace(out)


def _contents(files: Iterable[tuple[str, Path]]) -> dict[str, bytes]:
    content: dict[str, bytes] = {}
    for name, path in files:
        try:
            place = str(check_location(name))
        except ValueError as error:
            raise ConfigError(f"the path in the wheel {error}", where=name, reason="unsafe-name") from error
        if place in content:
            raise ConfigError(
                "two files have this path in the wheel",
                where=place,
                remedy="See to strip_path_prefixes.",
                reason="name-clash",
            )
        content[place] = _read(name, path)
    return content


def _read(name: str, path: Path) -> bytes:
    try:
        return read_bounded(path.resolve(), LIMIT)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot be read: {error}", where=name, reason="unreadable") from error


def _text(name: str, path: Path) -> str:
    try:
        return _read(name, path).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"is no UTF-8 text: {error}", where=name, reason="bad-value") from error


def _metadata(config: Mapping[str, Any], description: str) -> str:
    """METADATA, its fields in the order of the core metadata specification."""
    lines = ["Metadata-Version: 2.4", *_lines(config, ("Name", "distribution"), ("Version", "version"))]
    lines += _lines(config, *_ONE)
    urls = sorted(config["project_urls"].items())
    lines += [f"Project-URL: {_line('project_urls', f'{name}, {url}')}" for name, url in urls]
    lines += [f"Classifier: {_line('classifiers', text)}" for text in config["classifiers"]]
    lines += [f"License-File: {PurePosixPath(_line('license_files', name))}" for name in config["license_files"]]
    lines += [f"Requires-Dist: {_requirement('requires', text)}" for text in config["requires"]]
    for extra, requirements in sorted(config["extra_requires"].items()):
        lines.append(f"Provides-Extra: {_line('extra_requires', extra)}")
        lines += [f"Requires-Dist: {_with_extra(text, extra)}" for text in requirements]
    if description:
        kind = _line("description_content_type", config["description_content_type"])
        lines.append(f"Description-Content-Type: {kind or 'text/plain'}")
        return "\n".join([*lines, "", description])
    return "\n".join(lines) + "\n"


def _with_extra(text: str, extra: str) -> str:
    requirement, _, marker = _requirement("extra_requires", text).partition(";")
    condition = f"({marker.strip()}) and extra == '{extra}'" if marker.strip() else f"extra == '{extra}'"
    return f"{requirement.strip()}; {condition}"


def _requirement(key: str, text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement as error:
        found = f"{text!r} is no requirement: {' '.join(str(error).split())}"
        raise ConfigError(found, where=key, expected="such as numpy>=2", reason="bad-value") from error
    return _line(key, text)


def _lines(config: Mapping[str, Any], *fields: tuple[str, str]) -> list[str]:
    return [f"{field}: {_line(key, config[key])}" for field, key in fields if config[key]]


def _line(key: str, text: str) -> str:
    if text.splitlines() not in ([], [text]):
        raise ConfigError("holds a line break", where=key, expected="one line", reason="bad-value")
    return text
