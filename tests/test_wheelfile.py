"""Wheels: large files added in one pass, and any wheel checked against its RECORD."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import stat
import struct
import subprocess
import sys
import textwrap
import time
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hatchling.builders.wheel import RecordFile, WheelArchive
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from packaging.utils import parse_wheel_filename

from hatch_epctx.errors import ConfigError, StoreError, VerificationError
from hatch_epctx.wheelfile import Entry, Problem, add_files, check_wheel, metadata_folder, reproducible_time
from hatch_epctx.wheelfile import archive as archive_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NAME = "acme_vision-1.0-py3-none-any.whl"
INFO = "acme_vision-1.0.dist-info"
METADATA = "Metadata-Version: 2.4\nName: acme-vision\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
FOLDER = "acme_vision/_epctx"
REPOSITORY = Path(__file__).parent.parent


def backend_wheel(folder: Path, files: dict[str, bytes] | None = None, *, name: str = NAME) -> Path:
    """A wheel written by hatchling's own archive class, as its build does."""
    folder.mkdir(parents=True, exist_ok=True)
    with WheelArchive(INFO.removesuffix(".dist-info"), reproducible=True) as archive, RecordFile() as records:
        for path, content in {"acme_vision/__init__.py": b"import os\n" * 50, **(files or {})}.items():
            records.write(archive.write_file(path, content))
        records.write(archive.write_metadata("METADATA", METADATA))
        records.write(archive.write_metadata("WHEEL", WHEEL))
        records.write((f"{archive.metadata_directory}/RECORD", "", ""))
        archive.write_metadata("RECORD", records.construct())
    target = folder / name
    shutil.move(archive.path, target)
    target.chmod(0o644)
    return target


def row(name: str, content: bytes, algorithm: str = "sha256") -> list[str]:
    digest = base64.urlsafe_b64encode(hashlib.new(algorithm, content).digest()).rstrip(b"=").decode()
    return [name, f"{algorithm}={digest}", str(len(content))]


def record_rows(wheel: Path) -> list[list[str]]:
    with zipfile.ZipFile(wheel) as archive:
        return list(csv.reader(io.StringIO(archive.read(f"{INFO}/RECORD").decode())))


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == len(set(archive.namelist()))
        return {name: archive.read(name) for name in archive.namelist()}


def noise(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311  # incompressible, not secret


def blob(path: Path, size: int = 300_000, seed: int = 0) -> Path:
    path.write_bytes(noise(size, seed))
    return path


def reasons(problems: Iterable[Problem]) -> set[str]:
    return {problem.reason for problem in problems}


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.suffix == ".part"]


# Adding


def test_added_files_are_stored_recorded_and_in_order(tmp_path: Path) -> None:
    wheel = backend_wheel(tmp_path)
    before = members(wheel)
    context = blob(tmp_path / "context.bin")
    entries = [
        Entry(name=f"{FOLDER}/sha256-{'ab' * 16}.bin", source=context),
        Entry(name=f"{INFO}/sboms/epctx.cdx.json", source=b"{}"),
        Entry(name=f"{FOLDER}/manifest.json", source=b'{"a": 1}'),
    ]
    add_files(wheel, entries)
    after = members(wheel)
    assert list(after) == [
        "acme_vision/__init__.py",
        f"{FOLDER}/manifest.json",
        f"{FOLDER}/sha256-{'ab' * 16}.bin",
        f"{INFO}/METADATA",
        f"{INFO}/WHEEL",
        f"{INFO}/sboms/epctx.cdx.json",
        f"{INFO}/RECORD",
    ]
    assert {name: after[name] for name in before if not name.endswith("RECORD")} == {
        name: content for name, content in before.items() if not name.endswith("RECORD")
    }
    assert record_rows(wheel) == [row(name, content) for name, content in after.items() if "RECORD" not in name] + [
        [f"{INFO}/RECORD", "", ""]
    ]
    with zipfile.ZipFile(wheel) as archive:
        for name in (f"{FOLDER}/manifest.json", f"{FOLDER}/sha256-{'ab' * 16}.bin"):
            info = archive.getinfo(name)
            assert info.compress_type == zipfile.ZIP_STORED
            assert info.external_attr >> 16 == stat.S_IFREG | 0o644
            assert info.create_system == 3
            assert info.date_time == (2020, 2, 2, 0, 0, 0)
    assert check_wheel(wheel) == []
    assert stat.S_IMODE(wheel.stat().st_mode) == 0o644
    assert leftovers(tmp_path) == []


def test_backend_members_are_not_recompressed(tmp_path: Path) -> None:
    wheel = backend_wheel(tmp_path, {"acme_vision/big.py": b"x = 1\n" * 100_000})

    def packed() -> dict[str, tuple[bytes, tuple[object, ...]]]:
        result: dict[str, tuple[bytes, tuple[object, ...]]] = {}
        with archive_module.open_archive(wheel) as archive:
            for member in archive.members:
                info = member.info
                facts = (info.CRC, info.file_size, info.date_time, info.external_attr, info.compress_type)
                result[member.name] = (b"".join(archive_module.raw(archive, member)), facts)
        return result

    before = packed()
    add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=b"a")])
    after = packed()
    del before[f"{INFO}/RECORD"], after[f"{INFO}/RECORD"], after[f"{FOLDER}/a.bin"]
    assert before == after


