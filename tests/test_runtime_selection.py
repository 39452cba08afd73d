"""Which variant is chosen: preferences, device policies, companions, several packages, and every reason against one."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from runtime_support import CPU, OPENVINO, QNN, cpu, edit, install, openvino, qnn, variant_of, write

from hatch_epctx import runtime
from hatch_epctx.errors import LookupFailure, VerificationError
from hatch_epctx.runtime import plugins
from hatch_epctx.runtime import qnn as qnn_rules
from hatch_epctx.runtime.choice import REASONS
from hatch_epctx.runtime.preference import POLICIES, VARIABLE, preference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ort: Any = pytest.importorskip("onnxruntime")

MISSING = "AcmeExecutionProvider"


@pytest.fixture
def full(tmp_path: Path) -> runtime.Package:
    write(tmp_path / "p", qnn(), qnn("snapdragon-88", soc="88"), openvino(), openvino("second"), cpu())
    return runtime.open(tmp_path / "p")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an NPU, a GPU and a CPU of three EPs that are not here. Nothing is opened on them."""

    def devices(ep: str) -> tuple[Any, ...]:
        kind = {"NpuExecutionProvider": "NPU", "GpuExecutionProvider": "GPU"}.get(ep, "CPU")
        return (SimpleNamespace(device=SimpleNamespace(type=SimpleNamespace(name=kind)), ep_metadata={}),)

    monkeypatch.setattr(plugins, "devices", devices)


@pytest.fixture
def three(tmp_path: Path, machine: None) -> runtime.Package:
    kinds = {"on-cpu": "CpuExecutionProviderOfAcme", "on-npu": "NpuExecutionProvider", "on-gpu": "GpuExecutionProvider"}
    variants = (cpu(name, ep=ep, kind="compiled", device=name[3:]) for name, ep in kinds.items())
    write(tmp_path / "p", *variants, cpu())
    return runtime.open(tmp_path / "p")


@pytest.mark.parametrize(
    ("prefer", "variant"),
    [
        (None, "on-cpu"),
        ("DEFAULT", "on-cpu"),
        ("PREFER_CPU", "on-cpu"),
        ("PREFER_NPU", "on-npu"),
        ("prefer-gpu", "on-gpu"),
        ("MAX_PERFORMANCE", "on-gpu"),
        ("MAX_EFFICIENCY", "on-npu"),
        ("MIN_OVERALL_POWER", "on-npu"),
        (["on-gpu", "on-npu"], "on-gpu"),
        ("npu", "on-npu"),
        ("nothing-like-it, *-gpu", "on-gpu"),
        (["NpuExecutionProvider"], "on-npu"),
        ("!cpu", "on-npu"),
        ("!cpu !npu", "on-gpu"),
        ("!on-cpu MAX_PERFORMANCE", "on-gpu"),
        ("MAX_EFFICIENCY !npu", "on-cpu"),
        ("source", "source"),
    ],
)
def test_what_is_preferred_goes_first(three: runtime.Package, prefer: Any, variant: str) -> None:
    assert three.lookup("detector", prefer=prefer).variant == variant


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_are_onnx_runtimes(three: runtime.Package, policy: str) -> None:
    member = getattr(ort.OrtExecutionProviderDevicePolicy, policy)
    assert three.lookup("detector", prefer=member) == three.lookup("detector", prefer=policy)


def test_every_policy_of_onnx_runtime_is_known() -> None:
    assert set(ort.OrtExecutionProviderDevicePolicy.__members__) == set(POLICIES)


@pytest.mark.parametrize(
    ("environment", "prefer", "variant"),
    [
        ("npu", None, "on-npu"),
        ("npu", "on-gpu", "on-npu"),
        ("PREFER_GPU", "PREFER_NPU", "on-gpu"),
        ("!on-gpu", "MAX_PERFORMANCE", "on-npu"),
        ("DEFAULT", "gpu", "on-cpu"),
        ("on-gpu", "!gpu", "on-cpu"),
        (" ", "gpu", "on-gpu"),
        ("source", "gpu", "source"),
    ],
)
def test_the_users_word_goes_over_the_applications(
    three: runtime.Package, monkeypatch: pytest.MonkeyPatch, environment: str, prefer: Any, variant: str
) -> None:
    """What the application rules out stays out."""
    monkeypatch.setenv(VARIABLE, environment)
    assert three.lookup("detector", prefer=prefer).variant == variant


def test_what_is_ruled_out_is_no_fallback_either(three: runtime.Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "!npu,!gpu,!cpu")
    with pytest.raises(LookupFailure) as caught:
        three.session("detector")
    assert caught.value.reason == "excluded"
    assert f"  on-npu: is ruled out by '!npu' in {VARIABLE}" in caught.value.detail.splitlines()


