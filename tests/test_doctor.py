"""`epctx doctor`: what is here, whether it works, what to install, telemetry, the store's health."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from support import STUB_TARGET, Factory, here

from hatch_epctx.cli.doctor import _print
from hatch_epctx.digest import is_digest
from hatch_epctx.doctor import SECTIONS, examine, health, telemetry
from hatch_epctx.doctor.eps import examine_ep
from hatch_epctx.doctor.trial import ONE_NODE
from hatch_epctx.providers import find_provider
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.fixture
def store() -> Store:
    return Store(Path(os.environ["EPCTX_CACHE_DIR"]))


def stub(store: Store, *, trial: bool = True, **options: str) -> dict[str, Any]:
    """What the doctor says of the stub EP when its trial is told what happens."""
    return examine_ep(replace(find_provider("stub-npu"), trial_options=options), store, trial=trial)


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the doctor says of this machine."""
    found: dict[str, Any] = here(
        "doctor", "--json", env={"EPCTX_CACHE_DIR": str(tmp_path_factory.mktemp("store"))}
    ).json
    return found


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_eps_that_are_here_compile_and_run_one_node(facts: dict[str, Any]) -> None:
    providers = {item["ep"]: item for item in facts["providers"]}
    openvino, qnn = providers["openvino"], providers["qnn"]
    for item in (openvino, qnn):
        (trial,) = item["trials"]
        assert (item["state"], trial["compiles"], trial["runs"], trial["message"]) == ("ready", True, True, "")
        assert trial["seconds"].keys() == {"compile", "session", "run"}
        assert is_digest(item["digest"])
        assert item["closure"]["files"] > 5
        assert item["sdk"]
    assert (openvino["trials"][0]["simulated"], openvino["devices"][0]["type"]) == (False, "cpu")
    assert qnn["trials"][0]["simulated"] == (qnn["devices"][0]["type"] != "npu")
    assert facts["onnxruntime"]["version"] == facts["distributions"]["onnxruntime"]
    missing = providers["tensorrt-rtx"]
    assert (missing["state"], missing["install"]) == ("missing", "onnxruntime-ep-nv-tensorrt-rtx-cu13")


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_people_read_the_same_in_few_lines(facts: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    _print(facts, verbose=False)
    out = capsys.readouterr().out
    assert re.search(
        r"^openvino +ready +onnxruntime-ep-openvino \S+ +cpu .*compiles \(.+ m?s\), runs$", out, re.MULTILINE
    )
    assert re.search(r"^qnn +ready +.*compiles \(.+ m?s\), runs( in the simulator)?$", out, re.MULTILINE)
    assert re.search(r"^tensorrt-rtx +pip install onnxruntime-ep-nv-tensorrt-rtx-cu13$", out, re.MULTILINE)
    assert "other EPs write no EPContext models" in out
    assert max(map(len, out.splitlines())) <= 140
    _print(facts, verbose=True)
    detailed = capsys.readouterr().out
    assert re.search(r"^onnxruntime-qnn \S+: digest [0-9a-f]{64} of \d+ files, ", detailed, re.MULTILINE)
    assert re.search(r"^cpu +it runs kernels that are compiled already", detailed, re.MULTILINE)


def test_the_node_is_a_whole_model() -> None:
    model = onnx.load_model_from_string(ONE_NODE)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["Sigmoid"]


def test_an_ep_that_works_and_what_is_left_of_its_trial(store: Store) -> None:
    found = stub(store, mode="ok")
    (trial,) = found["trials"]
    assert (found["state"], trial["device"], trial["compiles"], trial["runs"]) == ("ready", "npu", True, True)
    assert found["devices"][0]["driver"]
    assert health.look(store)["generations"] == 0


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("fail", "the compile failed: the stub fails as it was told"),
        ("crash-before", "the compile failed: the worker"),
        ("no-node", "took no node"),
    ],
)
def test_an_ep_that_does_not_compile_is_broken(store: Store, mode: str, words: str) -> None:
    found = stub(store, mode=mode)
    assert (found["state"], found["trials"][0]["compiles"], found["trials"][0]["runs"]) == ("broken", False, None)
    assert words in found["message"]


@pytest.mark.parametrize("mode", ["load-fail", "load-crash", "run-fail"])
def test_an_ep_that_compiles_and_does_not_run(store: Store, mode: str) -> None:
    found = stub(store, mode=mode)
    (trial,) = found["trials"]
    assert (found["state"], trial["compiles"], trial["runs"]) == ("ready", True, False)
    assert "the load check failed" in trial["message"]


