"""Private or shared: who may use what is made in a folder.

Folders and files of the store are private to their user. The one other mode is a folder shared with a group: it is
group-writable and has the set-group-ID bit, as ``install -d -m 2770 -g team /srv/epctx`` makes it. What is made in
such a folder is shared with the same group, whatever the umask; the kernel hands the group and the bit down. POSIX
only: access lists of Windows hand themselves down.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["in_shared", "is_shared", "share"]

_SHARED: Final = stat.S_ISGID | stat.S_IWGRP
_FILE: Final = 0o660


def is_shared(status: os.stat_result) -> bool:
    """Whether the folder with this status is shared with its group."""
    return sys.platform != "win32" and status.st_mode & _SHARED == _SHARED


def in_shared(folder: Path) -> bool:
    """Whether `folder` is there and shared with its group."""
    try:
        return is_shared(folder.lstat())
    except OSError:
        return False


def share(descriptor: int, folder: Path) -> None:
    """Open the file of `descriptor`, which lies in `folder` and is this user's, to the group of a shared folder.

    Raises:
        OSError: that may not be done.
    """
    if sys.platform != "win32" and in_shared(folder):
        os.fchmod(descriptor, _FILE)
