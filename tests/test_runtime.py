"""The look-up with real EPs: the right variant, verified, never silently another one."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from runtime_support import (
    CPU,
    OPENVINO,
    QNN,
    Site,
    content,
    cpu,
    edit,
    install,
    openvino,
    qnn,
    run_python,
    source,
    variant_of,
    write,
)

from hatch_epctx import runtime
from hatch_epctx.errors import LookupFailure, VerificationError
from hatch_epctx.runtime import plugins

ort: Any = pytest.importorskip("onnxruntime")

INPUT = {"x": np.linspace(-1, 1, 3 * 8 * 8, dtype=np.float32).reshape(1, 3, 8, 8)}
TOLERANCE = {
    # f32 by load_config: only the order of additions differs.
    OPENVINO: {"rtol": 1e-5, "atol": 1e-6},
    # The HTP computes float models in fp16: 11 bits of mantissa, accumulated over 27 products.
    QNN: {"rtol": 5e-3, "atol": 5e-3},
    CPU: {"rtol": 0, "atol": 0},
}


def expected(seed: int = 1) -> Any:
    return ort.InferenceSession(str(source(seed)), providers=[CPU]).run(None, INPUT)[0]


def check(session: Any, ep: str, seed: int = 1) -> None:
    assert session.get_providers()[0] == ep
    np.testing.assert_allclose(session.run(None, INPUT)[0], expected(seed), **TOLERANCE[ep])


@pytest.fixture
def full(tmp_path: Path) -> runtime.Package:
    """Everything at once: QNN for two SoCs first, then OpenVINO, then the source."""
    write(tmp_path / "p", qnn(), qnn("snapdragon-88", soc="88"), openvino(), cpu())
    return runtime.open(tmp_path / "p")


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_each_ep_agrees_with_the_cpu_on_the_source(full: runtime.Package) -> None:
    check(full.session("detector", ep="openvino"), OPENVINO)
    check(full.session("detector", ep="qnn"), QNN)
    check(full.session("detector", ep="cpu"), CPU)
    check(full.session("detector", variant="snapdragon-88"), QNN)


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_ort_opens_the_same_folder_with_no_code_of_ours(full: runtime.Package) -> None:
    for ep, options, name in (
        (OPENVINO, {}, "intel-cpu"),
        (QNN, {"backend_type": "htp"}, "snapdragon-60"),
        (CPU, {}, "source"),
    ):
        selecting = ort.SessionOptions()
        if ep != CPU:
            selecting.add_provider_for_devices(list(plugins.devices(ep))[:1], options)
        context = ort.ModelPackageContext(str(full.path))
        component = context.select_component("detector", ort.ModelPackageOptions(selecting))
        assert component.get_selected_variant_name() == name
        check(component.create_session(None), ep)


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_the_choice_tells_everything(full: runtime.Package) -> None:
    choice = full.lookup("detector")
    assert (choice.model, choice.variant, choice.ep, choice.device) == ("detector", "intel-cpu", OPENVINO, "cpu")
    assert choice.path == full.path / "detector.intel-cpu_ctx.onnx"
    assert choice.path.is_absolute()
    assert choice.provider_options["load_config"] == '{"CPU":{"INFERENCE_PRECISION_HINT":"f32"}}'
    assert choice.session_options == {
        "session.graph_optimization_level": "disable_all",
        "session.disable_model_compile": "1",
    }
    assert (choice.fallback, choice.rejected, choice.note) == (False, (), "")


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_hardware_goes_before_a_simulator_and_ties_go_to_the_first_declared(full: runtime.Package) -> None:
    assert full.lookup("detector").variant == "intel-cpu"
    choice = full.lookup("detector", ep="qnn")
    assert (choice.variant, choice.device) == ("snapdragon-60", "cpu")
    assert "simulator" in choice.note
    assert [rejection.reason for rejection in choice.rejected] == ["not-asked"]
    assert full.lookup("detector", device="npu").variant == "snapdragon-60"
    assert full.lookup("detector", ep="QNNExecutionProvider", variant="snapdragon-88").variant == "snapdragon-88"


@pytest.mark.ep_openvino
def test_explain_gives_the_choice_of_a_session(full: runtime.Package) -> None:
    session = full.session("detector", ep="openvino")
    choice = runtime.explain(session)
    assert choice.variant == "intel-cpu"
    assert [rejection.variant for rejection in choice.rejected] == ["snapdragon-60", "snapdragon-88"]
    with pytest.raises(LookupFailure, match="not made by"):
        runtime.explain(ort.InferenceSession(str(source())))


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_case_40_the_tree_can_be_moved_and_the_cwd_is_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "old", qnn(), openvino(), cpu())
    moved = tmp_path / "new place" / "ünïcode"
    moved.parent.mkdir()
    (tmp_path / "old").rename(moved)
    monkeypatch.chdir(tmp_path)
    package = runtime.open("new place/ünïcode/acme_vision")
    monkeypatch.chdir("/")
    check(package.session("detector", ep="openvino"), OPENVINO)
    check(package.session("detector", ep="qnn"), QNN)
    check(package.session("detector", ep="cpu"), CPU)


@pytest.mark.ep_openvino
def test_case_25_a_read_only_install_is_left_alone(tmp_path: Path) -> None:
    folder = install(tmp_path / "site", openvino(), cpu()) / "_epctx"
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        check(runtime.open(folder).session("detector"), OPENVINO)
        assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    finally:
        folder.chmod(0o755)


@pytest.mark.ep_openvino
@pytest.mark.parametrize("file", ["detector.intel-cpu_ctx.onnx", "*.bin"])
def test_a_corrupted_byte_is_an_error_whatever_the_fallback(tmp_path: Path, file: str) -> None:
    """EPs load a flipped bit without complaint, and a damaged installation is no reason to run something else."""
    write(tmp_path, openvino(), cpu())
    package = runtime.open(tmp_path)
    package.session("detector")
    (path,) = tmp_path.glob(file)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for verify in ("once", "always"):
        with pytest.raises(VerificationError, match="SHA-256") as caught:
            package.session("detector", verify=verify)
        assert caught.value.where == str(path)
        assert caught.value.exit_code == 8
    assert package.lookup("detector", ep="cpu").variant == "source"


@pytest.mark.ep_openvino
def test_a_missing_binary_is_named(tmp_path: Path) -> None:
    write(tmp_path, openvino(), cpu())
    (path,) = tmp_path.glob("*.bin")
    path.unlink()
    with pytest.raises(VerificationError, match="missing") as caught:
        runtime.open(tmp_path).session("detector", verify="never")
    assert caught.value.where == str(path)


@pytest.mark.ep_openvino
def test_files_of_other_variants_are_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path, openvino(), openvino("other", seed=2), cpu())
    (tmp_path / "detector.other_ctx.onnx").unlink()
    check(runtime.open(tmp_path).session("detector"), OPENVINO)


@pytest.mark.ep_openvino
def test_fallback_to_the_source_is_logged_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, openvino(compatibility=openvino().compatibility.replace("ov=20", "ov=19")), cpu())
    package = runtime.open(tmp_path)
    with caplog.at_level(logging.WARNING, logger="hatch_epctx"):
        session = package.session("detector")
    check(session, CPU)
    choice = runtime.explain(session)
    assert choice.fallback
    assert (choice.variant, choice.rejected[0].reason) == ("source", "incompatible")
    (record,) = caplog.records
    assert record.name == "hatch_epctx"
    assert "using the source model on the CPU" in record.getMessage()
    assert choice.rejected[0].text in record.getMessage()


@pytest.mark.ep_openvino
def test_case_04_openvinos_refusal_shows_what_was_recorded_and_what_was_found(tmp_path: Path) -> None:
    info = openvino().compatibility.replace("ov=20", "ov=19").replace("isa=", "isa=Other ")
    write(tmp_path, openvino(compatibility=info))
    with pytest.raises(LookupFailure) as caught:
        runtime.open(tmp_path).session("detector", fallback="error")
    assert caught.value.reason == "incompatible"
    assert "OpenVINO 19" in caught.value.detail
    assert "Other " in caught.value.detail
    found = caught.value.detail.split("OpenVINO 19", 1)[1]
    assert "recorded, 20" in found
    assert "avx" in found


@pytest.mark.ep_qnn
def test_case_04_qnn_of_an_older_sdk_is_refused_with_both(tmp_path: Path) -> None:
    newer = qnn(compatibility="v2:6:9.51.0:5.51.0:0:60:0:0")
    write(tmp_path, newer, cpu())
    with pytest.raises(LookupFailure, match="no variant can be used") as caught:
        runtime.open(tmp_path).lookup("detector", fallback="error")
    assert caught.value.reason == "sdk-mismatch"
    assert "SDK 9.51.0, found 2." in caught.value.detail


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_versions_that_differ_from_the_compile_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old = {"onnxruntime": "1.24.0", "distribution": "onnxruntime-ep-openvino", "version": "1.5.0"}
    newer = {"onnxruntime": ort.__version__, "distribution": "onnxruntime-qnn", "version": "9.0.0"}
    write(
        tmp_path,
        openvino(runtime=old),
        qnn(runtime=newer),
        openvino("broken", runtime=old, provider_options={"load_config": "x"}),
    )
    package = runtime.open(tmp_path)
    with caplog.at_level(logging.INFO, logger="hatch_epctx"):
        choice = package.lookup("detector")
    assert choice.note.startswith(f"compiled with onnxruntime 1.24.0, found {ort.__version__}; ")
    assert "compiled with onnxruntime-ep-openvino 1.5.0, found 1." in choice.note
    assert choice.note in caplog.records[0].getMessage()
    note = package.lookup("detector", ep="qnn").note
    assert "compiled with onnxruntime-qnn 9.0.0, found 2." in note
    assert "compiled with onnxruntime " not in note
    with pytest.raises(LookupFailure, match=r"found 1\.\d+") as caught:
        package.session("detector", variant="broken", fallback="error")
    assert "compiled with onnxruntime 1.24.0" in caught.value.detail


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_without_a_source_every_candidate_is_listed_with_its_reason(tmp_path: Path) -> None:
    write(tmp_path, qnn(compatibility="v2:6:9.0.0:5.51.0:0:60:0:0"), openvino(device="npu"))
    with pytest.raises(LookupFailure) as caught:
        runtime.open(tmp_path).session("detector")
    lines = caught.value.detail.splitlines()
    assert lines[0].startswith("  snapdragon-60: compiled with QNN SDK 9.0.0")
    assert lines[1] == f"  intel-cpu: needs a device of type npu for {OPENVINO}; found cpu"
    assert "ships no source model" in caught.value.remedy
    assert caught.value.reason == "no-variant"
    assert caught.value.exit_code == 7
    assert caught.value.where == "acme_vision.detector"


def test_an_ep_that_nobody_knows_is_named_with_its_distribution(tmp_path: Path) -> None:
    strange = cpu("strange", ep="AcmeExecutionProvider", kind="compiled", runtime={"distribution": "acme-ep"})
    evil = cpu("evil", ep="EvilExecutionProvider", kind="compiled", runtime={"distribution": "x; rm -rf ~"})
    write(tmp_path, strange, evil)
    with pytest.raises(LookupFailure) as caught:
        runtime.open(tmp_path).session("detector")
    first, second = caught.value.detail.splitlines()
    assert "needs AcmeExecutionProvider, which is not installed; there is CPUExecutionProvider" in first
    assert "pip install acme-ep" in first
    assert "rm" not in second
    assert caught.value.reason == "missing-ep"


ABSENT = """
import sys
from hatch_epctx import runtime
from hatch_epctx.errors import LookupFailure
package = runtime.open(sys.argv[1])
try:
    package.session("detector", fallback="error")
