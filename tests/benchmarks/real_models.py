"""The tables of docs/models.md: real third-party models through every target that runs here, one cell at a time.

    python tests/benchmarks/real_models.py --results FILE            # measure what FILE does not hold yet
    python tests/benchmarks/real_models.py --results FILE --again    # measure all once more; the better times count
    python tests/benchmarks/real_models.py --results FILE --write    # and write the tables into docs/models.md

Each cell compiles one model of tests/models.py for one target in a project of its own, with this project's own check
on the model's own kind of inputs, and then starts it several times over in fresh processes: from the source, which
compiles at start, and from the package folder. A start is the time from after the imports until the session is open:
registering the EP, verifying the package's files, making the session; the best of five runs (QNN: two), files in the
page cache.
The first inference does not count: QNN's runs in a simulator here. Nothing else should run meanwhile, or this at a
higher priority (``nice -n -20``).
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

TESTS = Path(__file__).parent.parent
REPOSITORY = TESTS.parent
for folder in (REPOSITORY, TESTS):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from models import CASES, MODELS, Case  # noqa: E402

DOCUMENT = REPOSITORY / "docs/models.md"
BEGIN, END = "<!-- begin of the tables: tests/benchmarks/real_models.py --write -->", "<!-- end of the tables -->"
STARTS = {"openvino": 5, "qnn": 2}
"""Runs of which the best counts: the shorter a start is, the more other work on the machine disturbs it."""
TIMEOUT = 300


@dataclass(frozen=True)
class Bench:
    """One target of the tables."""

    key: str
    title: str
    ep: str
    options: Mapping[str, Any]

    @property
    def toml(self) -> str:
        options = json.dumps(self.options)
        return f'ep = "{self.ep}"\nprovider-options = {_inline(json.loads(options))}\n'


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_inline(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value)


F32 = {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}
TARGETS = (
    Bench(
        "openvino",
        "OpenVINO on the CPU, f32",
        "openvino",
        {"load_config": {"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}},
    ),
    Bench("qnn-60", "QNN, Snapdragon with SoC 60", "qnn", {"backend_type": "htp", "soc_model": "60"}),
    Bench("qnn-88", "QNN, Snapdragon with SoC 88", "qnn", {"backend_type": "htp", "soc_model": "88"}),
)


# -- One cell --------------------------------------------------------------------------------------------------------


def measure(case: Case, target: Bench, root: Path) -> dict[str, Any]:
    """Everything that a row says of one model on one target."""
    from hatch_epctx.config import load_project
    from hatch_epctx.pipeline import Pipeline
    from hatch_epctx.store import Store
    from hatch_epctx.wheel import write_package

    model = MODELS[case.model]
    source = model.path()
    if source is None:
        return {"reason": "not installed"}
    (root / "project").mkdir()
    shutil.copyfile(source, root / "project/model.onnx")
    _inputs(case, root / "project")
    optimization = f'optimization = "{case.optimization}"\n' if case.optimization else ""
    (root / "project/pyproject.toml").write_text(
        '[project]\nname = "acme"\nversion = "1"\n\n[tool.epctx]\npackage = "acme"\n\n'
        f'[tool.epctx.models.model]\nsource = "model.onnx"\n{model.shapes}'
        "check = { inputs = 'inputs.npz', rtol = 1e30, atol = 1e30 }\n\n"
        f"[tool.epctx.targets.target]\ntimeout = {TIMEOUT}\n{optimization}{target.toml}",
        encoding="utf-8",
    )
    project = load_project(root / "project", environ=os.environ, state="wheel")
    with Pipeline(project, Store(root / "store")).build() as built:
        (entry,) = built.entries
        if entry.error is not None:
            return {"reason": entry.error.reason, "message": entry.error.found}
        write_package(built, root / "package", version="1")
        facts, check = dict(entry.facts), dict(entry.check or {})
    level = case.optimization or project.variants[0].optimization
    job = {"case": case.id, "level": level, "target": target.key, "root": str(root)}
    return {
        "facts": {name: facts[name] for name in ("context_nodes", "nodes_left", "coverage", "left")},
        "outputs": check["outputs"],
        "compile": facts["seconds"]["compile"],
        "from_source": _start(case, {**job, "from": "source"}),
        "from_package": _start(case, {**job, "from": "package"}),
    }


def _inputs(case: Case, project: Path) -> None:
    """inputs.npz for the case's model, of its own kind of values."""
    import numpy as np
    import onnxruntime

    model = MODELS[case.model]
    session = onnxruntime.InferenceSession(
        str(project / "model.onnx"), model.overrides(onnxruntime), providers=["CPUExecutionProvider"]
    )
    np.savez(project / "inputs.npz", **model.feed(model.static(session.get_inputs())))


