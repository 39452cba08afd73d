"""Problems and reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Kind", "PackageReport", "Problem", "Report", "VariantReport"]

Kind = Literal["wheel", "installed", "folder", "onnx"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One way in which something is not what its records say."""

    where: str
    """The file, as its folder or wheel names it; a variant; or what was asked for as a whole."""
    reason: str
    """A stable word for programs."""
    text: str
    """What was found and what was expected, one line."""

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantReport:
    """One variant of a package."""

    name: str
    """<model>.<variant>."""
    ep: str
    device: str | None = None
    identity: str | None = None
    files: int = 0
    size: int = 0
    """Bytes of its files."""
    fits: bool | None = None
    """Whether this machine can run it; None where that was not asked."""
    verdict: str = ""
    """Why not, or what was not compared."""
    reason: str = ""
    """A stable word for why not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageReport:
    """One package folder."""

    place: str
    name: str = ""
    version: str = ""
    variants: tuple[VariantReport, ...] = ()
    bill: bool = False
    """Whether a bill of materials lists its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found."""

    path: str
    kind: Kind
    problems: tuple[Problem, ...]
    packages: tuple[PackageReport, ...] = ()
    checked: tuple[str, ...] = ()
    """What was looked at, a clause each."""
    notes: tuple[str, ...] = field(default=())
    """What could not be looked at, a sentence each."""
