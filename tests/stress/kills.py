"""Random kill -9 over builds, readers and collections, again and again: nothing is lost and nothing is mixed.

Most kills hit forked processes that use the store as a pipeline does; some hit whole `epctx build` and `epctx cache
collect` commands with their workers. After every kill: every marker selects a whole generation and the next build is
right. After every tenth, with nobody alive: a collection leaves nothing that no marker names.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from stress.workload import everything_is_right, fork, next_builds_are_right

REPOSITORY = Path(__file__).parent.parent.parent


def campaign(root: Path, kills: int, *, seed: int, commands: int = 0) -> Counter[str]:
    """Kill `kills` processes, `commands` of them whole commands; return what was seen."""
    chance = random.Random(seed)
    tally: Counter[str] = Counter()
    project = _project(root.parent / "project") if commands else None
    turns = ["command"] * commands + ["process"] * (kills - commands)
    chance.shuffle(turns)
    for number, turn in enumerate(turns):
        if turn == "command" and project is not None:
            _kill_command(root, project, chance, tally)
            if chance.random() < 0.2:  # the next one, let alone, does what it should
                assert _command(root, project, ["build"]).wait() == 0
                tally["commands let alone"] += 1
        else:
            _kill_processes(root, chance, tally)
        tally["kills"] += 1
        next_builds_are_right(root, chance)
        if number % 10 == 9 or number == len(turns) - 1:
            tally["generations checked"] += everything_is_right(root, alone=True)
        if sys.stderr.isatty() and number % 10 == 0:
            print(f"\r{number}/{kills} {dict(tally)}", end="", file=sys.stderr)
    return tally


def _kill_processes(root: Path, chance: random.Random, tally: Counter[str]) -> None:
    """Three at work; one is killed at a random moment, then the others, one after the other."""
    children = [fork(root, chance.getrandbits(32)) for _ in range(3)]
    time.sleep(chance.expovariate(1 / 0.08))
    os.kill(children[0], signal.SIGKILL)
    time.sleep(chance.random() * 0.02)
    everything_is_right(root)
    for pid in children[1:]:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status), f"a process failed by itself with {os.waitstatus_to_exitcode(status)}"
    tally["bystanders killed"] += 2


def _project(folder: Path) -> Path:
    from support import STUB_TARGET, Factory

    targets = "".join(
        f'[tool.epctx.targets.t{level}]\nep = "stub"\nprovider-options = {{ level = "{level}" }}\n'
        for level in range(3)
    )
    return Factory(folder).project(STUB_TARGET + targets, models=("one", "two")).root


def _kill_command(root: Path, project: Path, chance: random.Random, tally: Counter[str]) -> None:
    """Kill `epctx build` or `epctx cache ...`, with whatever it has started."""
    arguments = chance.choice(
        (["build"], ["build", "-j", "4"], ["cache", "collect", "--max-size", "0B"], ["cache", "clear"])
    )
    command = _command(root, project, arguments)
    try:
        command.wait(timeout=0.4 + chance.random() * (4 if arguments[0] == "build" else 0.6))
        tally["commands that were faster"] += 1
        assert command.returncode == 0, arguments
    except subprocess.TimeoutExpired:
        command.kill()
        command.wait()
        tally["commands killed"] += 1


def _command(root: Path, project: Path, arguments: list[str]) -> subprocess.Popen[bytes]:
    paths = [REPOSITORY, REPOSITORY / "tests" / "stub_ep"]
    return subprocess.Popen(
        [sys.executable, "-m", "hatch_epctx", *arguments],
        cwd=project,
        env={**os.environ, "EPCTX_CACHE_DIR": str(root), "PYTHONPATH": os.pathsep.join(map(str, paths))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--commands", type=int, default=None, help="kills of whole commands among them (a fifth)")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    commands = options.kills // 5 if options.commands is None else options.commands
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="epctx-kills-") as folder:
        tally = campaign(Path(folder) / "cache", options.kills, seed=options.seed, commands=commands)
    print(f"seed {options.seed}, {time.monotonic() - start:.0f} s")
    for what, count in tally.items():
        print(f"{what}: {count:,}")
    print("nothing was lost or mixed")


if __name__ == "__main__":
    main()
