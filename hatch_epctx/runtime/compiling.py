"""Compile at first use: which rejected variant is worth compiling on this machine, from which source.

A variant whose EP is here but whose compiled form is not for this machine (another SoC, another version of the EP, an
EP that refuses it) is compiled anew from the shipped source model with the options that its manifest records. What is
left of this floor is choosing; the compile itself is `hatch_epctx.firstuse`, imported by name when it is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from hatch_epctx.errors import EpctxError, LookupFailure
from hatch_epctx.runtime import customops, plugins, qnn
from hatch_epctx.runtime.choice import Choice, Rejection
from hatch_epctx.runtime.selection import device_for, source_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hatch_epctx.manifest import Facts, Variant
    from hatch_epctx.runtime.folders import Held
    from hatch_epctx.runtime.request import Request

__all__ = ["Compile", "compiled_choices"]

_WORTH: Final = ("incompatible", "sdk-mismatch", "soc-mismatch", "creation-failed")
"""Reasons against a variant that compiling it here may do away with."""


def _silent(text: str) -> None:
    """No progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile:
    """How to compile at first use: `package.session(..., fallback=runtime.Compile(timeout=60))`.

    It needs the build extra and the shipped source model, and takes seconds to minutes. The result stays in the
    user's store within its limits; a session keeps what it uses.
    """

    progress: Callable[[str], None] = _silent
    """Called with one line of progress, from any thread, at least every few seconds."""
    timeout: float | None = None
    """Seconds for everything, waiting for another process that compiles the same included."""
    cancel: threading.Event | None = None
    """Ends it when it is set."""
    otherwise: Literal["error", "source"] = "error"
    """What to do when that fails too: "source" runs the source model on the CPU EP."""


class _Kept:
    """Gives a lease up when nobody refers to it any more."""

    def __init__(self, lease: Any) -> None:
        self._lease = lease

    def __del__(self) -> None:
        self._lease.close()


def compiled_choices(request: Request, how: Compile, rejected: list[Rejection]) -> Iterator[Choice]:
    """Choices compiled on this machine, in the order of the variants. What fails goes to `rejected`.

    Raises:
        LookupFailure: reason missing-extra or not-available: this process cannot compile at all.
    """
    against = {(r.variant, r.package): r for r in rejected if r.reason in _WORTH}
    worth = [item for item in request.held if (item.variant.name, item.folder.companion) in against]
    if not worth:
        return
    source = _source(request)
    firstuse = _firstuse()
    for item in worth:
        try:
            yield _compiled(firstuse, request, how, item, source, rejected)
        except EpctxError as error:
            text = f"compiling it here: {' '.join(str(error).split())}"
            package = item.folder.companion
            rejected.append(Rejection(variant=item.variant.name, reason="compile-failed", text=text, package=package))
            if error.reason in ("cancelled", "timeout"):
                return


def _firstuse() -> Any:
    if getattr(sys, "frozen", False):
        raise LookupFailure(
            "fallback='compile' starts Python processes, and a frozen application has no Python to start",
            remedy="Use 'source' and ship the source model.",
            reason="not-available",
        )
    try:
        return import_module("hatch_epctx.firstuse")
    except ModuleNotFoundError as error:
        raise LookupFailure(
            f"fallback='compile' needs the build extra: the module {error.name!r} is not installed",
            remedy='Install it: pip install "hatch-epctx[build]"; or use another fallback.',
            reason="missing-extra",
        ) from error


def _source(request: Request) -> Path:
    source = source_of(request.held, request.wish.preference)
    if source is None or source.variant.facts is None:
        raise LookupFailure(
            "fallback='compile' needs the source model, and the package ships none",
            where=f"{request.package}.{request.model}",
            remedy="Set ship-source = true on the model.",
            reason="no-source",
        )
    place, _hold = source.folder.ready(source.variant.facts.artifacts, request.verify, everything=True)
    return place / source.variant.model_file


