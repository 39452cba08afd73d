"""What look-up and manifest rely on in ONNX Runtime and its EPs, pinned: a new version that differs shows here."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from runtime_support import CPU, OPENVINO, QNN, cpu, edit, openvino, qnn, run_python, variant_of, write

from hatch_epctx.runtime import plugins

if TYPE_CHECKING:
    from pathlib import Path

ort: Any = pytest.importorskip("onnxruntime")

INPUT = {"x": np.ones((1, 3, 8, 8), np.float32)}


def devices(ep: str) -> list[Any]:
    return list(plugins.devices(ep))


def native(folder: Path, ep: str, **options: str) -> Any:
    """A session by ORT's own model package, without code of ours."""
    selecting = ort.SessionOptions()
    if ep != CPU:
        selecting.add_provider_for_devices(devices(ep)[:1], options)
    context = ort.ModelPackageContext(str(folder))
    component = context.select_component("detector", ort.ModelPackageOptions(selecting))
    return component, component.create_session(None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "p", openvino(), cpu())
    return tmp_path / "p"


def ort_of(document: Any, variant: str = "intel-cpu") -> Any:
    return variant_of(document, variant)["executor_info"]["ort"]


@pytest.mark.ep_openvino
@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("disable_all", "ORT_DISABLE_ALL"),
        ("enable_basic", "ORT_ENABLE_BASIC"),
        ("enable_extended", "ORT_ENABLE_EXTENDED"),
        ("enable_layout", "ORT_ENABLE_LAYOUT"),
        ("enable_all", "ORT_ENABLE_ALL"),
    ],
)
def test_a_package_sets_the_optimisation_level_by_session_option(folder: Path, text: str, level: str) -> None:
    edit(folder, lambda d: ort_of(d)["session_options"].update({"session.graph_optimization_level": text}))
    _, session = native(folder, OPENVINO)
    assert session.get_session_options().graph_optimization_level == getattr(ort.GraphOptimizationLevel, level)


@pytest.mark.ep_openvino
def test_a_package_knows_typed_session_options_by_key_and_python_does_not(folder: Path) -> None:
    typed = {
        "session.intra_op_num_threads": "3",
        "session.execution_mode": "parallel",
        "session.enable_mem_pattern": "0",
        "session.enable_cpu_mem_arena": "false",
        "session.log_id": "mine",
    }
    edit(folder, lambda d: ort_of(d)["session_options"].update(typed))
    made = native(folder, OPENVINO)[1].get_session_options()
    assert (made.intra_op_num_threads, made.enable_mem_pattern, made.enable_cpu_mem_arena) == (3, False, False)
    assert (made.execution_mode, made.logid) == (ort.ExecutionMode.ORT_PARALLEL, "mine")
    plain = ort.SessionOptions()
    plain.add_session_config_entry("session.graph_optimization_level", "disable_all")
    assert plain.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL


@pytest.mark.ep_openvino
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"session.graph_optimization_level": "basic"}, "must be one of disable_all"),
        ({"session.graph_optimization_level": "0"}, "must be one of disable_all"),
        ({"session.intra_op_num_threads": "many"}, "must be a base-10 int32"),
        ({"session.enable_profiling": "1"}, "cannot be set in model package session options"),
        ({"session.optimized_model_filepath": "x"}, "cannot be set in model package session options"),
        ({"ep.context_file_path": "../x"}, "not allowed in portable layout"),
        ({"session.x": 1}, "must be strings"),
    ],
)
def test_session_options_that_a_package_refuses(folder: Path, options: Any, message: str) -> None:
    edit(folder, lambda d: ort_of(d)["session_options"].update(options))
    with pytest.raises(Exception, match=message):
        native(folder, OPENVINO)


@pytest.mark.ep_openvino
def test_unknown_options_pass_in_silence(folder: Path) -> None:
    def change(document: Any) -> None:
        ort_of(document)["session_options"].update({"session.bogus": "1", "bogus": "2"})
        ort_of(document)["provider_options"].update({"bogus": "3"})

    edit(folder, change)
    _, session = native(folder, OPENVINO)
    assert session.get_provider_options()[OPENVINO]["bogus"] == "3"


@pytest.mark.ep_openvino
def test_a_packages_provider_options_replace_those_of_the_selection(folder: Path) -> None:
    _, session = native(folder, OPENVINO, load_config="{}", other="x")
    assert session.get_provider_options()[OPENVINO] == {"load_config": '{"CPU":{"INFERENCE_PRECISION_HINT":"f32"}}'}


@pytest.mark.ep_openvino
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(surprise=1), "unknown field"),
        (lambda d: d["components"]["detector"].update(surprise=1), "unknown field"),
        (lambda d: variant_of(d, "intel-cpu").update(surprise=1), "unknown field"),
        (lambda d: variant_of(d, "intel-cpu").update(variant_directory="sub"), "does not exist"),
        (lambda d: variant_of(d, "intel-cpu").update(device="npu"), "No suitable model variant"),
        (lambda d: variant_of(d, "intel-cpu").update(compatibility_string="x"), "No suitable model variant"),
        (lambda d: variant_of(d, "intel-cpu").pop("ep"), "No suitable model variant"),
        (lambda d: ort_of(d).update(model_file="../x.onnx"), "not allowed in portable layout"),
        (lambda d: ort_of(d).update(model_file="/x.onnx"), "not allowed in portable layout|drive-rooted"),
        (lambda d: ort_of(d).pop("model_file"), "has no executor_info"),
    ],
)
def test_what_a_package_refuses(folder: Path, change: Any, message: str) -> None:
    edit(folder, change)
    with pytest.raises(Exception, match=message):
        native(folder, OPENVINO)


