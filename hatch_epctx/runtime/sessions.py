"""Making sessions that are what was asked for: never compiled at start, never silently on another EP."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from hatch_epctx.errors import LookupFailure, VerificationError
from hatch_epctx.runtime import plugins
from hatch_epctx.runtime.choice import Rejection
from hatch_epctx.runtime.contextdata import supports_callbacks
from hatch_epctx.runtime.epcaches import forget, offer
from hatch_epctx.runtime.options import session_options
from hatch_epctx.runtime.sharing import SHARE

if TYPE_CHECKING:
    from pathlib import Path

    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
    from onnxruntime.capi.onnxruntime_pybind11_state import SessionOptions

    from hatch_epctx.runtime.choice import Choice
    from hatch_epctx.runtime.contextdata import Supply

__all__ = ["CreationFailed", "create", "explain", "remember"]

_choices: WeakKeyDictionary[Any, Choice] = WeakKeyDictionary()
_lock = threading.Lock()


class CreationFailed(Exception):  # a finding; the look-up goes on or turns it into a LookupFailure
    """ORT did not make the session that was asked for."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.text)
        self.rejection = rejection
        self.cause: BaseException | None = None
        """What the application's own storage raised, if that was it."""


_BESIDE: Final = ("ep.context_file_path", "session.model_external_initializers_file_folder_path")
"""Where ORT looks for what a model that comes as bytes refers to: context binaries by the ONNX file's path, external
weights by its folder (ORT 1.32, onnxruntime_session_options_config_keys.h)."""


def create(choice: Choice, base: SessionOptions | None) -> tuple[InferenceSession, Choice]:
    """The session of a choice, and the choice as it was made. `base` is the caller's own SessionOptions and is changed.

    ORT's Python class retries a failed creation, and a failed run, on the CPU EP: that is switched off. One that fails
    with the EP's cache is made again without it; not with the caller's own SessionOptions, which serve once.

    Raises:
        CreationFailed: reason creation-failed; callbacks-unsupported when ORT or the EP has no callbacks and the
            choice wants them; silent-fallback when another EP took the session over.
        LookupFailure: reason bad-option.
        VerificationError: what a callback would have given is not what the manifest says.
    """
    if choice.ep_cache is None or base is not None:
        return _create(choice, base), choice
    try:
        return _create(choice, None), choice
    except CreationFailed as failed:
        plain = replace(choice, provider_options=choice.ep_cache.plain_options, ep_cache=None)
        try:
            session = _create(plain, None)
        except CreationFailed:
            raise failed from failed.__cause__
        forget(choice.ep_cache, failed.rejection.text)
        return session, plain


def _create(choice: Choice, base: SessionOptions | None) -> InferenceSession:
    ort = plugins.import_onnxruntime()
    entries = dict(choice.session_options)
    if choice.content is not None and _is_utf8(choice.path):
        entries |= dict(zip(_BESIDE, (str(choice.path), str(choice.path.parent)), strict=True))
    options = session_options(ort, entries, base)
    if choice.supply is not None:
        _register(ort, options, choice, choice.supply)
    if choice.ep_cache is not None:
        offer(options, choice.ep_cache)
    arguments: dict[str, Any] = {"enable_fallback": 0}
    try:
        if choice.ep_device is not None:
            options.add_provider_for_devices([choice.ep_device], dict(choice.provider_options))
        else:
            arguments["providers"] = [(choice.ep, dict(choice.provider_options))]
        for library in choice.custom_ops:
            options.register_custom_ops_library(str(library))
        model = choice.content if choice.content is not None else _utf8(choice.path)
        session: InferenceSession = ort.InferenceSession(model, options, **arguments)
    except Exception as error:  # ORT's errors have no common base below Exception
        raise _failed(choice, error) from error
    _check(choice, session)
    return session


def _utf8(path: Path) -> str:
    """The path as ONNX Runtime takes it.

    Raises:
        ValueError: a name on the way is no Unicode text, as Linux allows.
    """
    if not _is_utf8(path):
        raise ValueError(f"it takes paths in UTF-8 alone, and {str(path)!r} is none; install it elsewhere")
    return str(path)


def _is_utf8(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _register(ort: Any, options: SessionOptions, choice: Choice, supply: Supply) -> None:
    if not supports_callbacks(ort):
        text = f"onnxruntime {ort.__version__} has no EPContext data callbacks; 1.31 is the first that does"
        raise CreationFailed(_rejection(choice, "callbacks-unsupported", text))
    options.set_ep_context_data_read_func(supply, supply.limit)


def _failed(choice: Choice, error: Exception) -> Exception:
    cause = choice.supply.failure if choice.supply is not None else None
    if isinstance(cause, VerificationError):
        return cause
    reason = "callbacks-unsupported" if "does not support the registered EPContext data" in str(error) else ""
    note = f" ({choice.note})" if choice.note else ""
    failed = CreationFailed(_rejection(choice, reason or "creation-failed", f"ONNX Runtime: {error}{note}"))
    failed.cause = cause
    return failed


def _check(choice: Choice, session: InferenceSession) -> None:
    """Refuse a session that is not what was asked for."""
    providers = session.get_providers()
    if not providers or providers[0] != choice.ep:
        text = f"the session runs on {', '.join(providers) or 'nothing'} and not on {choice.ep}"
        raise CreationFailed(_rejection(choice, "silent-fallback", text))
    # Who shares may have what it needs from an earlier session of its group.
    shares = choice.session_options.get(SHARE) == "1"
    missed = choice.supply.names - choice.supply.served if choice.supply is not None and not shares else ()
    if missed:
        text = f"{choice.ep} made a session without asking for its context data {', '.join(sorted(missed))}"
        raise CreationFailed(_rejection(choice, "callbacks-unsupported", text))


def _rejection(choice: Choice, reason: str, text: str) -> Rejection:
    return Rejection(variant=choice.variant, reason=reason, text=" ".join(text.split()))


def remember(session: InferenceSession, choice: Choice) -> None:
    """Keep the choice for as long as the session lives."""
    with _lock:
        _choices[session] = choice


def explain(session: InferenceSession) -> Choice:
    """See `runtime.explain`."""
    with _lock:
        choice = _choices.get(session)
    if choice is None:
        raise LookupFailure("this session was not made by hatch_epctx.runtime", reason="unknown-session")
    return choice
