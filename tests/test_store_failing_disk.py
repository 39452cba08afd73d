"""A disk that refuses any single thing, once: a clear error or a result all the same, and a store that is whole.

Every call of a build, a hit, a collection and a pin fails in turn with every error. After each, the next build is
right, the check is clean, and a collection leaves nothing behind.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fault_hook import Disk
from store_support import build, check, compile_into, identity_of, left_over, outputs, record_of, write

from hatch_epctx import collect as collecting
from hatch_epctx.collect import Limits, Root, collect
from hatch_epctx.errors import StoreError
from hatch_epctx.store import Generation, Miss, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ERRORS = [
    "EIO",
    "ENOSPC",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("EROFS", "EACCES", "ESTALE", "ENOENT")),
]
EVERYTHING = Limits(max_size=1 << 60)
NOTHING = Limits(max_size=0)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """On a file system in memory where there is one: nothing is asked of a real disk here."""
    memory = Path("/dev/shm")  # noqa: S108  # a folder of our own in it
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as folder:
        yield Path(folder) / "cache"


@pytest.fixture(scope="session")
def disk() -> Disk:
    return Disk()


def sound(store: Store, *names: str) -> None:
    """Every build is right, nothing is damaged, and nothing is left over once it was collected."""
    for name in names:
        with build(store, identity_of(name)) as generation:
            check(generation, identity_of(name))
            assert generation.selected
    assert [found for found in collecting.check(store) if found.miss is not None] == []
    done = collect(store, EVERYTHING)
    assert not done.failed
    left = left_over(store)
    assert len(left.pop("generations")) == len(collecting.look(store).items)
    assert not any(left.values()), left
    assert all(item.identities for item in collecting.look(store).items)


def each_failure(
    disk: Disk, root: Path, error: str, prepare: Callable[[Store], None], operate: Callable[[Store], None], *names: str
) -> int:
    """Let `operate` meet a failure at each of its calls; return how many there were."""
    at = 0
    while True:
        at += 1
        shutil.rmtree(root, ignore_errors=True)
        store = Store(root)
        prepare(store)
        fresh = Store(root)
        assert not fresh.read_only  # found out before: a store that cannot be made is another test's
        disk.arm(root, at=at, error=getattr(errno, error))
        told: StoreError | None = None
        try:
            operate(fresh)
        except StoreError as failure:
            told = failure
        finally:
            failed = disk.disarm()
        where = f"{error} at call {at}: {disk.failed}"
        try:
            assert told is None or (told.where and told.reason and told.remedy)
            sound(Store(root), *names)
        except BaseException as finding:
            raise AssertionError(where) from finding
        if not failed:
            return at - 1


@pytest.mark.parametrize("error", ERRORS)
def test_a_build_meets_a_failure_at_every_call(disk: Disk, root: Path, error: str) -> None:
    def operate(store: Store) -> None:
        identity, files = identity_of("m"), outputs(identity_of("m"))
        with store.lock(identity):
            assert isinstance(store.find(identity), Miss)
            with store.staging() as staging:
                with disk.well():
                    write(staging, files)
                generation = store.publish(staging, record_of(identity, files))
        with generation, disk.well():
            check(generation, identity)
            assert generation.selected or "used once" in generation.warning

    calls = each_failure(disk, root, error, lambda _: None, operate, "m")
    assert calls > 40


@pytest.mark.parametrize("error", ERRORS)
def test_a_hit_meets_a_failure_at_every_call(disk: Disk, root: Path, error: str) -> None:
    def prepare(store: Store) -> None:
        build(store, identity_of("m")).close()

    def operate(store: Store) -> None:
        found = store.find(identity_of("m"))
        if isinstance(found, Generation):
            found.close()
        else:
            assert found.reason.startswith(("absent", "unreadable-", "missing-")), found

    calls = each_failure(disk, root, error, prepare, operate, "m")
    assert calls > 10


def two_and_a_superseded_one(store: Store) -> None:
    build(store, identity_of("a")).close()
    build(store, identity_of("b")).close()
    compile_into(store, identity_of("b"), salt="again").close()
    compile_into(store, identity_of("b")).close()


@pytest.mark.parametrize("error", ERRORS)
def test_a_collection_meets_a_failure_at_every_call(disk: Disk, root: Path, error: str) -> None:
    def operate(store: Store) -> None:
        collect(store, NOTHING)

    calls = each_failure(disk, root, error, two_and_a_superseded_one, operate, "a", "b")
    assert calls > 60


@pytest.mark.parametrize("error", ERRORS)
def test_pinning_and_unpinning_meet_a_failure_at_every_call(disk: Disk, root: Path, error: str) -> None:
    def operate(store: Store) -> None:
        collecting.pin(store, Root(name=identity_of("m"), identity=identity_of("m")))
        collecting.unpin(store, identity_of("m"))

    def prepare(store: Store) -> None:
        build(store, identity_of("m")).close()

    calls = each_failure(disk, root, error, prepare, operate, "m")
    assert calls > 8


def test_making_the_store_meets_a_failure_at_every_call(disk: Disk, tmp_path: Path) -> None:
    at, failed = 0, True
    while failed:
        at += 1
        told: StoreError | None = None
        root = tmp_path / str(at)
        disk.arm(root, at=at, error=errno.EIO)
        try:
            Store(root).read_only  # noqa: B018  # looks
        except StoreError as failure:
            told = failure
        finally:
            failed = disk.disarm()
        assert told is None or told.reason == "input-output"
        sound(Store(root), "m")
    assert at > 8
