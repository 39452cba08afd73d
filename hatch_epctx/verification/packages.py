"""A package folder against its manifest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from hatch_epctx.digest import content_name
from hatch_epctx.errors import ConfigError, EpctxError
from hatch_epctx.manifest import MANIFEST_NAME
from hatch_epctx.providers import find_provider
from hatch_epctx.verification.models import described, variant_problems
from hatch_epctx.verification.records import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hatch_epctx.manifest import Artifact, Manifest, Variant
    from hatch_epctx.store import Store
    from hatch_epctx.verification.places import Files

__all__ = ["folder_problems"]

_PROCESSES: Final = 4
"""ONNX files read at one time."""


def folder_problems(files: Files, manifest: Manifest, store: Store) -> list[Problem]:
    """Everything in which the folder is not what its manifest says.

    Args:
        files: of the folder.
        manifest: read from it.
        store: gives folders to work in.
    """
    variants = [(c.name, v) for c in manifest.components for v in c.variants]
    artifacts = manifest.artifacts()
    problems = list(_listed(files, variants, artifacts))
    damaged = {problem.where for problem in problems}
    readable = [(model, variant) for model, variant in variants if _place(files, variant.model_file) not in damaged]
    with ThreadPoolExecutor(max_workers=_PROCESSES) as pool:
        found = pool.map(lambda item: _model_problems(files, item[0], item[1], store), readable)
        for some in found:
            problems += some
    return problems


def _place(files: Files, name: str) -> str:
    return f"{files.place}/{name}"


def _listed(files: Files, variants: list[tuple[str, Variant]], artifacts: tuple[Artifact, ...]) -> Iterator[Problem]:
    for model, variant in variants:
        if variant.facts is None:
            text = "the manifest records no digests: another tool wrote it"
            yield Problem(where=f"{model}.{variant.name}", reason="unverifiable", text=text)
    for artifact in artifacts:
        yield from _artifact_problems(files, artifact)
    known = {MANIFEST_NAME, *(item.path for item in artifacts), *(variant.model_file for _, variant in variants)}
    for name in sorted({*files.sizes, *files.strange} - known):
        yield Problem(where=_place(files, name), reason="unlisted", text="is in no variant")


def _artifact_problems(files: Files, artifact: Artifact) -> Iterator[Problem]:
    where = _place(files, artifact.path)
    if kind := files.strange.get(artifact.path):
        yield Problem(where=where, reason="escape", text=f"is {kind}; expected a regular file")
        return
    size = files.sizes.get(artifact.path)
    if size is None:
        yield Problem(where=where, reason="missing", text="is missing")
        return
    if size != artifact.size:
        yield Problem(where=where, reason="size", text=f"{size} bytes; the manifest says {artifact.size}")
        return
    try:
        digest = files.digest(artifact.path)
    except OSError as error:
        yield Problem(where=where, reason="unreadable", text=f"cannot be read: {error.strerror or error}")
        return
    if digest != artifact.digest:
        yield Problem(where=where, reason="digest", text=f"SHA-256 {digest}; the manifest says {artifact.digest}")
    if artifact.role != "model" and artifact.path != content_name(artifact.digest):
        text = f"is not called by its content: {content_name(artifact.digest)}"
        yield Problem(where=where, reason="name", text=text)


def _model_problems(files: Files, model: str, variant: Variant, store: Store) -> list[Problem]:
    where = _place(files, variant.model_file)
    if variant.model_file not in files.sizes:
        return [] if variant.facts else [Problem(where=where, reason="missing", text="is missing")]
    try:
        with store.staging() as staging:
            copy = staging.path / "copy.onnx"
            files.bring(variant.model_file, copy)
            facts = described(copy, staging.path)
    except (EpctxError, OSError) as error:
        text = error.found if isinstance(error, EpctxError) else f"cannot be read: {error}"
        return [Problem(where=where, reason="invalid-model", text=text)]
    try:
        eps = find_provider(variant.ep).names
    except ConfigError:  # an EP that nobody here knows
        eps = (variant.ep,)
    return list(variant_problems(f"{where} ({model}.{variant.name})", variant, facts, eps))