def test_options_that_the_ep_refuses_are_said(store: Store) -> None:
    found = stub(store, nonsense="1")
    assert found["state"] == "broken"
    assert "nonsense" in found["message"]


def test_no_trial_starts_no_compile(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    assert "ONE NODE" not in here("doctor", "--no-trial", env={"EPCTX_TRACE_WORKERS": str(trace)}).out
    assert set(trace.read_text().split()) == {"probe"}


# Telemetry


SENDER = b"...https://mobile.events.data.microsoft.com/OneCollector/1.0/..."


@pytest.mark.parametrize(
    ("library", "value", "expected"),
    [
        (SENDER + b"ORT_DISABLE_TELEMETRY", None, (True, "off", "on")),
        (SENDER + b"ORT_DISABLE_TELEMETRY", "1", (True, "off", "off")),
        (SENDER + b"ORT_DISABLE_TELEMETRY", "0", (True, "off", "on")),
        (SENDER, "1", (True, "on", "on")),
        (b"nothing", None, (False, "off", "off")),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="the system governs it")
def test_telemetry_is_told_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    store: Store,
    library: bytes,
    value: str | None,
    expected: tuple[bool, str, str],
) -> None:
    (tmp_path / "capi").mkdir()
    (tmp_path / "capi" / "libonnxruntime.so.1").write_bytes(library)
    (tmp_path / "capi" / "libonnxruntime_empty.so").write_bytes(b"")
    monkeypatch.setattr(telemetry, "import_folders", lambda _name: (tmp_path,))
    monkeypatch.delenv(telemetry.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(telemetry.VARIABLE, value)
    facts = telemetry.look(store)
    assert (facts["built_in"], facts["compiles"], facts["here"]) == expected
    (line,) = telemetry.lines(facts)
    assert ("unless ORT_DISABLE_TELEMETRY=1 is set" in line) == (expected[2] == "on")


def test_the_installed_onnxruntime_sends_nothing_from_compiles(store: Store) -> None:
    assert telemetry.look(store)["compiles"] == "off"


# The store


def problems(store: Store) -> Mapping[str, Any]:
    facts = health.look(store)
    assert [line for line in health.lines(facts) if line.startswith("store: ")] == [
        f"store: {problem}" for problem in facts["problems"]
    ]
    return facts


def test_a_store_that_is_well(factory: Factory, store: Store) -> None:
    assert problems(store)["problems"] == []
    here("build", cwd=factory.project(STUB_TARGET).root)
    facts = problems(store)
    assert (facts["generations"], facts["problems"], facts["damaged"]) == (1, [], [])
    assert facts["size"] > 0 < facts["free"]


def test_damage_that_sizes_show_is_told_with_its_cure(factory: Factory, store: Store) -> None:
    here("build", cwd=factory.project(STUB_TARGET).root)
    (binary,) = (path for path in store.layout.generations.rglob("*") if path.suffix == ".bin")
    binary.chmod(0o600)
    binary.write_bytes(b"x")
    facts = problems(store)
    assert facts["problems"] == ["1 identities are damaged: run 'epctx cache verify --remove'"]
    assert is_digest(facts["damaged"][0]["identity"])
    here("cache", "verify", "--remove", check=False)
    assert problems(store)["problems"] == []


def test_a_full_disk_and_a_root_that_cannot_be_read_are_told(
    monkeypatch: pytest.MonkeyPatch, factory: Factory, store: Store
) -> None:
    here("build", cwd=factory.project(STUB_TARGET).root)
    here("cache", "pin", "detector.stub", "-C", factory.folder / "project")
    (root,) = store.layout.roots.iterdir()
    root.write_bytes(b"{")
    monkeypatch.setattr(health.shutil, "disk_usage", lambda _path: _Usage())
    found = problems(store)["problems"]
    assert len(found) == 2
    assert "only 1.0 MiB are free on its disk" in found[1]


class _Usage:
    free = 1 << 20


@pytest.mark.ep_openvino
def test_a_store_that_cannot_be_used_is_told_and_eps_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run = here("doctor", "--no-trial", env={"EPCTX_CACHE_DIR": str(tmp_path / "file")}, check=False)
    assert run.code == 6
    assert f"store {tmp_path / 'file'} cannot be used\nstore: {tmp_path / 'file'}: is no folder" in run.out
    assert re.search(r"^openvino +ready", run.out, re.MULTILINE)


def test_every_section_stands_in_the_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hatch_epctx.doctor.all_providers", tuple)
    assert {section.name for section in SECTIONS} | {"onnxruntime", "providers"} == examine(store, trial=False).keys()
