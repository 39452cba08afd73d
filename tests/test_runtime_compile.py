"""Compile at first use: what was compiled for another machine is compiled for this one, once, into the user's store."""

from __future__ import annotations

import gc
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime_support import CPU, OPENVINO, Site, cpu, edit, openvino, qnn, run_python, variant_of, write
from support import OPENVINO_TARGET, REPOSITORY, Factory, epctx

from hatch_epctx import runtime
from hatch_epctx.errors import LookupFailure
from hatch_epctx.runtime import compiling
from hatch_epctx.runtime import qnn as qnn_rules

ort: Any = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.ep_openvino

INPUT = {"x": np.linspace(-1, 1, 3 * 8 * 8, dtype=np.float32).reshape(1, 3, 8, 8)}
SHIPPED = f"ship-source = true\n{OPENVINO_TARGET}"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package that was really built, for another version of OpenVINO as its manifest has it; its store beside it."""
    folder = tmp_path_factory.mktemp("first-use")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "store"))
        patch.setenv("PYTHONPATH", "")
        tree = Factory(folder).project(SHIPPED)
        epctx("build", "--out", str(folder / "package"), cwd=tree.root)

    def change(document: Any) -> None:
        variant = variant_of(document, "intel-cpu")
        variant["compatibility_string"] = variant["compatibility_string"].replace("ov=20", "ov=19")
        variant["executor_info"]["epctx"]["compatibility"] = variant["compatibility_string"]

    edit(folder / "package", change)
    return folder


@pytest.fixture
def package(shared: Path) -> runtime.Package:
    return runtime.open(shared / "package")


def check(session: Any, package: runtime.Package, ep: str = OPENVINO) -> runtime.Choice:
    assert session.get_providers()[0] == ep
    reference = ort.InferenceSession(str(package.path / "detector.onnx"), providers=[CPU]).run(None, INPUT)[0]
    np.testing.assert_allclose(session.run(None, INPUT)[0], reference, rtol=1e-5, atol=1e-6)
    return runtime.explain(session)


def identity(package: runtime.Package) -> str:
    (variant,) = [v for c in package.manifest.components for v in c.variants if v.name == "intel-cpu"]
    assert variant.facts is not None
    return str(variant.facts.identity)


def store() -> Path:
    return Path(os.environ["EPCTX_CACHE_DIR"])


def generations() -> list[Path]:
    return sorted(path for path in store().glob("v*/generations/*") if path.is_dir())


def test_it_is_compiled_once_and_kept(package: runtime.Package) -> None:
    with pytest.raises(LookupFailure, match="no variant"):
        package.session("detector", fallback="error")
    lines: list[str] = []
    choice = check(package.session("detector", fallback=runtime.Compile(progress=lines.append)), package)
    assert choice.compiled_here
    assert not choice.fallback
    assert (choice.variant, choice.rejected[0].reason) == ("intel-cpu", "incompatible")
    assert store() in choice.path.parents
    assert choice.note == f"compiled on this machine: identity {identity(package)[:12]}, compiled"
    assert choice.provider_options == {"load_config": '{"CPU":{"INFERENCE_PRECISION_HINT":"f32"}}'}
    assert choice.session_options["session.disable_model_compile"] == "1"
    assert any("compiling" in line for line in lines)
    assert any("compiled" in line for line in lines)
    lines.clear()
    choice = check(package.session("detector", fallback=runtime.Compile(progress=lines.append)), package)
    assert choice.note.endswith(", hit")
    assert not any(line.startswith("compiling") for line in lines[1:])
    assert len(generations()) == 1


def test_the_identity_is_that_of_the_build(
    shared: Path, package: runtime.Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the machine that built the wheel nothing is compiled: the look-up finds the build's own generation."""
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(shared / "store"))
    assert package.lookup("detector", fallback="compile").note.endswith(", hit")


CHILD = """
import json, sys
from hatch_epctx import runtime
session = runtime.open(sys.argv[1]).session("detector", fallback="compile")
print(json.dumps([session.get_providers()[0], str(runtime.explain(session).path)]))
"""


