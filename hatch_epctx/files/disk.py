"""Atomic and durable changes of the disk.

"Durable" means: handed to the disk in the order given here (fsync of a file, then of the folder that names it), as
far as system and disk keep their word. After a power cut a rename is either there with all bytes or not there.
Network file systems: rename is atomic on the server, but another client may see the old name for its cache's time.
Windows: not run there; folders cannot be flushed, and a replace waits a moment for readers that hold the file open.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.files.faults import fault_point
from hatch_epctx.files.sharing import share

if sys.platform == "darwin":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "TEMP_PREFIX",
    "atomic_write",
    "fsync_dir",
    "fsync_file",
    "long_path",
    "move",
    "publish_dir",
    "remove_file",
    "remove_tree",
    "touch",
]

TEMP_PREFIX: Final = ".tmp-"
"""Head of the names of files being written; one that stays behind belonged to a killed process."""

_WINDOWS_WAIT: Final = 2.0
"""Seconds to wait for another process that holds a file open on Windows."""
_WINDOWS_LIMIT: Final = 240
"""Characters of a path that old Windows calls take, less a margin for a name."""


def long_path(path: Path) -> Path:
    """`path` as the operating system takes it: with Windows' prefix for paths beyond 260 characters where needed."""
    text = str(path)
    if os.name != "nt" or len(text) < _WINDOWS_LIMIT or text.startswith("\\\\?\\"):
        return path
    text = str(path.absolute())  # pragma: no cover
    return Path(f"\\\\?\\UNC\\{text[2:]}" if text.startswith("\\\\") else f"\\\\?\\{text}")  # pragma: no cover


def fsync_file(path: Path) -> None:
    """Make the content of the file at `path` durable.

    Raises:
        OSError: the file cannot be opened, or the disk failed.
    """
    flags = os.O_RDONLY if os.name != "nt" else os.O_RDWR  # Windows flushes only what may be written
    descriptor = os.open(long_path(path), flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0))
    try:
        _flush(descriptor)
    finally:
        os.close(descriptor)


def fsync_dir(path: Path) -> None:
    """Make the names in the folder `path` durable. Does nothing on Windows, which cannot.

    Raises:
        OSError: the folder cannot be opened, or the disk failed.
    """
    if sys.platform != "win32":
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _flush(descriptor)
        finally:
            os.close(descriptor)


def _flush(descriptor: int) -> None:
    if sys.platform == "darwin":  # fsync leaves the bytes in the drive's cache there
        with suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def atomic_write(
    path: Path,
    data: bytes,
    mode: int = 0o600,
    *,
    durable: bool = True,
    shared: bool = False,
    scratch: Path | None = None,
    point: str = "file",
) -> None:
    """Put `data` at `path` so that every reader, at any time, sees the old content or the new, never a mixture.

    Args:
        path: the file; its folder exists.
        data: the whole content.
        mode: permissions of the file.
        durable: survive a power cut too; without it the file may then be empty, which readers must take as absent.
        shared: where a group shares the folder of the temporary file, the group may read and write the file.
        scratch: folder for the temporary file, on the same file system. Beside `path` when left out, where a killed
            process leaves a ``.tmp-*`` file behind.
        point: head of the fault points' names.

    Raises:
        OSError: nothing changed at `path`, except that the last step of a durable write, the folder's fsync, may
            fail when the new content is in place already.
    """
    temporary = (scratch or path.parent) / f"{TEMP_PREFIX}{os.urandom(8).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(long_path(temporary), flags, mode)
        with os.fdopen(descriptor, "wb") as stream:
            if shared:
                share(descriptor, temporary.parent)
            stream.write(data)
            stream.flush()
            if durable:
                _flush(stream.fileno())
        fault_point(f"{point}-temp")
        _patiently(lambda: long_path(temporary).replace(long_path(path)))
    except BaseException:
        with suppress(OSError):
            remove_file(temporary)
        raise
    fault_point(f"{point}-replaced")
    if durable:
        fsync_dir(path.parent)


def move(src: Path, dst: Path) -> None:
    """Rename `src` to `dst` on one file system, atomically. A file at `dst` is replaced, a folder there is not.

    Raises:
        OSError: nothing changed.
    """
    _patiently(lambda: long_path(src).replace(long_path(dst)))


