"""Key, result and record of the remote cache, without any server; and the URL and environment it is found by."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from remote_entries import make_entry

from hatch_epctx.digest import digest_bytes
from hatch_epctx.errors import ConfigError
from hatch_epctx.remote import open_remote
from hatch_epctx.remote.blobs import EMPTY, Blob, Receiver, Source, blob_of
from hatch_epctx.remote.endpoint import Endpoint, read_endpoint
from hatch_epctx.remote.entry import check_record, key_of, outputs_of, result_of
from hatch_epctx.remote.faults import RemoteError, Retry, answered
from hatch_epctx.remote.proto import reapi_pb2 as pb

IDENTITY = "1f" * 32
KEY = "5e4a42e06990cb15b17ec666302bfda6b8bc4ec021ca7c59293231a2926cfc8a"
"""Golden: another key for the same identity empties every remote cache, and needs a new `entry.FORMAT`."""


def test_the_key_of_an_identity_never_changes() -> None:
    key = key_of(IDENTITY)
    assert (key.action.digest, key.action.size) == (KEY, 156)
    assert key_of(IDENTITY) == key
    assert key_of("2f" * 32).action != key.action


def test_the_key_refers_to_what_explains_it() -> None:
    key = key_of(IDENTITY)
    blobs = {digest_bytes(data): data for _, data in key.blobs}
    action = pb.Action.FromString(blobs[key.action.digest])
    command = pb.Command.FromString(blobs[action.command_digest.hash])
    root = pb.Directory.FromString(blobs[action.input_root_digest.hash])
    assert list(command.arguments) == ["epctx", "epctx-remote/1", IDENTITY]
    assert blobs[root.files[0].digest.hash] == f"{IDENTITY}\n".encode()


@pytest.mark.parametrize("identity", ["", "1f", "1F" * 32, "../" + "0" * 61])
def test_only_an_identity_has_a_key(identity: str) -> None:
    with pytest.raises(ValueError, match="64 lower-case"):
        key_of(identity)


def test_a_result_lists_what_was_made_in_one_order(tmp_path: Path) -> None:
    from hatch_epctx.remote.entry import Artifact

    entry = make_entry(tmp_path, {"b.bin": 3, "a.onnx": 4})
    artifacts = [Artifact(*item) for item in entry.artifacts]
    result = result_of(entry.record, artifacts)
    assert result == result_of(entry.record, artifacts[::-1])
    assert [output.path for output in result.output_files] == ["a.onnx", "b.bin", "epctx-record.json"]
    outputs = outputs_of(result, max_size=7)
    assert outputs.record == blob_of(entry.record)
    check_record(entry.record, entry.identity, outputs.artifacts)
    with pytest.raises(RemoteError, match="oversized entry"):
        outputs_of(result, max_size=6)


def changed(record: bytes, **values: Any) -> bytes:
    return json.dumps(json.loads(record) | values).encode()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"identity": "0" * 64}, "another identity"),
        ({"document": {"format": "epctx/1"}}, "another identity"),
        ({"document": None}, "without an identity document"),
        ({"document": {"n": 1 << 60}}, "no JSON of ours"),
        ({"artifacts": None}, "without a list"),
        ({"artifacts": [1]}, "without a list"),
        ({"artifacts": [{"path": "a.onnx"}]}, "without a list"),
        ({"artifacts": [{"path": "a.onnx", "digest": [], "size": {}}]}, "other artifacts"),
        ({"artifacts": []}, "other artifacts"),
    ],
)
def test_a_record_is_checked(tmp_path: Path, values: dict[str, Any], says: str) -> None:
    entry = make_entry(tmp_path, {"a.onnx": 4})
    listed = [(name, Blob(digest, size)) for name, _, digest, size in entry.artifacts]
    check_record(entry.record, entry.identity, listed)
    with pytest.raises(RemoteError, match=says):
        check_record(changed(entry.record, **values), entry.identity, listed)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"a": 1, "a": 2}', b"[" * 10**5, b"nan", b"null"])
def test_a_record_that_is_no_record(data: bytes) -> None:
    with pytest.raises(RemoteError) as caught:
        check_record(data, IDENTITY, [])
    assert caught.value.reason == "corrupt"


def test_a_receiver_starts_again_from_its_first_byte(tmp_path: Path) -> None:
    receiver = Receiver("x", blob_of(b"abcdef"), tmp_path / "x", threading.Event())
    receiver.feed(b"xyz")
    receiver.restart()
    receiver.feed(b"abc")
    receiver.feed(b"def")
    receiver.finish()
    assert (tmp_path / "x").read_bytes() == b"abcdef"
    if sys.platform != "win32":
        assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600


def test_an_empty_blob_is_a_file_too(tmp_path: Path) -> None:
    receiver = Receiver("x", EMPTY, tmp_path / "x", threading.Event())
    receiver.finish()
    assert (tmp_path / "x").read_bytes() == b""


@pytest.mark.parametrize("change", ["flipped", "shorter", "longer"])
def test_a_source_keeps_its_last_piece_until_all_is_right(tmp_path: Path, change: str) -> None:
    data = bytes(range(256)) * (3 << 12)
    path = tmp_path / "x"
    path.write_bytes({"flipped": b"!" + data[1:], "shorter": data[:-1], "longer": data + b"!"}[change])
    sent = []
    with pytest.raises(RemoteError, match="no longer"):
        sent.extend(Source(name="x", blob=blob_of(data), path=path).chunks())
    assert sum(map(len, sent)) < len(data)


def test_retries_end() -> None:
    calls = []

    def attempt() -> None:
        calls.append(1)
        raise RemoteError("no", reason="unreachable", transient=len(calls) < 9)

    with pytest.raises(RemoteError):
        Retry(attempts=3, first=0.001).run(attempt, stop=threading.Event())
    assert len(calls) == 3
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(RemoteError):
        Retry(attempts=3, first=60).run(attempt, stop=stopped)
    assert len(calls) == 4


def test_a_servers_words_are_made_fit_to_show() -> None:
    assert answered("a\r\n b\x1b[1m\x00") == "a b?[1m?"
    assert len(answered("x" * 1000)) == 200


WHERE = "tool.epctx.cache.remote"


@pytest.mark.parametrize(
    ("url", "scheme", "host", "port", "path", "name"),
    [
        ("grpc://cache.example:8980", "grpc", "cache.example", 8980, "", "grpc://cache.example:8980"),
        ("grpc://[::1]:8980/main/", "grpc", "::1", 8980, "main", "grpc://[::1]:8980/main"),
        ("grpcs://cache.example/a/b%20c", "grpcs", "cache.example", 443, "a/b c", "grpcs://cache.example:443/a/b c"),
        ("HTTPS://Cache.Example/x", "https", "cache.example", 443, "x", "https://cache.example:443/x"),
        ("http://127.0.0.1", "http", "127.0.0.1", 80, "", "http://127.0.0.1:80"),
    ],
)
def test_urls(url: str, scheme: str, host: str, port: int, path: str, name: str) -> None:
    endpoint = read_endpoint(url, {}, where=WHERE)
    assert endpoint == Endpoint(scheme=scheme, host=host, port=port, path=path)  # type: ignore[arg-type]
    assert endpoint.name == name


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "unknown scheme ''"),
        ("cache.example:8980", "unknown scheme"),
        ("gprc://cache.example:1", "Did you mean 'grpc'?"),
        ("grpc://cache.example", "names no port"),
        ("grpc://:8980", "names no host"),
        ("grpc://cache.example:99999", "no URL"),
        ("grpc://[::1:8980", "no URL"),
        ("https://user:secret@cache.example", "EPCTX_REMOTE_HEADER_AUTHORIZATION"),
        ("https://cache.example/?key=secret", "a query or a fragment"),
        ("http://cache.example/\u00e4", "printable ASCII"),
    ],
)
def test_urls_that_are_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_remote(url, mode="read-write", environ={}, warn=pytest.fail)
    assert says in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.where == WHERE


def test_the_environment(tmp_path: Path) -> None:
    pem = tmp_path / "x.pem"
    pem.write_text("")
    environ = {
        "EPCTX_REMOTE_HEADER_AUTHORIZATION": "Bearer x ",
        "EPCTX_REMOTE_HEADER_X_KEY": "1",
        "EPCTX_REMOTE_TLS_CA": str(pem),
        "EPCTX_REMOTE_TIMEOUT": "2.5",
        "EPCTX_REMOTE_RETRIES": "0",
        "EPCTX_REMOTE_CONNECTIONS": "2",
        "EPCTX_REMOTE_MAX_SIZE": "1000",
    }
    endpoint = read_endpoint("grpcs://cache.example", environ, where=WHERE)
    assert endpoint.headers == (("authorization", "Bearer x"), ("x-key", "1"))
    assert (endpoint.tls_ca, endpoint.timeout, endpoint.retries) == (pem, 2.5, 0)
    assert (endpoint.connections, endpoint.max_size) == (2, 1000)
    assert endpoint.transfer_time(10 << 20) == 12.5


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("EPCTX_REMOTE_TIMEOUT", "soon"),
        ("EPCTX_REMOTE_TIMEOUT", "0"),
        ("EPCTX_REMOTE_TIMEOUT", "nan"),
        ("EPCTX_REMOTE_CONNECTIONS", "0"),
        ("EPCTX_REMOTE_MAX_SIZE", "-1"),
        ("EPCTX_REMOTE_HEADER_", "x"),
        ("EPCTX_REMOTE_HEADER_A", "secret\r\nX-Other: 1"),
        ("EPCTX_REMOTE_HEADER_A_BIN", "secret"),
        ("EPCTX_REMOTE_TLS_CA", "/nowhere/ca.pem"),
    ],
)
def test_environments_that_are_refused(variable: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_endpoint("grpcs://cache.example", {variable: value}, where=WHERE)
    assert caught.value.where == variable
    assert "secret" not in str(caught.value)


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.pem").write_text("")
    with pytest.raises(ConfigError, match="without the other"):
        read_endpoint("https://cache.example", {"EPCTX_REMOTE_TLS_CERT": str(tmp_path / "c.pem")}, where=WHERE)


def test_the_generated_messages_are_those_of_the_proto_file() -> None:
    source = (Path(pb.__file__).parent / "reapi.proto").read_text()
    written = [
        (name, int(number))
        for name, number in re.findall(r"^\s+(?:repeated )?[\w.]+ (\w+) = (\d+);", source, re.MULTILINE)
    ]
    made: list[tuple[str, int]] = []

    def walk(messages: Any) -> None:
        for message in messages:
            made.extend((field.name, field.number) for field in message.fields)
            walk(message.nested_types)

    walk(pb.DESCRIPTOR.message_types_by_name.values())
    assert sorted(made) == sorted(written)


def run(code: str) -> str:
    root = str(Path(__file__).parent.parent)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_http_needs_no_grpc_and_grpc_without_its_library_says_what_to_install() -> None:
    code = """
