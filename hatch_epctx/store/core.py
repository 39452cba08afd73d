"""The store: find, lock, stage, publish.

The order in which a build uses it::

    with store.lock(identity):
        found = store.find(identity)
        if isinstance(found, Miss):
            with store.staging() as staging:
                ...  # compile in staging.path
                found = store.publish(staging, record)
    with found:
        ...  # copy its files

Guarantees, for any number of threads and processes on one host, of one user or of a group that shares the store:

- A generation is visible under its name only whole and durable, and never changes.
- A marker names a generation that was durable before it; replacing the marker is one step. Whatever dies earlier
  leaves nothing that `find` would see, and is swept later.
- `find` returns a generation only after reading every byte of it and comparing digests. Anything else is a `Miss`.
- What is leased is not removed. Leases, staging folders and locks end with their process.

Limits: on network file systems, locks are as good as the mount makes them (see `lease`), so nothing is removed there;
generations are found by the marker alone, so a marker put back from a backup may name one that was collected, which
is a miss.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.digest import is_digest
from hatch_epctx.errors import EpctxError, StoreError
from hatch_epctx.files import read_bounded, touch
from hatch_epctx.lease import Lease, lock
from hatch_epctx.statcache import StatCache
from hatch_epctx.store.facts import Facts
from hatch_epctx.store.generation import Generation, Miss, verify_folder
from hatch_epctx.store.layout import FULL, READ_ONLY, Layout, default_root, store_error
from hatch_epctx.store.publish import publish
from hatch_epctx.store.records import MARKER_LIMIT, Marker, Record, parse_marker
from hatch_epctx.store.staging import Staging
from hatch_epctx.store.sweep import Swept, sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

__all__ = ["Store"]

_LOOKS: Final = 3
"""Times that `find` follows a marker which changes under its eyes."""
_DISK: Final = READ_ONLY | {errno.EIO, errno.ESTALE}
"""Errors in a staging folder that are the disk's, not a bug of whoever works there."""
_NO_FAULT: Final = ("source-changed", "stopped")
"""Reasons of an error that is no failure of the compile."""
_SWEEP_LIMIT: Final = 64
_SWEEP_SECONDS: Final = 0.25


