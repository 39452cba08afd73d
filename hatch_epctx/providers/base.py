"""What the build knows of one execution provider (EP), as data.

A provider module holds one `Provider`; no code outside `providers/` branches on an EP's name. Third parties add
EPs through the entry-point group ``hatch_epctx.providers`` (each entry point loads to a `Provider`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from hatch_epctx.epcache import EpCache

__all__ = [
    "EMPTY",
    "Contradiction",
    "Contradictions",
    "Kind",
    "OpPackage",
    "Option",
    "OptionValue",
    "Phase",
    "Provider",
    "SdkVersion",
    "table",
]

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
op-packages  QNN's list of custom-op packages, OPERATOR:LIBRARY:INTERFACE or with :TARGET behind; each library's content
             counts in the identity
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
    """enum: what the EP accepts. bool: its spelling of false and of true, ("0", "1") when left out. int: words that it
    accepts beside numbers."""
    aliases: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    """enum: further spellings in lower case, each with the member of `values` that the EP receives in its place."""
    expected: str = ""
    """What a message says after "expected" in place of a long list of values."""
    minimum: int | None = None
    maximum: int | None = None
    excludes: tuple[str, ...] = ()
    """Options that may not stand beside this one; when they are given, no default of this one is set."""
    refuse: str = ""
    """Not empty: the option is known but refused, and this says why and what to use in its place."""
    ignored: str = ""
    """Not empty: the EP ignores the option (seen in a run), so it is refused with this text."""


NO_OPTIONS: Mapping[str, Option] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPackage:
    """One library of custom operators of the EP's own kind."""

    operator: str
    library: Path
    interface: str
    """Name of the library's function that gives its interface."""
    target: str = ""
    """CPU or HTP; empty: the EP's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionValue:
    """One option as the EP receives it, validated and normalised.

    Equal meaning gives equal `text`: JSON is canonical, numbers and booleans have one spelling, aliases are resolved.
    """

    name: str
    text: str
    """What the EP receives. Of a file or folder option: its path as written, never for the identity."""
    kind: Kind = "string"
    phase: Phase = "both"
    file: Path | None = None
    """The file behind the option: of kind file, or the JSON file that `text` holds inlined."""
    folder: Path | None = None
    """The folder behind the option."""
    packages: tuple[OpPackage, ...] = ()
    """The packages of an option of kind op-packages."""
    checked: bool = True
    """False: the user asked to pass the option without holding it against the EP's table."""

    @property
    def is_path(self) -> bool:
        """Whether the EP receives a path, so that content and not text stands in the identity."""
        return self.kind in ("file", "folder", "op-packages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A finding that one option's table entry cannot tell, said at the place of `option`."""

    option: str
    found: str
    expected: str = ""
    remedy: str = ""


Contradictions = Callable[[str, Mapping[str, OptionValue]], Iterable[Contradiction]]
"""(device, options by name) -> what does not go together. What is not `checked` may hold anything."""


def _none(device: str, options: Mapping[str, OptionValue]) -> Iterable[Contradiction]:  # noqa: ARG001
    """An EP without contradictions of its own."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SdkVersion:
    """Where a version of the EP's SDK stands in the EP's distribution, to be read without importing or loading it."""

    name: str
    """Key in the identity document, such as "qnn"."""
    files: str
    """Glob below the folder that holds the distribution, such as "onnxruntime_qnn/build_and_package_info.py"."""
    pattern: str
    """Regular expression over the file's bytes, read as Latin-1; group 1 is the version."""


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
    """Why not, for the error message: a clause that reads after "writes no EPContext models: "."""
    run_here: bool = False
    """Whether this project's own tests run the EP; False shows as "not run here"."""
    windows_catalog: bool = False
    """Whether Windows ML's catalog of EPs brings it too, under the same name."""
    offline: bool = False
    """The EP compiles for hardware that need not be present: any of its devices serves, none is in the identity."""
    simulated: bool = False
    """Where the hardware is absent the EP loads its models in a simulator that accepts every device."""
    shared_not_simulated: str = ""
    """Why the simulator cannot open a context binary that several models share, a clause; empty: it can."""
    manifest_device: bool = True
    """Whether the manifest names the device (ORT then demands it; QNN on x86 never shows an NPU)."""
    manifest_compatibility: bool = True
    """Whether the manifest gives ORT the compatibility string to hand to the EP (QNN 2.7.0 crashes on it)."""
    options: Mapping[str, Option] = field(default_factory=lambda: NO_OPTIONS)
    defaults: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    """Provider options set when the user leaves them out."""
    other_names: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    """Further names of options, each with the name that the EP reads; a configuration may use either."""
    needs_any: tuple[str, ...] = ()
    """Options of which a compile must set at least one, the usual one first."""
    needs_any_reason: str = ""
    """Why, a sentence that stands in the message's remedy."""
    trial_options: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    """Provider options with which `epctx doctor` compiles one node, where the EP's defaults do not do."""
    contradictions: Contradictions = _none
    """What does not go together, over all options and the device."""
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
    sdk: tuple[SdkVersion, ...] = ()
    """SDK versions that the distribution tells."""
    run_environment: tuple[str, ...] = ()
    """Environment variables that change output and that a target must declare in `env` to be seen."""
    cache: EpCache | None = None
    """The cache that the EP keeps in the file system, which a target may ship (`ep-cache`); None: it keeps none."""
    left_pattern: str = ""
    """Regular expression over the EP's verbose log that finds why it leaves nodes to the CPU, piece by piece: the head
    of a block (group `failed` not empty where nodes are refused), a node in it (`operator`, `node`), the block's
    `reason`, and a `cause` with a `code` that stands before the block. Empty: the EP says nothing."""
    procedure: str = "hatch_epctx.worker.procedure"
    """Module that holds the worker's tasks for this EP; a stub in tests names its own."""


def table(*options: Option) -> Mapping[str, Option]:
    """An option table: the options by name, in the order given.

    Raises:
        ValueError: two options have one name.
    """
    by_name = {option.name: option for option in options}
    if len(by_name) != len(options):
        raise ValueError("two options of one table have the same name")
    return MappingProxyType(by_name)
