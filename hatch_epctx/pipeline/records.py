"""What a pipeline gives its callers: planned variants, entries, builds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from hatch_epctx.config import Project, Variant
    from hatch_epctx.errors import EpctxError
    from hatch_epctx.identity import Identity
    from hatch_epctx.source import SourceModel
    from hatch_epctx.store import Generation
    from hatch_epctx.toolchain import Toolchain

__all__ = ["Build", "Entry", "Planned", "Status", "raise_all"]

Status = Literal["hit", "miss", "compiled", "fetched", "skipped", "failed"]

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A variant with its identity, or the reason why it is skipped."""

    variant: Variant
    source: SourceModel | None = None
    identity: Identity | None = None
    toolchain: Toolchain | None = None
    option_digests: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """Content digest of each file or folder option by its name, as the identity has it."""
    calibration: str | None = None
    """Content digest of the samples that model preparation reads, as the identity has it."""
    check_inputs: str | None = None
    """Content digest of the inputs that the check runs; no part of the identity."""
    skipped: str = ""
    borrowed: bool = False
    """The toolchain is that of epctx.lock: the EP is not here, and nothing can be compiled."""
    asked: float = field(default_factory=time.monotonic, compare=False)
    """When all this was so, in seconds of `time.monotonic`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One variant and what became of it."""

    planned: Planned
    status: Status
    reason: str = ""
    """Why it is no hit, why it was skipped, why its generation was not selected."""
    generation: Generation | None = None
    """Leased until `Build.close`."""
    error: EpctxError | None = None
    check: Mapping[str, Any] | None = None
    """What the comparison with the CPU EP found, where the variant demands one; see `checking`."""
    facts: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    """Of the generation's record: coverage, operators left, metadata lost and so on."""
    prepared: Path | None = None
    """The model that was compiled, where it was prepared: in the store, as long as the generation is not collected."""
    seconds: float = 0.0
    """Wall time of this build's work on the variant; presentation only."""

    @property
    def variant(self) -> Variant:
        """The variant itself."""
        return self.planned.variant

    @property
    def uncertain(self) -> tuple[str, ...]:
        """What could not be named with certainty, in words. Not empty: the variant is compiled anew in every build."""
        return self.planned.identity.uncertain if self.planned.identity else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The entries of one build, in declaration order. Close it to give up the leases."""

    project: Project
    entries: tuple[Entry, ...]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release every generation."""
        for entry in self.entries:
            if entry.generation is not None:
                entry.generation.close()

    def raise_for_failures(self) -> None:
        """Raise the failure of this build; of several, one error that holds them all.

        Raises:
            EpctxError: of the first failed variant's class.
        """
        failures = [entry.error for entry in self.entries if entry.error is not None]
        raise_all(failures, f"of {len(self.entries)} variants")


def raise_all(errors: Sequence[EpctxError], scope: str) -> None:
    """Raise the one error, or one of the first one's class that shows them all; nothing when there is none.

    What several variants meet alike, such as a missing EP, is said once.
    """
    errors = list({str(error): error for error in errors}.values())
    if len(errors) == 1:
        raise errors[0]
    if errors:
        detail = "\n\n".join(str(error) for error in errors)
        raise type(errors[0])(f"{len(errors)} failures {scope}", reason=errors[0].reason, detail=detail)
