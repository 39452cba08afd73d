"""The last lines of a worker's log, fit to be shown: plain text without this machine's folders."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from hatch_epctx.files import open_regular

__all__ = ["log_tail"]

LINES: Final = 40
LINE_LIMIT: Final = 400
"""Characters of one line."""
_BYTES: Final = 128 * 1024
"""Read from the end of the log."""

# ECMA-48: control sequences, operating-system commands, and two-character escapes.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def log_tail(path: Path, folder: Path) -> str:
    """The last `LINES` lines of the log at `path`; empty when there is none.

    Escape sequences and control characters are gone, and of a line that was drawn over and over (a progress bar)
    what was drawn last is kept. The job's `folder` and the user's home are cut from paths.
    """
    try:
        with open_regular(path) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _BYTES))
            text = stream.read(_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [_clean(line) for line in text.split("\n")]
    if size > _BYTES and len(lines) > 1:
        del lines[0]  # begins anywhere
    shown = "\n".join([line for line in lines if line.strip()][-LINES:])
    for place in sorted({str(folder), str(folder.resolve())}, key=len, reverse=True):
        shown = shown.replace(f"{place}{os.sep}", "").replace(place, ".")
    home = str(Path.home()) if os.environ.get("HOME") or os.name == "nt" else ""
    return re.sub(rf"(?<![\w./\\-]){re.escape(home)}(?=[/\\])", "~", shown) if len(home) > 1 else shown


def _clean(line: str) -> str:
    drawn = _ESCAPE.sub("", line).rstrip("\r").rpartition("\r")[2]
    plain = _CONTROL.sub("", drawn).rstrip()
    return plain if len(plain) <= LINE_LIMIT else plain[: LINE_LIMIT - 3] + "..."
