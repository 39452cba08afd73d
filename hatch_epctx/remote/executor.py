"""Running one command on the workers of a remote-execution service (Remote Execution API v2, ``Execution``).

`action` describes what is run and how a worker is laid out as an action.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import grpc

from hatch_epctx.digest import is_digest
from hatch_epctx.files import check_name, remove_file
from hatch_epctx.remote.action import RemoteCommand, action_of
from hatch_epctx.remote.blobs import EMPTY, Blob, Receiver
from hatch_epctx.remote.entry import FILE_LIMIT, Artifact, digest_message, serialize
from hatch_epctx.remote.faults import RemoteError, answered
from hatch_epctx.remote.proto import reapi_pb2 as pb
from hatch_epctx.remote.reapi import SERVICE, Reapi
from hatch_epctx.remote.runner import Runner
from hatch_epctx.remote.transport import RoundTrips
from hatch_epctx.remote.wire import error_of, parse, status_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from google.protobuf.message import Message

    from hatch_epctx.remote.blobs import Source
    from hatch_epctx.remote.endpoint import Endpoint

__all__ = ["Execution", "Executor", "OverdueError"]

GRACE: Final = 600.0
"""Seconds beyond a command's time limit that an action may wait for a worker."""
TREE_LIMIT: Final = 16 << 20
_OK: Final = 0
_CANCELLED: Final = 1
_DEADLINE_EXCEEDED: Final = 4
STREAM_LIMIT: Final = 1 << 20
"""Bytes of a command's output that are fetched."""
CANCEL: Final = "/google.longrunning.Operations/CancelOperation"
CANCEL_TIME: Final = 2.0
"""Seconds that telling the service to cancel may take; whoever interrupted a build waits for it."""


