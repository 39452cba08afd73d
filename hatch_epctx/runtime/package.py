"""An opened package folder, and the look-up in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from hatch_epctx.errors import LookupFailure, VerificationError, suggest
from hatch_epctx.files import read_bounded
from hatch_epctx.manifest import MANIFEST_NAME, MAX_BYTES, Component, Manifest, read_manifest
from hatch_epctx.runtime import plugins, sessions
from hatch_epctx.runtime.choice import Choice, Rejection, listing
from hatch_epctx.runtime.locate import locate
from hatch_epctx.runtime.options import as_texts
from hatch_epctx.runtime.selection import Candidate, Wish, candidates, remedies, source_of
from hatch_epctx.runtime.verify import Verify, verify_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from logging import Logger
    from os import PathLike
    from pathlib import Path

    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
    from onnxruntime.capi.onnxruntime_pybind11_state import SessionOptions

__all__ = ["Fallback", "Package"]

Fallback = Literal["error", "source", "compile"]

_NO_COMPILE = "session.disable_model_compile"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    """One call's arguments, checked."""

    component: Component
    wish: Wish
    fallback: Fallback
    verify: Verify
    provider: Mapping[str, str]
    entries: Mapping[str, str]


class Package:
    """The variants that one package folder holds. Immutable; safe to use from any number of threads.

    Attributes:
        path: the folder, absolute.
        manifest: its content as read when it was opened.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def open(cls, name_or_path: str | PathLike[str]) -> Package:
        """See `runtime.open`."""
        folder = locate(name_or_path)
        file = folder / MANIFEST_NAME
        try:
            data = read_bounded(file, MAX_BYTES)
        except OSError as error:
            raise VerificationError(
                f"cannot be read: {error.strerror or error}", where=str(file), reason="unreadable"
            ) from error
        return cls(folder, read_manifest(data, where=str(file)))

    def __repr__(self) -> str:
        return f"<Package {self.name!r} {self.version} at {str(self.path)!r}>"

    @property
    def name(self) -> str:
        """Name of the package, as its manifest says."""
        return self.manifest.package_name

    @property
    def version(self) -> str:
        """Version of the package, as its manifest says."""
        return self.manifest.package_version

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models, as declared."""
        return tuple(component.name for component in self.manifest.components)

    def variants(self, model: str) -> tuple[str, ...]:
        """Names of a model's variants, as declared.

        Raises:
            LookupFailure: there is no such model.
        """
        return tuple(variant.name for variant in self._component(model).variants)

    def lookup(
        self,
        model: str,
        *,
        ep: str | None = None,
        device: str | None = None,
        variant: str | None = None,
        fallback: Fallback = "source",
        verify: Verify = "once",
        provider_options: Mapping[str, str] | None = None,
        session_options: Mapping[str, str] | None = None,
    ) -> Choice:
        """The variant of `model` to use on this machine. Registers the plugin EPs that the variants need.

        Args:
            model: name of the model.
            ep: take variants of this EP only, by short or registered name.
            device: take variants for this device only: cpu, gpu or npu.
            variant: take this variant only.
            fallback: what to do when no compiled variant fits: "error"; "source", the shipped source model on the
                CPU EP, with a warning in the log; "compile" is not available in this version.
            verify: check the chosen variant's files against their digests: "once" per file and machine, "always",
                "never".
            provider_options: for the EP, over the manifest's; not used for a fallback.
            session_options: session configuration entries, over the manifest's.

        Raises:
            LookupFailure: no such model, or no variant fits; `detail` lists every candidate with its first reason.
            VerificationError: a file of the chosen variant is missing or not what the manifest says.
            ValueError, TypeError: an argument is none of the above.
        """
        component = self._component(model)
        _check_arguments(fallback, verify, device)
        query = _Query(
            component=component,
            wish=self._wish(component, ep, device, variant, verify),
            fallback=fallback,
            verify=verify,
            provider=as_texts(provider_options, "provider_options"),
            entries=as_texts(session_options, "session_options"),
        )
        rejected: list[Rejection] = []
        for choice in self._choices(query, rejected):
            return choice
        raise self._failure(query, rejected)

    def session(
        self,
        model: str,
        *,
        ep: str | None = None,
        device: str | None = None,
        variant: str | None = None,
        fallback: Fallback = "source",
        verify: Verify = "once",
        provider_options: Mapping[str, str] | None = None,
        session_options: Mapping[str, str] | SessionOptions | None = None,
    ) -> InferenceSession:
        """A session of the variant that `lookup` gives; `runtime.explain` tells which it was.

        The session runs on the chosen EP or is not made. A compiled variant never compiles at start, unless the
        caller sets session.disable_model_compile to "0". When ORT cannot make the session, "source" tries the other
        fitting variants and then the source model, each with a warning in the log; "error" raises.

        Args:
            model: as in `lookup`, like all others but one.
            ep: EP.
            device: device.
            variant: variant.
            fallback: what to do when no compiled variant fits or opens.
            verify: when to check digests.
            provider_options: for the EP.
            session_options: as in `lookup`, or the caller's own `onnxruntime.SessionOptions` without providers. That
                object is changed, and serves one attempt: a creation that fails is then an error.

        Raises:
            LookupFailure, VerificationError, ValueError, TypeError: as `lookup`.
        """
        component = self._component(model)
        _check_arguments(fallback, verify, device)
        base, entries = _split(session_options)
        query = _Query(
            component=component,
            wish=self._wish(component, ep, device, variant, verify),
            fallback=fallback,
            verify=verify,
            provider=as_texts(provider_options, "provider_options"),
            entries=entries,
        )
        rejected: list[Rejection] = []
        for choice in self._choices(query, rejected):
            try:
                session = sessions.create(choice, base)
            except sessions.CreationFailed as failed:
                rejected.append(failed.rejection)
                if fallback == "error" or base is not None:
                    break
                _log().warning("%s: %s: the variant %s does not open: %s", self.name, model, choice.variant, failed)
                continue
            sessions.remember(session, replace(choice, rejected=tuple(rejected)))
            return session
        raise self._failure(query, rejected)

    def _component(self, model: str) -> Component:
        for component in self.manifest.components:
            if component.name == model:
                return component
        raise LookupFailure(
            f"there is no model {model!r}",
            where=self.name or str(self.path),
            expected=f"one of {', '.join(self.models)}",
            remedy=suggest(model, self.models),
            reason="unknown-model",
        )

    def _wish(
        self, component: Component, ep: str | None, device: str | None, variant: str | None, verify: Verify
    ) -> Wish:
        names = [known.name for known in component.variants]
        if variant is not None and variant not in names:
            raise LookupFailure(
                f"the model has no variant {variant!r}",
                where=f"{self.name}.{component.name}",
                expected=f"one of {', '.join(names)}",
                remedy=suggest(variant, names),
                reason="unknown-variant",
            )
        name = plugins.full_name(ep) if ep is not None else None
        return Wish(ep=name, device=device, variant=variant, unverified=verify == "never")

    def _choices(self, query: _Query, rejected: list[Rejection]) -> Iterator[Choice]:
        """Verified choices, best first, the fallback last. `rejected` grows on the way, by the caller's hand too."""
        plugins.import_onnxruntime()
        variants = query.component.variants
        fitting, against = candidates(variants, query.wish)
        rejected.extend(against)
        for candidate in fitting:
            choice = self._choice(query, candidate, rejected)
            if candidate.differences:
                _log().info("%s: %s: %s: %s", self.name, choice.model, choice.variant, candidate.differences)
            yield choice
        source = source_of(variants)
        tried = {candidate.variant.name for candidate in fitting}
        if query.fallback != "source" or source is None or source.variant.name in tried:
            return
        choice = self._choice(replace(query, provider={}), source, rejected)
        _log().warning("%s: %s: using the source model on the CPU:\n%s", self.name, choice.model, listing(rejected))
        yield replace(choice, fallback=True)

    def _choice(self, query: _Query, candidate: Candidate, rejected: list[Rejection]) -> Choice:
        variant = candidate.variant
        if variant.facts is not None:
            verify_files(self.path, variant.facts.artifacts, query.verify)
        compiled = variant.facts is None or variant.facts.kind == "compiled"
        guard = {_NO_COMPILE: "1"} if compiled else {}
        return Choice(
            model=query.component.name,
            variant=variant.name,
            ep=variant.ep,
            device=candidate.device,
            path=self.path / variant.model_file,
            provider_options=MappingProxyType({**variant.provider_options, **query.provider}),
            session_options=MappingProxyType({**guard, **variant.session_options, **query.entries}),
            rejected=tuple(rejected),
            note="; ".join(filter(None, (candidate.fit.note, candidate.differences))),
            ep_device=candidate.ep_device,
        )

    def _failure(self, query: _Query, rejected: list[Rejection]) -> LookupFailure:
        variants = query.component.variants
        remedy = remedies(variants, rejected)
        if query.fallback == "source" and source_of(variants) is None:
            remedy += f"{' ' if remedy else ''}The package ships no source model to fall back on (ship-source)."
        return LookupFailure(
            "no variant can be used on this machine",
            where=f"{self.name}.{query.component.name}",
            remedy=remedy,
            reason=rejected[0].reason if len({r.reason for r in rejected}) == 1 else "no-variant",
            detail=listing(rejected),
        )


