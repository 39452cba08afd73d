"""Making sessions that are what was asked for: never compiled at start, never silently on another EP."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from hatch_epctx.digest import digest_bytes
from hatch_epctx.errors import LookupFailure, VerificationError
from hatch_epctx.files import read_bounded
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


_MODEL_LIMIT: Final = 1 << 31
"""Bytes of an ONNX file: protobuf takes no more."""
_BESIDE: Final = ("ep.context_file_path", "session.model_external_initializers_file_folder_path")
"""Where ORT looks for what a model that comes as bytes refers to: context binaries by the ONNX file's path, external
weights by its folder (ORT 1.32, onnxruntime_session_options_config_keys.h)."""


def create(choice: Choice, base: SessionOptions | None, *, as_bytes: bool = False) -> InferenceSession:
    """The session of a choice.

    ORT's Python class retries a failed creation, and a failed run, on the CPU EP: that is switched off.

    Args:
        choice: what to open.
        base: the caller's own SessionOptions; it is changed.
        as_bytes: read the ONNX file here and hand its bytes on.

    Raises:
        CreationFailed: reason creation-failed, or silent-fallback when another EP took the session over.
        LookupFailure: reason bad-option.
        VerificationError: the ONNX file's bytes are not what the manifest says.
    """
    ort = plugins.import_onnxruntime()
    entries = dict(choice.session_options)
    model: str | bytes = str(choice.path)
    if as_bytes:
        model = _bytes_of(choice)
        entries |= dict(zip(_BESIDE, (str(choice.path), str(choice.path.parent)), strict=True))
    options = session_options(ort, entries, base)
    arguments: dict[str, Any] = {"enable_fallback": 0}
    try:
        if choice.ep_device is not None:
            options.add_provider_for_devices([choice.ep_device], dict(choice.provider_options))
        else:
            arguments["providers"] = [(choice.ep, dict(choice.provider_options))]
        session: InferenceSession = ort.InferenceSession(model, options, **arguments)
    except Exception as error:  # ORT's errors have no common base below Exception
        note = f" ({choice.note})" if choice.note else ""
        raise CreationFailed(_rejection(choice, "creation-failed", f"ONNX Runtime: {error}{note}")) from error
    providers = session.get_providers()
    if not providers or providers[0] != choice.ep:
        text = f"the session runs on {', '.join(providers) or 'nothing'} and not on {choice.ep}"
        raise CreationFailed(_rejection(choice, "silent-fallback", text))
    return session


def _bytes_of(choice: Choice) -> bytes:
    """Content of the ONNX file, checked against the digest that the manifest records."""
    try:
        data = read_bounded(choice.path, _MODEL_LIMIT)
    except OSError as error:
        found = f"cannot be read: {error.strerror or error}"
        raise VerificationError(found, where=str(choice.path), reason="unreadable") from error
    if choice.digest and digest_bytes(data) != choice.digest:
        expected = f"{choice.digest} as the manifest records"
        raise VerificationError("other bytes", where=str(choice.path), expected=expected, reason="modified-file")
    return data


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
