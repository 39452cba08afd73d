"""One attacker, every reader: names that lead elsewhere, bombs, huge counts. A bounded, clear refusal each time.

What a reader refuses in detail stands with its own tests; here every reader meets the same list, so that a name which
one of them refuses does not slip through another.
"""

from __future__ import annotations

import json
import os
import time
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
import support
from fuzz.readers import IDENTITY
from fuzz.seeds import manifest as manifest_seeds
from fuzz.seeds import marker as marker_seeds
from fuzz.seeds import references as reference_seeds
from fuzz.seeds import result as result_seeds
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from hatch_epctx.errors import VerificationError
from hatch_epctx.files import check_location, check_name, contained
from hatch_epctx.manifest import read_manifest
from hatch_epctx.process.results import read_result
from hatch_epctx.store.records import MARKER_LIMIT, parse_marker
from hatch_epctx.wheelfile.check import check_wheel
from hatch_epctx.worker import rewriting, scanning
from hatch_epctx.worker.failure import TaskError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = {
    "parent": "../x",
    "parent-inside": "a/../../x",
    "dots": "..",
    "dot": ".",
    "empty": "",
    "absolute": "/etc/passwd",
    "drive": "C:\\Windows\\x",
    "drive-relative": "C:x",
    "drive-slash": "C:/x",
    "unc": "\\\\server\\share\\x",
    "unc-slash": "//server/share/x",
    "device-path": "\\\\?\\C:\\x",
    "backslash": "a\\x",
    "stream": "x.bin:hidden",
    "reserved": "NUL",
    "reserved-extension": "aux.bin",
    "reserved-digit": "COM¹.bin",
    "trailing-dot": "x.bin.",
    "trailing-space": "x.bin ",
    "nul": "x\0.bin",
    "newline": "x\n.bin",
    "escape": "\x1b]0;x\x07.bin",
    "wildcard": "x*.bin",
    "long": "x" * 256,
    "huge": "x" * 1_000_000,
    "decomposed": "e\u0301.bin",
    "surrogate": "\ud800.bin",
}
"""By what each is; none of them is a flat file name that is safe everywhere."""

OUTSIDE = {
    "parent", "parent-inside", "dots", "dot", "empty", "absolute", "drive", "drive-relative", "drive-slash", "unc",
    "unc-slash", "device-path", "backslash", "nul", "newline", "escape", "long", "huge", "surrogate",
}  # fmt: skip
"""Those that are no location inside a folder either; the rest is unwise on some system and named so in the wheel."""


def _marker(name: str) -> None:
    value = json.loads(marker_seeds()[0])
    value["artifacts"][0]["path"] = name
    parse_marker(json.dumps(value).encode(), IDENTITY)


def _manifest(*places: str | int) -> Callable[[str], None]:
    def read(name: str) -> None:
        value: Any = json.loads(manifest_seeds()[0])
        inner = value
        for place in places[:-1]:
            inner = inner[place]
        if places[-1] == "KEY":
            inner[name] = inner.pop(next(iter(inner)))
        else:
            inner[places[-1]] = name
        read_manifest(json.dumps(value).encode())

    return read


VARIANTS = ("components", "m", "variants")
VARIANT = (*VARIANTS, "t", "executor_info")


@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize(
    ("read", "refusal"),
    [
        (check_name, ValueError),
        (_marker, ValueError),
        (_manifest(*VARIANT, "epctx", "artifacts", 0, "path"), VerificationError),
        (_manifest(*VARIANT, "ort", "model_file"), VerificationError),
        (_manifest(*VARIANTS, "KEY"), VerificationError),
        (_manifest("components", "KEY"), VerificationError),
    ],
    ids=["name", "marker", "manifest-artifact", "manifest-model", "variant", "component"],
)
def test_case_36_no_reader_takes_a_hostile_name(
    kind: str, read: Callable[[str], None], refusal: type[Exception]
) -> None:
    with pytest.raises(refusal) as caught:
        read(NAMES[kind])
    assert len(str(caught.value)) < 2000
    assert "\x1b" not in str(caught.value)
    assert not contained(NAMES[kind])


@pytest.mark.parametrize("kind", NAMES)
def test_no_worker_names_a_hostile_artifact(tmp_path: Path, kind: str) -> None:
    value = json.loads(result_seeds()[2][1:])
    value["artifacts"][0]["path"] = NAMES[kind]
    (tmp_path / "result.json").write_text(json.dumps(value))
    with pytest.raises(ValueError):  # noqa: PT011  # whatever is wrong with it
        read_result(tmp_path / "result.json", "compile")


