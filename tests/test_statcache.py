"""The stat cache: remembers what is certain, reads again what is not."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest

import hatch_epctx.statcache as module
from hatch_epctx.digest import digest_bytes
from hatch_epctx.statcache import StatCache

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(os.name == "nt", reason="nothing is remembered on Windows")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> float:
    """A short grain, so that files settle at once; returns the seconds to wait."""
    monkeypatch.setattr(module, "GRAIN", 0.02)
    return 0.03


class World:
    """A cache, a file, and a way to tell recalling from reading."""

    def __init__(self, folder: Path) -> None:
        self.records = folder / "stat"
        self.cache = StatCache(self.records)
        self.file = folder / "model.onnx"
        self.file.write_bytes(b"one")

    def remembered(self) -> list[Path]:
        return sorted(self.records.rglob("*.json"))

    def poison(self) -> str:
        """Make the one record say another digest: whoever recalls gives that, whoever reads the right one."""
        (record,) = self.remembered()
        wrong = digest_bytes(b"poison")
        record.write_text(json.dumps({**json.loads(record.read_text()), "digest": wrong}))
        return wrong


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_settled_file_is_read_once(world: World, quick: float) -> None:
    time.sleep(quick)
    assert world.cache.digest(world.file) == digest_bytes(b"one")
    wrong = world.poison()
    assert world.cache.digest(world.file) == wrong
    link = world.file.with_name("link")
    link.symlink_to(world.file)
    assert world.cache.digest(link) == wrong
    moved = world.file.rename(world.file.with_name("moved"))  # changes ctime: read again
    assert world.cache.digest(moved) == digest_bytes(b"one")


def test_a_young_file_is_never_remembered(world: World) -> None:
    assert world.cache.digest(world.file) == digest_bytes(b"one")
    assert not world.remembered()
    world.file.write_bytes(b"two")
    assert world.cache.digest(world.file) == digest_bytes(b"two")
    old = time.time() - 1000
    os.utime(world.file, (old, old))  # only ctime tells that it is young
    world.cache.digest(world.file)
    assert not world.remembered()
    time.sleep(module.GRAIN + 0.1)
    world.cache.digest(world.file)
    assert len(world.remembered()) == 1


def test_files_with_times_in_the_future_are_never_remembered(world: World, quick: float) -> None:
    later = time.time() + 1000
    os.utime(world.file, (later, later))
    time.sleep(quick)
    world.cache.digest(world.file)
    assert not world.remembered()


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_that_jumps_costs_time_only(
    world: World, quick: float, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    real = time.time
    monkeypatch.setattr(module.time, "time", lambda: real() + jump)
    world.cache.digest(world.file)
    assert bool(world.remembered()) == (jump > 0)
    world.file.write_bytes(b"two")
    assert world.cache.digest(world.file) == digest_bytes(b"two")


def test_same_size_and_mtime_but_other_bytes_are_read_again(world: World, quick: float) -> None:
    status = world.file.stat()
    time.sleep(quick)
    world.cache.digest(world.file)
    world.file.write_bytes(b"two")
    os.utime(world.file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert world.file.stat().st_mtime_ns == status.st_mtime_ns
    assert world.cache.digest(world.file) == digest_bytes(b"two")
    other = world.file.with_name("other")
    other.write_bytes(b"six")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(world.file)
    assert world.cache.digest(world.file) == digest_bytes(b"six")


def test_a_changed_file_replaces_its_record(world: World, quick: float) -> None:
    for content in (b"one", b"two", b"three"):
        world.file.write_bytes(content)
        time.sleep(quick)
        world.cache.digest(world.file)
    assert len(world.remembered()) == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"x" * 5000, b'{"digest": "' + b"0" * 64 + b'"}', b"\xff", b"[" * 900],
)
def test_a_broken_record_is_a_miss_and_is_replaced(world: World, quick: float, content: bytes) -> None:
    time.sleep(quick)
    world.cache.digest(world.file)
    (record,) = world.remembered()
    good = record.read_bytes()
    record.write_bytes(content)
    assert world.cache.digest(world.file) == digest_bytes(b"one")
    assert record.read_bytes() == good


@pytest.mark.parametrize("field", ["device", "inode", "size", "mtime", "ctime", "format", "digest"])
def test_every_field_counts(world: World, quick: float, field: str) -> None:
    time.sleep(quick)
    world.cache.digest(world.file)
    world.poison()
    (record,) = world.remembered()
    value = json.loads(record.read_text())
    record.write_text(json.dumps({**value, field: 1 if isinstance(value[field], int) else "x"}))
    assert world.cache.digest(world.file) == digest_bytes(b"one")


def test_records_that_cannot_be_written_cost_time_only(world: World, quick: float) -> None:
    time.sleep(quick)
    world.records.write_bytes(b"in the way")
    assert world.cache.digest(world.file) == digest_bytes(b"one")


def test_what_is_no_file_is_refused(world: World) -> None:
    os.mkfifo(world.file.with_name("pipe"))
    for name in ("pipe", ".", "missing"):
        with pytest.raises(OSError):  # noqa: PT011
            world.cache.digest(world.file.with_name(name) if name != "." else world.file.parent)
