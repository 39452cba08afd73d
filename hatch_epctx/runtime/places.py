"""Folders of this user's own that the look-up writes to: never beside an installed package, never in the cwd."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

__all__ = ["is_private", "private_folder"]


def private_folder(kind: str) -> Path | None:
    """Folder for one kind of thing: below XDG_CACHE_HOME, ~/.cache, ~/Library/Caches or %LOCALAPPDATA%.

    None where there is no home. It may not exist yet.
    """
    if os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA", ""))
    else:
        own = "Library/Caches" if sys.platform == "darwin" else ".cache"
        home = os.path.expanduser("~")  # noqa: PTH111  # leaves "~" where there is no home; Path.home() raises
        base = Path(os.environ.get("XDG_CACHE_HOME") or f"{home}/{own}")
    # A relative base is to be ignored (XDG Base Directory Specification).
    return base / "hatch-epctx" / kind if base.is_absolute() else None


def is_private(folder: Path) -> bool:
    """Whether it is a folder that nobody else may write: a shared one could vouch for anything.

    Raises:
        OSError: there is nothing there.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return False
    return os.name == "nt" or (status.st_uid == os.geteuid() and not status.st_mode & 0o022)