except LookupFailure as failure:
    print(failure)
print(package.session("detector").get_providers())
"""


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_case_37_an_ep_that_is_not_installed(tmp_path: Path) -> None:
    """The message says which EP is needed, what there is, and what installs it."""
    write(tmp_path / "p", qnn(), cpu())
    site = Site.make(tmp_path / "site", "onnxruntime", "onnxruntime_ep_openvino")
    run = site.run(ABSENT, str(tmp_path / "p"))
    assert "needs QNNExecutionProvider, which is not installed" in run.stdout, run.stderr
    assert "there is CPUExecutionProvider, OpenVINOExecutionProvider" in run.stdout
    assert run.stdout.count('pip install "onnxruntime-qnn>=2.7.0"') == 2
    assert run.stdout.endswith("['CPUExecutionProvider']\n")
    assert "using the source model on the CPU" in run.stderr


@pytest.mark.ep_openvino
def test_case_38_an_ep_whose_library_is_broken(tmp_path: Path) -> None:
    write(tmp_path / "p", openvino(), cpu())
    site = Site.make(tmp_path / "site", "onnxruntime")
    import onnxruntime_ep_openvino as installed

    broken = site.folder / "onnxruntime_ep_openvino"
    broken.mkdir()
    shutil.copy(installed.__file__, broken)
    (broken / Path(installed.get_library_path()).name).write_bytes(b"\x7fELF" + b"\0" * 500)
    run = site.run(ABSENT, str(tmp_path / "p"))
    assert "OpenVINOExecutionProvider is installed but does not load" in run.stdout, run.stderr
    assert run.stdout.endswith("['CPUExecutionProvider']\n")
    assert "using the source model on the CPU" in run.stderr


def test_without_onnxruntime_the_message_says_what_to_install(tmp_path: Path) -> None:
    write(tmp_path / "p", cpu())
    site = Site(tmp_path / "empty")
    site.folder.mkdir()
    run = site.run(ABSENT, str(tmp_path / "p"))
    assert re.match(r"\S+: ONNX Runtime is not installed\. ", run.stdout), "it says where"
    assert "pip install" in run.stdout


@pytest.mark.ep_openvino
def test_an_ep_that_refuses_its_options_is_no_reason_for_another_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Listed and registered, yet the session cannot be made: strict unless told otherwise."""
    write(tmp_path, openvino(provider_options={"load_config": "no json"}), openvino("plain"), cpu())
    package = runtime.open(tmp_path)
    with pytest.raises(LookupFailure) as caught:
        package.session("detector", fallback="error")
    assert caught.value.reason == "creation-failed"
    assert "JSON parsing error" in caught.value.detail
    with caplog.at_level(logging.WARNING, logger="hatch_epctx"):
        session = package.session("detector")
    check(session, OPENVINO)
    choice = runtime.explain(session)
    assert (choice.variant, choice.rejected[0].reason, choice.fallback) == ("plain", "creation-failed", False)
    assert "does not open" in caplog.records[0].getMessage()
    with pytest.raises(LookupFailure):
        package.session("detector", variant="intel-cpu", fallback="error")
    check(package.session("detector", variant="intel-cpu"), CPU)


