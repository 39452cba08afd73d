"""What can go wrong with a remote cache, in one error with six reasons, and when to try again.

None of this reaches a build: `client` turns every fault into a miss or a bounded warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import SystemRandom
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from hatch_epctx.errors import StoreError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

__all__ = ["Reason", "RemoteError", "Retry", "answered"]

T = TypeVar("T")

Reason = Literal["absent", "corrupt", "failed", "overloaded", "refused", "unreachable"]
"""absent: the server does not have it. corrupt: an answer is not what was asked for. failed: the server could not
answer this one call. overloaded: it has no room or no power now. refused: it never will (credentials, no SHA-256).
unreachable: it does not answer at all."""

_RANDOM: Final = SystemRandom()


class RemoteError(StoreError):
    """A call to the remote cache did not give what it should.

    Attributes:
        transient: trying again soon may help.
    """

    def __init__(self, found: str, *, reason: Reason, transient: bool = False) -> None:
        super().__init__(found, reason=reason)
        self.transient = transient

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.found, self.reason, self.transient))


def _rebuild(found: str, reason: Reason, transient: bool) -> RemoteError:  # noqa: FBT001  # pickled positionally
    return RemoteError(found, reason=reason, transient=transient)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When to try again: after 0.1, 0.4, 1.6, 6.4, ... seconds, each shortened by chance to as little as its half.

    Chance keeps a fleet that lost its cache at one moment from coming back at one moment.
    """

    attempts: int = 4
    """Calls in all, at least one."""
    first: float = 0.1
    """Seconds before the second attempt."""
    factor: float = 4.0
    longest: float = 10.0
    """Seconds before any attempt, at most."""

    def run(self, attempt: Callable[[], T], *, stop: threading.Event) -> T:
        """The first result of `attempt`.

        Args:
            attempt: one call; raises `RemoteError`.
            stop: ends the waiting between attempts.

        Raises:
            RemoteError: of the last attempt, or the first that is not transient.
        """
        left, delay = self.attempts, self.first
        while True:
            left -= 1
            try:
                return attempt()
            except RemoteError as error:
                if not error.transient or left <= 0 or stop.wait(delay * _RANDOM.uniform(0.5, 1.0)):
                    raise
            delay = min(delay * self.factor, self.longest)


def answered(text: str, *, limit: int = 200) -> str:
    """A server's own words, fit for one line of a report: printable, short."""
    line = " ".join(text.split())
    shown = "".join(character if character.isprintable() else "?" for character in line)
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."
