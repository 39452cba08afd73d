"""Reading a few members of a wheel of unknown origin, without unpacking it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_epctx.errors import VerificationError
from hatch_epctx.wheelfile.archive import ContentError, Problem, contents, open_archive

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["extract_members", "packed_sizes", "read_members"]


def read_members(
    path: Path, wanted: Callable[[str], bool], *, limit: int, most: int = 100
) -> tuple[dict[str, int], dict[str, bytes]]:
    """The size of every file in the wheel at `path`, and the content of those whose name is `wanted`.

    Sizes are what the wheel declares; contents are held against their size and CRC-32, digests are not looked at.

    Args:
        path: the wheel, or another zip.
        wanted: told each name.
        limit: bytes of one content.
        most: contents at most.

    Raises:
        VerificationError: no zip, one that two readers could see differently, or one that holds more than asked for.
        OSError: the file cannot be read.
    """
    with open_archive(path) as archive:
        problems = [problem for problem in archive.problems if problem.reason != "collision"]
        if problems:
            raise _malformed(path, problems)
        files = [member for member in archive.members if not member.is_folder]
        asked = [member for member in files if wanted(member.name)]
        if len(asked) > most:
            text = f"{len(asked)} such files; expected at most {most}"
            raise _malformed(path, [Problem(reason="too-many", name=asked[0].name, text=text)])
        read: dict[str, bytes] = {}
        for member in asked:
            if member.info.file_size > limit:
                text = f"{member.info.file_size} bytes; expected at most {limit}"
                raise _malformed(path, [Problem(reason="too-large", name=member.name, text=text)])
            try:
                read[member.name] = b"".join(contents(archive, member))
            except ContentError as error:
                raise _malformed(path, [error.problem]) from error
        return {member.name: member.info.file_size for member in files}, read


def extract_members(path: Path, targets: Mapping[str, Path]) -> None:
    """Write members of the wheel at `path` to files, in chunks; contents are held against their size and CRC-32.

    Args:
        path: the wheel, or another zip.
        targets: the new file of each member.

    Raises:
        VerificationError: a member is not there, or its bytes are not what its header says.
        OSError: a file cannot be read or written.
    """
    with open_archive(path) as archive:
        members = {member.name: member for member in archive.members}
        for name, target in targets.items():
            if name not in members:
                raise _malformed(path, [Problem(reason="missing", name=name, text="not in the wheel")])
            try:
                with target.open("xb") as stream:
                    for chunk in contents(archive, members[name]):
                        stream.write(chunk)
            except ContentError as error:
                raise _malformed(path, [error.problem]) from error


def packed_sizes(path: Path) -> dict[str, int]:
    """Bytes that each file takes up in the wheel at `path`.

    Raises:
        VerificationError: no zip, or one that two readers could see differently.
        OSError: the file cannot be read.
    """
    with open_archive(path) as archive:
        problems = [problem for problem in archive.problems if problem.reason != "collision"]
        if problems:
            raise _malformed(path, problems)
        return {member.name: member.info.compress_size for member in archive.members if not member.is_folder}


def _malformed(path: Path, problems: list[Problem]) -> VerificationError:
    return VerificationError(
        f"not a well-formed wheel: {problems[0]}",
        where=str(path),
        remedy="Download or build it again.",
        reason=problems[0].reason,
        detail="\n".join(str(problem) for problem in problems[1:20]),
    )