def test_deflated_when_asked(tmp_path: Path) -> None:
    wheel = backend_wheel(tmp_path)
    add_files(wheel, [Entry(name=f"{FOLDER}/zeros.bin", source=bytes(1_000_000))], compression="deflated")
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo(f"{FOLDER}/zeros.bin")
        assert info.compress_type == zipfile.ZIP_DEFLATED
        assert info.compress_size < 10_000
    assert check_wheel(wheel) == []


def test_same_input_same_bytes_whatever_order_times_and_modes(tmp_path: Path) -> None:
    wheels = []
    for number, reverse in enumerate((False, True)):
        folder = tmp_path / str(number)
        wheel = backend_wheel(folder)
        sources = [blob(folder / f"{seed}.bin", seed=seed) for seed in range(3)]
        for source in sources:
            os.utime(source, (number * 1e9 + 1, number * 1e9 + 1))
            source.chmod(0o755 if reverse else 0o400)
        entries = [Entry(name=f"{FOLDER}/{source.name}", source=source) for source in sources]
        add_files(wheel, reversed(entries) if reverse else entries)
        wheels.append(wheel.read_bytes())
        add_files(wheel, entries)
        wheels.append(wheel.read_bytes())
    assert len(set(wheels)) == 1


def test_case_32_an_artifact_already_in_the_package_gives_one_entry_and_one_row(tmp_path: Path) -> None:
    name = f"{FOLDER}/manifest.json"
    wheel = backend_wheel(tmp_path, {name: b"old and longer", "acme_vision/z.py": b""})
    add_files(wheel, [Entry(name=name, source=b"new")])
    assert members(wheel)[name] == b"new"
    assert [row_ for row_ in record_rows(wheel) if row_[0] == name] == [row(name, b"new")]
    assert check_wheel(wheel) == []


def test_an_owned_folder_holds_nothing_but_entries(tmp_path: Path) -> None:
    stale = {f"{FOLDER}/gone_ctx.onnx": b"x", f"{FOLDER}/sub/gone.bin": b"y", "acme_vision/_epctx_not_ours.py": b""}
    wheel = backend_wheel(tmp_path, stale)
    add_files(wheel, [Entry(name=f"{FOLDER}/manifest.json", source=b"{}")], owned=FOLDER)
    assert [name for name in members(wheel) if "_epctx" in name] == [
        "acme_vision/_epctx_not_ours.py",
        f"{FOLDER}/manifest.json",
    ]
    assert check_wheel(wheel) == []
    add_files(wheel, [], owned=FOLDER)
    assert [name for name in members(wheel) if "_epctx" in name] == ["acme_vision/_epctx_not_ours.py"]
    assert check_wheel(wheel) == []


def test_the_metadata_folder_is_found(tmp_path: Path) -> None:
    assert metadata_folder(backend_wheel(tmp_path)) == INFO
    (tmp_path / NAME).write_bytes(b"no zip")
    with pytest.raises(VerificationError, match="not a well-formed wheel"):
        metadata_folder(tmp_path / NAME)
    with pytest.raises(StoreError, match="cannot be read"):
        metadata_folder(tmp_path / "missing.whl")


def test_nothing_to_add_changes_nothing(tmp_path: Path) -> None:
    wheel = backend_wheel(tmp_path)
    before = wheel.stat()
    add_files(wheel, [])
    add_files(wheel, [], owned=FOLDER)
    after = wheel.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_links_are_followed_on_both_sides(tmp_path: Path) -> None:
    real = backend_wheel(tmp_path / "real")
    link = tmp_path / NAME
    link.symlink_to(real)
    store = blob(tmp_path / "blob")
    source = tmp_path / "link.bin"
    source.symlink_to(store)
    add_files(link, [Entry(name=f"{FOLDER}/a.bin", source=source)])
    assert link.is_symlink()
    assert members(real)[f"{FOLDER}/a.bin"] == store.read_bytes()
    with zipfile.ZipFile(real) as archive:
        assert stat.S_ISREG(archive.getinfo(f"{FOLDER}/a.bin").external_attr >> 16)


def test_zip64_structures_are_written_copied_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The limit is lowered, since members above 2 GiB make a slow test (below).
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)
    wheel = backend_wheel(tmp_path, {"acme_vision/data.bin": noise(5000, 1)})
    assert check_wheel(wheel) == []
    content = noise(5000, 2)
    add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=content)])
    add_files(wheel, [Entry(name=f"{FOLDER}/b.bin", source=b"b")])
    assert b"PK\x06\x06" in wheel.read_bytes()
    monkeypatch.undo()
    assert check_wheel(wheel) == []
    assert members(wheel)[f"{FOLDER}/a.bin"] == content


# Times


@given(st.one_of(st.none(), st.integers(-(10**6), 4354819198)))
@settings(deadline=None)
def test_time_is_hatchlings(seconds: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SOURCE_DATE_EPOCH", raising=False)
        if seconds is not None:
            patch.setenv("SOURCE_DATE_EPOCH", str(seconds))
        assert reproducible_time(os.environ) == WheelArchive.get_reproducible_time_tuple()


@pytest.mark.parametrize("text", ["", "today", "1.5", "4354819200", "9" * 400])
def test_unusable_source_date_epoch_is_a_configuration_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"SOURCE_DATE_EPOCH: .* expected whole seconds"):
        reproducible_time({"SOURCE_DATE_EPOCH": text})


