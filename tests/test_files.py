"""Names, strict reading, copies, atomic writes, removal."""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path, PurePosixPath

import pytest
import store_support as support
from hypothesis import given
from hypothesis import strategies as st

from hatch_epctx.digest import digest_bytes
from hatch_epctx.files import (
    FAULT_POINTS,
    atomic_write,
    check_location,
    check_name,
    contained,
    copy_and_digest,
    copy_file,
    fault_point,
    make_private_dir,
    open_regular,
    parse_json,
    publish_dir,
    read_bounded,
    remove_file,
    remove_tree,
)

GOOD_NAMES = ["model_ctx.onnx", "sha256-00ff.bin", "détecteur.onnx", "a b", ".hidden", "-x", "console.txt", "x" * 200]
BAD_NAMES = [
    "", ".", "..", "a/b", "/a", "a\\b", "..\\a", "C:a", "c:\\a", "\\\\server\\share", "a:stream", "a\0b", "a\nb",
    "a\x7f", "con", "CON.onnx", "nul .txt", "Aux", "com1", "COM¹.x", "lpt9.bin", "conin$", "a.", "a ", "a?", "a*",
    "a|b", "<a", "a>", '"', "x" * 201, "é" * 101, "e\u0301", "\ud800",
]  # fmt: skip


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_flat_names_are_accepted(name: str) -> None:
    assert check_name(name) == name
    assert contained(name)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_other_names_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValueError, match=r"^['\"]"):
        check_name(name)
    assert not contained(name)


@pytest.mark.parametrize("name", [None, 1, b"a", ["a"]])
def test_a_name_is_text(name: object) -> None:
    with pytest.raises(ValueError, match="is text"):
        check_name(name)
    assert not contained(name)


@pytest.mark.parametrize(
    ("location", "normal"),
    [
        ("weights.bin", "weights.bin"),
        ("a/b", "a/b"),
        ("./a//b", "a/b"),
        ("a/../b", "b"),
        ("a/b/../../c", "c"),
        ("onnx::MatMul_1", "onnx::MatMul_1"),
    ],
)
def test_locations_have_one_normal_form(location: str, normal: str) -> None:
    assert check_location(location) == PurePosixPath(normal)


