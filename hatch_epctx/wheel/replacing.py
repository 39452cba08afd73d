"""Writing the package folder to a place where an earlier one may lie."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hatch_epctx.errors import StoreError, VerificationError
from hatch_epctx.files import move, read_bounded, remove_tree
from hatch_epctx.manifest import MANIFEST_NAME, MAX_BYTES, read_manifest
from hatch_epctx.wheel.contents import write_package

if TYPE_CHECKING:
    from pathlib import Path

    from hatch_epctx.folder import FolderPlan
    from hatch_epctx.pipeline import Build

__all__ = ["check_out", "replace_package"]

_REMEDY: Final = "Name a new or empty folder, or one that an earlier build wrote."


def check_out(out: Path) -> None:
    """Refuse a folder that `replace_package` would refuse, before anything is compiled for it.

    Raises:
        StoreError: `out` is no folder, or holds something that is no part of a package folder.
    """
    if not os.path.lexists(out):
        return
    try:
        names = {path.name for path in out.iterdir()}
    except OSError as error:
        raise StoreError(f"{error.strerror or error}", where=str(out), remedy=_REMEDY, reason="unwritable") from error
    foreign = sorted(names - _known_names(out)) if names else []
    if foreign:
        raise StoreError(
            f"the folder holds {foreign[0]!r}, which is no part of a package folder",
            where=str(out),
            remedy=_REMEDY,
            reason="not-empty",
        )


def _known_names(out: Path) -> set[str]:
    """The names of an earlier package folder, none where `out` is no such folder."""
    try:
        manifest = read_manifest(read_bounded(out / MANIFEST_NAME, MAX_BYTES))
    except (OSError, VerificationError):
        return set()
    return {MANIFEST_NAME, *(artifact.path for artifact in manifest.artifacts())}


def replace_package(built: Build, out: Path, *, version: str) -> FolderPlan | None:
    """Write the package folder of `built` as `out`.

    It is written beside `out` and takes its place when it is whole. Between the two there is a moment without any
    folder at `out`: no process should look into it meanwhile.

    Args:
        built: a build without failures.
        out: a folder that is not there yet, is empty, or is an earlier package folder and nothing else.
        version: of the project, for the manifest.

    Returns:
        What was written; None where every variant was skipped: `out` stays as it was.

    Raises:
        VerificationError: names clash, or a file is not what its record says.
        StoreError: the folder holds something else, or cannot be written.
    """
    check_out(out)
    out = out.resolve()
    fresh = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        remove_tree(fresh)
        plan = write_package(built, fresh, version=version)
        if plan is not None:
            remove_tree(out)
            move(fresh, out)
    except OSError as error:
        raise StoreError(
            f"cannot be written: {error.strerror or error}",
            where=str(out),  # and not the folder of another name that takes its place
            remedy="Free some space there, or name another folder.",
            reason="unwritable",
        ) from error
    finally:
        with suppress(OSError):
            remove_tree(fresh)
    return plan
