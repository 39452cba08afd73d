"""Records of a package manifest, and the words it uses."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DEVICES",
    "EMPTY",
    "FOLDER_NAME",
    "FORMAT",
    "KINDS",
    "MANIFEST_NAME",
    "ROLES",
    "SCHEMA_VERSION",
    "Artifact",
    "Component",
    "Facts",
    "Manifest",
    "Variant",
]

MANIFEST_NAME: Final = "manifest.json"
FOLDER_NAME: Final = "_epctx"
"""Name of the package folder inside the import package."""
SCHEMA_VERSION: Final = "1.0"
"""Of ORT's model package; the reader takes any minor version of 1."""
FORMAT: Final = "epctx-manifest/1"
"""Of `executor_info.epctx`. Raised when an old reader would misunderstand it; new keys alone do not raise it."""

ROLES: Final = ("model", "context", "weights", "ep-cache")
KINDS: Final = ("compiled", "cached", "source")
DEVICES: Final = ("cpu", "gpu", "npu")

EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


def _empty() -> Mapping[str, Any]:
    return EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One file of the folder: flat name, size in bytes, full SHA-256, and what it is for (one of `ROLES`)."""

    path: str
    size: int
    digest: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """`executor_info.epctx` of one variant.

    The look-up reads `kind`, `artifacts`, `compatibility`, `device`, `runtime` and `ep_cache`; the rest is for people
    and tools.
    """

    kind: str
    """compiled; cached, a source model for the EP, which is given its own cache; source, the source model itself, for
    the CPU EP."""
    artifacts: tuple[Artifact, ...]
    """Every file that loading needs, the ONNX file among them; sorted by path."""
    identity: str | None = None
    """Of the compile, or of the packing of a source variant; None where it was not recorded."""
    compatibility: str = ""
    """What the EP wrote of compatibility; empty where it wrote none."""
    device: str | None = None
    """cpu, gpu or npu: what the target names, even where ORT's own `device` must stay out."""
    options: Mapping[str, Any] = field(default_factory=_empty)
    """Effective options of the compile."""
    toolchain: Mapping[str, Any] = field(default_factory=_empty)
    coverage: Mapping[str, Any] = field(default_factory=_empty)
    """What became of the source's nodes: EPContext nodes, nodes by EP, operators left with the EP's reasons."""
    check: Mapping[str, Any] = field(default_factory=_empty)
    """How the outputs compare with the source's on the CPU EP; empty where that was not asked for."""
    runtime: Mapping[str, Any] = field(default_factory=_empty)
    """What running needs: distribution and version of the EP, version of onnxruntime."""
    signature: Mapping[str, Any] = field(default_factory=_empty)
    """Inputs and outputs by name, type and shape."""
    ep_cache: Mapping[str, Any] = field(default_factory=_empty)
    """files: the artifacts with the role ep-cache, by the names under which the EP looks for them."""
    load_check: str = ""
    """What became of opening the result at build time: passed, or why it was not run; empty where nobody tried."""
    reproducible: bool | None = None
    """False: another compile of the same identity gave other bytes. None: nobody saw that."""
    group: Mapping[str, Any] = field(default_factory=_empty)
    """name and members of the weight-sharing group that it was compiled with, and whether they share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One variant of a model."""

    name: str
    ep: str
    """Registered name of the EP."""
    model_file: str
    device: str | None = None
    """ORT demands such a device of the EP; None: any."""
    compatibility_string: str | None = None
    """What ORT hands to the EP; None: ORT does not ask."""
    session_options: Mapping[str, str] = field(default_factory=_empty)
    provider_options: Mapping[str, str] = field(default_factory=_empty)
    facts: Facts | None = None
    """None: written by another tool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One model and its variants in order of preference."""

    name: str
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole package."""

    package_name: str
    package_version: str
    components: tuple[Component, ...]

    def artifacts(self) -> tuple[Artifact, ...]:
        """Every file that the variants name, each once, sorted by path."""
        every = {a.path: a for c in self.components for v in c.variants if v.facts for a in v.facts.artifacts}
        return tuple(every[path] for path in sorted(every))
