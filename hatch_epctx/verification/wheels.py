"""A wheel against its RECORD, and what it holds against its manifest and its bill of materials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_epctx.errors import VerificationError
from hatch_epctx.manifest import FOLDER_NAME, MANIFEST_NAME, MAX_BYTES
from hatch_epctx.verification.bill import BILL_LIMIT
from hatch_epctx.verification.examining import Examination
from hatch_epctx.verification.places import WheelFiles
from hatch_epctx.verification.records import Problem
from hatch_epctx.wheelfile import MAX_RECORD, RecordError, check_wheel, decode_digest, parse_record, read_members

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hatch_epctx.store import Store
    from hatch_epctx.verification.records import Report

__all__ = ["verify_wheel"]


def verify_wheel(path: Path, store: Store, *, fit: bool) -> Report:
    """See `core.verify`. Every member is read once.

    Raises:
        OSError: the file cannot be read.
    """
    examination = Examination(store, fit=fit)
    examination.problems += [
        Problem(where=found.name or path.name, reason=found.reason, text=found.text) for found in check_wheel(path)
    ]
    examination.checked += ["RECORD: every file of the wheel, its digest and size", "file name, tags and metadata"]
    try:
        sizes, contents = read_members(path, _is_wanted, limit=max(MAX_BYTES, MAX_RECORD, BILL_LIMIT))
    except VerificationError as error:
        if not examination.problems:
            examination.problems.append(Problem(where=path.name, reason=error.reason, text=error.found))
        return examination.report(str(path), "wheel")
    digests = _recorded(contents)
    bills = [(name, data) for name, data in contents.items() if name.endswith(".json") and "/sboms/" in name]
    manifests = [(name, data) for name, data in contents.items() if _is_manifest(name)]
    for name, data in manifests:
        base = name.removesuffix(MANIFEST_NAME)
        examination.package(WheelFiles(path, base, sizes, digests), data, base=base, bills=bills)
    if not manifests:
        examination.notes.append("The wheel holds no compiled models.")
    return examination.report(str(path), "wheel")


def _is_manifest(name: str) -> bool:
    return f"/{name}".endswith(f"/{FOLDER_NAME}/{MANIFEST_NAME}")


def _is_wanted(name: str) -> bool:
    in_metadata = name.partition("/")[0].endswith(".dist-info")
    is_bill = "/sboms/" in name and name.endswith(".json")
    return _is_manifest(name) or (in_metadata and (name.endswith("/RECORD") or is_bill))


def _recorded(contents: Mapping[str, bytes]) -> dict[str, str]:
    """SHA-256 by path, as RECORD has them."""
    for name, data in contents.items():
        if name.endswith("/RECORD"):
            try:
                return {row.name: decode_digest(row.digest) for row in parse_record(data) if row.digest}
            except (RecordError, ValueError):
                return {}
    return {}