def test_added_files_have_the_backends_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    wheel = backend_wheel(tmp_path)
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    add_files(wheel, [Entry(name=f"{FOLDER}/a", source=b"")])
    add_files(wheel, [Entry(name=f"{FOLDER}/b", source=b"")], time=(2000, 1, 2, 3, 4, 6))
    with zipfile.ZipFile(wheel) as archive:
        times = {info.filename: info.date_time for info in archive.infolist()}
    assert times[f"{FOLDER}/a"] == times[f"{INFO}/RECORD"] == reproducible_time({"SOURCE_DATE_EPOCH": "1700000000"})
    assert times[f"{FOLDER}/b"] == (2000, 1, 2, 3, 4, 6)


# Refusals and faults


@pytest.mark.parametrize(
    "name",
    [
        "", "/a", "../a", "a/../b", "a//b", "a/", "a\\b", "C:a", "a:b", "a\0", "a/nul", "a/con.txt", "a/b.", "a/b ",
        "a\nb", "a" * 300, f"{INFO}/RECORD", f"{INFO}/RECORD.jws", "other-1.0.dist-info/x",
    ],
)  # fmt: skip
def test_unfit_names_are_refused(tmp_path: Path, name: str) -> None:
    wheel = backend_wheel(tmp_path)
    before = wheel.read_bytes()
    with pytest.raises(ConfigError):
        add_files(wheel, [Entry(name=name, source=b"")])
    assert wheel.read_bytes() == before


@pytest.mark.parametrize(
    "names",
    [("a/x", "a/x"), ("a/x", "A/X"), ("a/\u00df", "a/SS"), ("a", "a/b"), ("ACME_vision/__init__.py",),
     ("acme_vision",), ("acme_vision/__init__.py/x",)],
)  # fmt: skip
def test_names_that_collide_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    wheel = backend_wheel(tmp_path)
    before = wheel.read_bytes()
    with pytest.raises(ConfigError, match=r"twice|one path"):
        add_files(wheel, [Entry(name=name, source=b"") for name in names])
    assert wheel.read_bytes() == before
    assert leftovers(tmp_path) == []


def test_a_source_that_is_not_what_its_digest_says_leaves_the_wheel_alone(tmp_path: Path) -> None:
    wheel = backend_wheel(tmp_path)
    before = wheel.read_bytes()
    source = blob(tmp_path / "a.bin")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    changed = source.read_bytes()[:-2] + b"!!"
    source.write_bytes(changed)
    with pytest.raises(VerificationError, match="content changed") as caught:
        add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=source, digest=digest)])
    assert caught.value.reason == "source-changed"
    assert wheel.read_bytes() == before
    assert leftovers(tmp_path) == []
    add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=source, digest=hashlib.sha256(changed).hexdigest())])


@pytest.mark.skipif(sys.platform != "linux", reason="a file whose size the system does not know")
def test_a_source_with_more_bytes_than_its_size_is_refused(tmp_path: Path) -> None:
    wheel = backend_wheel(tmp_path)
    with pytest.raises(VerificationError, match="content changed"):
        add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=Path("/proc/self/status"))])


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe"])
def test_unreadable_sources(tmp_path: Path, kind: str) -> None:
    wheel = backend_wheel(tmp_path)
    before = wheel.read_bytes()
    source = tmp_path / "source"
    if kind == "folder":
        source.mkdir()
    elif kind == "pipe":
        os.mkfifo(source)
    with pytest.raises(StoreError, match="cannot be read") as caught:
        add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=source)])
    assert caught.value.where == str(source)
    assert wheel.read_bytes() == before
    assert leftovers(tmp_path) == []


def test_a_signed_wheel_is_refused(tmp_path: Path) -> None:
    wheel = raw_wheel(tmp_path / NAME, {**PLAIN, f"{INFO}/RECORD.jws": b"{}"}, unlisted={f"{INFO}/RECORD.jws"})
    assert check_wheel(wheel) == []
    with pytest.raises(VerificationError, match="signed"):
        add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=b"")])


WRITER = """
    import resource, signal, sys
    from pathlib import Path
    from hatch_epctx.wheelfile import Entry, add_files
    wheel, blob, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    if limit:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    add_files(wheel, [Entry(name="acme_vision/_epctx/blob.bin", source=blob)])
    # getrusage counts what the parent had at the fork; this line counts this program alone.
    status = Path("/proc/self/status")
    if status.exists():
        print(next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")))
"""


def writer(wheel: Path, source: Path, limit: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(WRITER), str(wheel), str(source), str(limit)]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)


