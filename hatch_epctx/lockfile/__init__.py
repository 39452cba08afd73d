"""epctx.lock: for every variant the identity document and the digests of its artifacts, beside pyproject.toml.

`records` is what a lock holds, `text` how it stands in the file, `drift` in what a build differs from it.
"""

from __future__ import annotations

from hatch_epctx.lockfile.drift import Drift, describe, drifts
from hatch_epctx.lockfile.records import FACTS, LOCK_NAME, Lock, LockedVariant
from hatch_epctx.lockfile.text import parse_lock, read_lock, write_lock

__all__ = [
    "FACTS",
    "LOCK_NAME",
    "Drift",
    "Lock",
    "LockedVariant",
    "describe",
    "drifts",
    "parse_lock",
    "read_lock",
    "write_lock",
]
