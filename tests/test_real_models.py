"""Real third-party models through both EPs: a package folder whose session opens and runs, or the expected failure."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from models import CASES, MODELS, TARGETS, Case

from hatch_epctx.config import load_project
from hatch_epctx.pipeline import Build, Pipeline
from hatch_epctx.store import Store
from hatch_epctx.wheel import write_package

FULL_NAMES = {"openvino": "OpenVINOExecutionProvider", "qnn": "QNNExecutionProvider"}


def parameters() -> list[Any]:
    found = []
    for case in CASES:
        marks = [getattr(pytest.mark, f"ep_{case.ep}")]
        if case.slow:
            marks.append(pytest.mark.slow)
        found.append(pytest.param(case, id=case.id, marks=marks))
    return found


def build(case: Case, source: Path, root: Path) -> Build:
    """Compile the case's model in a project of its own."""
    model = MODELS[case.model]
    optimization = f'optimization = "{case.optimization}"\n' if case.optimization else ""
    root.mkdir()
    shutil.copyfile(source, root / "model.onnx")
    (root / "pyproject.toml").write_text(
        '[project]\nname = "acme"\nversion = "1"\n\n'
        f'[tool.epctx]\npackage = "acme"\n\n'
        f'[tool.epctx.models.model]\nsource = "model.onnx"\n{model.shapes}\n'
        f"[tool.epctx.targets.target]\ntimeout = 300\n{optimization}{TARGETS[case.ep]}",
        encoding="utf-8",
    )
    project = load_project(root, environ=os.environ, state="wheel")
    return Pipeline(project, Store(root / "store")).build()


def compare(case: Case, folder: Path, source: Path) -> dict[str, Any]:
    script = Path(__file__).parent / "compare_with_cpu.py"
    command = [sys.executable, str(script), str(folder), case.model, str(source), case.ep]
    done = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("case", parameters())
def test_a_real_model_runs_from_the_package_or_fails_as_expected(case: Case, tmp_path: Path) -> None:
    source = MODELS[case.model].path()
    if source is None:
        pytest.skip(f"{MODELS[case.model].distribution} is not installed")
    with build(case, source, tmp_path / "project") as built:
        (entry,) = built.entries
        if case.reason:
            assert entry.error is not None, "it compiles now: measure again and change the expectation"
            assert entry.error.reason == case.reason, str(entry.error)
            assert case.message in str(entry.error)
            assert entry.error.remedy, "a failure says what to do"
            return
        built.raise_for_failures()
        assert entry.generation is not None
        facts = entry.generation.record.result
        write_package(built, tmp_path / "package", version="1")
    shutil.rmtree(tmp_path / "project")
    assert (facts["context_nodes"], facts["nodes_left"]) == (case.nodes, case.left)
    result = compare(case, tmp_path / "package", source)
    assert FULL_NAMES[case.ep] in result["providers"]
    mean, largest = case.limits
    agree = all(found["mean"] <= mean and found["largest"] <= largest for found in result["differences"])
    if case.wrong:
        assert not agree, f"right now, and it was not ({case.wrong}): measure again and change the expectation"
    else:
        assert agree, result["differences"]


def test_the_cases_cover_what_they_must() -> None:
    kinds = {kind for model in MODELS.values() for kind in model.kinds}
    assert kinds >= {"cnn", "transformer", "quantised", "dynamic", "recurrent"}
    for ep in TARGETS:
        assert len({case.model for case in CASES if case.ep == ep and not case.slow}) >= 12
    assert {case.model for case in CASES} == set(MODELS)
    assert len({case.id for case in CASES}) == len(CASES)


def test_the_tables_of_the_documentation_hold_every_case() -> None:
    """Measured by hand with tests/benchmarks/real_models.py; a new model or target needs its rows there."""
    text = (Path(__file__).parent.parent / "docs/models.md").read_text(encoding="utf-8")
    sections = text.partition("<!-- begin of the tables")[2].partition("<!-- end of the tables")[0].split("### ")[1:]
    assert [section.splitlines()[0].split(",")[0] for section in sections] == ["OpenVINO on the CPU", "QNN", "QNN"]
    for section, ep in zip(sections, ("openvino", "qnn", "qnn"), strict=True):
        rows = [line.split("|")[1].strip() for line in section.splitlines() if line.startswith("| ")][1:]
        cases = [case for case in CASES if case.ep == ep]
        assert rows == [case.model + (f", {case.optimization}" if case.optimization else "") for case in cases]
        assert len({case.model for case in cases}) >= 12
