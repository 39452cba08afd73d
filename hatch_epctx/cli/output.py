"""What commands print: plain tables for people, JSON for programs. Progress goes to standard error.

Nothing here colours or moves a cursor (a live display of progress does, see `live`), and text from models and wheels
is made safe first. A character that the stream's encoding lacks (an old code page on Windows) is spelt out and never
ends a command.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hatch_epctx.cli.live import Live, can_show
from hatch_epctx.console import Lines, duration, printable, size

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Collection, Sequence

    from hatch_epctx.config import LogLevel

__all__ = ["complain", "counted", "cut", "duration", "emit_json", "prepare_streams", "progress", "say", "size", "table"]


def prepare_streams() -> None:
    """Let no character end a command: what an encoding cannot say is spelt out."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # replaced by something that is no text file
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def say(text: str = "") -> None:
    """Print lines for people on standard output."""
    print(printable(text))


def complain(text: str) -> None:
    """Print lines on standard error."""
    sys.stdout.flush()
    print(f"epctx: {printable(text)}", file=sys.stderr, flush=True)


def emit_json(options: Namespace, value: Any) -> None:
    """Print `value` as the command's one JSON document, keys in the order given. ASCII, whatever the code page is."""
    options.answered = True
    print(json.dumps(value, indent=2))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, optional: Collection[str] = ()) -> None:
    """Print left-aligned columns, each as wide as its widest cell; the last one is never padded.

    Args:
        head: titles of the columns.
        rows: the cells; "-" says that there is nothing to say.
        optional: titles of columns that are left out where no row has anything to say.
    """
    lines = [[_cell(cell) for cell in row] for row in (head, *rows)]
    for column in reversed(range(len(head))):
        if head[column] in optional and all(line[column] in ("-", "") for line in lines[1:]):
            for line in lines:
                del line[column]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line[:-1], widths, strict=False)]
        say("  ".join([*cells, line[-1]]).rstrip())


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 hit, 2 hits."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _cell(text: str) -> str:
    return printable(" ".join(text.split()))


def cut(text: str, width: int) -> str:
    """`text` in at most `width` characters, with dots where something is left out."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


def progress(options: Namespace, level: LogLevel) -> Lines | Live:
    """The pipeline's report on standard error: a live display on a terminal, lines elsewhere.

    ``-q`` and ``-v`` stand over EPCTX_LOG; without information and in detail, lines say more than a display.
    """
    if options.quiet:
        level = "warning"
    elif options.verbose:
        level = "debug"
    if level == "info" and can_show(sys.stderr):
        return Live(sys.stderr, level=level)
    return Lines(lambda line: print(line, file=sys.stderr, flush=True), level=level)