import sys
sys.modules["grpc"] = None
from hatch_epctx.errors import ToolchainError
from hatch_epctx.remote import open_remote
assert "google.protobuf" not in sys.modules
open_remote("http://127.0.0.1:1", mode="read-only", environ={}, warn=print).close()
try:
    open_remote("grpc://127.0.0.1:1", mode="read-only", environ={}, warn=print)
except ToolchainError as error:
    print(error)
"""
    assert 'pip install "hatch-epctx[reapi]"' in run(code)


def test_our_messages_live_beside_onnx_and_somebody_elses_copy_of_the_api() -> None:
    """One process, one descriptor pool: a file of the API's own name must not collide with ours."""
    code = """
import onnx
from google.protobuf import descriptor_pb2, descriptor_pool
file = descriptor_pb2.FileDescriptorProto(
    name="build/bazel/remote/execution/v2/remote_execution.proto", package="build.bazel.remote.execution.v2"
)
file.message_type.add(name="Digest")
descriptor_pool.Default().Add(file)
from hatch_epctx.remote.proto import reapi_pb2
assert reapi_pb2.Digest(hash="x").SerializeToString() == bytes.fromhex("0a0178")
print("fine", len(onnx.ModelProto().SerializeToString()))
"""
    assert run(code) == "fine 0\n"
