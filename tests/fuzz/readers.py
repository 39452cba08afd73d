"""What is fuzzed: every reader of bytes that others may have written, each with what must hold of whatever it accepts.

A reader either refuses with its own kind of error or gives something that is safe; nothing else may happen. Each
function takes the bytes of one execution.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from onnx import ModelProto

from hatch_epctx.collect.roots import parse_root
from hatch_epctx.errors import LookupFailure, VerificationError
from hatch_epctx.files import check_location, contained, parse_json
from hatch_epctx.lockfile import parse_lock, write_lock
from hatch_epctx.manifest import MANIFEST_NAME, read_manifest, write_manifest
from hatch_epctx.process.results import read_result
from hatch_epctx.remote.entry import check_record, outputs_of
from hatch_epctx.remote.faults import RemoteError
from hatch_epctx.remote.proto import reapi_pb2 as pb
from hatch_epctx.runtime.archives import archive_at, archives_in
from hatch_epctx.store.records import marker_bytes, parse_marker
from hatch_epctx.wheelfile.check import check_wheel
from hatch_epctx.worker import rewriting, scanning, validating
from hatch_epctx.worker.describing import describe_model
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.protocol import FORMAT

if TYPE_CHECKING:
    from collections.abc import Callable

IDENTITY = "5" * 64
TASKS = ("scan", "probe", "compile", "source", "load", "inspect")


@cache
def folder() -> Path:
    """A private folder; it goes with this process, or with the one that named it."""
    given = os.environ.get("EPCTX_FUZZ_FOLDER")
    if given:  # a fuzzer ends without Python's exit
        return Path(given)
    made = Path(tempfile.mkdtemp(prefix="epctx-fuzz-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _file(data: bytes, name: str = "input") -> Path:
    path = folder() / name
    path.write_bytes(data)
    return path


def marker(data: bytes) -> None:
    """A store's marker."""
    try:
        found = parse_marker(data, IDENTITY)
    except ValueError:
        return
    assert found.record.identity == IDENTITY
    for artifact in found.record.artifacts:
        assert _flat(artifact.path)
        assert artifact.size >= 0
    again = parse_marker(marker_bytes(found), IDENTITY)
    assert again == found


def root(data: bytes) -> None:
    """A store's root."""
    try:
        found = parse_root(data)
    except ValueError:
        return
    assert bool(found.identity) != bool(found.follows)
    assert "/" not in found.file


def manifest(data: bytes) -> None:
    """The manifest of an installed package."""
    try:
        found = read_manifest(data)
    except VerificationError as error:
        _refused(error)
        return
    for component in found.components:
        assert _flat(component.name)
        for variant in component.variants:
            assert _flat(variant.name)
            assert _flat(variant.model_file)
            for artifact in variant.facts.artifacts if variant.facts else ():
                assert _flat(artifact.path)
    assert read_manifest(write_manifest(found)) == found


def result(data: bytes) -> None:
    """What a worker says that it did; the first byte chooses the task."""
    if not data:
        return
    task = TASKS[data[0] % len(TASKS)]
    try:
        found = read_result(_file(data[1:]), task)  # type: ignore[arg-type]
    except ValueError:
        return
    assert found["format"] == FORMAT
    for artifact in found.get("artifacts", []):
        assert _flat(artifact["path"])
    json.dumps(found, allow_nan=False)


def onnx(data: bytes) -> None:
    """A source model: its facts, where its external data lies, and its metadata as a compile puts it back."""
    path = _file(data)
    try:
        source = scanning.read_source(path)
    except TaskError as error:
        _refused(error)
        return
    for location in source.facts["external_data"]:
        assert check_location(location).as_posix() == location
        assert not location.startswith("/")
        assert ".." not in location.split("/")
    json.dumps(source.facts, allow_nan=False)
    rewriting.normalise_locations(source.model)
    compiled = ModelProto()
    for value in source.model.graph.input:
        compiled.graph.input.add(name=value.name)
    json.dumps(rewriting.restore_metadata(source.model, compiled), allow_nan=False)
    json.dumps(describe_model({"model": str(path)}), allow_nan=False)


def references(data: bytes) -> None:
    """A compiled model: its nodes are checked, and every file that it refers to is renamed in a folder of three."""
    try:
        model = scanning.parse(_file(data, "model_ctx.onnx"))
    except TaskError:
        return
    inside = folder() / "job"
    (inside / "deep").mkdir(parents=True, exist_ok=True)
    for name, content in (("a.bin", b"a"), ("deep/b.bin", b"b"), ("empty.bin", b"")):
        (inside / name).write_bytes(content)
    outside = folder() / "outside.bin"
    outside.write_bytes(b"never touched")
    names = rewriting.ContentNames(inside)
    try:
        validating.check_nodes(model, ("OpenVINOExecutionProvider",))
        validating.check_tensors(model)
        artifacts = rewriting.rename_references(model, names)
    except TaskError as error:
        _refused(error)
        artifacts = []
    for artifact in artifacts:
        assert _flat(artifact["path"])
        assert (inside / artifact["path"]).is_file()
    assert outside.read_bytes() == b"never touched"


def lock(data: bytes) -> None:
    """epctx.lock, which whoever commits may have edited; the damaged one as far as it goes, too."""
    with suppress(VerificationError):
        found = parse_lock(data)
        for variant in found.variants.values():
            assert all(_flat(artifact.path) for artifact in variant.artifacts)
        assert parse_lock(write_lock(found)) == found
    with suppress(VerificationError):
        parse_lock(data, lenient=True)


def entry(data: bytes) -> None:
    """What a remote cache says that it has: the result, and the record that it may bring along."""
    try:
        listed = outputs_of(pb.ActionResult.FromString(data), max_size=1 << 40)
    except (DecodeError, UnicodeDecodeError, RemoteError):
        return
    for name, blob in listed.artifacts:
        assert _flat(name)
        assert blob.size >= 0
    if listed.inline is not None:
        with suppress(RemoteError):
            check_record(listed.inline, IDENTITY, listed.artifacts)


def archive(data: bytes) -> None:
    """A zip file on the import path of an application, or given to the look-up."""
    path = _file(data, "app.zip")
    with suppress(LookupFailure, VerificationError):
        archives_in(path)
        found = archive_at(path)
        if found is not None:
            read_manifest(found.read(MANIFEST_NAME, 1 << 20))


def wheel(data: bytes) -> None:
    """A wheel of unknown origin."""
    path = _file(data, "acme_vision-1.0-py3-none-any.whl")
    check_wheel(path, max_content=1 << 20)


def strict_json(data: bytes) -> None:
    """The parser below all of them: what it accepts can be written and read again, and is what json reads."""
    try:
        value = parse_json(data)
    except ValueError:
        return
    assert parse_json(json.dumps(value, allow_nan=False).encode()) == value
    assert json.loads(data) == value


def _refused(error: Exception) -> None:
    """A refusal says why."""
    assert str(error)


def _flat(name: str) -> bool:
    return contained(name) and Path(name).name == name and name not in (".", "..")


READERS: dict[str, Callable[[bytes], None]] = {
    "marker": marker,
    "manifest": manifest,
    "onnx": onnx,
    "references": references,
    "root": root,
    "result": result,
    "wheel": wheel,
    "lock": lock,
    "entry": entry,
    "archive": archive,
    "json": strict_json,
}
