"""A live display on a terminal: what is being worked on, for how long, and how long it will take by earlier compiles.

Lines that stay (hits, results, warnings) scroll by above it as they would without a terminal; what only says that
something goes on is shown in the display instead. It is on standard error, and gone when the build is done.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final

from hatch_epctx.console import Lines, duration, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rich.console import Console, RenderableType

    from hatch_epctx.config import LogLevel, Variant

__all__ = ["Live", "can_show"]

_BEGINS: Final = ("compiling", "packing", "checking", "waiting")
"""First words of what goes on until another line of the same variant follows."""
_ENDS: Final = ("hit", "compiled", "packed", "fetched", "failed", "skipped")
"""First words of the last line of a variant."""
_SIGN: Final = "still"
"""First word of a sign of life, which the display gives by itself."""
_RATE: Final = 8
"""Times a second that the display is drawn."""
_BAR: Final = 24


def can_show(stream: IO[str]) -> bool:
    """Whether `stream` is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("dumb", "unknown")


@dataclass(slots=True)
class _Work:
    """One variant that is worked on."""

    what: str
    expected: float | None
    since: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.since


class Live:
    """The report of a pipeline as a live display; any thread may call it. See `pipeline.Watcher`.

    Args:
        stream: a terminal.
        level: as of `Lines`.
    """

    def __init__(self, stream: IO[str] = sys.stderr, *, level: LogLevel = "info") -> None:
        from rich.console import Console
        from rich.live import Live as Display

        self._guard = threading.Lock()
        self._expected: dict[str, float | None] = {}
        self._work: dict[str, _Work] = {}
        self._done: set[str] = set()
        self._jobs = 1
        self._console: Console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._display = Display(
            console=self._console, get_renderable=self._drawn, refresh_per_second=_RATE, transient=True
        )
        self._lines = Lines(self._print, level=level)
        self.debug = self._lines.debug

    def __call__(self, variant: Variant | None, text: str) -> None:
        """One line about a variant, or about the whole build."""
        word = text.partition(" ")[0].rstrip(":")
        if variant is not None and self._display.is_started:
            with self._guard:
                if word in _BEGINS:
                    expected = self._expected.get(variant.name) if word == "compiling" else None
                    self._work[variant.name] = _Work(what=word, expected=expected)
                elif word in _ENDS:
                    self._work.pop(variant.name, None)
                    self._done.add(variant.name)
            if word in _BEGINS or word == _SIGN:
                self._lines.debug(f"{variant.name}: {text}")
                return
        self._lines(variant, text)

    def begin(self, expected: Mapping[str, float | None], jobs: int) -> None:
        """Show the display; see `pipeline.Watcher`."""
        self._expected, self._jobs = dict(expected), jobs
        self._work.clear()
        self._done.clear()
        self._display.start()

    def end(self) -> None:
        """Take the display away."""
        self._display.stop()

    def _print(self, line: str) -> None:
        self._console.print(line)

    def _drawn(self) -> RenderableType:
        """The display as it is now."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        with self._guard:
            work = [(name, item.what, item.elapsed, item.expected) for name, item in self._work.items()]
            done = len(self._done)
        table = Table.grid(padding=(0, 1))
        for name, what, elapsed, expected in work:
            title, spent = Text(printable(name), style="bold"), Text(duration(elapsed), style="cyan")
            table.add_row(title, what, _bar(elapsed, expected), spent, _left(elapsed, expected))
        rest = self._rest(work)
        about = f", about {duration(rest)} left" if rest else ""
        # A row of the table would be cut to the width of the names.
        return Group(table, Text(f"{done} of {len(self._expected)} variants{about}", style="dim"))

    def _rest(self, work: Iterable[tuple[str, str, float, float | None]]) -> float | None:
        """Seconds until everything is done, by earlier compiles; None where too little is known."""
        busy = {name: max(expected - elapsed, 0.0) for name, _, elapsed, expected in work if expected is not None}
        waiting = {
            name: seconds
            for name, seconds in self._expected.items()
            if name not in self._done and name not in {item[0] for item in work}
        }
        if any(seconds is None for seconds in waiting.values()):
            return None
        total = sum(busy.values()) + sum(seconds or 0.0 for seconds in waiting.values())
        return max([total / self._jobs, *busy.values()]) if total else None


def _bar(elapsed: float, expected: float | None) -> Any:
    from rich.progress_bar import ProgressBar

    if expected:
        return ProgressBar(total=expected, completed=min(elapsed, 0.98 * expected), width=_BAR)
    return ProgressBar(total=1, completed=0, width=_BAR, pulse=True)


def _left(elapsed: float, expected: float | None) -> str:
    if not expected:
        return ""
    return f"about {duration(expected - elapsed)} left" if expected > elapsed else "longer than last time"
