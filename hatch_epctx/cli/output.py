"""What commands print: plain tables for people, JSON for programs. Progress goes to standard error."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence

    from hatch_epctx.config import Variant

__all__ = ["emit_json", "progress", "size", "table"]


def emit_json(value: Any) -> None:
    """Print `value` as JSON, keys in the order given."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print left-aligned columns, each as wide as its widest cell; the last one is never padded."""
    lines = [list(head), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line[:-1], widths, strict=False)]
        print("  ".join([*cells, line[-1]]).rstrip())


def size(count: int) -> str:
    """A number of bytes for people: "512 B", "1.5 MiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def progress(options: Namespace) -> Callable[[Variant | None, str], None]:
    """The pipeline's report function: lines on standard error, none with --quiet."""
    guard = threading.Lock()

    def report(variant: Variant | None, text: str) -> None:
        if not options.quiet:
            with guard:
                print(f"epctx: {variant.name + ': ' if variant else ''}{text}", file=sys.stderr, flush=True)

    return report
