"""Files of inputs (.npz) that calibration and checks read: their digests, and the private copies that workers open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_epctx.errors import ConfigError
from hatch_epctx.files import copy_and_digest
from hatch_epctx.source.models import SourceChangedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["digest_inputs", "snapshot_inputs"]


def digest_inputs(path: Path, *, place: str, digest: Callable[[Path], str]) -> str:
    """Digest of the file at `path`.

    Args:
        path: the file.
        place: where the configuration names it, for messages.
        digest: content digest of a file; a stat cache makes a warm call cheap.

    Raises:
        ConfigError: it is missing or cannot be read.
    """
    try:
        return digest(path)
    except OSError as error:
        raise ConfigError(
            f"the file of inputs cannot be read: {error.strerror or error}: {path}",
            where=place,
            expected="an .npz file with one array for each input",
            remedy="Check the path, or make the file before the build: numpy.savez(path, name=array, ...).",
            reason="missing-inputs",
        ) from error


def snapshot_inputs(path: Path, copy: Path, digest: str) -> None:
    """Copy the file at `path` to `copy`.

    Raises:
        SourceChangedError: the bytes copied are not those of `digest`, or went away.
        OSError: the copy cannot be written.
    """
    try:
        copied = copy_and_digest(path, copy)[0]
    except OSError as error:
        if str(path) not in str(error.filename):
            raise  # of the copy, which the store explains
        raise SourceChangedError(f"{path.name} vanished while it was being read", reason="source-changed") from error
    if copied != digest:
        raise SourceChangedError(f"{path.name} changed while it was being read", reason="source-changed")
