"""The scalar types of the configuration: names, paths, sizes, ages, tags, and how a wrong one is told."""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

from packaging import requirements
from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, WithJsonSchema

from hatch_epctx.config.base import bad
from hatch_epctx.errors import suggest

__all__ = [
    "NAME_LIMIT",
    "RESERVED_TARGET",
    "Age",
    "CustomOpsName",
    "Dimensions",
    "EnvironmentName",
    "EnvironmentTest",
    "EnvironmentValue",
    "ImportName",
    "InputShape",
    "Name",
    "Options",
    "Patterns",
    "PlatformTag",
    "Range",
    "Requirement",
    "Size",
    "SourcePath",
    "State",
    "States",
    "Step",
    "Strings",
    "TargetName",
    "check_name",
    "is_library",
    "is_platform_tag",
]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
NAME_LIMIT = 64
"""Characters of a model's or an expanded target's name: both stand in one file name."""

RESERVED_TARGET = "source"
"""Target name of the variants that `ship-source` makes."""

STEPS = ("infer-shapes", "fold-constants", "convert-opset", "static-shapes", "quantize-qdq")
"""Steps of model preparation; convert-opset takes the operator set's number after a colon."""
QUANTIZATIONS = ("a8w8", "a16w8")
"""Bits of activations and weights that quantize-qdq may name after a colon; a8w8 when it names none."""

_WINDOWS_NAMES = frozenset(
    ["con", "prn", "aux", "nul", "conin$", "conout$", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))]
)
_IMPORT_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)\Z")
_UNITS = {"B": 1} | {
    f"{prefix}{suffix}": base**power
    for suffix, base in (("B", 1000), ("iB", 1024))
    for power, prefix in enumerate("KMGT", start=1)
}
_AGE = re.compile(r"(\d+)(m|h|d|w)\Z")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}
_TAG = re.compile(
    r"(any|win32|win_(amd64|arm64)|macosx_\d+_\d+_\w+|linux_\w+|many(linux1|linux2010|linux2014)_\w+"
    r"|manylinux_\d+_\d+_\w+|musllinux_\d+_\d+_\w+|android_\d+_\w+|ios_\d+_\d+_\w+)\Z"
)


def check_name(name: str) -> str:
    """A model or target name that is safe as part of a file name on every system.

    Raises:
        PydanticCustomError: other characters, too long, or a name that Windows reserves for a device.
    """
    if not NAME.match(name):
        raise bad(f"{name!r} is not a name", expected="letters, digits, '-' and '_', the first a letter or digit")
    if len(name) > NAME_LIMIT:
        raise bad(f"the name {name!r} has {len(name)} characters", expected=f"at most {NAME_LIMIT}")
    if name.lower() in _WINDOWS_NAMES:
        raise bad(f"the name {name!r} is reserved on Windows", remedy="Choose another name.")
    return name


def _check_target_name(name: str) -> str:
    if name.lower() == RESERVED_TARGET:
        raise bad(
            f"the target name {name!r} is reserved for shipped source models",
            remedy="Choose another name; 'ship-source = true' on a model makes the variant.",
        )
    return check_name(name)


def _check_import_name(name: str) -> str:
    if not _IMPORT_NAME.match(name):
        proposal = re.sub(r"[-\s]+", "_", name.strip().replace("/", "."))
        hint = f"Did you mean {proposal!r}?" if _IMPORT_NAME.match(proposal) else ""
        raise bad(f"{name!r} is not an import name", expected="one such as 'acme_vision' or 'acme.vision'", remedy=hint)
    return name


def is_library(text: str) -> bool:
    """Whether a name of custom operators is the path of a shared library and not an import name."""
    return "/" in text or text.endswith((".so", ".dll", ".dylib"))


def _check_custom_ops(text: str) -> str:
    """The path of a shared library in the project, or an import name."""
    if is_library(text) or "\\" in text:
        return _check_source(text)
    if not _IMPORT_NAME.match(text):
        expected = "an import name such as onnxruntime_extensions, or the path of a shared library"
        remedy = f"Did you mean {text.replace('-', '_')!r}?" if _IMPORT_NAME.match(text.replace("-", "_")) else ""
        raise bad(f"{text!r} names no library of custom operators", expected=expected, remedy=remedy)
    return text


def _check_source(text: str) -> str:
    """A path inside the project, normalised, with forward slashes."""
    if not text.strip():
        raise bad("the path is empty", expected="an ONNX file")
    if "\0" in text:
        raise bad("the path holds a NUL character", expected="an ONNX file")
    if "\\" in text:
        raise bad(f"the path {text!r} holds a backslash", remedy=f"Write {text.replace(chr(92), '/')!r}.")
    into = "Copy the model into the project, or make a link to it there; links are followed."
    if text.startswith("/") or re.match(r"[A-Za-z]:", text):
        raise bad(f"the path {text!r} is absolute", expected="a path relative to the project root", remedy=into)
    parts: list[str] = []
    for part in text.split("/"):
        if part == ".." and not parts:
            raise bad(f"the path {text!r} leaves the project", expected="a path inside the project", remedy=into)
        if part == "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    if not parts:
        raise bad(f"the path {text!r} is the project itself", expected="an ONNX file")
    return "/".join(parts)


def _read_size(value: object) -> int:
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        raise bad(f"{value!r} is not a size", expected="a number with a unit in quotes, such as '95MiB' or '20GiB'")
    return int(float(match[1]) * _UNITS[match[2]])


def _read_age(value: object) -> int:
    match = _AGE.match(value) if isinstance(value, str) else None
    if match is None:
        raise bad(f"{value!r} is not an age", expected="a whole number of m, h, d or w in quotes, such as '90d'")
    return int(match[1]) * _SECONDS[match[2]]


