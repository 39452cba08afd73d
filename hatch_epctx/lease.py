"""Locks and leases: mutual exclusion that ends with the process, however it dies.

Everything rests on the operating system's lock of one open file (flock; LockFileEx on Windows), which is gone when
the process is gone: no heartbeat, no clean-up step, no clock. Threads exclude each other as processes do, since
every acquisition opens the file anew. Containers that share the folder on one host share its locks; a process id
shown in a message may then be another container's.

What this does not give:

- Fairness: of several waiters any may be next.
- Network file systems: NFS maps flock to its own byte-range locks, which a server restart or a lost connection may
  drop while the holder goes on; others have no locks at all, which is refused (`StoreError`, reason "no-locks").
- A fork without exec: the child closes its copies, so neither side's locks depend on the other. A thread that forks
  at the very moment another thread takes a lock may keep that lock until the child ends.
- Someone who deletes the lock files by hand while they are held: later ones lock new files. Nothing here unlinks a
  lock file.

Windows: not run there.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from filelock import lock_descriptor, unlock_descriptor

from hatch_epctx.errors import StoreError
from hatch_epctx.files import fault_point, long_path, make_private_dir, parse_json, read_bounded, remove_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typing_extensions import Self

__all__ = ["Lease", "is_leased", "lock", "unleased"]

_NOTE_LIMIT: Final = 4096
"""Bytes of an owner's text or a lease's note."""
_GATE_TIMEOUT: Final = 60.0
"""Seconds for a gate, which is held for milliseconds: who holds it longer is stopped or stuck in a disk."""
_PATIENCE: Final = 0.2
"""Seconds of waiting that nobody is told about."""
_REPEAT: Final = 30.0
"""Seconds after which a waiter hears again of an owner that has not changed."""
_NO_LOCKS: Final = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOTSUP})

_held: set[int] = set()
"""Descriptors of this process that hold a lock."""
_own: set[tuple[int, str]] = set()
"""(thread, path) of every lock held by `lock`: a thread that asks for its own lock again would wait forever."""


def _close_inherited() -> None:
    """Child of a fork: close the copies. Closing a copy never releases the parent's lock; unlocking it would."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()
    _own.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


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
        timeout: seconds to wait for the holder, by a clock that nobody sets; None: as long as it takes.
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
    make_private_dir(path.parent, durable=False)
    owner = path.with_suffix(".owner")
    waiter = _Waiter(owner, timeout, on_wait, cancel)
    descriptor = _locked(path, waiter)
    pid = os.getpid()
    _own.add(key)
    try:
        with suppress(OSError):  # a message's text is not worth a failure
            long_path(owner).write_text(json.dumps({"pid": pid, "since": time.time()}), encoding="utf-8")
        yield
    finally:
        if os.getpid() == pid:
            _own.discard(key)
            with suppress(OSError):
                remove_file(owner)
            _give_up(descriptor)


class _Waiter:
    """What happens between two tries for a lock: patience, its end, and word of the owner."""

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
        self._end = math.inf if timeout is None else self._start + timeout
        self._told = ""
        self._told_at = -math.inf
        self._pause = 0.001

    def wait(self, path: Path) -> None:
        """Pause once.

        Raises:
            StoreError: the time is up, or nobody wants the lock any more.
        """
        now = time.monotonic()
        if now >= self._end:
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


def _owner_text(path: Path) -> str:
    """Who holds a lock, for a message: untrusted, and perhaps a moment out of date."""
    try:
        note = parse_json(read_bounded(path, _NOTE_LIMIT))
        pid, since = int(note["pid"]), time.localtime(float(note["since"]))
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return "another process"
    who = "another thread of this process" if pid == os.getpid() else f"process {pid}"
    return f"{who}, since {time.strftime('%H:%M:%S', since)}"


def _locked(path: Path, waiter: _Waiter) -> int:
    """Open and lock `path`; return the descriptor. Made sure to be the file that others will find there."""
    while True:
        descriptor = _open(path, os.O_CREAT)
        try:
            while not _try(descriptor, path):
                waiter.wait(path)
            if _is_at(descriptor, path):
                return descriptor
        except BaseException:
            _give_up(descriptor)
            raise
        _give_up(descriptor)  # deleted by hand while we waited: the others lock a new file


def _open(path: Path, create: int) -> int:
    flags = (
        os.O_RDWR | create | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    )
    descriptor = os.open(long_path(path), flags | getattr(os, "O_BINARY", 0), 0o600)
    _held.add(descriptor)
    return descriptor


def _try(descriptor: int, path: Path) -> bool:
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


def _give_up(descriptor: int) -> None:
    with suppress(OSError):  # closing gives the lock up as well, unless a child of a fork still has a copy
        unlock_descriptor(descriptor)
    _held.discard(descriptor)
    os.close(descriptor)


