"""What a bill of materials is made of, in this project's words."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SbomFile", "SbomModel", "SbomProject", "SbomTool", "SbomVariant", "tools_of"]

_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SbomFile:
    """One artifact in the wheel."""

    path: str
    """In the wheel, such as ``acme_vision/_epctx/manifest.json``."""
    role: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SbomModel:
    """One source model."""

    name: str
    digest: str
    """Of the ONNX file."""
    external: tuple[tuple[str, str], ...] = ()
    """(location, digest) of each file of external data."""
    licence: str = ""
    """SPDX identifier or expression, or a free name; empty when it was not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SbomTool:
    """One part of a toolchain.

    `role` is "runtime" (ONNX Runtime), "ep" (the EP's distribution), "library" (another distribution that takes part)
    or "sdk" (named by the EP, brought by its distribution).
    """

    role: Literal["runtime", "ep", "library", "sdk"]
    name: str
    """Of the distribution, or of the SDK."""
    version: str
    closure: str = ""
    """Digest of the distribution's libraries together; it is no digest of one file."""

    @property
    def is_distribution(self) -> bool:
        """Whether `name` is that of a Python distribution."""
        return self.role != "sdk"


@dataclass(frozen=True, slots=True, kw_only=True)
class SbomVariant:
    """One model for one target, as it lies in the wheel."""

    name: str
    """``<model>.<target>``."""
    identity: str
    model: SbomModel
    ep: str
    """Registered name of the EP."""
    device: str
    files: tuple[SbomFile, ...]
    tools: tuple[SbomTool, ...] = ()
    facts: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """Further facts by name, such as the operating system of the compile or the device's driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SbomProject:
    """The distribution that the wheel is of."""

    name: str
    version: str
    licence: str = ""
    """SPDX expression of the project's metadata."""


def tools_of(toolchain: Mapping[str, Any]) -> tuple[SbomTool, ...]:
    """The parts that the section `toolchain` of an identity document names."""
    tools = [_distribution("runtime", toolchain["onnxruntime"])]
    if toolchain.get("ep"):
        tools.append(_distribution("ep", toolchain["ep"]))
    if toolchain.get("onnx"):
        tools.append(SbomTool(role="library", name="onnx", version=str(toolchain["onnx"])))
    sdk = toolchain.get("sdk") or {}
    tools += [SbomTool(role="sdk", name=name, version=str(version)) for name, version in sorted(sdk.items())]
    return tuple(tools)


def _distribution(role: Literal["runtime", "ep"], entry: Mapping[str, str]) -> SbomTool:
    return SbomTool(role=role, name=entry["distribution"], version=entry["version"], closure=entry["digest"])
