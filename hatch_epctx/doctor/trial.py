"""A trial of one EP: one node, compiled, opened and run, by the same jobs and workers as a project's models.

It says that ONNX Runtime, the EP, its libraries and its driver go together on this machine. It does not say that a
certain model compiles. Nothing is kept of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.compile import compile_variant, load_check, scan
from hatch_epctx.config import single_project
from hatch_epctx.errors import EpctxError
from hatch_epctx.source import read_source

if TYPE_CHECKING:
    from pathlib import Path

    from hatch_epctx.config import Variant
    from hatch_epctx.providers import Provider
    from hatch_epctx.source import SourceModel
    from hatch_epctx.store import Store
    from hatch_epctx.worker.protocol import ScannedModel

__all__ = ["ONE_NODE", "try_ep"]

ONE_NODE: Final = bytes.fromhex(
    "08083a500a0f0a017812017922075369676d6f696412036f6e655a1b0a017812160a14080112100a0208010a0208030a0208"
    "080a020808621b0a017912160a14080112100a0208010a0208030a0208080a02080842040a00100d"
)
"""An ONNX file: y = Sigmoid(x), float32 [1, 3, 8, 8], opset 13."""
_TIMEOUT: Final = 120.0
"""Seconds for each step."""


def try_ep(provider: Provider, device: str, store: Store, *, simulated: bool) -> dict[str, Any]:
    """Let `provider` compile the node for `device`, and run the result.

    Returns:
        `compiles` and `runs` (None: it was not tried), `seconds` of the compile, of opening and of one run, `simulated`
        as given, and in `message` what went wrong; empty where nothing did.
    """
    found: dict[str, Any] = {"device": device, "compiles": False, "runs": None, "simulated": simulated}
    found |= {"seconds": {}, "message": ""}
    try:
        with store.staging() as place, store.staging() as folder:
            variant, source = _declared(provider, device, place.path, store)
            compiled = compile_variant(variant, source, folder.path, option_digests={})
            found |= {"compiles": True, "runs": False, "seconds": compiled.facts["startup"]}
            facts = load_check(variant, folder.path)
            found["seconds"] = {**found["seconds"], **facts["startup"]}
            if facts["load_check"] == "passed":
                found["runs"] = True
            else:
                found |= {"runs": None, "message": facts["load_check"]}
    except EpctxError as error:
        found["message"] = str(error)
    return found


def _declared(provider: Provider, device: str, folder: Path, store: Store) -> tuple[Variant, SourceModel]:
    path = folder / "one-node.onnx"
    path.write_bytes(ONE_NODE)
    table = {
        "ep": provider.names[0],
        "device": device,
        "provider-options": dict(provider.trial_options),
        "load-check": False,
        "timeout": _TIMEOUT,
    }
    project = single_project(path, table, model={}, environ={})

    def read(file: Path, digest: str) -> ScannedModel:
        with store.staging() as staging:
            return scan(file, digest, staging.path, place="the trial")

    return project.variants[0], read_source(path, place="the trial", store=store, scan=read)
