"""Files and folders behind provider options: their digests, and the private copies that a compile works on.

A folder counts with its whole content, by relative name; what a link leads to counts, times and modes do not. The
compile reads a copy whose digest is the one in the identity, never the user's own files.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_epctx.digest import digest_entries
from hatch_epctx.errors import ConfigError
from hatch_epctx.files import copy_and_digest
from hatch_epctx.source.models import SourceChangedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hatch_epctx.config import Variant
    from hatch_epctx.providers import OpPackage, OptionValue

__all__ = ["copy_name", "digest_option", "snapshot_option", "snapshot_packages", "walk_folder"]


def copy_name(option: OptionValue) -> str:
    """What the EP is told: where the copy stands in the job's folder, so that no path of this machine reaches it."""
    if not option.packages:
        return f"option-{option.name}"
    # With a folder in front: a bare name would be looked for in the system's library path.
    parts = [
        (item.operator, f"./{_package_name(option, number)}", item.interface, item.target)
        for number, item in enumerate(option.packages)
    ]
    return ",".join(":".join(filter(None, part)) for part in parts)


def _package_name(option: OptionValue, number: int) -> str:
    return f"option-{option.name}-{number}{option.packages[number].library.suffix}"


def digest_option(option: OptionValue, *, place: str, digest: Callable[[Path], str]) -> str:
    """Digest of the content behind a file or folder option.

    Args:
        option: one whose `is_path` is true.
        place: of the option in the configuration, for messages.
        digest: content digest of a file; a stat cache makes a warm call cheap.

    Raises:
        ConfigError: a file or folder is missing or cannot be read.
    """
    path = _path(option)
    try:
        if option.packages:
            return digest_entries((key, digest(item.library)) for key, item in _keyed(option))
        if option.folder is None:
            return digest(path)
        return digest_entries((name, digest(found)) for name, found in walk_folder(path, ""))
    except OSError as error:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(path)
        raise ConfigError(
            f"the {option.kind} of option {option.name!r} cannot be read: {error.strerror or error}: {where}",
            where=place,
            remedy="Check the path and its permissions, or make the files before the build.",
            reason="missing-option-file",
        ) from error


def snapshot_option(option: OptionValue, folder: Path, digest: str) -> None:
    """Copy what is behind `option` into `folder` under `copy_name`.

    Raises:
        SourceChangedError: the bytes copied are not those of `digest`, or went away.
        OSError: the copy cannot be written.
    """
    path, copy = _path(option), folder / copy_name(option)
    try:
        if option.packages:
            copied = digest_entries(
                [
                    (key, copy_and_digest(item.library, folder / _package_name(option, number))[0])
                    for number, (key, item) in enumerate(_keyed(option))
                ]
            )
        elif option.folder is None:
            copied = copy_and_digest(path, copy)[0]
        else:
            copy.mkdir()
            copied = digest_entries([(name, _copy(found, copy / name)) for name, found in walk_folder(path, "")])
    except OSError as error:
        if str(error.filename) not in {str(path), *(str(item.library) for item in option.packages)} and (
            option.folder is None or str(path) not in str(error.filename)
        ):
            raise  # of the copy, which the store explains
        raise _changed(option) from error
    if copied != digest:
        raise _changed(option)


def _keyed(option: OptionValue) -> list[tuple[str, OpPackage]]:
    """The packages, each with what counts of it beside its library's content; their order counts too."""
    return [
        (f"{number}:{item.operator}:{item.interface}:{item.target}", item)
        for number, item in enumerate(option.packages)
    ]


def snapshot_packages(variant: Variant, folder: Path, digests: Mapping[str, str]) -> None:
    """Copy the libraries of op packages into `folder`, for a session of what was compiled with them.

    Raises:
        As `snapshot_option`.
    """
    for option in variant.provider_options:
        if option.packages and not (folder / _package_name(option, 0)).exists():
            snapshot_option(option, folder, digests[option.name])


def _changed(option: OptionValue) -> SourceChangedError:
    return SourceChangedError(
        f"the {option.kind} of option {option.name!r} changed while it was being read", reason="source-changed"
    )


def _path(option: OptionValue) -> Path:
    path = option.folder or option.file or next((item.library for item in option.packages), None)
    if path is None:
        raise ValueError(f"option {option.name} names no file")
    return path


def _copy(source: Path, copy: Path) -> str:
    copy.parent.mkdir(parents=True, exist_ok=True)
    return copy_and_digest(source, copy)[0]


def walk_folder(folder: Path, name: str = "", above: frozenset[str] = frozenset()) -> Iterator[tuple[str, Path]]:
    """(relative POSIX name, path) of each file below `folder`; `above` holds the real folders on the way here."""
    real = os.path.realpath(folder)
    if real in above:  # a link that leads back to a folder above it
        return
    with os.scandir(folder) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        place = f"{name}/{entry.name}" if name else entry.name
        if entry.is_dir():
            yield from walk_folder(Path(entry.path), place, above | {real})
        elif entry.is_file():
            yield place, Path(entry.path)
