"""Child of test_real_models: open one model of a package folder, run it, and compare with the CPU EP on its source.

    python compare_with_cpu.py PACKAGE_FOLDER MODEL_NAME SOURCE EP

Prints one line of JSON last: variant, providers and, for each output, the mean and the largest absolute difference
relative to the largest expected value. A process of its own, because native code may crash.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import onnxruntime
from models import MODELS

from hatch_epctx import runtime


def differences(outputs: list[np.ndarray], expected: list[np.ndarray]) -> list[dict[str, float]]:
    found = []
    for got, wanted in zip(outputs, expected, strict=True):
        assert got.shape == wanted.shape, (got.shape, wanted.shape)
        assert np.isfinite(got).all()
        scale = max(float(np.abs(wanted).max(initial=0.0)), 1e-12)
        difference = np.abs(got.astype(np.float64) - wanted.astype(np.float64)) / scale
        found.append({"mean": float(difference.mean()), "largest": float(difference.max(initial=0.0))})
    return found


def main(folder: str, name: str, source: str, ep: str) -> int:
    model = MODELS[name]
    session = runtime.open(folder).session("model", ep=ep, fallback="error")
    choice = runtime.explain(session)
    settings = model.overrides(onnxruntime)
    reference = onnxruntime.InferenceSession(source, settings, providers=["CPUExecutionProvider"])
    feed = model.feed(model.static(reference.get_inputs()))
    outputs = session.run(None, {value.name: feed[value.name] for value in session.get_inputs()})
    result = {
        "variant": choice.variant,
        "providers": session.get_providers(),
        "differences": differences(outputs, reference.run(None, feed)),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