@pytest.mark.ep_openvino
def test_a_compiled_variant_never_compiles_at_start_unless_asked(tmp_path: Path) -> None:
    disguised = cpu("disguised", ep=OPENVINO, kind="compiled", device="cpu", session_options={})
    write(tmp_path, disguised)
    package = runtime.open(tmp_path)
    with pytest.raises(LookupFailure) as caught:
        package.session("detector")
    assert "MODEL_REQUIRES_COMPILATION" in caught.value.detail
    session = package.session("detector", session_options={"session.disable_model_compile": "0"})
    assert session.get_providers()[0] == OPENVINO


@pytest.mark.ep_openvino
def test_options_of_the_caller_go_over_the_manifests(full: runtime.Package) -> None:
    bf16 = '{"CPU":{"INFERENCE_PRECISION_HINT":"bf16"}}'
    choice = full.lookup(
        "detector",
        ep="openvino",
        provider_options={"load_config": bf16, "other": "x"},
        session_options={"session.intra_op_num_threads": "1"},
    )
    assert choice.provider_options == {"load_config": bf16, "other": "x"}
    assert choice.session_options["session.intra_op_num_threads"] == "1"
    session = full.session("detector", ep="openvino", session_options={"session.intra_op_num_threads": "3"})
    options = session.get_session_options()
    assert options.intra_op_num_threads == 3
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert full.session("detector", ep="cpu").get_session_options().graph_optimization_level == (
        ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    )


