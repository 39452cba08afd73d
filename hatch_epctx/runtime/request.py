"""One call's arguments, checked: what is asked for, how strictly, and what goes over the manifest's options."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from hatch_epctx.errors import LookupFailure, suggest
from hatch_epctx.runtime import plugins
from hatch_epctx.runtime.compiling import Compile
from hatch_epctx.runtime.contextdata import ContextData, Data, is_storage
from hatch_epctx.runtime.options import as_texts
from hatch_epctx.runtime.preference import preference
from hatch_epctx.runtime.selection import Wish
from hatch_epctx.runtime.verify import Verify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnxruntime.capi.onnxruntime_pybind11_state import SessionOptions

    from hatch_epctx.runtime.folders import Held

__all__ = ["Fallback", "Request", "Verify", "check_text", "make_request"]

Fallback = Literal["error", "source", "compile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What `Package.lookup` and `Package.session` were called with."""

    package: str
    model: str
    held: tuple[Held, ...]
    wish: Wish
    fallback: Fallback
    how: Compile
    """How to compile, where `fallback` says so."""
    verify: Verify
    provider: Mapping[str, str]
    entries: Mapping[str, str]
    base: SessionOptions | None = None
    """The caller's own SessionOptions, changed by the first attempt."""
    data: Data | ContextData | None = None
    """Where context binaries come from; None: as the variant was compiled."""
    as_bytes: bool = False
    custom_ops: tuple[Path, ...] = ()
    """Libraries of custom operators that the application names."""


def make_request(
    package: str,
    model: str,
    held: tuple[Held, ...],
    *,
    ep: str | None,
    device: str | None,
    variant: str | None,
    prefer: object,
    fallback: str | Compile,
    verify: str,
    provider_options: Mapping[str, str] | None,
    session_options: Mapping[str, str] | SessionOptions | None,
    data: Data | ContextData | None = None,
    as_bytes: bool = False,
    custom_ops: Sequence[str | PathLike[str]] = (),
) -> Request:
    """Check a call's arguments.

    Raises:
        LookupFailure: no such variant, an option of the caller's that cannot be, or something that is not available.
        ValueError, TypeError: an argument is none of its kind.
    """
    how = fallback if isinstance(fallback, Compile) else Compile()
    fallback = "compile" if isinstance(fallback, Compile) else fallback
    _check_words(fallback=(fallback, get_args(Fallback)), verify=(verify, get_args(Verify)))
    if device is not None:
        _check_words(device=(device, ("cpu", "gpu", "npu")))
    if data is not None and not is_storage(data):
        _check_words(data=(str(data), (*get_args(Data), "an object with a method read(name, digest, size)")))
    check_text(ep=ep, variant=variant)
    _check_variant(variant, held, f"{package}.{model}")
    base, entries = _split(session_options)
    return Request(
        package=package,
        model=model,
        held=held,
        wish=Wish(
            ep=plugins.full_name(ep) if ep is not None else None,
            device=device,
            variant=variant,
            unverified=verify == "never",
            preference=preference(prefer),
        ),
        fallback=cast("Fallback", fallback),
        how=how,
        verify=cast("Verify", verify),
        provider=as_texts(provider_options, "provider_options"),
        entries=entries,
        base=base,
        data=data,
        as_bytes=as_bytes,
        custom_ops=_paths(custom_ops),
    )


def _paths(given: Sequence[str | PathLike[str]]) -> tuple[Path, ...]:
    if isinstance(given, str | PathLike):
        raise TypeError(f"custom_ops={given!r}; expected a list of paths")
    return tuple(Path(path).absolute() for path in given)


def check_text(**given: object) -> None:
    """Refuse what is neither text nor left out.

    Raises:
        TypeError: naming the argument.
    """
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{name} is {type(value).__name__}; expected str")


def _check_words(**words: tuple[str, tuple[str, ...]]) -> None:
    for name, (value, known) in words.items():
        if value not in known:
            raise ValueError(f"{name}={value!r}; expected one of {', '.join(known)}")


def _check_variant(variant: str | None, held: tuple[Held, ...], where: str) -> None:
    names = list(dict.fromkeys(item.variant.name for item in held))
    if variant is not None and variant not in names:
        raise LookupFailure(
            f"the model has no variant {variant!r}",
            where=where,
            expected=f"one of {', '.join(names)}",
            remedy=suggest(variant, names),
            reason="unknown-variant",
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
