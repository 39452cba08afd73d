"""The Remote Execution API v2 over gRPC, as far as a cache needs it.

One look-up is GetActionResult, then BatchReadBlobs for all small blobs together and one ByteStream read for each big
one; before the first call of all there is one GetCapabilities. What counts as small follows from the server's limit.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hatch_epctx.remote import zstd
from hatch_epctx.remote.blobs import Blob
from hatch_epctx.remote.bytestream import ByteStream
from hatch_epctx.remote.entry import RECORD_NAME, digest_message
from hatch_epctx.remote.faults import RemoteError
from hatch_epctx.remote.proto import reapi_pb2 as pb
from hatch_epctx.remote.wire import MESSAGE_LIMIT, Wire, status_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hatch_epctx.remote.blobs import Receiver, Source
    from hatch_epctx.remote.endpoint import Endpoint
    from hatch_epctx.remote.entry import Key
    from hatch_epctx.remote.transport import RoundTrips

__all__ = ["SERVICE", "Capabilities", "Reapi", "packs"]

SERVICE: Final = "/build.bazel.remote.execution.v2."
OVERHEAD: Final = 64 << 10
"""Bytes of a message that no batch uses, for servers that count more than the blobs."""
MARGIN: Final = 1 << 10
"""Bytes of a batch that each blob may cost beside its data: digest, status, framing, a server's own words."""
BATCH_COUNT: Final = 1000
"""Blobs of one batch, digests of one question."""
OK: Final = 0
NOT_FOUND: Final = 5
ALREADY_EXISTS: Final = 6
CONNECT_TIME: Final = 10.0
"""Seconds for the first answer of a server, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What this server does, as far as it concerns us."""

    batch_size: int
    """Bytes of all blobs of one batch, their `MARGIN` included."""
    blob_limit: int
    """Bytes of the biggest blob it takes; 0: it names no limit."""
    update: bool
    """Whether it takes results from us."""
    zstd: bool
    """Whether both sides do Zstandard, in ByteStream and in the answers of BatchReadBlobs."""
    execute: bool


def capabilities_of(answer: pb.ServerCapabilities) -> Capabilities:
    """Read a server's capabilities.

    Raises:
        RemoteError: "refused": it speaks another version, or has no SHA-256.
    """
    cache = answer.cache_capabilities
    low, high = answer.low_api_version.major, answer.high_api_version.major
    if low > 2 or 0 < high < 2:
        raise RemoteError(f"it speaks version {low} to {high} of the protocol, not 2", reason="refused")
    if cache.digest_functions and pb.DigestFunction.SHA256 not in cache.digest_functions:
        raise RemoteError("it does not address blobs by SHA-256", reason="refused")
    limit = cache.max_batch_total_size_bytes
    return Capabilities(
        batch_size=(min(limit, MESSAGE_LIMIT) if limit > 0 else MESSAGE_LIMIT) - OVERHEAD,
        blob_limit=max(cache.max_cas_blob_size_bytes, 0),
        update=cache.action_cache_update_capabilities.update_enabled,
        zstd=zstd.available() and pb.Compressor.ZSTD in cache.supported_compressors,
        execute=answer.execution_capabilities.exec_enabled,
    )


def packs(blobs: Iterable[Blob], capabilities: Capabilities) -> tuple[list[list[Blob]], list[Blob]]:
    """Sort blobs into batches and those that need a stream of their own.

    Returns:
        (batches, big ones). A batch never holds one blob twice.
    """
    batches: list[list[Blob]] = []
    big: list[Blob] = []
    room = 0
    for blob in sorted(set(blobs), key=lambda blob: (blob.size, blob.digest)):
        need = blob.size + MARGIN
        if need > capabilities.batch_size:
            big.append(blob)
            continue
        if need > room or len(batches[-1]) >= BATCH_COUNT:
            batches.append([])
            room = capabilities.batch_size
        batches[-1].append(blob)
        room -= need
    return batches, big


