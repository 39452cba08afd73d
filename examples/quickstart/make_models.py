"""Make the two models of this example: ``python make_models.py [FOLDER]`` writes into ``models/`` by default.

The weights are untrained but fixed: the same seed, IR version and opset give the same bytes on every machine, so
running the script again reproduces the committed files. Needs onnx and numpy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper

SEED = 20240229
OPSET = 17
IR_VERSION = 9

CLASSES = 10
PIXELS = 32
TOKENS = 16
VOCABULARY = 256
WIDTH = 32
HEADS = 2


class Builder:
    """Collects nodes and initialisers; weights come from one seeded stream, in the order of the calls."""

    def __init__(self, seed: int) -> None:
        # random_sample() of the legacy generator is frozen by numpy's policy and uses no function of libm: the
        # numbers are the same everywhere, which normal deviates are not.
        self.stream = np.random.RandomState(seed)
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []

    def weight(self, name: str, *shape: int, fan_in: int) -> str:
        """A weight of variance 1 / fan_in, uniformly distributed."""
        span = 2.0 * np.sqrt(3.0 / fan_in)
        return self.constant(name, (self.stream.random_sample(shape) - 0.5) * span)

    def constant(self, name: str, value: object, kind: type = np.float32) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype=kind), name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def model(
        self, name: str, feed: tuple[str, int, list[int | str]], result: tuple[str, list[int | str]]
    ) -> ModelProto:
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(*feed)],
            [helper.make_tensor_value_info(result[0], TensorProto.FLOAT, result[1])],
            self.weights,
        )
        model = helper.make_model(
            graph,
            producer_name="acme-vision",
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )
        checker.check_model(model, full_check=True)
        return model


def classifier() -> ModelProto:
    """A convolutional image classifier: image [batch, 3, 32, 32] in 0..1, probabilities [batch, 10]."""
    build = Builder(SEED)
    last, channels = "image", 3
    for index, width in enumerate((16, 32, 48)):
        weight = build.weight(f"conv{index}.weight", width, channels, 3, 3, fan_in=channels * 9)
        bias = build.weight(f"conv{index}.bias", width, fan_in=width)
        last = build.node("Conv", [last, weight, bias], f"conv{index}", strides=[2, 2], pads=[1, 1, 1, 1])
        last = build.node("Relu", [last], f"relu{index}")
        channels = width
    last = build.node("GlobalAveragePool", [last], "pool")
    last = build.node("Flatten", [last], "features", axis=1)
    # Larger last weights: an untrained head would otherwise give nearly equal probabilities.
    head = build.weight("head.weight", channels, CLASSES, fan_in=1)
    bias = build.weight("head.bias", CLASSES, fan_in=CLASSES)
    last = build.node("Gemm", [last, head, bias], "logits")
    build.node("Softmax", [last], "probabilities", axis=1)
    feed = ("image", TensorProto.FLOAT, ["batch", 3, PIXELS, PIXELS])
    return build.model("classifier", feed, ("probabilities", ["batch", CLASSES]))


def encoder() -> ModelProto:
    """A transformer block over UTF-8 bytes: tokens [batch, 16] int64 in 0..255, embedding [batch, 32]."""
    build = Builder(SEED + 1)
    table = build.weight("embedding.table", VOCABULARY, WIDTH, fan_in=1)
    positions = build.weight("embedding.positions", 1, TOKENS, WIDTH, fan_in=4)
    last = build.node("Gather", [table, "tokens"], "embedded", axis=0)
    last = build.node("Add", [last, positions], "placed")
    attended = attention(build, layer_norm(build, last, "norm0"))
    last = build.node("Add", [last, attended], "residual0")
    hidden = layer_norm(build, last, "norm1")
    hidden = linear(build, hidden, "up", WIDTH, 2 * WIDTH)
    hidden = build.node("Relu", [hidden], "up.relu")
    hidden = linear(build, hidden, "down", 2 * WIDTH, WIDTH)
    last = build.node("Add", [last, hidden], "residual1")
    last = layer_norm(build, last, "norm2")
    build.node("ReduceMean", [last], "embedding", axes=[1], keepdims=0)
    feed = ("tokens", TensorProto.INT64, ["batch", TOKENS])
    return build.model("encoder", feed, ("embedding", ["batch", WIDTH]))


def linear(build: Builder, value: str, name: str, wide: int, out: int) -> str:
    product = build.node("MatMul", [value, build.weight(f"{name}.weight", wide, out, fan_in=wide)], f"{name}.product")
    return build.node("Add", [product, build.weight(f"{name}.bias", out, fan_in=wide)], name)


def layer_norm(build: Builder, value: str, name: str) -> str:
    scale = build.constant(f"{name}.scale", np.ones(WIDTH))
    shift = build.constant(f"{name}.shift", np.zeros(WIDTH))
    return build.node("LayerNormalization", [value, scale, shift], name, axis=-1, epsilon=1e-5)


def attention(build: Builder, value: str) -> str:
    """Self-attention with HEADS heads over [batch, TOKENS, WIDTH]."""
    split = build.constant("split", [0, TOKENS, HEADS, WIDTH // HEADS], np.int64)
    merge = build.constant("merge", [0, TOKENS, WIDTH], np.int64)
    scale = build.constant("attention.scale", 1.0 / np.sqrt(WIDTH / HEADS))
    parts = {}
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        flat = linear(build, value, part, WIDTH, WIDTH)
        flat = build.node("Reshape", [flat, split], f"{part}.split")
        parts[part] = build.node("Transpose", [flat], f"{part}.heads", perm=order)
    scores = build.node("MatMul", [parts["query"], parts["key"]], "scores")
    scores = build.node("Mul", [scores, scale], "scores.scaled")
    scores = build.node("Softmax", [scores], "attention.weights", axis=-1)
    mixed = build.node("MatMul", [scores, parts["value"]], "mixed")
    mixed = build.node("Transpose", [mixed], "mixed.tokens", perm=[0, 2, 1, 3])
    mixed = build.node("Reshape", [mixed, merge], "mixed.merged")
    return linear(build, mixed, "output", WIDTH, WIDTH)


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else Path(__file__).parent / "models"
    folder.mkdir(parents=True, exist_ok=True)
    for model in (classifier(), encoder()):
        path = folder / f"{model.graph.name}.onnx"
        path.write_bytes(model.SerializeToString(deterministic=True))
        print(f"{path.name}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
