"""The report in a terminal: tables by rich, coloured where the terminal has colours, plain elsewhere."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, Final

from hatch_epctx.console import printable
from hatch_epctx.report.views import view

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

    _Section = tuple[str, Sequence[str], list[Sequence[str]]]

__all__ = ["print_report"]

_STYLES: Final[Mapping[str, str]] = {
    "compiled": "blue",
    "hit": "green",
    "fetched": "cyan",
    "skipped": "dim",
    "failed": "bold red",
}
_WIDTH: Final = 120
"""Columns where the output is no terminal."""


def print_report(summary: Mapping[str, Any], stream: IO[str]) -> None:
    """Print the tables of `summary` to `stream`."""
    from rich.console import Console  # noqa: PLC0415  # only this command pays for the import

    width = None if stream.isatty() else _WIDTH
    console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as text:  # written at once: rich would end the program where the reader went away
        _print(console, view(summary))
    stream.write(text.get())


def _print(console: Console, shown: Mapping[str, Any]) -> None:
    project, total = shown["project"], shown["total"]
    console.print(f"{printable(project['name'])} {printable(project['version'])}, {shown['made']['people']}")
    counts = ", ".join(f"{item['count']} {item['status']}" for item in shown["counts"] if item["count"])
    console.print(f"{total['variants']} variants: {counts}; {total['size']}, {total['seconds']}")
    _matrix(console, shown["matrix"])
    for title, head, rows in _sections(shown):
        _table(console, title, head, rows)
    for failure in shown["failures"]:
        console.print()
        console.print(f"{printable(failure['name'])} failed: {printable(failure['found'])}", style="bold red")
        for text in (failure["remedy"], failure["detail"]):
            if text:
                console.print(printable(text))


def _sections(shown: Mapping[str, Any]) -> Iterator[_Section]:
    rows: list[Sequence[str]] = [(row["name"], "; ".join(row["words"])) for row in shown["changes"]["rows"]]
    yield "What changed", ("VARIANT", "WORDS"), rows
    columns: tuple[str, ...] = ("name", "worker", "started", "seconds", "compile", "load", "check")
    head: tuple[str, ...] = ("VARIANT", "JOB", "BEGAN", "TOOK", "COMPILE", "LOAD", "CHECK")
    yield "Times in seconds", head, [tuple(row[key] for key in columns) for row in shown["timeline"]["rows"]]
    yield "Coverage", ("VARIANT", "NODES", "SHARE", "LEFT TO THE CPU"), [_covered(row) for row in shown["coverage"]]
    columns = ("name", "output", "verdict", "max_abs", "max_rel", "cosine")
    head = ("VARIANT", "OUTPUT", "VERDICT", "MAX ABS", "MAX REL", "COSINE")
    yield "Checks against the CPU EP", head, [tuple(row[key] for key in columns) for row in shown["checks"]]
    rows = [(row["name"], row["session"], row["compile"], row["ratio"]) for row in shown["startups"]]
    yield "Start-up", ("VARIANT", "COMPILED AHEAD", "COMPILING AT START", "RATIO"), rows
    rows = [(row["name"], row["role"], row["text"], row["share"], ", ".join(row["variants"])) for row in shown["sizes"]]
    yield "Sizes", ("ARTIFACT", "ROLE", "SIZE", "SHARE", "VARIANTS"), rows


def _covered(row: Mapping[str, Any]) -> tuple[str, ...]:
    left = ", ".join(item["text"] for item in row["left"]) + (f" and {row['more']} more" if row["more"] else "")
    nodes = f"{row['taken']} of {row['total']}" if row["known"] else f"{row['nodes_left']} left"
    return (row["name"], nodes, row["share"], left or "-")


def _matrix(console: Console, matrix: Mapping[str, Any]) -> None:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("MODEL", no_wrap=True)
    for target in matrix["targets"]:
        table.add_column(printable(target))
    for row in matrix["rows"]:
        cells = [
            Text("") if cell is None else Text(f"{cell['sign']} {cell['status']}", style=_STYLES[cell["status"]])
            for cell in row["cells"]
        ]
        table.add_row(Text(printable(row["model"])), *cells)
    console.print(table)


def _table(console: Console, title: str, head: Sequence[str], rows: list[Sequence[str]]) -> None:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if not rows:
        return
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(head):
        table.add_column(name, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    console.print(table)