def _with_location(location: str) -> bytes:
    model = support.small_model(channels=1, size=2, weights="placeholder")
    model.graph.initializer[0].ClearField("raw_data")
    data = model.SerializeToString()
    raw = location.encode("utf-8", "surrogatepass")
    # By hand: protobuf's own setter refuses what is no Unicode, an attacker's editor does not.
    return _replaced(data, b"placeholder", raw)


def _replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    """A serialised ONNX model with one string replaced and all lengths around it right."""
    model = ModelProto()
    marker = ("q" * len(new)).encode() or b"q"
    model.ParseFromString(data)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.value == old.decode():
                entry.value = marker.decode() if new else ""
    return model.SerializeToString().replace(marker, new) if new else model.SerializeToString()


@pytest.mark.parametrize("kind", sorted(OUTSIDE))
def test_case_36_no_model_reads_external_data_outside_its_folder(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(_with_location(NAMES[kind]))
    with pytest.raises(TaskError) as caught:
        scanning.read_source(path)
    assert caught.value.reason in ("external-data-escape", "invalid-model")
    assert "\x1b" not in str(caught.value)
    with pytest.raises(ValueError):  # noqa: PT011  # the rule that all readers of locations share
        check_location(NAMES[kind])


@pytest.mark.parametrize("kind", sorted(OUTSIDE - {"empty"}))
def test_case_36_no_compiled_model_refers_outside_its_folder(tmp_path: Path, kind: str) -> None:
    job = tmp_path / "job"
    job.mkdir()
    outside = tmp_path / "x"
    outside.write_bytes(b"never touched")
    model = ModelProto()
    model.ParseFromString(reference_seeds()[0])
    (attribute,) = [item for item in model.graph.node[0].attribute if item.name == "ep_cache_context"]
    attribute.s = NAMES[kind].encode("utf-8", "surrogatepass")
    with pytest.raises(TaskError) as caught:
        rewriting.rename_references(model, rewriting.ContentNames(job))
    assert caught.value.reason == "invalid-output"
    assert outside.read_bytes() == b"never touched"
    assert not list(job.iterdir())


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe", "device"])
def test_case_36_no_compiled_model_refers_to_what_is_no_file(tmp_path: Path, kind: str) -> None:
    job = tmp_path / "job"
    job.mkdir()
    path = job / "a.bin"
    if kind == "link":
        (tmp_path / "outside").write_bytes(b"secret")
        path.symlink_to(tmp_path / "outside")
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    model = ModelProto()
    model.ParseFromString(reference_seeds()[0])
    with pytest.raises(TaskError, match=r"regular file|not there"):
        rewriting.rename_references(model, rewriting.ContentNames(job))


@pytest.mark.parametrize(
    ("location", "normal"), [("a/../b", "b"), ("./b", "b"), ("a/./b", "a/b"), ("a//b", "a/b"), ("a/b/../../c", "c")]
)
def test_case_36_a_contained_location_with_dots_means_the_same_file_to_everybody(
    tmp_path: Path, location: str, normal: str
) -> None:
    """Read as text, before any link is followed; a flat name it is not."""
    assert check_location(location).as_posix() == normal
    assert not contained(location)
    path = tmp_path / "model.onnx"
    path.write_bytes(_with_location(location))
    source = scanning.read_source(path)
    assert source.facts["external_data"] == [normal]
    assert rewriting.normalise_locations(source.model)
    (entry,) = [item for item in source.model.graph.initializer[0].external_data if item.key == "location"]
    assert entry.value == normal
    (tmp_path / normal).parent.mkdir(exist_ok=True)
    (tmp_path / normal).write_bytes(b"weights")
    names = rewriting.ContentNames(tmp_path)
    assert names.name(location, "weights") is names.name(normal, "weights")


@pytest.mark.parametrize("kind", sorted(NAMES.keys() - {"empty", "surrogate", "nul", "huge"}))
def test_no_wheel_holds_a_hostile_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "acme_vision-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo("placeholder")
        info.filename = NAMES[kind]
        archive.writestr(info, b"x")
    assert check_wheel(path)


def quickly(read: Callable[[bytes], object], data: bytes, refusal: type[Exception]) -> str:
    """A refusal within a few seconds; its message is short."""
    start = time.monotonic()
    with pytest.raises(refusal) as caught:
        read(data)
    assert time.monotonic() - start < 20  # far below a second where nothing else runs
    assert len(str(caught.value)) < 500
    return str(caught.value)


BOMBS = {
    "lists": b"[" + b"[]," * 1_300_000 + b"[]]",
    "numbers": b"[" + b"1," * 2_000_000 + b"1]",
    "keys": b"{" + b",".join(b'"%x":0' % number for number in range(400_000)) + b"}",
    "deep": b"[" * 2_000_000 + b"]" * 2_000_000,
    "deep-objects": b'{"a":' * 500_000 + b"1" + b"}" * 500_000,
    "digits": b"9" * 4_000_000,
    "fraction": b"0." + b"1" * 4_000_000,
    "string": b'"' + b"x" * 4_000_000 + b'"',
    "escapes": b'"' + b"\\u0041" * 600_000 + b'"',
    "spaces": b" " * 4_000_000 + b"x",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_text_that_is_meant_to_exhaust_is_refused_in_time(kind: str) -> None:
    assert len(BOMBS[kind]) <= MARKER_LIMIT
    quickly(lambda data: parse_marker(data, IDENTITY), BOMBS[kind], ValueError)
    quickly(read_manifest, BOMBS[kind] * (4 if kind == "spaces" else 1), VerificationError)


def test_counts_that_are_too_large_are_refused() -> None:
    value = json.loads(marker_seeds()[0])
    value["artifacts"] = [{**value["artifacts"][0], "path": f"{number}.bin"} for number in range(5000)]
    text = quickly(lambda data: parse_marker(data, IDENTITY), json.dumps(value).encode(), ValueError)
    assert "4096" in text
    assert "at most 16777216" in quickly(read_manifest, b" " * ((16 << 20) + 1), VerificationError)


def test_a_graph_that_is_too_deep_is_no_model(tmp_path: Path) -> None:
    """Graphs in attributes of nodes in graphs: protobuf stops at a depth of its own."""
    inner = b""
    for _ in range(400):
        node = b"\x2a" + _length(b"\x32" + _length(inner))  # NodeProto.attribute { g: GraphProto }
        inner = b"\x0a" + _length(node)  # GraphProto.node
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x3a" + _length(inner) + b"\x42\x02\x10\x11")
    with pytest.raises(TaskError) as caught:
        scanning.read_source(path)
    assert caught.value.reason == "invalid-model"


def _length(data: bytes) -> bytes:
    size, head = len(data), bytearray()
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + data


def test_a_model_of_many_small_things_is_read_in_time(tmp_path: Path) -> None:
    nodes = b"".join(b"\x0a" + _length(b"\x22\x02Id") for _ in range(200_000))
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x3a" + _length(nodes) + b"\x42\x02\x10\x11")
    start = time.monotonic()
    assert scanning.read_source(path).facts["nodes"] == 200_000
    assert time.monotonic() - start < 60


def test_a_wheel_that_unpacks_to_more_than_it_says_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "acme_vision-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("acme_vision-1.0.dist-info/RECORD", b"x")
        archive.writestr("bomb", bytes(64 << 20))
    data = bytearray(path.read_bytes())
    (declared,) = {(64 << 20).to_bytes(4, "little")}
    for at in _all(data, declared):
        data[at : at + 4] = (10).to_bytes(4, "little")
    path.write_bytes(data)
    start = time.monotonic()
    assert check_wheel(path)
    assert check_wheel(path, max_content=1)
    assert time.monotonic() - start < 20


def _all(data: bytes, part: bytes) -> list[int]:
    found, at = [], data.find(part)
    while at >= 0:
        found.append(at)
        at = data.find(part, at + 1)
    return found


PARTS = st.lists(st.sampled_from(["..", ".", "a", "", "C:", "\\", "nul", " "]), max_size=6).map("/".join)


@given(st.text(max_size=40) | PARTS)
def test_a_location_that_passes_stays_inside(text: str) -> None:
    try:
        normal = check_location(text)
    except ValueError:
        return
    assert ".." not in normal.parts
    assert not normal.is_absolute()
    assert check_location(normal.as_posix()) == normal
    if contained(text):
        assert normal.as_posix() == text
