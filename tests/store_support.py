"""Stand-ins for compiles, and child processes that use the store, for the tests of store, leases and files.

Run as a script it is a child: ``store_support.py COMMAND ARGUMENT...``. A child says "ready" on its standard output
when it holds what it should, and goes on when its standard input ends or gives a line.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_epctx import collect
from hatch_epctx.digest import digest_bytes
from hatch_epctx.errors import StoreError
from hatch_epctx.files import move, remove_tree
from hatch_epctx.lease import Lease, lock, unleased
from hatch_epctx.store import Artifact, Generation, Miss, Record, Staging, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

REPOSITORY = Path(__file__).parent.parent
NOBODY = 65534


def identity_of(text: str) -> str:
    """An identity to play with."""
    return digest_bytes(text.encode())


def outputs(identity: str, *, salt: str = "") -> dict[str, bytes]:
    """What a compile of `identity` writes."""
    context = f"context {identity} {salt}".encode() * 400
    return {
        "model_ctx.onnx": f"model {identity} {salt}".encode(),
        f"sha256-{digest_bytes(context)[:32]}.bin": context,
    }


def record_of(identity: str, files: dict[str, bytes]) -> Record:
    """The record of these outputs."""
    artifacts = tuple(
        Artifact(
            role="model" if name.endswith(".onnx") else "context", path=name, size=len(data), digest=digest_bytes(data)
        )
        for name, data in files.items()
    )
    return Record(identity=identity, document={"format": "epctx/1"}, artifacts=artifacts, result={"context_nodes": 1})


def write(staging: Staging, files: dict[str, bytes]) -> None:
    """Write outputs and the leftovers of a compile."""
    for name, data in {**files, "worker.log": b"noise\n", "orphan.bin": b"left behind"}.items():
        (staging.path / name).write_bytes(data)


def compile_into(store: Store, identity: str, *, select: bool = True, salt: str = "") -> Generation:
    """Stage and publish, without looking first."""
    files = outputs(identity, salt=salt)
    with store.staging() as staging:
        write(staging, files)
        return store.publish(staging, record_of(identity, files), select=select)


def build(store: Store, identity: str, *, on_compile: Callable[[], None] = lambda: None) -> Generation:
    """What a pipeline does for one variant."""
    with store.lock(identity):
        found = store.find(identity)
        if isinstance(found, Miss):
            on_compile()
            return compile_into(store, identity)
        return found


def check(generation: Generation, identity: str, *, salt: str = "") -> None:
    """Assert that the generation holds what a compile of `identity` writes, and nothing else."""
    files = outputs(identity, salt=salt)
    assert {path.name: path.read_bytes() for path in generation.path.iterdir()} == files


def left_over(store: Store) -> dict[str, list[str]]:
    """Names of what is in the store apart from markers, lock files and remembered facts."""
    layout = store.layout
    return {
        "staging": sorted(path.name for path in layout.staging.iterdir()),
        "leases": sorted(path.name for path in layout.leases.iterdir() if not path.name.startswith(".gate-")),
        "generations": sorted(path.name for path in layout.generations.iterdir()),
        "temporary": sorted(str(path) for path in layout.markers.rglob(".*")),
    }


def command_line(command: str, *arguments: object) -> list[str]:
    """How to start a child."""
    return [sys.executable, __file__, command, *map(str, arguments)]


def environment(**extra: str) -> dict[str, str]:
    """What a child needs to import us."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")]), **extra}


