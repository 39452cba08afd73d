"""ByteStream (google.bytestream): big blobs, one stream each.

Resource names are those of the Remote Execution API: ``[instance/]blobs/<digest>/<size>`` to read, with
``uploads/<uuid>/`` before ``blobs`` to write, and ``compressed-blobs/zstd`` in place of ``blobs`` for Zstandard; the
size is always that of the blob itself. A read that breaks off goes on where it was; a write starts again.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

import grpc

from hatch_epctx.remote import zstd
from hatch_epctx.remote.entry import serialize
from hatch_epctx.remote.faults import RemoteError
from hatch_epctx.remote.proto import reapi_pb2 as pb
from hatch_epctx.remote.wire import error_of, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from google.protobuf.message import Message

    from hatch_epctx.remote.blobs import Blob, Receiver, Source
    from hatch_epctx.remote.wire import Wire

__all__ = ["ByteStream"]

READ: Final = "/google.bytestream.ByteStream/Read"
WRITE: Final = "/google.bytestream.ByteStream/Write"


class ByteStream:
    """Jobs that read and write big blobs over one channel."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def reader(self, receiver: Receiver, *, packed: bool) -> Callable[[], None]:
        """A job that fills and finishes `receiver`; `packed`: compressed on the way."""
        return lambda: self._wire.retry.run(lambda: self._read(receiver, packed=packed), stop=self._wire.stop)

    def writer(self, source: Source, *, packed: bool) -> Callable[[], None]:
        """A job that sends `source`."""
        return lambda: self._wire.retry.run(lambda: self._write(source, packed=packed), stop=self._wire.stop)

    def _resource(self, blob: Blob, *, packed: bool, upload: bool = False) -> str:
        parts = [self._wire.endpoint.path] if self._wire.endpoint.path else []
        if upload:
            parts += ["uploads", str(uuid.uuid4())]
        parts += ["compressed-blobs", "zstd"] if packed else ["blobs"]
        return "/".join([*parts, blob.digest, str(blob.size)])

    def _read(self, receiver: Receiver, *, packed: bool) -> None:
        frame = zstd.Decompressor() if packed else None
        if packed:
            receiver.restart()  # how an offset counts in a compressed stream is not the same on all servers
        request = pb.ReadRequest(
            resource_name=self._resource(receiver.blob, packed=packed), read_offset=receiver.position
        )
        name = self._wire.count(READ)
        rpc: grpc.UnaryStreamMultiCallable[Message, bytes] = self._wire.channel.unary_stream(
            READ, request_serializer=serialize, response_deserializer=None
        )
        timeout = self._wire.endpoint.transfer_time(receiver.blob.size)
        call = rpc(request, timeout=timeout, metadata=self._wire.metadata)
        try:
            for answer in call:
                data = parse(name, answer, pb.ReadResponse).data
                for piece in frame.feed(data) if frame else (data,):
                    receiver.feed(piece)
        except grpc.RpcError as error:
            fault = error_of(receiver.name, error)
            if fault.reason == "absent":
                fault = RemoteError(f"{receiver.name} is missing", reason="absent")
            raise fault from error
        except BaseException:
            call.cancel()
            raise
        receiver.finish()

    def _write(self, source: Source, *, packed: bool) -> None:
        resource = self._resource(source.blob, packed=packed, upload=True)
        faults: list[RemoteError | OSError] = []
        requests = _requests(resource, source, faults, packed=packed)
        name = self._wire.count(WRITE)
        rpc: grpc.StreamUnaryMultiCallable[Message, bytes] = self._wire.channel.stream_unary(
            WRITE, request_serializer=serialize, response_deserializer=None
        )
        timeout = self._wire.endpoint.transfer_time(source.blob.size)
        try:
            data = rpc(requests, timeout=timeout, metadata=self._wire.metadata)
        except grpc.RpcError as error:
            raise faults[0] if faults else error_of(f"{name} of {source.name}", error) from error
        if faults:
            raise faults[0]
        committed = parse(name, data, pb.WriteResponse).committed_size
        # A server that has the blob already may answer early: with its size, or -1 when the stream is compressed.
        if not packed and committed != source.blob.size:
            raise RemoteError(
                f"the cache took {committed} of {source.blob.size} bytes of {source.name}", reason="failed"
            )


def _requests(
    resource: str, source: Source, faults: list[RemoteError | OSError], *, packed: bool
) -> Iterator[pb.WriteRequest]:
    """The messages of one write. A fault of the file ends them without the last, so that the write stays unfinished."""
    pieces: Iterable[bytes] = zstd.compress(source.chunks()) if packed else source.chunks()
    offset = 0
    held: bytes | None = None
    try:
        for piece in pieces:
            if held is not None:
                yield pb.WriteRequest(resource_name=resource, write_offset=offset, data=held)
                offset += len(held)
            held = piece
    except (RemoteError, OSError) as error:  # raised in gRPC's thread, where nobody would catch it
        faults.append(error)
        return
    yield pb.WriteRequest(resource_name=resource, write_offset=offset, data=held or b"", finish_write=True)
