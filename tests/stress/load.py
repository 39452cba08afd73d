"""Eight processes on one store for minutes: builders, readers, a collector, one that clears and pins, a verifier.

No reader ever sees a missing, mixed or half-written generation; nobody meets an error; afterwards nothing is left.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from stress.workload import Actor, everything_is_right

if TYPE_CHECKING:
    from collections.abc import Callable

ROLES: Final[tuple[tuple[str, dict[Callable[[Actor], None], int]], ...]] = (
    ("builder", {Actor.build: 10, Actor.facts: 1}),
    ("builder", {Actor.build: 10, Actor.once: 1}),
    ("replacer", {Actor.build: 3, Actor.replace: 3, Actor.sweep: 1}),
    ("reader", {Actor.read: 1}),
    ("reader", {Actor.read: 1}),
    ("collector", {Actor.collect: 5, Actor.sweep: 1}),
    ("clearer", {Actor.clear: 1, Actor.pin: 20, Actor.build: 5}),
    ("verifier", {Actor.verify: 3, Actor.read: 1}),
)


def campaign(root: Path, seconds: float, *, seed: int) -> Counter[str]:
    """Let every role work for so long; return what they did.

    Raises:
        AssertionError: one of them saw what it must not see; its traceback stands on standard error.
    """
    scratch = root.parent / "copies"
    scratch.mkdir()
    children = {}
    for number, (role, actions) in enumerate(ROLES):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _act(Actor(root, seed + number, scratch=scratch), actions, seconds, writing)
        os.close(writing)
        children[pid] = (role, reading)
    total: Counter[str] = Counter()
    failed = []
    for pid, (role, reading) in children.items():
        with os.fdopen(reading) as stream:
            text = stream.read()
        _, status = os.waitpid(pid, 0)
        if status != 0:
            failed.append(role)
        else:
            total.update(json.loads(text))
    assert not failed, f"failed: {', '.join(failed)}"
    total["generations left and right"] = everything_is_right(root, alone=True)
    return total


def _act(actor: Actor, actions: dict[Callable[[Actor], None], int], seconds: float, writing: int) -> None:
    try:
        end = time.monotonic() + seconds
        actor.work(actions, until=lambda: time.monotonic() >= end)
        os.write(writing, json.dumps(actor.tally).encode())
    except BaseException:  # noqa: BLE001  # the parent sees the exit code, the reader the traceback
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="epctx-load-") as folder:
        tally = campaign(Path(folder) / "cache", options.seconds, seed=options.seed)
    print(f"seed {options.seed}, {len(ROLES)} processes, {options.seconds:.0f} s")
    for what, count in tally.items():
        print(f"{what}: {count:,}")
    print("no wrong read")


if __name__ == "__main__":
    main()