@pytest.mark.ep_openvino
def test_a_link_out_of_the_folder_is_refused(folder: Path) -> None:
    model = folder / "detector.intel-cpu_ctx.onnx"
    outside = folder.parent / "outside.onnx"
    model.rename(outside)
    model.symlink_to(outside)
    with pytest.raises(Exception, match="escapes package_root"):
        native(folder, OPENVINO)


@pytest.mark.ep_openvino
def test_ties_go_to_the_first_declared_and_answers_win_over_silence(tmp_path: Path) -> None:
    write(tmp_path / "tie", openvino("b"), openvino("a"))
    assert native(tmp_path / "tie", OPENVINO)[0].get_selected_variant_name() == "b"
    write(tmp_path / "answer", openvino("b", ort_compatibility=False), openvino("a"))
    assert native(tmp_path / "answer", OPENVINO)[0].get_selected_variant_name() == "a"


@pytest.mark.ep_openvino
@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("", "", "EP_SUPPORTED_OPTIMAL"),
        ('"ovep_ver":"1.', '"ovep_ver":"0.', "EP_SUPPORTED_OPTIMAL"),
        ("ov=20", "ov=19", "EP_UNSUPPORTED"),
        ("isa=", "isa=Other ", "EP_UNSUPPORTED"),
        ('"ovep_bin_ver":"', '"ovep_bin_ver":"9', "EP_UNSUPPORTED"),
        ('"ovep_compat_ver":"', '"ovep_compat_ver":"9', "EP_NOT_APPLICABLE"),
    ],
)
def test_openvino_answers_by_version_and_instruction_set(old: str, new: str, answer: str) -> None:
    from onnxruntime.capi import _pybind_state as state

    info = openvino().compatibility
    changed = info.replace(old, new) if old else info
    assert (changed == info) == (not old)
    assert state.get_model_compatibility_for_ep_devices(devices(OPENVINO)[:1], changed).name == answer


@pytest.mark.ep_openvino
def test_a_source_model_needs_compilation_and_a_context_model_does_not(tmp_path: Path) -> None:
    write(tmp_path / "p", openvino())
    native(tmp_path / "p", OPENVINO)  # carries session.disable_model_compile = 1
    wrong = cpu("source", ep=OPENVINO, kind="source", session_options={"session.disable_model_compile": "1"})
    write(tmp_path / "q", wrong)
    with pytest.raises(Exception, match="MODEL_REQUIRES_COMPILATION"):
        native(tmp_path / "q", OPENVINO)


@pytest.mark.ep_qnn
def test_qnn_on_x86_shows_a_cpu_and_needs_its_backend_named_twice(tmp_path: Path) -> None:
    assert {device.device.type.name for device in devices(QNN)} == {"CPU"}
    write(tmp_path / "p", qnn())
    with pytest.raises(Exception, match="Could not determine default backend path"):
        native(tmp_path / "p", QNN)
    native(tmp_path / "p", QNN, backend_type="htp")
    write(tmp_path / "npu", qnn(ort_device=True))
    with pytest.raises(Exception, match="No suitable model variant"):
        native(tmp_path / "npu", QNN, backend_type="htp")


ASKING = """
import gc, sys
import onnxruntime as ort, onnxruntime_qnn
from onnxruntime.capi import _pybind_state as state
ep = "QNNExecutionProvider"
ort.register_execution_provider_library(ep, onnxruntime_qnn.get_library_path())
devices = [device for device in ort.get_ep_devices() if device.ep_name == ep]
options = ort.SessionOptions()
options.add_provider_for_devices(devices, {"backend_type": "htp"})
session = ort.InferenceSession(sys.argv[1], options)
assert state.get_model_compatibility_for_ep_devices(devices, "garbage").name == "EP_NOT_APPLICABLE"
if sys.argv[2] == "released":
    del session, options
    gc.collect()
    state.get_model_compatibility_for_ep_devices(devices, "garbage")
"""


@pytest.mark.ep_qnn
@pytest.mark.skipif(sys.platform == "win32", reason="a crash has no signal there")
def test_asking_qnn_after_a_session_was_released_kills_the_process() -> None:
    """When this fails, the EP is repaired and may be asked: `Plugin.asked`, `Provider.manifest_compatibility`."""
    model = str(qnn().files[0].path)
    assert run_python(ASKING, model, "alive").returncode == 0
    assert run_python(ASKING, model, "released").returncode == -signal.SIGSEGV


@pytest.mark.ep_openvino
def test_one_library_registers_twice_under_two_names_and_shows_its_devices_twice() -> None:
    code = f"""
import onnxruntime as ort, onnxruntime_ep_openvino as ep
ort.register_execution_provider_library("other", ep.get_library_path())
ort.register_execution_provider_library("{OPENVINO}", ep.get_library_path())
print(sum(device.ep_name == "{OPENVINO}" for device in ort.get_ep_devices()))
try:
    ort.register_execution_provider_library("other", ep.get_library_path())
except Exception as error:
    print(error)
"""
    out = run_python(code).stdout
    assert out.startswith("2\n")
    assert "already registered" in out


def test_sessions_can_be_remembered_weakly(tmp_path: Path) -> None:
    import gc
    import weakref

    write(tmp_path / "p", cpu())
    session = ort.InferenceSession(str(tmp_path / "p" / "detector.onnx"))
    remembered: Any = weakref.WeakKeyDictionary()
    remembered[session] = 1
    del session
    gc.collect()
    assert not remembered


def test_empty_session_options_select_the_cpu_variant(folder: Path) -> None:
    component, session = native(folder, CPU)
    assert component.get_selected_variant_name() == "source"
    assert session.get_providers() == [CPU]
    assert json.loads((folder / "manifest.json").read_text())["components"]["detector"]