@contextmanager
def _gate(folder: Path, name: str) -> Iterator[None]:
    """Short exclusion around changes to the claims on `name`: one of 256, so that the lock files stay few."""
    path = folder / f".gate-{name[:2]}"
    descriptor = _locked(path, _Waiter(path, _GATE_TIMEOUT, None))
    try:
        yield
    finally:
        _give_up(descriptor)


class Lease:
    """A live process's claim on a generation or a staging folder: collection leaves what is claimed alone.

    The claim is a locked file ``<folder>/<name>/<random>``. It ends with `close` or with the process. The claim says
    nothing of whether the thing exists: look after acquiring, and what is there then stays.
    """

    def __init__(self, folder: Path, name: str, path: Path, descriptor: int) -> None:
        self.name = name
        """The generation or staging folder that is claimed."""
        self._folder = folder
        self.path = path
        """The lease file."""
        self._descriptor = descriptor
        self._pid = os.getpid()
        self._guard = threading.Lock()

    @classmethod
    def acquire(cls, folder: Path, name: str, *, note: str = "") -> Lease:
        """Claim `name`.

        Args:
            folder: where all claims lie; it exists.
            name: hexadecimal digits, at least two.
            note: what whoever finds the claim dead should know, at most 4 KiB.

        Raises:
            OSError: the claim cannot be written.
            StoreError: the file system has no locks, or another process is stuck in the gate.
        """
        claims = folder / name
        path = claims / f"{secrets.token_hex(8)}.lease"
        with _gate(folder, name):
            make_private_dir(claims, durable=False)
            descriptor = -1
            try:
                descriptor = _open(path, os.O_CREAT | os.O_EXCL)
                fault_point("claim-made")
                os.write(descriptor, note.encode())
                while not _try(descriptor, path):  # pragma: no cover  # nobody tries it outside the gate
                    time.sleep(0.001)
            except BaseException:
                if descriptor >= 0:
                    _give_up(descriptor)
                _drop(claims, [path])
                raise
        return cls(folder, name, path, descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the claim up; once is enough, more do nothing. In a forked child: nothing, the claim is the parent's."""
        with self._guard:
            if self._descriptor < 0 or self._pid != os.getpid():
                return
            descriptor, self._descriptor = self._descriptor, -1
        try:
            with _gate(self._folder, self.name):
                _give_up(descriptor)
                descriptor = -1
                _drop(self.path.parent, [self.path])
        except (OSError, StoreError):  # a full or vanished disk: the dead claim is found later
            if descriptor >= 0:
                _give_up(descriptor)


def is_leased(folder: Path, name: str) -> bool:
    """Whether a live process, this one included, has a claim on `name` at this moment.

    Raises:
        OSError, StoreError: that cannot be told.
    """
    with _gate(folder, name):
        return _dead_claims(folder / name) is None


@contextmanager
def unleased(folder: Path, name: str, *, besides: Lease | None = None) -> Iterator[tuple[str, ...] | None]:
    """Keep new claims on `name` away while the block runs, and tell whether there is a living one.

    Yields the notes of all dead claims (often none), or None when a live process claims `name`: then it must be left
    alone. Dead claims are removed when the block ends without an exception. Keep the block short: it holds up other
    claims.

    Args:
        folder: where all claims lie.
        name: what is claimed.
        besides: a claim of the caller's own that does not count.

    Raises:
        OSError, StoreError: that cannot be told.
    """
    with _gate(folder, name):
        dead = _dead_claims(folder / name, besides)
        yield None if dead is None else tuple(dead.values())
        if dead is not None:
            _drop(folder / name, list(dead))


def _dead_claims(claims: Path, besides: Lease | None = None) -> dict[Path, str] | None:
    """Path and note of each dead claim; None when one lives. Within the gate."""
    dead: dict[Path, str] = {}
    try:
        paths = sorted(long_path(claims).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return dead
    for path in paths:
        if besides is not None and path.name == besides.path.name:
            continue
        try:
            descriptor = _open(path, 0)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # a link, a folder, a socket: no claim of ours
                dead[path] = ""
                continue
            raise
        try:
            if not _try(descriptor, path):
                return None
            dead[path] = ""
            with suppress(OSError):
                dead[path] = os.read(descriptor, _NOTE_LIMIT).decode("utf-8", "replace")
        finally:
            _give_up(descriptor)
    return dead


def _drop(claims: Path, paths: list[Path]) -> None:
    """Remove dead claims, and their folder when it is empty then."""
    for path in paths:
        with suppress(OSError):
            remove_file(path)
    with suppress(OSError):
        long_path(claims).rmdir()
