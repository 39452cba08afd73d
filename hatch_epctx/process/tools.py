"""Other tools of the user's: a build backend, in the user's own environment and without a time limit."""

from __future__ import annotations

import subprocess  # noqa: TID251  # this package is their owner
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["ToolRun", "run_tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """How a tool ended."""

    exit_code: int
    """Negative after a signal."""
    output: str
    """Standard output and error together."""


def run_tool(command: Sequence[str], *, cwd: Path, environ: Mapping[str, str]) -> ToolRun:
    """Run `command` to its end and return what it said.

    Raises:
        OSError: it cannot be started.
    """
    done = subprocess.run(
        command,
        cwd=cwd,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return ToolRun(exit_code=done.returncode, output=done.stdout.decode("utf-8", "replace"))
