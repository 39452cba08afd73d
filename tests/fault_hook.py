"""A disk that fails at the n-th thing asked of it: an audit hook in place of a broken machine.

Python tells audit hooks of every file that is opened, made, renamed, removed, listed, locked or changed before it
happens, and whatever a hook raises comes out of the call. So a test can make each call of a procedure fail, one after
the other, with any error of the system. `write`, `read` and `fsync` are not told: see `strace_support`.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENTS = frozenset(
    {
        "fcntl.flock",
        "open",
        "os.chmod",
        "os.link",
        "os.listdir",
        "os.mkdir",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.scandir",
        "os.utime",
    }
)


class Disk:
    """Fails once when it is armed. There is one for the process: a hook is for ever."""

    def __init__(self) -> None:
        self.calls = 0
        self.failed = ""
        self._root = ""
        self._at = 0
        self._error = 0
        sys.addaudithook(self._hook)

    def arm(self, root: object, *, at: int, error: int) -> None:
        """Let the `at`-th call on something below `root` fail, counting from 1."""
        self._root, self._at, self._error = str(root), at, error
        self.calls, self.failed = 0, ""

    def disarm(self) -> bool:
        """Fail no more; whether it has failed."""
        self._root = ""
        return bool(self.failed)

    @contextmanager
    def well(self) -> Iterator[None]:
        """Neither fail nor count: what the test itself does in between."""
        root, self._root = self._root, ""
        try:
            yield
        finally:
            self._root = root

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._root or event not in EVENTS:
            return
        names = [os.fsdecode(item) for item in arguments if isinstance(item, str | bytes | os.PathLike)]
        if event != "fcntl.flock" and not any(name.startswith(self._root) for name in names):
            return
        self.calls += 1
        if self.calls == self._at:
            self.failed = f"{event} {names}"
            raise OSError(self._error, os.strerror(self._error), names[0] if names else None)