@pytest.mark.parametrize("limit", [10, 1000, 700_000])
def test_a_full_disk_leaves_the_old_wheel(tmp_path: Path, limit: int) -> None:
    wheel = backend_wheel(tmp_path)
    before = wheel.read_bytes()
    _, errors = writer(wheel, blob(tmp_path / "blob", 1_000_000), limit).communicate(timeout=60)
    assert "StoreError" in errors
    assert "File too large" in errors
    assert wheel.read_bytes() == before
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
def test_a_killed_run_leaves_the_old_wheel_or_the_new_one(tmp_path: Path, share: float) -> None:
    wheel = backend_wheel(tmp_path)
    before = members(wheel)
    source = tmp_path / "blob"
    with source.open("wb") as stream:
        stream.truncate(150_000_000)
    child = writer(wheel, source)
    while child.poll() is None and not any(
        part.stat().st_size >= share * 150_000_000 for part in tmp_path.glob("*.part")
    ):
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    parts = leftovers(tmp_path)
    if parts:  # killed before the new wheel took its place
        assert members(wheel) == before
    assert check_wheel(wheel) == []
    small = blob(tmp_path / "small")
    for name in parts:  # as if an hour had passed
        os.utime(tmp_path / name, (1, 1))
    add_files(wheel, [Entry(name=f"{FOLDER}/blob.bin", source=small)])
    assert members(wheel)[f"{FOLDER}/blob.bin"] == small.read_bytes()
    assert leftovers(tmp_path) == []


def test_another_run_that_is_still_writing_is_left_alone(tmp_path: Path) -> None:
    wheel = backend_wheel(tmp_path)
    add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=b"")])
    source = tmp_path / "blob"
    with source.open("wb") as stream:
        stream.truncate(150_000_000)
    child = writer(wheel, source)
    while child.poll() is None and not leftovers(tmp_path):
        time.sleep(0.001)
    add_files(wheel, [Entry(name=f"{FOLDER}/b.bin", source=b"")])
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 0, errors
    assert check_wheel(wheel) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    wheel = backend_wheel(tmp_path)
    source = tmp_path / "blob"
    with source.open("wb") as stream:
        stream.truncate(150_000_000)
    output, errors = writer(wheel, source).communicate(timeout=100)
    assert int(output) * 1024 < 100_000_000, errors


# What others say of the result


def bundle(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    wheel = backend_wheel(tmp_path / "dist")
    added = {
        f"{FOLDER}/manifest.json": b"{}",
        f"{FOLDER}/sha256-{'0' * 32}.bin": noise(3_000_000, 0),
        f"{FOLDER}/a, b 'c' \u00e4\u4e2d.onnx": b"onnx",
        f"{FOLDER}/empty": b"",
        f"{INFO}/sboms/epctx.cdx.json": b"{}",
    }
    add_files(wheel, [Entry(name=name, source=content) for name, content in added.items()])
    return wheel, added


def installed(folder: Path, added: dict[str, bytes]) -> None:
    for name, content in added.items():
        assert (folder / name).read_bytes() == content, name
    with (folder / INFO / "RECORD").open(newline="") as stream:
        listed = {fields[0] for fields in csv.reader(stream)}
    assert set(added) <= listed


@pytest.mark.parametrize("tool", ["pip", "uv", "installer", "wheel"])
def test_installers_take_the_wheel(tmp_path: Path, tool: str) -> None:
    wheel, added = bundle(tmp_path)
    target = tmp_path / "target"
    python = sys.executable
    commands: dict[str, list[str]] = {
        "pip": [python, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(target), str(wheel)],
        "uv": [python, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--target", str(target), str(wheel)],
        "installer": [
            python, "-m", "installer", "--validate-record", "all", "--no-compile-bytecode",
            "--prefix", str(target), str(wheel),
        ],
        "wheel": [python, "-m", "wheel", "unpack", "--dest", str(target), str(wheel)],
    }  # fmt: skip
    pytest.importorskip(tool)
    result = subprocess.run(commands[tool], capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    roots = [path.parent for path in target.rglob(INFO)]
    assert len(roots) == 1
    installed(roots[0], added)


def test_the_name_parses_and_a_broken_copy_is_refused_by_an_independent_reader(tmp_path: Path) -> None:
    wheel, _ = bundle(tmp_path)
    name, version, _, _ = parse_wheel_filename(wheel.name)
    assert (name, str(version)) == ("acme-vision", "1.0")
    sources = pytest.importorskip("installer.sources")
    with sources.WheelFile.open(wheel) as source:
        source.validate_record(validate_contents=True)


def test_a_real_build_with_a_hook(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "acme_vision" / "_epctx").mkdir(parents=True)
    (project / "acme_vision" / "__init__.py").write_text("")
    (project / "acme_vision" / "_epctx" / "stale.bin").write_bytes(b"stale")
    blob(project / "context.bin")
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "acme-vision"\nversion = "1.0"\nrequires-python = ">=3.10"\n'
        "[tool.hatch.build.targets.wheel.hooks.custom]\n"
    )
    (project / "hatch_build.py").write_text(
        textwrap.dedent("""
        from pathlib import Path
        from hatchling.builders.hooks.plugin.interface import BuildHookInterface
        from hatch_epctx.wheelfile import Entry, add_files

        class Hook(BuildHookInterface):
            def finalize(self, version, build_data, artifact_path):
                entry = Entry(name="acme_vision/_epctx/context.bin", source=Path(self.root) / "context.bin")
                add_files(Path(artifact_path), [entry], owned="acme_vision/_epctx")
        """)
    )
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    wheels = []
    for number in range(2):
        out = tmp_path / f"out{number}"
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
        subprocess.run(command, cwd=project, env=environ, check=True, capture_output=True, timeout=120)
        wheels.append(out / NAME)
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    assert check_wheel(wheels[0]) == []
    names = list(members(wheels[0]))
    assert f"{FOLDER}/context.bin" in names
    assert f"{FOLDER}/stale.bin" not in names


def test_a_wheel_of_another_backend(tmp_path: Path) -> None:
    wheelfile = pytest.importorskip("wheel.wheelfile")
    wheel = tmp_path / NAME
    with wheelfile.WheelFile(wheel, "w") as archive:
        archive.writestr("acme_vision/__init__.py", b"")
        archive.writestr(f"{INFO}/METADATA", METADATA)
        archive.writestr(f"{INFO}/WHEEL", WHEEL)
    assert check_wheel(wheel) == []
    add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=b"a")])
    assert check_wheel(wheel) == []
    with wheelfile.WheelFile(wheel) as archive:  # refuses digests that differ while reading
        assert archive.read(f"{FOLDER}/a.bin") == b"a"


