"""How fast installed files are verified, beside the speed of the hash alone, in one run.

Run: python tests/benchmarks/bench_verify.py [--size MIB] [--files N] [--rounds N]

"hash" is SHA-256 of the same amount of memory in one thread; "one file" is `verify="always"` of one file, "files" of
several files of that size at once; "again" is `verify="once"` of the same files when they are remembered. Everything
is in the page cache. Prints GiB/s by the least time of several rounds, which other work on the machine disturbs least.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_epctx.digest import digest_file
from hatch_epctx.manifest import Artifact
from hatch_epctx.runtime import verify

if TYPE_CHECKING:
    from collections.abc import Callable


def least(rounds: int, call: Callable[[], object]) -> float:
    """Seconds of the fastest call."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=256, help="MiB of one file")
    parser.add_argument("--files", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    size = given.size << 20
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        verify.GRAIN = 0.0  # type: ignore[misc]  # remember at once
        data = os.urandom(1 << 20)
        artifacts = []
        for number in range(given.files):
            path = folder / f"{number}.bin"
            with path.open("wb") as stream:
                for _ in range(given.size):
                    stream.write(data)
            artifacts.append(Artifact(path=path.name, size=size, digest=digest_file(path), role="context"))
        memory = bytes(size)
        seconds = {
            "hash": least(given.rounds, lambda: hashlib.sha256(memory)),
            "one file": least(given.rounds, lambda: verify.verify_files(folder, artifacts[:1], "always")),
            f"{given.files} files": least(given.rounds, lambda: verify.verify_files(folder, artifacts, "always")),
        }
        verify.verify_files(folder, artifacts, "once")
        again = least(given.rounds, lambda: verify.verify_files(folder, artifacts, "once"))
    total = {"hash": size, "one file": size, f"{given.files} files": size * given.files}
    speed = {way: total[way] / seconds[way] / (1 << 30) for way in seconds}
    for way, value in speed.items():
        print(f"{way:>10}  {value:6.2f} GiB/s  {value / speed['hash']:5.2f} times the hash alone")
    print(f"{'again':>10}  {again * 1e3:6.3f} ms")


if __name__ == "__main__":
    main()