def is_platform_tag(text: str) -> bool:
    """Whether `text` is "any" or the platform tag of a wheel."""
    return _TAG.match(text) is not None


def _check_tag(tag: str) -> str:
    if not is_platform_tag(tag):
        proposal = re.sub(r"[-.]", "_", tag.lower())
        hint = f"Did you mean {proposal!r}?" if proposal != tag and _TAG.match(proposal) else ""
        raise bad(
            f"{tag!r} is not a platform tag",
            expected="'any' or a tag such as 'win_arm64' or 'manylinux_2_28_x86_64'",
            remedy=hint,
        )
    return tag


def _check_environment_name(name: str) -> str:
    if not _ENVIRONMENT_NAME.match(name):
        raise bad(f"{name!r} is not the name of an environment variable", expected="letters, digits and '_'")
    return name


def _check_environment_value(value: str) -> str:
    if "\0" in value:
        raise bad("the value holds a NUL character")
    return value


def _check_requirement(text: str) -> str:
    try:
        return str(requirements.Requirement(text))
    except requirements.InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise bad(f"{text!r} is not a requirement ({reason})", expected="one such as 'onnxruntime-qnn>=2.7'") from error


def _check_environment_test(value: object) -> object:
    if not isinstance(value, (str, bool)):
        raise bad(f"found {value!r}", expected="a glob over the variable's value, or true or false")
    return value


def _check_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    for size in shape:
        if size < 1 and size != -1:
            raise bad(f"found the size {size}", expected="sizes of at least 1, or -1 for one that stays as it is")
    return shape


def _check_range(bounds: tuple[float, ...]) -> tuple[float, ...]:
    if len(bounds) != 2 or bounds[0] > bounds[1]:
        raise bad(f"found {list(bounds)}", expected="the lowest and the highest value, such as [0, 255]")
    return bounds


def _check_step(step: str) -> str:
    name, colon, argument = step.partition(":")
    if name not in STEPS:
        raise bad(f"unknown step {name!r}", expected=f"one of {', '.join(STEPS)}", remedy=suggest(name, STEPS))
    if name == "convert-opset" and not re.fullmatch(r"[1-9][0-9]?", argument):
        raise bad(f"found {step!r}", expected="an operator set's number after it, such as 'convert-opset:21'")
    if name == "quantize-qdq" and colon and argument not in QUANTIZATIONS:
        kinds = " or ".join(f"'quantize-qdq:{kind}'" for kind in QUANTIZATIONS)
        raise bad(f"found {step!r}", expected=f"'quantize-qdq', {kinds}")
    if name not in ("convert-opset", "quantize-qdq") and colon:
        raise bad(f"found {step!r}", expected=f"{name!r} without an argument")
    return step


def _read_patterns(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _one_or_more(item: dict[str, object]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [item, {"type": "array", "items": item, "minItems": 1}]})


def _schema(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})


_NAME_SCHEMA = WithJsonSchema({"type": "string", "pattern": f"^[A-Za-z0-9][A-Za-z0-9_-]{{0,{NAME_LIMIT - 1}}}$"})

Name = Annotated[str, AfterValidator(check_name), _NAME_SCHEMA]
TargetName = Annotated[str, AfterValidator(_check_target_name), _NAME_SCHEMA]
ImportName = Annotated[str, AfterValidator(_check_import_name)]
CustomOpsName = Annotated[str, AfterValidator(_check_custom_ops)]
"""A library of custom operators: an import name, or a path in the project."""
SourcePath = Annotated[str, AfterValidator(_check_source)]
InputShape = Annotated[tuple[int, ...], Field(strict=False), AfterValidator(_check_shape)]
"""Sizes by axis; -1 where the model's own dimension stays."""
Range = Annotated[tuple[float, ...], Field(strict=False), AfterValidator(_check_range)]
"""Lowest and highest value."""
Step = Annotated[str, AfterValidator(_check_step)]
"""One step of model preparation."""
Size = Annotated[int, BeforeValidator(_read_size), _schema(r"\d+(\.\d+)? ?([KMGT]i?)?B")]
"""Bytes, written as text with a unit."""
Age = Annotated[int, BeforeValidator(_read_age), _schema(r"\d+[mhdw]")]
"""Seconds, written as text with a unit."""
PlatformTag = Annotated[str, AfterValidator(_check_tag)]
EnvironmentName = Annotated[str, AfterValidator(_check_environment_name)]
EnvironmentValue = Annotated[str, AfterValidator(_check_environment_value)]
Requirement = Annotated[str, AfterValidator(_check_requirement)]
"""A dependency specifier (PEP 508)."""
Strings = Annotated[tuple[str, ...], Field(strict=False)]
"""A TOML array of strings."""
Patterns = Annotated[
    tuple[str, ...],
    Field(strict=False, min_length=1),
    BeforeValidator(_read_patterns),
    _one_or_more({"type": "string"}),
]
"""One glob or an array of them; any one that matches will do."""
State = Literal["wheel", "editable", "sdist"]
"""What is being built."""
States = Annotated[
    tuple[State, ...],
    Field(strict=False, min_length=1),
    BeforeValidator(_read_patterns),
    _one_or_more({"enum": list(get_args(State))}),
]
EnvironmentTest = Annotated[str | bool, BeforeValidator(_check_environment_test)]
Options = dict[str, JsonValue]
"""Provider options as written; `providers.check_options` reads them."""
Dimensions = dict[str, Annotated[int, Field(ge=1)]]
