"""Small wheels from nothing: metadata and a few files, to which `add_files` adds the large ones."""

from __future__ import annotations

import stat
import zipfile
from typing import TYPE_CHECKING, Final

from packaging.utils import parse_wheel_filename

from hatch_epctx import __version__
from hatch_epctx.digest import digest_bytes
from hatch_epctx.wheelfile.part import replacing
from hatch_epctx.wheelfile.record import Row, encode_digest, format_record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hatch_epctx.wheelfile.writer import ZipTime

__all__ = ["create_wheel"]

_UNIX: Final = 3


def create_wheel(path: Path, *, metadata: str, files: Mapping[str, bytes], time: ZipTime) -> None:
    """Write the wheel at `path`, in place of what is there; the same arguments give the same bytes.

    Args:
        path: its name is that of the wheel, whose tags it has.
        metadata: the METADATA file.
        files: content by path in the wheel.
        time: of all members.

    Raises:
        InvalidWheelFilename: `path` has no wheel's name.
        OSError: it cannot be written; what was there stays.
    """
    tags = sorted(str(tag) for tag in parse_wheel_filename(path.name)[3])
    folder = f"{'-'.join(path.name.split('-')[:2])}.dist-info"
    pure = all(tag.endswith("-any") for tag in tags)
    head = f"Wheel-Version: 1.0\nGenerator: hatch-epctx {__version__}\nRoot-Is-Purelib: {str(pure).lower()}\n"
    members = {name: files[name] for name in sorted(files)}
    members[f"{folder}/METADATA"] = metadata.encode()
    members[f"{folder}/WHEEL"] = (head + "".join(f"Tag: {tag}\n" for tag in tags)).encode()
    rows = [Row(name=n, digest=encode_digest(digest_bytes(data)), size=len(data)) for n, data in members.items()]
    record = f"{folder}/RECORD"
    members[record] = format_record([*rows, Row(name=record)])
    with replacing(path) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name, time)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = _UNIX  # zipfile would say what system this is
            info.external_attr = (stat.S_IFREG | 0o644) << 16
            archive.writestr(info, data)
