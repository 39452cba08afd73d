"""Adding large files to a finished wheel in one streaming pass.

A build backend deflates every file, which costs a minute for a GiB of context binaries that do not shrink.
`add_files` takes the wheel that the backend finished and writes a new one beside it: the backend's members are copied
as they stand, without recompressing; the added files are read once, hashed and written on the way; RECORD is written
once, last.

    hatchling's wheel                    after add_files
    acme/__init__.py                     acme/__init__.py                 copied
    acme-1.0.dist-info/METADATA          acme/_epctx/manifest.json        added, sorted
    acme-1.0.dist-info/WHEEL             acme/_epctx/sha256-....bin       added
    acme-1.0.dist-info/RECORD            acme-1.0.dist-info/METADATA      copied; metadata stays at the end
                                         acme-1.0.dist-info/WHEEL         copied
                                         acme-1.0.dist-info/RECORD        written anew
"""

from __future__ import annotations

import stat
import zipfile
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal, TypeAlias

from hatch_epctx.digest import digest_stream
from hatch_epctx.errors import ConfigError, StoreError, VerificationError
from hatch_epctx.wheelfile.archive import (
    Archive,
    ContentError,
    Member,
    Problem,
    contents,
    open_archive,
    raw,
    without_place,
)
from hatch_epctx.wheelfile.entries import Entry, checked, opened, refuse_misplaced
from hatch_epctx.wheelfile.names import is_metadata
from hatch_epctx.wheelfile.part import replacing
from hatch_epctx.wheelfile.record import MAX_RECORD, RecordError, Row, encode_digest, format_record, parse_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = ["Compression", "ZipTime", "add_files", "metadata_folder", "reproducible_time"]

Compression = Literal["stored", "deflated"]
ZipTime: TypeAlias = tuple[int, int, int, int, int, int]
"""Year, month, day, hour, minute, second as a zip keeps them: 1980 to 2107, even seconds, no time zone."""

_METHODS: Mapping[Compression, int] = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}
_MODE = (stat.S_IFREG | 0o644) << 16
_UNIX = 3
_EARLIEST = 315532800  # 1980-01-01, the first day a zip can name
_LATEST = 4354819198  # 2107-12-31 23:59:58
_HATCHLING_DEFAULT = "1580601600"  # 2020-02-02, hatchling's time without SOURCE_DATE_EPOCH


def reproducible_time(environ: Mapping[str, str]) -> ZipTime:
    """The time of members as hatchling sets it: SOURCE_DATE_EPOCH in UTC, else 2020-02-02, not before 1980.

    Raises:
        ConfigError: SOURCE_DATE_EPOCH is not a number of seconds that a zip can hold.
    """
    text = environ.get("SOURCE_DATE_EPOCH", _HATCHLING_DEFAULT)
    try:
        seconds = max(int(text), _EARLIEST)
    except ValueError:
        seconds = _LATEST + 1
    if seconds > _LATEST:
        raise ConfigError(
            f"{text[:80]!r} is no time that a wheel can hold",
            where="SOURCE_DATE_EPOCH",
            expected=f"whole seconds since 1970-01-01, at most {_LATEST}",
            reason="source-date-epoch",
        )
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return moment.year, moment.month, moment.day, moment.hour, moment.minute, moment.second


