"""Many models and targets over a farm with one remote cache: what is keyed, sent, cached, and how long it takes.

Run: python tests/benchmarks/farm.py [--models 1000] [--targets 20] [--machines 10] [--cpu-kinds 3] [--measure 50]

Two parts. "measured": this project's client pushes and fetches `--measure` entries of the typical form against a real
buildbox-casd (EPCTX_TEST_BUILDBOX) and a real nginx, where they are there, and counts requests and seconds; and it
counts the files that go along to an executor.
"simulated": a discrete simulation of builds on several machines over the protocol's counts of requests, with the
latency, bandwidth, compile times and sizes that the arguments give. Nothing in the second part runs on real
machines; it answers what scales with what.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reapi_server import Casd, Nginx
from remote_entries import KIB, Machine, make_entry

from hatch_epctx.providers import find_provider
from hatch_epctx.toolchain import program_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BATCH = 4 << 20
"""Bytes of a context binary up to which it travels with the others (gRPC)."""


# Measured


def measure(count: int, size: int) -> Iterator[tuple[str, dict[str, str]]]:
    """(server, figures) of `count` entries with context binaries of `size` bytes."""
    for kind in (Casd, Nginx):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                with kind(folder / "server") as server:
                    yield kind.__name__.lower(), against(server.url, folder, count, size)
            except pytest.skip.Exception as error:
                print(f"{kind.__name__.lower()} is not measured: {error}")


def against(url: str, folder: Path, count: int, size: int) -> dict[str, str]:
    entries = []
    for number in range(count):
        sizes = {f"m{number}_ctx.onnx": 40 * KIB, f"sha256-{number:032x}.bin": size}
        entries.append(make_entry(folder / f"made-{number}", sizes, seed=number))
    with Machine(url, folder / "one") as one, Machine(url, folder / "two") as two:
        misses, miss = timed(one, lambda: [one.fetch(entry) for entry in entries])
        pushes, push = timed(one, lambda: [one.push(entry) for entry in entries])
        hits, hit = timed(two, lambda: [two.fetch(entry) for entry in entries])
        assert not one.warnings + two.warnings
    # The first call of a gRPC client asks for capabilities once.
    once = Counter({"GetCapabilities": 1} if url.startswith("grpc") else {})
    return {
        "per miss": f"{sum((misses - once).values()) / count:g}",
        "per push": f"{sum(pushes.values()) / count:g}",
        "per hit": f"{sum((hits - once).values()) / count:g}",
        "once": f"{sum(once.values())}",
        "ms per miss": f"{miss / count * 1000:.1f}",
        "ms per push": f"{push / count * 1000:.1f}",
        "ms per hit": f"{hit / count * 1000:.1f}",
    }


def timed(machine: Machine, call: Any) -> tuple[Counter[str], float]:
    before, start = Counter(machine.remote.round_trips), time.perf_counter()
    call()
    return Counter(machine.remote.round_trips) - before, time.perf_counter() - start


# Simulated


@dataclass(frozen=True)
class World:
    """What the simulation takes as given."""

    models: int
    cross: int
    """Targets that compile anywhere (QNN): one identity for the whole fleet."""
    here: int
    """Targets that bake the CPU in (OpenVINO): one identity for each kind of CPU."""
    kinds: int
    """Kinds of CPUs: ISA, cores, topology."""
    jobs: int
    """Compiles at one time on one machine."""
    compile: float
    """Median seconds of a compile."""
    size: int
    """Median bytes of a context binary."""
    latency: float
    """Seconds of a round trip."""
    bandwidth: float
    """Bytes per second of one machine."""

    @property
    def targets(self) -> int:
        return self.cross + self.here

    def identity(self, model: int, target: int, kind: int) -> tuple[int, int, int]:
        return (model, target, 0 if target < self.cross else kind)

    def seconds(self, identity: tuple[int, int, int]) -> float:
        """Of a compile: log-normal, a tenth of them more than five times the median."""
        return self.compile * math.exp(random.Random(repr((1, identity))).gauss(0, 1.25))  # noqa: S311

    def bytes(self, identity: tuple[int, int, int]) -> float:
        return self.size * math.exp(random.Random(repr((2, identity))).gauss(0, 1.0))  # noqa: S311

    def hit_trips(self, size: float) -> int:
        """GetActionResult, BatchReadBlobs, and a Read where the binary is too big for a batch."""
        return 3 if size > BATCH else 2

    def push_trips(self, size: float) -> int:
        """FindMissingBlobs, BatchUpdateBlobs, UpdateActionResult, and a Write."""
        return 4 if size > BATCH else 3


@dataclass
class Outcome:
    hits: int = 0
    compiles: int = 0
    trips: int = 0
    down: float = 0.0
    up: float = 0.0
    end: float = 0.0


def build(
    world: World, cache: dict[tuple[int, int, int], float], machines: Sequence[tuple[int, Sequence[tuple[int, int]]]]
) -> Outcome:
    """Machines (kind, work in order) begin at once; `cache` says from what time on an identity is there."""
    found = Outcome()
    queue: list[tuple[float, int, int]] = []
    left = [list(reversed(work)) for _, work in machines]
    for number, _ in enumerate(machines):
        for slot in range(world.jobs):
            heapq.heappush(queue, (0.0, number, slot))
    while queue:
        now, number, slot = heapq.heappop(queue)
        if not left[number]:
            found.end = max(found.end, now)
            continue
        identity = world.identity(*left[number].pop(), machines[number][0])
        size = world.bytes(identity)
        share = world.bandwidth / world.jobs
        if cache.get(identity, math.inf) <= now:
            found.hits += 1
            trips = world.hit_trips(size)
            found.down += size
            took = trips * world.latency + size / share
        else:
            found.compiles += 1
            trips = 1 + world.push_trips(size)
            found.up += size
            took = world.latency + world.seconds(identity)
            cache[identity] = min(cache.get(identity, math.inf), now + took + size / share + 3 * world.latency)
            took += world.push_trips(size) * world.latency + size / share
        found.trips += trips
        heapq.heappush(queue, (now + took, number, slot))
    return found


def simulate(world: World, machines: int) -> Iterator[tuple[str, Outcome]]:
    every = [(model, target) for model in range(world.models) for target in range(world.targets)]
    shuffled = []
    for number in range(machines):
        order = list(every)
        random.Random(number).shuffle(order)  # noqa: S311
        shuffled.append(order)
    cache: dict[tuple[int, int, int], float] = {}

    def settled() -> dict[tuple[int, int, int], float]:
        return dict.fromkeys(cache, 0.0)

    shards = [every[number::machines] for number in range(machines)]
    yield (
        f"first build, split over {machines} machines of one kind",
        build(world, cache, [(0, work) for work in shards]),
    )
    yield "one more machine of that kind", build(world, settled(), [(0, every)])
    yield "one machine of another kind", build(world, settled(), [(1, every)])
    kinds = [number % world.kinds for number in range(machines)]
    yield (
        f"{machines} machines of {world.kinds} kinds, each builds all",
        build(world, settled(), [(kind, every) for kind in kinds]),
    )
    changed = dict(settled())
    for identity in list(changed):
        if identity[0] == 0:
            del changed[identity]
    yield "one model changed", build(world, changed, [(0, every)])
    cross = {identity: 0.0 for identity in cache if identity[1] >= world.cross}
    yield "the cross-compiling EP updated", build(world, cross, [(0, every)])
    yield f"nothing cached, {machines} machines build all, same order", build(world, {}, [(0, every)] * machines)
    yield (
        f"nothing cached, {machines} machines build all, orders shuffled",
        build(world, {}, [(0, work) for work in shuffled]),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--targets", type=int, default=20, help="in all")
    parser.add_argument("--cpu-targets", type=int, default=6, help="those that bake the CPU in")
    parser.add_argument("--machines", type=int, default=10)
    parser.add_argument("--cpu-kinds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=8, help="compiles at one time on one machine")
    parser.add_argument("--compile", type=float, default=20.0, help="median seconds of a compile and its load check")
    parser.add_argument("--size", type=float, default=6.0, help="median MiB of a context binary")
    parser.add_argument("--latency", type=float, default=5.0, help="ms of a round trip")
    parser.add_argument("--bandwidth", type=float, default=100.0, help="MiB/s of one machine")
    parser.add_argument("--measure", type=int, default=50, help="entries against real servers; 0: none")
    given = parser.parse_args()
    size = int(given.size * (1 << 20))
    if given.measure:
        print(f"measured: {given.measure} entries, context binaries of {given.size:g} MiB, over loopback")
        for server, figures in measure(given.measure, size):
            print(f"  {server:6} {', '.join(f'{name} {value}' for name, value in figures.items())}")
        for name in ("qnn", "openvino"):
            files = program_files(find_provider(name))
            total = sum(path.stat().st_size for _, path in files)
            print(f"  the executor's program for {name}: {len(files):,} files, {total / (1 << 20):.0f} MiB")
    world = World(
        models=given.models,
        cross=given.targets - given.cpu_targets,
        here=given.cpu_targets,
        kinds=given.cpu_kinds,
        jobs=given.jobs,
        compile=given.compile,
        size=size,
        latency=given.latency / 1000,
        bandwidth=given.bandwidth * (1 << 20),
    )
    keys = world.models * (world.cross + world.here * world.kinds)
    print(f"simulated: {world.models} models x {world.targets} targets, {world.here} of them bake the CPU in")
    print(f"  {world.models * world.targets:,} variants, {keys:,} identities over {world.kinds} kinds of CPUs")
    head = ("build", "hits", "compiles", "round trips", "down GiB", "up GiB", "hours")
    print(f"  {head[0]:58}" + "".join(f"{word:>13}" for word in head[1:]))
    for name, found in simulate(world, given.machines):
        cells = [f"{found.hits:,}", f"{found.compiles:,}", f"{found.trips:,}"]
        cells += [f"{found.down / (1 << 30):,.1f}", f"{found.up / (1 << 30):,.1f}", f"{found.end / 3600:,.2f}"]
        print(f"  {name:58}" + "".join(f"{cell:>13}" for cell in cells))


if __name__ == "__main__":
    main()