PART = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
NAMES = st.lists(st.lists(PART, min_size=1, max_size=3).map("/".join), min_size=1, max_size=4)


@given(NAMES)
@example(["a,b", "\u00e4\u0308", "q\u2028r"])
@example(["acme_vision/" + "\u4e2d" * 60])
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names_are_refused_or_come_out_as_they_went_in(tmp_path: Path, names: list[str]) -> None:
    folder = tmp_path / "hypothesis"
    shutil.rmtree(folder, ignore_errors=True)
    wheel = backend_wheel(folder)
    content = {name: name.encode() for name in names}
    try:
        add_files(wheel, [Entry(name=name, source=data) for name, data in content.items()])
    except ConfigError:
        return
    assert check_wheel(wheel) == []
    found = members(wheel)
    assert {name: found.get(name) for name in names} == content
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "out")
    assert {str(path.relative_to(folder / "out")) for path in (folder / "out").rglob("*") if path.is_file()} == set(
        found
    )


# Checking

PLAIN = {
    "acme_vision/__init__.py": b"x = 1\n" * 100,
    f"{INFO}/METADATA": METADATA.encode(),
    f"{INFO}/WHEEL": WHEEL.encode(),
}


def raw_wheel(
    path: Path,
    files: dict[str, bytes],
    *,
    rows: Callable[[list[list[str]]], list[list[str]]] = lambda rows: rows,
    unlisted: Iterable[str] = (),
    method: int = zipfile.ZIP_DEFLATED,
    record: bytes | None = None,
) -> Path:
    """A wheel of any content; `rows` edits RECORD, `record` replaces it."""
    hidden = {*unlisted, *(name for name in files if "\0" in name)}  # csv cannot write those before Python 3.11
    listed = [row(name, content) for name, content in files.items() if name not in hidden]
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows([*listed, [f"{INFO}/RECORD", "", ""]]))
    with zipfile.ZipFile(path, "w", method) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.filename = name  # ZipInfo would cut it at NUL
            info.compress_type = method
            archive.writestr(info, content)
        archive.writestr(f"{INFO}/RECORD", text.getvalue().encode() if record is None else record)
    return path


def both(wheel: Path, reason: str, *, refused: bool = True) -> None:
    """`check_wheel` names the reason; `add_files` refuses too where the structure or RECORD's rows are at fault."""
    problems = check_wheel(wheel)
    assert reason in reasons(problems), problems
    assert all(str(problem) and "\n" not in problem.text for problem in problems)
    before = wheel.read_bytes()
    if refused:
        with pytest.raises(VerificationError, match="not a well-formed wheel"):
            add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=b"")])
        assert wheel.read_bytes() == before


def edited(change: Callable[[list[list[str]]], Any]) -> Callable[[list[list[str]]], list[list[str]]]:
    def rows(found: list[list[str]]) -> list[list[str]]:
        change(found)
        return found

    return rows


@pytest.mark.parametrize(
    ("change", "reason", "refused"),
    [
        (lambda rows: rows[0].__setitem__(1, row("", b"other")[1]), "digest", False),
        (lambda rows: rows[0].__setitem__(1, rows[0][1] + "="), "digest", False),
        (lambda rows: rows[0].__setitem__(2, "7"), "size", False),
        (lambda rows: rows[0].__setitem__(1, ""), "hash-missing", False),
        (lambda rows: rows[0].__setitem__(1, row("", PLAIN["acme_vision/__init__.py"], "md5")[1]), "hash-weak", False),
        (lambda rows: rows.append(rows[0]), "duplicate", True),
        (lambda rows: rows.pop(0), "unlisted", True),
        (lambda rows: rows.pop(), "unlisted", False),
        (lambda rows: rows.append(row("../../evil", b"")), "missing", True),
        (lambda rows: rows[0].pop(), "record-malformed", True),
        (lambda rows: rows[0].__setitem__(1, "nonsense"), "record-malformed", True),
        (lambda rows: rows[0].__setitem__(2, "-1"), "record-malformed", True),
        (lambda rows: rows[0].__setitem__(2, "9" * 30), "record-malformed", True),
        (lambda rows: rows[0].__setitem__(0, ""), "record-malformed", True),
    ],
)
def test_record_rows(tmp_path: Path, change: Callable[..., Any], reason: str, refused: bool) -> None:
    both(raw_wheel(tmp_path / NAME, PLAIN, rows=edited(change)), reason, refused=refused)


