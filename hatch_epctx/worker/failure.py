"""The one exception by which a task ends without success."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hatch_epctx.worker.protocol import Reason, Result

__all__ = ["TaskError"]


class TaskError(Exception):
    """A task cannot be done.

    Attributes:
        reason: stable word for programs.
        error: what is wrong, one line without paths of this machine.
        remedy: what to do, one or more whole sentences. May be empty.
        facts: fields that the result carries beside the error.
    """

    def __init__(self, reason: Reason, error: str, *, remedy: str = "", facts: Result | None = None) -> None:
        super().__init__(error)
        self.reason = reason
        self.error = error
        self.remedy = remedy
        self.facts: Result = facts or {}
