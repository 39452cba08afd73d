"""Digests: every wrong byte is found, once per file and machine is enough, and nobody else can vouch for a file."""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, Any

import pytest

from hatch_epctx.digest import digest_bytes, digest_stream
from hatch_epctx.errors import VerificationError
from hatch_epctx.manifest import Artifact
from hatch_epctx.runtime import verify
from hatch_epctx.runtime.verify import record_folder, verify_files

if TYPE_CHECKING:
    from pathlib import Path

DATA = b"context" * 100


def artifact(data: bytes = DATA, name: str = "file.bin") -> Artifact:
    return Artifact(path=name, size=len(data), digest=digest_bytes(data), role="context")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one good file. Files may be remembered at once, so that no test has to wait."""
    monkeypatch.setattr(verify, "GRAIN", 0.0)
    where = tmp_path / "package"
    where.mkdir()
    (where / "file.bin").write_bytes(DATA)
    return where


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts how often content is hashed."""
    seen: list[int] = []

    def counted(stream: Any, **options: Any) -> Any:
        seen.append(1)
        return digest_stream(stream, **options)

    monkeypatch.setattr(verify, "digest_stream", counted)
    return seen


def records() -> list[Path]:
    where = record_folder()
    return sorted(where.iterdir()) if where is not None and where.exists() else []


def test_once_reads_once_and_always_reads_always(folder: Path, reads: list[int]) -> None:
    verify_files(folder, [artifact()], "once")
    verify_files(folder, [artifact()], "once")
    assert len(reads) == 1
    verify_files(folder, [artifact()], "always")
    assert len(reads) == 2
    verify_files(folder, [artifact()], "never")
    assert len(reads) == 2
    assert len(records()) == 1


@pytest.mark.parametrize("mode", ["once", "always"])
def test_a_flipped_byte_is_found(folder: Path, mode: Any) -> None:
    verify_files(folder, [artifact()], mode)
    data = bytearray(DATA)
    data[300] ^= 1
    (folder / "file.bin").write_bytes(data)
    with pytest.raises(VerificationError, match="SHA-256") as caught:
        verify_files(folder, [artifact()], mode)
    assert caught.value.reason == "modified-file"
    assert caught.value.where == str(folder / "file.bin")
    assert artifact().digest in str(caught.value)
    verify_files(folder, [artifact()], "never")


def test_a_flipped_byte_under_old_times_is_found(folder: Path) -> None:
    file = folder / "file.bin"
    verify_files(folder, [artifact()], "once")
    status = file.stat()
    time.sleep(0.02)
    with file.open("r+b") as stream:
        stream.write(b"x")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(VerificationError, match="SHA-256"):
        verify_files(folder, [artifact()], "once")


def test_a_replaced_file_is_read_again(folder: Path, reads: list[int]) -> None:
    verify_files(folder, [artifact()], "once")
    other = folder / "other"
    other.write_bytes(DATA)
    other.replace(folder / "file.bin")
    verify_files(folder, [artifact()], "once")
    assert len(reads) == 2


def test_what_was_verified_for_one_digest_says_nothing_of_another(folder: Path) -> None:
    verify_files(folder, [artifact()], "once")
    with pytest.raises(VerificationError):
        verify_files(folder, [artifact(b"o" * len(DATA))], "once")


@pytest.mark.parametrize("mode", ["once", "always", "never"])
def test_a_missing_file_another_size_and_a_link(folder: Path, mode: Any) -> None:
    with pytest.raises(VerificationError, match="missing") as caught:
        verify_files(folder, [artifact(name="none.bin")], mode)
    assert caught.value.reason == "missing-file"
    (folder / "short.bin").write_bytes(DATA[:-1])
    with pytest.raises(VerificationError, match="699 bytes; expected 700 bytes") as caught:
        verify_files(folder, [artifact(name="short.bin")], mode)
    assert caught.value.reason == "modified-file"
    (folder / "link.bin").symlink_to(folder / "file.bin")
    with pytest.raises(VerificationError, match="is a link") as caught:
        verify_files(folder, [artifact(name="link.bin")], mode)
    assert caught.value.reason == "escape"
    (folder / "folder.bin").mkdir()
    with pytest.raises(VerificationError, match="cannot be read"):
        verify_files(folder, [artifact(name="folder.bin")], mode)
    os.mkfifo(folder / "pipe.bin")
    with pytest.raises(VerificationError, match="cannot be read"):
        verify_files(folder, [artifact(name="pipe.bin")], mode)