def add_files(
    wheel: Path,
    entries: Iterable[Entry],
    *,
    compression: Compression = "stored",
    time: ZipTime | None = None,
    owned: str = "",
) -> None:
    """Add `entries` to the finished wheel at `wheel` and bring its RECORD up to date.

    The wheel is replaced in one step: whatever happens, `wheel` is the old one or the complete new one, on disk
    (fsync) before it is visible. A killed run leaves a hidden ``.part`` file beside it, which a later call for the
    same wheel removes when it is an hour old. The same wheel and entries give the same bytes, in any order of entries,
    and adding the same entries again changes nothing. An added file takes the place of a member of its name.

    Memory does not depend on the size of files. Members above 2 GiB and wheels above 4 GiB become zip64. Added files
    have mode 0644 whatever their source has. Contents of the backend's own members are not read: `check_wheel` does.

    Args:
        wheel: the backend's wheel; a link is followed, its target is replaced.
        entries: files to add; names must be portable to every file system (`files.check_name` for each part).
        compression: of the added files only.
        time: of the added files; None takes the time of the backend's own RECORD, so that its rule holds
            (SOURCE_DATE_EPOCH, 2020-02-02 for hatchling without it).
        owned: a folder such as ``acme_vision/_epctx`` that holds entries and nothing else: what the backend found in
            it (left by an earlier build) is dropped, also when there are no entries.

    Raises:
        ConfigError: two entries of one name, a name that is not portable or that is RECORD's own.
        VerificationError: `wheel` is no well-formed wheel, is signed, or a source is not what its digest says or
            changes while it is read.
        StoreError: a source cannot be read or the new wheel cannot be written.
    """
    added = checked(entries)
    target = wheel.resolve()
    try:
        if not added and not _holds(target, owned):
            return
        # The old wheel is closed before it is replaced: Windows refuses otherwise.
        with replacing(target) as stream, open_archive(target) as archive:
            old, record = _old_rows(wheel, archive)
            replaced = {entry.name for entry in added}
            old = {name: row for name, row in old.items() if name not in replaced and not _within(name, owned)}
            members = [member for member in archive.members if member.name in old or member.is_folder]
            refuse_misplaced(added, members, record)
            with _Writer(stream, "w", allowZip64=True) as writer:
                writer.comment = archive.comment
                rows = _write_members(writer, archive, members, added, old, _METHODS[compression], time or record.time)
                writer.add_record(record.info, format_record([*rows, Row(name=record.name)]))
    except ContentError as error:
        raise _malformed(wheel, [error.problem]) from error
    except OSError as error:
        raise _unusable(wheel, error) from error


class _Writer(zipfile.ZipFile):
    """A zip under construction that can also take over members of another zip as they stand.

    `zipfile` has no public way to copy without recompressing. This uses four of its attributes (`fp`, `start_dir`,
    `filelist`, `NameToInfo`) in the way its own writing does; the tests hold it against every supported Python.
    """

    def copy(self, archive: Archive, member: Member) -> None:
        """Append `member` of `archive`, data untouched, with a header of its own."""
        info = without_place(member.info)
        stream = self.fp
        assert stream is not None  # noqa: S101  # open until close()
        stream.seek(self.start_dir)
        info.header_offset = stream.tell()
        stream.write(info.FileHeader())
        for chunk in raw(archive, member):
            stream.write(chunk)
        self.start_dir = stream.tell()
        self.filelist.append(info)
        self.NameToInfo[info.filename] = info

    def add(self, entry: Entry, method: int, when: ZipTime) -> Row:
        """Append a new file, hashed while it is written."""
        info = zipfile.ZipInfo(entry.name, when)
        info.compress_type = method
        info.create_system = _UNIX  # zipfile would say what system this is
        info.external_attr = _MODE
        with opened(entry) as (source, size):
            info.file_size = size  # zipfile chooses zip64 by it
            try:
                with self.open(info, "w") as sink:
                    digest, read = digest_stream(source, copy_to=sink)
            except RuntimeError:  # grew beyond 2 GiB, for which its header has no room
                digest, read = "", -1
        if read != size or entry.digest not in {"", digest}:
            raise VerificationError(
                f"the content changed: {read} bytes with digest {digest} were read"
                if read >= 0
                else "the content grew while it was read",
                where=entry.name,
                expected=f"{size} bytes" + (f" with digest {entry.digest}" if entry.digest else ""),
                remedy="Build again.",
                reason="source-changed",
            )
        return Row(name=entry.name, digest=encode_digest(digest), size=read)

    def add_record(self, old: zipfile.ZipInfo, data: bytes) -> None:
        """Append RECORD in the manner (time, mode, method) of the old one."""
        info = zipfile.ZipInfo(old.filename, old.date_time)
        info.compress_type = old.compress_type
        info.create_system = old.create_system
        info.external_attr = old.external_attr
        self.writestr(info, data)