class OverdueError(RemoteError):
    """The command overran its time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """How it ended."""

    exit_code: int
    outputs: tuple[Artifact, ...]
    """The downloaded files, sorted by name, digests verified."""
    unchanged: tuple[str, ...]
    """Names of outputs that are inputs still, byte for byte; not downloaded."""
    log: bytes
    """Standard output and standard error, one after the other, each cut at `STREAM_LIMIT`."""
    cached: bool
    """Whether the server answered from its cache."""


class Executor:
    """A remote-execution service. Unlike `client.Remote` it raises: to compile here instead is the caller's choice."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.name = endpoint.name
        self._trips = RoundTrips()
        self._reapi = Reapi(endpoint, self._trips)
        self._runner = Runner(endpoint.connections)
        self._endpoint = endpoint
        self._sent: set[Blob] = set()
        """Blobs that the service had at an earlier action of this client; they are not asked for again."""
        self._under_way: list[_Operation] = []
        self._closing = False
        self._changed = threading.Condition()

    @property
    def round_trips(self) -> dict[str, int]:
        """Requests so far, by method."""
        return self._trips.snapshot()

    def close(self) -> None:
        """End what is under way, on the service too where it can cancel; that takes `CANCEL_TIME` at the most."""
        end = time.monotonic() + CANCEL_TIME
        with self._changed:
            self._closing = True
            # What was just started has no name yet by which it could be cancelled.
            self._changed.wait_for(lambda: all(item.name for item in self._under_way), timeout=CANCEL_TIME / 2)
            names = [item.name for item in self._under_way if item.name]
        self._cancel(names, end - time.monotonic())
        self._reapi.close()
        self._runner.close()

    def run(self, command: RemoteCommand, folder: Path, *, fresh: bool = False) -> Execution:
        """Run the command and download what it made.

        Args:
            command: what to run.
            folder: an existing private folder for the outputs.
            fresh: run it even where the server has a result.

        Folders that the command leaves do not come back.

        Raises:
            OverdueError: the command overran its time.
            RemoteError: the service cannot be reached, or refuses, or lost the action; or its answer is wrong.
            OSError: an input cannot be read, or an output not be written; nothing of the outputs is left.
        """
        if not self._reapi.capabilities().execute:
            raise RemoteError("it executes nothing", reason="refused")
        action, sources = action_of(command)
        trusting = self._send(sources)
        response = self._execute(action, command.timeout, fresh=fresh)
        code = response.status.code
        if code == _CANCELLED or (trusting and code not in (_OK, _DEADLINE_EXCEEDED)):
            # An input may have gone away meanwhile: FAILED_PRECONDITION by the protocol, casd says INTERNAL. Or a
            # client that asked for the same action gave it up, on a service that makes one operation of both.
            self._sent.clear()
            self._send(sources)
            response = self._execute(action, command.timeout, fresh=fresh)
        if response.status.code == _DEADLINE_EXCEEDED:
            raise OverdueError(answered(f"the action overran its time: {response.status.message}"), reason="failed")
        if response.status.code:
            raise status_error("the action", response.status.code, response.status.message)
        return self._collect(command, response, folder)

    def _send(self, sources: Sequence[Source]) -> bool:
        """Send what the service lacks; whether some of it was taken to be there because it was earlier."""
        new = [source for source in sources if source.blob not in self._sent]
        if new:
            self._runner.all(self._runner.one(lambda: self._reapi.uploads(new)), threading.Event())
            self._sent.update(source.blob for source in new)
        return len(new) < len(sources)

    def _execute(self, action: Blob, timeout: float, *, fresh: bool) -> pb.ExecuteResponse:
        """Start the action and wait; when the connection breaks off, wait on for the same operation.

        Whatever ends the wait before the action, an interrupt too, cancels it.
        """
        wire, running = self._reapi.wire, _Operation()
        deadline = time.monotonic() + timeout + GRACE
        start = pb.ExecuteRequest(
            instance_name=self._endpoint.path, action_digest=digest_message(action), skip_cache_lookup=fresh
        )

        def attempt() -> pb.ExecuteResponse:
            method, request = "Execute", cast("Message", start)
            if running.name:
                method, request = "WaitExecution", pb.WaitExecutionRequest(name=running.name)
            for operation in self._operations(f"{SERVICE}Execution/{method}", request, deadline):
                self._named(running, operation.name)
                if operation.done:
                    running.done = True
                    return _response(operation)
            raise RemoteError("the stream of the action ended before it", reason="unreachable", transient=True)

        with self._changed:
            if self._closing:
                raise RemoteError("closed", reason="failed")
            self._under_way.append(running)
        try:
            return wire.retry.run(attempt, stop=wire.stop)
        finally:
            with self._changed:
                self._under_way.remove(running)
                self._changed.notify_all()
                told = self._closing
            if running.name and not running.done and not told:
                self._cancel([running.name], CANCEL_TIME)

    def _named(self, running: _Operation, name: str) -> None:
        with self._changed:
            running.name = name
            self._changed.notify_all()

    def _cancel(self, names: Sequence[str], seconds: float) -> None:
        """Ask the service to cancel these operations, all at one time. One that cannot lets them run to their end."""
        wire = self._reapi.wire
        cancel: grpc.UnaryUnaryMultiCallable[Message, bytes] = wire.channel.unary_unary(
            CANCEL, request_serializer=serialize, response_deserializer=None
        )
        end = time.monotonic() + seconds
        calls = []
        for name in names:
            wire.count(CANCEL)
            with suppress(ValueError):  # gRPC's word for a closed channel
                request = pb.CancelOperationRequest(name=name)
                calls.append(cancel.future(request, timeout=max(0.0, seconds), metadata=wire.metadata))
        for call in calls:
            with suppress(grpc.RpcError, grpc.FutureTimeoutError, grpc.FutureCancelledError):
                call.result(timeout=max(0.0, end - time.monotonic()))

    def _operations(self, method: str, request: Message, deadline: float) -> Iterable[pb.Operation]:
        wire = self._reapi.wire
        name = wire.count(method)
        rpc: grpc.UnaryStreamMultiCallable[Message, bytes] = wire.channel.unary_stream(
            method, request_serializer=serialize, response_deserializer=None
        )
        call = rpc(request, timeout=max(0.0, deadline - time.monotonic()), metadata=wire.metadata)
        try:
            for answer in call:
                yield parse(name, answer, pb.Operation)
        except grpc.RpcError as error:
            raise error_of(name, error) from error
        finally:
            call.cancel()

    def _collect(self, command: RemoteCommand, response: pb.ExecuteResponse, folder: Path) -> Execution:
        result = response.result
        inside = {_inside(item.location, command.folder): item.blob for item in command.inputs}
        listed = self._listed(result)
        if sum(blob.size for blob in listed.values()) > self._endpoint.max_size:
            raise RemoteError("oversized outputs", reason="corrupt")
        unchanged = tuple(sorted(name for name, blob in listed.items() if inside.get(name) == blob))
        wanted = [(name, blob) for name, blob in sorted(listed.items()) if name not in unchanged]
        abort = threading.Event()
        outputs = tuple(Artifact(name, folder / name, blob.digest, blob.size) for name, blob in wanted)
        receivers = [Receiver(item.name, Blob(item.digest, item.size), item.path, abort) for item in outputs]
        log = self._stream("stdout", result.stdout_raw, result.stdout_digest)
        log += self._stream("stderr", result.stderr_raw, result.stderr_digest)
        try:
            self._fill(receivers, abort)
        except BaseException:
            for receiver in receivers:
                receiver.close()
                if receiver.position and receiver.path is not None:
                    with suppress(OSError):
                        remove_file(receiver.path)
            raise
        return Execution(
            exit_code=result.exit_code, outputs=outputs, unchanged=unchanged, log=log, cached=response.cached_result
        )

    def _listed(self, result: pb.ActionResult) -> dict[str, Blob]:
        """The flat files of the output folder."""
        listed: dict[str, Blob] = {}
        for directory in result.output_directories:
            tree = pb.Tree()
            if directory.tree_digest.size_bytes:
                tree = parse("the tree", self._bytes("the tree", directory.tree_digest, TREE_LIMIT), pb.Tree)
            listed |= {_flat(node.name): _blob_of(node.digest) for node in tree.root.files}
        if len(listed) > FILE_LIMIT:
            raise RemoteError(f"the command left {len(listed)} files, more than {FILE_LIMIT}", reason="corrupt")
        return listed

    def _stream(self, name: str, raw: bytes, digest: pb.Digest) -> bytes:
        if raw or not digest.hash or digest.size_bytes > STREAM_LIMIT:
            return raw[:STREAM_LIMIT]
        return self._bytes(name, digest, STREAM_LIMIT)

    def _bytes(self, name: str, digest: pb.Digest, limit: int) -> bytes:
        blob, abort = _blob_of(digest), threading.Event()
        if blob.size > limit:
            raise RemoteError(f"{name} is oversized: {blob.size} bytes", reason="corrupt")
        receiver = Receiver(name, blob, None, abort)
        self._fill([receiver], abort)
        return receiver.data

    def _fill(self, receivers: Sequence[Receiver], abort: threading.Event) -> None:
        for receiver in receivers:
            if receiver.blob == EMPTY:
                receiver.finish()
        asked = [receiver for receiver in receivers if receiver.blob != EMPTY]
        self._runner.all(self._runner.one(lambda: self._reapi.reads(asked)), abort)


@dataclass(slots=True, eq=False)
class _Operation:
    """An action under way on the service."""

    name: str = ""
    """As the service calls it; empty before its first answer."""
    done: bool = False


def _response(operation: pb.Operation) -> pb.ExecuteResponse:
    if operation.error.code:
        raise status_error("the action", operation.error.code, operation.error.message)
    if not operation.response.type_url.endswith("build.bazel.remote.execution.v2.ExecuteResponse"):
        raise RemoteError(answered(f"an answer of type {operation.response.type_url!r}"), reason="corrupt")
    return parse("Execute", operation.response.value, pb.ExecuteResponse)


def _inside(location: str, folder: str) -> str:
    """The name of an input that lies flat in the working directory; empty for others."""
    head, _, name = location.rpartition("/")
    return name if head == folder else ""


def _flat(name: str) -> str:
    try:
        return check_name(name)
    except ValueError as error:
        raise RemoteError(f"an unsafe name: {error}", reason="corrupt") from error


def _blob_of(digest: pb.Digest) -> Blob:
    if not is_digest(digest.hash) or digest.size_bytes < 0:
        raise RemoteError("an output without a SHA-256 digest", reason="corrupt")
    return Blob(digest.hash, digest.size_bytes)
