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

import io
import os
import stat
import tempfile
import time as clock
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, TypeAlias

from hatch_epctx import files
from hatch_epctx.digest import digest_stream
from hatch_epctx.errors import ConfigError, StoreError, VerificationError
from hatch_epctx.wheelfile.archive import (
    Archive,
    ContentError,
    Member,
    Problem,
    collisions,
    contents,
    name_fault,
    open_archive,
    raw,
    without_place,
)
from hatch_epctx.wheelfile.record import MAX_RECORD, RecordError, Row, encode_digest, format_record, parse_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["Compression", "Entry", "ZipTime", "add_files", "reproducible_time"]

Compression = Literal["stored", "deflated"]
ZipTime: TypeAlias = tuple[int, int, int, int, int, int]
"""Year, month, day, hour, minute, second as a zip keeps them: 1980 to 2107, even seconds, no time zone."""

_METHODS: Mapping[Compression, int] = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}
_MODE = (stat.S_IFREG | 0o644) << 16
_UNIX = 3
_EARLIEST = 315532800  # 1980-01-01, the first day a zip can name
_LATEST = 4354819198  # 2107-12-31 23:59:58
_HATCHLING_DEFAULT = "1580601600"  # 2020-02-02, hatchling's time without SOURCE_DATE_EPOCH
_ABANDONED = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file to add.

    Attributes:
        name: path in the wheel, such as ``acme_vision/_epctx/manifest.json``.
        source: the file to read, or the bytes themselves.
        digest: what the content must hash to (64 hexadecimal digits); empty: whatever is read counts.
    """

    name: str
    source: Path | bytes
    digest: str = ""


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
    wheel: Path, entries: Iterable[Entry], *, compression: Compression = "stored", time: ZipTime | None = None
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

    Raises:
        ConfigError: two entries of one name, a name that is not portable or that is RECORD's own.
        VerificationError: `wheel` is no well-formed wheel, is signed, or a source is not what its digest says or
            changes while it is read.
        StoreError: a source cannot be read or the new wheel cannot be written.
    """
    added = _checked(entries)
    if not added:
        return
    target = wheel.resolve()
    try:
        with open_archive(target) as archive:
            old, record_member = _old_rows(wheel, archive, replaced={entry.name for entry in added})
            members = [member for member in archive.members if member.name in old or member.is_folder]
            _refuse_collisions(added, members)
            when = time or record_member.info.date_time
            with _replacing(target) as stream, _Writer(stream, "w", allowZip64=True) as writer:
                writer.comment = archive.comment
                rows = _write_members(writer, archive, members, added, old, _METHODS[compression], when)
                rows.append(Row(name=record_member.name))
                writer.add_record(record_member.info, format_record(rows))
    except ContentError as error:
        raise _malformed(wheel, [error.problem]) from error
    except OSError as error:
        raise StoreError(
            f"the wheel cannot be read or written ({error.strerror or error})",
            where=str(error.filename or wheel),
            remedy="Free space or correct the permissions, then build again.",
            reason="wheel-io",
        ) from error


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
        with _opened(entry) as (source, size):
            info.file_size = size
            with self.open(info, "w", force_zip64=size > zipfile.ZIP64_LIMIT // 2) as sink:
                digest, read = digest_stream(source, copy_to=sink)
        if read != size or entry.digest not in {"", digest}:
            raise VerificationError(
                f"{read} bytes with digest {digest} were read",
                where=entry.name,
                expected=f"{size} bytes" + (f" with digest {entry.digest}" if entry.digest else ""),
                remedy="The file changed since it was made. Build again.",
                reason="source-changed",
            )
        return Row(name=entry.name, digest=encode_digest(digest), size=read)

    def add_record(self, old: zipfile.ZipInfo, data: bytes) -> None:
        """Append RECORD in the manner (time, mode, method) of the old one."""
        info = zipfile.ZipInfo(old.filename, old.date_time)
        info.compress_type, info.create_system, info.external_attr = old.compress_type, old.create_system, old.external_attr
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
            if _is_metadata(member.name) == metadata:
                writer.copy(archive, member)
                if row := old.get(member.name):
                    rows.append(row)
        rows += [writer.add(entry, method, when) for entry in added if _is_metadata(entry.name) == metadata]
    return rows


def _checked(entries: Iterable[Entry]) -> list[Entry]:
    """Entries sorted by name; names portable and distinct."""
    result = sorted(entries, key=lambda entry: entry.name)
    for entry in result:
        fault = name_fault(entry.name)
        if fault or not all(files.contained(part) for part in entry.name.split("/")):
            raise ConfigError(
                f"{entry.name!r} cannot be a file in a wheel ({fault or 'a part is not portable'})",
                expected="a relative path whose parts every file system takes",
                reason="entry-name",
            )
        if _is_metadata(entry.name) and entry.name.partition("/")[2] in {"RECORD", "RECORD.jws", "RECORD.p7s"}:
            raise ConfigError(f"{entry.name!r} is the wheel's own", reason="entry-name")
    names = [entry.name for entry in result]
    clash = next((name for name, following in zip(names, names[1:]) if name == following), "")
    if clash:
        raise ConfigError(f"{clash!r} is added twice", expected="one file of a name", reason="entry-twice")
    return result


def _refuse_collisions(added: Sequence[Entry], members: Sequence[Member]) -> None:
    ours = {entry.name for entry in added}
    for name, other in collisions([*ours, *(member.name for member in members)]):
        if {name, other} & ours:
            raise ConfigError(
                f"{name!r} and {other!r} are one path on some file systems",
                expected="names that differ in more than case, and no file where a folder is",
                reason="entry-collision",
            )


def _old_rows(wheel: Path, archive: Archive, *, replaced: set[str]) -> tuple[dict[str, Row], Member]:
    """Rows of the members that stay, and RECORD's own member. The wheel must be well-formed in every respect."""
    problems = [problem for problem in archive.problems if problem.reason != "collision"]
    if problems:
        raise _malformed(wheel, problems)
    by_name = {member.name: member for member in archive.members if not member.is_folder}
    records = [member for name, member in by_name.items() if _is_metadata(name) and name.endswith("/RECORD")]
    records = [member for member in records if member.name.count("/") == 1]
    if len(records) != 1:
        text = f"{len(records)} files *.dist-info/RECORD; expected one"
        raise _malformed(wheel, [Problem(reason="record-missing", name="", text=text)])
    record = records[0]
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
    return {name: row for name, row in rows.items() if name not in replaced}, record


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


def _is_metadata(name: str) -> bool:
    folder, separator, _ = name.partition("/")
    return bool(separator) and folder.endswith(".dist-info")


@contextmanager
def _opened(entry: Entry) -> Iterator[tuple[IO[bytes], int]]:
    """The entry's content and its size; links are followed, since a wheel holds regular files only."""
    if isinstance(entry.source, bytes):
        yield io.BytesIO(entry.source), len(entry.source)
        return
    with open(entry.source, "rb", buffering=0) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise VerificationError("not a regular file", where=str(entry.source), reason="source-kind")
        yield stream, status.st_size


@contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """A new file beside `target` that takes its place when the block ends well and is removed when it does not."""
    prefix = f".{target.name}."
    for part in target.parent.glob(f"{prefix}*.part"):
        if clock.time() - part.stat().st_mtime > _ABANDONED:
            files.remove_tree(part)
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=".part", dir=target.parent)
    part = Path(name)
    try:
        with os.fdopen(descriptor, "w+b") as stream:
            yield stream
        part.chmod(stat.S_IMODE(target.stat().st_mode))
        files.fault_point("wheel-written")
        files.replace_file(part, target)
        files.fault_point("wheel-replaced")
    except BaseException:
        files.remove_tree(part)
        raise