def test_a_young_file_is_not_remembered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "GRAIN", 2.0)
    verify_files(folder, [artifact()], "once")
    assert records() == []


def test_case_25_records_lie_in_a_private_folder_and_nothing_beside_the_package(folder: Path, tmp_path: Path) -> None:
    verify_files(folder, [artifact()], "once")
    where = record_folder()
    assert where == tmp_path / "user-cache" / "hatch-epctx" / "verified"
    assert stat.S_IMODE(where.stat().st_mode) == 0o700
    assert [stat.S_IMODE(record.stat().st_mode) for record in records()] == [0o600]
    assert [path.name for path in folder.iterdir()] == ["file.bin"]


def test_a_record_that_cannot_be_written_costs_time_and_nothing_else(
    folder: Path, reads: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "occupied").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "occupied"))
    verify_files(folder, [artifact()], "once")
    verify_files(folder, [artifact()], "once")
    assert len(reads) == 2


@pytest.mark.parametrize("base", ["", "relative/cache"])
def test_a_home_that_is_none(folder: Path, reads: list[int], monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    monkeypatch.setenv("HOME", "relative" if not base else "/")
    assert record_folder() is None
    verify_files(folder, [artifact()], "once")
    verify_files(folder, [artifact()], "once")
    assert len(reads) == 2


def test_a_folder_that_others_may_write_vouches_for_nothing(folder: Path, reads: list[int]) -> None:
    verify_files(folder, [artifact()], "once")
    where = record_folder()
    assert where is not None
    where.chmod(0o777)
    verify_files(folder, [artifact()], "once")
    assert len(reads) == 2
    where.chmod(0o700)
    moved = where.with_name("moved")
    where.rename(moved)
    where.symlink_to(moved)
    verify_files(folder, [artifact()], "once")
    assert len(reads) == 3


def test_a_damaged_record_is_a_miss(folder: Path, reads: list[int]) -> None:
    verify_files(folder, [artifact()], "once")
    for damage in (b"", b"epctx-verified/2 x\n", b"\xff" * 10_000):
        records()[0].write_bytes(damage)
        verify_files(folder, [artifact()], "once")
    assert len(reads) == 4
    verify_files(folder, [artifact()], "once")
    assert len(reads) == 4


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    (folder / "file.bin").chmod(0)
    with pytest.raises(VerificationError, match="cannot be read"):
        verify_files(folder, [artifact()], "once")


LARGE = b"0123456789abcdef" * (verify.LARGE >> 4)


def test_large_files_are_read_ahead_and_hashed_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by a thread of its own; whichever is wrong is named."""
    import threading

    monkeypatch.setattr(verify, "_cores", lambda: 4)
    names: set[str] = set()
    real = verify.digest_ahead

    def counted(stream: Any) -> Any:
        names.add(threading.current_thread().name)
        return real(stream)

    monkeypatch.setattr(verify, "digest_ahead", counted)
    contents = {f"{n}.bin": LARGE + bytes([n]) * n for n in range(4)}
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    artifacts = [artifact(data, name) for name, data in contents.items()]
    verify_files(folder, [artifact(), *artifacts], "once")
    assert len(names) > 1
    assert all(name.startswith("epctx-verify") for name in names)
    names.clear()
    verify_files(folder, [artifact(), *artifacts], "once")
    assert not names
    with (folder / "2.bin").open("r+b") as stream:
        stream.seek(5 << 20)
        stream.write(b"!")
    for mode in ("once", "always"):
        with pytest.raises(VerificationError, match="SHA-256") as caught:
            verify_files(folder, artifacts, mode)
        assert caught.value.where == str(folder / "2.bin")


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (5 << 20) + 7])
def test_reading_ahead_gives_the_same_digest(folder: Path, size: int) -> None:
    from hatch_epctx.digest import digest_ahead

    data = os.urandom(size)
    (folder / "x").write_bytes(data)
    with (folder / "x").open("rb", buffering=0) as stream:
        assert digest_ahead(stream) == (digest_bytes(data), size)