@pytest.mark.parametrize("algorithm", ["sha384", "sha512"])
def test_stronger_digests_are_checked_too(tmp_path: Path, algorithm: str) -> None:
    name = "acme_vision/__init__.py"
    right = edited(lambda rows: rows.__setitem__(0, row(name, PLAIN[name], algorithm)))
    assert check_wheel(raw_wheel(tmp_path / NAME, PLAIN, rows=right)) == []
    wrong = edited(lambda rows: rows.__setitem__(0, row(name, b"", algorithm)))
    assert reasons(check_wheel(raw_wheel(tmp_path / NAME, PLAIN, rows=wrong))) == {"digest", "size"}


@pytest.mark.parametrize("record", [b"\xff\xfe", b'a,"b', b"\x00", b"\n", b"x" * 200_000 + b",,\n"])
def test_record_that_is_no_record(tmp_path: Path, record: bytes) -> None:
    both(raw_wheel(tmp_path / NAME, PLAIN, record=record), "record-malformed")


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "a/../../evil", "C:/evil", "a\\..\\evil", "a\nb", "a/./b", "evil\0.py", "a//b"]
)
def test_names_that_leave_the_folder(tmp_path: Path, name: str) -> None:
    both(raw_wheel(tmp_path / NAME, {**PLAIN, name: b""}), "name")


@pytest.mark.parametrize("names", [("a.py", "A.py"), ("a", "a/b"), ("\u00e9", "e\u0301")])
def test_names_that_are_one_elsewhere(tmp_path: Path, names: tuple[str, str]) -> None:
    wheel = raw_wheel(tmp_path / NAME, {**PLAIN, names[0]: b"", names[1]: b""})
    both(wheel, "collision", refused=False)
    add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=b"")])  # the user's own files, not ours to judge


def test_folder_entries_need_no_row(tmp_path: Path) -> None:
    wheel = raw_wheel(tmp_path / NAME, {**PLAIN, "acme_vision/": b""}, unlisted=["acme_vision/"])
    assert check_wheel(wheel) == []
    add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=b"")])
    assert check_wheel(wheel) == []
    wheel = raw_wheel(tmp_path / NAME, {**PLAIN, "acme_vision/": b"hidden"}, unlisted=["acme_vision/"])
    assert reasons(check_wheel(wheel)) == {"unlisted"}


def test_two_members_of_one_name(tmp_path: Path) -> None:
    wheel = raw_wheel(tmp_path / NAME, PLAIN)
    with zipfile.ZipFile(wheel, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("acme_vision/__init__.py", b"evil")
    both(wheel, "duplicate")


@pytest.mark.parametrize("missing", ["METADATA", "WHEEL"])
def test_missing_metadata(tmp_path: Path, missing: str) -> None:
    files = {name: content for name, content in PLAIN.items() if not name.endswith(missing)}
    both(raw_wheel(tmp_path / NAME, files), "metadata", refused=False)


def test_no_record_and_two_metadata_folders(tmp_path: Path) -> None:
    wheel = tmp_path / NAME
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in PLAIN.items():
            archive.writestr(name, content)
    both(wheel, "record-missing")
    other = "other-1.0.dist-info"
    wheel = raw_wheel(tmp_path / NAME, {**PLAIN, f"{other}/RECORD": b""})
    both(wheel, "metadata", refused=False)
    with pytest.raises(VerificationError, match="2 files"):
        add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=b"")])


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("other-1.0-py3-none-any.whl", {}, "metadata"),
        ("acme_vision-2.0-py3-none-any.whl", {}, "metadata"),
        ("acme_vision-1.0-py3-none-win_arm64.whl", {}, "tags"),
        ("acme_vision.whl", {}, "wheel-name"),
        (NAME, {"METADATA": METADATA.replace("acme-vision", "other").encode()}, "metadata"),
        (NAME, {"METADATA": METADATA.replace("Version: 1.0", "Version: x y").encode()}, "metadata"),
        (NAME, {"METADATA": b"\xff\xfe"}, "metadata"),
        (NAME, {"WHEEL": WHEEL.replace("Wheel-Version: 1.0", "Wheel-Version: 2.0").encode()}, "metadata"),
        (NAME, {"WHEEL": WHEEL.replace("py3-none-any", "any").encode()}, "tags"),
    ],
)
def test_name_and_metadata(tmp_path: Path, name: str, change: dict[str, bytes], reason: str) -> None:
    files = {**PLAIN, **{f"{INFO}/{file}": content for file, content in change.items()}}
    assert reasons(check_wheel(raw_wheel(tmp_path / name, files))) == {reason}