def _compiled(
    firstuse: Any, request: Request, how: Compile, item: Held, source: Path, rejected: list[Rejection]
) -> Choice:
    variant = item.variant
    facts = variant.facts
    if facts is None:
        raise LookupFailure("records no options (made by another tool)", reason="unverifiable")
    _refuse_files(facts)
    custom_ops = _libraries(request, variant)
    how.progress(f"{request.model}.{variant.name}: compiling for this machine")
    made = firstuse.compile_now(
        source,
        target=_target(variant, facts),
        model=_model(facts) | _custom_ops(facts),
        progress=how.progress,
        timeout=how.timeout,
        cancel=how.cancel,
    )
    device = device_for(item, request.wish)
    return Choice(
        model=request.model,
        variant=variant.name,
        ep=variant.ep,
        device=device.device.type.name.lower() if device is not None else facts.device or "cpu",
        path=made.model,
        beside=made.beside,
        provider_options=MappingProxyType({**made.provider_options, **request.provider}),
        session_options=MappingProxyType({**made.session_options, **request.entries}),
        rejected=tuple(rejected),
        package=item.folder.package,
        custom_ops=custom_ops,
        compiled_here=True,
        note=f"compiled on this machine: identity {made.identity[:12]}, {made.status}",
        hold=_Kept(made.lease),
        ep_device=device,
    )


def _libraries(request: Request, variant: Variant) -> tuple[Path, ...]:
    try:
        customops.check_packages(variant, request.provider)
        return customops.libraries(variant, request.custom_ops)[0]
    except customops.Missing as missing:
        raise LookupFailure(missing.text, reason=missing.reason) from missing


def _custom_ops(facts: Facts) -> dict[str, Any]:
    """The modules that the compile needs; files were refused."""
    needs = facts.runtime.get("custom_ops", ())
    return {"custom-ops": [need["module"] for need in needs]} if needs else {}


def _refuse_files(facts: Facts) -> None:
    """Refuse a compile that would read what only the building machine had."""
    options = dict(facts.options.get("provider_options", {}))
    files = sorted(name for name, text in options.items() if text in ("file", "folder"))
    if files:
        found = f"the compile read what only the building machine has: {', '.join(files)}"
        raise LookupFailure(found, reason="not-available")
    needs = facts.runtime.get("custom_ops", ())
    if isinstance(needs, list | tuple) and any(isinstance(need, Mapping) and "file" in need for need in needs):
        found = "the compile read a library of custom operators that only the building machine has"
        raise LookupFailure(found, reason="not-available")
    if any(str(step).startswith("quantize") for step in facts.options.get("prepare", ())):
        raise LookupFailure("the compile quantised by samples that the package does not carry", reason="not-available")


def _target(variant: Variant, facts: Facts) -> dict[str, Any]:
    """The target's table as it stood when the variant was built, but for the SoC, which is this machine's."""
    options = facts.options
    compile_options: dict[str, Any] = dict(options.get("provider_options", {}))
    runtime = {name: text for name, text in variant.provider_options.items() if compile_options.get(name) != text}
    if plugins.known(variant.ep).key == "qnn" and (soc := qnn.machine_soc()) is not None:
        compile_options.pop("htp_arch", None)
        compile_options["soc_model"] = str(soc.model)
    table = {
        "ep": variant.ep,
        "provider-options": compile_options,
        "runtime-options": runtime,
        "session-options": dict(options.get("session_options", {})),
        "embed": bool(options.get("embed", False)),
        "context-io": str(options.get("context_io", "files")),
        "optimization": options.get("optimization"),
        "device": facts.device,
    }
    return {name: value for name, value in table.items() if value is not None}


def _model(facts: Facts) -> dict[str, Any]:
    options = facts.options
    return {
        "free-dimensions": dict(options.get("free_dimensions", {})),
        "free-dimension-denotations": dict(options.get("free_dimension_denotations", {})),
        "input-shapes": dict(options.get("input_shapes", {})),
        "prepare": list(options.get("prepare", ())),
    }