def test_wrong_words(three: runtime.Package, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'PREFER_TPU' in prefer is no device policy"):
        three.lookup("detector", prefer="PREFER_TPU")
    with pytest.raises(ValueError, match="an empty word in prefer"):
        three.lookup("detector", prefer=["!"])
    wrong: Any
    for wrong in (5, {"npu": 1}, ["npu", 1]):
        with pytest.raises(TypeError, match="prefer"):
            three.lookup("detector", prefer=wrong)
    monkeypatch.setenv(VARIABLE, "max-speed")
    with pytest.raises(LookupFailure, match="'max-speed' in EPCTX_PREFER is no device policy") as caught:
        three.lookup("detector")
    assert (caught.value.reason, caught.value.where) == ("bad-variable", VARIABLE)


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_a_policy_does_not_lift_a_simulator_above_hardware_and_a_name_does(full: runtime.Package) -> None:
    assert full.lookup("detector", prefer="PREFER_NPU").variant == "intel-cpu"
    assert full.lookup("detector", prefer="qnn").variant == "snapdragon-60"
    assert full.lookup("detector", prefer="*-88").variant == "snapdragon-88"
    assert full.lookup("detector", prefer="second").variant == "second"
    assert full.session("detector", prefer=["npu"]).get_providers()[0] == QNN
    assert full.lookup("detector", prefer=["!openvino"]).ep == QNN


def test_preferences_are_values() -> None:
    assert preference("qnn npu", {}) == preference(["qnn", "npu"], {}) == preference(None, {VARIABLE: "qnn,npu"})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.startswith("acme")]:
        del sys.modules[name]


def companion(site: Path, name: str, *variants: Any, version: str = "1.2.3", package: str = "acme_vision") -> Path:
    """A companion data package as its wheel's installation leaves it."""
    folder = install(site, *variants, package=name) / "_epctx"
    edit(folder, lambda d: d.update(package_name=package, package_version=version))
    return folder


@pytest.mark.ep_openvino
def test_a_companion_brings_variants_and_is_found_without_importing_it(site: Path) -> None:
    install(site, cpu())
    folder = companion(site, "acme_vision_epctx_intel", openvino())
    package = runtime.open("acme_vision")
    assert package.variants("detector") == ("source", "intel-cpu")
    choice = package.lookup("detector")
    assert (choice.variant, choice.package) == ("intel-cpu", "acme_vision_epctx_intel")
    assert choice.path == folder / "detector.intel-cpu_ctx.onnx"
    assert package.session("detector").get_providers()[0] == OPENVINO
    assert not [name for name in sys.modules if name.startswith("acme")]
    assert "and 1 more" in repr(package)


@pytest.mark.ep_openvino
def test_the_packages_own_variant_goes_before_a_companions(site: Path) -> None:
    install(site, openvino())
    companion(site, "acme_vision_epctx_intel", openvino(), openvino("other"))
    package = runtime.open("acme_vision")
    assert package.lookup("detector").package == "acme_vision"
    assert package.lookup("detector", prefer="other").package == "acme_vision_epctx_intel"


@pytest.mark.ep_openvino
def test_a_package_that_is_all_companions(site: Path) -> None:
    (site / "acme_vision").mkdir()
    (site / "acme_vision" / "__init__.py").write_text("")
    with pytest.raises(LookupFailure, match=r"has no _epctx/manifest\.json"):
        runtime.open("acme_vision")
    companion(site, "acme_vision_epctx_intel", openvino())
    companion(site, "acme_vision_epctx_source", cpu())
    package = runtime.open("acme_vision")
    assert package.variants("detector") == ("intel-cpu", "source")
    assert package.name == "acme_vision"


