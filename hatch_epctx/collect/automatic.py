"""Collection after a build: only when it is due, never for long, and never the build's failure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from hatch_epctx.collect.collecting import collect
from hatch_epctx.collect.usage import remember_size, remembered_size
from hatch_epctx.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hatch_epctx.collect.collecting import Collected
    from hatch_epctx.collect.limits import Limits
    from hatch_epctx.store import Store

__all__ = ["SECONDS", "after_build"]

SECONDS: Final = 2.0
"""Seconds that a build spends on it at most, give or take the removal that was begun."""
_HEADROOM: Final = 0.1
"""Share of the limit that is freed beyond it, so that the next build need not collect again."""
_INTERVAL: Final = 86_400.0
"""Seconds after which the store's size is measured anew, and ages are looked at."""


def after_build(store: Store, limits: Limits, *, grown: int, say: Callable[[str], None]) -> Collected | None:
    """Collect if the store is over a limit, or was not looked at for a day; at most `SECONDS`.

    The size is the last one that was measured and what builds have added since; of builds that add at the same
    moment one may be forgotten until the next measurement.

    Args:
        store: the store.
        limits: what the project declares.
        grown: bytes that this build added.
        say: told what was done, and what went wrong; nothing is raised for that.

    Returns:
        What was done; None when nothing was due, or nothing may be removed here.
    """
    try:
        if store.read_only or store.layout.on_network or not _is_due(store, limits, grown):
            return None
        known, _ = remembered_size(store) or (0, 0.0)
        done = collect(store, limits, seconds=SECONDS, headroom=_HEADROOM, known=known + grown)
    except (OSError, StoreError) as error:
        if not (isinstance(error, StoreError) and error.reason == "lock-timeout"):  # another build collects
            say(f"warning: the store was not collected: {error}")
        return None
    _tell(done, limits, say)
    return done


def _is_due(store: Store, limits: Limits, grown: int) -> bool:
    known = remembered_size(store)
    if known is None:
        return True
    size, surveyed = known
    if not 0 <= time.time() - surveyed < _INTERVAL or size + grown > limits.max_size:
        return True
    if grown:
        remember_size(store, size + grown, surveyed)
    return False


def _tell(done: Collected, limits: Limits, say: Callable[[str], None]) -> None:
    if done.removed:
        left = f"the store holds {_size(done.size)} of {_size(limits.max_size)}"
        say(f"collected {len(done.removed)} generations, {_size(done.freed)}; {left}")
    if done.failed:
        say(f"warning: {len(done.failed)} could not be collected; the first: {done.failed[0]}")
    if done.size > limits.max_size and done.finished:
        say(
            f"warning: the store holds {_size(done.size)}, more than {_size(limits.max_size)} (cache.max-size):"
            " all of it is in use or pinned"
        )
    elif not done.finished and not done.removed:
        say("warning: the store is too large to be looked through after a build: run 'epctx cache collect'")


def _size(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"
