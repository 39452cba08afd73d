"""Who may own a cache folder: this user or root alone, or a group that shares it on purpose.

What a compile reads from the store ends up in wheels, so whoever can write there chooses what is shipped. A folder
is private to its user, or it is shared: group-writable with the set-group-ID bit and closed to everybody else, as
``install -d -m 2770 -g team /srv/epctx`` makes it. Then every member of the group is trusted like the user. Windows'
access lists are not examined.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING

from hatch_epctx.errors import StoreError
from hatch_epctx.files import is_shared, long_path

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["check_folder", "status_of"]

_ELSEWHERE = "set EPCTX_CACHE_DIR to another folder"


def status_of(path: Path) -> os.stat_result | None:
    """Status of the folder itself, links not followed; None when it is not there or may not be looked at.

    Raises:
        OSError: the disk failed.
    """
    try:
        return long_path(path).lstat()
    except (FileNotFoundError, PermissionError):
        return None  # made, or reported, when it is used


def check_folder(path: Path, status: os.stat_result, root: os.stat_result | None) -> None:
    """Refuse a folder that others could change.

    Args:
        path: the folder, for messages.
        status: of the folder.
        root: status of the whole store's folder, which says whether the store is shared.

    Raises:
        StoreError: it is a link, no folder, another user's, or writable by others than it should be.
    """
    if stat.S_ISLNK(status.st_mode):
        raise StoreError(
            "the cache folder is a link, and whoever may change the link chooses what is built from",
            where=str(path),
            expected="a folder",
            remedy="Set EPCTX_CACHE_DIR to the folder it leads to.",
            reason="link",
        )
    if not stat.S_ISDIR(status.st_mode):
        raise StoreError(
            "is no folder", where=str(path), remedy=f"Correct that, or {_ELSEWHERE}.", reason="not-a-folder"
        )
    if sys.platform == "win32":
        return
    if status.st_mode & stat.S_IWOTH:
        raise StoreError(
            f"the cache folder is writable by everybody (mode {stat.S_IMODE(status.st_mode):04o})",
            where=str(path),
            expected="a private folder, or one shared with a group",
            remedy=f"Run 'chmod o-w' on it after looking at what it holds, or {_ELSEWHERE}.",
            reason="world-writable",
        )
    shared_with = root.st_gid if root is not None and is_shared(root) else None
    if shared_with is not None:
        _check_shared(path, status, shared_with)
    else:
        _check_private(path, status)


def _check_private(path: Path, status: os.stat_result) -> None:
    if sys.platform == "win32" or status.st_uid in {os.geteuid(), 0}:  # root could change everything anyway
        return
    raise StoreError(
        f"the cache folder belongs to user {status.st_uid}, who could change what is built from it",
        where=str(path),
        expected=f"a folder of user {os.geteuid()}",
        remedy=f"Change its owner, share it with a group (mode 2770), or {_ELSEWHERE}.",
        reason="foreign-owner",
    )


def _check_shared(path: Path, status: os.stat_result, group: int) -> None:
    if sys.platform == "win32":
        return
    if os.geteuid() != 0 and group not in {os.getegid(), *os.getgroups()}:
        raise StoreError(
            f"the cache folder is shared with group {group}, of which user {os.geteuid()} is no member",
            where=str(path),
            expected="a folder of one of this user's groups",
            remedy=f"Become a member of the group and log in anew, or {_ELSEWHERE}.",
            reason="foreign-group",
        )
    if status.st_gid != group or not is_shared(status):
        raise StoreError(
            f"the cache is shared with group {group}, this folder of it is not"
            f" (group {status.st_gid}, mode {stat.S_IMODE(status.st_mode):04o})",
            where=str(path),
            expected=f"group {group} and mode 2770",
            remedy="Run 'chgrp' and 'chmod 2770' on it, or remove the folder after looking at what it holds.",
            reason="not-shared",
        )
