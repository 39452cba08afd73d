"""Open both models as this machine can run them best, and compare their outputs with the CPU EP on the source model.

    python -m acme_vision.demo [--ep openvino|qnn|cpu]

Prints one line for each model and ends with exit code 1 when an output is further from the reference than the EP's
number format explains.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import onnxruntime

from hatch_epctx import runtime

TOLERANCES = {
    # Compiled for float32 (see INFERENCE_PRECISION_HINT in pyproject.toml): sums in another order, nothing else.
    "OpenVINOExecutionProvider": 1e-5,
    # The HTP computes float models in float16: 11 significant bits, so about 5e-4 for each step on values near 1.
    "QNNExecutionProvider": 5e-3,
    "CPUExecutionProvider": 0.0,
}
"""Largest absolute difference that counts as equal; all outputs of both models lie within -4 and 4."""


def inputs(model: str) -> dict[str, np.ndarray]:
    """One batch: a picture with a bright disc for the classifier, a text for the encoder."""
    if model == "classifier":
        rows, columns = np.mgrid[0:32, 0:32]
        disc = ((rows - 16) ** 2 + (columns - 12) ** 2 < 81).astype(np.float32)
        return {"image": np.stack([disc, 1.0 - disc, 0.5 * disc])[np.newaxis]}
    text = b"precompiled once".ljust(16)[:16]
    return {"tokens": np.frombuffer(text, dtype=np.uint8).astype(np.int64)[np.newaxis]}


def compare(package: runtime.Package, model: str, ep: str | None) -> bool:
    """Run `model` by the look-up's choice and by the CPU EP; print both and return whether they agree."""
    feed = inputs(model)
    # An EP that was asked for by name is wanted; without one, the source model on the CPU EP is the last resort.
    session = package.session(model, ep=ep, fallback="error" if ep else "source")
    choice = runtime.explain(session)
    (output,) = session.run(None, feed)
    source = package.lookup(model, variant="source").path
    (expected,) = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, feed)
    difference = float(np.abs(output - expected).max())
    tolerance = TOLERANCES[choice.ep]
    print(
        f"{model}: variant {choice.variant}, {choice.ep} on {choice.device}, output {output.shape}, "
        f"max difference to the CPU EP {difference:.2e} (tolerance {tolerance:.0e})"
    )
    if choice.note:
        print(f"{model}: {choice.note}")
    return difference <= tolerance


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="acme-vision", description="Run both models and compare with the CPU EP.")
    parser.add_argument("--ep", help="openvino, qnn or cpu; by default what the look-up chooses for this machine")
    options = parser.parse_args(arguments)
    onnxruntime.set_default_logger_severity(3)  # errors only: QNN warns at every start of what this machine lacks
    package = runtime.open("acme_vision")
    agree = [compare(package, model, options.ep) for model in ("classifier", "encoder")]
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
