"""What the number of cores that an OpenVINO compile sees means for the result and for its inferences.

    python tests/benchmarks/bench_cores.py [MODEL ...]

Compiles each model with `cores = 1` and with all cores, and runs both results with all cores, by turns, each in a
process of its own: bytes that differ, threads that work, wall and processor time of one inference (each the best of
five runs: others may use the machine too), time of the compile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]

from models import MODELS, RealModel  # noqa: E402

from hatch_epctx.config import load_project  # noqa: E402
from hatch_epctx.pipeline import Pipeline  # noqa: E402
from hatch_epctx.store import Store  # noqa: E402
from hatch_epctx.wheel import write_package  # noqa: E402

DEFAULT = ("ppocr4-rec", "light-densenet121", "minilm-int8", "romanizer-decoder", "light-resnet50")
SCRIPT = Path(__file__).parents[1] / "inference_threads.py"


def build(model: RealModel, root: Path, cores: str) -> tuple[bytes, float, Path]:
    """(context binary, seconds of the compile, package folder)."""
    root.mkdir()
    dimensions = ", ".join(f'"{name}" = {size}' for name, size in model.free_dimensions.items())
    source = root / "model.onnx"
    found = model.path()
    assert found is not None
    source.symlink_to(found)
    (root / "pyproject.toml").write_text(
        '[project]\nname = "acme"\nversion = "1"\n[tool.epctx]\npackage = "acme"\n'
        f'[tool.epctx.models.model]\nsource = "model.onnx"\nfree-dimensions = {{ {dimensions} }}\n'
        f'[tool.epctx.targets.cpu]\nep = "openvino"\n{cores}\n'
        'provider-options = { load_config = { CPU = { INFERENCE_PRECISION_HINT = "f32" } } }\n'
    )
    project = load_project(root, environ=os.environ, state="wheel")
    with Pipeline(project, Store(root / "store")).build() as built:
        built.raise_for_failures()
        (entry,) = built.entries
        write_package(built, root / "package", version="1")
        return next((root / "package").glob("*.bin")).read_bytes(), entry.facts["seconds"]["compile"], root / "package"


def run(package: Path) -> dict[str, Any]:
    """What one process found."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(SCRIPT), str(package), "model"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def best(packages: dict[str, Path]) -> dict[str, dict[str, float]]:
    """By package: the most threads, the least time."""
    found: dict[str, list[dict[str, Any]]] = {title: [] for title in packages}
    for _ in range(5):
        for title, package in packages.items():
            found[title].append(run(package))
    return {
        title: {
            key: (max if key == "working" else min)(item[key] for item in items)
            for key in ("working", "milliseconds", "cpu_milliseconds")
        }
        for title, items in found.items()
    }


def main() -> None:
    print(f"{os.cpu_count()} CPUs")
    for name in sys.argv[1:] or DEFAULT:
        with tempfile.TemporaryDirectory() as folder:
            one, one_seconds, one_package = build(MODELS[name], Path(folder) / "one", "cores = 1")
            every, every_seconds, every_package = build(MODELS[name], Path(folder) / "every", "")
            differ = sum(a != b for a, b in zip(one, every, strict=False)) + abs(len(one) - len(every))
            print(f"{name}: {differ} of {len(one):,} bytes differ; compile {one_seconds:.1f} and {every_seconds:.1f} s")
            for title, item in best({"compiled on 1 core": one_package, "compiled on all": every_package}).items():
                print(
                    f"  {title:20} {item['working']} threads work, {item['milliseconds']:.2f} ms an inference, "
                    f"{item['cpu_milliseconds']:.2f} ms of processor time",
                    flush=True,
                )


if __name__ == "__main__":
    main()
