"""Making folders, and files that must not appear closed to those they are for."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from hatch_epctx.files.disk import TEMP_PREFIX, fsync_dir, long_path
from hatch_epctx.files.sharing import in_shared, share

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["make_dir", "make_file", "make_private_dir"]

_SHARED_FOLDER: Final = 0o2770


def make_private_dir(path: Path, *, durable: bool = True) -> None:
    """Make the folder `path` and those above it that are missing, for this user alone (0700).

    A folder that is there stays as it is.

    Args:
        path: the folder.
        durable: what is made survives a power cut.

    Raises:
        NotADirectoryError: there is something else at `path`, a link included.
        OSError: it cannot be made.
    """
    if not os.path.lexists(long_path(path)):
        if not path.parent.exists():
            make_private_dir(path.parent, durable=durable)
        with suppress(FileExistsError):  # somebody else was faster
            long_path(path).mkdir(0o700)
            if durable:
                with suppress(PermissionError):  # a parent that may be entered and not read cannot be flushed
                    fsync_dir(path.parent)
    if not stat.S_ISDIR(long_path(path).lstat().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "is no folder", str(path))


def make_dir(path: Path, *, durable: bool = True) -> None:
    """Make the folder `path`, and those above it that are missing, for whom the folder above is for.

    A folder that is there stays as it is.

    Args:
        path: the folder.
        durable: what is made survives a power cut.

    Raises:
        NotADirectoryError: there is something else at `path`, a link included.
        OSError: it cannot be made.
    """
    if os.path.lexists(long_path(path)):
        make_private_dir(path)  # looks at what is there
        return
    if not path.parent.exists():
        make_dir(path.parent, durable=durable)
    if not in_shared(path.parent):
        make_private_dir(path, durable=durable)
        return
    # Under another name first: at its own name the others must never find it closed to them.
    temporary = path.parent / f"{TEMP_PREFIX}{os.urandom(8).hex()}"
    temporary.mkdir(0o700)
    try:
        temporary.chmod(_SHARED_FOLDER)
        temporary.rename(path)
    except OSError as error:
        with suppress(OSError):
            temporary.rmdir()
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
    if durable:
        fsync_dir(path.parent)
    make_private_dir(path)


def make_file(path: Path) -> None:
    """Make the empty file `path` for whom its folder is for, unless there is something; it appears with its mode.

    Does nothing where the folder is private: whoever opens the file makes it.

    Raises:
        OSError: it cannot be made.
    """
    if os.path.lexists(path) or not in_shared(path.parent):
        return
    temporary = path.parent / f"{TEMP_PREFIX}{os.urandom(8).hex()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        share(descriptor, path.parent)
        with suppress(FileExistsError):
            os.link(temporary, path, follow_symlinks=False)
    finally:
        os.close(descriptor)
        temporary.unlink()
