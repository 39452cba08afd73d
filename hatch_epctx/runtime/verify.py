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
import time
from typing import IO, TYPE_CHECKING, Final, Literal, NoReturn

from hatch_epctx.digest import digest_ahead, digest_bytes, digest_stream
from hatch_epctx.errors import VerificationError
from hatch_epctx.files import atomic_write, make_private_dir, open_regular, read_bounded
from hatch_epctx.runtime.places import is_private, private_folder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hatch_epctx.manifest import Artifact

__all__ = ["GRAIN", "Verify", "record_folder", "verify_files"]

Verify = Literal["always", "once", "never"]

GRAIN: Final = 2.0
"""Seconds: a file younger than this is not remembered, since a second change might leave its times as they are."""
LARGE: Final = 8 << 20
"""Bytes from which a file is worth a thread."""
_REMEDY: Final = "The installation is damaged or was changed: reinstall the package."


def verify_files(folder: Path, artifacts: Iterable[Artifact], mode: Verify) -> None:
    """Check every file: regular, of the recorded size, and with the recorded digest unless `mode` is "never".

    Raises:
        VerificationError: reason missing-file, escape (a link), modified-file or unreadable.
    """
    left = [artifact for artifact in artifacts if not _settled(folder / artifact.path, artifact, mode)]
    left.sort(key=lambda artifact: -artifact.size)  # the longest first, so that it is not alone at the end
    threads = min(_cores(), sum(artifact.size >= LARGE for artifact in left))
    if threads < 2:
        for artifact in left:
            _hash_file(folder / artifact.path, artifact, mode)
        return
    from concurrent.futures import ThreadPoolExecutor  # what small packages and second starts do without

    with ThreadPoolExecutor(threads, thread_name_prefix="epctx-verify") as pool:
        for _ in pool.map(lambda artifact: _hash_file(folder / artifact.path, artifact, mode), left):
            pass


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def record_folder() -> Path | None:
    """Folder of the records; None where there is no home."""
    return private_folder("verified")


def _settled(path: Path, artifact: Artifact, mode: Verify) -> bool:
    """Whether nothing has to be read: the file is there, as large as it should be, and known or not to be known."""
    with _opened(path, artifact) as stream:
        return mode == "never" or (mode == "once" and _remembered(os.fstat(stream.fileno()), artifact.digest))


def _hash_file(path: Path, artifact: Artifact, mode: Verify) -> None:
    with _opened(path, artifact) as stream:
        status = os.fstat(stream.fileno())
        try:
            digest, _ = (digest_ahead if status.st_size >= LARGE else digest_stream)(stream)
        except OSError as error:
            raise _unreadable(path, error) from error
        after = os.fstat(stream.fileno())
    if digest != artifact.digest:
        _refuse(path, f"SHA-256 {digest}", f"{artifact.digest} as the manifest records")
    if mode == "once" and _times(status) == _times(after):
        _remember(after, digest)


def _opened(path: Path, artifact: Artifact) -> IO[bytes]:
    """The file, regular and of the recorded size."""
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
        stream = open_regular(path)
    except FileNotFoundError as error:
        raise VerificationError(
            "the file is missing", where=str(path), remedy=_REMEDY, reason="missing-file"
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error
    size = os.fstat(stream.fileno()).st_size
    if size != artifact.size:
        stream.close()
        _refuse(path, f"{size} bytes", f"{artifact.size} bytes as the manifest records")
    return stream


def _unreadable(path: Path, error: OSError) -> VerificationError:
    return VerificationError(f"cannot be read: {error.strerror or error}", where=str(path), reason="unreadable")


def _refuse(path: Path, found: str, expected: str) -> NoReturn:
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
        return is_private(folder) and read_bounded(_record(folder, status), len(line)) == line
    except OSError:
        return False


def _remember(status: os.stat_result, digest: str) -> None:
    """Write the record; where that cannot be, the file is read again next time."""
    folder = record_folder()
    if folder is None or time.time() - max(status.st_mtime, status.st_ctime) < GRAIN:
        return
    try:
        make_private_dir(folder)
        if is_private(folder):
            atomic_write(_record(folder, status), _line(status, digest), durable=False)
    except OSError:
        return
