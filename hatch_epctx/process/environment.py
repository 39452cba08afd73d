"""The environment of a worker: a fixed allow-list, and what the target declares.

What an EP sees must not depend on who builds where. On POSIX nothing is inherited, and HOME and TMPDIR are ``.``, the
job's folder by its cwd: with address-space randomisation off even the *length* of the environment reaches QNN's
bytes (measured), so no path may stand in it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["worker_environment"]

_POSIX: Final = {
    "HOME": ".",
    "LANG": "C.UTF-8",
    "ORT_DISABLE_TELEMETRY": "1",
    "PATH": "/usr/bin:/bin",
    "TMPDIR": ".",
    "TZ": "UTC",
}
_WINDOWS_INHERITED: Final = (
    "COMSPEC",
    "NUMBER_OF_PROCESSORS",
    "PATHEXT",
    "PROCESSOR_ARCHITECTURE",
    "PROCESSOR_IDENTIFIER",
    "SYSTEMDRIVE",
    "SYSTEMROOT",
    "WINDIR",
)
"""Without these, Windows cannot load its own libraries or open a socket."""


def worker_environment(folder: Path, declared: Mapping[str, str]) -> dict[str, str]:
    """Environment of a worker whose job lies in `folder`, with the target's `declared` variables over it."""
    return {**(_windows(folder) if os.name == "nt" else _POSIX), **declared}


def _windows(folder: Path) -> dict[str, str]:  # pragma: no cover  # not run here
    own = dict.fromkeys(("APPDATA", "LOCALAPPDATA", "TEMP", "TMP", "USERPROFILE"), str(folder))
    inherited = {name: os.environ[name] for name in _WINDOWS_INHERITED if name in os.environ}
    system = os.environ.get("SYSTEMROOT", r"C:\Windows")
    return {**inherited, **own, "ORT_DISABLE_TELEMETRY": "1", "PATH": rf"{system}\System32;{system}"}