class Store:
    """Generations by identity under one cache folder. Any thread may use it.

    Args:
        root: the cache folder; ``EPCTX_CACHE_DIR`` or the user's cache folder when left out. It is made when first
            written to.

    Raises:
        StoreError: the folder is a link, another user's, or writable by everybody.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.layout = Layout(default_root(os.environ) if root is None else root)
        self._facts = Facts(self.layout.facts)
        self._stat = StatCache(self.layout.stat)
        self._guard = threading.Lock()
        self._writable: bool | None = None
        self._swept = False

    @property
    def root(self) -> Path:
        """The cache folder."""
        return self.layout.root

    @property
    def read_only(self) -> bool:
        """Whether this user may only read here; found out once, by making the folders.

        Raises:
            StoreError: the disk is full or broken.
        """
        with self._guard:
            if self._writable is None:
                self._writable = self.layout.make()
            return not self._writable

    @contextmanager
    def lock(
        self,
        identity: str,
        *,
        timeout: float | None = None,
        on_wait: Callable[[str], None] | None = None,
        cancel: threading.Event | None = None,
    ) -> Iterator[None]:
        """Hold `identity` against all other threads and processes that use this store.

        In a read-only store nothing is held: what is compiled there is never shared.

        Args:
            identity: 64 hexadecimal digits.
            timeout: seconds to wait for one holder; None: until it is done or dead.
            on_wait: told who holds it, see `lease.lock`.
            cancel: ends the wait when it is set.

        Raises:
            StoreError: not given up in time, the wait was ended, or the lock cannot be taken.
        """
        if self.read_only:
            yield
            return
        path = self.layout.lock(_checked(identity))
        with ExitStack() as held:
            try:
                held.enter_context(lock(path, timeout=timeout, on_wait=on_wait, cancel=cancel))
            except OSError as error:
                raise store_error(error, path, "lock the identity") from error
            yield

    def find(self, identity: str, *, verify: bool = True) -> Generation | Miss:
        """The selected generation of `identity`, leased, or why there is none.

        Looks at one marker and at the artifacts it lists; the size of the store does not count.

        Args:
            identity: 64 hexadecimal digits.
            verify: compare every artifact's digest, too; without it, names and sizes alone.
        """
        seen = ""
        found: Generation | Miss = Miss(reason="absent")
        for _ in range(_LOOKS):
            marker = self.marker(identity)
            if isinstance(marker, Miss):
                return marker
            if marker.generation == seen:
                return found
            seen = marker.generation
            found = self._open(marker, verify=verify)
            if isinstance(found, Generation):
                self._note_use(identity)
                return found
            # A generation that is gone may have been replaced since the marker was read.
            if not found.reason.startswith("missing-"):
                return found
        return found

    def _note_use(self, identity: str) -> None:
        """The marker's time is that of the last use: what is used least goes first. One system call, never flushed."""
        with suppress(OSError):  # a read-only store; somebody else's marker; one that was collected just now
            touch(self.layout.marker(identity))

    def record(self, identity: str) -> Record | None:
        """What the marker of `identity` says, whether or not its generation is still there; None without a marker."""
        marker = self.marker(identity)
        return None if isinstance(marker, Miss) else marker.record

    def marker(self, identity: str) -> Marker | Miss:
        """What selects the generation of `identity` at this moment, or why nothing does; nothing else is looked at."""
        try:
            data = read_bounded(self.layout.marker(_checked(identity)), MARKER_LIMIT)
        except (FileNotFoundError, NotADirectoryError):
            return Miss(reason="absent")
        except OSError as error:
            return Miss(reason="unreadable-marker", detail=error.strerror or str(error))
        try:
            return parse_marker(data, identity)
        except ValueError as error:
            return Miss(reason="malformed-marker", detail=str(error))

    def _open(self, marker: Marker, *, verify: bool) -> Generation | Miss:
        warning = ""
        path = self.layout.generations / marker.generation
        with ExitStack() as claims:
            try:
                if self.read_only:
                    warning = f"The store at {self.root} is read-only: its generations cannot be leased."
                else:
                    claims.enter_context(Lease.acquire(self.layout.leases, marker.generation))
            except (OSError, StoreError) as error:
                warning = f"The generation cannot be leased ({error}): do not collect while this runs."
            miss = verify_folder(path, marker.record, content=verify)
            if miss is not None:
                return miss
            return Generation(
                name=marker.generation,
                path=path,
                record=marker.record,
                selected=True,
                warning=warning,
                claims=claims.pop_all(),
            )

    @contextmanager
    def staging(self, *, keep: bool = False) -> Iterator[Staging]:
        """A private folder to compile in, removed at the end.

        Where the store may not be written it is a folder for temporary files. The first call sweeps a little.

        Args:
            keep: when the block fails by an error of this project's family, move what is in the folder to a place
                where nobody removes it, and add that to the error's detail.

        Raises:
            StoreError: it cannot be made, or the disk filled up or the folder was removed while the block was using
                it.
        """
        staging = self._staging()
        try:
            yield staging
        except EpctxError as error:
            if not isinstance(error, StoreError) and not staging.folder.exists():  # then whatever ran in it had to fail
                gone = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(staging.folder))
                raise store_error(gone, staging.folder, "compile") from error
            if keep and error.reason not in _NO_FAULT and (kept := staging.keep(self.layout.root / "kept")):
                error.detail = "\n".join(filter(None, (error.detail, f"kept to look inside: {kept}")))
            raise
        except OSError as error:
            removed = error.errno == errno.ENOENT and not staging.path.exists()
            if removed or error.errno in FULL or (error.errno in _DISK and _lies_in(error, staging.folder)):
                raise store_error(error, staging.folder, "write while compiling") from error
            raise
        finally:
            staging.close()

    def _staging(self) -> Staging:
        try:
            if not self.read_only:
                self._sweep_once()
                self.layout.make()  # once more: somebody may have removed the whole cache folder
                return Staging.in_store(self.layout)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise store_error(error, self.layout.staging, "make a staging folder") from error
        try:
            return Staging.elsewhere()
        except OSError as error:
            raise store_error(error, self.layout.staging, "make a folder for temporary files") from error

    def publish(
        self, staging: Staging, record: Record, *, select: bool = True, source: Path | None = None
    ) -> Generation:
        """Make a generation of the artifacts that `record` names and, with `select`, the identity's marker.

        Whoever selects holds the identity's lock. The compile is not thrown away when the store fails: a generation
        that cannot be moved into the store, or whose marker cannot be written, is returned all the same, leased, not
        selected, with a warning; closing it removes it.

        Args:
            staging: where the artifacts are; each can be published once. Everything else in it is left alone.
            record: what to keep; artifacts are verified against it.
            select: False where nobody else may use the generation: it lives until it is closed.
            source: the folder that holds the artifacts; ``staging.path`` when left out.

        Returns:
            The generation, leased.

        Raises:
            StoreError: an artifact is missing or not what the record says, or the disk failed before all were taken.
            ValueError, TypeError: the record cannot be written as JSON that would be read again, a bug.
        """
        return publish(self.layout, staging, record, select=select, source=source or staging.path)

    def sweep_dead(self, *, limit: int | None = None, seconds: float | None = None) -> Swept:
        """Remove staging folders and unselected generations of dead processes; never what a living one has.

        On a network file system nothing is removed: who lives on another host cannot be told.

        Args:
            limit: claims and folders to look at, at most.
            seconds: time after which no further one is begun.
        """
        if self.read_only or self.layout.on_network:
            return Swept()
        return sweep(self.layout, limit=limit, seconds=seconds)

    def _sweep_once(self) -> None:
        with self._guard:
            swept, self._swept = self._swept, True
        if not swept:
            self.sweep_dead(limit=_SWEEP_LIMIT, seconds=_SWEEP_SECONDS)

    def recall(self, kind: str, key: str) -> dict[str, Any] | None:
        """The fact remembered under `kind` and `key`; None when there is none or it cannot be read."""
        return self._facts.recall(kind, key)

    def remember(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keep a small JSON object; see `facts.Facts.remember`."""
        if not self.read_only:
            self._facts.remember(kind, key, value)

    def digest(self, path: Path) -> str:
        """Digest of the file that `path` is or leads to, remembered by its status (see `statcache`).

        Raises:
            OSError: it cannot be read, or is no regular file.
        """
        return self._stat.digest(path)


def _checked(identity: str) -> str:
    if not is_digest(identity):
        raise ValueError(f"{identity!r} is no identity")
    return identity


def _lies_in(error: OSError, folder: Path) -> bool:
    name = error.filename
    if name is None:  # of a read or a write, which name nothing
        return error.errno not in READ_ONLY
    return isinstance(name, str | bytes) and os.fsdecode(name).startswith(f"{folder}{os.sep}")
