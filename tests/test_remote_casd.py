"""The remote cache against buildbox-casd, as it is and with its store tampered with, killed, slowed and cut off."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from reapi_server import Casd, Certificates, Wire, free_port, silent_port
from remote_entries import HASTY, KIB, MIB, TYPICAL, Entry, Machine, make_entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.reapi


@pytest.fixture(scope="module")
def casd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Casd]:
    with Casd(tmp_path_factory.mktemp("casd")) as server:
        yield server


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def entry(tmp_path: Path, request: pytest.FixtureRequest) -> Entry:
    """An entry of this test's own: casd is shared."""
    return make_entry(tmp_path / "compiled", TYPICAL, seed=abs(hash(request.node.nodeid)) % 10**9)


def damage(casd: Casd, entry: Entry, name: str, data: bytes | None) -> None:
    """Change an artifact in casd's own store, behind its back."""
    digest = next(digest for other, _, digest, _ in entry.artifacts if other == name)
    path = casd.blob_path(digest)
    if data is None:
        path.unlink()
        return
    path.chmod(0o644)
    path.write_bytes(data)


def test_a_cold_machine_gets_what_another_pushed(casd: Casd, entry: Entry, tmp_path: Path) -> None:
    with Machine(casd.url, tmp_path / "a") as first, Machine(casd.url, tmp_path / "b", mode="read-only") as second:
        assert first.fetch(entry) is None
        first.push(entry)
        assert entry.same(second.fetch(entry)), (first.warnings, second.warnings)
        assert first.warnings == second.warnings == []


def test_round_trips_of_a_hit(casd: Casd, tmp_path: Path) -> None:
    small = make_entry(tmp_path / "s", {"a.onnx": 40 * KIB, "b.bin": 900 * KIB, "c.bin": MIB}, seed=11)
    big = make_entry(tmp_path / "m", {"a.onnx": 40 * KIB, "b.bin": 6 * MIB, "c.bin": 9 * MIB}, seed=12)
    with Machine(casd.url, tmp_path / "x") as machine:
        machine.push(small)
        assert machine.remote.round_trips == {
            "GetCapabilities": 1,
            "FindMissingBlobs": 1,
            "BatchUpdateBlobs": 1,
            "UpdateActionResult": 1,
        }
        machine.push(big)
        assert machine.trips(small) == {"GetActionResult": 1, "BatchReadBlobs": 1}
        assert machine.trips(big) == {"GetActionResult": 1, "BatchReadBlobs": 1, "Read": 2}
        assert machine.remote.round_trips["GetCapabilities"] == 1


def test_a_second_push_sends_nothing(casd: Casd, entry: Entry, tmp_path: Path) -> None:
    with Machine(casd.url, tmp_path / "a") as machine:
        machine.push(entry)
        sent = machine.remote.round_trips
        machine.push(entry)
        again = machine.remote.round_trips
    assert sent["Write"] == again["Write"] == 1
    assert sent["BatchUpdateBlobs"] == again["BatchUpdateBlobs"] == 1
    assert again["FindMissingBlobs"] == 2


def test_the_path_of_the_url_is_the_instance(entry: Entry, tmp_path: Path) -> None:
    named = Casd(tmp_path / "casd", instance="team/vision")
    with named, Machine(named.url + "/team/vision", tmp_path / "a") as machine:
        machine.push(entry)
        assert entry.same(machine.fetch(entry))
        assert machine.warnings == []


def test_an_unknown_instance_costs_a_line_each_until_the_cache_is_left_alone(
    casd: Casd, entry: Entry, tmp_path: Path
) -> None:
    with Machine(casd.url + "/nobody", tmp_path / "a") as machine:
        for _ in range(5):
            assert machine.fetch(entry) is None
        assert len(machine.warnings) == 3
        assert "Invalid instance name" in machine.warnings[0]
        assert machine.warnings[-1].endswith("goes on without the remote cache")


