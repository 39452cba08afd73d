"""Identities whose compile was seen to give different bytes: only what was kept of them can be had again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hatch_epctx.store import Store

__all__ = ["is_unstable", "remember_unstable"]

_KIND: Final = "unstable"


def remember_unstable(store: Store, identity: str) -> None:
    """Keep that two compiles of `identity` gave different bytes. Nothing takes that back."""
    store.remember(_KIND, identity, {"unstable": True})


def is_unstable(store: Store, identity: str) -> bool:
    """Whether two compiles of `identity` gave different bytes, as far as this store remembers."""
    return (store.recall(_KIND, identity) or {}).get("unstable") is True
