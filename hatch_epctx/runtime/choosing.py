"""From a request to choices: the fitting variants, best first, each made ready to be opened, the fallback last."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, cast

from hatch_epctx.errors import LookupFailure
from hatch_epctx.runtime import customops
from hatch_epctx.runtime.choice import Choice, Rejection, listing
from hatch_epctx.runtime.compiling import compiled_choices
from hatch_epctx.runtime.contextdata import Supply, is_storage
from hatch_epctx.runtime.epcaches import use_cache
from hatch_epctx.runtime.selection import Candidate, candidates, remedies, source_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from logging import Logger

    from hatch_epctx.manifest import Artifact, Variant
    from hatch_epctx.runtime.contextdata import ContextData
    from hatch_epctx.runtime.folders import Folder
    from hatch_epctx.runtime.request import Request

__all__ = ["choices", "failure", "log"]

_NO_COMPILE: Final = "session.disable_model_compile"


def choices(request: Request, rejected: list[Rejection]) -> Iterator[Choice]:
    """Verified choices, best first, the fallback last. `rejected` grows on the way, by the caller's hand too.

    Raises:
        VerificationError: a file of the variant that comes next is missing or not what the manifest says.
        LookupFailure: it lies in an archive and cannot be unpacked.
    """
    fitting, against = candidates(request.held, request.wish)
    rejected.extend(against)
    for candidate in fitting:
        try:
            choice = _choice(request, candidate, rejected)
        except customops.Missing as missing:
            rejected.append(_rejection(candidate, missing))
            continue
        if candidate.differences:
            log().info("%s: %s: %s: %s", request.package, request.model, choice.variant, candidate.differences)
        yield choice
    if request.fallback == "compile":
        yield from compiled_choices(request, request.how, rejected)
    wanted = request.how.otherwise if request.fallback == "compile" else request.fallback
    source = source_of(request.held, request.wish.preference)
    if wanted != "source" or source is None or any(c.variant is source.variant for c in fitting):
        return
    try:
        choice = _choice(replace(request, provider={}), source, rejected)
    except customops.Missing as missing:
        rejected.append(_rejection(source, missing))
        return
    text = "%s: %s: using the source model on the CPU:\n%s"
    log().warning(text, request.package, request.model, listing(rejected))
    yield replace(choice, fallback=True)


def _rejection(candidate: Candidate, missing: customops.Missing) -> Rejection:
    package = candidate.folder.companion
    return Rejection(variant=candidate.variant.name, reason=missing.reason, text=missing.text, package=package)


def _choice(request: Request, candidate: Candidate, rejected: list[Rejection]) -> Choice:
    variant, folder = candidate.variant, candidate.folder
    artifacts = variant.facts.artifacts if variant.facts is not None else ()
    custom_ops, differs = customops.libraries(variant, request.custom_ops)
    customops.check_packages(variant, request.provider)
    supply = _supply(request, variant, folder)
    model = next((a for a in artifacts if a.path == variant.model_file), None)
    on_disk = [
        artifact
        for artifact in artifacts
        if not (supply is not None and artifact.path in supply.names)
        and not (request.as_bytes and artifact is model)
        and artifact.role != "ep-cache"
    ]
    place, hold = folder.ready(on_disk, request.verify, everything=variant.facts is not None)
    compiled = variant.facts is None or variant.facts.kind == "compiled"
    guard = {_NO_COMPILE: "1"} if compiled else {}
    provider = {**variant.provider_options, **request.provider}
    cache = use_cache(folder, variant, candidate.device, provider)
    return Choice(
        model=request.model,
        variant=variant.name,
        ep=variant.ep,
        device=candidate.device,
        path=place / variant.model_file,
        provider_options=cache.provider_options if cache is not None else MappingProxyType(provider),
        session_options=MappingProxyType({**guard, **variant.session_options, **request.entries}),
        rejected=tuple(rejected),
        package=folder.package,
        custom_ops=custom_ops,
        note="; ".join(filter(None, (candidate.fit.note, candidate.differences, differs))),
        beside=tuple(artifact.path for artifact in on_disk if artifact is not model),
        shares_with=_sharers(variant),
        content=folder.read(variant.model_file, model) if request.as_bytes else None,
        supply=supply,
        ep_cache=cache,
        hold=hold,
        ep_device=candidate.ep_device,
    )


def _sharers(variant: Variant) -> tuple[str, ...]:
    group = variant.facts.group if variant.facts is not None else {}
    return tuple(group["members"]) if group.get("shared") else ()


def _supply(request: Request, variant: Variant, folder: Folder) -> Supply | None:
    """What answers ORT's callback; None for a variant whose binaries are read from files, or that has none."""
    if variant.facts is None:
        return None
    data = request.data or ("callbacks" if variant.facts.options.get("context_io") == "callbacks" else "files")
    if data == "files":
        return None
    storage = cast("ContextData", data) if is_storage(data) else _FromFolder(folder, variant.facts.artifacts)
    supply = Supply(variant.facts.artifacts, storage)
    return supply if supply.names else None


class _FromFolder:
    """The package folder as storage."""

    def __init__(self, folder: Folder, artifacts: tuple[Artifact, ...]) -> None:
        self._folder = folder
        self._artifacts = {artifact.path: artifact for artifact in artifacts}

    def read(self, name: str, digest: str, size: int) -> bytes:  # noqa: ARG002  # the folder knows them
        return self._folder.read(name, self._artifacts[name])


def failure(request: Request, rejected: list[Rejection]) -> LookupFailure:
    """The error that lists every candidate with its first reason."""
    remedy = remedies(request.held, rejected)
    if request.fallback == "source" and source_of(request.held, request.wish.preference) is None:
        remedy += f"{' ' if remedy else ''}The package ships no source model to fall back on (ship-source)."
    return LookupFailure(
        "no variant can be used on this machine",
        where=f"{request.package}.{request.model}",
        remedy=remedy,
        reason=rejected[0].reason if len({r.reason for r in rejected}) == 1 else "no-variant",
        detail=listing(rejected),
    )


def log() -> Logger:
    """Where the look-up tells what it did."""
    import logging

    return logging.getLogger("hatch_epctx")
