"""Damaged and hostile stores: never used, rebuilt once, and no traceback."""

from __future__ import annotations

import copy
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from store_support import build, check, compile_into, identity_of, outputs, record_of

from hatch_epctx.store import Generation, Miss, Store, parse_marker
from hatch_epctx.store.records import Marker, marker_bytes

IDENTITY = identity_of("detector")
OTHER = identity_of("other")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "cache")
    compile_into(store, IDENTITY).close()
    compile_into(store, OTHER).close()
    return store


def artifact_of(store: Store, identity: str = IDENTITY, suffix: str = ".bin") -> Path:
    """A file of the selected generation, writable."""
    marker = parse_marker(store.layout.marker(identity).read_bytes(), identity)
    (path,) = (store.layout.generations / marker.generation).glob(f"*{suffix}")
    path.chmod(0o644)
    return path


def rebuilt_once(store: Store, reason: str) -> None:
    """Damage of `reason` is seen, repaired by one compile, and gone."""
    found = store.find(IDENTITY)
    assert isinstance(found, Miss), found
    assert found.reason == reason
    compiles: list[int] = []
    for _ in range(2):
        with build(Store(store.root), IDENTITY, on_compile=lambda: compiles.append(1)) as generation:
            assert generation.selected
            check(generation, IDENTITY)
    assert compiles == [1]
    with build(store, OTHER, on_compile=lambda: pytest.fail("the other identity was hit as well")) as other:
        check(other, OTHER)


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _swap_with_same_times(store: Store, path: Path) -> None:
    status = path.stat()
    other = artifact_of(store, OTHER)
    assert other.stat().st_size == status.st_size
    shutil.copyfile(other, path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("suffix", [".onnx", ".bin"])
@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_flipped_bit_is_seen(store: Store, suffix: str, at: int) -> None:
    path = artifact_of(store, suffix=suffix)
    status = path.stat()
    _flip(path, at)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    rebuilt_once(store, "modified-artifact")


@pytest.mark.parametrize("size", [0, 1, -1, +1])
def test_a_changed_length_is_seen(store: Store, size: int) -> None:
    path = artifact_of(store)
    data = path.read_bytes()
    path.write_bytes(data + b"x" if size == 1 else data[:size])
    rebuilt_once(store, "modified-artifact")


def test_another_generations_file_of_same_size_and_times_is_seen(store: Store) -> None:
    _swap_with_same_times(store, artifact_of(store))
    rebuilt_once(store, "modified-artifact")


@pytest.mark.parametrize("kind", ["link", "dangling", "device", "pipe", "folder", "socket"])
def test_what_is_no_file_is_refused_even_with_the_right_bytes(store: Store, tmp_path: Path, kind: str) -> None:
    path = artifact_of(store)
    if kind == "link":
        shutil.copyfile(path, tmp_path / "copy")
    path.unlink()
    if kind == "link":
        path.symlink_to(tmp_path / "copy")
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        _bind(path)
    rebuilt_once(store, "modified-artifact")


def _bind(path: Path) -> None:
    import socket

    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def test_a_missing_file_or_folder_is_seen(store: Store) -> None:
    path = artifact_of(store)
    path.unlink()
    rebuilt_once(store, "missing-artifact")
    shutil.rmtree(artifact_of(store).parent)
    rebuilt_once(store, "missing-generation")


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_generation_that_is_no_folder_is_refused(store: Store, tmp_path: Path, kind: str) -> None:
    folder = artifact_of(store).parent
    folder.rename(tmp_path / "moved")
    if kind == "link":
        folder.symlink_to(tmp_path / "moved")
    else:
        folder.write_bytes(b"")
    rebuilt_once(store, "missing-generation")


def test_an_extra_file_is_refused(store: Store) -> None:
    (artifact_of(store).parent / "planted.so").write_bytes(b"x")
    rebuilt_once(store, "unexpected-file")


def test_names_and_sizes_are_looked_at_without_verification_too(store: Store) -> None:
    path = artifact_of(store)
    _flip(path, 0)
    found = store.find(IDENTITY, verify=False)
    assert isinstance(found, Generation)
    found.close()
    path.write_bytes(b"short")
    assert isinstance(store.find(IDENTITY, verify=False), Miss)


def good_marker(identity: str = IDENTITY) -> dict[str, Any]:
    record = record_of(identity, outputs(identity))
    value: dict[str, Any] = json.loads(marker_bytes(Marker(generation="0" * 32, record=record)))
    return value


HOSTILE_NAMES = [
    "../../markers/x", "..", "/etc/passwd", "C:\\x", "\\\\server\\x", "a:stream", "CON", "a/b", "a\\b", "a\0",
    "x" * 300, "", ".", "model_ctx.onnx.", "MODEL_CTX.ONNX", 7, None, ["a"],
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_case_36_a_hostile_name_makes_the_marker_malformed(store: Store, name: object) -> None:
    value = json.loads(store.layout.marker(IDENTITY).read_text())
    value["artifacts"][-1]["path"] = name
    store.layout.marker(IDENTITY).write_text(json.dumps(value))
    rebuilt_once(store, "malformed-marker")


def _set(*places: str | int, to: object) -> Any:
    def change(value: Any) -> Any:
        value = copy.deepcopy(value)
        inner = value
        for place in places[:-1]:
            inner = inner[place]
        inner[places[-1]] = to
        return value

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda value: [value],
        lambda _: None,
        lambda value: {**value, "extra": 1},
        lambda value: {key: item for key, item in value.items() if key != "result"},
        _set("format", to="epctx-marker/2"),
        _set("identity", to=OTHER),
        _set("identity", to=None),
        _set("generation", to="../staging/x"),
        _set("generation", to="0" * 31),
        _set("generation", to=["0" * 32]),
        _set("document", to=[]),
        _set("result", to="x"),
        _set("artifacts", to=[]),
        _set("artifacts", to={}),
        _set("artifacts", to=[None]),
        _set("artifacts", 0, "size", to=-1),
        _set("artifacts", 0, "size", to=1.5),
        _set("artifacts", 0, "size", to=True),
        _set("artifacts", 0, "size", to=1 << 60),
        _set("artifacts", 0, "size", to="9"),
        _set("artifacts", 0, "digest", to="0" * 63),
        _set("artifacts", 0, "digest", to=None),
        _set("artifacts", 0, "role", to=""),
        _set("artifacts", 0, "more", to=1),
    ],
)
def test_a_marker_of_another_form_is_malformed(store: Store, change: Any) -> None:
    value = json.loads(store.layout.marker(IDENTITY).read_text())
    store.layout.marker(IDENTITY).write_text(json.dumps(change(value)))
    rebuilt_once(store, "malformed-marker")


