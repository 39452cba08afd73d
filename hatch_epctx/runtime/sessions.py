"""Making sessions that are what was asked for: never compiled at start, never silently on another EP."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hatch_epctx.errors import LookupFailure
from hatch_epctx.runtime import plugins
from hatch_epctx.runtime.choice import Rejection
from hatch_epctx.runtime.options import session_options

if TYPE_CHECKING:
    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession
    from onnxruntime.capi.onnxruntime_pybind11_state import SessionOptions

    from hatch_epctx.runtime.choice import Choice

__all__ = ["CreationFailed", "create", "explain", "remember"]

_choices: WeakKeyDictionary[Any, Choice] = WeakKeyDictionary()
_lock = threading.Lock()


class CreationFailed(Exception):  # a finding; the look-up goes on or turns it into a LookupFailure
    """ORT did not make the session that was asked for."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.text)
        self.rejection = rejection


def create(choice: Choice, base: SessionOptions | None) -> InferenceSession:
    """The session of a choice. `base` is the caller's own SessionOptions and is changed.

    ORT's Python class retries a failed creation, and a failed run, on the CPU EP: that is switched off.

    Raises:
        CreationFailed: reason creation-failed, or silent-fallback when another EP took the session over.
        LookupFailure: reason bad-option.
    """
    ort = plugins.import_onnxruntime()
    options = session_options(ort, choice.session_options, base)
    arguments: dict[str, Any] = {"enable_fallback": 0}
    try:
        if choice.ep_device is not None:
            options.add_provider_for_devices([choice.ep_device], dict(choice.provider_options))
        else:
            arguments["providers"] = [(choice.ep, dict(choice.provider_options))]
        session: InferenceSession = ort.InferenceSession(str(choice.path), options, **arguments)
    except Exception as error:  # ORT's errors have no common base below Exception
        note = f" ({choice.note})" if choice.note else ""
        raise CreationFailed(_rejection(choice, "creation-failed", f"ONNX Runtime: {error}{note}")) from error
    providers = session.get_providers()
    if not providers or providers[0] != choice.ep:
        text = f"the session runs on {', '.join(providers) or 'nothing'} and not on {choice.ep}"
        raise CreationFailed(_rejection(choice, "silent-fallback", text))
    return session


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
