"""Records of the toolchain and their form in the identity document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hatch_epctx.worker.protocol import ProbedDevice

__all__ = ["Component", "Probe", "Toolchain"]

Probe = Callable[[str], "Sequence[ProbedDevice]"]
"""Asks the EP about its devices, in a process of its own. The argument is a digest of the libraries that will answer,
so that a caller may remember what they said."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One installed distribution and the digest of its closure (see `closure`)."""

    distribution: str
    version: str
    digest: str

    def document(self) -> dict[str, str]:
        """Its form in the identity document."""
        return {"digest": self.digest, "distribution": self.distribution, "version": self.version}


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """What compiles one target on this machine."""

    onnxruntime: Component
    onnx_version: str
    """Of the onnx package, which writes the compiled model's ONNX file."""
    ep: Component | None
    """None where the EP is part of ONNX Runtime."""
    sdk: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """SDK versions that the EP's distribution tells, for people: the digest covers them."""
    device: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    """What the EP reports of the device; empty for an EP that compiles for hardware that is not present."""
    isa: tuple[str, ...] = ()
    """CPU features that an EP can compile for, sorted; empty where the EP bakes none in."""
    cores: int | None = None
    """CPUs that this process may use; None where the EP bakes no number in."""
    topology: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    """How these CPUs share cores, packages and memory; empty as `cores` is None."""
    os: str
    architecture: str
    uncertain: tuple[str, ...] = ()
    """What could not be named, in words. Not empty: results are not reused."""

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Toolchain:
        """The toolchain of another machine, from the section `toolchain` of an identity document.

        Raises:
            KeyError, TypeError: the section is of another form.
        """
        return cls(
            onnxruntime=Component(**document["onnxruntime"]),
            onnx_version=document["onnx"],
            ep=Component(**document["ep"]) if document["ep"] else None,
            sdk=document["sdk"],
            device=document["device"],
            isa=tuple(document["isa"]),
            cores=document["cores"],
            topology=document["topology"],
            os=document["os"],
            architecture=document["architecture"],
        )

    def document(self) -> dict[str, Any]:
        """The section `toolchain` of the identity document: plain JSON, free of paths, times and host names.

        `uncertain` is no part of it: it says that the section is not complete.
        """
        return {
            "architecture": self.architecture,
            "cores": self.cores,
            "device": dict(self.device),
            "ep": self.ep.document() if self.ep else None,
            "isa": list(self.isa),
            "onnx": self.onnx_version,
            "onnxruntime": self.onnxruntime.document(),
            "os": self.os,
            "sdk": dict(self.sdk),
            "topology": dict(self.topology),
        }
