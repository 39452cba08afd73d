"""Manifest bytes to records: strict, since an installed file is untrusted input."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.digest import is_digest
from hatch_epctx.epcache import clash
from hatch_epctx.files import check_name
from hatch_epctx.manifest.place import Place
from hatch_epctx.manifest.records import (
    DEVICES,
    EMPTY,
    FORMAT,
    KINDS,
    MANIFEST_NAME,
    ROLES,
    Artifact,
    Component,
    Facts,
    Manifest,
    Variant,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MAX_BYTES", "read_manifest"]

MAX_BYTES: Final = 16 << 20
"""Largest manifest that is read."""

_WRITING_OPTIONS: Final = (
    "session.debug_layout_transformation",
    "session.collect_node_memory_stats_to_file",
    "session.enable_profiling",
    "session.optimized_model_filepath",
)
"""Session options that ORT refuses in a package: they write files."""
_LOADING_OPTIONS: Final = frozenset(
    {
        "external_ep_library",
        "op_packages",
        "trt_engine_decryption_lib_path",
        "trt_extra_plugin_lib_paths",
    }
)
"""Options by which EPs load libraries, some as lists with paths in the middle: no build writes them, and no package
may have code loaded."""
_LIBRARY_OPTIONS: Final = frozenset({"backend_path"})
"""Options that choose one of the EP's own libraries, by its file name alone."""
_PATHS: Final = ("file", "folder")
"""Words for the value of an option that named one on the building machine."""
_OUTSIDE = re.compile(r"[\\/]|[A-Za-z]:[\\/]|(?:.*[\\/])?\.\.(?:[\\/]|\Z)", re.DOTALL)
"""Start of a text that is an absolute path, or one that climbs with '..'."""


def read_manifest(data: bytes, *, where: str = MANIFEST_NAME) -> Manifest:
    """Read a manifest from untrusted bytes.

    Args:
        data: content of the file.
        where: what error messages call it.

    Raises:
        VerificationError: too large, no strict JSON (RFC 8259: UTF-8, no duplicate names, no NaN), of a newer schema
            or format, with fields that ORT does not know, or with references that leave the folder. `where` holds the
            dotted place inside the manifest.
    """
    if len(data) > MAX_BYTES:
        Place(None, where).fail(f"{len(data)} bytes", expected=f"at most {MAX_BYTES}", reason="too-large")
    top = Place.parse(data, where)
    fields = top.fields(
        required=("schema_version", "components"),
        optional=("package_name", "package_version", "description", "layout", "shared_assets", "additional_metadata"),
    )
    version = fields["schema_version"]
    if not re.match(r"1\.\d{1,6}\Z", version.text()):
        version.fail(f"model package schema {version.value!r}", expected="1.0", reason="unknown-schema")
    if "layout" in fields and fields["layout"].text() != "portable":
        fields["layout"].fail(f"layout {fields['layout'].value!r}", expected="'portable'")
    if "shared_assets" in fields and fields["shared_assets"].members():
        fields["shared_assets"].fail("shared assets", expected="none: every file lies in the one flat folder")
    components = tuple(_component(name, place) for name, place in fields["components"].named().items())
    manifest = Manifest(
        package_name=fields["package_name"].text() if "package_name" in fields else "",
        package_version=fields["package_version"].text() if "package_version" in fields else "",
        components=components,
    )
    _check_shared(manifest, top)
    return manifest


def _component(name: str, place: Place) -> Component:
    if isinstance(place.value, str):
        place.fail(f"an external component {place.value!r}", expected="an object: the manifest is one file")
    fields = place.fields(required=("variants",), optional=("component_name", "additional_metadata"))
    variants = fields["variants"].named().items()
    return Component(name=name, variants=tuple(_variant(variant, inside) for variant, inside in variants))


def _variant(name: str, place: Place) -> Variant:
    fields = place.fields(
        required=("variant_directory", "ep", "executor_info"),
        optional=("device", "compatibility_string", "additional_metadata"),
    )
    if fields["variant_directory"].text() != ".":
        fields["variant_directory"].fail(
            f"the folder {fields['variant_directory'].value!r}", expected="'.': one flat folder", reason="escape"
        )
    executors = fields["executor_info"].members(required=("ort",))
    ort = executors["ort"].fields(required=("model_file",), optional=("session_options", "provider_options"))
    model_file = ort["model_file"].flat()
    facts = _facts(executors["epctx"]) if "epctx" in executors else None
    if facts is not None and model_file not in {a.path for a in facts.artifacts if a.role == "model"}:
        ort["model_file"].fail(f"{model_file!r} is no artifact with the role 'model'")
    return Variant(
        name=name,
        ep=fields["ep"].text(),
        model_file=model_file,
        device=fields["device"].one_of(DEVICES) if "device" in fields else None,
        compatibility_string=fields["compatibility_string"].text() if "compatibility_string" in fields else None,
        session_options=_session_options(ort["session_options"]) if "session_options" in ort else EMPTY,
        provider_options=_provider_options(ort["provider_options"]) if "provider_options" in ort else EMPTY,
        facts=facts,
    )


def _session_options(place: Place) -> Mapping[str, str]:
    options = place.strings()
    for key, value in options.items():
        if key in _WRITING_OPTIONS:
            place.inside(key, value).fail("ORT refuses this option in a package: it writes files", reason="escape")
        # ORT hands EPs their options as session options, too: "ep.qnnexecutionprovider.op_packages".
        _check_inside(place.inside(key, value), value)
        _check_loading(place.inside(key, value), key.rpartition(".")[2], value)
    return options