def test_several_processes_compile_once(package: runtime.Package, tmp_path: Path) -> None:
    import subprocess

    trace = tmp_path / "trace"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "EPCTX_TRACE_WORKERS": str(trace)}
    command = [sys.executable, "-c", CHILD, str(package.path)]
    children = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [child.communicate(timeout=300)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    assert len(set(outputs)) == 1
    assert json.loads(outputs[0])[0] == OPENVINO
    tasks = [line.split()[-1] for line in trace.read_text().splitlines()]
    assert tasks.count("compile") == 1, tasks


def _children() -> set[int]:
    """Worker processes of this process."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found


@pytest.mark.skipif(not Path("/proc").exists(), reason="no /proc")
@pytest.mark.parametrize("way", ["cancel", "timeout"])
def test_it_can_be_ended(package: runtime.Package, way: str, caplog: pytest.LogCaptureFixture) -> None:
    before = _children()
    cancel = threading.Event()

    def progress(text: str) -> None:
        if way == "cancel" and text.startswith("compiling "):
            cancel.set()

    how = runtime.Compile(progress=progress, cancel=cancel, timeout=None if way == "cancel" else 0.5)
    start = time.monotonic()
    with pytest.raises(LookupFailure) as caught:
        package.session("detector", fallback=how)
    assert time.monotonic() - start < 30
    text = "the compile was cancelled" if way == "cancel" else "ended after"
    assert text in caught.value.detail
    assert _children() == before
    assert generations() == []
    assert not [path for path in store().glob("v*/staging/*") if path.is_dir()]
    check(package.session("detector", fallback="compile"), package)


def test_when_it_fails_nothing_else_runs_unless_told(package: runtime.Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_OFFLINE", "1")
    with pytest.raises(LookupFailure) as caught:
        package.session("detector", fallback="compile")
    first, second = caught.value.detail.splitlines()
    assert "the EP refuses it" in first
    assert "compiling it here: detector" in second
    assert "EPCTX_OFFLINE is set" in second
    choice = check(package.session("detector", fallback=runtime.Compile(otherwise="source")), package, CPU)
    assert [rejection.reason for rejection in choice.rejected] == ["incompatible", "compile-failed"]
    assert choice.fallback


def test_a_session_keeps_what_it_uses(package: runtime.Package) -> None:
    session: Any = package.session("detector", fallback="compile")
    path = runtime.explain(session).path
    epctx("cache", "clear", check=False)
    assert path.exists()
    del session
    gc.collect()
    epctx("cache", "clear")
    assert not path.exists()


def test_a_choice_keeps_it_too(package: runtime.Package) -> None:
    choice = package.lookup("detector", fallback="compile")
    epctx("cache", "clear", check=False)
    assert choice.path.exists()


def test_what_cannot_be_compiled_here_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = openvino(compatibility=openvino().compatibility.replace("ov=20", "ov=19"))
    write(tmp_path / "a", other)
    with pytest.raises(LookupFailure, match="needs the source model, and the package ships none") as caught:
        runtime.open(tmp_path / "a").session("detector", fallback="compile")
    assert caught.value.reason == "no-source"
    for options, text in (
        ({"provider_options": {"model": "file"}}, "what only the building machine has: model"),
        ({"prepare": ["quantize-qdq"]}, "samples that the package does not carry"),
    ):
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        write(tmp_path / "b", openvino(compatibility=other.compatibility, options=options), cpu())
        with pytest.raises(LookupFailure) as caught:
            runtime.open(tmp_path / "b").session("detector", fallback="compile")
        assert text in caught.value.detail
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(LookupFailure, match="a frozen application has no Python to start"):
        runtime.open(tmp_path / "b").session("detector", fallback="compile")


def test_what_fits_is_never_compiled_and_a_missing_ep_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "_firstuse", lambda: pytest.fail("not asked for"))
    write(tmp_path / "fits", openvino(), cpu())
    assert not runtime.open(tmp_path / "fits").lookup("detector", fallback="compile").compiled_here
    write(tmp_path / "missing", cpu("it", ep="AcmeExecutionProvider", kind="compiled"), cpu())
    with pytest.raises(LookupFailure) as caught:
        runtime.open(tmp_path / "missing").lookup("detector", fallback="compile")
    assert caught.value.reason == "missing-ep"


BARE = """
import sys
from hatch_epctx import runtime
from hatch_epctx.errors import LookupFailure
try:
    runtime.open(sys.argv[1]).session("detector", fallback="compile")
except LookupFailure as failure:
    print(failure)
"""


def test_without_the_build_extra_the_message_says_what_to_install(package: runtime.Package, tmp_path: Path) -> None:
    site = Site.make(tmp_path / "site", "onnxruntime", "onnxruntime_ep_openvino")
    run = site.run(BARE, str(package.path))
    assert "needs the build extra: the module" in run.stdout, run.stderr
    assert 'pip install "hatch-epctx[build]"' in run.stdout


@pytest.mark.ep_qnn
def test_qnn_is_compiled_for_the_soc_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from hatch_epctx.manifest import Facts, Variant

    content = qnn()
    facts = Facts(
        kind="compiled",
        artifacts=(),
        device="npu",
        options={
            "provider_options": {"backend_type": "htp", "soc_model": "60", "htp_arch": "73"},
            "optimization": "basic",
        },
    )
    variant = Variant(
        name="snapdragon-60",
        ep=content.ep,
        model_file="x.onnx",
        provider_options={"backend_type": "htp", "htp_performance_mode": "burst"},
        facts=facts,
    )
    assert compiling._target(variant, facts)["provider-options"]["soc_model"] == "60"
    monkeypatch.setattr(qnn_rules, "machine_soc", lambda: next(soc for soc in qnn_rules.SOCS if soc.model == 88))
    table = compiling._target(variant, facts)
    assert table["provider-options"] == {"backend_type": "htp", "soc_model": "88"}
    assert table["runtime-options"] == {"htp_performance_mode": "burst"}


def test_importing_the_look_up_brings_no_pipeline() -> None:
    run = run_python("import sys, hatch_epctx.runtime.package; print('hatch_epctx.pipeline' in sys.modules)")
    assert run.stdout == "False\n"
