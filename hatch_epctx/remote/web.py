"""Bazel's HTTP cache: ``GET``, ``HEAD`` and ``PUT`` on ``/ac/<sha256>`` (results) and ``/cas/<sha256>`` (blobs).

A result is the serialised ActionResult, as Bazel writes it. Blobs go uncompressed. One look-up is one GET of the
result, then one GET for the record and each artifact, several at a time; a push asks by HEAD before each PUT.
Connections are kept alive. Redirects are not followed and proxies are not used: the URL names the server itself.
"""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from google.protobuf.message import DecodeError

from hatch_epctx import __version__
from hatch_epctx.digest import CHUNK
from hatch_epctx.remote.entry import RESULT_LIMIT, serialize
from hatch_epctx.remote.faults import Reason, RemoteError, Retry, answered
from hatch_epctx.remote.proto import reapi_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hatch_epctx.remote.blobs import Blob, Receiver, Source
    from hatch_epctx.remote.endpoint import Endpoint
    from hatch_epctx.remote.entry import Key
    from hatch_epctx.remote.transport import RoundTrips

__all__ = ["Web"]

T = TypeVar("T")

_REASONS: Final[dict[int, Reason]] = {
    401: "refused",
    403: "refused",
    404: "absent",
    410: "absent",
    429: "overloaded",
}
_DRAIN: Final = 64 << 10
"""Bytes of an answer that are read only to keep its connection."""


