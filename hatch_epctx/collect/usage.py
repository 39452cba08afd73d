"""The store's size as it was last measured, so that a build need not survey the store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hatch_epctx.store import Store

__all__ = ["remember_size", "remembered_size"]

_SIZE: Final = ("usage", "store")
"""Kind and key of the fact that holds the store's size, so that a build need not survey it."""


def remember_size(store: Store, size: int, surveyed: float | None = None) -> None:
    """Keep the store's size, and when it was measured (now when left out), for `remembered_size`."""
    store.remember(*_SIZE, {"size": size, "surveyed": time.time() if surveyed is None else surveyed})


def remembered_size(store: Store) -> tuple[int, float] | None:
    """(bytes, seconds since 1970 of the survey) as last remembered."""
    fact = store.recall(*_SIZE) or {}
    size, surveyed = fact.get("size"), fact.get("surveyed")
    if type(size) is not int or not isinstance(surveyed, int | float):
        return None
    return size, float(surveyed)