@pytest.mark.ep_openvino
def test_a_companion_of_another_version_is_rejected_with_both(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(site, cpu())
    companion(site, "acme_vision_epctx_intel", openvino(), version="1.2.2")
    package = runtime.open("acme_vision")
    with caplog.at_level(logging.WARNING, logger="hatch_epctx"):
        choice = package.lookup("detector")
    assert (choice.variant, choice.fallback) == ("source", True)
    (rejection,) = choice.rejected
    assert (rejection.reason, rejection.package) == ("version-mismatch", "acme_vision_epctx_intel")
    assert rejection.text == "belongs to version 1.2.2 of acme_vision, and acme_vision is of version 1.2.3"
    assert "intel-cpu of acme_vision_epctx_intel: belongs" in caplog.text


def test_what_is_no_companion_of_this_package(site: Path) -> None:
    install(site, cpu())
    companion(site, "acme_sound_epctx_npu", cpu("foreign"), package="acme_sound")
    broken = companion(site, "other_epctx_npu", cpu("broken"), package="other")
    (broken / "manifest.json").write_text("{")
    (site / "acme_vision_epctx_empty").mkdir()
    assert runtime.open("acme_vision").variants("detector") == ("source",)
    assert runtime.open(site / "acme_vision").variants("detector") == ("source",)
    ours = companion(site, "acme_vision_epctx_npu", cpu("broken"))
    (ours / "manifest.json").write_text("{")
    with pytest.raises(
        VerificationError, match=r"manifest.json: no valid JSON: .*\. It is damaged or was changed: build or"
    ):
        runtime.open("acme_vision")


def test_several_packages_are_one(tmp_path: Path) -> None:
    write(tmp_path / "a", cpu(), model="detector", name="a")
    write(tmp_path / "b", cpu("source", seed=2), cpu("plain", kind="compiled"), model="detector", name="b")
    write(tmp_path / "c", cpu(), model="reader", name="c")
    package = runtime.open(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert package.models == ("detector", "reader")
    assert package.variants("detector") == ("source", "plain")
    assert package.lookup("detector").package == "b"
    assert package.lookup("detector", ep="cpu").path == tmp_path / "a" / "detector.onnx"
    assert package.session("reader").get_providers() == [CPU]
    with pytest.raises(TypeError):
        runtime.open()


def _reject(folder: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """Make a package in `folder` with one variant, "it", that is rejected for `reason` when "it" is asked for."""
    strange = {"ep": MISSING, "kind": "compiled"}
    npu = SimpleNamespace(device=SimpleNamespace(type=SimpleNamespace(name="NPU")), ep_metadata={})
    if reason == "silent-fallback":
        monkeypatch.setattr(ort.InferenceSession, "get_providers", lambda _self: [CPU])
    if reason == "soc-mismatch":
        monkeypatch.setattr(plugins, "devices", lambda _ep: (npu,))
        monkeypatch.setattr(qnn_rules, "machine_soc", lambda: qnn_rules.SOCS[0])
    make: dict[str, Callable[[], Any]] = {
        "unverifiable": lambda: cpu("it", kind="compiled"),
        "missing-ep": lambda: cpu("it", **strange),
        "ep-not-loadable": lambda: cpu("it", ep="NvTensorRTRTXExecutionProvider", kind="compiled"),
        "no-device": lambda: openvino("it", device="npu"),
        "incompatible": lambda: openvino("it", compatibility=openvino().compatibility.replace("ov=20", "ov=19")),
        "sdk-mismatch": lambda: qnn("it", compatibility="v2:6:9.51.0:5.51.0:0:60:0:0"),
        "soc-mismatch": lambda: qnn("it"),
        "not-simulated": lambda: qnn("it", group={"name": "g", "members": ["a.it", "b.it"], "shared": True}),
        "missing-custom-ops": lambda: openvino("it", runtime={"custom_ops": [{"file": "ops.so", "digest": "0" * 64}]}),
        "wrong-custom-ops": lambda: openvino("it", runtime={"custom_ops": [{"module": "os", "distribution": "numpy"}]}),
        "creation-failed": lambda: openvino("it", provider_options={"load_config": "no json"}),
        "silent-fallback": lambda: openvino("it"),
        "callbacks-unsupported": lambda: openvino("it"),
    }
    make["compile-failed"] = make["incompatible"]
    more = [cpu()] if reason == "compile-failed" else []
    if more:
        monkeypatch.setenv("EPCTX_OFFLINE", "1")
    write(folder, make.get(reason, lambda: cpu("it", kind="compiled"))(), *more)
    if reason == "unverifiable":
        edit(folder, lambda d: variant_of(d, "it")["executor_info"].pop("epctx"))


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_is_told(tmp_path: Path, site: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    library = "def get_library_path():\n    return __file__\n"  # is there, and does not load
    (site / "onnxruntime_ep_nv_tensorrt_rtx.py").write_text(library)
    wishes: Any = {
        "not-asked": {"ep": "qnn"},
        "excluded": {"prefer": "!it"},
        "callbacks-unsupported": {"data": "callbacks"},
        "compile-failed": {"variant": "it", "fallback": "compile"},
    }.get(reason, {"variant": "it"})
    wishes = {"fallback": "error", **wishes}
    if reason == "version-mismatch":
        install(site, cpu())
        companion(site, "acme_vision_epctx_it", cpu("it", kind="compiled"), version="9")
        package = runtime.open("acme_vision")
    else:
        _reject(tmp_path / "p", monkeypatch, reason)
        package = runtime.open(tmp_path / "p")
    with pytest.raises(LookupFailure) as caught:
        package.session("detector", **wishes)
    assert "  it" in caught.value.detail
    told = {"version-mismatch": "belongs to version 9", "compile-failed": "compiling it here: detector."}
    assert told[reason] in caught.value.detail if reason in told else caught.value.reason == reason