def test_read_only_never_sends(casd: Casd, entry: Entry, tmp_path: Path) -> None:
    with Machine(casd.url, tmp_path / "a", mode="read-only") as machine:
        machine.push(entry)
        assert machine.remote.round_trips == {}
        assert machine.fetch(entry) is None


def test_artifacts_by_digest_alone(casd: Casd, entry: Entry, tmp_path: Path) -> None:
    with Machine(casd.url, tmp_path / "a") as machine:
        machine.push(entry)
        wanted = [(name, digest, size) for name, _, digest, size in entry.artifacts]
        (tmp_path / "out").mkdir()
        found = machine.remote.fetch_artifacts(wanted, tmp_path / "out")
        assert found is not None
        assert {item.name: item.path.read_bytes() for item in found} == entry.data
        (tmp_path / "out2").mkdir()
        assert machine.remote.fetch_artifacts([("x.bin", "0" * 64, 10)], tmp_path / "out2") is None
        assert "x.bin is missing" in machine.warnings[0]


def test_odd_contents(casd: Casd, tmp_path: Path) -> None:
    """An empty artifact, two artifacts of one content (small and big), one of exactly a piece, 300 small ones."""
    sizes = {"empty.bin": 0, "piece.bin": MIB, **{f"s{index}.bin": 100 + index for index in range(300)}}
    entry = make_entry(tmp_path / "compiled", sizes, seed=21)
    twin = make_entry(
        tmp_path / "twins", {"a.bin": 5 * MIB, "b.bin": 5 * MIB, "c": 9, "d": 9}, seed=22, squeezable=True
    )
    with Machine(casd.url, tmp_path / "a") as machine:
        for item in (entry, twin):
            machine.push(item)
            assert item.same(machine.fetch(item))
        assert machine.warnings == []


BIN = next(name for name in TYPICAL if name.endswith(".bin"))
ONNX = next(name for name in TYPICAL if name.endswith(".onnx"))


@pytest.mark.parametrize("name", [BIN, ONNX])
def test_poisoned_bytes_are_a_miss_that_names_the_file(casd: Casd, entry: Entry, tmp_path: Path, name: str) -> None:
    with Machine(casd.url, tmp_path / "a") as machine:
        machine.push(entry)
        data = bytearray(entry.data[name])
        data[-1] ^= 1
        damage(casd, entry, name, bytes(data))
        assert machine.fetch(entry) is None
        assert len(machine.warnings) == 1
        assert f"{name} is poisoned" in machine.warnings[0]
        assert machine.remote.active


@pytest.mark.parametrize("name", [BIN, ONNX])
def test_truncated_bytes_are_a_miss_that_names_the_file(casd: Casd, entry: Entry, tmp_path: Path, name: str) -> None:
    with Machine(casd.url, tmp_path / "a") as machine:
        machine.push(entry)
        damage(casd, entry, name, entry.data[name][:-7])
        assert machine.fetch(entry) is None
        assert len(machine.warnings) == 1
        assert name in machine.warnings[0]
        assert machine.remote.active


def test_the_next_push_heals_a_missing_blob(casd: Casd, entry: Entry, tmp_path: Path) -> None:
    with Machine(casd.url, tmp_path / "a") as machine:
        machine.push(entry)
        damage(casd, entry, BIN, None)
        assert machine.fetch(entry) is None
        assert machine.warnings == []  # casd does not hand out a result whose blobs are gone
        machine.push(entry)
        assert entry.same(machine.fetch(entry))


def test_an_unreachable_cache_costs_one_warning_and_little_time(entry: Entry, tmp_path: Path) -> None:
    with Machine(f"grpc://127.0.0.1:{free_port()}", tmp_path / "a") as machine:
        start = time.monotonic()
        for _ in range(20):
            assert machine.fetch(entry) is None
            machine.push(entry)
        assert time.monotonic() - start < 8
        assert len(machine.warnings) == 1
        assert machine.warnings[0].endswith("this build goes on without the remote cache")
        assert not machine.remote.active
        assert machine.remote.round_trips == {"GetCapabilities": 4}


