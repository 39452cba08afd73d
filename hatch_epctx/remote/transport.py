"""What the two protocols have in common, as the client sees them."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hatch_epctx.remote.blobs import Receiver, Source
    from hatch_epctx.remote.entry import Key
    from hatch_epctx.remote.proto import reapi_pb2 as pb

__all__ = ["RoundTrips", "Transport"]


class RoundTrips:
    """Counts requests by method, from any thread. A request that is tried again counts again."""

    def __init__(self) -> None:
        self._counter: Counter[str] = Counter()
        self._guard = threading.Lock()

    def add(self, method: str) -> None:
        """Count one request."""
        with self._guard:
            self._counter[method] += 1

    def snapshot(self) -> dict[str, int]:
        """Requests so far, by method, sorted."""
        with self._guard:
            return dict(sorted(self._counter.items()))


class Transport(Protocol):
    """One protocol. Every method may be called from any thread, and raises `RemoteError` and nothing else.

    Methods that return jobs make as few calls as they can themselves; each job is one call or a few that belong
    together, jobs are independent of each other, and the caller runs them, in any order and number at one time.
    """

    def lookup(self, key: Key) -> pb.ActionResult:
        """The result under the key.

        Raises:
            RemoteError: "absent" when there is none.
        """

    def reads(self, receivers: Sequence[Receiver]) -> list[Callable[[], None]]:
        """Jobs that fill and finish the receivers; a blob may be asked for twice, and none is empty."""

    def writes(self, sources: Sequence[Source], *, anew: bool = False) -> list[Callable[[], None]]:
        """Jobs that send what the server lacks, or with `anew` all; the blobs differ and none is empty."""

    def update(self, key: Key, result: pb.ActionResult) -> None:
        """Keep the result under the key."""

    def close(self) -> None:
        """End all calls; those under way fail."""
