"""A store that a group shares on purpose: two users with the strictest of umasks, and one who is no member.

Needs root, as CI has it: the children become other users.
"""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import store_support as support
from store_support import build, check, identity_of, left_over

from hatch_epctx.errors import StoreError
from hatch_epctx.files import atomic_write, make_dir, make_file
from hatch_epctx.store import Generation, Store

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(os.name == "nt" or os.geteuid() != 0, reason="only root becomes other users")

TEAM = 54321
ADA = {"EPCTX_TEST_USER": f"51001,{TEAM}", "EPCTX_TEST_UMASK": "077"}
BOB = {"EPCTX_TEST_USER": f"51002,{TEAM}", "EPCTX_TEST_UMASK": "077"}
EVE = {"EPCTX_TEST_USER": "51003", "EPCTX_TEST_UMASK": "077"}


@pytest.fixture
def root() -> Iterator[Path]:
    """A shared cache folder, made as docs/store.md says, where any user may come by."""
    with tempfile.TemporaryDirectory(prefix="epctx-test-") as name:
        Path(name).chmod(0o711)
        folder = Path(name) / "cache"
        subprocess.run(["install", "-d", "-m", "2770", "-g", str(TEAM), str(folder)], check=True)
        yield folder


def test_two_users_hit_what_the_other_compiled(root: Path) -> None:
    log = root.parent / "log"
    log.touch()
    log.chmod(0o666)
    assert support.run("build", root, "m", log, **ADA)[1] == "selected\n"
    assert support.run("build", root, "m", log, **BOB)[1] == "selected\n"
    assert support.run("build", root, "n", log, **BOB)[1] == "selected\n"
    assert support.run("build", root, "n", log, **ADA)[1] == "selected\n"
    assert len(log.read_text().splitlines()) == 2
    with build(Store(root), identity_of("m"), on_compile=pytest.fail) as generation:
        check(generation, identity_of("m"))


def test_all_that_is_made_is_the_groups_and_nobody_elses(root: Path) -> None:
    for user, name in ((ADA, "m"), (BOB, "n")):
        support.run("everything", root, name, **user)
    wrong = []
    for path in [root, *root.rglob("*")]:
        status = path.lstat()
        mode = stat.S_IMODE(status.st_mode)
        if path.is_dir():
            fit = mode == 0o2770
        elif path.parent.parent.name == "generations":
            fit = mode == 0o444  # behind folders that others cannot enter
        else:
            fit = mode == 0o660
        if not fit or status.st_gid != TEAM:
            wrong.append(f"{path} {mode:o} {status.st_gid}")
    assert not wrong, "\n".join(wrong)


def test_users_collect_sweep_and_unpin_each_others(root: Path) -> None:
    support.run("everything", root, "m", **ADA)
    with support.Child("stage", root, **ADA) as child:
        child.kill()
    assert support.run("tidy", root, **BOB)[1].split() == ["unpinned", "1", "1"]
    left = left_over(Store(root))
    assert not any(left.values()), left


def test_a_users_lease_keeps_the_others_collector_away(root: Path) -> None:
    with support.Child("publish", root, "m", "yes", **ADA) as child:
        assert support.run("tidy", root, **BOB)[1].split() == ["0", "0"]
        assert left_over(Store(root))["generations"] == [child.said]
        child.kill()
        assert support.run("tidy", root, **BOB)[1].split() == ["1", "0"]


def test_users_wait_for_each_other_and_compile_once(root: Path) -> None:
    log = root.parent / "log"
    log.touch()
    log.chmod(0o666)
    processes = [
        subprocess.Popen(
            support.command_line("build", root, "m", log, "0.3"),
            env=support.environment(**user),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for user in (ADA, BOB, ADA, BOB, ADA, BOB)
    ]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert out == "selected\n"
    assert len(log.read_text().splitlines()) == 1


def test_who_is_no_member_is_refused(root: Path) -> None:
    code, out = support.run("build", root, "m", os.devnull, check=False, **EVE)
    assert code == 1
    assert f"shared with group {TEAM}, of which user 51003 is no member" in out


def test_a_private_folder_inside_a_shared_store_is_refused(root: Path) -> None:
    support.run("build", root, "m", os.devnull, **ADA)
    (root / "v1" / "markers").chmod(0o700)
    with pytest.raises(StoreError) as caught:
        Store(root)
    assert caught.value.reason == "not-shared"
    assert "chmod 2770" in caught.value.remedy


def test_a_shared_folder_that_everybody_may_write_is_refused(root: Path) -> None:
    root.chmod(0o2777)
    with pytest.raises(StoreError) as caught:
        Store(root)
    assert caught.value.reason == "world-writable"


@pytest.mark.parametrize("mode", [0o700, 0o770, 0o2700, 0o2750])
def test_a_folder_of_another_user_that_is_not_shared_is_refused(root: Path, mode: int) -> None:
    os.chown(root, 51001, TEAM)
    root.chmod(mode)
    with pytest.raises(StoreError) as caught:
        Store(root)
    assert caught.value.reason == "foreign-owner"


def test_what_is_private_stays_private(root: Path) -> None:
    private = root.parent / "private"
    support.run("everything", private, "m", EPCTX_TEST_UMASK="000")
    for path in [private, *private.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.parent.parent.name == "generations":
            assert mode == 0o444
        else:
            assert mode & 0o077 in ((0,) if path.suffix != ".owner" else (0, 0o066)), f"{path} {mode:o}"


def test_making_races_end_with_one_folder_and_one_file(root: Path) -> None:
    """What another process made meanwhile is taken as it is."""
    make_dir(root / "a" / "b")
    (root / "a" / "b" / "file").touch()
    make_dir(root / "a" / "b")
    make_file(root / "lock")
    (root / "lock").write_text("x")
    make_file(root / "lock")
    assert (root / "lock").read_text() == "x"
    atomic_write(root / "private", b"x")
    assert stat.S_IMODE((root / "private").stat().st_mode) == 0o600
    with pytest.raises(NotADirectoryError):
        make_dir(root / "lock")
    (root / "link").symlink_to(root / "a")
    with pytest.raises(NotADirectoryError):
        make_dir(root / "link")
    assert not list(root.rglob(".tmp-*"))


def test_a_generation_of_another_user_is_verified_like_any_other(root: Path) -> None:
    support.run("build", root, "m", os.devnull, **ADA)
    (binary,) = root.rglob("*.bin")
    binary.chmod(0o644)
    binary.write_bytes(b"?" + binary.read_bytes()[1:])
    store = Store(root)
    assert not isinstance(store.find(identity_of("m")), Generation)