def test_many_threads_meet_an_unreachable_cache_with_one_warning(entry: Entry, tmp_path: Path) -> None:
    with (
        Machine(f"grpc://127.0.0.1:{free_port()}", tmp_path / "a", environ=HASTY) as machine,
        ThreadPoolExecutor(8) as pool,
    ):
        folders = [tmp_path / f"f{index}" for index in range(8)]
        for folder in folders:
            folder.mkdir()
        assert list(pool.map(lambda folder: machine.remote.fetch(entry.identity, folder), folders)) == [None] * 8
        assert len(machine.warnings) == 1


def test_a_cache_that_never_answers_costs_its_time_limit_once(entry: Entry, tmp_path: Path) -> None:
    with silent_port() as port:
        environ = {"EPCTX_REMOTE_TIMEOUT": "0.5"}
        with Machine(f"grpc://127.0.0.1:{port}", tmp_path / "a", environ=environ) as machine:
            start = time.monotonic()
            assert machine.fetch(entry) is None
            assert machine.fetch(entry) is None
            assert time.monotonic() - start < 3
            assert len(machine.warnings) == 1


def test_a_slow_cache_is_left_alone(casd: Casd, entry: Entry, tmp_path: Path) -> None:
    with Machine(casd.url, tmp_path / "a") as machine:
        machine.push(entry)
    slow = make_entry(tmp_path / "slow", {"x.bin": 5 * MIB}, seed=41)
    with Machine(casd.url, tmp_path / "b") as machine:
        machine.push(slow)
    with Wire(casd.port) as wire:
        environ = {"EPCTX_REMOTE_TIMEOUT": "0.3"}
        with Machine(f"grpc://127.0.0.1:{wire.port}", tmp_path / "c", environ=environ) as machine:
            assert entry.same(machine.fetch(entry))
            wire.pause = 0.2
            start = time.monotonic()
            assert machine.fetch(slow) is None
            assert time.monotonic() - start < 15
            assert len(machine.warnings) == 1
            assert "DEADLINE_EXCEEDED" in machine.warnings[0]
            assert not machine.remote.active


def test_a_server_killed_in_the_middle_of_a_fetch(tmp_path: Path) -> None:
    entry = make_entry(tmp_path / "compiled", {"a.onnx": KIB, "x.bin": 24 * MIB, "y.bin": 24 * MIB}, seed=31)
    with Casd(tmp_path / "casd") as casd:
        with Machine(casd.url, tmp_path / "a") as machine:
            machine.push(entry)
        with Wire(casd.port) as wire:
            wire.at = (4 * MIB, casd.kill)
            with Machine(f"grpc://127.0.0.1:{wire.port}", tmp_path / "b", environ=HASTY) as machine:
                assert machine.fetch(entry) is None
                assert machine.fetch(entry) is None
                assert len(machine.warnings) == 1, machine.warnings
                assert not machine.remote.active


def test_a_read_that_breaks_off_goes_on_where_it_was(tmp_path: Path) -> None:
    entry = make_entry(tmp_path / "compiled", {"x.bin": 24 * MIB}, seed=32)
    with Casd(tmp_path / "casd") as casd:
        with Machine(casd.url, tmp_path / "a") as machine:
            machine.push(entry)
        with Wire(casd.port) as wire:
            wire.at = (16 * MIB, wire.reset)
            with Machine(f"grpc://127.0.0.1:{wire.port}", tmp_path / "b") as machine:
                assert entry.same(machine.fetch(entry)), machine.warnings
                assert machine.remote.round_trips["Read"] == 2
                assert machine.warnings == []
            assert wire.passed < 34 * MIB


def test_a_server_killed_in_the_middle_of_a_push_leaves_no_entry(tmp_path: Path) -> None:
    entry = make_entry(tmp_path / "compiled", {"x.bin": 48 * MIB}, seed=33)
    with Casd(tmp_path / "casd") as casd, Machine(casd.url, tmp_path / "a", environ=HASTY) as machine:
        with ThreadPoolExecutor(1) as pool:
            pushing = pool.submit(machine.push, entry)
            while not machine.remote.round_trips.get("Write"):
                time.sleep(0.001)
            casd.kill()
            pushing.result()
        assert len(machine.warnings) == 1
        with Casd(tmp_path / "casd") as again, Machine(again.url, tmp_path / "b") as other:
            assert other.fetch(entry) is None
            assert other.warnings == []


