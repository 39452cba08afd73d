"""Child of test_hatch: open every variant of an installed package, run it, and compare with the CPU EP on the source.

    python compare_sessions.py PACKAGE MODEL SOURCE

PACKAGE is an import name; SOURCE is the ONNX file that the model was compiled from. Each variant gets a session of the
look-up. Each EP gets one more of `onnxruntime.ModelPackageContext`, which knows nothing of this project and picks the
first of its variants. Prints one line of JSON: the package folder, and by way of opening and variant the largest
absolute difference to the CPU EP.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

from hatch_epctx import runtime

if TYPE_CHECKING:
    from pathlib import Path


OPTIONS = {"QNNExecutionProvider": {"backend_type": "htp"}}
"""ONNX Runtime makes the EP once before it has read the manifest, and QNN does not start without this one."""


def native_session(folder: Path, model: str, ep: str) -> tuple[str, Any]:
    """(variant, session) as ONNX Runtime picks and opens it by itself, by the first EP of the options."""
    options = onnxruntime.SessionOptions()
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == ep]
    if ep != "CPUExecutionProvider":
        options.add_provider_for_devices(devices[:1], OPTIONS.get(ep, {}))
    package = onnxruntime.ModelPackageContext(str(folder))
    component = package.select_component(model, onnxruntime.ModelPackageOptions(options))
    return component.get_selected_variant_name(), component.create_session(None)


def main(name: str, model: str, source: str) -> int:
    package = runtime.open(name)
    reference = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(3)
    feed = {
        value.name: random.normal(size=[dim if isinstance(dim, int) else 1 for dim in value.shape]).astype(np.float32)
        for value in reference.get_inputs()
    }
    expected = reference.run(None, feed)

    def difference(session: Any) -> float:
        outputs = session.run(None, feed)
        return max(float(np.abs(got - wanted).max()) for got, wanted in zip(outputs, expected, strict=True))

    found: dict[str, dict[str, float]] = {"lookup": {}, "native": {}}
    eps = []
    for variant in package.variants(model):
        session = package.session(model, variant=variant, fallback="error")
        found["lookup"][variant] = difference(session)
        eps.append(runtime.explain(session).ep)
    for ep in dict.fromkeys(eps):
        variant, session = native_session(package.path, model, ep)
        found["native"][variant] = difference(session)
    print(json.dumps({"folder": str(package.path), "differences": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
