"""The tables of `[tool.epctx]` as typed, immutable models.

One model for each table, a docstring under each field: messages, the JSON Schema and the reference page read them.
Names here are Python's; the TOML key is the same in kebab-case. Every field says whether its value stands in the
compile identity (`InIdentity`) or is presentation only (`Presentation`); a test holds the list complete.
"""

# ruff: noqa: TC001  # pydantic evaluates the annotations when the classes are made

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, JsonValue, PrivateAttr

from hatch_epctx.config.base import InIdentity, Presentation, Table
from hatch_epctx.config.environment import Environment
from hatch_epctx.config.layers import Layers
from hatch_epctx.config.scalars import (
    Age,
    CustomOpsName,
    Dimensions,
    EnvironmentName,
    EnvironmentTest,
    EnvironmentValue,
    ImportName,
    InputShape,
    Name,
    Options,
    Patterns,
    PlatformTag,
    Range,
    Requirement,
    Size,
    SourcePath,
    State,
    States,
    Step,
    Strings,
    TargetName,
)
from hatch_epctx.config.session_options import SessionOptions

__all__ = ["Cache", "Check", "Condition", "Group", "Model", "Override", "Settings", "State", "Target", "Wheel"]


_CHECK = "judges a result, does not change it; passed checks are remembered by it"


class Check(Table):
    """A run of the compiled model against the CPU EP on the source, after the compile.

    A generation that has not passed exactly this check, with these inputs, serves no build that demands it: it is
    checked then, without a new compile.
    """

    inputs: Annotated[SourcePath | None, Presentation(why=_CHECK)] = None
    """An .npz file of inputs by name, relative to the project root: one sample each, or several along a further first
    axis; generated from the model's own input types when left out. {batch} in the name stands for the size of the free
    dimension batch."""

    rtol: Annotated[float, Field(ge=0), Presentation(why=_CHECK)] = 0.05
    """Relative part of the tolerance: each value may differ by atol + rtol * |expected value|."""

    atol: Annotated[float, Field(ge=0), Presentation(why=_CHECK)] = 0.01
    """Absolute part of the tolerance."""

    cosine: Annotated[float | None, Field(ge=-1, le=1), Presentation(why=_CHECK)] = None
    """Lowest cosine similarity that every floating-point output must reach."""

    seed: Annotated[int, Field(ge=0), Presentation(why=_CHECK)] = 0
    """Seed of generated inputs."""

    ranges: Annotated[dict[str, Range], Presentation(why=_CHECK)] = Field(default_factory=dict)
    """Lowest and highest generated value by input, such as { image = [0, 255] }; 0 to 1 when left out."""


