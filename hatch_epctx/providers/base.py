"""What the build knows of one execution provider (EP), as data.

A provider module holds one `Provider`; no code outside `providers/` branches on an EP's name. Third parties add
EPs through the entry-point group ``hatch_epctx.providers`` (each entry point loads to a `Provider`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EMPTY", "Kind", "Option", "Phase", "Provider"]

EMPTY: Mapping[str, str] = MappingProxyType({})

Kind = Literal[
    "string", "bool", "int", "float", "enum", "json", "json-or-file", "file", "folder", "output-path", "op-packages"
]
"""How an option's value is read.

string  free text
bool    "0"/"1" or "true"/"false" as `Option.values` says; a TOML boolean is accepted
int     a decimal integer within minimum and maximum
float   a decimal number within minimum and maximum
enum    one of `Option.values`
json    a TOML table or inline JSON text; the EP receives canonical JSON text
json-or-file  json, or the path of a JSON file (its content counts in the identity, and is inlined for the EP)
file    the path of one input file; its content counts in the identity
folder  the path of an input folder; its whole content counts in the identity
output-path  a path the EP writes to: refused in a build, with the reason in `Option.refuse`
op-packages  QNN's list of custom-op packages with paths inside
"""

Phase = Literal["compile", "run", "both"]
"""When the EP reads an option: while compiling, while loading and running a compiled model, or both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One provider option of one EP."""

    name: str
    kind: Kind
    doc: str
    phase: Phase = "compile"
    values: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    refuse: str = ""
    """Not empty: the option is known but refused, and this says why and what to use in its place."""
    ignored: str = ""
    """Not empty: the EP ignores the option (seen in a run), so it is refused with this text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One EP: names, distribution, devices, options and defaults.

    `names[0]` is the registered name, as OrtEpDevice.ep_name reports it; the others are accepted spellings.
    """

    key: str
    """Short name in configuration, such as "openvino"."""
    names: tuple[str, ...]
    """Full registered name first, then further spellings."""
    title: str
    """Name in prose, such as "Intel OpenVINO"."""
    distributions: tuple[str, ...] = ()
    """PyPI distributions that may bring the EP, the usual one first. Empty: part of ONNX Runtime or of the system."""
    module: str = ""
    """Import name of the plugin helper with get_library_path(); empty: the EP is built into an onnxruntime build."""
    extra: str = ""
    """Extra of hatch-epctx that installs it, such as "openvino"; empty where there is none."""
    devices: tuple[str, ...] = ("cpu",)
    """Devices a target may name, the default first; members of cpu, gpu, npu."""
    epcontext: bool = True
    """Whether the EP writes EPContext models."""
    epcontext_reason: str = ""
    """Why not, for the error message."""
    run_here: bool = False
    """Whether this project's own tests run the EP; False shows as "not run here"."""
    offline: bool = False
    """The EP compiles for hardware that need not be present: any of its devices serves, none is in the identity."""
    simulated: bool = False
    """Where the hardware is absent the EP loads its models in a simulator that accepts every device."""
    manifest_device: bool = True
    """Whether the manifest names the device (ORT then demands it; QNN on x86 never shows an NPU)."""
    options: Mapping[str, Option] = field(default_factory=lambda: MappingProxyType({}))
    defaults: Mapping[str, str] = EMPTY
    """Provider options set when the user leaves them out."""
    default_optimization: str = "basic"
    """Tested default of the compile's graph optimisation: disable-all, basic, extended, all."""
    load_optimization: str = "disable-all"
    """Optimisation level that loading a compiled model must use."""
    needs_static_shapes: bool = False
    bakes_isa: bool = False
    """The context binary depends on the instruction set of the compiling machine's CPU (device cpu)."""
    bakes_cores: bool = False
    """The context binary depends on the number of visible cores (device cpu)."""
    system_toolchain: bool = False
    """Parts of the toolchain live outside the distribution (drivers, SDK) and are read from the probe."""
    run_environment: tuple[str, ...] = ()
    """Environment variables that change output and that a target must declare in `env` to be seen."""
    procedure: str = "hatch_epctx.worker.procedure"
    """Module that holds the worker's tasks for this EP; a stub in tests names its own."""
