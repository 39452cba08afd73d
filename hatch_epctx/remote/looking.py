"""Whether a remote cache answers, and what it does: one question, without a second attempt."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.remote.entry import key_of
from hatch_epctx.remote.faults import RemoteError
from hatch_epctx.remote.transport import RoundTrips

if TYPE_CHECKING:
    from collections.abc import Callable

    from hatch_epctx.remote.endpoint import Endpoint
    from hatch_epctx.remote.transport import Transport

__all__ = ["look_at"]

TIME: Final = 10.0
"""Seconds for the answer, at most."""
_NOTHING: Final = "0" * 64
"""No document has this identity."""


def look_at(endpoint: Endpoint, connect: Callable[[Endpoint, RoundTrips], Transport]) -> dict[str, Any]:
    """Ask the cache what it does.

    Args:
        endpoint: of the cache.
        connect: opens the transport of its protocol.

    Returns:
        `state`: "answers", or the reason why not (`faults.Reason`), with a `message`; `seconds` that the answer took;
        `writes`, `executes` and `compresses` as the server says it; None where the protocol does not tell.
    """
    facts: dict[str, Any] = {"name": endpoint.name, "state": "answers", "message": "", "seconds": None}
    facts |= {"writes": None, "executes": None, "compresses": None}
    transport = connect(replace(endpoint, retries=0, timeout=min(endpoint.timeout, TIME)), RoundTrips())
    start = time.monotonic()
    try:
        ask = getattr(transport, "capabilities", None)
        if ask is not None:
            found = ask()
            facts |= {"writes": found.update, "executes": found.execute, "compresses": found.zstd}
        else:
            transport.lookup(key_of(_NOTHING))
    except RemoteError as error:
        if error.reason != "absent":
            facts |= {"state": error.reason, "message": str(error)}
    finally:
        transport.close()
    facts["seconds"] = round(time.monotonic() - start, 3)
    return facts