def _write_members(
    writer: _Writer,
    archive: Archive,
    members: Sequence[Member],
    added: Sequence[Entry],
    old: Mapping[str, Row | None],
    method: int,
    when: ZipTime,
) -> list[Row]:
    """Write everything but RECORD; the metadata folder goes last, as the wheel specification recommends."""
    rows: list[Row] = []
    for metadata in (False, True):
        for member in members:
            if is_metadata(member.name) == metadata:
                writer.copy(archive, member)
                if row := old.get(member.name):
                    rows.append(row)
        rows += [writer.add(entry, method, when) for entry in added if is_metadata(entry.name) == metadata]
    return rows


def _holds(wheel: Path, folder: str) -> bool:
    if not folder:
        return False
    with open_archive(wheel) as archive:
        return any(_within(member.name, folder) for member in archive.members)


def _within(name: str, folder: str) -> bool:
    return bool(folder) and name.startswith(f"{folder}/")


def metadata_folder(wheel: Path) -> str:
    """Name of the wheel's metadata folder, such as ``acme_vision-1.0.dist-info``, for the names of entries in it.

    Raises:
        VerificationError: `wheel` is no well-formed wheel.
        StoreError: it cannot be read.
    """
    try:
        with open_archive(wheel) as archive:
            _refuse_malformed(wheel, archive)
            return _record_member(wheel, archive).name.partition("/")[0]
    except OSError as error:
        raise _unusable(wheel, error) from error


def _old_rows(wheel: Path, archive: Archive) -> tuple[dict[str, Row], Member]:
    """Rows of all files but RECORD, and RECORD's own member. The wheel must be well-formed in every respect."""
    _refuse_malformed(wheel, archive)
    by_name = {member.name: member for member in archive.members if not member.is_folder}
    record = _record_member(wheel, archive)
    if signed := {f"{record.name}.jws", f"{record.name}.p7s"} & set(by_name):
        raise VerificationError(
            f"the wheel is signed ({min(signed)})", where=str(wheel), remedy="Sign it after the build.", reason="signed"
        )
    rows: dict[str, Row] = {}
    for row in _read_record(wheel, archive, record):
        if row.name in rows:
            raise _malformed(wheel, [Problem(reason="duplicate", name=row.name, text="more than one row in RECORD")])
        rows[row.name] = row
    rows.pop(record.name, None)
    listed, there = set(rows) | {record.name}, set(by_name)
    if listed != there:
        text = "in RECORD but not in the wheel" if listed - there else "in the wheel but not in RECORD"
        raise _malformed(wheel, [Problem(reason="unlisted", name=min(listed ^ there), text=text)])
    return rows, record


def _refuse_malformed(wheel: Path, archive: Archive) -> None:
    problems = [problem for problem in archive.problems if problem.reason != "collision"]
    if problems:
        raise _malformed(wheel, problems)


def _record_member(wheel: Path, archive: Archive) -> Member:
    records = [
        member for member in archive.members if is_metadata(member.name) and member.name.partition("/")[2] == "RECORD"
    ]
    if len(records) == 1:
        return records[0]
    text = f"{len(records)} files *.dist-info/RECORD; expected one"
    raise _malformed(wheel, [Problem(reason="record-missing", name="", text=text)])


def _read_record(wheel: Path, archive: Archive, record: Member) -> list[Row]:
    size = record.info.file_size
    if size > MAX_RECORD:
        text = f"{size} bytes; expected at most {MAX_RECORD}"
        raise _malformed(wheel, [Problem(reason="too-large", name=record.name, text=text)])
    try:
        return parse_record(b"".join(contents(archive, record)))
    except RecordError as error:
        raise _malformed(wheel, [Problem(reason="record-malformed", name=record.name, text=str(error))]) from error


def _malformed(wheel: Path, problems: Sequence[Problem]) -> VerificationError:
    first = problems[0]
    return VerificationError(
        f"not a well-formed wheel: {first}",
        where=str(wheel),
        remedy="Files can only be added to a wheel as its build backend finished it.",
        reason=first.reason,
        detail="\n".join(str(problem) for problem in problems[1:20]),
    )


def _unusable(wheel: Path, error: OSError) -> StoreError:
    return StoreError(
        f"the wheel cannot be read or written ({error.strerror or error})",
        where=str(error.filename or wheel),
        remedy="Free space or correct the permissions, then build again.",
        reason="wheel-io",
    )
