"""The look-up: the right variant of a model on this machine, verified, as an `onnxruntime.InferenceSession`.

    from hatch_epctx import runtime

    package = runtime.open("acme_vision")          # an import name or a path
    session = package.session("detector")          # onnxruntime.InferenceSession
    choice = package.lookup("detector", ep="qnn")  # .path .variant .ep .device .provider_options .rejected

Needs the standard library and the application's own ONNX Runtime. Importing this module imports neither ONNX Runtime
nor anything slow: what the two functions need is loaded when they are first called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from os import PathLike

    from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession

    from hatch_epctx.runtime.choice import Choice, Rejection
    from hatch_epctx.runtime.compiling import Compile
    from hatch_epctx.runtime.package import Package

__all__ = ["Choice", "Compile", "Package", "Rejection", "explain", "open"]


def open(*names_or_paths: str | PathLike[str]) -> Package:  # noqa: A001  # reads as runtime.open()
    """Open the package folder of an installed import package, or the one at a path.

    A package that is opened by its import name brings its companions along: installed distributions that carry
    further variants of it (see `folders`).

    Args:
        *names_or_paths: an import name such as "acme_vision" or "acme.vision" (not imported, only found; editable
            installs too), or the path of a package folder, of the folder that holds one as ``_epctx``, or of its
            manifest.json. Text that could be both is an import name first. Several are one package: their models
            together, and for a model that several have the variants of all, the first one's first.

    Raises:
        LookupFailure: there is no such package or folder, or it holds no manifest.
        VerificationError: the manifest is malformed, or of a newer format.
    """
    from hatch_epctx.runtime.package import Package

    return Package.open(*names_or_paths)


def explain(session: InferenceSession) -> Choice:
    """The choice behind a session that `Package.session` made: variant, EP, options, what was rejected and why.

    Raises:
        LookupFailure: the session was made by something else.
    """
    from hatch_epctx.runtime.sessions import explain

    return explain(session)


def __getattr__(name: str) -> Any:
    """Load the classes of the interface when somebody asks for them by name."""
    if name not in ("Choice", "Compile", "Package", "Rejection"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hatch_epctx.runtime.choice import Choice, Rejection
    from hatch_epctx.runtime.compiling import Compile
    from hatch_epctx.runtime.package import Package

    return {"Choice": Choice, "Compile": Compile, "Package": Package, "Rejection": Rejection}[name]