@pytest.mark.ep_openvino
def test_session_options_of_the_caller_keep_what_the_caller_set(full: runtime.Package) -> None:
    own = ort.SessionOptions()
    own.intra_op_num_threads = 2
    own.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    own.add_session_config_entry("session.disable_model_compile", "0")
    session = full.session("detector", ep="openvino", session_options=own)
    made = session.get_session_options()
    assert (made.intra_op_num_threads, made.get_session_config_entry("session.disable_model_compile")) == (2, "0")
    assert made.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    check(session, OPENVINO)
    with pytest.raises(LookupFailure, match="have providers already"):
        full.session("detector", session_options=own)


@pytest.mark.ep_openvino
def test_session_options_of_the_caller_serve_one_attempt(tmp_path: Path) -> None:
    write(tmp_path, openvino(provider_options={"load_config": "no json"}), cpu())
    with pytest.raises(LookupFailure) as caught:
        runtime.open(tmp_path).session("detector", session_options=ort.SessionOptions())
    assert caught.value.reason == "creation-failed"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("session.graph_optimization_level", "basic"),
        ("session.execution_mode", "wild"),
        ("session.intra_op_num_threads", "many"),
        ("session.enable_mem_pattern", "maybe"),
    ],
)
def test_a_session_option_with_a_wrong_value_is_named(tmp_path: Path, key: str, value: str) -> None:
    write(tmp_path, cpu())
    with pytest.raises(LookupFailure, match=f"{key} = '{value}'") as caught:
        runtime.open(tmp_path).session("detector", session_options={key: value})
    assert caught.value.reason == "bad-option"