def test_platform_tags_that_agree(tmp_path: Path) -> None:
    tags = "Tag: py2-none-win_arm64\nTag: py3-none-win_arm64\n"
    files = {**PLAIN, f"{INFO}/WHEEL": WHEEL.replace("Tag: py3-none-any\n", tags).encode()}
    assert check_wheel(raw_wheel(tmp_path / "acme_vision-1.0-1-py2.py3-none-win_arm64.whl", files)) == []


# The structure of the zip


def patched(wheel: Path, change: Callable[[bytearray], bytes | bytearray | None]) -> Path:
    data = bytearray(wheel.read_bytes())
    wheel.write_bytes(change(data) or data)
    return wheel


def table(data: bytearray) -> int:
    return int(struct.unpack_from("<L", data, len(data) - 6)[0])


def set_sizes(data: bytearray, size: int) -> None:
    """Declare another size of the first member, in its header and in the table."""
    struct.pack_into("<L", data, 22, size)
    struct.pack_into("<L", data, table(data) + 24, size)


def test_more_than_declared(tmp_path: Path) -> None:
    def change(data: bytearray) -> None:
        set_sizes(data, 10)
        for place in (14, table(data) + 16):  # a CRC-32 that fits the declared part, as a bomb would have it
            struct.pack_into("<L", data, place, zlib.crc32(PLAIN["acme_vision/__init__.py"][:10]))

    both(patched(raw_wheel(tmp_path / NAME, PLAIN), change), "bomb", refused=False)


def test_a_bomb_is_not_unpacked_beyond_what_it_declares(tmp_path: Path) -> None:
    files = {"acme_vision/__init__.py": bytes(300_000_000), **PLAIN}
    files["acme_vision/__init__.py"] = bytes(300_000_000)
    wheel = patched(raw_wheel(tmp_path / NAME, files), lambda data: set_sizes(data, 1000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    assert "bomb" in reasons(check_wheel(wheel))
    assert time.process_time() - started < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_fewer_than_declared(tmp_path: Path) -> None:
    wheel = patched(raw_wheel(tmp_path / NAME, PLAIN), lambda data: set_sizes(data, 100_000))
    both(wheel, "content", refused=False)


def test_declared_total_is_limited(tmp_path: Path) -> None:
    wheel = raw_wheel(tmp_path / NAME, PLAIN)
    assert reasons(check_wheel(wheel, max_content=500)) == {"too-large"}


def test_wrong_checksum_and_broken_data(tmp_path: Path) -> None:
    def checksum(data: bytearray) -> None:
        for place in (14, table(data) + 16):
            data[place] ^= 1

    both(patched(raw_wheel(tmp_path / NAME, PLAIN), checksum), "content", refused=False)
    flipped = patched(raw_wheel(tmp_path / NAME, PLAIN), lambda data: data.__setitem__(60, data[60] ^ 0xFF))
    both(flipped, "content", refused=False)


def test_members_that_overlap(tmp_path: Path) -> None:
    def change(data: bytearray) -> bytes:
        start = table(data)
        length = 46 + sum(struct.unpack_from("<HHH", data, start + 28))
        copy, tail = data[start : start + length], data[-22:]
        struct.pack_into("<HHL", tail, 8, 5, 5, len(data) - 22 - start + length)
        return bytes(data[:-22] + copy + tail)

    both(patched(raw_wheel(tmp_path / NAME, PLAIN), change), "overlap")


def test_bytes_that_belong_to_no_member(tmp_path: Path) -> None:
    both(patched(raw_wheel(tmp_path / NAME, PLAIN), lambda data: b"#!/bin/sh\n" + data), "gap")
    both(patched(raw_wheel(tmp_path / NAME, PLAIN), lambda data: data + bytes(10)), "trailing")

    def hide(data: bytearray) -> bytes:
        start = table(data)
        tail = data[-22:]
        struct.pack_into("<L", tail, 16, start + 50)
        return bytes(data[:start] + bytes(50) + data[start:-22] + tail)

    both(patched(raw_wheel(tmp_path / NAME, PLAIN), hide), "gap")


def test_a_member_left_out_of_the_table(tmp_path: Path) -> None:
    def change(data: bytearray) -> bytes:
        start = table(data)
        length = 46 + sum(struct.unpack_from("<HHH", data, start + 28))
        tail = data[-22:]
        struct.pack_into("<HHL", tail, 8, 3, 3, len(data) - 22 - start - length)
        return bytes(data[:start] + data[start + length : -22] + tail)

    both(patched(raw_wheel(tmp_path / NAME, PLAIN), change), "gap")


def test_a_count_that_differs(tmp_path: Path) -> None:
    wheel = patched(raw_wheel(tmp_path / NAME, PLAIN), lambda data: struct.pack_into("<HH", data, len(data) - 14, 2, 2))
    both(wheel, "trailing")


@pytest.mark.parametrize("place", [6, 8, 14, 18, 22, 31], ids=["flags", "method", "crc", "compressed", "plain", "name"])
def test_a_header_that_disagrees_with_the_table(tmp_path: Path, place: int) -> None:
    change = 0x08 if place == 6 else 0x01
    wheel = patched(raw_wheel(tmp_path / NAME, PLAIN), lambda data: data.__setitem__(place, data[place] ^ change))
    both(wheel, "header")


def test_encrypted_members_and_foreign_methods(tmp_path: Path) -> None:
    def encrypt(data: bytearray) -> None:
        for place in (6, table(data) + 8):
            data[place] |= 1

    both(patched(raw_wheel(tmp_path / NAME, PLAIN), encrypt), "encrypted")
    both(raw_wheel(tmp_path / NAME, PLAIN, method=zipfile.ZIP_BZIP2), "method")
    both(raw_wheel(tmp_path / NAME, PLAIN, method=zipfile.ZIP_LZMA), "method")


class Unseekable(io.RawIOBase):
    """Makes zipfile write data descriptors."""

    def __init__(self, stream: io.BytesIO) -> None:
        self.stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self.stream.write(data)


def test_data_descriptors_are_read_and_not_copied(tmp_path: Path) -> None:
    wheel = tmp_path / NAME
    stream = io.BytesIO()
    rows = io.StringIO(newline="")
    csv.writer(rows, lineterminator="\n").writerows(
        [*(row(name, content) for name, content in PLAIN.items()), [f"{INFO}/RECORD", "", ""]]
    )
    with zipfile.ZipFile(Unseekable(stream), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**PLAIN, f"{INFO}/RECORD": rows.getvalue().encode()}.items():
            archive.writestr(name, content)
    assert b"PK\x07\x08" in stream.getvalue()
    wheel.write_bytes(stream.getvalue())
    assert check_wheel(wheel) == []
    add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=b"")])
    assert b"PK\x07\x08" not in wheel.read_bytes()
    assert check_wheel(wheel) == []
    wheel.write_bytes(stream.getvalue().replace(b"PK\x07\x08", b"PK\x07\x09", 1))
    both(wheel, "header")


