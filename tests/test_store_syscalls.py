"""What the system is asked for, and what happens when it refuses: strace watches, and fails calls on demand.

Needs strace and the right to trace, as CI has them: `.ci/run` installs Debian's.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest
import store_support as support
from store_support import build, check, compile_into, identity_of

from hatch_epctx import collect as collecting
from hatch_epctx.collect import Limits, collect
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY = identity_of("m")


def _traces() -> bool:
    probe = ["strace", "-qq", "-o", "/dev/null", "true"]
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not _traces(), reason="needs strace, and the right to trace")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def strace(options: list[str], command: str, *arguments: object, output: object = "/dev/null") -> str:
    """Run a child under strace; return what it said."""
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", str(output), *options, *support.command_line(command, *arguments)],
        env=support.environment(PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def failing(calls: str, error: str, when: str) -> list[str]:
    """Options that let some of these calls fail."""
    return ["-e", f"trace={calls}", "-e", f"inject={calls}:error={error}:when={when}"]


WATCH = ["-y", "-s", "400", "-e", "trace=fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat"]
CALL = re.compile(r"(?P<name>fsync|rename|renameat|renameat2|unlink|unlinkat)\((?P<rest>.*)\) += 0")


def _calls(trace: str, root: Path) -> list[str]:
    """Calls on the store, paths cut to what matters."""
    calls = []
    for line in trace.splitlines():
        match = CALL.search(line)
        if match is None:
            continue
        paths = [path for path in re.findall(r'[<"](/[^>"]*)[>"]', match["rest"]) if path.startswith(f"{root}/v1/")]
        if not paths:
            continue
        short = [re.sub(r"[0-9a-f]{64}", "IDENTITY", path.removeprefix(f"{root}/v1/")) for path in paths]
        short = [
            re.sub(r"\b[0-9a-f]{32}\b(?!\.bin)", "UUID", re.sub(r"\.tmp-[0-9a-f]+", "TEMP", path)) for path in short
        ]
        calls.append(" ".join([re.sub("at2?$", "", match["name"]), *short]))
    return calls


def test_bytes_are_durable_before_the_names_that_lead_to_them(store: Store, tmp_path: Path) -> None:
    build(store, identity_of("warm")).close()
    strace(WATCH, "build", store.root, "m", tmp_path / "log", output=tmp_path / "trace")
    shard = IDENTITY[:2]
    calls = [call for call in _calls((tmp_path / "trace").read_text(), store.root) if not call.startswith("unlink")]
    names = sorted(support.outputs(IDENTITY))
    assert [call for call in calls if "/work/" not in call] == [
        *(f"fsync staging/UUID/out/{name}" for name in names),
        "fsync staging/UUID/out",
        "rename staging/UUID/out generations/UUID",
        "fsync generations",
        "fsync staging/UUID",
        "fsync markers",
        "fsync staging/UUID/TEMP",
        f"rename staging/UUID/TEMP markers/{shard}/IDENTITY.json",
        f"fsync markers/{shard}",
    ]


def test_a_marker_is_gone_for_good_before_its_generation_goes(store: Store, tmp_path: Path) -> None:
    build(store, IDENTITY).close()
    strace(WATCH, "collect", store.root, output=tmp_path / "trace")
    shard = IDENTITY[:2]
    calls = _calls((tmp_path / "trace").read_text(), store.root)
    calls = [call for call in calls if not call.startswith(("unlink locks/", "unlink leases/"))]
    assert calls[:3] == [
        f"unlink markers/{shard}/IDENTITY.json",
        f"fsync markers/{shard}",
        "rename generations/UUID staging/UUID",
    ]
    assert not any(call.startswith("fsync") for call in calls[3:])


@pytest.mark.parametrize(
    ("calls", "error", "every"),
    [
        ("fsync", "EIO", 17),
        ("write", "ENOSPC", 17),
        ("write", "EIO", 13),
        ("rename,renameat,renameat2", "EIO", 7),
        ("mkdir,mkdirat", "ENOSPC", 7),
        ("chmod,fchmodat,fchmod", "EPERM", 5),
        ("utimensat", "EIO", 2),
    ],
)
def test_builds_on_a_disk_that_fails_now_and_then(store: Store, calls: str, error: str, every: int) -> None:
    """Every so manyth call fails, out of step with the builds: each step of a publish has its turn."""
    build(store, identity_of("warm")).close()
    count = 21
    said = strace(failing(calls, error, f"3..150+{every}"), "try_many", store.root, 0, count)
    tally = dict(part.split("=") for part in said.split())
    assert sum(map(int, tally.values())) == count
    assert int(tally["selected"]) > 0
    # A use that cannot be noted is nobody's trouble.
    assert (int(tally["selected"]) < count) == (calls != "utimensat")
    for number in range(count):
        with build(store, identity_of(f"m{number}")) as generation:
            check(generation, identity_of(f"m{number}"))
            assert generation.selected
    _clean(store, generations=count + 1)


def _clean(store: Store, *, generations: int) -> None:
    assert [found for found in collecting.check(store) if found.miss is not None] == []
    collect(store, Limits(max_size=1 << 60))
    left = support.left_over(store)
    assert len(left.pop("generations")) == generations
    assert not any(left.values()), left


@pytest.mark.parametrize("calls", ["unlink,unlinkat", "rename,renameat,renameat2", "fsync", "rmdir"])
def test_collections_on_a_disk_that_fails_now_and_then(store: Store, calls: str) -> None:
    for number in range(9):
        build(store, identity_of(f"m{number}")).close()
        compile_into(store, identity_of(f"m{number}"), salt="again").close()
    strace(failing(calls, "EIO", "2+3"), "collect", store.root)
    for found in collecting.check(store):
        assert found.miss is None, found
    _collect_all(store)
    _clean(store, generations=0)


def _collect_all(store: Store) -> None:
    collect(store, Limits(max_size=0))
    collect(store, Limits(max_size=0))  # what the first one could only move away


@pytest.mark.parametrize("place", ["marker", "artifact"])
def test_what_the_disk_does_not_give_back_is_a_miss(store: Store, place: str) -> None:
    build(store, IDENTITY).close()
    path = store.layout.marker(IDENTITY) if place == "marker" else next(store.layout.generations.rglob("*.bin"))
    said = strace(["-P", str(path), *failing("read", "EIO", "1")], "find", store.root, "m")
    assert said == f"unreadable-{place}\n"
    with build(store, IDENTITY, on_compile=pytest.fail) as generation:
        check(generation, IDENTITY)


def test_a_file_system_without_locks_is_refused(store: Store) -> None:
    build(store, IDENTITY).close()
    inject = failing("flock", "ENOLCK", "1+1")
    said = strace(inject, "try_many", store.root, 0, 1)
    assert said == "selected=0 once=0 refused=1\n"
    assert strace(inject, "collect", store.root) == "refused no-locks\n"
    assert strace(inject, "find", store.root, "m") == "hit\n"