def test_wrong_arguments(full: runtime.Package) -> None:
    arguments: Any
    for arguments, error in (
        ({"fallback": "gpu"}, ValueError),
        ({"verify": "maybe"}, ValueError),
        ({"device": "tpu"}, ValueError),
        ({"provider_options": {"a": 1}}, TypeError),
        ({"session_options": ["a"]}, TypeError),
        ({"ep": 7}, TypeError),
        ({"variant": 7}, TypeError),
    ):
        with pytest.raises(error):
            full.session("detector", **arguments)
    with pytest.raises(TypeError, match="model is int; expected str"):
        full.session(7)  # type: ignore[arg-type]
    with pytest.raises(LookupFailure, match="no model 'detecter'") as caught:
        full.session("detecter")
    assert "Did you mean 'detector'?" in str(caught.value)
    with pytest.raises(LookupFailure, match="no variant 'intel'") as caught:
        full.lookup("detector", variant="intel")
    assert "intel-cpu" in str(caught.value)


@pytest.mark.ep_openvino
def test_a_wish_that_nothing_meets_lists_what_there_is(full: runtime.Package) -> None:
    with pytest.raises(LookupFailure) as caught:
        full.lookup("detector", ep="tensorrt-rtx", fallback="error")
    assert "NvTensorRTRTXExecutionProvider was asked for" in caught.value.detail
    assert caught.value.reason == "not-asked"
    with pytest.raises(LookupFailure, match=r"opnvino was asked for\. Did you mean 'openvino'\?"):
        full.lookup("detector", ep="opnvino", fallback="error")
    with pytest.raises(LookupFailure, match="no variant can be used"):
        full.lookup("detector", device="gpu", fallback="error")


@pytest.mark.ep_openvino
def test_a_package_of_another_tool_opens_only_unverified(tmp_path: Path) -> None:
    write(tmp_path, openvino())
    edit(tmp_path, lambda d: variant_of(d, "intel-cpu")["executor_info"].pop("epctx"))
    package = runtime.open(tmp_path)
    with pytest.raises(LookupFailure) as caught:
        package.session("detector")
    assert caught.value.reason == "unverifiable"
    check(package.session("detector", verify="never"), OPENVINO)


@pytest.mark.parametrize("name", ["../../secret.bin", "/etc/hostname", "a/../b.bin", "\\\\server\\x.bin"])
@pytest.mark.parametrize(
    "ep", [pytest.param(OPENVINO, marks=pytest.mark.ep_openvino), pytest.param(QNN, marks=pytest.mark.ep_qnn)]
)
def test_case_36_a_crafted_reference_inside_a_model_is_refused(tmp_path: Path, name: str, ep: str) -> None:
    """The package itself is consistent, yet its ONNX file points elsewhere: the EP refuses, and no session is made."""
    base = openvino() if ep == OPENVINO else qnn()
    model = onnx.load(base.files[0].path)
    (attribute,) = [a for node in model.graph.node for a in node.attribute if a.name == "ep_cache_context"]
    attribute.s = name.encode()
    onnx.save(model, tmp_path / "crafted.onnx")
    (tmp_path / "secret.bin").write_bytes(base.files[1].path.read_bytes())
    crafted = replace(base, files=(content(tmp_path / "crafted.onnx", "model"), base.files[1]))
    write(tmp_path / "a" / "b", crafted)
    with pytest.raises(LookupFailure) as caught:
        runtime.open(tmp_path / "a" / "b").session("detector")
    assert caught.value.reason == "creation-failed"