class Model(Table):
    """One source model and the targets it is compiled for."""

    source: Annotated[SourcePath, InIdentity(at="model")]
    """The ONNX file, relative to the project root; its external data belongs to it. The path itself never counts."""

    free_dimensions: Annotated[Dimensions, InIdentity(at="compile.free-dimensions")] = Field(default_factory=dict)
    """Sizes of symbolic input dimensions by name, such as { batch = 1 }."""

    free_dimension_denotations: Annotated[Dimensions, InIdentity(at="compile.free-dimension-denotations")] = Field(
        default_factory=dict
    )
    """Sizes of input dimensions by denotation, such as { DATA_BATCH = 1 }."""

    input_shapes: Annotated[dict[str, InputShape], InIdentity(at="compile.input-shapes")] = Field(default_factory=dict)
    """Whole shapes by input, for dimensions that have no name or share one, such as { x = [1, 3, 48, 192] }; -1 leaves
    a dimension as the model has it."""

    matrix: Annotated[
        dict[str, Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(strict=False, min_length=1)]],
        InIdentity(at="compile.free-dimensions"),
    ] = Field(default_factory=dict)
    """Several sizes of free dimensions: each combination is a variant of its own, named
    <model>.<target>-<dimension><size>."""

    custom_ops: Annotated[
        Annotated[tuple[CustomOpsName, ...], Field(strict=False)], InIdentity(at="model.custom-ops")
    ] = ()
    """Libraries of the custom operators that the model uses: the import name of an installed module with
    get_library_path(), such as "onnxruntime_extensions", or the path of a shared library, relative to the project root.
    Running the model needs them too; a wheel does not carry them."""

    prepare: Annotated[Annotated[tuple[Step, ...], Field(strict=False)], InIdentity(at="compile.prepare")] = ()
    """Steps that change the model before the compile, in order: infer-shapes, fold-constants, convert-opset:N,
    static-shapes, quantize-qdq. They need the extra "prepare"."""

    calibration: Annotated[SourcePath | None, InIdentity(at="compile.calibration")] = None
    """An .npz file of inputs by name for quantize-qdq, relative to the project root: several samples along a further
    first axis, or one. Its content counts. {batch} in the name stands for the size of the free dimension batch."""

    targets: Annotated[
        Annotated[tuple[str, ...], Field(strict=False)] | None,
        Presentation(why="chooses variants; each one's identity holds its own target"),
    ] = None
    """Names or globs of targets; all targets when left out. The name of a target with a matrix means all of it."""

    ship_source: Annotated[bool, Presentation(why="adds the variant 'source'; the others stay as they are")] = False
    """Ship the source model too, as variant "source" of the CPU EP."""

    min_coverage: Annotated[
        float | None, Field(ge=0, le=1), Presentation(why="judges a result, does not change it")
    ] = None
    """Share of the optimised graph's nodes, 0 to 1, that the EP must take."""

    check: Check | None = None
    """Compare the compiled model with the CPU EP after compiling."""

    license: Annotated[str | None, Presentation(why="stands in the bill of materials")] = None
    """Licence of the model, an SPDX expression or a name, for the bill of materials."""


class Target(Table):
    """One EP with its device and options."""

    ep: Annotated[str, InIdentity(at="target.ep")]
    """The execution provider: its short name, such as "openvino", or its full registered name."""

    device: Annotated[str | None, InIdentity(at="target.device")] = None
    """cpu, gpu or npu; the EP's first device when left out."""

    provider_options: Annotated[Options, InIdentity(at="target.provider-options")] = Field(default_factory=dict)
    """Options of the EP. Tables become its JSON; files and folders are relative to the project root and count by
    content."""

    session_options: Annotated[SessionOptions, InIdentity(at="compile.session-options")] = Field(default_factory=dict)
    """Session options of the compile, by ONNX Runtime's own key in quotes."""

    runtime_options: Annotated[Options, InIdentity(at="target.runtime-options")] = Field(default_factory=dict)
    """Further options of the EP that loading the compiled model needs; those of provider-options that the EP reads at
    run time are added by themselves. In the identity, because the load check has passed with exactly these."""

    embed: Annotated[bool, InIdentity(at="compile.embed")] = False
    """Put the context binary into the EPContext model (below 2 GiB) in place of a file beside it."""

    context_io: Annotated[Literal["files", "callbacks"], InIdentity(at="compile.context-io")] = "files"
    """How the EP hands its context data over: "files", which it writes and opens itself, or "callbacks", ONNX Runtime's
    named buffers (1.31 and later, and an EP that supports them): loading then needs no file beside the ONNX file."""

    optimization: Annotated[
        Literal["disable-all", "basic", "extended", "all"] | None, InIdentity(at="compile.optimization")
    ] = None
    """Graph optimisation level of the compile; the EP's tested default when left out."""

    load_check: Annotated[bool, InIdentity(at="target.load-check")] = True
    """After the compile, open the result in another fresh process with the shipped options and run it once. In the
    identity, so that what was never opened does not serve a build that demands it."""

    requires: Annotated[
        Annotated[tuple[Requirement, ...], Field(strict=False)],
        Presentation(why="only checks what is installed; the EP's version and digest stand in the toolchain section"),
    ] = ()
    """Distributions that the build needs; missing or unfit ones are an error that says what to install."""

    env: Annotated[dict[EnvironmentName, EnvironmentValue], InIdentity(at="target.env")] = Field(default_factory=dict)
    """The only environment variables that a compile sees beside a fixed, small list."""

    cores: Annotated[int | None, Field(ge=1), InIdentity(at="toolchain.cores")] = None
    """Physical cores that the compile sees, for an EP that bakes their number into its result (OpenVINO on the CPU), so
    that machines with more of them give the same bytes; all that the build may use when left out. Linux alone."""

    timeout: Annotated[float, Field(gt=0), Presentation(why="ends a compile, does not change its result")] = 600.0
    """Seconds for the compile, and again for the load check."""

    memory_limit: Annotated[Size | None, Presentation(why="ends a compile, does not change its result")] = None
    """Memory that a worker may use, such as "8GiB"; one that uses more is killed. Held on Linux alone."""

    matrix: Annotated[
        dict[str, Annotated[tuple[JsonValue, ...], Field(strict=False, min_length=1)]],
        InIdentity(at="target.provider-options"),
    ] = Field(default_factory=dict)
    """Several values of provider options: each combination is a target of its own, named <target>-<value>-<value>."""

    required: Annotated[bool, Presentation(why="decides whether a missing EP is an error or skips the target")] = True
    """false: a missing EP skips the target with a warning and a line in the report."""

    allow_unknown_options: Annotated[
        Strings, Presentation(why="admits options; the options themselves stand in the identity")
    ] = ()
    """Provider options to pass although the EP's table does not know them."""

    ep_cache: Annotated[bool, InIdentity(at="compile.ep-cache")] = False
    """Ship the EP's own cache, filled by loading the model once at build time. Where only a session over a source
    model fills it (OpenVINO), the variant is that source model with its cache; a machine that the cache does not fit
    compiles at its first start."""

    platform: Annotated[PlatformTag | None, Presentation(why="chooses the wheel that carries the variant")] = None
    """Platform tag of the wheel that this target goes into, such as "win_arm64": that of a wheel whose targets all name
    it, and of its own wheel when wheels are split."""


