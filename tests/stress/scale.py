"""A large store: ten thousand generations and a project of a thousand variants.

A hit looks at a constant number of files; survey, list, collection and check are linear. The store is written in its
own format without the flushes of a publish, which would only measure the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent.parent))

import store_support as support

from hatch_epctx import collect as collecting
from hatch_epctx.collect import Limits
from hatch_epctx.store import Generation, Store
from hatch_epctx.store.records import Marker, marker_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

REPOSITORY = Path(__file__).parent.parent.parent


def fill(store: Store, identities: Iterable[str], *, size: int = 2000) -> None:
    """Write a generation and its marker for each identity; the document is as long as real ones are."""
    store.sweep_dead()
    components = [{"name": f"lib{number}.so", "digest": support.identity_of(str(number))} for number in range(40)]
    for number, identity in enumerate(identities):
        files = {
            "model_ctx.onnx": identity.encode() * 8,
            f"sha256-{identity[:32]}.bin": identity.encode() * (size // 64),
        }
        record = support.record_of(identity, files)
        record.document.update({"toolchain": {"components": components}, "target": {"ep": "stub", "device": "cpu"}})
        name = uuid.uuid4().hex
        folder = store.layout.generations / name
        folder.mkdir()
        for path, data in files.items():
            (folder / path).write_bytes(data)
        marker = store.layout.marker(identity)
        marker.parent.mkdir(exist_ok=True)
        marker.write_bytes(marker_bytes(Marker(generation=name, record=record)))
        when = time.time() - 1_000_000 + number
        os.utime(marker, (when, when))


def seconds(call: Callable[[], object]) -> float:
    """How long it takes, in seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def hit(store: Store, identity: str) -> None:
    """Find and verify one generation."""
    found = store.find(identity)
    assert isinstance(found, Generation), found
    found.close()


def opened_by_a_hit(root: Path, text: str) -> int:
    """Files and folders that a hit opens."""
    return int(support.run("opens", root, text)[1])


def command(root: Path, *arguments: str) -> None:
    """Run a whole command, which costs a third of a second by itself."""
    environ = {**os.environ, "EPCTX_CACHE_DIR": str(root), "PYTHONPATH": str(REPOSITORY)}
    program = [sys.executable, "-m", "hatch_epctx", *arguments]
    subprocess.run(program, cwd=root, env=environ, capture_output=True, check=True)


def measure(root: Path, count: int) -> dict[str, float]:
    """Figures of a store with `count` generations. In the end half of them are left."""
    identities = [support.identity_of(f"m{number}") for number in range(count)]
    store = Store(root)
    fill(store, identities)
    figures: dict[str, float] = {"generations": count}
    figures["files opened by a hit"] = opened_by_a_hit(root, "m0")
    hit(store, identities[0])
    figures["hit, ms"] = 1000 * min(seconds(lambda: hit(store, identities[1])) for _ in range(20))
    figures["survey, s"] = seconds(lambda: collecting.look(store))
    size = collecting.look(store).size
    figures["list with targets, s"] = seconds(lambda: [store.record(identity) for identity in identities])
    figures["epctx cache list, s"] = seconds(lambda: command(root, "cache", "list", "--json"))
    figures["epctx cache collect with nothing to do, s"] = seconds(lambda: command(root, "cache", "collect"))
    figures["check, s"] = seconds(lambda: list(collecting.check(store)))
    figures["collection with nothing to do, s"] = seconds(lambda: collecting.collect(store, Limits(max_size=size)))
    said: list[str] = []
    limits = Limits(max_size=size - size // 20)

    def after_build() -> None:
        collecting.after_build(store, limits, grown=1, say=said.append)

    figures["after a build, over the limit, s"] = seconds(after_build)
    before = len(collecting.look(store).items)
    figures["collected by it"] = count - before
    figures["collection of the rest of a half, s"] = seconds(
        lambda: collecting.collect(store, Limits(max_size=size // 2))
    )
    figures["collected then"] = before - len(collecting.look(store).items)
    return figures


def variants(folder: Path, models: int, targets: int) -> dict[str, float]:
    """Figures of `epctx plan` over models x targets that are all hits."""
    from support import Factory

    lines = "".join(
        f'[tool.epctx.targets.t{number}]\nep = "stub"\nprovider-options = {{ table = {{ n = {number} }} }}\n'
        for number in range(targets)
    )
    project = Factory(folder).project(lines, models=tuple(f"m{number}" for number in range(models)))
    root = folder / "cache"
    paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests" / "stub_ep")])
    environ = {**os.environ, "EPCTX_CACHE_DIR": str(root), "PYTHONPATH": paths}

    def plan() -> dict[str, object]:
        command = [sys.executable, "-m", "hatch_epctx", "plan", "--json"]
        done = subprocess.run(command, cwd=project.root, env=environ, capture_output=True, text=True, check=True)
        answer: dict[str, object] = json.loads(done.stdout)
        return answer

    fill(Store(root), [entry["identity"] for entry in plan()["variants"]])  # type: ignore[attr-defined,index]
    times = []
    for _ in range(2):
        start = time.perf_counter()
        entries: list[dict[str, str]] = plan()["variants"]  # type: ignore[assignment]
        times.append(time.perf_counter() - start)
    assert {entry["status"] for entry in entries} == {"hit"}
    return {"variants": len(entries), "plan, all hits, s": min(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generations", type=int, default=10_000)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--targets", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="epctx-scale-") as folder:
        runs = [measure(Path(folder) / str(part), options.generations // part) for part in (100, 10, 1)]
        for name in runs[0]:
            print(f"{name:40}", *(f"{run[name]:>12,.2f}" for run in runs))
        for name, value in variants(Path(folder) / "project", options.models, options.targets).items():
            print(f"{name:40} {value:>12,.2f}")


if __name__ == "__main__":
    main()
