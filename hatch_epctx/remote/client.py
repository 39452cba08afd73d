"""The remote cache as a build sees it: entries come whole and checked or not at all, and nothing here fails a build.

Limits: calls at one time, seconds per call, bytes per entry (see `endpoint`). A server that cannot be reached, or is
too slow, or refuses us, costs one warning and is left alone for the rest of the build. One bad entry costs one line.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, final

from hatch_epctx.files import check_name, remove_file
from hatch_epctx.remote.blobs import EMPTY, Blob, Receiver, Source, blob_of
from hatch_epctx.remote.entry import RECORD_NAME, Artifact, check_record, key_of, outputs_of, result_of
from hatch_epctx.remote.faults import RemoteError
from hatch_epctx.remote.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from hatch_epctx.remote.endpoint import Endpoint
    from hatch_epctx.remote.transport import RoundTrips, Transport

__all__ = ["Fetched", "Mode", "Remote"]

Mode = Literal["read-write", "read-only"]

FAILURE_LIMIT: Final = 3
"""Failed calls after which reading, or writing, is given up for this build."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """An entry that came whole; every byte has the digest stated here."""

    identity: str
    record: bytes
    """The record as it was pushed: JSON; identity, document and artifact list are checked, the rest is not."""
    artifacts: tuple[Artifact, ...]


@final
class Remote:
    """A remote cache, for all threads of one build.

    Args:
        endpoint: where it is.
        transport: how to speak to it; closed by `close`.
        round_trips: the counter that the transport adds to.
        mode: read-only never sends anything but questions.
        warn: takes one line, from any thread.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        transport: Transport,
        round_trips: RoundTrips,
        *,
        mode: Mode,
        warn: Callable[[str], None],
    ) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint
        self._transport = transport
        self._trips = round_trips
        self._warn = warn
        self._reading = True
        self._writing = mode == "read-write"
        self._spoilt: set[str] = set()
        """Identities whose entry came wrong: what the server has of them is not believed when they are pushed."""
        self._failures = {"fetch": 0, "push": 0}
        self._closed = False
        self._guard = threading.Lock()
        self._runner = Runner(endpoint.connections)

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def active(self) -> bool:
        """Whether the cache is still asked; False after it was found unreachable, and after `close`."""
        return self._reading

    @property
    def round_trips(self) -> dict[str, int]:
        """Requests so far by method, such as ``{"BatchReadBlobs": 1, "GetActionResult": 1, "Read": 2}``."""
        return self._trips.snapshot()

    def fetch(self, identity: str, folder: Path) -> Fetched | None:
        """The entry of `identity`, its artifacts in `folder`.

        Args:
            identity: the compile identity.
            folder: an existing private folder in which no artifact's name is taken.

        Returns:
            None when the cache does not have the entry (silently), when anything about it is wrong (with one line
            that says what) and when the cache is left alone; nothing of the entry is left in `folder` then.
        """
        if not self._reading:
            return None
        made: list[Path] = []
        try:
            return self._fetch(identity, folder, made)
        except RemoteError as error:
            self._settle("fetch", identity, error)
        except OSError as error:
            self._say(f"{self.name}: entry {identity[:12]} could not be stored here: {error}")
        _remove(made)
        return None

    def fetch_artifacts(self, artifacts: Iterable[tuple[str, str, int]], folder: Path) -> tuple[Artifact, ...] | None:
        """Files by name, digest and size, without any entry: what a lock file names.

        Returns:
            As `fetch`; a file that the cache does not have costs a line here.
        """
        if not self._reading:
            return None
        made: list[Path] = []
        try:
            wanted = [(check_name(name), Blob(digest, size)) for name, digest, size in artifacts]
            return self._download(wanted, folder, made)
        except RemoteError as error:
            self._settle("fetch", "", error)
        except OSError as error:
            self._say(f"{self.name}: artifacts could not be stored here: {error}")
        _remove(made)
        return None

    @property
    def writes(self) -> bool:
        """Whether `push` sends anything; False in read-only mode, and after pushing was given up."""
        return self._writing and self._reading

    def push(self, identity: str, record_json: bytes, artifacts: Sequence[tuple[str, Path, str, int]]) -> bool:
        """Keep an entry in the cache: blobs that it lacks, then the result. Never raises for what the cache does.

        Args:
            identity: the compile identity.
            record_json: a JSON object with ``identity``, ``document`` and ``artifacts``; see `entry.check_record`.
            artifacts: (flat name, file, digest, size in bytes).

        Returns:
            Whether it is there now. A failure is one warning; after three there are no more pushes, and no more
            warnings, in this build.
        """
        if not self.writes:
            return False
        try:
            self._push(identity, record_json, [Artifact(*item) for item in artifacts])
        except RemoteError as error:
            self._settle("push", identity, error)
        except OSError as error:
            self._settle("push", identity, RemoteError(str(error), reason="failed"))
        else:
            return True
        return False

    def close(self) -> None:
        """Give up what is under way and close the connections. May be called twice."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._reading = self._writing = False
        self._transport.close()
        self._runner.close()

    def _fetch(self, identity: str, folder: Path, made: list[Path]) -> Fetched | None:
        key = key_of(identity)
        try:
            result = self._runner.one(lambda: self._transport.lookup(key))
        except RemoteError as error:
            if error.reason == "absent":
                return None
            raise
        outputs = outputs_of(result, max_size=self._endpoint.max_size)
        abort = threading.Event()
        record = Receiver(RECORD_NAME, outputs.record, None, abort)
        extra = [record]
        if outputs.inline is not None:
            record.feed(outputs.inline)
            record.finish()
            extra.clear()
        artifacts = self._download(outputs.artifacts, folder, made, extra=extra, abort=abort)
        check_record(record.data, identity, outputs.artifacts)
        return Fetched(identity=identity, record=record.data, artifacts=artifacts)

    def _download(
        self,
        wanted: Sequence[tuple[str, Blob]],
        folder: Path,
        made: list[Path],
        *,
        extra: Sequence[Receiver] = (),
        abort: threading.Event | None = None,
    ) -> tuple[Artifact, ...]:
        """Fill `folder`; `made` takes the path of every file before it is there."""
        abort = abort or threading.Event()
        artifacts = tuple(Artifact(name, folder / name, blob.digest, blob.size) for name, blob in wanted)
        for item in artifacts:
            if os.path.lexists(item.path):
                raise FileExistsError(errno.EEXIST, "exists already", str(item.path))
        made += [item.path for item in artifacts]
        receivers = [Receiver(item.name, Blob(item.digest, item.size), item.path, abort) for item in artifacts]
        receivers += extra
        try:
            for receiver in receivers:
                if receiver.blob == EMPTY:
                    receiver.finish()
            asked = [receiver for receiver in receivers if receiver.blob != EMPTY]
            self._runner.all(self._transport.reads(asked), abort)
        finally:
            for receiver in receivers:
                with suppress(OSError):  # a full disk was said already
                    receiver.close()
        return artifacts

    def _push(self, identity: str, record: bytes, artifacts: Sequence[Artifact]) -> None:
        listed = [(_own_name(item.name), Blob(item.digest, item.size)) for item in artifacts]
        check_record(record, identity, sorted(listed))
        key = key_of(identity)
        sources = [Source(name=name, blob=blob_of(data), data=data) for name, data in key.blobs]
        sources.append(Source(name=RECORD_NAME, blob=blob_of(record), data=record))
        sources += [Source(name=item.name, blob=Blob(item.digest, item.size), path=item.path) for item in artifacts]
        unique = {source.blob: source for source in sources if source.blob != EMPTY}
        jobs = self._runner.one(lambda: self._transport.writes(list(unique.values()), anew=identity in self._spoilt))
        self._runner.all(jobs, threading.Event())
        self._runner.one(lambda: self._transport.update(key, result_of(record, artifacts)))

    def _settle(self, doing: Literal["fetch", "push"], identity: str, error: RemoteError) -> None:
        """Turn an error into at most one line, and leave the cache alone when there is no sense in going on."""
        subject = f"entry {identity[:12]}" if identity else "artifacts"
        with self._guard:
            if self._closed or not self._reading or (doing == "push" and not self._writing):
                return
            if error.reason == "corrupt":
                self._spoilt.add(identity)
            text = f"{self.name}: {subject}: {error}"
            lasting = error.reason in ("overloaded", "refused")
            if error.reason == "unreachable" or (lasting and doing == "fetch"):
                self._reading = False
                text = f"{self.name}: {error}; this build goes on without the remote cache"
            elif lasting:  # a cache that is full may still be read
                self._writing = False
                text = f"{self.name}: {error}; this build pushes nothing more"
            elif doing == "push" or error.reason == "failed":
                text = self._count(doing, text)
            else:
                text += "; taken as a miss"
        self._say(text)

    def _count(self, doing: Literal["fetch", "push"], text: str) -> str:
        self._failures[doing] += 1
        last = self._failures[doing] >= FAILURE_LIMIT
        if doing == "push":
            self._writing = self._writing and not last
            return f"{text}; not pushed" + (", and this build pushes nothing more" if last else "")
        self._reading = self._reading and not last
        return f"{text}; taken as a miss" + (", and this build goes on without the remote cache" if last else "")

    def _say(self, text: str) -> None:
        self._warn(text)


def _own_name(name: str) -> str:
    try:
        check_name(name)
    except ValueError as error:
        raise RemoteError(str(error), reason="failed") from error
    if name == RECORD_NAME:
        raise RemoteError(f"an artifact is called {name}, which is the record's name", reason="failed")
    return name


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):  # the caller's folder is private and goes as a whole
            remove_file(path)
