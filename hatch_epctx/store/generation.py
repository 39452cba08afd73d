"""Generations: immutable folders of artifacts, verified when they are opened and leased while they are used."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hatch_epctx.digest import digest_stream
from hatch_epctx.files import long_path, open_regular

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    from typing_extensions import Self

    from hatch_epctx.store.records import Artifact, Record

__all__ = ["Generation", "Miss", "verify_artifact", "verify_folder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Why there is no usable generation of an identity."""

    reason: str
    """absent, unreadable-marker, malformed-marker, missing-generation, missing-artifact, modified-artifact,
    unexpected-file, unreadable-artifact."""
    detail: str = ""
    """What was found, a clause; may be empty."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One leased generation. Nothing collects it until `close`, or the end of the process.

    Its files are read-only; copy them (`files.copy_file`), never link or change them. In a store that this user may
    not write there is no lease: the folder may vanish while it is used, which shows as missing files and never as
    wrong bytes.
    """

    name: str
    """A UUID in 32 hexadecimal digits."""
    path: Path
    """The folder."""
    record: Record
    selected: bool
    """Whether a marker names it. One that is not selected is removed by `close`."""
    warning: str = ""
    """Why it was not selected although it should have been, or is not leased; a sentence for the user."""
    claims: ExitStack = field(repr=False, compare=False)
    """What `close` gives up."""

    def file(self, artifact: Artifact) -> Path:
        """Where `artifact` lies."""
        return self.path / artifact.path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up the lease; once is enough, more do nothing."""
        self.claims.close()


def verify_artifact(folder: Path, artifact: Artifact, *, content: bool) -> Miss | None:
    """Look at one artifact: a regular file, not a link, of the right size and, with `content`, the right digest.

    Every byte is read now: times and remembered digests prove nothing about what goes into a wheel.
    """
    try:
        with open_regular(folder / artifact.path) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size != artifact.size:
                return Miss(reason="modified-artifact", detail=f"{artifact.path} has {size} bytes, not {artifact.size}")
            if content and digest_stream(stream)[0] != artifact.digest:
                return Miss(reason="modified-artifact", detail=f"{artifact.path} has other content")
    except (FileNotFoundError, NotADirectoryError):
        return Miss(reason="missing-artifact", detail=f"{artifact.path} is not there")
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO):
            return Miss(reason="modified-artifact", detail=f"{artifact.path} is no regular file")
        return Miss(reason="unreadable-artifact", detail=f"{artifact.path}: {error.strerror or error}")
    return None


def verify_folder(folder: Path, record: Record, *, content: bool) -> Miss | None:
    """What is wrong with a generation's folder; None when it holds exactly the artifacts of `record`.

    Looks at a number of files that depends on the record alone, however large the store is.
    """
    try:
        if not stat.S_ISDIR(long_path(folder).lstat().st_mode):
            return Miss(reason="missing-generation", detail=f"{folder.name} is no folder")
        names = {artifact.path for artifact in record.artifacts}
        with os.scandir(long_path(folder)) as entries:
            strange = next((entry.name for entry in entries if entry.name not in names), None)
    except (FileNotFoundError, NotADirectoryError):
        return Miss(reason="missing-generation", detail=f"{folder.name} is not there")
    except OSError as error:
        return Miss(reason="unreadable-artifact", detail=f"{folder.name}: {error.strerror or error}")
    if strange is not None:
        return Miss(reason="unexpected-file", detail=f"{strange!r} is not in the record")
    for artifact in record.artifacts:
        miss = verify_artifact(folder, artifact, content=content)
        if miss is not None:
            return miss
    return None
