"""The remote cache against nginx as Bazel's HTTP cache, as it is and with its files tampered with."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from reapi_server import Certificates, Nginx, Wire, free_port, silent_port
from remote_entries import HASTY, KIB, MIB, TYPICAL, Entry, Machine, make_entry

from hatch_epctx.digest import digest_bytes
from hatch_epctx.remote.entry import key_of
from hatch_epctx.remote.proto import reapi_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.reapi

ROOT = Path(__file__).parent.parent

BIN = next(name for name in TYPICAL if name.endswith(".bin"))
ONNX = next(name for name in TYPICAL if name.endswith(".onnx"))


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with Nginx(tmp_path_factory.mktemp("nginx")) as server:
        yield server


@pytest.fixture
def entry(tmp_path: Path, request: pytest.FixtureRequest) -> Entry:
    return make_entry(tmp_path / "compiled", TYPICAL, seed=abs(hash(request.node.nodeid)) % 10**9)


def blob(nginx: Nginx, entry: Entry, name: str) -> Path:
    return nginx.root / "cas" / next(digest for other, _, digest, _ in entry.artifacts if other == name)


def test_a_cold_machine_gets_what_another_pushed(nginx: Nginx, entry: Entry, tmp_path: Path) -> None:
    with Machine(nginx.url, tmp_path / "a") as first, Machine(nginx.url, tmp_path / "b", mode="read-only") as second:
        assert first.fetch(entry) is None
        first.push(entry)
        assert entry.same(second.fetch(entry))
        assert first.warnings == second.warnings == []


def test_round_trips(nginx: Nginx, entry: Entry, tmp_path: Path) -> None:
    with Machine(nginx.url, tmp_path / "a") as machine:
        machine.push(entry)
        # Four blobs of the key, the record, two artifacts.
        assert machine.remote.round_trips == {"HEAD cas": 7, "PUT ac": 1, "PUT cas": 7}
        assert machine.trips(entry) == {"GET ac": 1, "GET cas": 3}
        before = machine.remote.round_trips
        machine.push(entry)
        assert machine.remote.round_trips == before | {"HEAD cas": 14, "PUT ac": 2}


def test_what_lies_in_the_cache(nginx: Nginx, entry: Entry, tmp_path: Path) -> None:
    """A result as Bazel writes it; every blob under its SHA-256; the entry says what it is."""
    with Machine(nginx.url, tmp_path / "a") as machine:
        machine.push(entry)
    action_digest = key_of(entry.identity).action.digest
    result = pb.ActionResult.FromString((nginx.root / "ac" / action_digest).read_bytes())
    assert [output.path for output in result.output_files] == sorted([*entry.data, "epctx-record.json"])
    for output in result.output_files:
        assert digest_bytes((nginx.root / "cas" / output.digest.hash).read_bytes()) == output.digest.hash
    action = pb.Action.FromString((nginx.root / "cas" / action_digest).read_bytes())
    command = pb.Command.FromString((nginx.root / "cas" / action.command_digest.hash).read_bytes())
    assert command.arguments == ["epctx", "epctx-remote/1", entry.identity]
    root = pb.Directory.FromString((nginx.root / "cas" / action.input_root_digest.hash).read_bytes())
    assert (nginx.root / "cas" / root.files[0].digest.hash).read_text() == entry.identity + "\n"


def test_the_path_of_the_url_is_a_prefix(nginx: Nginx, entry: Entry, tmp_path: Path) -> None:
    with Machine(nginx.url + "/team/", tmp_path / "a") as machine:
        machine.push(entry)
        assert entry.same(machine.fetch(entry))
    assert (nginx.root / "team" / "ac").is_dir()


def test_odd_contents(nginx: Nginx, tmp_path: Path) -> None:
    sizes = {"empty.bin": 0, "piece.bin": MIB, **{f"s{index}.bin": 100 + index for index in range(100)}}
    entry = make_entry(tmp_path / "compiled", sizes, seed=21)
    twin = make_entry(tmp_path / "twins", {"a.bin": 5 * MIB, "b.bin": 5 * MIB}, seed=22, squeezable=True)
    with Machine(nginx.url, tmp_path / "a") as machine:
        for item in (entry, twin):
            machine.push(item)
            assert item.same(machine.fetch(item))
        assert machine.warnings == []


@pytest.mark.parametrize("name", [BIN, ONNX])
@pytest.mark.parametrize("change", ["poisoned", "truncated", "oversized", "missing"])
def test_damaged_blobs_are_a_miss_that_names_them(
    nginx: Nginx, entry: Entry, tmp_path: Path, name: str, change: str
) -> None:
    with Machine(nginx.url, tmp_path / "a") as machine:
        machine.push(entry)
        path, data = blob(nginx, entry, name), entry.data[name]
        if change == "missing":
            path.unlink()
        else:
            flipped = bytes([data[0] ^ 1]) + data[1:]
            path.write_bytes({"poisoned": flipped, "truncated": data[:-7], "oversized": data + b"more"}[change])
        assert machine.fetch(entry) is None
        assert len(machine.warnings) == 1
        assert f"{name} is {change}" in machine.warnings[0]
        assert machine.warnings[0].endswith("taken as a miss")
        assert machine.remote.active


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xff not a message", "malformed result"),
        (b"", "without a record"),
        (b"x" * (5 * MIB), "oversized result"),
        (pb.ActionResult(exit_code=1).SerializeToString(), "exit code 1"),
    ],
)
def test_a_garbage_result_is_a_miss(nginx: Nginx, entry: Entry, tmp_path: Path, data: bytes, says: str) -> None:
    with Machine(nginx.url, tmp_path / "a") as machine:
        machine.push(entry)
        (nginx.root / "ac" / key_of(entry.identity).action.digest).write_bytes(data)
        assert machine.fetch(entry) is None
        assert len(machine.warnings) == 1
        assert says in machine.warnings[0]
        machine.push(entry)
        assert entry.same(machine.fetch(entry))


def test_a_result_of_another_identity_is_a_miss(nginx: Nginx, entry: Entry, tmp_path: Path) -> None:
    other = make_entry(tmp_path / "other", TYPICAL, seed=5)
    with Machine(nginx.url, tmp_path / "a") as machine:
        machine.push(entry)
        machine.push(other)
        results = nginx.root / "ac"
        stolen = (results / key_of(other.identity).action.digest).read_bytes()
        (results / key_of(entry.identity).action.digest).write_bytes(stolen)
        assert machine.fetch(entry) is None
        assert "a record of another identity" in machine.warnings[0]


def test_an_entry_above_the_size_limit_is_a_miss(nginx: Nginx, entry: Entry, tmp_path: Path) -> None:
    with Machine(nginx.url, tmp_path / "a") as machine:
        machine.push(entry)
    with Machine(nginx.url, tmp_path / "b", environ={"EPCTX_REMOTE_MAX_SIZE": str(MIB)}) as machine:
        assert machine.fetch(entry) is None
        assert "an oversized entry" in machine.warnings[0]
        assert machine.remote.round_trips == {"GET ac": 1}


def test_an_unreachable_cache_costs_one_warning(entry: Entry, tmp_path: Path) -> None:
    with Machine(f"http://127.0.0.1:{free_port()}", tmp_path / "a") as machine:
        start = time.monotonic()
        for _ in range(20):
            assert machine.fetch(entry) is None
            machine.push(entry)
        assert time.monotonic() - start < 8
        assert len(machine.warnings) == 1
        assert machine.remote.round_trips == {"GET ac": 4}


def test_an_unknown_host_costs_one_warning(entry: Entry, tmp_path: Path) -> None:
    with Machine("http://nowhere.invalid", tmp_path / "a", environ=HASTY) as machine:
        assert machine.fetch(entry) is None
        assert machine.fetch(entry) is None
        assert len(machine.warnings) == 1


def test_a_cache_that_never_answers_costs_its_time_limit_once(entry: Entry, tmp_path: Path) -> None:
    with silent_port() as port:
        environ = {"EPCTX_REMOTE_TIMEOUT": "0.5"}
        with Machine(f"http://127.0.0.1:{port}", tmp_path / "a", environ=environ) as machine:
            start = time.monotonic()
            assert machine.fetch(entry) is None
            assert machine.fetch(entry) is None
            assert time.monotonic() - start < 3
            assert len(machine.warnings) == 1
            assert "no answer in time" in machine.warnings[0]


def test_a_slow_cache_is_left_alone(nginx: Nginx, tmp_path: Path) -> None:
    entry = make_entry(tmp_path / "compiled", {"x.bin": 2 * MIB}, seed=36)
    with Machine(nginx.url, tmp_path / "a") as machine:
        machine.push(entry)
    with Wire(nginx.port) as wire:
        wire.pause = 0.05  # bytes keep coming, less than a MiB of them in a second
        environ = {"EPCTX_REMOTE_TIMEOUT": "0.4"}
        with Machine(f"http://127.0.0.1:{wire.port}", tmp_path / "b", environ=environ) as machine:
            start = time.monotonic()
            assert machine.fetch(entry) is None
            assert time.monotonic() - start < 12
            assert len(machine.warnings) == 1
            assert "too slow" in machine.warnings[0]
            assert not machine.remote.active


def test_a_server_killed_in_the_middle_of_a_fetch(tmp_path: Path) -> None:
    entry = make_entry(tmp_path / "compiled", {"a.onnx": KIB, "x.bin": 24 * MIB}, seed=31)
    with Nginx(tmp_path / "nginx") as nginx:
        with Machine(nginx.url, tmp_path / "a") as machine:
            machine.push(entry)
        with Wire(nginx.port) as wire, Machine(f"http://127.0.0.1:{wire.port}", tmp_path / "b") as machine:
            wire.at = (4 * MIB, nginx.kill)
            assert machine.fetch(entry) is None
            assert machine.fetch(entry) is None
            assert len(machine.warnings) == 1, machine.warnings
            assert not machine.remote.active


def test_a_connection_that_breaks_once_is_tried_again(nginx: Nginx, entry: Entry, tmp_path: Path) -> None:
    with Machine(nginx.url, tmp_path / "a") as machine:
        machine.push(entry)
    with Wire(nginx.port) as wire, Machine(f"http://127.0.0.1:{wire.port}", tmp_path / "b") as machine:
        wire.at = (3 * MIB, wire.reset)
        assert entry.same(machine.fetch(entry)), machine.warnings
        assert machine.warnings == []
        assert machine.remote.round_trips["GET cas"] > 3
        wire.reset()  # idle connections that the server closed are no reason to warn either
        assert entry.same(machine.fetch(entry)), machine.warnings
        assert machine.warnings == []


def test_an_artifact_that_changed_is_not_pushed(nginx: Nginx, entry: Entry, tmp_path: Path) -> None:
    path = tmp_path / "compiled" / BIN
    path.write_bytes(b"x" + path.read_bytes()[1:])
    with Machine(nginx.url, tmp_path / "a") as machine:
        machine.push(entry)
        assert len(machine.warnings) == 1
        assert "no longer what its record says" in machine.warnings[0]
        assert machine.fetch(entry) is None
    assert not blob(nginx, entry, BIN).exists()


@pytest.mark.parametrize(
    ("lines", "says", "warnings"),
    [
        ("return 401;", "HTTP 401", 1),
        ("return 403;", "HTTP 403", 1),
        ("return 503;", "HTTP 503", 1),
        ("return 302 http://localhost/;", "HTTP 302", 3),
        ("return 400;", "HTTP 400", 3),
    ],
)
def test_refusals_and_errors(entry: Entry, tmp_path: Path, lines: str, says: str, warnings: int) -> None:
    with Nginx(tmp_path / "nginx", server=lines) as nginx, Machine(nginx.url, tmp_path / "a", environ=HASTY) as machine:
        for _ in range(5):
            assert machine.fetch(entry) is None
        assert len(machine.warnings) == warnings
        assert says in machine.warnings[0]
        assert not machine.remote.active


@pytest.mark.parametrize(
    ("lines", "says", "warnings"),
    [
        ("limit_except GET { deny all; }", "HTTP 403", 1),
        ("client_max_body_size 1m;", "HTTP 413", 3),
        ("if ($request_method = PUT) { return 507; }", "HTTP 507", 1),
    ],
)
def test_a_failed_push_is_a_bounded_warning_and_reading_goes_on(
    entry: Entry, tmp_path: Path, lines: str, says: str, warnings: int
) -> None:
    server = f"location ~ . {{ dav_methods PUT; create_full_put_path on; {lines} }}"
    with (
        Nginx(tmp_path / "nginx", server=server) as nginx,
        Machine(nginx.url, tmp_path / "a", environ=HASTY) as machine,
    ):
        for _ in range(5):
            machine.push(entry)
        assert len(machine.warnings) == warnings, machine.warnings
        assert says in machine.warnings[0]
        assert "pushes nothing more" in machine.warnings[-1]
        assert machine.remote.active
        assert machine.fetch(entry) is None


def test_headers_come_from_the_environment(entry: Entry, tmp_path: Path) -> None:
    server = 'if ($http_authorization != "Bearer secret") { return 401; } if ($http_x_api_key != "k1") { return 403; }'
    environ = {"EPCTX_REMOTE_HEADER_AUTHORIZATION": "Bearer secret", "EPCTX_REMOTE_HEADER_X_API_KEY": "k1"}
    with Nginx(tmp_path / "nginx", server=server) as nginx:
        with Machine(nginx.url, tmp_path / "a", environ=environ) as machine:
            machine.push(entry)
            assert entry.same(machine.fetch(entry)), machine.warnings
        with Machine(nginx.url, tmp_path / "b") as machine:
            assert machine.fetch(entry) is None
            assert "HTTP 401" in machine.warnings[0]


def test_tls(entry: Entry, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    server = f"ssl_client_certificate {certificates.ca}; ssl_verify_client on;"
    environ = {"EPCTX_REMOTE_TLS_CA": str(certificates.ca)}
    with Nginx(tmp_path / "nginx", server=server, tls=certificates) as nginx:
        with Machine(nginx.url, tmp_path / "a") as machine:
            assert machine.fetch(entry) is None
            assert "certificate" in machine.warnings[0]
            assert machine.remote.round_trips == {"GET ac": 1}
        with Machine(nginx.url, tmp_path / "b", environ=environ) as machine:
            assert machine.fetch(entry) is None
            assert len(machine.warnings) == 1
        environ["EPCTX_REMOTE_TLS_CERT"] = str(certificates.client_cert)
        environ["EPCTX_REMOTE_TLS_KEY"] = str(certificates.client_key)
        with Machine(nginx.url, tmp_path / "c", environ=environ) as machine:
            machine.push(entry)
            assert entry.same(machine.fetch(entry)), machine.warnings


def test_threads_share_one_client(nginx: Nginx, tmp_path: Path) -> None:
    entries = [
        make_entry(tmp_path / f"e{seed}", {"a.onnx": KIB * seed, "b.bin": MIB}, seed=seed) for seed in range(50, 62)
    ]
    environ = {"EPCTX_REMOTE_CONNECTIONS": "3"}
    with Machine(nginx.url, tmp_path / "a", environ=environ) as machine, ThreadPoolExecutor(6) as pool:
        list(pool.map(machine.push, entries))

        def fetch(entry: Entry) -> bool:
            folder = tmp_path / f"out-{entry.identity[:12]}"
            folder.mkdir()
            return entry.same(machine.remote.fetch(entry.identity, folder))

        assert all(pool.map(fetch, entries))
        assert machine.warnings == []


def test_a_big_artifact_is_never_held_in_memory(nginx: Nginx, tmp_path: Path) -> None:
    """200 MiB, pushed and fetched by a process of its own, whose memory grows by far less."""
    entry = make_entry(tmp_path / "compiled", {"x.bin": 200 * MIB})
    (tmp_path / "record.json").write_bytes(entry.record)
    code = f"""
import resource, sys
from pathlib import Path
from hatch_epctx.remote import open_remote
folder = Path({str(tmp_path)!r})
[(name, _, digest, size)] = {[(name, "", digest, size) for name, _, digest, size in entry.artifacts]!r}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with open_remote({nginx.url!r}, mode="read-write", environ={{}}, warn=sys.exit) as remote:
    artifacts = [(name, folder / "compiled" / name, digest, size)]
    remote.push({entry.identity!r}, (folder / "record.json").read_bytes(), artifacts)
    assert remote.fetch({entry.identity!r}, folder) is not None
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 64 * KIB  # KiB; most of it are imports
