"""The remote cache against a gRPC server that misbehaves in ways to which the real ones cannot be brought."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from reapi_server import Script, free_port
from remote_entries import HASTY, KIB, MIB, TYPICAL, Entry, Machine, make_entry

from hatch_epctx.remote import zstd
from hatch_epctx.remote.entry import RECORD_NAME, key_of
from hatch_epctx.remote.proto import reapi_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.reapi

BIN = next(name for name in TYPICAL if name.endswith(".bin"))
ONNX = next(name for name in TYPICAL if name.endswith(".onnx"))


@pytest.fixture
def script() -> Iterator[Script]:
    with Script() as server:
        yield server


@pytest.fixture
def entry(tmp_path: Path) -> Entry:
    return make_entry(tmp_path / "compiled", TYPICAL)


def failing(code: grpc.StatusCode, times: int = 10**9) -> Callable[[Any, Any], None]:
    """A fault that aborts so many calls with a status, then lets them through."""
    left = [times]

    def fault(request: Any, context: grpc.ServicerContext) -> None:
        if left[0]:
            left[0] -= 1
            context.abort(code, "scripted")

    return fault


def result_with(entry: Entry, **changes: Any) -> pb.ActionResult:
    """A result whose context binary is listed otherwise than pushed."""
    digest = next(digest for name, _, digest, _ in entry.artifacts if name == BIN)
    output = pb.OutputFile(path=BIN, digest=pb.Digest(hash=digest, size_bytes=len(entry.data[BIN])))
    for field, value in changes.items():
        if field in ("hash", "size_bytes"):
            setattr(output.digest, field, value)
        else:
            setattr(output, field, value)
    return pb.ActionResult(output_files=[output])


def stored(script: Script, entry: Entry) -> pb.ActionResult:
    return pb.ActionResult.FromString(script.results[key_of(entry.identity).action.digest])


@pytest.mark.parametrize("method", ["GetCapabilities", "GetActionResult", "BatchReadBlobs", "Read"])
@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED])
def test_passing_trouble_is_tried_again(
    script: Script, entry: Entry, tmp_path: Path, method: str, code: grpc.StatusCode
) -> None:
    with Machine(script.url, tmp_path / "a") as machine:
        machine.push(entry)
    script.faults[method] = failing(code, 2)
    with Machine(script.url, tmp_path / "b") as machine:
        assert entry.same(machine.fetch(entry)), machine.warnings
        assert machine.remote.round_trips[method] == 3
        assert machine.warnings == []


@pytest.mark.parametrize("method", ["FindMissingBlobs", "BatchUpdateBlobs", "Write", "UpdateActionResult"])
def test_passing_trouble_of_a_push_is_tried_again(script: Script, entry: Entry, tmp_path: Path, method: str) -> None:
    script.faults[method] = failing(grpc.StatusCode.UNAVAILABLE, 2)
    with Machine(script.url, tmp_path / "a") as machine:
        machine.push(entry)
        assert machine.warnings == []
        assert machine.remote.round_trips[method] == 3
        assert entry.same(machine.fetch(entry))


def test_trouble_of_one_blob_in_a_batch_is_tried_again(script: Script, entry: Entry, tmp_path: Path) -> None:
    left = [1]

    def once(request: Any, context: Any) -> Any:
        if left.pop():
            left.append(0)
            answer = script.batch_read_blobs(request)
            answer.responses[0].status.code = 14
            answer.responses[0].data = b""
            return answer
        left.append(0)
        return None

    with Machine(script.url, tmp_path / "a") as machine:
        machine.push(entry)
        script.faults["BatchReadBlobs"] = once
        assert entry.same(machine.fetch(entry)), machine.warnings
        assert machine.warnings == []


@pytest.mark.parametrize("method", ["GetCapabilities", "GetActionResult", "BatchReadBlobs", "Read"])
@pytest.mark.parametrize(
    ("code", "warnings", "active"),
    [
        (grpc.StatusCode.UNAVAILABLE, 1, False),
        (grpc.StatusCode.UNAUTHENTICATED, 1, False),
        (grpc.StatusCode.PERMISSION_DENIED, 1, False),
        (grpc.StatusCode.INTERNAL, 3, False),
    ],
)
def test_lasting_trouble_is_bounded(
    script: Script, entry: Entry, tmp_path: Path, method: str, code: grpc.StatusCode, warnings: int, active: bool
) -> None:
    with Machine(script.url, tmp_path / "a") as machine:
        machine.push(entry)
    script.faults[method] = failing(code)
    with Machine(script.url, tmp_path / "b", environ=HASTY) as machine:
        for _ in range(5):
            assert machine.fetch(entry) is None
        assert len(machine.warnings) == warnings, machine.warnings
        assert code.name in machine.warnings[0]
        assert machine.remote.active is active


@pytest.mark.parametrize("method", ["FindMissingBlobs", "BatchUpdateBlobs", "Write", "UpdateActionResult"])
@pytest.mark.parametrize(
    ("code", "warnings", "active"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, 1, True),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 1, True),
        (grpc.StatusCode.INTERNAL, 3, True),
        (grpc.StatusCode.FAILED_PRECONDITION, 3, True),
        (grpc.StatusCode.UNAVAILABLE, 1, False),
    ],
)
def test_lasting_trouble_of_a_push_is_bounded_and_reading_goes_on(
    script: Script, entry: Entry, tmp_path: Path, method: str, code: grpc.StatusCode, warnings: int, active: bool
) -> None:
    script.faults[method] = failing(code)
    with Machine(script.url, tmp_path / "a", environ=HASTY) as machine:
        for _ in range(5):
            machine.push(entry)
        assert len(machine.warnings) == warnings, machine.warnings
        assert machine.remote.active is active
        assert not script.results


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"path": "../escape.bin"}, "unsafe name"),
        ({"path": "sub/file.bin"}, "unsafe name"),
        ({"path": "/etc/passwd"}, "unsafe name"),
        ({"path": "C:evil.bin"}, "unsafe name"),
        ({"path": "nul"}, "unsafe name"),
        ({"path": ""}, "unsafe name"),
        ({"path": ONNX.upper()}, "twice"),
        ({"path": RECORD_NAME}, "twice"),
        ({"path": "other.bin"}, "other artifacts"),
        ({"hash": "abc"}, "without a SHA-256"),
        ({"hash": "A" * 64}, "without a SHA-256"),
        ({"size_bytes": -1}, "without a SHA-256"),
        ({"size_bytes": 6 * MIB - 1}, "oversized"),
        ({"size_bytes": 6 * MIB + 1}, "truncated"),
        ({"size_bytes": 1 << 45}, "oversized entry"),
    ],
)
def test_results_that_lie_are_a_miss(
    script: Script, entry: Entry, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    with Machine(script.url, tmp_path / "a") as machine:
        machine.push(entry)
        result = stored(script, entry)
        kept = [output for output in result.output_files if output.path != BIN]
        lie = result_with(entry, **change)
        lie.output_files.extend(kept)
        script.results[key_of(entry.identity).action.digest] = lie.SerializeToString()
        assert machine.fetch(entry) is None
        assert len(machine.warnings) == 1
        assert says in machine.warnings[0]
        assert machine.remote.active
    assert not (tmp_path / "escape.bin").exists()


def set_links(result: pb.ActionResult) -> None:
    result.output_symlinks.add(path="link", target="/etc/passwd")


def set_folder(result: pb.ActionResult) -> None:
    result.output_directories.add(path="folder")


def set_many(result: pb.ActionResult) -> None:
    for index in range(5000):
        result.output_files.add(path=f"f{index}", digest=pb.Digest(hash="0" * 64, size_bytes=1))


@pytest.mark.parametrize(("change", "says"), [(set_links, "links"), (set_folder, "folders"), (set_many, "5003 files")])
def test_results_of_another_shape_are_a_miss(
    script: Script, entry: Entry, tmp_path: Path, change: Callable[[pb.ActionResult], None], says: str
) -> None:
    with Machine(script.url, tmp_path / "a") as machine:
        machine.push(entry)
        result = stored(script, entry)
        del result.output_files[0]
        del result.output_files[0]
        change(result)
        result.output_files.extend(stored(script, entry).output_files[:2])
        script.results[key_of(entry.identity).action.digest] = result.SerializeToString()
        assert machine.fetch(entry) is None
        assert says in machine.warnings[0]


def garbage(request: Any, context: Any) -> bytes:
    return b"\xff\xff\xff"


def unasked(request: Any, context: Any) -> Any:
    return pb.BatchReadBlobsResponse(responses=[{"digest": {"hash": "0" * 64, "size_bytes": 1}, "data": b"x"}])


def nothing(request: Any, context: Any) -> Any:
    return pb.BatchReadBlobsResponse()


def packed_unasked(request: Any, context: Any) -> Any:
    parts = [{"digest": digest, "data": b"x", "compressor": pb.Compressor.ZSTD} for digest in request.digests]
    return pb.BatchReadBlobsResponse(responses=parts)


def giant(request: Any, context: Any) -> Any:
    return pb.BatchReadBlobsResponse(responses=[{"digest": request.digests[0], "data": bytes(8 * MIB)}])


def longer(request: Any, context: Any) -> Any:
    parts = [{"digest": digest, "data": bytes(digest.size_bytes + 1)} for digest in request.digests]
    return pb.BatchReadBlobsResponse(responses=parts)


def gone(request: Any, context: Any) -> Any:
    parts = [{"digest": digest, "status": {"code": 5}} for digest in request.digests]
    return pb.BatchReadBlobsResponse(responses=parts)


@pytest.mark.parametrize(
    ("method", "fault", "says"),
    [
        ("GetActionResult", garbage, "malformed answer to GetActionResult"),
        ("BatchReadBlobs", garbage, "malformed answer to BatchReadBlobs"),
        ("BatchReadBlobs", unasked, "was not asked for"),
        ("BatchReadBlobs", nothing, "left out"),
        ("BatchReadBlobs", packed_unasked, "compression that was not asked for"),
        ("BatchReadBlobs", giant, "oversized answer"),
        ("BatchReadBlobs", longer, "is oversized"),
        ("BatchReadBlobs", gone, "is missing"),
        ("Read", lambda request, context: iter([b"\xff\xff"]), "malformed answer to Read"),
        ("Read", lambda request, context: iter([]), f"{BIN} is truncated: 0 of"),
        ("Read", lambda request, context: (pb.ReadResponse(data=bytes(MIB)) for _ in range(10**6)), "is oversized"),
        ("Read", failing(grpc.StatusCode.NOT_FOUND), f"{BIN} is missing"),
    ],
)
def test_answers_that_are_wrong_are_a_miss(
    script: Script, entry: Entry, tmp_path: Path, method: str, fault: Callable[[Any, Any], Any], says: str
) -> None:
    with Machine(script.url, tmp_path / "a") as machine:
        machine.push(entry)
        script.faults[method] = fault
        assert machine.fetch(entry) is None
        assert len(machine.warnings) == 1
        assert says in machine.warnings[0], machine.warnings
        assert machine.remote.active
        del script.faults[method]
        assert entry.same(machine.fetch(entry))


def test_a_record_sent_along_saves_a_blob_and_is_checked_all_the_same(
    script: Script, entry: Entry, tmp_path: Path
) -> None:
    def inline(contents: bytes) -> Callable[[Any, Any], Any]:
        def fault(request: Any, context: Any) -> Any:
            assert list(request.inline_output_files) == [RECORD_NAME]
            result = pb.ActionResult.FromString(script.results[request.action_digest.hash])
            for output in result.output_files:
                if output.path == RECORD_NAME:
                    output.contents = contents
            return result

        return fault

    only_big = make_entry(tmp_path / "big", {"x.bin": 5 * MIB}, seed=3)
    with Machine(script.url, tmp_path / "a") as machine:
        machine.push(only_big)
        script.faults["GetActionResult"] = inline(only_big.record)
        assert machine.trips(only_big) == {"GetActionResult": 1, "Read": 1}
        script.faults["GetActionResult"] = inline(only_big.record[:-1] + b" ")
        assert machine.fetch(only_big) is None
        assert f"{RECORD_NAME} is poisoned" in machine.warnings[0]


@pytest.mark.skipif(not zstd.available(), reason="no Zstandard library")
def test_zstandard_where_both_sides_have_it(entry: Entry, tmp_path: Path) -> None:
    squeezable = make_entry(tmp_path / "squeezable", {"a.onnx": MIB, "b.bin": 9 * MIB}, seed=7, squeezable=True)
    resources: list[str] = []
    with Script(zstd=True) as script, Machine(script.url, tmp_path / "a") as machine:

        def note(request: Any, context: Any) -> None:
            resources.append(request.resource_name)

        script.faults["Read"] = note
        for item in (entry, squeezable):
            machine.push(item)
            assert item.same(machine.fetch(item)), machine.warnings
        assert all(resource.startswith("compressed-blobs/zstd/") for resource in resources)
        assert machine.warnings == []


@pytest.mark.skipif(not zstd.available(), reason="no Zstandard library")
@pytest.mark.parametrize("kind", ["no zstd", "bomb", "cut", "trailing", "other bytes"])
def test_bad_compression_is_a_miss(entry: Entry, tmp_path: Path, kind: str) -> None:
    with Script(zstd=True) as script, Machine(script.url, tmp_path / "a") as machine:
        machine.push(entry)
        right = b"".join(zstd.compress([entry.data[BIN]]))
        data = {
            "no zstd": b"0123456789",
            "bomb": b"".join(zstd.compress(bytes(MIB) for _ in range(512))),
            "cut": right[:-10],
            "trailing": right + b"more",
            "other bytes": b"".join(zstd.compress([bytes(6 * MIB)])),
        }[kind]
        pieces = [pb.ReadResponse(data=data[start : start + MIB]) for start in range(0, len(data), MIB)]
        script.faults["Read"] = lambda request, context: iter(pieces)
        assert machine.fetch(entry) is None
        assert len(machine.warnings) == 1
        assert machine.remote.active


def test_a_servers_batch_limit_is_kept(tmp_path: Path) -> None:
    entry = make_entry(tmp_path / "compiled", {f"s{index}.bin": 20 * KIB for index in range(20)} | {"b.bin": 300 * KIB})
    with Script(batch=256 * KIB) as script:

        def check(request: Any, context: Any) -> None:
            assert request.ByteSize() <= 256 * KIB

        script.faults["BatchUpdateBlobs"] = check
        with Machine(script.url, tmp_path / "a") as machine:
            machine.push(entry)
            assert entry.same(machine.fetch(entry)), machine.warnings
            assert machine.remote.round_trips["Read"] == 1
            assert machine.remote.round_trips["BatchReadBlobs"] == 3


def test_a_blob_beyond_the_servers_limit_is_not_sent(entry: Entry, tmp_path: Path) -> None:
    with Script(blob_limit=MIB) as script, Machine(script.url, tmp_path / "a") as machine:
        machine.push(entry)
        assert f"{BIN} has {6 * MIB} bytes, and the cache takes {MIB}" in machine.warnings[0]
        assert script.blobs == {}


def test_a_cache_that_takes_no_results_is_read_only(entry: Entry, tmp_path: Path) -> None:
    with Script(update=False) as script, Machine(script.url, tmp_path / "a") as machine:
        machine.push(entry)
        machine.push(entry)
        assert len(machine.warnings) == 1
        assert "takes no results" in machine.warnings[0]
        assert machine.remote.active
        assert script.calls == ["GetCapabilities"]


@pytest.mark.parametrize(
    ("low", "high", "function", "says"),
    [(3, 4, 1, "version 3 to 4"), (1, 1, 1, "version 1 to 1"), (2, 2, 2, "SHA-256")],
)
def test_a_server_of_another_kind_is_left_alone(
    script: Script, entry: Entry, tmp_path: Path, low: int, high: int, function: int, says: str
) -> None:
    script.low, script.high, script.digest_function = low, high, function
    with Machine(script.url, tmp_path / "a") as machine:
        for _ in range(3):
            assert machine.fetch(entry) is None
            machine.push(entry)
        assert len(machine.warnings) == 1
        assert says in machine.warnings[0]


def test_metadata_of_every_call(script: Script, entry: Entry, tmp_path: Path) -> None:
    environ = {"EPCTX_REMOTE_HEADER_AUTHORIZATION": "Bearer secret", "EPCTX_REMOTE_HEADER_X_API_KEY": "k1"}
    with Machine(script.url, tmp_path / "a", environ=environ) as machine:
        machine.push(entry)
        assert entry.same(machine.fetch(entry))
    assert len(script.metadata) == 8
    for metadata in script.metadata:
        assert metadata["authorization"] == "Bearer secret"
        assert metadata["x-api-key"] == "k1"
        note = pb.RequestMetadata.FromString(metadata["build.bazel.remote.execution.v2.requestmetadata-bin"])
        assert note.tool_details.tool_name == "hatch-epctx"


def test_a_servers_words_stay_on_one_line(script: Script, entry: Entry, tmp_path: Path) -> None:
    def rude(request: Any, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.INTERNAL, "one\ntwo\x1b[31m" + "x" * 5000)

    script.faults["GetActionResult"] = rude
    with Machine(script.url, tmp_path / "a") as machine:
        assert machine.fetch(entry) is None
        assert len(machine.warnings[0]) < 400
        assert machine.warnings[0].isprintable()


def test_a_record_that_is_not_about_its_entry_is_not_pushed(script: Script, entry: Entry, tmp_path: Path) -> None:
    other = make_entry(tmp_path / "other", {"y.bin": 9}, seed=8)
    with Machine(script.url, tmp_path / "a") as machine:
        machine.remote.push(entry.identity, other.record, entry.artifacts)
        machine.remote.push(entry.identity, entry.record, other.artifacts)
        machine.remote.push(entry.identity, b"{}", entry.artifacts)
        assert len(machine.warnings) == 3
        assert script.calls == []


def test_files_that_are_there_already_are_neither_overwritten_nor_removed(
    script: Script, entry: Entry, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / ONNX).write_text("mine")
    with Machine(script.url, tmp_path / "a") as machine:
        machine.push(entry)
        assert machine.remote.fetch(entry.identity, folder) is None
        assert "could not be stored here" in machine.warnings[0]
    assert [path.name for path in folder.iterdir()] == [ONNX]
    assert (folder / ONNX).read_text() == "mine"


def test_a_full_disk_is_a_miss(script: Script, entry: Entry, tmp_path: Path) -> None:
    import resource

    with Machine(script.url, tmp_path / "a") as machine:
        machine.push(entry)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limit[1]))
        try:
            assert machine.fetch(entry) is None
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert len(machine.warnings) == 1
        assert "could not be stored here" in machine.warnings[0]
        assert entry.same(machine.fetch(entry))


def test_nothing_is_printed_and_children_start_while_a_channel_is_open(script: Script, tmp_path: Path) -> None:
    """gRPC's core writes to stderr and minds forks; a build starts workers beside an open or a dead cache."""
    code = f"""
import subprocess, sys
from pathlib import Path
from hatch_epctx.remote import open_remote
for port in ({script.port}, {free_port()}):
    warnings = []
    with open_remote(f"grpc://127.0.0.1:{{port}}", mode="read-only", environ={{}}, warn=warnings.append) as remote:
        assert remote.fetch("0" * 64, Path(".")) is None
        subprocess.run([sys.executable, "-c", "pass"], check=True, start_new_session=True)
        assert remote.fetch("1" * 64, Path(".")) is None
print("done", len(warnings))
"""
    root = Path(__file__).parent.parent
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    assert (run.stdout, run.stderr) == ("done 1\n", "")
