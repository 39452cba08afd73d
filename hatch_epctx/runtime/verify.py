"""Whether the files of a variant are what the manifest says, by their SHA-256.

No EP checks its context binaries (a flipped bit loads and runs), so the look-up does, once per file and machine. What
was verified is remembered in a private folder of the user's, never beside an installed package, by device, inode,
size, modification and change time. Limits: on Windows the change time is that of creation, so a writer that keeps
size and modification time goes unnoticed there; whoever may write to the user's own folder can forge a record; and
the file is opened again by ORT afterwards. `verify="always"` reads every time.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from hatch_epctx.digest import digest_bytes, digest_stream
from hatch_epctx.errors import VerificationError
from hatch_epctx.files import atomic_write, make_private_dir, open_regular, read_bounded

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hatch_epctx.manifest import Artifact

__all__ = ["GRAIN", "Verify", "record_folder", "verify_files"]

Verify = Literal["always", "once", "never"]

GRAIN: Final = 2.0
"""Seconds: a file younger than this is not remembered, since a second change might leave its times as they are."""
_REMEDY: Final = "The installation is damaged or was changed: reinstall the package."


def verify_files(folder: Path, artifacts: Iterable[Artifact], mode: Verify) -> None:
    """Check every file: regular, of the recorded size, and with the recorded digest unless `mode` is "never".

    Raises:
        VerificationError: reason missing-file, escape (a link), modified-file or unreadable.
    """
    for artifact in artifacts:
        _verify_file(folder / artifact.path, artifact, mode)


def record_folder() -> Path | None:
    """Folder of the records: below XDG_CACHE_HOME, ~/.cache, ~/Library/Caches or %LOCALAPPDATA%. None: no home."""
    if os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA", ""))
    else:
        own = "Library/Caches" if sys.platform == "darwin" else ".cache"
        home = os.path.expanduser("~")  # noqa: PTH111  # leaves "~" where there is no home; Path.home() raises
        base = Path(os.environ.get("XDG_CACHE_HOME") or f"{home}/{own}")
    # A relative base is to be ignored (XDG Base Directory Specification).
    return base / "hatch-epctx" / "verified" if base.is_absolute() else None


def _verify_file(path: Path, artifact: Artifact, mode: Verify) -> None:
    try:
        # ORT itself refuses a model file that is a link out of its package.
        if stat.S_ISLNK(path.lstat().st_mode):
            raise VerificationError(
                "is a link",
                where=str(path),
                expected="a regular file",
                remedy="Install with real files (uv: --link-mode=copy or hardlink).",
                reason="escape",
            )
        with open_regular(path) as stream:
            status = os.fstat(stream.fileno())
            if status.st_size != artifact.size:
                _refuse(path, f"{status.st_size} bytes", f"{artifact.size} bytes as the manifest records")
            if mode == "never" or (mode == "once" and _remembered(status, artifact.digest)):
                return
            digest, _ = digest_stream(stream)
            after = os.fstat(stream.fileno())
    except FileNotFoundError as error:
        raise VerificationError(
            "the file is missing", where=str(path), remedy=_REMEDY, reason="missing-file"
        ) from error
    except OSError as error:
        raise VerificationError(
            f"cannot be read: {error.strerror or error}", where=str(path), reason="unreadable"
        ) from error
    if digest != artifact.digest:
        _refuse(path, f"SHA-256 {digest}", f"{artifact.digest} as the manifest records")
    if mode == "once" and _times(status) == _times(after):
        _remember(after, digest)


def _refuse(path: Path, found: str, expected: str) -> None:
    raise VerificationError(found, where=str(path), expected=expected, remedy=_REMEDY, reason="modified-file")


def _times(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _record(folder: Path, status: os.stat_result) -> Path:
    return folder / digest_bytes(f"{status.st_dev}:{status.st_ino}".encode())[:32]


def _line(status: os.stat_result, digest: str) -> bytes:
    return f"epctx-verified/1 {' '.join(map(str, _times(status)))} {digest}\n".encode()


def _remembered(status: os.stat_result, digest: str) -> bool:
    folder = record_folder()
    if folder is None:
        return False
    try:
        line = _line(status, digest)
        return _private(folder) and read_bounded(_record(folder, status), len(line)) == line
    except OSError:
        return False


def _remember(status: os.stat_result, digest: str) -> None:
    """Write the record; where that cannot be, the file is read again next time."""
    folder = record_folder()
    if folder is None or time.time() - max(status.st_mtime, status.st_ctime) < GRAIN:
        return
    try:
        make_private_dir(folder)
        if _private(folder):
            atomic_write(_record(folder, status), _line(status, digest), durable=False)
    except OSError:
        return


def _private(folder: Path) -> bool:
    """Whether nobody else may write records: a shared cache folder could vouch for anything."""
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return False
    return os.name == "nt" or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)
