"""Opens a package's model in this process and says how many threads work at its inferences, and how long one takes.

    python tests/inference_threads.py FOLDER MODEL [RUNS]

Prints JSON: "working" threads (those that used at least a tenth of the time of the busiest one), "milliseconds" of
wall and "cpu_milliseconds" of processor time for one inference. On Linux.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from hatch_epctx import runtime

_TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


def ticks() -> dict[str, int]:
    """Processor time of each thread, in hundredths of a second."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        found[task.name] = int(fields[11]) + int(fields[12])
    return found


def main(folder: str, model: str, runs: int) -> None:
    session = runtime.open(folder).session(model, session_options={"session.intra_op_num_threads": "1"})
    random = np.random.default_rng(0)
    feed = {
        value.name: random.integers(0, 2, value.shape).astype(_TYPES[value.type])
        if "float" not in value.type
        else random.standard_normal(value.shape).astype(np.float32)
        for value in session.get_inputs()
    }
    for _ in range(5):
        session.run(None, feed)
    before, start = ticks(), time.perf_counter()
    for _ in range(runs):
        session.run(None, feed)
    seconds, after = time.perf_counter() - start, ticks()
    used = [count - before.get(name, 0) for name, count in after.items()]
    working = sum(count * 10 >= max(used) for count in used)
    cpu = sum(used) / os.sysconf("SC_CLK_TCK")
    print(json.dumps({"working": working, "milliseconds": seconds / runs * 1e3, "cpu_milliseconds": cpu / runs * 1e3}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 100)