def _provider_options(place: Place) -> Mapping[str, str]:
    """Options for the EP; a value that is JSON text is looked into, since EPs read paths there too."""
    options = place.strings()
    for key, value in options.items():
        option = place.inside(key, value)
        _check_inside(option, value)
        if value.lstrip().startswith(("{", "[")):
            for text in Place.parse(value.encode(), option.file, option.path).texts():
                _check_inside(option, text)
        _check_loading(option, key, value)
    return options


def _compile_options(fields: Mapping[str, Place]) -> None:
    """Check the options of the compile, which compiling at first use repeats; a path stands as what was behind it."""
    for name in ("free_dimensions", "free_dimension_denotations", "input_shapes"):
        if name in fields:
            fields[name].members()
    if "prepare" in fields:
        fields["prepare"].items()
    if "session_options" in fields:
        _session_options(fields["session_options"])
    if "provider_options" in fields:
        own = fields["provider_options"]
        _provider_options(Place({k: v for k, v in own.strings().items() if v not in _PATHS}, own.file, own.path))


def _check_loading(place: Place, name: str, value: str) -> None:
    """Refuse an option by which a package would have a library of its choice loaded."""
    name = name.lower()
    if name in _LOADING_OPTIONS:
        place.fail("a package may not name libraries to load; the application passes them", reason="escape")
    if name in _LIBRARY_OPTIONS and re.search(r"[\\/:]", value):
        place.fail(f"{value!r} is a path", expected="the file name of one of the EP's own libraries", reason="escape")


def _check_inside(place: Place, value: str) -> None:
    """Refuse a path that is absolute or climbs: nothing in a package may name a file outside it."""
    if _OUTSIDE.match(value):
        place.fail(f"{value!r} names a place outside the package", reason="escape")


def _facts(place: Place) -> Facts:
    fields = place.members(required=("format", "kind", "artifacts"))
    if fields["format"].text() != FORMAT:
        fields["format"].fail(
            f"format {fields['format'].value!r}",
            expected=repr(FORMAT),
            remedy="The package was built by another version of hatch-epctx; install that or a newer one.",
            reason="unknown-format",
        )
    if "identity" in fields and not is_digest(fields["identity"].value):
        fields["identity"].fail("no identity", expected="64 lower-case hexadecimal digits")
    artifacts = tuple(_artifact(item) for item in fields["artifacts"].items())
    if len({artifact.path for artifact in artifacts}) != len(artifacts):
        fields["artifacts"].fail("one file stands twice")
    if "options" in fields:
        _compile_options(fields["options"].members())
    free = ("options", "toolchain", "coverage", "check", "runtime", "signature", "group")
    return Facts(
        kind=fields["kind"].one_of(KINDS),
        artifacts=tuple(sorted(artifacts, key=lambda artifact: artifact.path)),
        identity=fields["identity"].text() if "identity" in fields else None,
        compatibility=fields["compatibility"].text() if "compatibility" in fields else "",
        device=fields["device"].one_of(DEVICES) if "device" in fields else None,
        ep_cache=_ep_cache(fields["ep_cache"], artifacts) if "ep_cache" in fields else EMPTY,
        load_check=fields["load_check"].text() if "load_check" in fields else "",
        reproducible=fields["reproducible"].flag() if "reproducible" in fields else None,
        **{key: fields[key].free() for key in free if key in fields},
    )


def _ep_cache(place: Place, artifacts: tuple[Artifact, ...]) -> Mapping[str, Any]:
    """Names of the EP's own for artifacts; they become files in a private folder and must stay in it."""
    files = place.fields(required=("files",))["files"]
    known = {artifact.path for artifact in artifacts if artifact.role == "ep-cache"}
    for name, artifact in files.members().items():
        try:
            for part in name.split("/"):
                check_name(part)
        except ValueError as error:
            artifact.fail(f"unsafe name {name!r} ({error})", expected="a path inside the cache", reason="escape")
        if artifact.text() not in known:
            artifact.fail(f"{artifact.value!r} is no artifact with the role 'ep-cache'")
    if clash(files.value):
        files.fail("two names are one, or one lies inside another", reason="name-clash")
    return place.free()


def _artifact(place: Place) -> Artifact:
    fields = place.members(required=("path", "size", "sha256", "role"))
    size = fields["size"].value
    if type(size) is not int or not 0 <= size < 1 << 63:
        fields["size"].fail(f"found {size!r}", expected="a size in bytes")
    if not is_digest(fields["sha256"].value):
        fields["sha256"].fail("no digest", expected="64 lower-case hexadecimal digits")
    return Artifact(
        path=fields["path"].flat(), size=size, digest=fields["sha256"].text(), role=fields["role"].one_of(ROLES)
    )


def _check_shared(manifest: Manifest, top: Place) -> None:
    """Variants may share a file; they must then agree on its content. Names must differ in more than case."""
    known: dict[str, Artifact] = {}
    for component in manifest.components:
        for variant in component.variants:
            for artifact in variant.facts.artifacts if variant.facts else ():
                other = known.setdefault(artifact.path.casefold(), artifact)
                if (other.path, other.digest, other.size) != (artifact.path, artifact.digest, artifact.size):
                    place = top.inside(f"components.{component.name}.variants.{variant.name}")
                    place.fail(f"{artifact.path!r} is recorded twice with different content", reason="name-clash")