class Reapi:
    """The transport for ``grpc://`` and ``grpcs://``."""

    def __init__(self, endpoint: Endpoint, round_trips: RoundTrips) -> None:
        self.wire = Wire(endpoint, round_trips)
        self._stream = ByteStream(self.wire)
        self._instance = endpoint.path
        self._known: Capabilities | RemoteError | None = None
        self._guard = threading.Lock()

    def capabilities(self) -> Capabilities:
        """What the server does; asked once, and a failure is remembered too: threads that wait get the same.

        Raises:
            RemoteError: it does not answer, or does nothing for us.
        """
        with self._guard:
            if self._known is None:
                try:
                    self._known = self._ask()
                except RemoteError as error:
                    self._known = error
            if isinstance(self._known, RemoteError):
                raise self._known
            return self._known

    def _ask(self) -> Capabilities:
        request = pb.GetCapabilitiesRequest(instance_name=self._instance)
        timeout = min(CONNECT_TIME, self.wire.endpoint.timeout)
        method = SERVICE + "Capabilities/GetCapabilities"
        return capabilities_of(self.wire.call(method, request, pb.ServerCapabilities, timeout=timeout))

    def lookup(self, key: Key) -> pb.ActionResult:
        """See `Transport`."""
        self.capabilities()
        request = pb.GetActionResultRequest(
            instance_name=self._instance,
            action_digest=digest_message(key.action),
            inline_output_files=[RECORD_NAME],
        )
        return self.wire.call(SERVICE + "ActionCache/GetActionResult", request, pb.ActionResult)

    def update(self, key: Key, result: pb.ActionResult) -> None:
        """See `Transport`."""
        request = pb.UpdateActionResultRequest(
            instance_name=self._instance, action_digest=digest_message(key.action), action_result=result
        )
        self.wire.call(SERVICE + "ActionCache/UpdateActionResult", request, pb.ActionResult)

    def reads(self, receivers: Sequence[Receiver]) -> list[Callable[[], None]]:
        """See `Transport`."""
        capabilities = self.capabilities()
        takers: dict[Blob, list[Receiver]] = {}
        for receiver in receivers:
            takers.setdefault(receiver.blob, []).append(receiver)
        batches, big = packs(takers, capabilities)
        jobs: list[Callable[[], None]] = [self._batch_reader(batch, takers) for batch in batches]
        for blob in reversed(big):  # the longest first
            jobs += [self._stream.reader(receiver, packed=capabilities.zstd) for receiver in takers[blob]]
        return jobs

    def writes(self, sources: Sequence[Source], *, anew: bool = False) -> list[Callable[[], None]]:
        """See `Transport`. Asks for missing blobs first; what is there is not sent."""
        if not self.capabilities().update:
            raise RemoteError("it takes no results from clients", reason="refused")
        return self.uploads(sources, anew=anew)

    def uploads(self, sources: Sequence[Source], *, anew: bool = False) -> list[Callable[[], None]]:
        """As `writes`, for a server that takes blobs, whether it takes results from us or not."""
        capabilities = self.capabilities()
        for source in sources:
            if 0 < capabilities.blob_limit < source.blob.size:
                raise RemoteError(
                    f"{source.name} has {source.blob.size} bytes, and the cache takes {capabilities.blob_limit}",
                    reason="failed",
                )
        blobs = [source.blob for source in sources]
        missing = set(blobs) if anew else self._missing(blobs)
        lacking = {source.blob: source for source in sources if source.blob in missing}
        batches, big = packs(lacking, capabilities)
        jobs: list[Callable[[], None]] = [self._batch_writer([lacking[blob] for blob in batch]) for batch in batches]
        jobs += [self._stream.writer(lacking[blob], packed=capabilities.zstd) for blob in reversed(big)]
        return jobs

    def close(self) -> None:
        """See `Transport`."""
        self.wire.close()

    def _missing(self, blobs: Sequence[Blob]) -> set[Blob]:
        missing: set[Blob] = set()
        for start in range(0, len(blobs), BATCH_COUNT):
            digests = [digest_message(blob) for blob in blobs[start : start + BATCH_COUNT]]
            request = pb.FindMissingBlobsRequest(instance_name=self._instance, blob_digests=digests)
            method = SERVICE + "ContentAddressableStorage/FindMissingBlobs"
            answer = self.wire.call(method, request, pb.FindMissingBlobsResponse)
            missing |= {Blob(digest.hash, digest.size_bytes) for digest in answer.missing_blob_digests}
        return missing

    def _batch_reader(self, batch: Sequence[Blob], takers: Mapping[Blob, Sequence[Receiver]]) -> Callable[[], None]:
        compressors = [pb.Compressor.ZSTD] if self.capabilities().zstd else []
        request = pb.BatchReadBlobsRequest(
            instance_name=self._instance,
            digests=[digest_message(blob) for blob in batch],
            acceptable_compressors=compressors,
        )
        method = SERVICE + "ContentAddressableStorage/BatchReadBlobs"
        wanted = {blob: takers[blob] for blob in batch}

        def attempt() -> None:
            answer = self.wire.once(method, request, pb.BatchReadBlobsResponse)
            distribute(answer, wanted, packed=bool(compressors))

        return lambda: self.wire.retry.run(attempt, stop=self.wire.stop)

    def _batch_writer(self, sources: Sequence[Source]) -> Callable[[], None]:
        method = SERVICE + "ContentAddressableStorage/BatchUpdateBlobs"

        def attempt() -> None:
            parts = [
                pb.BatchUpdateBlobsRequest.Request(digest=digest_message(source.blob), data=source.read())
                for source in sources
            ]
            request = pb.BatchUpdateBlobsRequest(instance_name=self._instance, requests=parts)
            answer = self.wire.once(method, request, pb.BatchUpdateBlobsResponse)
            codes = {item.digest.hash: item.status for item in answer.responses}
            for source in sources:
                status = codes.get(source.blob.digest)
                if status is None:
                    raise RemoteError(f"no answer about {source.name}", reason="failed")
                if status.code not in (OK, ALREADY_EXISTS):
                    raise status_error(source.name, status.code, status.message)

        return lambda: self.wire.retry.run(attempt, stop=self.wire.stop)


