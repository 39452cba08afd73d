"""Sessions of several models that hold once what they share.

ONNX Runtime's way (its design note "EPContext with Weight Sharing"): every session of a weight-sharing group is made
with ``ep.share_ep_contexts``, the last one with ``ep.stop_share_ep_contexts`` too. The EP then reads a shared context
binary once, and keeps the graphs that no session has taken yet *by name, for the whole process* (QNN, SharedContext).
Hence the rules here: a group is opened whole and by one thread at a time, since a member that is left out, or opened
twice, would leave its graphs for the next session that has a graph of that name; and what cannot be opened so is opened
without sharing, which costs memory and is never wrong.
"""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hatch_epctx.errors import LookupFailure
from hatch_epctx.runtime.choosing import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

    from hatch_epctx.runtime.choice import Choice

__all__ = ["SHARE", "open_together"]

SHARE: Final = "ep.share_ep_contexts"
_STOP: Final = "ep.stop_share_ep_contexts"
_EACH: Final[Mapping[str, str]] = MappingProxyType({SHARE: "1"})
_LAST: Final[Mapping[str, str]] = MappingProxyType({SHARE: "1", _STOP: "1"})
_turn = threading.Lock()


def open_together(
    found: Mapping[str, Choice],
    share: Callable[[str, Choice, Mapping[str, str]], InferenceSession],
    alone: Callable[[str], InferenceSession],
) -> dict[str, InferenceSession]:
    """The sessions of `found`, by the same names and in the same order.

    Args:
        found: what the look-up gives for each name.
        share: opens exactly this variant with these session configuration entries over the caller's, or raises.
        alone: opens a name as `Package.session` does.

    Raises:
        LookupFailure, VerificationError: as `alone`, or as `share` but for a session that cannot be made.
    """
    made: dict[str, InferenceSession] = {}
    for group in _groups(found):
        with _turn:
            try:
                for name in group:
                    made[name] = share(name, found[name], _LAST if name == group[-1] else _EACH)
            except LookupFailure as failed:
                for name in group:
                    made.pop(name, None)
                log().warning("%s do not open together: %s; each is opened by itself", ", ".join(group), failed)
    return {name: made[name] if name in made else alone(name) for name in found}


def _groups(found: Mapping[str, Choice]) -> Iterator[Sequence[str]]:
    """The names that are all members of one weight-sharing group, each once."""
    by_group: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, choice in found.items():
        if choice.shares_with and not choice.compiled_here:
            by_group.setdefault((choice.package, choice.shares_with), []).append(name)
    for (_, members), names in by_group.items():
        chosen = sorted(f"{found[name].model}.{found[name].variant}" for name in names)
        if chosen == sorted(members):
            yield names