class Group(Table):
    """Models that are compiled together, so that they share weights in one context binary."""

    models: Annotated[Annotated[tuple[str, ...], Field(strict=False, min_length=1)], InIdentity(at="members")]
    """Names or globs of the members, in the order in which they are compiled."""

    targets: Annotated[
        Annotated[tuple[str, ...], Field(strict=False)] | None,
        Presentation(why="chooses variants; each one's identity holds its own target"),
    ] = None
    """Names or globs of the targets that share; those that all members have when left out."""


class Wheel(Table):
    """How the wheel is written."""

    platform: Annotated[PlatformTag, Presentation(why="names the wheel; artifacts stay as they are")] = "any"
    """"any", or a platform tag such as win_arm64 or manylinux_2_28_x86_64."""

    compression: Annotated[
        Literal["stored", "deflated"], Presentation(why="packs the wheel; artifacts stay as they are")
    ] = "stored"
    """How context binaries and weights stand in the wheel: stored is many times faster to write and hardly larger."""

    max_size: Annotated[Size | None, Presentation(why="judges the wheel")] = None
    """Size of the wheel beyond which a warning names its largest files, such as "95MiB"."""

    max_size_error: Annotated[bool, Presentation(why="judges the wheel")] = False
    """A wheel beyond max-size is an error."""

    max_path: Annotated[int, Field(ge=1), Presentation(why="judges the wheel")] = 105
    """Characters of a path in the wheel beyond which a warning names it: Windows opens 260 with the folder that the
    wheel is installed into. Only where the wheel can be installed on Windows."""

    max_path_error: Annotated[bool, Presentation(why="judges the wheel")] = False
    """A path beyond max-path is an error."""

    companions: Annotated[
        Annotated[tuple[str, ...], Field(strict=False)], Presentation(why="chooses the wheel that carries the variant")
    ] = ()
    """Names or globs of targets that stay out of the wheel; each goes into a data package of its own, named
    <project>-epctx-<target>, which 'epctx build --companions' makes and the look-up finds."""


