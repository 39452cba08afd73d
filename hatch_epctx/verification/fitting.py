"""Which variants of a package this machine can run, by the look-up's own rules, asked in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.compile import judge
from hatch_epctx.errors import EpctxError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hatch_epctx.store import Store

__all__ = ["verdicts"]

_UNKNOWN: Final = "EPs of this machine could not be asked"


def verdicts(manifest: bytes, store: Store) -> tuple[Mapping[str, Mapping[str, Any]], str]:
    """Verdicts by variant (`fits`, `reason`, `text`), and why there are none, a sentence."""
    try:
        with store.staging() as staging:
            found = judge(manifest, staging.path)
    except EpctxError as error:
        return {}, f"{_UNKNOWN}: {error.found}."
    return {item["variant"]: item for item in found}, ""
