"""Compatibility of compiled models: what is compared where the EP leaves it open."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hatch_epctx.providers import all_providers
from hatch_epctx.providers.socs import SOCS
from hatch_epctx.runtime import qnn
from hatch_epctx.runtime.fit import OPTIMAL, RECOMPILE, UNANSWERED, fit
from hatch_epctx.runtime.plugins import PLUGINS, full_name, known

if TYPE_CHECKING:
    from pathlib import Path

QNN = known("QNNExecutionProvider")
X_ELITE = next(soc for soc in qnn.SOCS if soc.model == 60)
X2_ELITE = next(soc for soc in qnn.SOCS if soc.model == 88)
OLD = next(soc for soc in qnn.SOCS if soc.model == 30)


def hardware(kind: str) -> Any:
    """A device that is not here: QNN shows an NPU on Snapdragon machines alone."""
    return SimpleNamespace(device=SimpleNamespace(type=SimpleNamespace(name=kind)), ep_metadata={})


def test_the_look_up_and_the_build_know_the_same_chips() -> None:
    ours = {str(soc.model): (soc.name, soc.arch) for soc in qnn.SOCS}
    assert ours == {number: (soc.chip, soc.htp_arch) for number, soc in SOCS.items()}


@pytest.mark.parametrize(
    ("text", "sdk", "archs", "socs"),
    [
        ("v2:6:2.51.0:5.51.0:0:60:0:0", (2, 51, 0), (), (60,)),
        ("v2:6:2.51.0:5.51.0:73:0:8:0", (2, 51, 0), (73,), ()),
        ("v2:6:2.51.0:5.51.0:73,81:60,88:0,0:0", (2, 51, 0), (73, 81), (60, 88)),
        ("6:2.31.0:2.21.0:3.3.3:73:1", (2, 31, 0), (73,), ()),
    ],
)
def test_compatibility_strings(text: str, sdk: Any, archs: Any, socs: Any) -> None:
    assert qnn.parse(text) == qnn.Recorded(sdk=sdk, archs=archs, socs=socs)


@pytest.mark.parametrize(
    "text", ["", "garbage", "v2", "v2:6:2.51:5:0", "v3:6:2.51.0:5.51.0:0:60:0:0", "v2:6:x:5:a:b:0:0"]
)
def test_strings_of_another_form_are_not_guessed_at(text: str) -> None:
    assert qnn.parse(text) is None
    verdict = fit(QNN, hardware("NPU"), text or "?")
    assert verdict.reason == ""
    assert "unknown form" in verdict.note


@pytest.mark.parametrize(
    ("recorded", "found", "text"),
    [
        ({"socs": (60,)}, X_ELITE, ""),
        ({"socs": (60, 88)}, X2_ELITE, ""),
        ({"socs": (88,)}, X_ELITE, "compiled for SoC 88 (SC8480XP, HTP v81), found SoC 60 (SC8380XP, HTP v73)"),
        ({"socs": (43,)}, X_ELITE, "compiled for SoC 43 (SM8550, HTP v73), found SoC 60 (SC8380XP, HTP v73)"),
        ({"socs": (7,)}, X_ELITE, "compiled for SoC 7, found SoC 60 (SC8380XP, HTP v73)"),
        ({"archs": (73,)}, X_ELITE, ""),
        ({"archs": (73,)}, X2_ELITE, ""),
        ({"archs": (81,)}, X_ELITE, "compiled for HTP v81, found SoC 60 (SC8380XP, HTP v73)"),
        ({"archs": (69,)}, X_ELITE, "compiled for HTP v69, found SoC 60 (SC8380XP, HTP v73)"),
        ({"archs": (68,)}, OLD, ""),
        ({}, X_ELITE, ""),
    ],
)
def test_soc_and_architecture(recorded: Any, found: qnn.Soc, text: str) -> None:
    assert qnn.compare_soc(qnn.Recorded(sdk=(2, 51, 0), **recorded), found) == text


@pytest.mark.parametrize(
    ("recorded", "installed", "fits"),
    [
        ((2, 51, 0), (2, 51, 0), True),
        ((2, 51, 9), (2, 51, 0), True),
        ((2, 50, 0), (2, 51, 0), True),
        ((2, 52, 0), (2, 51, 0), False),
        ((3, 0, 0), (2, 51, 0), False),
        ((9, 0, 0), None, True),
    ],
)
def test_sdk(recorded: Any, installed: Any, fits: bool) -> None:
    text = qnn.compare_sdk(qnn.Recorded(sdk=recorded), installed)
    assert (text == "") == fits
    if not fits:
        assert "found 2.51.0" in text


def test_the_installed_sdk() -> None:
    pytest.importorskip("onnxruntime_qnn")
    version = qnn.installed_sdk()
    assert version is not None
    assert version >= (2, 51)


@pytest.mark.parametrize(("name", "model"), [("SM8550\n", 43), ("sc8380xp", 60), ("Pixel", None), ("", None)])
def test_linux_names_the_soc(tmp_path: Path, name: str, model: int | None) -> None:
    (tmp_path / "machine").write_text(name)
    found = qnn.machine_soc(tmp_path)
    assert (found.model if found else None) == model
    assert qnn.machine_soc(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("compatibility", "found", "score", "reason"),
    [
        ("v2:6:2.51.0:5.51.0:0:60:0:0", X_ELITE, OPTIMAL, ""),
        ("v2:6:2.51.0:5.51.0:73:0:0:0", X2_ELITE, RECOMPILE, ""),
        ("v2:6:2.51.0:5.51.0:0:60:0:0", None, UNANSWERED, ""),
        ("v2:6:2.51.0:5.51.0:0:88:0:0", X_ELITE, UNANSWERED, "soc-mismatch"),
        ("v2:6:9.51.0:5.51.0:0:60:0:0", X_ELITE, UNANSWERED, "sdk-mismatch"),
        ("", X_ELITE, UNANSWERED, ""),
    ],
)
def test_case_39_on_real_hardware_the_soc_decides(
    monkeypatch: pytest.MonkeyPatch, compatibility: str, found: Any, score: int, reason: str
) -> None:
    monkeypatch.setattr(qnn, "machine_soc", lambda: found)
    monkeypatch.setattr(qnn, "installed_sdk", lambda: (2, 51, 0))
    verdict = fit(QNN, hardware("NPU"), compatibility)
    assert (verdict.score, verdict.reason, verdict.simulated) == (score, reason, False)
    if reason:  # what was recorded and what was found
        recorded, present = {
            "soc-mismatch": ("compiled for SoC 88 (", "found SoC 60 ("),
            "sdk-mismatch": ("compiled with QNN SDK 9.51.0", "found 2.51.0"),
        }[reason]
        assert recorded in verdict.text
        assert present in verdict.text
    elif score == UNANSWERED:
        assert verdict.note


def test_the_simulator_takes_every_soc_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qnn, "installed_sdk", lambda: (2, 51, 0))
    verdict = fit(QNN, hardware("CPU"), "v2:6:2.51.0:5.51.0:0:88:0:0")
    assert verdict.simulated
    assert verdict.reason == ""
    assert "simulator" in verdict.note


def test_an_ep_without_devices_is_not_asked() -> None:
    verdict = fit(known("CUDAExecutionProvider"), None, "anything")
    assert (verdict.score, verdict.reason) == (UNANSWERED, "")
    assert verdict.note


def test_names_of_eps() -> None:
    assert full_name("openvino") == full_name("OpenVINOExecutionProvider") == "OpenVINOExecutionProvider"
    assert full_name("QNN") == "QNNExecutionProvider"
    assert full_name("SomethingElse") == "SomethingElse"
    assert known("SomethingElse").module == ""
    assert len({plugin.key for plugin in PLUGINS}) == len({plugin.ep for plugin in PLUGINS}) == len(PLUGINS)


def test_the_build_and_the_look_up_agree_on_eps() -> None:
    build = {provider.key: provider for provider in all_providers() if not provider.key.startswith("stub")}
    for plugin in PLUGINS:
        provider = build[plugin.key]
        assert (plugin.ep, plugin.module) == (provider.names[0], provider.module)
        assert plugin.simulates == provider.simulated
        assert plugin.asked == provider.manifest_compatibility
        assert not plugin.distribution or plugin.distribution in provider.distributions
    assert {key for key, provider in build.items() if provider.epcontext} <= {plugin.key for plugin in PLUGINS}
