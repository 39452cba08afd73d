"""Calls at one time: one pool and one bound for everything that a client does."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from hatch_epctx.remote.faults import RemoteError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Runner"]

T = TypeVar("T")


class Runner:
    """Runs calls, from any thread, at most `connections` at one time."""

    def __init__(self, connections: int) -> None:
        self._slots = threading.BoundedSemaphore(connections)
        self._pool = ThreadPoolExecutor(max_workers=connections, thread_name_prefix="epctx-remote")
        self._closed = False

    def one(self, call: Callable[[], T]) -> T:
        """Run one call in this thread."""
        with self._slots:
            return call()

    def all(self, jobs: Sequence[Callable[[], None]], abort: threading.Event) -> None:
        """Run all jobs, some at one time; the first failure ends those under way (by `abort`) and drops the rest.

        No job is running any more when this returns or raises.

        Raises:
            RemoteError: of the first job that failed, or "closed".
        """
        futures: list[Future[None]] = []
        try:
            futures += [self._pool.submit(self.one, job) for job in jobs]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except (RuntimeError, CancelledError) as error:
            if not self._closed:
                raise
            raise RemoteError("closed", reason="failed") from error
        finally:
            abort.set()
            for future in futures:
                future.cancel()
            wait(futures)

    def close(self) -> None:
        """Drop what has not begun and wait for the rest, which the closed transport ends."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
