"""`Package.sessions`: members of a weight-sharing group hold once what they share, with an EP that really shares."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import plugin_support as plugin
import pytest
from test_context_callbacks import Storage, built

from hatch_epctx import runtime
from hatch_epctx.errors import LookupFailure

if TYPE_CHECKING:
    from pathlib import Path

    from support import Factory

ort: Any = pytest.importorskip("onnxruntime")

EACH = {"ep.share_ep_contexts": "1"}
LAST = {**EACH, "ep.stop_share_ep_contexts": "1"}
GROUP = """[tool.epctx.models.neg]
source = "neg.onnx"
ship-source = true
[tool.epctx.models.twice]
source = "twice.onnx"
[tool.epctx.groups.pair]
models = ["neg", "twice"]
[tool.epctx.targets.t]
ep = "test-ep"
provider-options = {{ payload = 1000 }}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package folder of a group whose two members share one binary."""
    plugin.register()
    folder = tmp_path_factory.mktemp("group")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
        patch.setenv("PYTHONPATH", "")
        return built(folder, "files", GROUP)


@pytest.fixture
def package(folder: Path) -> runtime.Package:
    return runtime.open(folder)


def shares(session: Any) -> dict[str, str]:
    options = runtime.explain(session).session_options
    return {key: value for key, value in options.items() if "share_ep_contexts" in key}


def check(sessions: dict[str, Any]) -> None:
    for name, session in sessions.items():
        assert session.get_providers()[0] == plugin.EP
        got = session.run(None, plugin.INPUT)[0]
        np.testing.assert_array_equal(got, plugin.expected({"neg": 1, "twice": 2}[name.partition(".")[0]]))


def test_a_group_reads_its_binary_once(package: runtime.Package, folder: Path) -> None:
    (binary,) = folder.glob("*.bin")
    together, apart = Storage(folder), Storage(folder)
    sessions = package.sessions("neg", "twice", data=together)
    check(sessions)
    assert [name for name, _, _ in together.asked] == [binary.name]
    assert [shares(session) for session in sessions.values()] == [EACH, LAST]
    assert runtime.explain(sessions["neg"]).shares_with == ("neg.t", "twice.t")
    check({name: package.session(name, data=apart) for name in ("neg", "twice")})
    # Each of the model's nodes asks, where nothing is shared.
    assert [name for name, _, _ in apart.asked] == [binary.name] * 3


def test_a_group_can_be_opened_again_and_in_any_order(package: runtime.Package) -> None:
    for names in (("neg", "twice"), ("twice", "neg"), ("twice.t", "neg.t")):
        sessions = package.sessions(*names)
        assert tuple(sessions) == names
        check(sessions)
        assert [shares(session) for session in sessions.values()] == [EACH, LAST]


def test_one_member_alone_shares_nothing(package: runtime.Package) -> None:
    """Its group's other graphs would wait in the EP for whoever comes next."""
    sessions = package.sessions("twice")
    check(sessions)
    assert shares(sessions["twice"]) == {}
    assert shares(package.session("neg")) == {}


def test_threads_take_turns(package: runtime.Package, folder: Path) -> None:
    storage, found = Storage(folder), []

    def opens() -> None:
        found.append(package.sessions("neg", "twice", data=storage))

    threads = [threading.Thread(target=opens) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(storage.asked) == 6
    for sessions in found:
        check(sessions)


def test_what_does_not_open_together_is_opened_alone(
    package: runtime.Package, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = runtime.Package.session

    def fails(self: runtime.Package, model: str, **how: Any) -> Any:
        if how["session_options"].get("ep.stop_share_ep_contexts"):
            raise LookupFailure("graphs of that name are there already", reason="creation-failed")
        return real(self, model, **how)

    monkeypatch.setattr(runtime.Package, "session", fails)
    sessions = package.sessions("neg", "twice", session_options={"session.intra_op_num_threads": "1"})
    check(sessions)
    assert [shares(session) for session in sessions.values()] == [{}, {}]
    assert "neg, twice do not open together: graphs of that name are there already" in caplog.text
    for session in sessions.values():
        assert runtime.explain(session).session_options["session.intra_op_num_threads"] == "1"


def test_a_fallback_is_one_also_there(package: runtime.Package) -> None:
    with pytest.raises(LookupFailure, match="no variant can be used"):
        package.sessions("neg", "twice", ep="qnn")
    assert runtime.explain(package.sessions("neg", ep="qnn")["neg"]).fallback


def test_bad_arguments(package: runtime.Package) -> None:
    with pytest.raises(TypeError, match="session_options is SessionOptions; expected a mapping"):
        package.sessions("neg", session_options=ort.SessionOptions())
    with pytest.raises(LookupFailure, match="there is no model 'negg'"):
        package.sessions("neg", "negg")
    with pytest.raises(LookupFailure, match="the model has no variant 'u'"):
        package.sessions("neg.u")
    with pytest.raises(TypeError, match="model is int; expected str"):
        package.sessions(1)  # type: ignore[arg-type]


class TestOpenvino:
    """It writes a binary for each member: nothing is shared, and nobody is told to."""

    def test_a_group_that_shares_nothing(self, factory: Factory, tmp_path: Path) -> None:
        pytest.importorskip("onnxruntime_ep_openvino")
        from test_groups import GROUP as PAIR
        from test_groups import build, project, write_package

        table = PAIR + '[tool.epctx.targets.cpu]\nep = "openvino"\ndevice = "cpu"\n'
        with build(project(factory, table), tmp_path / "store") as done:
            done.raise_for_failures()
            write_package(done, tmp_path / "package", version="1")
        sessions = runtime.open(tmp_path / "package").sessions("prefill", "decode")
        assert [runtime.explain(session).shares_with for session in sessions.values()] == [(), ()]
        assert [shares(session) for session in sessions.values()] == [{}, {}]
