"""Wheel variants (PEP 825, a draft; experimental): copies of a wheel that installers choose by a machine's properties.

    acme_vision-1.2.3-py3-none-any.whl                the plain wheel, for everybody
    acme_vision-1.2.3-py3-none-any-x86_64_v4.whl      the same with .dist-info/variant.json
    acme_vision-1.2.3-variants.json                   what an index or --find-links shows beside them

A "wheel variant" is the packaging standard's word; a variant alone is one model for one target. An installer that knows
nothing of them takes the plain wheel. Properties say what a machine must have so that the wheel is worth its download;
the look-up still compares and has the last word at run time.

Format and provider names are a draft's: they are written by variantlib, and may change with it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.errors import ConfigError, StoreError, ToolchainError, VerificationError
from hatch_epctx.files import atomic_write, copy_file, read_bounded, remove_file
from hatch_epctx.manifest import FOLDER_NAME, MANIFEST_NAME, MAX_BYTES, read_manifest
from hatch_epctx.wheelfile import Entry, add_files, metadata_folder, read_members

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from hatch_epctx.manifest import Variant

__all__ = ["PROVIDERS", "WheelVariant", "derived_properties", "make_wheel_variant"]

PROVIDERS: Final[Mapping[str, str]] = {
    "aarch64": "aarch64-variant-provider",
    "nvidia": "nvidia-variant-provider",
    "x86_64": "x86-64-variant-provider",
}
"""Requirement of the provider of each namespace that uv has built in."""

_LEVELS: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
    ("v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma"})),
    ("v2", frozenset({"ssse3", "sse4_1", "sse4_2"})),
)
"""Levels of the x86-64 psABI by the flags of theirs that an identity records, the highest first."""

_LABEL: Final = re.compile(r"[0-9a-z._]+\Z")
_LABEL_LIMIT: Final = 16
"""Characters of a label (PEP 825)."""
_INDEX_LIMIT: Final = 16 << 20


class WheelVariant:
    """A wheel variant to be.

    Args:
        properties: such as "x86_64 :: level :: v3".
        label: stands in the file name; made of the properties when left out.
        providers: requirement by namespace, over `PROVIDERS`.

    Raises:
        ConfigError: a property or the label is malformed, or a namespace has no provider.
        ToolchainError: variantlib is not installed.
    """

    def __init__(
        self, properties: Sequence[str], *, label: str = "", providers: Mapping[str, str] | None = None
    ) -> None:
        api, info = _library()
        parsed = sorted({_parsed(api, text) for text in properties})
        known = {**PROVIDERS, **(providers or {})}
        namespaces = list(dict.fromkeys(item.namespace for item in parsed))
        for namespace in namespaces:
            if namespace not in known:
                raise ConfigError(
                    f"nobody is known to provide the namespace {namespace!r}",
                    where="--property",
                    expected=f"one of {', '.join(sorted(known))}",
                    remedy=f"Name its provider: --provider {namespace}=REQUIREMENT.",
                    reason="unknown-namespace",
                )
        label = label or _label(parsed)
        if label and not _LABEL.match(label):
            expected = "lower-case letters, digits, '_' and '.'"
            raise ConfigError(f"{label!r} is no label", where="--label", expected=expected, reason="bad-label")
        description = api.VariantDescription(properties=parsed, label=label)
        self.label: str = description.label
        self.json: str = api.make_variant_dist_info(
            description,
            variant_info=info.VariantInfo(
                namespace_priorities=namespaces,
                providers={name: info.ProviderInfo(requires=[known[name]]) for name in namespaces},
            ),
            expand_aot_plugin_properties=False,
        )


def derived_properties(wheel: Path) -> tuple[str, ...]:
    """Properties that the compiled models of `wheel` ask for: the x86-64 level of the CPU whose instructions they use.

    Empty where none of them depends on a CPU.

    Raises:
        VerificationError: no readable wheel, or one without compiled models.
        OSError: it cannot be read.
    """
    place = f"{FOLDER_NAME}/{MANIFEST_NAME}"
    _, contents = read_members(wheel, lambda name: f"/{name}".endswith(f"/{place}"), limit=MAX_BYTES)
    manifests = [read_manifest(data, where=name) for name, data in contents.items()]
    if not manifests:
        raise VerificationError("holds no compiled models", where=str(wheel), reason="no-models")
    variants = [variant for manifest in manifests for part in manifest.components for variant in part.variants]
    levels = {level for level in map(_level, variants) if level}
    return (f"x86_64 :: level :: {max(levels)}",) if levels else ()


def _level(variant: Variant) -> str:
    toolchain = variant.facts.toolchain if variant.facts else {}
    isa = toolchain.get("isa") or ()
    if toolchain.get("architecture") != "x86_64":
        return ""
    return next((level for level, flags in _LEVELS if flags <= set(isa)), "")


def make_wheel_variant(wheel: Path, out: Path, variant: WheelVariant) -> tuple[Path, Path]:
    """Write the wheel variant of `wheel`, and the file for indexes, into the folder `out`.

    A file for indexes that is there already gets the variant added.

    Returns:
        The wheel variant and the file for indexes.

    Raises:
        ConfigError: the file for indexes has another variant of this label.
        VerificationError: no well-formed wheel, or one that is a variant already.
        StoreError: something cannot be read or written.
    """
    parts = wheel.name.removesuffix(".whl").split("-")
    if len(parts) not in (5, 6) or (len(parts) == 6 and not parts[2][:1].isdigit()):
        raise VerificationError("has no plain wheel's name", where=str(wheel), reason="wheel-name")
    target = out / f"{wheel.name.removesuffix('.whl')}-{variant.label}.whl"
    index = out / f"{parts[0]}-{parts[1]}-variants.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
        merged = _merged(index, variant.json)
        remove_file(target)
        copy_file(wheel, target)
        target.chmod(0o644)
        add_files(target, [Entry(name=f"{metadata_folder(wheel)}/variant.json", source=variant.json.encode())])
        atomic_write(index, merged.encode(), mode=0o644)
    except OSError as error:
        raise StoreError(
            f"cannot be written: {error.strerror or error}", where=str(error.filename or out), reason="unwritable"
        ) from error
    return target, index


def _merged(index: Path, added: str) -> str:
    """The file for indexes with one variant more."""
    try:
        before = read_bounded(index, _INDEX_LIMIT)
    except FileNotFoundError:
        return added
    import json  # noqa: PLC0415

    from variantlib.errors import ValidationError  # noqa: PLC0415
    from variantlib.variants_json import VariantsJson  # noqa: PLC0415

    try:
        known, new = VariantsJson(json.loads(before)), VariantsJson(json.loads(added))
        for label in new.variants:
            known.variants.pop(label, None)  # made anew
        known.merge(new)
        return str(known.to_str())
    except (ValidationError, ValueError) as error:
        raise ConfigError(
            f"cannot take this variant too: {error}",
            where=str(index),
            remedy="Remove the file and the variants beside it, and make them all anew.",
            reason="variants-json",
        ) from error


def _library() -> tuple[Any, Any]:
    try:
        from variantlib import api  # noqa: PLC0415
        from variantlib.models import variant_info  # noqa: PLC0415
    except ImportError as error:
        raise ToolchainError(
            f"wheel variants need variantlib ({error})",
            remedy="Run: pip install 'hatch-epctx[variants]'",
            reason="missing-distribution",
        ) from error
    return api, variant_info


def _parsed(api: Any, text: str) -> Any:
    from variantlib.errors import ValidationError  # noqa: PLC0415

    try:
        return api.VariantProperty.from_str(text)
    except (ValidationError, ValueError) as error:
        raise ConfigError(
            f"{text!r} is no property",
            where="--property",
            expected="namespace :: feature :: value, such as 'x86_64 :: level :: v3'",
            reason="bad-property",
        ) from error


def _label(properties: Iterable[Any]) -> str:
    """A label that people can read; empty where it would be too long: variantlib then makes a hash of it."""
    label = "_".join(f"{item.namespace}_{item.value}" for item in properties)
    return label if len(label) <= _LABEL_LIMIT else ""
