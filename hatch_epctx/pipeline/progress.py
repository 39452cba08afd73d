"""Saying what goes on: lines of progress, and a sign of life while nothing else happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hatch_epctx.config import Variant

__all__ = ["INTERVAL", "Report", "Watcher", "signs_of_life", "silent", "watched"]

Report = Callable[["Variant | None", str], None]
"""Called with a variant (None: the whole build) and a line of progress, from any thread."""

INTERVAL: Final = 10.0
"""Seconds between two signs of life: a log that is silent for minutes looks like a hang."""


@runtime_checkable
class Watcher(Protocol):
    """A report that shows more than lines, and is told beforehand what there is to do."""

    def begin(self, expected: Mapping[str, float | None], jobs: int) -> None:
        """The work begins.

        Args:
            expected: by variant, the seconds that it will take: 0 for what the store has, None where it is not known.
            jobs: how much is done side by side.
        """

    def end(self) -> None:
        """The work is over, in whatever way."""


@contextmanager
def watched(report: Report, expected: Callable[[], Mapping[str, float | None]], jobs: int) -> Iterator[None]:
    """Tell a `Watcher` what there is to do, and when it is over; any other report, and `expected`, are left alone."""
    watcher: object = report
    if not isinstance(watcher, Watcher):
        yield
        return
    watcher.begin(expected(), jobs)
    try:
        yield
    finally:
        watcher.end()


def silent(variant: Variant | None, text: str) -> None:
    """The report that tells nobody."""


@contextmanager
def signs_of_life(report: Report, variant: Variant, text: str = "still compiling") -> Iterator[None]:
    """Say "<text> (20 s)" every `INTERVAL` seconds until the block ends, and never after that.

    What `report` raises ends the signs and nothing else: the compile is worth more than its progress.
    """
    over = threading.Event()

    def tell() -> None:
        start = time.monotonic()
        with suppress(Exception):
            while not over.wait(INTERVAL):
                report(variant, f"{text} ({time.monotonic() - start:.0f} s)")

    thread = threading.Thread(target=tell, name=f"epctx-progress-{variant.name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
