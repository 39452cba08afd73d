"""The last lines of a worker's log, fit to be shown: plain text without this machine's folders."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hatch_epctx.files import open_regular
from hatch_epctx.redact import redact

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["log_tail"]

LINES: Final = 40
LINE_LIMIT: Final = 400
"""Characters of one line."""
_BYTES: Final = 128 * 1024
"""Read from the end of the log."""

# ECMA-48: control sequences, operating-system commands, and two-character escapes.
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def log_tail(path: Path, folder: Path, secrets: Iterable[str] = ()) -> str:
    """The last `LINES` lines of the log at `path`; empty when there is none.

    Escape sequences and control characters are gone, and of a line that was drawn over and over (a progress bar)
    what was drawn last is kept. `secrets` and what looks like one are cut, and this machine's own folders from paths:
    the job's `folder`, Python's, the user's home.
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
    shown = redact("\n".join([line for line in lines if line.strip()]), secrets).split("\n")[-LINES:]
    return "\n".join(_shorten(_without_places(line, folder)) for line in shown)


def _clean(line: str) -> str:
    drawn = _ESCAPE.sub("", line).rstrip("\r").rpartition("\r")[2]
    return _CONTROL.sub("", drawn).rstrip()


def _shorten(line: str) -> str:
    return line if len(line) <= LINE_LIMIT else line[: LINE_LIMIT - 3] + "..."


def _without_places(line: str, folder: Path) -> str:
    for place in sorted({str(folder), str(folder.resolve())}, key=len, reverse=True):
        line = line.replace(f"{place}{os.sep}", "").replace(place, ".")
    for place in _own_places():
        line = re.sub(rf"(?<![\w./\\-]){re.escape(place)}[/\\]", "", line)
    home = str(Path.home()) if os.environ.get("HOME") or os.name == "nt" else ""
    return re.sub(rf"(?<![\w./\\-]){re.escape(home)}(?=[/\\])", "~", line) if len(home) > 1 else line


def _own_places() -> list[str]:
    """Folders of this Python and of the project, the longest first."""
    names = {sys.prefix, sys.base_prefix, str(Path.cwd()), *sys.path}
    places = {name.rstrip("/\\") for name in names if Path(name).is_absolute()}
    return sorted((place for place in places if len(place) > 2), key=lambda place: (-len(place), place))
