"""Source models: reading their bytes and facts, and the private snapshot that a compile works on.

A source model is an ONNX file and the external data it names. What was read from the ONNX file itself (its
external-data list, inputs, outputs) is remembered by the file's digest, so that a build in which everything hits
opens no ONNX file and starts no worker.

Hub-style trees, in which the model and its weights are links into a blob store, are read through the links: the
bytes count, and the snapshot holds regular files.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from hatch_epctx.errors import EpctxError, ModelError
from hatch_epctx.files import check_location, copy_and_digest, fault_point
from hatch_epctx.worker.protocol import FORMAT, MODEL_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hatch_epctx.source.custom import CustomOpsLibrary
    from hatch_epctx.store import Store
    from hatch_epctx.worker.protocol import ScannedModel

__all__ = ["ONNX_LIMIT", "SourceChangedError", "SourceModel", "read_source", "snapshot", "snapshot_model"]

ONNX_LIMIT = (1 << 31) - 1
"""Bytes of an ONNX file: protobuf's own limit. Larger models keep their weights in external data."""

_LFS_HEAD = b"version https://git-lfs.github.com/spec/"
_LFS_POINTER_LIMIT = 1024


class SourceChangedError(EpctxError):
    """The source changed while it was being read or compiled; the pipeline tries again."""

    exit_code = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceModel:
    """One source model as it was when it was read."""

    path: Path
    digest: str
    size: int
    external: tuple[tuple[str, str], ...]
    """(location, digest) of each external-data file, sorted by location; locations are relative POSIX paths."""
    scan: ScannedModel
    custom_ops: tuple[CustomOpsLibrary, ...] = ()
    """Libraries of the custom operators that it uses."""


def read_source(path: Path, *, place: str, store: Store, scan: Callable[[Path, str], ScannedModel]) -> SourceModel:
    """Digest the model at `path` with its external data and recall or make its facts.

    Args:
        path: the ONNX file.
        place: where the configuration names it, for messages.
        store: remembers digests by file and facts by digest.
        scan: reads the facts of an ONNX file with this digest in a fresh process; called only for bytes not seen
            before.

    Raises:
        ModelError: missing, not a file, empty, a Git-LFS pointer, too large, no valid ONNX, compiled already, or
            its external data is missing or lies outside its folder.
        SourceChangedError: it changed while it was being read.
    """
    size = _check_file(path, place=place, what="model")
    if size > ONNX_LIMIT:
        raise ModelError(
            f"{path.name} has {size:,} bytes; an ONNX file cannot be read beyond {ONNX_LIMIT:,} (protobuf)",
            where=place,
            remedy="Save the model with external data (onnx.save(..., save_as_external_data=True)).",
            reason="too-large",
        )
    digest = _digest(store, path, place)
    facts = store.recall("scan", f"{digest}-{FORMAT}")
    if facts is None:
        facts = cast("dict[str, object]", scan(path, digest))
        store.remember("scan", f"{digest}-{FORMAT}", facts)
    scanned = cast("ScannedModel", facts)
    external = tuple(
        (location, _external_digest(path, location, place, store)) for location in scanned["external_data"]
    )
    return SourceModel(path=path, digest=digest, size=size, external=external, scan=scanned)


def snapshot(source: SourceModel, folder: Path) -> None:
    """Copy the source into `folder` under its canonical name, external data at their locations.

    Raises:
        SourceChangedError: the bytes copied are not those of `source`.
        OSError: the copies cannot be written.
    """
    snapshot_model(source.path, source.digest, folder)
    for location, digest in source.external:
        copy = folder / check_location(location)
        copy.parent.mkdir(parents=True, exist_ok=True)
        _copy(source.path.parent / location, copy, digest)


def snapshot_model(path: Path, digest: str, folder: Path) -> None:
    """Copy the ONNX file alone into `folder` under its canonical name.

    Raises:
        SourceChangedError: the bytes copied have another digest.
        OSError: the copy cannot be written.
    """
    _copy(path, folder / MODEL_NAME, digest)


def _copy(origin: Path, copy: Path, digest: str) -> None:
    try:
        copied, _ = copy_and_digest(origin, copy)
    except OSError as error:
        if not str(error.filename).endswith(str(origin)):
            raise  # of the copy, which the store explains
        raise SourceChangedError(f"{origin.name} went away while it was being read", reason="source-changed") from error
    if copied != digest:
        raise SourceChangedError(f"{origin.name} changed while it was being read", reason="source-changed")
    fault_point("snapshot-copied")


def _external_digest(path: Path, location: str, place: str, store: Store) -> str:
    try:
        relative = check_location(location)
    except ValueError as error:
        raise ModelError(
            f"{path.name} names external data {location!r} outside its own folder ({error})",
            where=place,
            expected="a location inside the model's folder, as ONNX Runtime demands",
            remedy="Save the model again with its external data beside it.",
            reason="external-data-escape",
        ) from error
    _check_file(path.parent / relative, place=place, what=f"external data {location!r} of {path.name}")
    return _digest(store, path.parent / relative, place)


def _digest(store: Store, path: Path, place: str) -> str:
    try:
        return store.digest(path)
    except OSError as error:
        raise _unreadable(path, place, error) from error


def _unreadable(path: Path, place: str, error: OSError) -> ModelError:
    return ModelError(
        f"cannot read {path}: {error.strerror or error}",
        where=place,
        remedy="Give this user read access, and see that nothing replaces the file during the build.",
        reason="unreadable",
    )


def _check_file(path: Path, *, place: str, what: str) -> int:
    """Size in bytes of the regular, non-empty file at `path` that is no Git-LFS pointer."""
    try:
        status = path.stat()
    except PermissionError as error:
        raise _unreadable(path, place, error) from error
    except (OSError, ValueError) as error:
        hint = "Check the path, or make the file before the build."
        if os.path.islink(path):  # noqa: PTH114  # for Path.is_symlink a path that is too long is an error
            hint = "The link leads nowhere."
        raise ModelError(
            f"{what} does not exist at {path}", where=place, remedy=hint, reason="missing-model"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{what} is no regular file: {path}", where=place, expected="a file", reason="not-a-file")
    if status.st_size == 0:
        raise ModelError(f"{what} is empty: {path}", where=place, expected="an ONNX model", reason="empty-model")
    if status.st_size <= _LFS_POINTER_LIMIT and _is_pointer(path, place):
        raise ModelError(
            f"{what} is a Git-LFS pointer, not the file itself: {path}",
            where=place,
            remedy="Run 'git lfs pull' (in CI: check out with LFS) and build again.",
            reason="git-lfs-pointer",
        )
    return status.st_size


def _is_pointer(path: Path, place: str) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(len(_LFS_HEAD)) == _LFS_HEAD
    except OSError as error:
        raise _unreadable(path, place, error) from error
