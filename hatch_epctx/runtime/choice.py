"""What a look-up gives: the chosen variant, and why the others were not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from onnxruntime.capi.onnxruntime_pybind11_state import OrtEpDevice

    from hatch_epctx.runtime.contextdata import Supply
    from hatch_epctx.runtime.epcaches import UsedCache

__all__ = ["REASONS", "Choice", "Rejection", "listing"]

REASONS: Final = (
    "not-asked",
    "excluded",
    "version-mismatch",
    "unverifiable",
    "missing-ep",
    "ep-not-loadable",
    "no-device",
    "incompatible",
    "sdk-mismatch",
    "soc-mismatch",
    "not-simulated",
    "missing-custom-ops",
    "wrong-custom-ops",
    "callbacks-unsupported",
    "creation-failed",
    "silent-fallback",
    "compile-failed",
)
"""Why a variant was rejected, in the order in which it is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """One candidate and the first reason it was rejected."""

    variant: str
    reason: str
    """One of `REASONS`: stable, for programs."""
    text: str
    """One sentence part for people."""
    package: str = ""
    """The package that brings the variant, where it is not the one that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A variant that fits this machine. Its files have been verified as `verify` asked."""

    model: str
    variant: str
    ep: str
    """Registered name of the EP."""
    device: str
    """cpu, gpu or npu: of the device that will run it."""
    path: Path
    """The ONNX file, absolute; its context binaries lie beside it."""
    provider_options: Mapping[str, str]
    """The manifest's options that loading needs, the caller's merged over them."""
    session_options: Mapping[str, str]
    """Likewise."""
    rejected: tuple[Rejection, ...]
    """Candidates that do not fit, each with its first reason; the ones that were not reached are not among them."""
    package: str = ""
    """The package that brings the variant: the one that was opened, or a companion of it."""
    custom_ops: tuple[Path, ...] = ()
    """Libraries for `SessionOptions.register_custom_ops_library`, in order."""
    compiled_here: bool = False
    """No variant of the package: compiled on this machine, now or by an earlier start (fallback="compile")."""
    fallback: bool = False
    """The source model on the CPU, because no compiled variant could be used."""
    note: str = ""
    """What the look-up did not compare (a simulator in place of the hardware), and versions that differ from those of
    the compile."""
    beside: tuple[str, ...] = ()
    """Names of the files beside `path` that it needs: context binaries, external weights."""
    shares_with: tuple[str, ...] = ()
    """The weight-sharing group whose context binary it shares: every member as model.variant, itself among them.
    Empty where nothing is shared. See `Package.sessions`."""
    content: bytes | None = field(default=None, repr=False, compare=False)
    """The ONNX file's bytes, checked, where it is to be opened from them; `path` then need not exist."""
    supply: Supply | None = field(default=None, repr=False, compare=False)
    """What answers ONNX Runtime's callback for context binaries; None: the EP opens their files."""
    ep_cache: UsedCache | None = field(default=None, repr=False, compare=False)
    """The folder in which the EP keeps its cache, named in `provider_options`; None: it is given none."""
    hold: object = field(default=None, repr=False, compare=False)
    """Keeps what `path` leads to from being collected (see `archives`): keep the choice for as long as you use it."""
    ep_device: OrtEpDevice | None = field(default=None, repr=False, compare=False)
    """The device for `SessionOptions.add_provider_for_devices`; None for the CPU EP and EPs without devices."""


def listing(rejected: Iterable[Rejection]) -> str:
    """One line per rejection, for an error's detail."""
    return "\n".join(
        f"  {rejection.variant}{f' of {rejection.package}' if rejection.package else ''}: {rejection.text}"
        for rejection in rejected
    )
