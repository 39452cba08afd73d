"""What is left when the power goes: images of a file system's disk, taken while builds and collections go on.

A small ext4 on a loop device, mounted so that it orders as little as it may (`data=writeback,noauto_da_alloc`). What
was not flushed is in memory and not in the image, so a copy of the image at any moment is the disk after a power cut.
Each copy is mounted (which replays the journal), and then: every marker selects a whole generation, pins are there or
not, the next builds are right, and a collection leaves nothing that no marker names. Needs root: it mounts, in a mount
namespace of its own.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from stress.workload import everything_is_right, fork, next_builds_are_right

from hatch_epctx import collect as collecting
from hatch_epctx.files import disk
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS: Final = "loop,data=writeback,noauto_da_alloc,commit=1"
SIZE: Final = "32M"


def campaign(folder: Path, cuts: int, *, seed: int) -> Counter[str]:
    """Cut the power `cuts` times; return what was found."""
    chance = random.Random(seed)
    tally: Counter[str] = Counter()
    image = folder / "disk"
    with open(image, "wb") as stream:
        stream.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    with _mounted(image, folder / "live") as live:
        root = live / "cache"
        Store(root).sweep_dead()
        for _ in range(cuts):
            children = [fork(root, chance.getrandbits(32)) for _ in range(3)]
            time.sleep(0.1 + chance.random() * 0.6)
            for pid in children:
                os.kill(pid, signal.SIGSTOP)
            _copy(image, folder / "cut")
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                assert os.WIFSIGNALED(status), f"a process failed by itself with {os.waitstatus_to_exitcode(status)}"
            with _mounted(folder / "cut", folder / "after") as after:
                _examine(after / "cache", chance, tally)
            tally["power cuts"] += 1
    return tally


def _copy(image: Path, copy: Path) -> None:
    """Copy the image as it is at one moment: until two copies are the same."""
    shutil.copyfile(image, copy)
    while True:
        second = copy.with_suffix(".again")
        shutil.copyfile(image, second)
        same = copy.read_bytes() == second.read_bytes()
        second.replace(copy)
        if same:
            return


def _examine(root: Path, chance: random.Random, tally: Counter[str]) -> None:
    store = Store(root)
    tally["generations found whole"] += sum(_whole(found) for found in collecting.check(store))
    next_builds_are_right(root, chance)
    everything_is_right(root, alone=True)


def _whole(found: collecting.Checked) -> bool:
    assert found.miss is None, f"after a power cut: {found}"
    return True


@contextmanager
def _mounted(image: Path, point: Path) -> Iterator[Path]:
    point.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", OPTIONS, str(image), str(point)], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--careless", action="store_true", help="flush nothing, to see that this is noticed")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        command = ["unshare", "-m", sys.executable, __file__, "--inside", "--cuts", str(options.cuts)]
        command += ["--seed", str(options.seed), *(["--careless"] if options.careless else [])]
        raise SystemExit(subprocess.run(command, check=False).returncode)
    if options.careless:
        disk._flush = lambda descriptor: None
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="epctx-powercut-") as folder:
        tally = campaign(Path(folder), options.cuts, seed=options.seed)
    print(f"seed {options.seed}, {time.monotonic() - start:.0f} s")
    for what, count in tally.items():
        print(f"{what}: {count:,}")
    print("every marker selected a whole generation")


if __name__ == "__main__":
    main()
