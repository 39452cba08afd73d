"""The compile identity: the SHA-256 of a canonical document of everything that may change a compile's output.

The document is an allow-list, free of paths, times and host names, and the compile reads the very values that stand
in it. Its canonical form is JSON by RFC 8785 (sorted keys, no white space, one spelling of every number), so that
equal inputs give equal bytes on every machine; `document` keeps it readable, so that a miss is explained field by
field (`diff`) and never by a hash alone.

What cannot be named with certainty stands in `Identity.uncertain`; such a variant is compiled anew each time and its
generation is never selected by a marker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import rfc8785

from hatch_epctx.digest import digest_bytes
from hatch_epctx.redact import looks_secret
from hatch_epctx.worker.protocol import FORMAT as WORKER_FORMAT
from hatch_epctx.worker.protocol import MODEL_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hatch_epctx.config import Variant
    from hatch_epctx.providers import OptionValue
    from hatch_epctx.source import SourceModel
    from hatch_epctx.toolchain import Toolchain

__all__ = [
    "FORMAT",
    "Change",
    "Identity",
    "canonical",
    "diff",
    "document_of",
    "group_document",
    "identify",
    "identify_group",
]

FORMAT = "epctx/1"
"""Version of the document's form. Golden files pin it: other bytes for the same inputs need a new version."""
_TASKS: Final = {"compiled": "compile", "source": "source", "cached": "pack"}
"""What the worker does, by the kind of the variant."""
_OF_MEMBER: Final = ("model", "compile")
"""Sections in which the members of a weight-sharing group differ; the rest is their target's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """An identity and the document it is the digest of."""

    digest: str
    document: Mapping[str, Any]
    uncertain: tuple[str, ...] = ()
    """What could not be named with certainty, in words. Not empty: the variant is not cacheable."""

    @property
    def short(self) -> str:
        """The first 12 digits, for people."""
        return self.digest[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One field in which two documents differ. None stands for a field that one of them lacks."""

    field: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.field}: {_shown(self.old)} -> {_shown(self.new)}"


def _shown(value: Any) -> str:
    if value is None:
        return "(none)"
    return value if isinstance(value, str) else _text(value)


def canonical(document: Mapping[str, Any]) -> bytes:
    """Canonical JSON of `document` (RFC 8785).

    Raises:
        ValueError: the document holds what JSON cannot say exactly (NaN, integers beyond 2**53, foreign types).
    """
    return rfc8785.dumps(dict(document))


def identify(
    variant: Variant,
    source: SourceModel,
    toolchain: Toolchain,
    option_digests: Mapping[str, str],
    *,
    preparation: Sequence[Mapping[str, Any]] = (),
    calibration: str | None = None,
) -> Identity:
    """Identity of one variant.

    Args:
        variant: the declaration, expanded and validated.
        source: digests of the model and of its external data.
        toolchain: everything undeclared that changes output.
        option_digests: content digest of each file or folder option, by option name.
        preparation: steps of model preparation with their libraries (`toolchain.read_preparation`).
        calibration: content digest of the file of samples that they read.
    """
    document = document_of(variant, source, toolchain, option_digests, preparation=preparation, calibration=calibration)
    return Identity(digest=digest_bytes(canonical(document)), document=document, uncertain=toolchain.uncertain)


def identify_group(members: Sequence[Mapping[str, Any]], toolchain: Toolchain) -> Identity:
    """The one identity of a weight-sharing group.

    Args:
        members: the identity document of each member by itself, in the order in which they are compiled.
        toolchain: theirs.
    """
    document = group_document(members)
    return Identity(digest=digest_bytes(canonical(document)), document=document, uncertain=toolchain.uncertain)


def group_document(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The identity document of a group: the sections `model` and `compile` of each member, and the rest once."""
    common = {name: value for name, value in members[0].items() if name not in _OF_MEMBER}
    sections = [
        {"position": position, **{name: member[name] for name in _OF_MEMBER}} for position, member in enumerate(members)
    ]
    return {**common, "members": sections}


def document_of(
    variant: Variant,
    source: SourceModel,
    toolchain: Toolchain,
    option_digests: Mapping[str, str],
    *,
    preparation: Sequence[Mapping[str, Any]] = (),
    calibration: str | None = None,
) -> dict[str, Any]:
    """The identity document (see `identify` for the arguments)."""
    return {
        "format": FORMAT,
        "model": {
            "onnx": source.digest,
            "external-data": [{"location": location, "digest": digest} for location, digest in source.external],
            **({"custom-ops": [library.document() for library in source.custom_ops]} if source.custom_ops else {}),
        },
        "compile": {
            **({"ep-cache": variant.ep_cache.document()} if variant.ep_cache is not None else {}),
            "calibration": calibration,
            "context-io": variant.context_io,
            "embed": variant.embed,
            "flags": ["ERROR_IF_NO_NODES_COMPILED"],
            "free-dimension-denotations": dict(variant.free_dimension_denotations),
            "free-dimensions": dict(variant.free_dimensions),
            "input": MODEL_NAME,
            "input-shapes": {name: list(sizes) for name, sizes in variant.input_shapes.items()},
            "optimization": variant.optimization,
            "prepare": [dict(step) for step in preparation],
            "session-options": dict(variant.session_options),
            "task": _TASKS[variant.kind],
        },
        "target": {
            "device": variant.device,
            "env": _environment(variant.env),
            "ep": variant.provider.names[0],
            "load-check": variant.load_check,
            "load-session-options": dict(variant.load_session_options),
            "provider-options": _options(variant.provider_options, option_digests),
            "runtime-options": _options(variant.runtime_options, option_digests),
        },
        "toolchain": toolchain.document(),
        "worker": {"format": WORKER_FORMAT, "procedure": variant.provider.procedure},
    }


def _environment(declared: Mapping[str, str]) -> dict[str, str]:
    """Variables by name. Documents are kept and shown: of a value that may be a secret, its digest stands there."""
    return {
        name: f"sha256:{digest_bytes(value.encode('utf-8', 'surrogateescape'))}" if looks_secret(name) else value
        for name, value in declared.items()
    }


def _options(options: tuple[OptionValue, ...], digests: Mapping[str, str]) -> dict[str, Any]:
    """Options by name; a file or folder stands as its content's digest, never as its path."""
    return {option.name: {"content": digests[option.name]} if option.is_path else option.text for option in options}


def diff(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    """Fields in which two documents differ, sorted by dotted name.

    Lists whose members have a `location` or a `position` are compared by it, so that one changed weights file and one
    changed member of a group show as themselves. A field that is null counts as one that is not there.
    """
    before, after = dict(_flatten(old)), dict(_flatten(new))
    fields = sorted(before.keys() | after.keys())
    return tuple(
        Change(field=field, old=before.get(field), new=after.get(field))
        for field in fields
        if _text(before.get(field)) != _text(after.get(field))
    )


def _text(value: Any) -> str:
    """What tells two values apart: for Python, true is 1."""
    return rfc8785.dumps(value).decode()


def _flatten(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flatten(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list) and (key := _key(value)):
        for item in value:
            rest = {name: inner for name, inner in item.items() if name != key}
            yield from _flatten(rest, f"{place}[{item[key]}]")
    else:
        yield place, value


def _key(items: list[Any]) -> str:
    """The field by which the members of a list are told apart; empty where they are values of their own."""
    for key in ("location", "position"):
        if items and all(isinstance(item, dict) and key in item for item in items):
            return key
    return ""
