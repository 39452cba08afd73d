"""Zip structures of a wheel: where each member lies, what it holds, how it is copied without recompressing.

The table of contents is read by `zipfile`; this module adds what `zipfile` leaves open: limits on what is read, the
exact place of every member, and a report of every way in which two zip readers could see different contents
(members that overlap, bytes between members, headers that disagree with the table, data after the end). Terms and
layouts are those of PKWARE's APPNOTE 6.3.10, sections 4.3 and 4.4.

Limits: a table of `MAX_TABLE` bytes and `MAX_MEMBERS` members. Methods stored and deflate only, which is what every
installer of wheels reads.
"""

from __future__ import annotations

import copy
import io
import os
import struct
import zipfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal

from hatch_epctx.digest import CHUNK
from hatch_epctx.wheelfile.names import collisions, name_fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "MAX_MEMBERS",
    "MAX_TABLE",
    "Archive",
    "ContentError",
    "Member",
    "Problem",
    "Reason",
    "contents",
    "open_archive",
    "raw",
    "without_place",
]

MAX_TABLE = 64 << 20
"""Bytes of a central directory that are read at most."""
MAX_MEMBERS = 100_000
"""Members of a wheel at most."""

Reason = Literal[
    "not-a-zip", "too-many", "name", "duplicate", "collision", "encrypted", "method", "header", "overlap", "gap",
    "trailing", "wheel-name", "metadata", "tags", "record-missing", "record-malformed", "unlisted", "missing",
    "hash-missing", "hash-weak", "digest", "size", "bomb", "content", "too-large",
]  # fmt: skip

_LOCAL = struct.Struct("<4s5H3L2H")
_END = struct.Struct("<4s4H2LH")
_TABLE_ROW = 46
_END_64 = 56 + 20
_UTF8 = 0x800
_DESCRIPTOR = 0x8
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_IN_ZIP64 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One way in which a wheel is not what it says or what the specification asks for."""

    reason: Reason
    """A stable word for programs."""
    name: str
    """The member or the RECORD row, empty for the wheel as a whole."""
    text: str
    """What was found and what was expected, one line."""

    def __str__(self) -> str:
        return f"{self.name}: {self.text}" if self.name else self.text


class ContentError(Exception):
    """The bytes of one member are not what its header says; `problem` tells how."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file or folder entry and its place: ``start`` (header), ``data``, ``end`` (after the data descriptor)."""

    info: zipfile.ZipInfo
    start: int
    data: int
    end: int

    @property
    def name(self) -> str:
        """Path in the wheel; ends with "/" for a folder entry."""
        return self.info.filename

    @property
    def time(self) -> tuple[int, int, int, int, int, int]:
        """Year to second as the zip keeps it, without a time zone."""
        return self.info.date_time

    @property
    def is_folder(self) -> bool:
        """Whether the entry stands for a folder; RECORD has no row for those."""
        return self.info.filename.endswith("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """An open zip: members in the order of their place, and what is wrong with its structure."""

    stream: IO[bytes]
    members: tuple[Member, ...]
    comment: bytes
    problems: tuple[Problem, ...]


class _BoundedFile(io.FileIO):
    """A file that refuses to read more than `MAX_TABLE` bytes at once: `zipfile` reads a whole table in one call."""

    def read(self, size: int | None = -1, /) -> bytes:
        left = os.fstat(self.fileno()).st_size - self.tell()
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > MAX_TABLE:
            raise zipfile.BadZipFile(f"table of contents above {MAX_TABLE} bytes")
        return super().read(max(wanted, 0)) or b""


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open the zip at `path` and locate its members.

    A zip that cannot be read at all gives an archive without members and one problem "not-a-zip".

    Raises:
        OSError: the file cannot be opened.
    """
    with _BoundedFile(path) as stream:
        try:
            # Damaged fields end in many exceptions inside zipfile; each means that the table is unreadable.
            archive = _read(stream)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, struct.error, OSError) as error:
            problem = Problem(reason="not-a-zip", name="", text=f"no readable zip: {error}; expected a wheel")
            archive = Archive(stream=stream, members=(), comment=b"", problems=(problem,))
        yield archive


