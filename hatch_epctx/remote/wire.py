"""gRPC with the habits that every call shares: metadata, time limits, retries, counting, one family of errors.

gRPC's own retries are off: calls are tried again here, where they are counted. Only UNAVAILABLE and
RESOURCE_EXHAUSTED are; a call that took its full time is not, because a second one would cost as much again.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message

from hatch_epctx import __version__
from hatch_epctx.remote.entry import serialize
from hatch_epctx.remote.faults import Reason, RemoteError, Retry, answered
from hatch_epctx.remote.proto import reapi_pb2 as pb

if TYPE_CHECKING:
    from hatch_epctx.remote.endpoint import Endpoint
    from hatch_epctx.remote.transport import RoundTrips

__all__ = ["MESSAGE_LIMIT", "Wire", "error_of", "parse", "status_error"]

T = TypeVar("T", bound=Message)

MESSAGE_LIMIT: Final = 4 << 20
"""Bytes of a message that every gRPC server and client takes without being configured."""


class Wire:
    """A gRPC channel: calls with metadata, time limits, retries and counting; gRPC's errors become `RemoteError`."""

    def __init__(self, endpoint: Endpoint, round_trips: RoundTrips) -> None:
        self.endpoint = endpoint
        self.retry = Retry(attempts=endpoint.retries + 1)
        self.stop = threading.Event()
        self._trips = round_trips
        tool = pb.RequestMetadata(tool_details=pb.ToolDetails(tool_name="hatch-epctx", tool_version=__version__))
        note = ("build.bazel.remote.execution.v2.requestmetadata-bin", serialize(tool))
        self.metadata: tuple[tuple[str, str | bytes], ...] = (*endpoint.headers, note)
        options = [
            ("grpc.enable_retries", 0),
            ("grpc.max_receive_message_length", MESSAGE_LIMIT + (1 << 20)),
            ("grpc.primary_user_agent", f"hatch-epctx/{__version__}"),
        ]
        if endpoint.scheme == "grpcs":
            files = (endpoint.tls_ca, endpoint.tls_key, endpoint.tls_cert)
            credentials = grpc.ssl_channel_credentials(*(path.read_bytes() if path else None for path in files))
            self.channel = grpc.secure_channel(endpoint.authority, credentials, options)
        else:
            self.channel = grpc.insecure_channel(endpoint.authority, options)

    def call(self, method: str, request: Message, answer: type[T], *, timeout: float | None = None) -> T:
        """One question, one answer, tried again where that may help.

        Raises:
            RemoteError: what went wrong.
        """
        return self.retry.run(lambda: self.once(method, request, answer, timeout=timeout), stop=self.stop)

    def once(self, method: str, request: Message, answer: type[T], *, timeout: float | None = None) -> T:
        """As `call`, without a second attempt."""
        name = self.count(method)
        # Bytes are parsed here, not by gRPC, which makes one and the same error of garbage and of a server's failure.
        rpc: grpc.UnaryUnaryMultiCallable[Message, bytes] = self.channel.unary_unary(
            method, request_serializer=serialize, response_deserializer=None
        )
        try:
            limit = self.endpoint.timeout if timeout is None else timeout
            data = rpc(request, timeout=limit, metadata=self.metadata)
        except grpc.RpcError as error:
            raise error_of(name, error) from error
        except ValueError as error:  # gRPC's word for a closed channel
            raise RemoteError("closed", reason="failed") from error
        return parse(name, data, answer)

    def count(self, method: str) -> str:
        """Count one request; return the method's short name."""
        name = method.rpartition("/")[2]
        self._trips.add(name)
        return name

    def close(self) -> None:
        """End all calls."""
        self.stop.set()
        self.channel.close()


def parse(name: str, data: bytes, answer: type[T]) -> T:
    """The message in `data`.

    Raises:
        RemoteError: there is none.
    """
    try:
        return answer.FromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # the latter from protobuf's implementation in Python
        raise RemoteError(f"a malformed answer to {name}", reason="corrupt") from error


def error_of(name: str, error: grpc.RpcError) -> RemoteError:
    """The error of gRPC in our words."""
    call = cast("grpc.Call", error)
    code, details = call.code(), answered(call.details() or "")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return RemoteError(f"an oversized answer to {name} ({details})", reason="corrupt")
    return status_error(name, code.value[0], details)


_REASONS: Final[dict[int, Reason]] = {
    4: "unreachable",  # DEADLINE_EXCEEDED
    5: "absent",  # NOT_FOUND
    7: "refused",  # PERMISSION_DENIED
    8: "overloaded",  # RESOURCE_EXHAUSTED
    14: "unreachable",  # UNAVAILABLE
    16: "refused",  # UNAUTHENTICATED
}
_TRANSIENT: Final = (8, 14)


def status_error(name: str, code: int, details: str) -> RemoteError:
    """The error that a status code (google.rpc.Code) stands for."""
    words = {status.value[0]: status.name for status in grpc.StatusCode}
    text = f"{name}: {words.get(code, code)}" + (f" ({answered(details)})" if details else "")
    return RemoteError(text, reason=_REASONS.get(code, "failed"), transient=code in _TRANSIENT)