@pytest.mark.parametrize("content", [b"", b"PK", b"not a zip" * 100, b"PK\x05\x06" + bytes(18), bytes(1000)])
def test_no_zip_at_all(tmp_path: Path, content: bytes) -> None:
    wheel = tmp_path / NAME
    wheel.write_bytes(content)
    assert check_wheel(wheel) != []
    with pytest.raises(VerificationError):
        add_files(wheel, [Entry(name=f"{FOLDER}/a.bin", source=b"")])
    assert wheel.read_bytes() == content


def test_missing_wheel(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        add_files(tmp_path / NAME, [Entry(name=f"{FOLDER}/a.bin", source=b"")])
    with pytest.raises(FileNotFoundError):
        check_wheel(tmp_path / NAME)


def test_too_many_members_and_too_large_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = raw_wheel(tmp_path / NAME, PLAIN)
    monkeypatch.setattr(archive_module, "MAX_MEMBERS", 3)
    both(wheel, "too-many")
    monkeypatch.setattr(archive_module, "MAX_TABLE", 100)
    both(wheel, "not-a-zip")


@given(st.data())
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_wheel_is_reported_or_reads_the_same(tmp_path: Path, data: st.DataObject) -> None:
    wheel = raw_wheel(tmp_path / NAME, PLAIN)
    right = members(wheel)
    content = bytearray(wheel.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        place = data.draw(st.integers(0, len(content) - 1))
        if kind == "flip":
            content[place] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del content[place : place + data.draw(st.integers(1, 40))]
        else:
            content[place:place] = data.draw(st.binary(min_size=1, max_size=40))
    wheel.write_bytes(bytes(content))
    if check_wheel(wheel) == []:
        assert members(wheel) == right


@pytest.mark.slow
def test_case_33_a_binary_above_four_gigabytes(tmp_path: Path) -> None:
    wheel = backend_wheel(tmp_path)
    source = tmp_path / "blob"
    with source.open("wb") as stream:
        stream.truncate(4_500_000_000)
        stream.seek(4_400_000_000)
        stream.write(b"end")
    digest = hashlib.sha256()
    with source.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    entries = [
        Entry(name=f"{FOLDER}/big.bin", source=source, digest=digest.hexdigest()),
        Entry(name=f"{FOLDER}/z.bin", source=b"after four gigabytes"),
    ]
    add_files(wheel, entries)
    assert check_wheel(wheel) == []
    add_files(wheel, [Entry(name=f"{FOLDER}/more.bin", source=b"the large member is copied")])
    assert check_wheel(wheel) == []
    target = tmp_path / "target"
    for tool in (["pip", "install", "--no-index"], ["uv", "pip", "install", "--offline"]):
        command = [sys.executable, "-m", *tool, "--no-deps", "--target", str(target), str(wheel)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        found = hashlib.sha256()
        with (target / FOLDER / "big.bin").open("rb") as stream:
            while chunk := stream.read(1 << 20):
                found.update(chunk)
        assert found.digest() == digest.digest()
        shutil.rmtree(target)


@pytest.mark.slow
def test_ten_times_less_wall_time_than_the_backend(tmp_path: Path) -> None:
    script = Path(__file__).parent / "benchmarks" / "bench_wheelfile.py"
    command = [sys.executable, str(script), "--folder", str(tmp_path), "--rounds", "3", "--json"]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environ, timeout=550).stdout
    result = json.loads(output)
    assert result["ours"]["peak_mib"] < 100
    assert result["ratios"]["least"] >= 10  # other work on the machine only ever adds time
