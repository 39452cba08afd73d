"""How much the store keeps, and for how long a collection may work."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

__all__ = ["DEFAULT_SIZE", "Deadline", "Limits"]

DEFAULT_SIZE: Final = 20 << 30
"""Bytes that the store may hold when nobody says otherwise: a cache nobody bounds fills the disk one day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a collection brings the store down to. They are of the whole store, whichever project declares them."""

    max_size: int = DEFAULT_SIZE
    """Bytes of all generations together."""
    max_age: float | None = None
    """Seconds without use."""

    @classmethod
    def declared(cls, max_size: int | None, max_age: float | None) -> Limits:
        """What a project's `[tool.epctx.cache]` says; the default size where it says nothing."""
        return cls(max_size=DEFAULT_SIZE if max_size is None else max_size, max_age=max_age)


class Deadline:
    """A point in time by a clock that nobody sets; without `seconds` it never comes."""

    def __init__(self, seconds: float | None = None) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds

    @property
    def over(self) -> bool:
        """Whether it has come."""
        return self._end is not None and time.monotonic() >= self._end

    @property
    def left(self) -> float | None:
        """Seconds until then; None: for ever."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())