OUTSIDE = ("../x", "/etc/x", "C:\\x", "\\\\server\\x", "a/../../x", "..")
UNSAFE = (*OUTSIDE, "a/../x", "a/x", "C:x", "x\0", "")


@pytest.mark.parametrize(
    ("place", "name"),
    [(place, name) for place in ("model", "artifact", "folder") for name in UNSAFE]
    + [("option", name) for name in OUTSIDE],
)
@pytest.mark.ep_openvino
def test_case_36_a_crafted_manifest_is_refused_when_it_is_opened(tmp_path: Path, place: str, name: str) -> None:
    """A file is a name in the folder and nothing else, "a/../b" too; an option may hold text, but no way outside."""
    write(tmp_path, openvino())

    def craft(document: Any) -> None:
        variant = variant_of(document, "intel-cpu")
        if place == "model":
            variant["executor_info"]["ort"]["model_file"] = name
        elif place == "artifact":
            variant["executor_info"]["epctx"]["artifacts"][0]["path"] = name
        elif place == "option":
            variant["executor_info"]["ort"]["provider_options"]["load_config"] = json.dumps({"CPU": {"X": name}})
        else:
            variant["variant_directory"] = name

    edit(tmp_path, craft)
    with pytest.raises(VerificationError):
        runtime.open(tmp_path)


@pytest.mark.ep_openvino
@pytest.mark.skipif(os.name == "nt", reason="links are a privilege there")
@pytest.mark.parametrize("which", [".onnx", ".bin"])
def test_case_36_a_link_out_of_the_folder_is_refused(tmp_path: Path, which: str) -> None:
    write(tmp_path / "p", openvino())
    (path,) = (path for path in (tmp_path / "p").iterdir() if path.suffix == which)
    path.rename(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    for mode in ("once", "always", "never"):
        with pytest.raises(VerificationError) as caught:
            runtime.open(tmp_path / "p").session("detector", verify=mode)  # type: ignore[arg-type]
        assert caught.value.reason == "escape"


THREADS = """
import sys, threading
import onnxruntime as ort
from hatch_epctx import runtime
calls = []
real = ort.register_execution_provider_library
ort.register_execution_provider_library = lambda *a: (calls.append(a), real(*a))
package = runtime.open(sys.argv[1])
gate, found, failed = threading.Barrier(16), [], []
def work(ep):
    gate.wait()
    try:
        found.append(package.lookup("detector", ep=ep).ep)
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=work, args=(("openvino", "qnn")[n % 2],)) for n in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(calls), len(found), failed)
"""


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_sixteen_threads_register_each_plugin_once(full: runtime.Package) -> None:
    run = run_python(THREADS, str(full.path))
    assert run.stdout == "2 16 []\n", run.stderr


REGISTERED = """
import sys
import onnxruntime as ort, onnxruntime_ep_openvino
ort.register_execution_provider_library("mine", onnxruntime_ep_openvino.get_library_path())
from hatch_epctx import runtime
print(runtime.open(sys.argv[1]).session("detector", fallback="error").get_providers()[0])
print(sum(device.ep_name == "OpenVINOExecutionProvider" for device in ort.get_ep_devices()))
"""


@pytest.mark.ep_openvino
def test_a_plugin_that_the_application_registered_is_used(tmp_path: Path) -> None:
    write(tmp_path, openvino())
    run = run_python(REGISTERED, str(tmp_path))
    assert run.stdout == f"{OPENVINO}\n1\n", run.stderr


COST = """
import sys, time
from hatch_epctx import runtime
package = runtime.open(sys.argv[1])
package.session("detector", ep="openvino")
times = []
for _ in range(30):
    start = time.perf_counter()
    package.lookup("detector")
    times.append(time.perf_counter() - start)
print(min(times) * 1000, sorted(times)[15] * 1000)
"""


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_a_warm_look_up_costs_less_than_five_milliseconds(full: runtime.Package) -> None:
    """All of it but the session: three EPs judged, a variant's files verified. The least of many: others work too."""
    run = run_python(COST, str(full.path))
    assert float(run.stdout.split()[0]) < 5, run.stdout + run.stderr
