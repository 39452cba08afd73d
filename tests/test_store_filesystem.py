"""Which file systems count as a network's: tables of mounts as kernels write them, and this machine's own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from hatch_epctx.store.filesystem import MOUNTS, file_system, is_network

if TYPE_CHECKING:
    from pathlib import Path

TABLE = r"""
22 28 0:20 / /proc rw,nosuid - proc proc rw
28 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
40 28 0:35 / {base}/home rw,relatime shared:20 - nfs4 server:/home rw,vers=4.2,local_lock=none
41 40 0:36 / {base}/home/ada/.cache rw - tmpfs tmpfs rw
42 28 0:37 / {base}/with\040space rw master:3 shared:4 - fuse.sshfs ada@host:/ rw
43 28 0:38 / {base}/twice rw - cifs //server/share rw
44 28 0:39 / {base}/twice rw - xfs /dev/vdb rw
45 28 0:40 /sub {base}/bind rw - btrfs /dev/vdc rw
46 28 0:41 / {base}/short
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for name in ("home/ada/.cache", "homework", "with space", "twice", "bind", "short"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "mountinfo").write_text(TABLE.replace("{base}", str(tmp_path)).lstrip())
    return tmp_path


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's table of mounts")


@linux
@pytest.mark.parametrize(
    ("place", "kind", "network"),
    [
        ("", "ext4", False),
        ("home", "nfs4", True),
        ("home/bob/not/there/yet", "nfs4", True),
        ("home/ada/.cache/hatch-epctx", "tmpfs", False),
        ("homework", "ext4", False),
        ("with space/cache", "fuse.sshfs", True),
        ("twice", "xfs", False),
        ("bind/x", "btrfs", False),
        ("short", "ext4", False),
    ],
)
def test_the_innermost_mount_counts(base: Path, place: str, kind: str, network: bool) -> None:
    found = file_system(base / place, mounts=base / "mountinfo")
    assert found == kind
    assert is_network(found) is network


@linux
def test_a_link_on_the_way_is_followed(base: Path) -> None:
    (base / "link").symlink_to(base / "home")
    assert file_system(base / "link" / "cache", mounts=base / "mountinfo") == "nfs4"


def test_no_table_is_no_answer(base: Path) -> None:
    assert file_system(base, mounts=base / "nothing") == ""
    assert not is_network("")


@pytest.mark.parametrize("kind", ["fuse.s3fs", "fuse.rclone", "fuse.unheard-of", "9p", "virtiofs", "smb3", "lustre"])
def test_what_may_be_elsewhere_counts_as_a_network(kind: str) -> None:
    assert is_network(kind)


@pytest.mark.parametrize("kind", ["overlay", "zfs", "apfs", "fuseblk", "fuse.fuse-overlayfs", "f2fs", "ramfs"])
def test_what_is_of_this_host_does_not(kind: str) -> None:
    assert not is_network(kind)


@linux
def test_this_machine_has_a_table(tmp_path: Path) -> None:
    assert MOUNTS.exists()
    assert file_system(tmp_path) != ""