class Cache(Table):
    """How much the store keeps, and the remote cache behind it."""

    max_size: Annotated[Size | None, Presentation(why="bounds the store")] = None
    """Size of the whole store beyond which the least recently used generations are collected, such as "20GiB", which
    is also what holds when it is left out. Pinned ones and those in use stay."""

    max_age: Annotated[Age | None, Presentation(why="bounds the store")] = None
    """Time without use after which a generation is collected, such as "90d". No limit when left out."""

    remote: Annotated[str | None, Presentation(why="says where artifacts may come from, by the same identity")] = None
    """A remote cache: grpc:// or grpcs:// (Remote Execution API), http:// or https:// (Bazel's HTTP cache)."""

    remote_mode: Annotated[Literal["read-write", "read-only"], Presentation(why="says where artifacts may go to")] = (
        "read-write"
    )
    """Whether results are stored in the remote cache too."""


class Condition(Table):
    """When an override applies: all that is given must hold. The machine meant is the one that builds."""

    platform_system: Patterns | None = None
    """Glob or globs over the operating system: linux, windows, darwin. Case does not count."""

    platform_machine: Patterns | None = None
    """Glob or globs over the architecture: x86_64, aarch64 and so on. Case does not count; AMD64 and arm64 are other
    spellings of these two."""

    env: dict[EnvironmentName, EnvironmentTest] = Field(default_factory=dict)
    """Environment variables by name: text is a glob over the value, true means set to something other than "", "0" and
    "false", false means the contrary."""

    state: States | None = None
    """What is being built: "wheel", "editable" or "sdist", or an array of them."""


class Override(Table):
    """A table that is merged over the rest when its condition holds; it may hold every key of [tool.epctx] but this."""

    model_config = ConfigDict(extra="allow")

    if_: Annotated[Condition, Field(alias="if")]
    """The condition under which the override applies."""


class Settings(Table):
    """The whole of [tool.epctx], all layers merged."""

    package: Annotated[ImportName, Presentation(why="says where the folder goes in the wheel")]
    """The import name of the package that gets the _epctx folder; dots for a nested one. When left out: the project's
    name, if the project has a package of that name."""

    models: Annotated[dict[Name, Model], Field(default_factory=dict)]
    """Source models by name."""

    targets: Annotated[dict[TargetName, Target], Field(default_factory=dict)]
    """Targets by name."""

    groups: Annotated[dict[Name, Group], Field(default_factory=dict)]
    """Weight-sharing groups by name."""

    wheel: Annotated[Wheel, Field(default_factory=Wheel)]
    """How the wheel is written."""

    cache: Annotated[Cache, Field(default_factory=Cache)]
    """The store and the remote cache."""

    executor: Annotated[Literal["local", "reapi"], Presentation(why="says where the same compile runs")] = "local"
    """Where a miss is compiled: here, or on a remote-execution server."""

    report: Annotated[bool, Presentation(why="describes the build")] = False
    """Write an HTML page of each build, failed or not, into the store; its place is printed."""

    overrides: Annotated[tuple[Override, ...], Field(strict=False)] = ()
    """Conditional tables, merged over the rest in order; in the merged settings they have done their work."""

    _environment: Environment = PrivateAttr(default_factory=Environment)
    _layers: Layers = PrivateAttr(default_factory=Layers)
    _conditional: bool = PrivateAttr(default=False)

    @property
    def environment(self) -> Environment:
        """What the EPCTX_* variables of this run say."""
        return self._environment

    @property
    def conditional(self) -> bool:
        """Whether there is an override that does not hold here: elsewhere, other variants may be declared."""
        return self._conditional

    def place(self, *keys: str | int) -> str:
        """Dotted place of a key, in the layer that gave it its value, for messages."""
        return self._layers.place(keys)
