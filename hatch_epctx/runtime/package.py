"""An opened package, and the look-up in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_epctx.errors import LookupFailure, suggest
from hatch_epctx.runtime import sessions
from hatch_epctx.runtime.choosing import choices, failure, log
from hatch_epctx.runtime.folders import Folder, Held, open_package, variants_of
from hatch_epctx.runtime.options import as_texts
from hatch_epctx.runtime.request import Fallback, Verify, check_text, make_request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtExecutionProviderDevicePolicy, SessionOptions

    from hatch_epctx.manifest import Manifest
    from hatch_epctx.runtime.choice import Choice, Rejection
    from hatch_epctx.runtime.compiling import Compile
    from hatch_epctx.runtime.contextdata import ContextData, Data
    from hatch_epctx.runtime.genai import GenaiModel

__all__ = ["Package"]


class Package:
    """The variants that one or several package folders hold. Immutable; any number of threads may use it.

    Attributes:
        folders: the package's own folder, then those of its companions and of further packages.
    """

    def __init__(self, folders: tuple[Folder, ...]) -> None:
        self.folders = folders

    @classmethod
    def open(cls, *names_or_paths: str | PathLike[str]) -> Package:
        """See `runtime.open`."""
        if not names_or_paths:
            raise TypeError("open() needs a package")
        return cls(tuple(folder for given in names_or_paths for folder in open_package(given)))

    def __repr__(self) -> str:
        more = f" and {len(self.folders) - 1} more" if len(self.folders) > 1 else ""
        return f"<Package {self.name!r} {self.version} at {str(self.path)!r}{more}>"

    @property
    def path(self) -> Path:
        """The first folder, absolute."""
        return self.folders[0].path

    @property
    def manifest(self) -> Manifest:
        """The first folder's manifest, as read when it was opened."""
        return self.folders[0].manifest

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
        """Names of the models, as declared, each once."""
        every = (component.name for folder in self.folders for component in folder.manifest.components)
        return tuple(dict.fromkeys(every))

    def variants(self, model: str) -> tuple[str, ...]:
        """Names of a model's variants, as declared, each once.

        Raises:
            LookupFailure: there is no such model.
        """
        return tuple(dict.fromkeys(item.variant.name for item in self._held(model)))

    def lookup(
        self,
        model: str,
        *,
        ep: str | None = None,
        device: str | None = None,
        variant: str | None = None,
        prefer: str | Sequence[str] | OrtExecutionProviderDevicePolicy | None = None,
        fallback: Fallback | Compile = "source",
        verify: Verify = "once",
        provider_options: Mapping[str, str] | None = None,
        session_options: Mapping[str, str] | None = None,
        custom_ops: Sequence[str | PathLike[str]] = (),
    ) -> Choice:
        """The variant of `model` to use on this machine. Registers the plugin EPs that the variants need.

        Args:
            model: name of the model.
            ep: take variants of this EP only, by short or registered name.
            device: take variants for this device only: cpu, gpu or npu.
            variant: take this variant only.
            prefer: which of several goes first: a device policy such as "PREFER_NPU" or "MAX_EFFICIENCY", or EPs,
                devices, variant names and globs, the most wanted first; "!qnn" rules out. The user's EPCTX_PREFER
                goes over it. Without any: as declared.
            fallback: what to do when no compiled variant fits: "error"; "source", the shipped source model on the
                CPU EP, with a warning in the log; "compile", compile on this machine what was compiled for others
                (needs the build extra and a shipped source), or a `Compile` that says how. It may take minutes.
            verify: check the chosen variant's files against their digests: "once" per file and machine, "always",
                "never".
            provider_options: for the EP, over the manifest's; not used for a fallback.
            session_options: session configuration entries, over the manifest's.
            custom_ops: libraries of custom operators that the model was compiled with and that no installed
                distribution brings, by path.

        Raises:
            LookupFailure: no such model, or no variant fits; `detail` lists every candidate with its first reason.
            VerificationError: a file of the chosen variant is missing or not what the manifest says.
            ValueError, TypeError: an argument is none of the above.
        """
        request = make_request(
            self.name or str(self.path),
            model,
            self._held(model),
            ep=ep,
            device=device,
            variant=variant,
            prefer=prefer,
            fallback=fallback,
            verify=verify,
            provider_options=provider_options,
            session_options=session_options,
            custom_ops=custom_ops,
        )
        rejected: list[Rejection] = []
        for choice in choices(request, rejected):
            return choice
        raise failure(request, rejected)

    def session(
        self,
        model: str,
        *,
        ep: str | None = None,
        device: str | None = None,
        variant: str | None = None,
        prefer: str | Sequence[str] | OrtExecutionProviderDevicePolicy | None = None,
        fallback: Fallback | Compile = "source",
        verify: Verify = "once",
        provider_options: Mapping[str, str] | None = None,
        session_options: Mapping[str, str] | SessionOptions | None = None,
        data: Data | ContextData | None = None,
        as_bytes: bool = False,
        custom_ops: Sequence[str | PathLike[str]] = (),
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
            prefer: which goes first.
            fallback: what to do when no compiled variant fits or opens.
            verify: when to check digests.
            provider_options: for the EP.
            session_options: as in `lookup`, or the caller's own `onnxruntime.SessionOptions` without providers. That
                object is changed, and serves one attempt: a creation that fails is then an error.
            data: where context binaries come from: "files", which the EP opens itself; "callbacks", through which it
                gets the very bytes that were checked; an application's own storage (see `contextdata`). Without it:
                as the variant was compiled.
            as_bytes: hand the ONNX file to ORT as bytes, the very ones whose digest was checked; what it refers to
                is still found beside it.
            custom_ops: as in `lookup`; the session gets them registered.

        Raises:
            LookupFailure, VerificationError, ValueError, TypeError: as `lookup`.
        """
        request = make_request(
            self.name or str(self.path),
            model,
            self._held(model),
            ep=ep,
            device=device,
            variant=variant,
            prefer=prefer,
            fallback=fallback,
            verify=verify,
            provider_options=provider_options,
            session_options=session_options,
            data=data,
            as_bytes=as_bytes,
            custom_ops=custom_ops,
        )
        rejected: list[Rejection] = []
        cause: BaseException | None = None
        for choice in choices(request, rejected):
            try:
                session, made = sessions.create(choice, request.base)
            except sessions.CreationFailed as failed:
                rejected.append(failed.rejection)
                cause = failed.cause or failed.__cause__
                if request.fallback == "error" or request.base is not None:
                    break
                log().warning("%s: %s: the variant %s does not open: %s", self.name, model, choice.variant, failed)
                continue
            sessions.remember(session, replace(made, rejected=tuple(rejected)))
            return session
        raise failure(request, rejected) from cause

    def sessions(self, *models: str, **how: Any) -> dict[str, InferenceSession]:
        """Sessions of several models, which hold once what a weight-sharing group of them shares.

        All members of a group that are opened in one call get ONNX Runtime's ``ep.share_ep_contexts``, so that the EP
        reads their binary once. What is no whole group, or does not open so, is opened as `session` does, with a
        warning in the log where it was one; `explain(...).session_options` tells.

        Args:
            *models: names of models, or model.variant where a group has several variants of one; each once.
            **how: further arguments of `session`, for all of them; session_options as a mapping.

        Returns:
            The sessions by the given names.

        Raises:
            TypeError: `how` holds the caller's own SessionOptions, which serve one session.
            LookupFailure, VerificationError, ValueError, TypeError: as `session`.
        """
        from hatch_epctx.runtime.sharing import open_together

        entries = as_texts(how.pop("session_options", None), "session_options")
        beyond = {name: how.pop(name) for name in ("data", "as_bytes") if name in how}
        asked = {name: self._asked(name, how) for name in models}

        def share(name: str, choice: Choice, over: Mapping[str, str]) -> InferenceSession:
            exact = {**asked[name], "variant": choice.variant, "fallback": "error"}
            return self.session(**exact, **beyond, session_options={**entries, **over})

        def alone(name: str) -> InferenceSession:
            return self.session(**asked[name], **beyond, session_options=entries)

        found = {name: self.lookup(**asked[name], session_options=entries) for name in models}
        return open_together(found, share, alone)

    def _asked(self, name: str, how: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of `session` for a name of `sessions`: a model, or model.variant."""
        check_text(model=name)
        model, dot, variant = name.rpartition(".")
        if not dot or name in self.models:
            return {**how, "model": name}
        return {**how, "model": model, "variant": variant}

    def genai(
        self,
        folder: str | PathLike[str],
        *,
        out: str | PathLike[str] | None = None,
        parts: Mapping[str, str] | None = None,
        **how: Any,
    ) -> GenaiModel:
        """A model folder of onnxruntime-genai whose parts are variants of this package, chosen for this machine.

        Args:
            folder: a folder with genai_config.json, tokenizer files and so on.
            out: a new or empty folder that becomes a whole copy, for applications in other languages; without it a
                private folder of links is made and kept while it is in use.
            parts: names of models by part of the configuration, such as {"decoder": "llm"}; without it a part is the
                model that is called like its file.
            **how: further arguments of `lookup`, for all parts.

        Raises:
            LookupFailure: no such folder or part, no part is a model of the package, or as `lookup`.
            VerificationError, ValueError, TypeError: as `lookup`.
        """
        from hatch_epctx.runtime.genai import make_folder

        place, target = Path(folder).absolute(), Path(out).absolute() if out is not None else None
        return make_folder(place, lambda model: self.lookup(model, **how), self.models, parts or {}, target)

    def _held(self, model: str) -> tuple[Held, ...]:
        check_text(model=model)
        held = variants_of(self.folders, model)
        if not held:
            raise LookupFailure(
                f"there is no model {model!r}",
                where=self.name or str(self.path),
                expected=f"one of {', '.join(self.models)}",
                remedy=suggest(model, self.models),
                reason="unknown-model",
            )
        return held