GOOD = json.dumps(good_marker()).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"\0" * 4096, b"\xff\xfe", GOOD[:-1], GOOD + b"x", b"\xef\xbb\xbf" + GOOD,
        GOOD.decode().encode("utf-16"), b"[" * 200_000, GOOD.replace(b'"document": {', b'"document": {"a":1,"a":2,'),
        GOOD.replace(b'"document": {', b'"document": {"a":NaN,'),
        GOOD.replace(b'"document": {', b'"document": {"a":1e999,'),
        GOOD.replace(b'"document": {', b'"document": {"a":' + b"9" * 5000 + b","),
        GOOD.replace(b'"document": {', b'"document": {"a":' + b"[" * 70 + b"]" * 70 + b","),
        GOOD.replace(b'"document": {', b'"document": {"\\ud800":1,'), GOOD.replace(b'"format"', b'"format":0,"format"'),
    ],
)  # fmt: skip
def test_a_marker_that_is_no_strict_json_is_malformed(store: Store, data: bytes) -> None:
    assert data != GOOD
    store.layout.marker(IDENTITY).write_bytes(data)
    rebuilt_once(store, "malformed-marker")


def test_another_identitys_marker_is_malformed(store: Store) -> None:
    shutil.copyfile(store.layout.marker(OTHER), store.layout.marker(IDENTITY))
    rebuilt_once(store, "malformed-marker")


def test_a_marker_that_is_huge_is_not_read(store: Store) -> None:
    with open(store.layout.marker(IDENTITY), "r+b") as stream:
        stream.truncate(1 << 40)
    rebuilt_once(store, "unreadable-marker")


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder"])
def test_a_marker_that_is_no_file_is_not_read(store: Store, tmp_path: Path, kind: str) -> None:
    marker = store.layout.marker(IDENTITY)
    marker.rename(tmp_path / "marker")
    if kind == "link":
        marker.symlink_to(tmp_path / "marker")
    elif kind == "dangling":
        marker.symlink_to(tmp_path / "nowhere")
    elif kind == "pipe":
        os.mkfifo(marker)
    else:
        (marker / "full").mkdir(parents=True)
    rebuilt_once(store, "unreadable-marker")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A marker in which one value somewhere was replaced, removed or doubled."""
    value: Any = good_marker()
    inner = value
    while True:
        key = draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
        if not isinstance(inner[key], dict | list) or not inner[key] or draw(st.booleans()):
            break
        inner = inner[key]
    if draw(st.booleans()):
        inner[key] = draw(JSON)
    else:
        del inner[key]
    return json.dumps(value).encode("utf-8", "surrogatepass")


@given(mutated() | st.binary(max_size=200) | st.builds(lambda at, byte: GOOD[:at] + bytes([byte]) + GOOD[at + 1 :],
       st.integers(0, len(GOOD) - 1), st.integers(0, 255)))  # fmt: skip
@example(GOOD)
def test_any_bytes_are_a_marker_or_a_value_error(data: bytes) -> None:
    try:
        marker = parse_marker(data, IDENTITY)
    except ValueError:
        return
    assert marker.record.identity == IDENTITY
    assert parse_marker(marker_bytes(marker), IDENTITY) == marker
    for artifact in marker.record.artifacts:
        assert Path(artifact.path).name == artifact.path
