"""What commands print: plain tables for people, JSON for programs. Progress goes to standard error.

Nothing here colours or moves a cursor (a live display of progress does, see `live`), and text from models and wheels
is made safe first. A character that the stream's encoding lacks (an old code page on Windows) is spelt out and never
ends a command.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hatch_epctx.cli.live import Live, can_show
from hatch_epctx.console import Lines, duration, printable, size

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Collection, Iterator, Sequence

    from hatch_epctx.config import LogLevel

__all__ = [
    "UnwritableError",
    "complain",
    "counted",
    "cut",
    "duration",
    "emit_json",
    "flush",
    "prepare_streams",
    "progress",
    "say",
    "size",
    "table",
    "writing",
]


class UnwritableError(Exception):
    """Standard output takes no more, as on a full disk."""


def prepare_streams() -> None:
    """Let no character and no closed stream end a command: what an encoding cannot say is spelt out."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # A free descriptor would be that of the next file that is opened, and workers would print into it.
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115  # as long as the process
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # replaced by something that is no text file
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


@contextmanager
def writing() -> Iterator[None]:
    """Around whatever writes to standard output.

    A reader that went away (head, a pager) does not change what the command does nor its exit code; nothing more is
    written then.

    Raises:
        UnwritableError: it cannot be written for another reason.
    """
    try:
        yield
    except BrokenPipeError:
        _discard()
    except OSError as error:
        _discard()
        raise UnwritableError(f"standard output cannot be written: {error.strerror or error}") from error


def _discard() -> None:
    """Send what is left, and what the interpreter writes at its end, to nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def flush() -> None:
    """Write what standard output holds back; a full disk or a closed pipe shows here and not at exit."""
    with writing():
        sys.stdout.flush()


def say(text: str = "") -> None:
    """Print lines for people on standard output."""
    with writing():
        print(printable(text))


def complain(text: str) -> None:
    """Print lines on standard error; one that cannot be written ends nothing."""
    with suppress(UnwritableError):
        flush()
    _tell(f"epctx: {printable(text)}")


def _tell(line: str) -> None:
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def emit_json(options: Namespace, value: Any) -> None:
    """Print `value` as the command's one JSON document, keys in the order given. ASCII, whatever the code page is."""
    options.answered = True
    with writing():
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
    return Lines(_tell, level=level)
