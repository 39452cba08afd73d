"""How much memory a worker uses, so that one that uses too much is killed.

The limit is held by looking, not by the system's own limits. RLIMIT_AS and RLIMIT_DATA make an allocation fail, and
what an EP makes of that is its own affair: QNN takes it for an operator that it cannot do (measured with 2.7.0: "op
validation failed", "duplicate graph name"), which may leave the node to the CPU and give other bytes under the same
identity. A worker that is killed gives none. RLIMIT_AS would not fit either: EPs map two to three times what they use.

What counts is memory of the process and its descendants that nothing but swap can take back: anonymous and shared
pages, in memory or in swap. Mapped files do not count, such as libraries and weights.

Limits of this: Linux alone tells it; between two looks a worker may use more.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

__all__ = ["can_measure", "memory_in_use"]

_PROC = Path("/proc")
_COUNTED: Final = ("RssAnon:", "RssShmem:", "VmSwap:")


def can_measure() -> bool:
    """Whether this system tells how much memory another process uses."""
    return sys.platform == "linux" and (_PROC / "self" / "status").exists()


def memory_in_use(pid: int) -> int:
    """Bytes that the process and its descendants use; 0 of one that is gone."""
    total, queue, seen = 0, [pid], set[int]()
    while queue:
        process = queue.pop()
        if process in seen:
            continue
        seen.add(process)
        total += _own(process)
        queue += _children(process)
    return total


def _own(pid: int) -> int:
    kibibytes = 0
    for line in _lines(_PROC / str(pid) / "status"):
        if line.startswith(_COUNTED):
            kibibytes += int(line.split()[1])
    return kibibytes << 10


def _children(pid: int) -> list[int]:
    # Of every thread: each has children of its own.
    try:
        threads = list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return []
    return [int(child) for thread in threads for line in _lines(thread / "children") for child in line.split()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
