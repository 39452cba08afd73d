"""An installed distribution against its RECORD."""

from __future__ import annotations

import os
from importlib import metadata
from typing import TYPE_CHECKING

from hatch_epctx.digest import CHUNK, new_hasher
from hatch_epctx.files import open_regular
from hatch_epctx.verification.records import Problem
from hatch_epctx.wheelfile import RecordError, encode_digest, parse_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import Distribution
    from pathlib import Path

    from hatch_epctx.wheelfile import Row

__all__ = ["distribution_of", "record_problems"]

_DEPTH = 6
"""Folders above the package folder in which its distribution's metadata may lie."""


def distribution_of(folder: Path) -> tuple[Distribution, Path] | None:
    """The installed distribution that brings the package folder, and the folder that holds both; None without one."""
    for site in list(folder.absolute().parents)[:_DEPTH]:
        prefix = f"{folder.absolute().relative_to(site).as_posix()}/"
        for found in metadata.distributions(path=[str(site)]):
            record = found.read_text("RECORD") or ""
            if any(line.startswith((prefix, f'"{prefix}')) for line in record.splitlines()):
                return found, site
    return None


def record_problems(distribution: Distribution, site: Path) -> Iterator[Problem]:
    """Every file of an installed distribution that is not what its RECORD says.

    Files without a digest in RECORD (RECORD itself, byte code) have only to be there.
    """
    try:
        rows = parse_record((distribution.read_text("RECORD") or "").encode())
    except RecordError as error:
        yield Problem(where="RECORD", reason="record-malformed", text=str(error))
        return
    for row in rows:
        yield from _row_problems(row, site)


def _row_problems(row: Row, site: Path) -> Iterator[Problem]:
    if row.digest and not row.is_strong:
        text = f"digest of kind {row.algorithm[:40]!r}; expected SHA-256 or better"
        yield Problem(where=row.name, reason="hash-weak", text=text)
        return
    path = site / row.name
    if not row.digest:
        if not os.path.lexists(path) and not row.name.endswith(".pyc"):
            yield Problem(where=row.name, reason="missing", text="is missing")
        return
    try:
        # Installers may link files from a cache of theirs (uv --link-mode=symlink).
        with open_regular(path, follow=True) as stream:
            size = os.fstat(stream.fileno()).st_size
            hasher = new_hasher(row.algorithm)
            while chunk := stream.read(CHUNK):
                hasher.update(chunk)
    except FileNotFoundError:
        yield Problem(where=row.name, reason="missing", text="is missing")
        return
    except OSError as error:
        yield Problem(where=row.name, reason="unreadable", text=f"cannot be read: {error.strerror or error}")
        return
    if row.size not in (None, size):
        yield Problem(where=row.name, reason="size", text=f"{size} bytes; RECORD says {row.size}")
    elif encode_digest(hasher.hexdigest(), algorithm=row.algorithm) != row.digest:
        yield Problem(where=row.name, reason="digest", text="other content than RECORD says")
