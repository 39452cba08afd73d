"""Messages of native code and of Python made fit for a report: one line, no paths of this machine.

Results are remembered and shown elsewhere, so they must not depend on where a build ran. Names of ONNX nodes often
look like absolute paths (``/encoder/conv/Conv``) and are what the reader needs most; therefore only prefixes that are
known to be this machine's are cut, and source files of native code are shortened to their names.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

__all__ = ["describe", "machine_folders", "one_line", "shown", "without_paths"]

LIMIT: Final = 600
"""Characters of a message; the worker's log holds the rest."""

_ORT_HEAD = re.compile(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")
_SOURCE_FILE = re.compile(r"(?:[\w.+-]*/)+([\w.+-]+\.(?:cc|cpp|cxx|h|hpp|inl|inc))(?=[:\s]|$)")


def describe(error: BaseException) -> str:
    """What `error` says, in one line; the name of its class where it says nothing."""
    return one_line(str(error)) or type(error).__name__


def one_line(text: str) -> str:
    """`text` in one line of at most `LIMIT` characters, without ONNX Runtime's head and this machine's paths."""
    line = " ".join(without_paths(_ORT_HEAD.sub("", text)).split())
    return line if len(line) <= LIMIT else line[: LIMIT - 3] + "..."


def shown(text: str | bytes) -> str:
    """A text of an ONNX file for messages and results: protobuf gives as bytes what is no UTF-8."""
    return text if isinstance(text, str) else text.decode("utf-8", "replace")


def without_paths(text: str) -> str:
    """`text` with every known folder of this machine cut from the paths in it."""
    for pattern in _folders():
        text = pattern.sub("", text)
    return _SOURCE_FILE.sub(r"\1", text)


def machine_folders() -> list[Path]:
    """Absolute folders that are this machine's own: the current one, home, Python's and those of the import path."""
    here = Path.cwd()
    names = {str(here), str(here.resolve()), sys.prefix, sys.base_prefix, *sys.path}
    if os.name == "posix":
        import pwd

        with suppress(KeyError):  # a user without an entry, as in many containers
            names.add(pwd.getpwuid(os.getuid()).pw_dir)
    return [Path(name) for name in sorted(names) if Path(name).is_absolute()]


@lru_cache(maxsize=1)
def _folders() -> tuple[re.Pattern[str], ...]:
    """Patterns of the folders to cut, the longest first, each with the separator behind it."""
    absolute = {str(path).rstrip("/\\") for path in machine_folders()}
    ordered = sorted((name for name in absolute if len(name) > 2), key=lambda name: (-len(name), name))
    return tuple(re.compile(r"(?<![\w./\\-])" + re.escape(name) + r"(?:[/\\]|(?![\w.-]))") for name in ordered)