def distribute(answer: pb.BatchReadBlobsResponse, wanted: Mapping[Blob, Sequence[Receiver]], *, packed: bool) -> None:
    """Give every receiver its blob out of the answer.

    Raises:
        RemoteError: a blob is missing, left out, not what was asked for, or badly compressed.
    """
    left = dict(wanted)
    for item in answer.responses:
        receivers = left.pop(Blob(item.digest.hash, item.digest.size_bytes), None)
        if receivers is None:
            raise RemoteError("BatchReadBlobs answered with a blob that was not asked for", reason="corrupt")
        if item.status.code == NOT_FOUND:
            raise RemoteError(f"{receivers[0].name} is missing", reason="absent")
        if item.status.code != OK:
            raise status_error(receivers[0].name, item.status.code, item.status.message)
        for receiver in receivers:
            receiver.restart()
            for piece in unpack(item.data, item.compressor, packed=packed):
                receiver.feed(piece)
            receiver.finish()
    for receivers in left.values():
        raise RemoteError(f"BatchReadBlobs left out {receivers[0].name}", reason="corrupt")


def unpack(data: bytes, compressor: int, *, packed: bool) -> Iterable[bytes]:
    """The bytes of one blob of a batch."""
    if compressor == pb.Compressor.IDENTITY:
        return [data]
    if compressor == pb.Compressor.ZSTD and packed:
        return zstd.Decompressor().feed(data)
    raise RemoteError("BatchReadBlobs answered in a compression that was not asked for", reason="corrupt")