class Web:
    """The transport for ``http://`` and ``https://``."""

    def __init__(self, endpoint: Endpoint, round_trips: RoundTrips) -> None:
        self._endpoint = endpoint
        self._trips = round_trips
        self._retry = Retry(attempts=endpoint.retries + 1)
        self._stop = threading.Event()
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._guard = threading.Lock()
        self._headers = {"User-Agent": f"hatch-epctx/{__version__}", "Accept-Encoding": "identity"}
        self._headers.update(endpoint.headers)
        self._tls: ssl.SSLContext | None = None
        if endpoint.scheme == "https":
            self._tls = ssl.create_default_context(cafile=str(endpoint.tls_ca) if endpoint.tls_ca else None)
            if endpoint.tls_cert:
                self._tls.load_cert_chain(endpoint.tls_cert, endpoint.tls_key)

    def lookup(self, key: Key) -> pb.ActionResult:
        """See `Transport`."""

        def take(response: http.client.HTTPResponse) -> bytes:
            data = response.read(RESULT_LIMIT + 1)
            if len(data) > RESULT_LIMIT:
                raise RemoteError(f"an oversized result: more than {RESULT_LIMIT} bytes", reason="corrupt")
            if response.length:  # http.client says nothing about a connection that broke off
                raise RemoteError("the answer broke off", reason="unreachable", transient=True)
            return data

        data = self._request("GET", f"ac/{key.action.digest}", take)
        try:
            return pb.ActionResult.FromString(data)
        except (DecodeError, UnicodeDecodeError) as error:  # the latter from protobuf's implementation in Python
            raise RemoteError("a malformed result", reason="corrupt") from error

    def update(self, key: Key, result: pb.ActionResult) -> None:
        """See `Transport`."""
        data = serialize(result)
        self._request("PUT", f"ac/{key.action.digest}", _nothing, body=lambda: [data], size=len(data))

    def reads(self, receivers: Sequence[Receiver]) -> list[Callable[[], None]]:
        """See `Transport`."""
        ordered = sorted(receivers, key=lambda receiver: -receiver.blob.size)  # the longest first
        return [self._reader(receiver) for receiver in ordered]

    def writes(self, sources: Sequence[Source], *, anew: bool = False) -> list[Callable[[], None]]:
        """See `Transport`. Each job asks first whether its blob is there."""
        ordered = sorted(sources, key=lambda source: -source.blob.size)
        return [self._writer(source, anew=anew) for source in ordered]

    def close(self) -> None:
        """See `Transport`."""
        self._stop.set()
        with self._guard:
            for connection in (*self._idle, *self._busy):
                with suppress(OSError):  # wakes a thread that waits for this server
                    if connection.sock is not None:
                        connection.sock.shutdown(2)
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def _reader(self, receiver: Receiver) -> Callable[[], None]:
        blob = receiver.blob

        def take(response: http.client.HTTPResponse) -> None:
            receiver.restart()
            if response.length is not None and response.length != blob.size:
                word = "truncated" if response.length < blob.size else "oversized"
                raise RemoteError(
                    f"{receiver.name} is {word}: {response.length} bytes in place of {blob.size}", reason="corrupt"
                )
            deadline = time.monotonic() + self._endpoint.transfer_time(blob.size)
            while piece := response.read1(CHUNK):
                receiver.feed(piece)
                if time.monotonic() > deadline:
                    raise RemoteError(f"GET of {receiver.name}: too slow", reason="unreachable")
            if response.length:
                raise RemoteError(f"GET of {receiver.name} broke off", reason="unreachable", transient=True)
            receiver.finish()

        def job() -> None:
            try:
                self._request("GET", _cas(blob), take)
            except RemoteError as error:
                if error.reason != "absent":
                    raise
                raise RemoteError(f"{receiver.name} is missing", reason="absent") from error

        return job

    def _writer(self, source: Source, *, anew: bool) -> Callable[[], None]:
        def job() -> None:
            if anew or not self._has(source.blob):
                self._request("PUT", _cas(source.blob), _nothing, body=source.chunks, size=source.blob.size)

        return job

    def _has(self, blob: Blob) -> bool:
        try:
            self._request("HEAD", _cas(blob), _nothing)
        except RemoteError as error:
            if error.reason not in ("absent", "failed"):  # failed: a server that knows no HEAD
                raise
            return False
        return True

    def _request(
        self,
        method: str,
        path: str,
        take: Callable[[http.client.HTTPResponse], T],
        *,
        body: Callable[[], Iterable[bytes]] | None = None,
        size: int = 0,
    ) -> T:
        """One request, tried again where that may help; `take` reads the body of a good answer."""
        return self._retry.run(lambda: self._attempt(method, path, take, body, size), stop=self._stop)

    def _attempt(
        self,
        method: str,
        path: str,
        take: Callable[[http.client.HTTPResponse], T],
        body: Callable[[], Iterable[bytes]] | None,
        size: int,
    ) -> T:
        self._trips.add(f"{method} {path.partition('/')[0]}")
        connection = self._acquire()
        keep = False
        try:
            response = self._send(connection, method, path, body, size)
            try:
                if response.status not in (200, 201, 202, 204):
                    raise _status_error(method, path, response)
                if response.getheader("Content-Encoding", "identity") != "identity":
                    raise RemoteError(f"{method} {path}: an encoding that was not asked for", reason="corrupt")
                result = take(response)
                keep = True
            finally:
                # An answer that was read to its end leaves a connection as good as new, whatever it said.
                keep = (keep or response.status >= 400) and _drain(response)
                response.close()
        except TimeoutError as error:
            raise RemoteError(f"{method}: no answer in time", reason="unreachable") from error
        except ssl.SSLCertVerificationError as error:
            text = answered(f"the server's certificate: {error.verify_message}")
            raise RemoteError(text, reason="refused") from error
        except (http.client.HTTPException, ConnectionError, ssl.SSLError) as error:
            text = answered(f"{method}: {str(error) or type(error).__name__}")
            raise RemoteError(text, reason="unreachable", transient=True) from error
        finally:
            self._release(connection, keep=keep)
        return result

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Callable[[], Iterable[bytes]] | None,
        size: int,
    ) -> http.client.HTTPResponse:
        headers = dict(self._headers)
        if body is not None:
            headers |= {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        prefix = f"/{self._endpoint.path}" if self._endpoint.path else ""
        try:
            if connection.sock is None:
                connection.connect()
        except (ConnectionError, TimeoutError, ssl.SSLError):
            raise
        except OSError as error:  # no such host, no route
            raise RemoteError(answered(str(error)), reason="unreachable", transient=True) from error
        try:
            connection.request(method, f"{prefix}/{path}", body=body() if body else None, headers=headers)
        except (BrokenPipeError, ConnectionResetError):
            if body is None:
                raise
            # A server may answer before it has read a body that it does not want, and close.
        return connection.getresponse()

    def _acquire(self) -> http.client.HTTPConnection:
        with self._guard:
            if self._stop.is_set():
                raise RemoteError("closed", reason="failed")
            if self._idle:
                connection = self._idle.pop()
            elif self._tls is not None:
                host, port, timeout = self._endpoint.host, self._endpoint.port, self._endpoint.timeout
                connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)
            else:
                host, port, timeout = self._endpoint.host, self._endpoint.port, self._endpoint.timeout
                connection = http.client.HTTPConnection(host, port, timeout=timeout)
            self._busy.add(connection)
            return connection

    def _release(self, connection: http.client.HTTPConnection, *, keep: bool) -> None:
        with self._guard:
            self._busy.discard(connection)
            if keep and connection.sock is not None and not self._stop.is_set():
                self._idle.append(connection)
                return
        connection.close()


def _cas(blob: Blob) -> str:
    return f"cas/{blob.digest}"


def _nothing(_response: http.client.HTTPResponse) -> None:
    """The answer's body says nothing that we need."""


def _drain(response: http.client.HTTPResponse) -> bool:
    """Read a short rest of the answer; whether its end was reached."""
    with suppress(OSError, http.client.HTTPException):
        response.read(_DRAIN)
    return response.isclosed()


def _status_error(method: str, path: str, response: http.client.HTTPResponse) -> RemoteError:
    status = response.status
    reason: Reason = "overloaded" if status >= 500 else _REASONS.get(status, "failed")
    text = answered(f"{method} {path[:16]}: HTTP {status} {response.reason}")
    return RemoteError(text, reason=reason, transient=reason == "overloaded")
