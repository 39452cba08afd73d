"""Leases: claims of living processes on generations and staging folders.

A claim is a locked file below a folder named like what is claimed. A gate, one of 256 lock files, keeps claiming
apart from deciding that nobody claims. See the package for what this does not give.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from hatch_epctx.errors import StoreError
from hatch_epctx.files import fault_point, long_path, make_dir, remove_file, share
from hatch_epctx.lease.locking import Waiter, give_up, locked, open_lock, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Self

__all__ = ["NOTE_LIMIT", "Lease", "is_leased", "unleased"]

NOTE_LIMIT: Final = 4096
"""Bytes of a lease's note."""
_GATE_TIMEOUT: Final = 60.0
"""Seconds for a gate, which is held for milliseconds: who holds it longer is stopped or stuck in a disk."""


@contextmanager
def _gate(folder: Path, name: str) -> Iterator[None]:
    """Short exclusion around changes to the claims on `name`: one of 256, so that the lock files stay few."""
    path = folder / f".gate-{name[:2]}"
    descriptor = locked(path, Waiter(path, _GATE_TIMEOUT, None))
    try:
        yield
    finally:
        give_up(descriptor)


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
            make_dir(claims, durable=False)
            descriptor = -1
            try:
                descriptor = open_lock(path, os.O_CREAT | os.O_EXCL)
                fault_point("claim-made")
                share(descriptor, claims)
                os.write(descriptor, note.encode())
                while not try_lock(descriptor, path):  # pragma: no cover  # nobody tries it outside the gate
                    time.sleep(0.001)
            except BaseException:
                if descriptor >= 0:
                    give_up(descriptor)
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
                give_up(descriptor)
                descriptor = -1
                _drop(self.path.parent, [self.path])
        except (OSError, StoreError):  # a full or vanished disk: the dead claim is found later
            if descriptor >= 0:
                give_up(descriptor)


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
            descriptor = open_lock(path, 0)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # a link, a folder, a socket: no claim of ours
                dead[path] = ""
                continue
            raise
        try:
            if not try_lock(descriptor, path):
                return None
            dead[path] = ""
            with suppress(OSError):
                dead[path] = os.read(descriptor, NOTE_LIMIT).decode("utf-8", "replace")
        finally:
            give_up(descriptor)
    return dead


def _drop(claims: Path, paths: list[Path]) -> None:
    """Remove dead claims, and their folder when it is empty then."""
    for path in paths:
        with suppress(OSError):
            remove_file(path)
    with suppress(OSError):
        long_path(claims).rmdir()