def _read(stream: io.FileIO) -> Archive:
    problems: list[Problem] = []
    with zipfile.ZipFile(stream) as table:
        infos = sorted(table.infolist(), key=lambda info: info.header_offset)
        start_of_table, comment = table.start_dir, table.comment
    if len(infos) > MAX_MEMBERS:
        text = f"{len(infos)} members; expected at most {MAX_MEMBERS}"
        return Archive(stream=stream, members=(), comment=comment, problems=(_problem("too-many", "", text),))
    members: list[Member] = []
    position = 0
    for index, info in enumerate(infos):
        following = infos[index + 1].header_offset if index + 1 < len(infos) else start_of_table
        located = _locate(stream, info, following)
        if isinstance(located, Problem):
            problems.append(located)
            position = following
            continue
        if located.start != position:
            text = f"{located.start - position} bytes before this member belong to none"
            problems.append(_problem("gap", info.filename, text))
        members.append(located)
        position = located.end
    if position != start_of_table:
        text = f"{start_of_table - position} bytes before the table of contents belong to no member"
        problems.append(_problem("gap", "", text))
    problems += _end_problems(stream, infos, start_of_table, comment)
    problems += _name_problems(infos)
    return Archive(stream=stream, members=tuple(members), comment=comment, problems=tuple(problems))


def _locate(stream: io.FileIO, info: zipfile.ZipInfo, following: int) -> Member | Problem:
    """Read a member's local header and hold it against its row of the table; `following` starts what comes next."""
    name = info.filename
    if info.flag_bits & _ENCRYPTED:
        return _problem("encrypted", name, "encrypted member; expected a plain one")
    if info.compress_type not in _METHODS:
        return _problem("method", name, f"compression method {info.compress_type}; expected stored or deflate")
    stream.seek(info.header_offset)
    head = stream.read(_LOCAL.size)
    if len(head) < _LOCAL.size or not head.startswith(b"PK\x03\x04"):
        return _problem("header", name, "no member at the place that the table names")
    _, _, flags, method, _, _, crc, packed, size, name_length, extra_length = _LOCAL.unpack(head)
    raw_name, extra = stream.read(name_length), stream.read(extra_length)
    if raw_name != _raw_name(info) or method != info.compress_type or (flags ^ info.flag_bits) & (_UTF8 | _DESCRIPTOR):
        return _problem("header", name, "the member's own header disagrees with the table of contents")
    data = info.header_offset + _LOCAL.size + name_length + extra_length
    end = data + info.compress_size
    if end > following:
        return _problem("overlap", name, "overlaps what follows it (a zip bomb has such members)")
    if flags & _DESCRIPTOR:
        descriptor = _descriptor_length(stream, info, end, following)
        if not descriptor:
            return _problem("header", name, "the descriptor after the data disagrees with the table of contents")
        end += descriptor
    elif (crc, *_sizes(packed, size, extra)) != (info.CRC, info.compress_size, info.file_size):
        return _problem("header", name, "the member's own header disagrees with the table of contents")
    return Member(info=info, start=info.header_offset, data=data, end=end)


def _sizes(packed: int, size: int, extra: bytes) -> tuple[int, int]:
    """Compressed and plain size of a local header, from its zip64 extra field where it says so (APPNOTE 4.5.3)."""
    if _IN_ZIP64 not in {packed, size}:
        return packed, size
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<HH", extra)
        if kind == 1 and length >= 16:
            plain, compressed = struct.unpack_from("<QQ", extra, 4) if len(extra) >= 20 else (size, packed)
            return compressed, plain
        extra = extra[4 + length :]
    return packed, size


def _descriptor_length(stream: io.FileIO, info: zipfile.ZipInfo, end: int, following: int) -> int:
    """Length of the data descriptor at `end`, 0 when none there agrees with the table (APPNOTE 4.3.9)."""
    stream.seek(end)
    data = stream.read(min(24, following - end))
    for sizes in ("<LLL", "<LQQ"):
        try:
            fields = struct.pack(sizes, info.CRC, info.compress_size, info.file_size)
        except struct.error:  # sizes above 4 GiB fit the second form only
            continue
        for form in (b"PK\x07\x08" + fields, fields):
            if data == form:
                return len(form)
    return 0


