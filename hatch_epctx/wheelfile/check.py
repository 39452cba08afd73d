"""Checking a wheel of unknown origin against its own RECORD, file name and metadata, without unpacking it."""

from __future__ import annotations

from email.parser import HeaderParser
from typing import TYPE_CHECKING

from packaging.tags import parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from hatch_epctx.digest import new_hasher
from hatch_epctx.wheelfile.archive import Archive, ContentError, Member, Problem, Reason, contents, open_archive
from hatch_epctx.wheelfile.record import MAX_RECORD, RecordError, Row, encode_digest, parse_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message
    from pathlib import Path

    from packaging.tags import Tag

__all__ = ["MAX_CONTENT", "check_wheel"]

MAX_CONTENT = 1 << 40
"""Bytes that all members together may declare before their contents are not read at all."""

_MAX_METADATA = 8 << 20
_SIGNATURES = (".jws", ".p7s")


def check_wheel(path: Path, *, max_content: int = MAX_CONTENT) -> list[Problem]:
    """Everything in which the wheel at `path` is not what its RECORD, its name and the specification say.

    An empty list means: the zip reads the same to every reader, each file has exactly one row in RECORD with a
    matching SHA-256 (or 384, 512) and size, nothing is unlisted or missing, no name leaves the folder a wheel is
    unpacked into or collides with another on any file system, and name, version and tags of the file name are those
    of METADATA and WHEEL. It does not mean that the wheel comes from whom it says, nor that its code is harmless.

    Every member is read once, in chunks; memory does not depend on what the wheel declares, and no member is
    unpacked further than it declares.

    Raises:
        OSError: the file cannot be read.
    """
    with open_archive(path) as archive:
        problems = list(archive.problems)
        if not archive.members:
            return problems or [_problem("not-a-zip", "", "no members")]
        declared = sum(member.info.file_size for member in archive.members)
        if declared > max_content:
            return [*problems, _problem("too-large", "", f"{declared} bytes declared; expected at most {max_content}")]
        folder = _metadata_folder(archive)
        if isinstance(folder, Problem):
            return [*problems, folder]
        problems += _name_problems(path, archive, folder)
        return problems + list(_record_problems(archive, f"{folder}/RECORD"))


def _metadata_folder(archive: Archive) -> str | Problem:
    tops = {member.name.partition("/")[0] for member in archive.members if "/" in member.name}
    folders = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(folders) == 1:
        return folders[0]
    return _problem("metadata", "", f"{len(folders)} folders *.dist-info; expected one")


def _name_problems(path: Path, archive: Archive, folder: str) -> Iterator[Problem]:
    """File name against the metadata folder, METADATA and WHEEL."""
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        yield _problem("wheel-name", "", f"{error}")
        return
    stem = folder.removesuffix(".dist-info")
    if not _same(*stem.partition("-")[::2], name, version):
        yield _problem("metadata", folder, f"expected the metadata folder of {name} {version}")
    for file, check in (("METADATA", None), ("WHEEL", tags)):
        headers = _headers(archive, f"{folder}/{file}")
        if isinstance(headers, Problem):
            yield headers
        elif check is not None:
            yield from _wheel_problems(headers, f"{folder}/WHEEL", check)
        elif not _same(headers.get("Name", ""), headers.get("Version", ""), name, version):
            found = f"{headers.get('Name')} {headers.get('Version')}"
            yield _problem("metadata", f"{folder}/METADATA", f"is of {found}; the file name says {name} {version}")


def _same(found_name: str, found_version: str, name: str, version: Version) -> bool:
    try:
        return canonicalize_name(found_name) == name and Version(found_version) == version
    except InvalidVersion:
        return False


def _wheel_problems(headers: Message, name: str, expected: frozenset[Tag]) -> Iterator[Problem]:
    if headers.get("Wheel-Version", "").partition(".")[0] != "1":
        yield _problem("metadata", name, f"Wheel-Version {headers.get('Wheel-Version')!r}; expected 1.x")
    try:
        found = frozenset(tag for text in headers.get_all("Tag", []) for tag in parse_tag(text))
    except ValueError as error:
        yield _problem("tags", name, f"unreadable tag ({error})")
        return
    if found != expected:
        texts = [", ".join(sorted(map(str, tags))) for tags in (found, expected)]
        yield _problem("tags", name, f"tags {texts[0]}; the file name says {texts[1]}")


def _headers(archive: Archive, name: str) -> Message | Problem:
    data = _read(archive, name, _MAX_METADATA)
    if isinstance(data, Problem):
        return data
    # The body of METADATA is free text; headers end at the first empty line.
    return HeaderParser().parsestr(data.decode("utf-8", "replace"), headersonly=True)


def _read(archive: Archive, name: str, limit: int) -> bytes | Problem:
    member = next((member for member in archive.members if member.name == name), None)
    if member is None:
        return _problem("record-missing" if name.endswith("/RECORD") else "metadata", name, "not in the wheel")
    if member.info.file_size > limit:
        return _problem("too-large", name, f"{member.info.file_size} bytes; expected at most {limit}")
    try:
        return b"".join(contents(archive, member))
    except ContentError as error:
        return error.problem


def _record_problems(archive: Archive, record: str) -> Iterator[Problem]:
    data = _read(archive, record, MAX_RECORD)
    if isinstance(data, Problem):
        yield data
        return
    try:
        rows = parse_record(data)
    except RecordError as error:
        yield _problem("record-malformed", record, str(error))
        return
    by_name: dict[str, Row] = {}
    for row in rows:
        if row.name in by_name:
            yield _problem("duplicate", row.name, "more than one row in RECORD")
        by_name[row.name] = row
    names = {member.name for member in archive.members}
    for name in sorted(set(by_name) - names):
        yield _problem("missing", name, "in RECORD but not in the wheel")
    signatures = {record + suffix for suffix in _SIGNATURES}
    if record not in by_name:
        yield _problem("unlisted", record, "RECORD has no row for itself")
    for member in archive.members:
        if member.name == record:
            continue
        yield from _member_problems(archive, member, by_name.get(member.name), optional=member.name in signatures)


def _member_problems(archive: Archive, member: Member, row: Row | None, *, optional: bool) -> Iterator[Problem]:
    """One member against its row; `optional`: it needs neither a row nor a digest."""
    if member.is_folder:
        if member.info.file_size:
            yield _problem("unlisted", member.name, "a folder with content")
        return
    if not optional:
        yield from _row_problems(member.name, row)
    algorithm = row.algorithm if row is not None and row.is_strong else "sha256"
    hasher = new_hasher(algorithm)
    try:
        for chunk in contents(archive, member):
            hasher.update(chunk)
    except ContentError as error:
        yield error.problem
        return
    if row is not None and row.size not in {None, member.info.file_size}:
        yield _problem("size", member.name, f"{member.info.file_size} bytes; RECORD says {row.size}")
    found = encode_digest(hasher.hexdigest(), algorithm=algorithm)
    if row is not None and row.is_strong and found != row.digest:
        yield _problem("digest", member.name, f"{found}; RECORD says {row.digest[:120]}")


def _row_problems(name: str, row: Row | None) -> Iterator[Problem]:
    if row is None:
        yield _problem("unlisted", name, "in the wheel but not in RECORD")
    elif not row.digest:
        yield _problem("hash-missing", name, "RECORD has no digest for it")
    elif not row.is_strong:
        yield _problem("hash-weak", name, f"digest of kind {row.algorithm[:40]!r}; expected SHA-256 or better")


def _problem(reason: Reason, name: str, text: str) -> Problem:
    return Problem(reason=reason, name=name, text=text)