def test_an_artifact_that_changed_is_not_pushed(casd: Casd, entry: Entry, tmp_path: Path) -> None:
    for name in (BIN, ONNX):
        path = tmp_path / "compiled" / name
        path.write_bytes(b"x" + path.read_bytes()[1:])
    with Machine(casd.url, tmp_path / "a") as machine:
        machine.push(entry)
        assert len(machine.warnings) == 1
        assert "no longer what its record says" in machine.warnings[0]
        assert machine.fetch(entry) is None


def test_threads_share_one_client(casd: Casd, tmp_path: Path) -> None:
    entries = [
        make_entry(tmp_path / f"e{seed}", {"a.onnx": KIB * seed, "b.bin": 5 * MIB}, seed=seed) for seed in range(50, 62)
    ]
    environ = {"EPCTX_REMOTE_CONNECTIONS": "3"}
    with Machine(casd.url, tmp_path / "a", environ=environ) as machine, ThreadPoolExecutor(6) as pool:
        list(pool.map(machine.push, entries))

        def fetch(entry: Entry) -> bool:
            folder = tmp_path / f"out-{entry.identity[:12]}"
            folder.mkdir()
            return entry.same(machine.remote.fetch(entry.identity, folder))

        assert all(pool.map(fetch, entries))
        assert machine.warnings == []
        assert machine.remote.round_trips["GetCapabilities"] == 1


def test_close_ends_a_fetch_under_way(casd: Casd, tmp_path: Path) -> None:
    entry = make_entry(tmp_path / "compiled", {"x.bin": 24 * MIB}, seed=34)
    with Machine(casd.url, tmp_path / "a") as machine:
        machine.push(entry)
    with Wire(casd.port) as wire, Machine(f"grpc://127.0.0.1:{wire.port}", tmp_path / "b") as machine:
        wire.pause = 0.02
        with ThreadPoolExecutor(1) as pool:
            fetching = pool.submit(machine.fetch, entry)
            while not machine.remote.round_trips.get("Read"):
                time.sleep(0.01)
            machine.remote.close()
            assert fetching.result(timeout=5) is None
        assert machine.warnings == []


def test_tls_with_an_authority_of_ones_own(
    casd: Casd, certificates: Certificates, entry: Entry, tmp_path: Path
) -> None:
    with Wire(casd.port, tls=certificates) as wire:
        url = f"grpcs://localhost:{wire.port}"
        with Machine(url, tmp_path / "a", environ=HASTY | {"EPCTX_REMOTE_TLS_CA": str(certificates.ca)}) as machine:
            machine.push(entry)
            assert entry.same(machine.fetch(entry))
            assert machine.warnings == []
        with Machine(url, tmp_path / "b", environ=HASTY) as machine:  # the system's authorities do not know it
            assert machine.fetch(entry) is None
            assert len(machine.warnings) == 1


def test_tls_with_a_client_certificate(casd: Casd, certificates: Certificates, entry: Entry, tmp_path: Path) -> None:
    with Wire(casd.port, tls=certificates, ask_client=True) as wire:
        url = f"grpcs://localhost:{wire.port}"
        environ = HASTY | {"EPCTX_REMOTE_TLS_CA": str(certificates.ca)}
        with Machine(url, tmp_path / "a", environ=environ) as machine:
            assert machine.fetch(entry) is None
            assert len(machine.warnings) == 1
        environ["EPCTX_REMOTE_TLS_CERT"] = str(certificates.client_cert)
        environ["EPCTX_REMOTE_TLS_KEY"] = str(certificates.client_key)
        with Machine(url, tmp_path / "b", environ=environ) as machine:
            machine.push(entry)
            assert entry.same(machine.fetch(entry))