def better(cell: dict[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """`cell` with those times of an older measurement that are shorter: other work on the machine only adds time."""
    times = ("compile", "from_source", "from_package")
    shorter = {name: old[name] for name in times if old.get(name) and cell.get(name) and old[name] < cell[name]}
    return {**cell, **shorter}


def _start(case: Case, job: dict[str, Any]) -> float | None:
    """Seconds until the session is open, the best of several fresh processes; None where it does not get there."""
    best: float | None = None
    for _ in range(STARTS[case.ep]):
        command = [sys.executable, str(Path(__file__)), "--start", json.dumps(job)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode != 0:
            return None
        seconds = float(done.stdout.splitlines()[-1])
        best = seconds if best is None else min(best, seconds)
    return best


def start(job: dict[str, Any]) -> None:
    """Child: print the seconds from after the imports until the session is open."""
    import onnxruntime

    from hatch_epctx import runtime
    from hatch_epctx.worker import session as sessions

    case = next(case for case in CASES if case.id == job["case"])
    target = next(target for target in TARGETS if target.key == job["target"])
    root, model = Path(job["root"]), MODELS[case.model]
    if job["from"] == "package":
        begin = time.perf_counter()
        session = runtime.open(root / "package").session("model", fallback="error")
    else:
        path = model.shaped(root / "project/model.onnx")
        options = {key: value if isinstance(value, str) else json.dumps(value) for key, value in target.options.items()}
        ep = {
            "openvino": ("OpenVINOExecutionProvider", "onnxruntime_ep_openvino", "cpu"),
            "qnn": ("QNNExecutionProvider", "onnxruntime_qnn", "npu"),
        }[target.ep]
        plain: Any = {
            "ep": ep[0],
            "module": ep[1],
            "device": ep[2],
            "offline": True,
            "provider_options": options,
            "optimization": job["level"],
            "free_dimensions": dict(model.free_dimensions),
        }
        begin = time.perf_counter()
        opened = sessions.open_ep(plain)
        settings = sessions.session_options(plain, opened, overrides=True)
        session = onnxruntime.InferenceSession(str(path), settings, enable_fallback=0)
    seconds = time.perf_counter() - begin  # before the session is closed again
    assert session.get_outputs()
    print(seconds)
    sys.stdout.flush()
    os._exit(0)  # native libraries may crash while they are unloaded


# -- The tables ------------------------------------------------------------------------------------------------------


def tables(results: dict[str, Any]) -> str:
    """All tables as Markdown."""
    lines = [f"Measured with {results['about']}.", "", "| model | distribution | kind |", "|---|---|---|"]
    for model in MODELS.values():
        version = metadata.version(model.distribution)
        lines.append(f"| {model.name} | {model.distribution} {version} | {', '.join(model.kinds)} |")
    lines.append("")
    for target in TARGETS:
        lines += [
            f"### {target.title}",
            "",
            "| model | result | coverage | largest error | compile | start by compiling | start from the wheel |",
            "|---|---|---|---|---|---|---|",
            *[_row(case, results["cells"][f"{case.id}/{target.key}"]) for case in cases_of(target)],
            "",
        ]
    return "\n".join(lines)


def cases_of(target: Bench) -> list[Case]:
    return [case for case in CASES if case.ep == target.ep]


def _row(case: Case, cell: Mapping[str, Any]) -> str:
    name = case.model + (f", {case.optimization}" if case.optimization else "")
    if "reason" in cell:
        return f"| {name} | **{cell['reason']}**: {_short(cell.get('message', ''))} | | | | | |"
    facts = cell["facts"]
    counts = facts["coverage"]
    total = sum(counts.values())
    taken = total - counts.get("CPUExecutionProvider", 0)
    cells = [
        name,
        f"{facts['context_nodes']} EPContext, {facts['nodes_left']} left",
        f"{taken} of {total} ({taken / total:.0%})" if total else "-",
        _error(cell["outputs"]),
        _seconds(cell["compile"]),
        _seconds(cell["from_source"]),
        _seconds(cell["from_package"]) + _gain(cell["from_source"], cell["from_package"]),
    ]
    return f"| {' | '.join(cells)} |"


def _short(text: str) -> str:
    text = " ".join(text.replace("|", "/").split())
    return text if len(text) <= 150 else text[:147] + "..."


def _error(outputs: list[dict[str, Any]]) -> str:
    """The largest error of all outputs, relative to the largest expected value of its output."""
    if bad := sorted({item["verdict"] for item in outputs} - {"within", "beyond"}):
        return ", ".join(bad)
    figures = [item["max_rel"] for item in outputs if item["max_rel"] is not None]
    exact = [item for item in outputs if item["exact"]]
    text = (f"{max(figures):.0e}" if max(figures) else "0") if figures else ""
    if exact:
        differ = sum(item["beyond"] for item in exact)
        text += f"{'; ' if text else ''}{differ} of {sum(item['values'] for item in exact)} labels differ"
    return text


def _seconds(value: float | None) -> str:
    return "fails" if value is None else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def _gain(source: float | None, package: float | None) -> str:
    return f" ({source / package:.0f}x)" if source and package and source / package >= 1.5 else ""


def about() -> str:
    """Versions and machine, for the sentence above the tables."""
    names = ("onnxruntime", "onnxruntime-ep-openvino", "onnxruntime-qnn")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "an unknown CPU")
    return f"{versions} on {len(os.sched_getaffinity(0))} cores of {cpu}"


def write(results: dict[str, Any]) -> None:
    """Put the tables between their marks in the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n{tables(results)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="JSON file that holds the cells; missing ones are measured")
    parser.add_argument("--only", default="*", metavar="GLOB", help="of the cells' names, MODEL-EP/TARGET")
    parser.add_argument("--again", action="store_true", help="also what FILE holds; the better times count")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/models.md")
    parser.add_argument("--start", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        start(json.loads(options.start))
    if options.results is None:
        parser.error("--results is missing")
    results = json.loads(options.results.read_text()) if options.results.exists() else {"cells": {}}
    results["about"] = about()
    for target in TARGETS:
        for case in cases_of(target):
            name = f"{case.id}/{target.key}"
            old = results["cells"].get(name)
            if (old and not options.again) or not fnmatch.fnmatch(name, options.only):
                continue
            with tempfile.TemporaryDirectory() as scratch:
                results["cells"][name] = better(measure(case, target, Path(scratch)), old or {})
            shown = {key: value for key, value in results["cells"][name].items() if key not in ("facts", "outputs")}
            print(name, shown, flush=True)
            options.results.write_text(json.dumps(results, indent=1))
    if options.write:
        write(results)


if __name__ == "__main__":
    main()
