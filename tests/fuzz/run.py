"""Coverage-guided fuzzing of one reader, or of all of them one after the other, with atheris (libFuzzer).

    run.py marker --runs 400000
    run.py all --runs 200000

A run begins with the kept corpus, `tests/fuzz/corpus/READER`. With ``--keep`` what it finds is merged into it, and
the corpus stays small: only what takes new steps through the code is kept. A finding is written to ``--artifacts`` and
ends the run with an error; it then becomes a test.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
DICTIONARY = HERE / "json.dict"
READERS = ("marker", "manifest", "onnx", "references", "root", "result", "wheel", "json", "lock", "entry", "archive")
JSON = {"marker", "manifest", "root", "result", "json"}
VALUES: tuple[Any, ...] = (
    "", "..", "../x", "a/../b", "C:x", "NUL", "a\\b", "\u0000", "\ud800", "e\u0301", "x" * 300, "/etc", "epctx", "ort",
    0, -1, 1.5, 1e300, 10**19, 10**40, True, None, [], {}, [[]], {"": {}}, "1.0", "model", "context", "5" * 64,
)  # fmt: skip
"""What a changed tree may hold in a place: names that lead out, numbers that do not fit, other types."""
LARGEST = 2048
"""Bytes of a file that goes into the kept corpus."""
LONGEST = 8192
"""Bytes of an input: what is larger is refused by a limit that has a test of its own."""


def fuzz(reader: str, arguments: list[str]) -> None:
    """Be the fuzzer; does not return."""
    import atheris

    sys.path[:0] = [str(HERE), str(HERE.parent.parent)]
    with atheris.instrument_imports(include=["hatch_epctx"]):
        from readers import READERS as FUNCTIONS

    def mutate(data: bytes, limit: int, seed: int) -> bytes:
        """Every other time a change of the tree that the text describes: changed bytes are seldom JSON."""
        changed = change_json(data, random.Random(seed)) if seed % 2 else None
        mutated: bytes = atheris.Mutate(data, limit) if changed is None or len(changed) > limit else changed
        return mutated

    mutator = {"custom_mutator": mutate} if reader in JSON else {}
    atheris.Setup([sys.argv[0], *arguments], FUNCTIONS[reader], **mutator)
    atheris.Fuzz()


def change_json(data: bytes, chance: random.Random) -> bytes | None:
    """Replace, remove, double or move one value of a JSON text; None when it is none."""
    head, text = (data[:1], data[1:]) if data[:1] < b" " else (b"", data)  # a result's first byte is its task
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return None
    places: list[tuple[Any, Any]] = []
    level = [tree]
    while level:
        inner = level.pop()
        keys = list(inner) if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
        places += [(inner, key) for key in keys]
        level += [inner[key] for key in keys]
    if not places:
        return head + json.dumps([tree]).encode()
    inner, key = chance.choice(places)
    other, other_key = chance.choice(places)
    change = chance.randrange(5)
    if change == 0:
        del inner[key]
    elif change == 1:
        inner[key] = chance.choice(VALUES)
    elif change == 2 and isinstance(inner, list):
        inner.insert(key, inner[key])
    elif change == 3 and isinstance(inner, dict):
        inner[chance.choice(VALUES[:8])] = inner.pop(key)
    else:
        inner[key] = json.loads(json.dumps(other[other_key]))
    return head + json.dumps(tree).encode()


def run(reader: str, *, runs: int, seed: int, corpus: Path, artifacts: Path) -> tuple[int, int]:
    """Fuzz in a process of its own; return (executions, edges covered).

    Raises:
        SystemExit: there is a finding.
    """
    options = [f"-atheris_runs={runs}", f"-seed={seed}", f"-max_len={LONGEST}", "-timeout=25"]
    options += ["-rss_limit_mb=2048", f"-artifact_prefix={artifacts}/{reader}-"]
    if reader in JSON:
        options.append(f"-dict={DICTIONARY}")
    command = [sys.executable, __file__, "--inside", reader, *options, str(corpus)]
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108  # a folder of our own in it
    with tempfile.TemporaryDirectory(prefix="epctx-fuzz-", dir=place) as folder:
        environ = {**os.environ, "EPCTX_FUZZ_FOLDER": folder}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, errors="replace", check=False)
    executed = re.search(r"^Done (\d+) ", done.stderr, re.MULTILINE)
    covered = re.findall(r"cov: (\d+)", done.stderr)
    if done.returncode != 0 or executed is None:
        print(done.stderr[-6000:], file=sys.stderr)
        raise SystemExit(f"{reader}: ended with {done.returncode}: a finding, see {artifacts}")
    return int(executed[1]), int(covered[-1]) if covered else 0


def keep(reader: str, found: Path) -> int:
    """Add to the kept corpus what reaches steps of our code that nothing kept reaches; return how many files it has.

    Small inputs come first, so that the corpus stays small.
    """
    sys.path[:0] = [str(HERE), str(HERE.parent.parent)]
    from readers import READERS as FUNCTIONS

    kept = CORPUS / reader
    ours = str(HERE.parent.parent / "hatch_epctx")
    known: set[tuple[str, int, int]] = set()
    for folder in (kept, found):
        for path in sorted(folder.iterdir(), key=lambda path: (path.stat().st_size, path.name)):
            steps = steps_of(FUNCTIONS[reader], path.read_bytes(), ours)
            if folder == found and not steps <= known and path.stat().st_size <= LARGEST:
                shutil.copyfile(path, kept / path.name)
                known |= steps
            elif folder == kept:
                known |= steps
    return len(list(kept.iterdir()))


def steps_of(function: Callable[[bytes], None], data: bytes, ours: str) -> set[tuple[str, int, int]]:
    """(file, line, next line) of each step through our code that `function` takes for `data`."""
    steps: set[tuple[str, int, int]] = set()

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(ours):
            return None
        before = 0

        def inside(frame: FrameType, event: str, _argument: object) -> Any:
            nonlocal before
            if event == "line":
                steps.add((name, before, frame.f_lineno))
                before = frame.f_lineno
            return inside

        return inside

    sys.settrace(trace)
    try:
        function(data)
    finally:
        sys.settrace(None)
    return steps


def main() -> None:
    if sys.argv[1:2] == ["--inside"]:
        fuzz(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reader", choices=(*READERS, "all"))
    parser.add_argument("--runs", type=int, default=100_000, help="executions of each reader")
    parser.add_argument("--seed", type=int, default=1, help="0: another one each time")
    parser.add_argument("--keep", action="store_true", help="merge what is found into the corpus")
    parser.add_argument("--artifacts", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    total = 0
    for reader in READERS if options.reader == "all" else (options.reader,):
        with tempfile.TemporaryDirectory() as name:
            corpus = Path(name) / "corpus"
            shutil.copytree(CORPUS / reader, corpus)
            executed, covered = run(
                reader, runs=options.runs, seed=options.seed, corpus=corpus, artifacts=options.artifacts
            )
            files = keep(reader, corpus) if options.keep else len(list(corpus.iterdir()))
        total += executed
        print(
            f"{reader}: {executed:,} executions, {covered} edges, {files} files in the corpus, no finding", flush=True
        )
    print(f"{total:,} executions without a finding")


if __name__ == "__main__":
    main()
