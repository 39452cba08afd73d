"""What every front end needs to talk to people: safe text, lines of progress, the message for a missing extra.

Progress is plain lines without colours or cursor movements, whole under any number of threads, so that it reads the
same in a terminal, in a CI log and behind a front end that prefixes each line.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Final

from hatch_epctx.errors import ToolchainError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hatch_epctx.config import LogLevel, Variant

__all__ = ["Lines", "duration", "missing_extra", "printable", "size"]

_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
"""Control characters but tab and newline, and those that turn the direction of writing."""
_URGENT: Final = ("warning", "skipped", "failed")
"""First words of lines that EPCTX_LOG=warning lets through."""
_BUILD_MODULES: Final = frozenset(
    {
        "cyclonedx",
        "filelock",
        "hatchling",
        "jinja2",
        "onnx",
        "packaging",
        "platformdirs",
        "pydantic",
        "pyproject_hooks",
        "rfc8785",
        "rich",
        "tomli",
    }
)


def printable(text: str) -> str:
    """`text` with control characters spelt out: names in models and wheels must not drive a terminal."""
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


def size(count: int) -> str:
    """A number of bytes for people: "512 B", "1.5 MiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def duration(seconds: float) -> str:
    """A time for people: "37 ms", "0.4 s", "12 s", "3 min 20 s", "1 h 5 min"."""
    if 0 < seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.0095 else f"{seconds * 1000:.1f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


class Lines:
    """The report of a pipeline (`pipeline.Report`) as lines; any thread may call it.

    Args:
        write: prints one line, without a newline at its end.
        level: debug and info say everything, warning only what somebody should act on.
    """

    def __init__(self, write: Callable[[str], None], *, level: LogLevel = "info") -> None:
        self._write = write
        self._level = level
        self._guard = threading.Lock()

    def __call__(self, variant: Variant | None, text: str) -> None:
        """One line about a variant, or about the whole build."""
        if self._level == "warning" and not text.startswith(_URGENT):
            return
        line = printable(f"epctx: {variant.name + ': ' if variant else ''}{text}")
        with self._guard:
            self._write(line)

    def debug(self, text: str) -> None:
        """A line that only EPCTX_LOG=debug or ``-v`` shows."""
        if self._level == "debug":
            self(None, text)


def missing_extra(error: ModuleNotFoundError) -> ToolchainError | None:
    """The error for a user whose environment lacks the build extra; None where another module is missing: a bug."""
    if error.name is None or error.name.split(".")[0] not in _BUILD_MODULES:
        return None
    return ToolchainError(
        f"the module {error.name!r} is not installed",
        remedy='Building needs the build extra: pip install "hatch-epctx[build]"; in [build-system] requires, name '
        "'hatch-epctx[build]' or the extras of the EPs, such as 'hatch-epctx[openvino,qnn]'.",
        reason="missing-extra",
    )
