"""Locks on open files, their waiters, and what a fork does to them. See the package for what this does not give."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import re
import secrets
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from filelock import lock_descriptor, unlock_descriptor

from hatch_epctx.errors import StoreError
from hatch_epctx.files import long_path, make_dir, make_file, parse_json, read_bounded, remove_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Waiter", "give_up", "lock", "locked", "open_lock", "try_lock"]

_OWNER_LIMIT: Final = 1024
"""Bytes of an owner's note."""
_PATIENCE: Final = 0.2
"""Seconds of waiting that nobody is told about."""
_REPEAT: Final = 30.0
"""Seconds after which a waiter hears again of an owner that has not changed."""
_NO_LOCKS: Final = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOTSUP})
_HOST = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")

_held: set[int] = set()
"""Descriptors of this process that hold a lock, or are about to."""
_own: set[tuple[int, str]] = set()
"""(thread, path) of every lock held by `lock`: a thread that asks for its own lock again would wait forever."""
_opening = threading.RLock()
"""Held while a descriptor is made and noted in `_held`: a fork waits for it."""
_process = secrets.token_hex(8)
"""This process in owners' notes: its number may be another one's in another container."""


def _after_fork_in_child() -> None:
    """Close the copies. Closing a copy never releases the parent's lock; unlocking it would."""
    global _process  # noqa: PLW0603  # what a process is called is as global as can be
    _process = secrets.token_hex(8)
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()
    _own.clear()
    _opening.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_after_fork_in_child)


@contextmanager
def lock(
    path: Path,
    *,
    timeout: float | None = None,
    on_wait: Callable[[str], None] | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[None]:
    """Hold the lock file `path` against every other thread and process; whoever dies gives it up.

    Args:
        path: the lock file; it is made, with its folder, and stays.
        timeout: seconds to wait for one holder, by a clock that nobody sets; with the next one they begin anew.
            None: as long as it takes.
        on_wait: called with who holds the lock ("process 4711, since 14:02:11") after 0.2 seconds, when the holder
            changes, and every 30 seconds.
        cancel: ends the wait when it is set.

    Raises:
        StoreError: not given up in time (reason "lock-timeout"), the wait was ended ("cancelled"), or the file system
            has no locks ("no-locks").
        OSError: the lock file cannot be made or opened.
        RuntimeError: this thread holds the lock already, a bug.
    """
    key = (threading.get_ident(), str(path.resolve()))
    if key in _own:
        raise RuntimeError(f"this thread holds {path} already")
    make_dir(path.parent, durable=False)
    owner = path.with_suffix(".owner")
    descriptor = locked(path, Waiter(owner, timeout, on_wait, cancel))
    pid = os.getpid()
    _own.add(key)
    try:
        _sign(owner)
        yield
    finally:
        if os.getpid() == pid:
            _own.discard(key)
            with suppress(OSError):
                remove_file(owner)
            give_up(descriptor)


def _sign(owner: Path) -> None:
    """Note that this process holds the lock."""
    note = {"pid": os.getpid(), "since": time.time(), "host": platform.node(), "process": _process}
    with suppress(OSError):  # a message's text is not worth a failure
        remove_file(owner)  # a killed holder's, perhaps of another user
        long_path(owner).write_text(json.dumps(note), encoding="utf-8")


class Waiter:
    """What happens between two tries for a lock: patience, its end, and word of the owner.

    Args:
        owner: where the holder's note is.
        timeout: seconds to wait; None: as long as it takes.
        on_wait: told who holds the lock, see `lock`.
        cancel: ends the wait when it is set.
    """

    def __init__(
        self,
        owner: Path,
        timeout: float | None,
        on_wait: Callable[[str], None] | None,
        cancel: threading.Event | None = None,
    ) -> None:
        self._owner = owner
        self._on_wait = on_wait
        self._cancel = cancel or threading.Event()
        self._start = time.monotonic()
        self._timeout = math.inf if timeout is None else timeout
        self._end = self._start + self._timeout
        self._holder = ""
        self._told = ""
        self._told_at = -math.inf
        self._pause = 0.001

    def wait(self, path: Path) -> None:
        """Pause once.

        Raises:
            StoreError: the time is up, or nobody wants the lock any more.
        """
        now = time.monotonic()
        if not self._holder and 0 < self._timeout < math.inf:
            self._holder = _owner_text(self._owner)
        if now >= self._end and not self._next_holder(now):
            raise StoreError(
                f"still locked after {now - self._start:.1f} s by {_owner_text(self._owner)}",
                where=str(path),
                remedy="Wait for that process, or end it; its lock goes with it.",
                reason="lock-timeout",
            )
        if self._on_wait is not None and now - self._start >= _PATIENCE:
            text = _owner_text(self._owner)
            if text != self._told or now - self._told_at >= _REPEAT:
                self._told, self._told_at = text, now
                self._on_wait(text)
        if self._cancel.wait(max(0.0, min(self._pause, self._end - now))):
            raise StoreError("the wait for the lock was ended", where=str(path), reason="cancelled")
        self._pause = min(self._pause * 1.5, 0.1)

    def _next_holder(self, now: float) -> bool:
        """Whether somebody else holds the lock by now; the time begins anew then."""
        if not self._holder:
            return False
        before, self._holder = self._holder, _owner_text(self._owner)
        if before == self._holder:
            return False
        self._end = now + self._timeout
        return True


def _owner_text(path: Path) -> str:
    """Who holds a lock, for a message: untrusted, and perhaps a moment out of date."""
    try:
        note = parse_json(read_bounded(path, _OWNER_LIMIT))
        pid, since = int(note["pid"]), time.localtime(float(note["since"]))
        host, process = str(note.get("host", "")), note.get("process")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return "another process"
    who = f"process {pid}"
    if process == _process:
        who = "another thread of this process"
    elif host != platform.node() and _HOST.match(host):
        who = f"process {pid} on {host}"
    return f"{who}, since {time.strftime('%H:%M:%S', since)}"


def locked(path: Path, waiter: Waiter) -> int:
    """Open and lock `path`; return the descriptor. Made sure to be the file that others will find there.

    Raises:
        OSError, StoreError: as `lock`.
    """
    make_file(path)
    while True:
        descriptor = open_lock(path, os.O_CREAT)
        try:
            while not try_lock(descriptor, path):
                waiter.wait(path)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            give_up(descriptor)
            raise
        give_up(descriptor)  # deleted by hand while we waited: the others lock a new file


def open_lock(path: Path, create: int) -> int:
    """Open a file that is about to be locked; `create` are flags of open that may make it.

    Raises:
        OSError: it cannot be opened; ELOOP for a link.
    """
    flags = (
        os.O_RDWR | create | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    )
    with _opening:
        descriptor = os.open(long_path(path), flags | getattr(os, "O_BINARY", 0), 0o600)
        _held.add(descriptor)
    return descriptor


def try_lock(descriptor: int, path: Path) -> bool:
    """Lock the open file unless somebody else has; whether it is locked now.

    Raises:
        StoreError: the file system has no locks.
        OSError: the disk failed.
    """
    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise StoreError(
            f"this file system has no file locks ({error.strerror})",
            where=str(path.parent),
            remedy="Set EPCTX_CACHE_DIR to a folder on a local disk.",
            reason="no-locks",
        ) from error


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), long_path(path).lstat())
    except OSError:
        return False


def give_up(descriptor: int) -> None:
    """Unlock and close."""
    with suppress(OSError):  # closing gives the lock up as well, unless a child of a fork still has a copy
        unlock_descriptor(descriptor)
    _held.discard(descriptor)
    os.close(descriptor)
