"""RECORD, the list of a wheel's files with digests and sizes.

Form: the binary distribution format and "Recording installed projects" (PyPA specifications): UTF-8, CSV in the
default dialect, three fields a row; the digest is ``<algorithm>=<urlsafe base64 without padding>``; RECORD itself has
a row without digest and size; the signature files RECORD.jws and RECORD.p7s have none or a row without digest.
"""

from __future__ import annotations

import base64
import csv
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hatch_epctx.digest import STRONG_ALGORITHMS

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAX_RECORD", "RecordError", "Row", "decode_digest", "encode_digest", "format_record", "parse_record"]

MAX_RECORD = 32 << 20
"""Bytes of a RECORD at most."""

_SIZE = re.compile(r"[0-9]{1,19}\Z")


class RecordError(ValueError):
    """RECORD does not have the specified form; the message is one clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One file as RECORD states it; `digest` is ``<algorithm>=<value>`` or empty, `size` None when it is empty."""

    name: str
    digest: str = ""
    size: int | None = None

    @property
    def algorithm(self) -> str:
        """Name of the digest's algorithm, empty without a digest."""
        return self.digest.partition("=")[0]

    @property
    def is_strong(self) -> bool:
        """Whether the digest is of a kind that the specification allows and this module can check."""
        return self.algorithm in STRONG_ALGORITHMS


def encode_digest(digest: str, *, algorithm: str = "sha256") -> str:
    """RECORD's spelling of a hexadecimal digest."""
    return f"{algorithm}={base64.urlsafe_b64encode(bytes.fromhex(digest)).rstrip(b'=').decode('ascii')}"


def decode_digest(digest: str) -> str:
    """The hexadecimal digest behind RECORD's spelling of a SHA-256; empty for one of another kind.

    Raises:
        ValueError: it is none.
    """
    algorithm, _, value = digest.partition("=")
    return base64.urlsafe_b64decode(f"{value}==").hex() if algorithm == "sha256" else ""


def parse_record(data: bytes) -> list[Row]:
    """Rows of a RECORD in their order; duplicates are the caller's to find.

    Raises:
        RecordError: not UTF-8, not CSV, not three fields, a digest without algorithm, a size that is no number.
    """
    try:
        text = data.decode("utf-8")
        fields = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except UnicodeDecodeError:
        raise RecordError("not UTF-8") from None
    except csv.Error as error:
        raise RecordError(f"not CSV ({error})") from None
    return [_row(number, row) for number, row in enumerate(fields, 1)]


def _row(number: int, fields: list[str]) -> Row:
    if len(fields) != 3:
        raise RecordError(f"row {number} has {len(fields)} fields; expected path, digest and size")
    name, digest, size = fields
    if not name:
        raise RecordError(f"row {number} has no path")
    if digest and ("=" not in digest or digest.startswith("=")):
        raise RecordError(f"row {number} has the digest {digest[:80]!r}; expected <algorithm>=<value>")
    if size and not _SIZE.match(size):
        raise RecordError(f"row {number} has the size {size[:80]!r}; expected a number of bytes")
    return Row(name=name, digest=digest, size=int(size) if size else None)


def format_record(rows: Iterable[Row]) -> bytes:
    """RECORD with `rows` in the given order; lines end with a line feed, as hatchling and setuptools write them."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow((row.name, row.digest, "" if row.size is None else row.size))
    return text.getvalue().encode("utf-8")
