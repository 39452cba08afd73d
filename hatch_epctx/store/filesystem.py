"""Which file system a store lies on, and whether other hosts may be at work there too.

Leases and locks are the operating system's file locks. On a disk of this host they are exact. On a network file
system they may be dropped by a server's restart, kept to one host by a mount option, or be missing, and a look at the
folder may be seconds old. What is read from a store is verified byte by byte, so that costs a compile at most; but
whoever removes things trusts leases. So nothing is removed by itself there (see `Layout.on_network`).

Linux only: the kernel's table of mounts is read. A Windows path that names a server counts as a network file system;
elsewhere nothing is detected, and the caller is told the empty name.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

__all__ = ["MOUNTS", "file_system", "is_network"]

MOUNTS: Final = Path("/proc/self/mountinfo")
_OCTAL = re.compile(r"\\([0-7]{3})")

_NETWORK: Final = frozenset(
    [
        "9p", "acfs", "afs", "auristorfs", "beegfs", "ceph", "cephfs", "cifs", "coda", "davfs", "drvfs", "gfs", "gfs2",
        "glusterfs", "gpfs", "lustre", "mmfs", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2",
        "smb2", "smb3", "smbfs", "unc", "vboxsf", "virtiofs", "vmhgfs", "webdav",
    ]
)  # fmt: skip
"""File systems of other hosts, or of a virtual machine's own: locks there may not be everybody's."""
_LOCAL_FUSE: Final = frozenset(
    [
        "bindfs", "cryfs", "encfs", "exfat", "fuse-overlayfs", "gocryptfs", "lxcfs", "mergerfs", "ntfs", "ntfs-3g",
        "securefs", "unionfs", "zfs-fuse",
    ]
)  # fmt: skip
"""User-space file systems of this host; every other one may be a network's."""


def file_system(path: Path, *, mounts: Path = MOUNTS) -> str:
    """Type of the file system that `path`, or what there is of it, lies on: "ext4"; empty when that cannot be told.

    Args:
        path: an absolute path; need not exist.
        mounts: the table of mounts, in the form of proc(5) mountinfo.
    """
    if sys.platform == "win32":
        return "unc" if str(path).startswith("\\\\") and not str(path).startswith("\\\\?\\") else ""
    there = path
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    try:
        real = there.resolve()
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        fields = line.split(" ")
        if "-" not in fields[6:]:
            continue
        point = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]))
        depth = len(point.parts)
        # Of several mounts on one point the last one is seen.
        if depth >= best and (real == point or point in real.parents):
            best, kind = depth, fields[fields.index("-", 6) + 1]
    return kind


def is_network(kind: str) -> bool:
    """Whether other hosts may change files on a file system of this type."""
    if kind.startswith("fuse."):
        return kind.removeprefix("fuse.") not in _LOCAL_FUSE
    return kind in _NETWORK
