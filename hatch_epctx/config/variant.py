"""Variants: one model for one expanded target, everything decided that the configuration decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hatch_epctx.digest import digest_bytes
from hatch_epctx.manifest import loading_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hatch_epctx.epcache import EpCache
    from hatch_epctx.providers import OptionValue, Provider

__all__ = ["CheckPlan", "CustomOps", "SharedGroup", "Variant"]

_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPlan:
    """What the comparison with the CPU EP runs and demands."""

    inputs: Path | None = None
    """An .npz file of inputs; generated ones when None."""
    rtol: float
    atol: float
    cosine: float | None = None
    """Lowest cosine similarity of a floating-point output."""
    seed: int = 0
    ranges: Mapping[str, tuple[float, ...]] = field(default_factory=lambda: _NONE)
    """Lowest and highest generated value by input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomOps:
    """A library of custom operators that a model needs wherever it is opened: of a module, or a file."""

    module: str = ""
    """Import name of a module with get_library_path(); empty for a file."""
    file: Path | None = None

    @property
    def copy_name(self) -> str:
        """Where the copy of a file stands in a job's folder; files of several models do not meet there."""
        path = self.file or Path()
        return f"custom-ops-{digest_bytes(str(path).encode('utf-8', 'surrogateescape'))[:16]}{path.suffix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGroup:
    """Variants of one target that are compiled together, so that they may share a context binary."""

    name: str
    """Its name in the configuration."""
    members: tuple[Variant, ...]
    """All of them in the order in which they are compiled, selected or not; none of these records has a group."""

    def position(self, variant: Variant) -> int:
        """Where `variant` stands among the members."""
        return next(index for index, member in enumerate(self.members) if member.name == variant.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One model for one expanded target. Paths are absolute; nothing is left to a default.

    Whether files exist and distributions are installed is not known yet.
    """

    model: str
    target: str
    """Expanded name, such as "snapdragon-60", or "snapdragon-60-batch4" for one of several sizes of the model; "source"
    for a shipped source model."""
    base_target: str
    """The target's name in the configuration, such as "snapdragon"."""
    source: Path
    provider: Provider
    device: str
    """cpu, gpu or npu."""
    provider_options: tuple[OptionValue, ...] = ()
    """Effective options of the compile, sorted by name: the EP's defaults, the target's, the matrix's."""
    runtime_options: tuple[OptionValue, ...] = ()
    """Options that only loading gets, sorted by name."""
    session_options: Mapping[str, str] = field(default_factory=lambda: _NONE)
    free_dimensions: Mapping[str, int] = field(default_factory=lambda: _NONE)
    free_dimension_denotations: Mapping[str, int] = field(default_factory=lambda: _NONE)
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: _NONE)
    """Sizes by input and axis; -1 where the model's own dimension stays."""
    custom_ops: tuple[CustomOps, ...] = ()
    """Libraries of the custom operators that the model uses."""
    prepare: tuple[str, ...] = ()
    """Steps of model preparation, in order."""
    calibration: Path | None = None
    """The .npz file of inputs that quantising reads."""
    min_coverage: float | None = None
    """Share of the optimised graph's nodes that the EP must take."""
    check: CheckPlan | None = None
    """The comparison with the CPU EP that a generation must have passed."""
    embed: bool = False
    context_io: str = "files"
    """How context data gets from the EP and back: files or callbacks."""
    optimization: str
    """Graph optimisation level of the compile: disable-all, basic, extended, all."""
    load_check: bool = True
    ep_cache: EpCache | None = None
    """The EP's cache, where it is shipped."""
    requires: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: _NONE)
    cores: int | None = None
    """Physical cores that the compile sees, where the EP bakes their number in; None: all that the build may use."""
    timeout: float = 600.0
    """Seconds."""
    memory_limit: int | None = None
    """Bytes that a worker may use."""
    required: bool = True
    platform: str = ""
    """Platform tag of the wheel that the target belongs in; empty where it names none."""
    companion: bool = False
    """Whether the variant goes into a data package of its target's and not into the wheel."""
    is_source: bool = False
    """The source model itself, for the CPU EP: nothing is compiled."""
    group: SharedGroup | None = None
    """The group that it is compiled with."""

    @property
    def name(self) -> str:
        """The variant's name, <model>.<target>."""
        return f"{self.model}.{self.target}"

    @property
    def kind(self) -> str:
        """compiled; source, the shipped source model; cached, a source model for the EP, with the EP's cache."""
        if self.is_source:
            return "source"
        return "cached" if self.ep_cache is not None and self.ep_cache.filled_by == "source" else "compiled"

    @property
    def load_optimization(self) -> str:
        """Graph optimisation level at which the result must be loaded.

        What an EP caches of a source model is found again only for the graph that the same level gives.
        """
        return self.optimization if self.kind == "cached" else self.provider.load_optimization

    @property
    def load_session_options(self) -> Mapping[str, str]:
        """Session options that loading the result gets, in the load check and from the wheel.

        Those of the compile, with which the load check passed; the optimisation level; and for a compiled model the
        guard against compiling at start.
        """
        return loading_options(self.load_optimization, self.session_options, compiled=self.kind == "compiled")

    @property
    def load_options(self) -> tuple[OptionValue, ...]:
        """Options that loading the result gets, sorted by name.

        They are what the EP reads at run time of the compile's options, under `runtime_options`; all of them where
        the EP may have to compile at start. A path of the building machine means nothing elsewhere and is left out.
        """
        everything = self.kind == "cached"
        carried = {option.name: option for option in self.provider_options if everything or option.phase != "compile"}
        carried |= {option.name: option for option in self.runtime_options}
        return tuple(carried[name] for name in sorted(carried) if not carried[name].is_path)