def run(command: str, *arguments: object, check: bool = True, **extra: str) -> tuple[int, str]:
    """Run a child to its end; return (exit code, output). A negative code is a signal."""
    done = subprocess.run(
        command_line(command, *arguments),
        env=environment(**extra),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stderr
    return done.returncode, done.stdout + ("" if check else done.stderr)


class Child:
    """A running child that has said "ready"."""

    def __init__(self, command: str, *arguments: object, **extra: str) -> None:
        self.process = subprocess.Popen(
            command_line(command, *arguments),
            env=environment(**extra),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.said = self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, f"child ended with {self.process.wait()}"
        return line

    def kill(self) -> None:
        """SIGKILL: no clean-up of any kind."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=60)

    def start(self) -> None:
        """Let it go on, and do not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def go(self) -> str:
        """Let it go on to its end; return the rest of its output."""
        self.start()
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        assert self.process.wait(timeout=60) == 0
        return out

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=60)


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that an unprivileged user may enter; it belongs to nobody when we are root."""
    with tempfile.TemporaryDirectory(prefix="epctx-test-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        yield folder


def unprivileged(command: str, *arguments: object) -> str:
    """Run a child that permissions bind: as nobody when we are root."""
    return run(command, *arguments, EPCTX_TEST_NOBODY="1")[1]


def say(text: str = "ready") -> None:
    print(text, flush=True)


def wait() -> None:
    sys.stdin.readline()


def child_build(root: str, text: str, log: str, seconds: str = "0") -> None:
    def compiling() -> None:
        with open(log, "a") as stream:
            stream.write(f"{os.getpid()}\n")
        time.sleep(float(seconds))

    identity = identity_of(text)
    with build(Store(Path(root)), identity, on_compile=compiling) as generation:
        check(generation, identity)
        say("selected" if generation.selected else f"warning: {generation.warning}")


def child_threads(root: str, text: str, log: str, count: str) -> None:
    """Many threads that build one identity; each with a store of its own, as processes have."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            child_build(root, text, log, "0.02")
        except BaseException as error:  # noqa: BLE001  # the main thread fails with it
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(int(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def child_tally(path: str, tally: str, count: str) -> None:
    """Add one to a number in a file, many times, as only one at a time can do without losing any."""
    say()
    wait()
    for _ in range(int(count)):
        with lock(Path(path)):
            number = int(Path(tally).read_text())
            time.sleep(0.001)
            Path(tally).write_text(str(number + 1))


def child_lock(path: str) -> None:
    with lock(Path(path)):
        say(str(os.getpid()))
        wait()


def child_wait(path: str, seconds: str) -> None:
    """Wait for a lock in vain; say who has it."""
    heard: list[str] = []
    with suppress(StoreError), lock(Path(path), timeout=float(seconds), on_wait=heard.append):
        raise AssertionError("the lock was free")
    say(heard[-1])


def child_forks(path: str) -> None:
    """Fork at the moment when a thread has opened a lock's file and knows nothing of it yet; hold it until killed."""
    really_open = os.open

    def slowly(*arguments: Any, **keywords: Any) -> int:
        descriptor = really_open(*arguments, **keywords)
        opened.set()
        time.sleep(0.3)
        return descriptor

    def work() -> None:
        with lock(Path(path)):
            held.set()
            time.sleep(60)

    opened, held = threading.Event(), threading.Event()
    os.open = slowly  # type: ignore[assignment]
    threading.Thread(target=work, daemon=True).start()
    opened.wait()
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    held.wait()
    say(str(pid))
    wait()


def child_lease(folder: str, name: str, note: str = "") -> None:
    with Lease.acquire(Path(folder), name, note=note):
        say()
        wait()


def child_stage(root: str) -> None:
    with Store(Path(root)).staging() as staging:
        (staging.path / "half.bin").write_bytes(b"half")
        say(staging.folder.name)
        wait()


def child_publish(root: str, text: str, select: str) -> None:
    with compile_into(Store(Path(root)), identity_of(text), select=select == "yes") as generation:
        say(generation.name)
        wait()


def child_sweep(root: str) -> None:
    say(repr(Store(Path(root)).sweep_dead()))


def child_read_only(root: str, text: str) -> None:
    """Everything a build does, in a store that may only be read."""
    store = Store(Path(root))
    assert store.read_only
    found = store.find(identity_of(text))
    assert isinstance(found, Generation), found
    assert found.selected
    assert "read-only" in found.warning
    check(found, identity_of(text))
    found.close()
    store.remember("scan", "k", {"a": 1})
    assert store.recall("scan", "k") is None
    other = identity_of("other")
    with build(store, other) as generation:
        check(generation, other)
        assert not generation.selected
        assert "cannot be written" in generation.warning, generation.warning
        assert not generation.path.is_relative_to(root)
        folder = generation.path
    assert not folder.exists()
    assert isinstance(store.find(other), Miss)
    assert store.sweep_dead().staging == 0
    say()


def child_collect_read_only(root: str) -> None:
    """Nothing is collected from a store that may only be read; looking at it goes."""
    store = Store(Path(root))
    for remove in (lambda: collect.collect(store, collect.Limits(max_size=0)), lambda: collect.clear(store)):
        try:
            remove()
        except StoreError as error:
            say(error.reason)
    say(str(collect.after_build(store, collect.Limits(max_size=0), grown=1, say=say)))
    say(str(len(collect.look(store).items)))
    say(str(sum(found.miss is not None for found in collect.check(store))))


def child_everything(root: str, text: str) -> None:
    """Whatever writes to a store, once."""
    store, identity = Store(Path(root)), identity_of(text)
    build(store, identity).close()
    store.remember("scan", text, {"a": 1})
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.write_bytes(b"source")
        time.sleep(2.1)  # the stat cache believes no file as young as this
        store.digest(source)
    collect.pin(store, collect.Root(name=identity, identity=identity))
    store.find(identity).close()  # type: ignore[union-attr]


def child_tidy(root: str) -> None:
    """Give every pin up and collect all there is."""
    store = Store(Path(root))
    for root_ in collect.read_roots(store):
        collect.unpin(store, root_.name)
        say("unpinned")
    done = collect.collect(store, collect.Limits(max_size=0))
    assert not done.failed, done.failed
    say(str(len(done.removed)))
    say(str(done.staging))


def child_try_many(root: str, first: str, count: str) -> None:
    """Build many identities on a disk that fails now and then; each is right, used once, or a clear error."""
    store = Store(Path(root))
    tally = {"selected": 0, "once": 0, "refused": 0}
    for number in range(int(first), int(first) + int(count)):
        identity = identity_of(f"m{number}")
        try:
            generation = build(store, identity)
        except StoreError:
            tally["refused"] += 1
            continue
        with generation:
            check(generation, identity)
            tally["selected" if generation.selected else "once"] += 1
    say(" ".join(f"{key}={value}" for key, value in tally.items()))


def child_collect(root: str) -> None:
    """Collect everything; failures are told and no more."""
    try:
        done = collect.collect(Store(Path(root)), collect.Limits(max_size=0))
    except StoreError as error:
        say(f"refused {error.reason}")
        return
    say(f"removed={len(done.removed)} failed={len(done.failed)} busy={len(done.busy)}")


def child_find(root: str, text: str) -> None:
    """What a hit says."""
    found = Store(Path(root)).find(identity_of(text))
    say(found.reason if isinstance(found, Miss) else "hit")


def child_full_disk(mount: str) -> None:
    """Build on a small file system that is full, then again when it is not."""
    root = Path(mount) / "cache"
    identity = identity_of("full")
    store = Store(root)
    with build(store, identity_of("first")):
        pass
    ballast = Path(mount) / "ballast"
    with open(ballast, "wb", buffering=0) as stream:
        try:
            while stream.write(b"x" * 4096):
                pass
        except OSError:
            pass
    assert collect.after_build(store, collect.Limits(max_size=1 << 40), grown=0, say=say) is not None
    failures: list[StoreError] = []
    try:
        build(store, identity)
    except StoreError as error:
        failures.append(error)
    assert [failure.reason for failure in failures] == ["disk-full"]
    assert "EPCTX_CACHE_DIR" in str(failures[0])
    assert isinstance(store.find(identity), Miss)
    with build(store, identity_of("first")) as generation:  # hits need no space
        check(generation, identity_of("first"))
    done = collect.collect(store, collect.Limits(max_size=0))  # nor does making some
    assert (len(done.removed), done.failed) == (1, [])
    ballast.unlink()
    with build(store, identity_of("first")) as generation:
        check(generation, identity_of("first"))
    with build(store, identity) as generation:
        check(generation, identity)
        assert generation.selected
    left = left_over(store)
    assert len(left.pop("generations")) == 2
    assert not any(left.values()), left
    say()


def child_remove(folder: str) -> None:
    """Remove a tree whose folders bar their owner."""
    tree = Path(folder) / "tree"
    (tree / "closed" / "below").mkdir(parents=True)
    (tree / "closed" / "below" / "file").write_bytes(b"x")
    (tree / "closed" / "file").write_bytes(b"x")
    outside = Path(folder) / "outside"
    outside.mkdir(mode=0o755)
    (tree / "closed" / "link").symlink_to(outside)
    (tree / "closed" / "below").chmod(0)
    (tree / "closed").chmod(0o500)
    tree.chmod(0o500)
    remove_tree(tree)
    assert not tree.exists()
    assert outside.stat().st_mode & 0o777 == 0o755
    say()


def child_opens(root: str, text: str) -> None:
    """How many files and folders a hit opens."""
    store = Store(Path(root))
    identity = identity_of(text)
    store.find(identity).close()  # type: ignore[union-attr]  # imports and folders are done with
    seen: list[str] = []
    sys.addaudithook(lambda event, args: seen.append(event) if event in {"open", "os.listdir", "os.scandir"} else None)
    found = store.find(identity)
    count = len(seen)
    assert isinstance(found, Generation)
    say(str(count))


def child_fork(folder: str, name: str) -> None:
    """A fork without exec neither keeps a parent's lease alive nor ends it."""
    lease = Lease.acquire(Path(folder), name)
    pid = os.fork()
    if pid == 0:
        lease.close()
        time.sleep(60)
        os._exit(0)
    time.sleep(0.1)
    say(str(pid))
    wait()
    lease.close()
    say("closed")
    wait()


def child_churn(root: str, text: str, seconds: str) -> None:
    """Replace the marker of one identity by ever new generations and collect the old ones, as fast as it goes."""
    store, identity = Store(Path(root)), identity_of(text)
    end = time.monotonic() + float(seconds)
    count = 0
    while time.monotonic() < end:
        with store.lock(identity):
            compile_into(store, identity, salt=str(count)).close()
        found = store.find(identity, verify=False)
        assert isinstance(found, Generation), found
        found.close()
        for old in store.layout.generations.iterdir():
            if old.name == found.name:
                continue
            with unleased(store.layout.leases, old.name) as notes:
                if notes is None:
                    continue
                move(old, store.layout.staging / old.name)
            remove_tree(store.layout.staging / old.name)
        count += 1
    say(str(count))


def child_read(root: str, text: str, seconds: str) -> None:
    """Find and read one identity as fast as it goes; every find is a whole generation."""
    store, identity = Store(Path(root)), identity_of(text)
    end = time.monotonic() + float(seconds)
    count = 0
    while time.monotonic() < end:
        found = store.find(identity)
        if isinstance(found, Miss):  # three markers in a row were replaced under its eyes
            assert found.reason.startswith("missing-"), found
            continue
        with found:
            time.sleep(0.002)
            read = {path.name: digest_bytes(path.read_bytes()) for path in found.path.iterdir()}
            assert read == {artifact.path: artifact.digest for artifact in found.record.artifacts}
        count += 1
    say(str(count))


def become(user: int, groups: list[int]) -> None:
    """Give up being root for good."""
    os.setgroups(groups)
    os.setgid(user)
    os.setuid(user)


if __name__ == "__main__":
    os.umask(int(os.environ.get("EPCTX_TEST_UMASK", "022"), 8))
    # After the imports: the interpreter may lie where only root may read.
    if os.environ.get("EPCTX_TEST_NOBODY") and os.geteuid() == 0:
        become(NOBODY, [])
    if "EPCTX_TEST_USER" in os.environ:
        number, *groups = map(int, os.environ["EPCTX_TEST_USER"].split(","))
        become(number, groups)
    globals()[f"child_{sys.argv[1]}"](*sys.argv[2:])


def can_mount() -> bool:
    """Whether this process may mount a file system in a namespace of its own."""
    probe = ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /mnt"]
    try:
        return sys.platform == "linux" and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except OSError:
        return False