def _check_arguments(fallback: str, verify: str, device: str | None) -> None:
    words = {"fallback": (fallback, get_args(Fallback)), "verify": (verify, get_args(Verify))}
    words["device"] = (device or "cpu", ("cpu", "gpu", "npu"))
    for name, (value, known) in words.items():
        if value not in known:
            raise ValueError(f"{name}={value!r}; expected one of {', '.join(known)}")
    if fallback == "compile":
        raise LookupFailure(
            "fallback='compile' is not available in this version",
            remedy="Use 'source' and ship the source model, or 'error'.",
            reason="not-available",
        )


def _split(options: Mapping[str, str] | SessionOptions | None) -> tuple[SessionOptions | None, dict[str, str]]:
    """The caller's SessionOptions, or its entries."""
    ort: Any = plugins.import_onnxruntime()
    if not isinstance(options, ort.SessionOptions):
        return None, as_texts(cast("Mapping[str, str] | None", options), "session_options")
    if getattr(options, "has_providers", bool)():
        raise LookupFailure(
            "the given SessionOptions have providers already",
            expected="none: the look-up adds the EP",
            remedy="Choose by ep=, device= or variant=.",
            reason="bad-option",
        )
    return options, {}


def _log() -> Logger:
    import logging

    return logging.getLogger("hatch_epctx")