@pytest.mark.parametrize(
    "location",
    [
        "", ".", "a/..", "..", "../a", "a/../../b", "/etc/passwd", "//server/share/a", "C:/a", "c:a", "./c:",
        "a/../c:b", "a\\b", "\\\\s\\a", "a\0", "a\nb", "x" * 256, "a/" * 513, "\ud800", None, 3,
    ],
)  # fmt: skip
def test_locations_that_lead_out_or_nowhere_are_refused(location: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the message differs with the reason
        check_location(location)


@given(st.lists(st.sampled_from(["..", ".", "", "a", "b", "c:", "\\", "x" * 10, "é"]), max_size=8).map("/".join))
def test_an_accepted_location_stays_inside_and_is_its_own_normal_form(location: str) -> None:
    try:
        normal = check_location(location)
    except ValueError:
        return
    assert ".." not in normal.parts
    assert not normal.is_absolute()
    assert check_location(str(normal)) == normal
    assert os.path.normpath(location) == str(normal)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[1,]", "{'a':1}", '{"a":1,"a":2}', '{"a":{"b":1,"b":1}}', "NaN", "[Infinity]", "-Infinity", "1e999",
        "-1e999", "1" * 21, "[" * 65 + "]" * 65, '{"a":' * 65 + "1" + "}" * 65, "[" * 100_000,
        '"\\ud800"', '{"\\udfff":1}', "1 2",
    ],
)  # fmt: skip
def test_json_is_read_strictly(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the message differs with the reason
        parse_json(text.encode())


@pytest.mark.parametrize(
    "data", [b"\xff", b"\xed\xa0\x80", '"é"'.encode("latin-1"), '"a"'.encode("utf-16"), b"\xef\xbb\xbf1"]
)
def test_json_is_utf_8_without_a_mark(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(data)


def test_json_within_the_limits_is_read() -> None:
    assert parse_json(b'{"a": [1, -2.5e3, "\\u00e9", true, null, 18446744073709551615]}') == {
        "a": [1, -2500.0, "é", True, None, 2**64 - 1]
    }
    assert parse_json(b"[" * 63 + b"]" * 63)


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    file, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    file.write_bytes(b"content")
    link.symlink_to(file)
    os.mkfifo(pipe)
    with open_regular(file) as stream:
        assert stream.read() == b"content"
    with open_regular(link, follow=True) as stream:
        assert stream.read() == b"content"
    for path, number in ((link, errno.ELOOP), (pipe, errno.EINVAL), (tmp_path, errno.EINVAL)):
        with pytest.raises(OSError) as caught:  # noqa: PT011
            open_regular(path)
        assert caught.value.errno == number
    for path in (pipe, Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match="regular"):
            open_regular(path, follow=True)


def test_reading_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_bounded(path, 100) == b"x" * 100
    with pytest.raises(OSError, match="more than 99") as caught:
        read_bounded(path, 99)
    assert caught.value.errno == errno.EFBIG


def test_a_copy_is_a_file_of_its_own(tmp_path: Path) -> None:
    source, link = tmp_path / "source", tmp_path / "link"
    source.write_bytes(b"abc" * 1_000_000)
    link.symlink_to(source)
    copy_file(link, tmp_path / "copy")
    digest, size = copy_and_digest(link, tmp_path / "copy2")
    assert (digest, size) == (digest_bytes(source.read_bytes()), 3_000_000)
    for name in ("copy", "copy2"):
        copy = tmp_path / name
        assert copy.read_bytes() == source.read_bytes()
        assert not copy.is_symlink()
        assert copy.stat().st_nlink == 1
        assert copy.stat().st_ino != source.stat().st_ino
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    (tmp_path / "copy").write_bytes(b"changed")
    assert source.read_bytes() == b"abc" * 1_000_000


def test_a_copy_never_replaces_and_a_failed_one_leaves_nothing(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"new")
    target.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        copy_file(source, target)
    assert target.read_bytes() == b"old"
    for bad in (tmp_path, tmp_path / "missing", Path("/dev/zero")):
        with pytest.raises(OSError):  # noqa: PT011
            copy_and_digest(bad, tmp_path / "fresh")
        assert not (tmp_path / "fresh").exists()


def test_a_copy_that_fills_the_disk_leaves_nothing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    import signal

    (tmp_path / "source").write_bytes(b"x" * 2_000_000)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        for copy in (copy_file, copy_and_digest):
            with pytest.raises(OSError):  # noqa: PT011
                copy(tmp_path / "source", tmp_path / "copy")
            assert not (tmp_path / "copy").exists()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_readers_of_an_atomic_write_see_old_or_new(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([65 + number]) * (1000 + number * 5000) for number in range(8)]
    atomic_write(path, contents[0])
    done = threading.Event()
    wrong: list[bytes] = []

    def read() -> None:
        while not done.is_set():
            if (data := path.read_bytes()) not in contents:
                wrong.append(data)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(300):
        atomic_write(path, contents[number % 8], durable=number % 50 == 0)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert [item.name for item in tmp_path.iterdir()] == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("fault", ["file-temp:ENOSPC", "file-temp:EIO", "file-replaced:EIO"])
def test_a_failed_atomic_write_leaves_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    path = tmp_path / "file"
    atomic_write(path, b"old")
    monkeypatch.setenv("EPCTX_TEST", "1")
    monkeypatch.setenv("EPCTX_TEST_FAULT", fault)
    with pytest.raises(OSError):  # noqa: PT011
        atomic_write(path, b"new")
    assert path.read_bytes() == (b"new" if "replaced" in fault else b"old")
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_published_folder_is_read_only_and_replaces_nothing(tmp_path: Path) -> None:
    staging, final = tmp_path / "staging", tmp_path / "final"
    staging.mkdir()
    (staging / "a").write_bytes(b"a")
    publish_dir(staging, final)
    assert not staging.exists()
    assert (final / "a").read_bytes() == b"a"
    assert stat.S_IMODE((final / "a").stat().st_mode) == 0o444
    staging.mkdir()
    for taken in (final, tmp_path / "empty"):
        taken.mkdir(exist_ok=True)
        with pytest.raises(FileExistsError):
            publish_dir(staging, taken)
    assert staging.is_dir()


def test_private_folders_are_private_and_never_links(tmp_path: Path) -> None:
    make_private_dir(tmp_path / "a" / "b")
    make_private_dir(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").write_bytes(b"")
    for name in ("link", "dangling", "file"):
        with pytest.raises(NotADirectoryError):
            make_private_dir(tmp_path / name)
    assert not (tmp_path / "nowhere").exists()


def test_removal_never_follows_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    tree = tmp_path / "tree"
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "er" / "link").symlink_to(outside)
    (tree / "file").write_bytes(b"x")
    (tree / "file").chmod(0o444)
    link = tmp_path / "link"
    link.symlink_to(outside)
    for path in (tree, link, tmp_path / "missing"):
        remove_tree(path)
        assert not os.path.lexists(path)
    remove_file(tmp_path / "missing")
    assert (outside / "precious").read_bytes() == b"x"


def test_closed_folders_are_removed_by_their_owner() -> None:
    with support.open_folder() as folder:
        assert support.unprivileged("remove", folder) == "ready\n"


def test_two_may_remove_one_tree(tmp_path: Path) -> None:
    for number in range(3000):
        if number % 100 == 0:
            (tmp_path / "tree" / str(number // 100)).mkdir(parents=True)
        (tmp_path / "tree" / str(number // 100) / str(number)).touch()
    threads = [threading.Thread(target=remove_tree, args=(tmp_path / "tree",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


def test_fault_points_do_nothing_unless_tests_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_TEST_FAULT", f"{FAULT_POINTS[0]}:ENOSPC")
    fault_point(FAULT_POINTS[0])
    fault_point("no such point")
    monkeypatch.setenv("EPCTX_TEST", "1")
    fault_point(FAULT_POINTS[1])
    with pytest.raises(OSError, match="No space"):
        fault_point(FAULT_POINTS[0])
    with pytest.raises(ValueError, match="unknown fault point"):
        fault_point("no such point")
    monkeypatch.setenv("EPCTX_TEST_FAULT", f"{FAULT_POINTS[0]}:explode")
    with pytest.raises(ValueError, match="unknown fault action"):
        fault_point(FAULT_POINTS[0])


def test_every_fault_point_stands_in_the_code_once_and_in_the_list() -> None:
    import re

    package = Path(support.REPOSITORY, "hatch_epctx")
    text = "\n".join(path.read_text() for path in package.rglob("*.py"))
    direct = re.findall(r'fault_point\("([a-z-]+)"\)', text)
    heads = {"file", *re.findall(r'point="([a-z-]+)"', text)}
    tails = re.findall(r'fault_point\(f"\{point\}-([a-z]+)"\)', text)
    found = direct + [f"{head}-{tail}" for head in heads for tail in tails]
    assert sorted(found) == sorted(FAULT_POINTS)