def _end_problems(
    stream: io.FileIO, infos: list[zipfile.ZipInfo], start_of_table: int, comment: bytes
) -> Iterator[Problem]:
    """What the end of the file says against the table: a count, data behind or within."""
    total = stream.seek(0, io.SEEK_END)
    end = total - _END.size - len(comment)
    stream.seek(end)
    mark, _, _, _, count, _, _, comment_length = _END.unpack(stream.read(_END.size))
    rows = sum(_TABLE_ROW + len(_raw_name(info)) + len(info.extra) + len(info.comment) for info in infos)
    if mark != b"PK\x05\x06" or comment_length != len(comment) or end - start_of_table - rows not in {0, _END_64}:
        yield _problem("trailing", "", "bytes within or after the end record; expected the file to end with it")
    elif count not in {min(len(infos), 0xFFFF), 0xFFFF}:
        yield _problem("trailing", "", f"the end record counts {count} members; expected {len(infos)}")


def _name_problems(infos: list[zipfile.ZipInfo]) -> Iterator[Problem]:
    seen: set[str] = set()
    for info in infos:
        # zipfile cuts names at NUL and translates separators; the original is what other readers see.
        if fault := name_fault(info.orig_filename) or ("" if info.filename == info.orig_filename else "odd encoding"):
            yield _problem("name", info.orig_filename, f"unsafe name ({fault}); expected a relative path inside")
        if info.filename in seen:
            yield _problem("duplicate", info.filename, "more than one member of this name")
        seen.add(info.filename)
    for name, other in collisions(seen):
        yield _problem("collision", name, f"cannot stand beside {other!r} on every file system")


def raw(archive: Archive, member: Member) -> Iterator[bytes]:
    """The member's data as it stands in the zip, in chunks.

    Raises:
        ContentError: the file ends before the data does.
    """
    archive.stream.seek(member.data)
    left = member.info.compress_size
    while left:
        chunk = archive.stream.read(min(CHUNK, left))
        if not chunk:
            raise ContentError(_problem("content", member.name, "the wheel ends inside this member"))
        left -= len(chunk)
        yield chunk


def contents(archive: Archive, member: Member) -> Iterator[bytes]:
    """The member's content in chunks, never more bytes than its header declares.

    Raises:
        ContentError: more or fewer bytes than declared, broken deflate data, or a wrong CRC-32.
    """
    info = member.info
    crc = size = 0
    for chunk in raw(archive, member) if info.compress_type == zipfile.ZIP_STORED else _inflate(archive, member):
        size += len(chunk)
        if size > info.file_size:
            text = f"unpacks to more than the {info.file_size} bytes that its header declares"
            raise ContentError(_problem("bomb", member.name, text))
        crc = zlib.crc32(chunk, crc)
        yield chunk
    if size != info.file_size:
        text = f"unpacks to {size} bytes; its header declares {info.file_size}"
        raise ContentError(_problem("content", member.name, text))
    if crc != info.CRC:
        text = f"CRC-32 {crc:08x}; its header declares {info.CRC:08x}"
        raise ContentError(_problem("content", member.name, text))


def _inflate(archive: Archive, member: Member) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for chunk in raw(archive, member):
            if unpacker.eof:
                break
            data = chunk
            while data and not unpacker.eof:
                yield unpacker.decompress(data, CHUNK)
                data = unpacker.unconsumed_tail
            if unpacker.unused_data:
                break
        while not unpacker.eof and (rest := unpacker.decompress(b"", CHUNK)):
            yield rest
    except zlib.error as error:
        raise ContentError(_problem("content", member.name, f"broken deflate data ({error})")) from error
    consumed = archive.stream.tell() == member.data + member.info.compress_size
    if not unpacker.eof or unpacker.unused_data or not consumed:
        raise ContentError(_problem("content", member.name, "the deflate data ends before or after its declared end"))


def without_place(info: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """A copy of a table row for writing the same data elsewhere: sizes known, so neither descriptor nor extra fields.

    Extra fields of wheels hold zip64 sizes and the times of the building machine; neither is wanted in the copy.
    """
    fresh = copy.copy(info)
    fresh.flag_bits &= ~_DESCRIPTOR
    fresh.extra = b""
    return fresh


def _raw_name(info: zipfile.ZipInfo) -> bytes:
    return info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8 else "cp437")


def _problem(reason: Reason, name: str, text: str) -> Problem:
    return Problem(reason=reason, name=name, text=text)
