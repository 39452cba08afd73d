"""Fault points: named places at which a test makes the process die or an operating-system call fail.

A point does nothing unless ``EPCTX_TEST=1`` and ``EPCTX_TEST_FAULT=<point>:<action>`` are both set in the
environment; ``<point>@2`` means the second time that this process gets there, and only that one. Actions: ``kill``
(SIGKILL to this process: nothing is cleaned up, as with a power cut that spares the page cache), or the name of an
error such as ``ENOSPC`` (an `OSError` with that number is raised).
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from typing import Final

__all__ = ["FAULT_POINTS", "fault_point"]

FAULT_POINTS: Final[tuple[str, ...]] = (
    "claim-made",  # a lease file exists, its lock is not taken yet
    "staging-made",  # the private folder exists and is claimed
    "snapshot-copied",  # one file of the source is there
    "compiled",  # the worker is done, its result is valid
    "loaded",  # the load check is done, or was not asked for
    "artifact-taken",  # one artifact has left the work folder
    "staged",  # all artifacts wait in the folder that will be published
    "synced",  # their bytes are durable
    "renamed",  # the generation stands under its name, which is not durable yet
    "marker-before",  # the generation is durable, no marker names it
    "marker-temp",  # the new marker is durable under a temporary name
    "marker-replaced",  # the marker names the generation
    "marker-after",  # and that is durable
    "file-temp",  # a remembered fact stands under a temporary name
    "file-replaced",
    "sweep-before",  # dead claims are known, nothing was removed
    "sweep-moved",  # a dead generation was moved away, its bytes are still there
    "discard-before",  # a generation used once is about to go
    "discard-moved",
    "collect-before",  # a generation and its markers are about to go
    "collect-unmarked",  # no marker names it any more
    "collect-superseded",  # a generation that no marker names is about to go
    "collect-moved",  # it was moved away, its bytes are still there
    "root-temp",  # a new root stands under a temporary name
    "root-replaced",  # it is there, not durable yet
)
"""Every point, in the order of a compile and its publish; what the next run has to cope with stands beside each."""

_SIGKILL: Final = 9
"""By number: importing `signal` costs every program that opens a model."""

_passed: Counter[str] = Counter()


def fault_point(name: str) -> None:
    """Fail here if a test asked for it; otherwise do nothing.

    Raises:
        OSError: the test asked for this error.
        ValueError: `name` is not in `FAULT_POINTS`, or the action is unknown.
    """
    if os.environ.get("EPCTX_TEST") != "1":
        return
    if name not in FAULT_POINTS:
        raise ValueError(f"unknown fault point {name!r}")
    place, _, action = os.environ.get("EPCTX_TEST_FAULT", "").partition(":")
    wanted, _, turn = place.partition("@")
    if wanted != name:
        return
    _passed[place] += 1
    if not turn or int(turn) == _passed[place]:
        _act(name, action)


def _act(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), _SIGKILL)
        time.sleep(60)  # the signal may arrive a moment later
    number = getattr(errno, action, None)
    if number is None:
        raise ValueError(f"unknown fault action {action!r}")
    raise OSError(number, os.strerror(number), f"fault point {name}")