def publish_dir(staging: Path, final: Path, *, file_mode: int = 0o444) -> None:
    """Give the flat folder `staging` its `final` name: whoever sees that name sees every file whole.

    Order: each file read-only and durable, then the folder, then the rename, then both parents.

    Args:
        staging: a folder of regular files that nobody else writes.
        final: the name to be, on the same file system; nothing is there.
        file_mode: permissions that the files get.

    Raises:
        FileExistsError: there is something at `final`.
        OSError: the disk failed. `final` may exist when the last step, the parents' fsync, failed.
    """
    for path in sorted(staging.iterdir()):
        if os.name == "nt":  # pragma: no cover  # a read-only file cannot be flushed there
            fsync_file(path)
            long_path(path).chmod(file_mode)
        else:
            path.chmod(file_mode)
            fsync_file(path)
    fsync_dir(staging)
    fault_point("synced")
    if os.path.lexists(final):  # an empty folder there would be replaced silently
        raise FileExistsError(errno.EEXIST, "exists already", str(final))
    _patiently(lambda: long_path(staging).rename(long_path(final)))
    fault_point("renamed")
    fsync_dir(final.parent)
    fsync_dir(staging.parent)


def touch(path: Path, when: float | None = None) -> None:
    """Set the times of the file or folder at `path`, not of what a link leads to; content and readers see nothing.

    Args:
        path: the file.
        when: seconds since 1970; now when left out.

    Raises:
        OSError: it is not there, or is not this user's to change.
    """
    follow = os.utime not in os.supports_follow_symlinks
    os.utime(long_path(path), None if when is None else (when, when), follow_symlinks=follow)


def remove_file(path: Path) -> None:
    """Remove the file or link at `path`; nothing there is as good. Read-only files are removed too.

    Raises:
        OSError: it cannot be removed.
    """
    name = long_path(path)
    try:
        name.unlink(missing_ok=True)
    except PermissionError:
        if os.name != "nt" or path.is_symlink():
            raise
        name.chmod(stat.S_IWRITE)  # pragma: no cover  # the read-only attribute bars removal
        _patiently(name.unlink)  # pragma: no cover


def remove_tree(path: Path) -> None:
    """Remove whatever is at `path`: a folder with all it holds, a file, a link (never what it leads to).

    Read-only files and folders are removed too, and what another process removes meanwhile is as good as removed.

    Raises:
        OSError: something cannot be removed; the rest is gone.
    """
    try:
        status = long_path(path).lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        remove_file(path)
        return
    failure = _remove_once(path)
    if failure is not None:
        _make_removable(path)
        failure = _remove_once(path)
    if failure is not None:
        raise failure


def _remove_once(path: Path) -> OSError | None:
    """Remove what can be removed; the first error, None when nothing is left."""
    import shutil  # noqa: PLC0415  # it brings every archive format; the look-up, which removes nothing, does without

    failures: list[OSError] = []

    def onexc(_function: Callable[..., Any], _name: str, error: BaseException) -> None:
        if not isinstance(error, OSError):
            raise error
        if not isinstance(error, FileNotFoundError):  # another process removes the same tree
            failures.append(error)

    if sys.version_info >= (3, 12):
        shutil.rmtree(long_path(path), onexc=onexc)
    else:
        shutil.rmtree(long_path(path), onerror=lambda function, name, info: onexc(function, name, info[1]))
    return failures[0] if failures and os.path.lexists(long_path(path)) else None


def _make_removable(path: Path) -> None:
    """Open every folder of the tree to its owner; on Windows, take the read-only attribute off its files."""
    with suppress(OSError):
        path.chmod(stat.S_IRWXU)
    for folder, folders, files in os.walk(long_path(path)):
        for name in folders if os.name != "nt" else [*folders, *files]:
            item = Path(folder, name)
            if not item.is_symlink():  # chmod would follow it out of the tree
                with suppress(OSError):
                    item.chmod(stat.S_IRWXU)


def _patiently(call: Callable[[], object]) -> None:
    """Call; on Windows, again for a moment while another process holds the file open."""
    end = time.monotonic() + (_WINDOWS_WAIT if os.name == "nt" else 0.0)
    while time.monotonic() < end:  # pragma: no cover
        with suppress(PermissionError):
            call()
            return
        time.sleep(0.01)
    call()
