"""Fixed inputs of identities, and the golden files made of them.

    python tests/identity_support.py

writes tests/golden/identity-*.json anew. Do that only with a reason that stands in CHANGELOG.md: whoever has compiled
models in a cache compiles all of them again (CONTRIBUTING.md, "Golden files").
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_epctx.config.variant import Variant
from hatch_epctx.digest import digest_bytes
from hatch_epctx.identity import Identity, identify
from hatch_epctx.providers import OptionValue, find_provider
from hatch_epctx.source import SourceModel
from hatch_epctx.toolchain import Component, Toolchain

if TYPE_CHECKING:
    from collections.abc import Mapping

GOLDEN = Path(__file__).parent / "golden"
NOWHERE = Path("/nowhere/at/all")

SCAN: Any = {
    "inputs": [{"name": "x", "type": "float", "shape": [1, 3, 8, 8]}],
    "outputs": [{"name": "y", "type": "float", "shape": [1, 5]}],
    "external_data": [],
    "nodes": 5,
    "opsets": {"": 17},
    "denotations": [],
    "context_sources": [],
    "embedded_size": 512,
}


def fake_digest(text: str) -> str:
    """A digest of nothing that exists."""
    return digest_bytes(text.encode())


def variant(**changes: Any) -> Variant:
    """A variant of OpenVINO, with `changes`."""
    fields: dict[str, Any] = {
        "model": "detector",
        "target": "intel-cpu",
        "base_target": "intel-cpu",
        "source": NOWHERE / "detector.onnx",
        "provider": find_provider("openvino"),
        "device": "cpu",
        "provider_options": (
            OptionValue(
                name="load_config", text='{"CPU":{"INFERENCE_PRECISION_HINT":"f32"}}', kind="json-or-file", phase="both"
            ),
        ),
        "optimization": "basic",
    }
    return Variant(**{**fields, **changes})


def source(**changes: Any) -> SourceModel:
    """A source model in one file, with `changes`."""
    fields: dict[str, Any] = {
        "path": NOWHERE / "detector.onnx",
        "digest": fake_digest("detector.onnx"),
        "size": 1234,
        "external": (),
        "scan": SCAN,
    }
    return SourceModel(**{**fields, **changes})


def toolchain(**changes: Any) -> Toolchain:
    """OpenVINO on a CPU, with `changes`."""
    fields: dict[str, Any] = {
        "onnxruntime": Component(distribution="onnxruntime", version="1.32.0", digest=fake_digest("onnxruntime")),
        "onnx_version": "1.23.2",
        "ep": Component(distribution="onnxruntime-ep-openvino", version="1.8.1", digest=fake_digest("openvino")),
        "isa": ("avx2", "fma", "sse4_2"),
        "cores": 8,
        "topology": {"efficiency-cores": 0, "numa-nodes": 1, "packages": 1, "physical-cores": 4},
        "device": {
            "device-id": 0,
            "metadata": {"FULL_DEVICE_NAME": "Some CPU"},
            "type": "cpu",
            "vendor": "GenuineIntel",
            "vendor-id": 32902,
        },
        "os": "linux",
        "architecture": "x86_64",
    }
    return Toolchain(**{**fields, **changes})


@dataclass(frozen=True)
class Case:
    """One golden file: inputs that never change."""

    name: str
    variant: Variant
    source: SourceModel = field(default_factory=source)
    toolchain: Toolchain = field(default_factory=toolchain)
    option_digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return GOLDEN / f"identity-{self.name}.json"

    def identity(self) -> Identity:
        return identify(self.variant, self.source, self.toolchain, self.option_digests)


def cases() -> tuple[Case, ...]:
    """All golden cases."""
    return (
        Case(name="openvino", variant=variant()),
        Case(
            name="qnn",
            variant=variant(
                target="snapdragon-60",
                base_target="snapdragon",
                provider=find_provider("qnn"),
                device="npu",
                provider_options=(
                    OptionValue(name="backend_type", text="htp", kind="enum", phase="both"),
                    OptionValue(name="htp_graph_finalization_optimization_mode", text="3", kind="enum"),
                    OptionValue(name="soc_model", text="60", kind="enum"),
                ),
                session_options={"session.disable_cpu_ep_fallback": "1"},
                free_dimensions={"batch": 1, "height": 224},
                embed=True,
            ),
            toolchain=toolchain(
                ep=Component(distribution="onnxruntime-qnn", version="2.7.0", digest=fake_digest("qnn")),
                sdk={"qnn": "2.51.0"},
                isa=(),
                cores=None,
                topology={},
                device={},
            ),
        ),
        Case(
            name="files",
            variant=variant(
                provider_options=(
                    OptionValue(name="data", text="/home/u/data.bin", kind="file", file=NOWHERE / "data.bin"),
                    OptionValue(name="tree", text="tree", kind="folder", folder=NOWHERE / "tree"),
                ),
                runtime_options=(OptionValue(name="threads", text="4", kind="int", phase="run"),),
                free_dimension_denotations={"DATA_BATCH": 1},
                env={"GREETING": "grüß dich \u20ac \U0001f600", "A": ""},
                optimization="extended",
                load_check=False,
            ),
            source=source(
                external=(("a/weights.data", fake_digest("a")), ("weights.data", fake_digest("w"))),
            ),
            option_digests={"data": fake_digest("data"), "tree": fake_digest("tree")},
        ),
        Case(
            name="source",
            variant=variant(
                target="source",
                base_target="source",
                provider=find_provider("cpu"),
                provider_options=(),
                is_source=True,
            ),
            toolchain=toolchain(ep=None, isa=(), cores=None, topology={}, device={}),
        ),
    )


def write() -> None:
    """Write the golden files."""
    for case in cases():
        identity = case.identity()
        text = json.dumps({"digest": identity.digest, "document": identity.document}, indent=2, ensure_ascii=False)
        case.path.write_text(f"{text}\n", encoding="utf-8")
        print(f"{identity.digest}  {case.path.name}")


if __name__ == "__main__":
    write()
