"""How many different results several compiles of one model give, with and without address-space randomisation.

    python tests/benchmarks/bench_determinism.py [--runs N] [--ep EP] [MODEL ...]

Prints one line for each model and EP: distinct results of N compiles with randomisation, and without it as workers
compile. The difference is what turning it off in the worker brings.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from models import MODELS, RealModel  # noqa: E402
from worker_support import EPS, put  # noqa: E402

from hatch_epctx import worker  # noqa: E402
from hatch_epctx.process import run_worker  # noqa: E402

_RANDOMISED = """
import runpy, sys
module = runpy.run_path({program!r}, run_name="worker_main")
module["main"].__globals__["_start_anew"] = lambda: None
module["main"](sys.argv)
"""


def results(model: RealModel, ep: str, runs: int, program: Path | None) -> tuple[int, bool]:
    """(distinct results, whether addresses were pinned) of `runs` compiles; 0 where they fail."""
    source = model.path()
    assert source is not None
    found: set[tuple[str, ...]] = set()
    pinned = False
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as name:
            folder = put(source, Path(name))
            job = {"task": "compile", "optimization": "basic", **EPS[ep]}
            job["free_dimensions"] = dict(model.free_dimensions)
            job["input_shapes"] = {key: list(sizes) for key, sizes in getattr(model, "input_shapes", {}).items()}
            outcome = run_worker(job, folder, timeout=300, env={}, program=program)  # type: ignore[arg-type]
            if outcome.result is None or not outcome.result["ok"]:
                return 0, False
            pinned = bool(outcome.result.get("extra", {}).get("pinned_addresses"))
            found.add(tuple(sorted(artifact["digest"] for artifact in outcome.result["artifacts"])))
    return len(found), pinned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="all of them when left out")
    parser.add_argument("--runs", type=int, default=4, help="compiles of each kind")
    parser.add_argument("--ep", choices=sorted(EPS), action="append", help="all of them when left out")
    options = parser.parse_args()
    own = Path(worker.__path__[0]) / "__main__.py"
    with tempfile.NamedTemporaryFile("w", suffix=".py") as stream:
        stream.write(_RANDOMISED.format(program=str(own)))
        stream.flush()
        print(f"{options.runs} compiles each, {os.cpu_count()} CPUs", flush=True)
        for name, model in MODELS.items():
            if (options.models and name not in options.models) or model.path() is None:
                continue
            for ep in options.ep or sorted(EPS):
                on, was_pinned = results(model, ep, options.runs, Path(stream.name))
                assert not was_pinned
                off, pinned = results(model, ep, options.runs, None)
                how = f"{on} with randomisation, {off} without" if on and off else "does not compile"
                print(f"{name:24} {ep:10} {how}{'' if pinned or not off else ' (could not be turned off)'}", flush=True)


if __name__ == "__main__":
    main()
