"""`executor = "reapi"`: compiles on buildbox-casd's workers, with the bytes and the identity of a compile here."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from reapi_server import Casd, Script, free_port
from support import OPENVINO_TARGET, QNN_TARGET, REPOSITORY, STUB_TARGET, Factory, Run, Tree, epctx, here

from hatch_epctx.toolchain import Host, elsewhere

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.reapi

STUB = Path(__file__).parent / "stub_ep"


@pytest.fixture(scope="module")
def casd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Casd]:
    with Casd(tmp_path_factory.mktemp("casd"), execute=True) as server:
        yield server


def project(factory: Factory, table: str, *, head: str = 'executor = "reapi"\n', name: str = "project") -> Tree:
    tree = factory.project(table, name=name)
    path = tree.root / "pyproject.toml"
    path.write_text(path.read_text().replace("[tool.epctx]\n", f"[tool.epctx]\n{head}", 1))
    return tree


def environment(url: str, tmp_path: Path, store: str = "remote") -> dict[str, str]:
    return {
        "EPCTX_CACHE_DIR": str(tmp_path / store),
        "EPCTX_REMOTE_CACHE": url,
        "EPCTX_REMOTE_RETRIES": "1",
        "EPCTX_TRACE_WORKERS": str(tmp_path / f"workers-{store}.txt"),
    }


def tasks(tmp_path: Path, store: str = "remote") -> list[str]:
    path = tmp_path / f"workers-{store}.txt"
    return path.read_text().split() if path.exists() else []


def made(run: Run) -> dict[str, Any]:
    return {
        item["variant"]: (item["identity"], sorted((each["path"], each["sha256"]) for each in item["artifacts"]))
        for item in run.json["variants"]
    }


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_the_same_bytes_and_identities_as_here(casd: Casd, factory: Factory, tmp_path: Path) -> None:
    """No EP code runs on this machine; what the executor made serves a machine that fetches, and a null build."""
    targets = OPENVINO_TARGET + QNN_TARGET.replace('"60", ', "")
    here_tree = project(factory, targets, head="", name="here")
    away_tree = project(factory, targets, name="away")
    for tree in (here_tree, away_tree):
        path = tree.root / "pyproject.toml"
        path.write_text(path.read_text().replace('detector.onnx"\n', 'detector.onnx"\ncheck = { seed = 3 }\n', 1))
    local = epctx("build", "--json", cwd=here_tree.root, env={"EPCTX_CACHE_DIR": str(tmp_path / "local")})
    env = environment(casd.url, tmp_path)
    away = epctx("build", "--json", cwd=away_tree.root, env=env)
    assert {item["status"] for item in away.json["variants"]} == {"compiled"}
    assert {item["check"]["outcome"] for item in away.json["variants"]} == {"passed"}
    assert made(away) == made(local)
    assert set(tasks(tmp_path)) == {"scan", "remote-probe", "remote-compile", "remote-load", "remote-check"}
    assert f"on {casd.url}" in away.err
    null = epctx("build", "--json", cwd=away_tree.root, env=env)
    assert {item["status"] for item in null.json["variants"]} == {"hit"}
    assert null.json["remote"]["round_trips"] == {}
    fetched = epctx("build", "--json", cwd=here_tree.root, env=environment(casd.url, tmp_path, "other"))
    assert {item["status"] for item in fetched.json["variants"]} == {"fetched"}
    assert made(fetched) == made(local)


def test_groups_options_and_weights_go_along(casd: Casd, factory: Factory, tmp_path: Path) -> None:
    table = """
[tool.epctx.models.two]
source = "models/deep/two.onnx"
[tool.epctx.targets.stub]
ep = "stub"
provider-options = { mode = "share", settings = "settings.json", tree = "data" }
env = { FLAG = "1" }
[tool.epctx.groups.g]
models = ["*"]
"""
    trees = [project(factory, table, head=head, name=name) for name, head in (("a", ""), ("b", 'executor = "reapi"\n'))]
    for tree in trees:
        tree.model("deep/two", seed=9, weights="two.data")
        (tree.root / "settings.json").write_text('{"a": 1}')
        (tree.root / "data" / "inner").mkdir(parents=True)
        (tree.root / "data" / "inner" / "one").write_text("1")
    local = here("build", "--json", cwd=trees[0].root, env={"EPCTX_CACHE_DIR": str(tmp_path / "local")})
    away = here("build", "--json", cwd=trees[1].root, env=environment(casd.url, tmp_path))
    assert made(away) == made(local)
    assert "remote-share" in tasks(tmp_path)


@pytest.mark.parametrize(
    ("mode", "code", "says"),
    [
        pytest.param("fail", 5, "the compile failed: ", marks=pytest.mark.slow),
        ("crash-before", 5, "the worker ended with exit status 3 on the executor"),
        pytest.param("exit-zero", 5, "the worker ended without a usable result", marks=pytest.mark.slow),
        ("load-fail", 5, "the load check failed"),
        pytest.param("no-node", 5, "took no node of the model", marks=pytest.mark.slow),
    ],
)
def test_faults_of_a_worker_read_as_they_do_here(
    casd: Casd, factory: Factory, tmp_path: Path, mode: str, code: int, says: str
) -> None:
    tree = project(factory, STUB_TARGET + f'provider-options = {{ mode = "{mode}" }}\n')
    run = here("build", cwd=tree.root, env=environment(casd.url, tmp_path), check=False)
    assert run.code == code
    assert says in run.err


def test_a_worker_beyond_its_time(casd: Casd, factory: Factory, tmp_path: Path) -> None:
    tree = project(factory, STUB_TARGET + 'timeout = 2\nprovider-options = { mode = "hang" }\n')
    start = time.monotonic()
    run = here("build", cwd=tree.root, env=environment(casd.url, tmp_path), check=False)
    assert run.code == 5
    assert "time limit of 2 s" in run.err or "overran its time" in run.err, run.err
    assert time.monotonic() - start < 90


def test_an_executor_that_is_not_there(factory: Factory, tmp_path: Path) -> None:
    url = f"grpc://127.0.0.1:{free_port()}"
    tree = project(factory, STUB_TARGET)
    run = here("build", cwd=tree.root, env=environment(url, tmp_path), check=False)
    assert run.code == 5
    assert f"the executor {url}: " in run.err
    assert 'compile on this machine with executor = "local"' in run.err


def test_a_cache_that_executes_nothing(factory: Factory, tmp_path: Path) -> None:
    with Script() as script:
        tree = project(factory, STUB_TARGET)
        run = here("build", cwd=tree.root, env=environment(script.url, tmp_path), check=False)
    assert run.code == 5
    assert "it executes nothing" in run.err


def test_an_executor_that_dies_in_the_middle(factory: Factory, tmp_path: Path) -> None:
    tree = project(factory, STUB_TARGET + 'provider-options = { mode = "hang" }\n')
    with Casd(tmp_path / "casd", execute=True) as casd:
        killer = threading.Thread(target=lambda: (started(casd), casd.kill()))
        killer.start()
        run = here("build", cwd=tree.root, env=environment(casd.url, tmp_path), check=False)
        killer.join()
    assert run.code == 5
    assert f"the executor {casd.url}: " in run.err


def test_a_worker_that_is_killed(casd: Casd, factory: Factory, tmp_path: Path) -> None:
    """As by a system without memory: the executor goes on, and says how the worker ended."""
    tree = project(factory, STUB_TARGET + 'timeout = 100\nprovider-options = { mode = "hang" }\n')
    killer = threading.Thread(target=lambda: os.kill(started(casd), signal.SIGKILL))
    killer.start()
    run = here("build", cwd=tree.root, env=environment(casd.url, tmp_path), check=False)
    killer.join()
    assert run.code == 5
    assert re.search(r"the worker ended with exit status -?[1-9]\d* on the executor", run.err), run.err


def started(casd: Casd) -> int:
    """Wait until a worker of a compile runs on the executor, a descendant of its server; return its process."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                ours = b"epctx/hatch_epctx/worker/__main__.py" in words and b"python" in words[0]
                if ours and b"--pinned" in words and casd.process.pid in ancestors(int(entry.name)):
                    return int(entry.name)
            except OSError:
                continue
        time.sleep(0.05)
    raise AssertionError("no worker was started")


def ancestors(process: int) -> Iterator[int]:
    while process > 1:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        yield process


def test_an_interrupt_ends_the_build_and_what_runs_for_it(casd: Casd, factory: Factory, tmp_path: Path) -> None:
    """The action is cancelled: the worker ends now, and not at its time limit."""
    tree = project(factory, STUB_TARGET + 'timeout = 300\nprovider-options = { mode = "slow", seconds = 200 }\n')
    env = {**os.environ, **environment(casd.url, tmp_path), "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(STUB)])}
    process = subprocess.Popen(
        [sys.executable, "-m", "hatch_epctx", "build"],
        cwd=tree.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    worker = started(casd)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "Traceback" not in out
    end = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < end, "the worker runs on"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({}, "expected a grpc:// or grpcs:// URL in tool.epctx.cache.remote or EPCTX_REMOTE_CACHE"),
        ({"EPCTX_REMOTE_CACHE": "http://cache.example"}, "found reapi, and http://cache.example:80"),
        (
            {"EPCTX_REMOTE_CACHE": "grpc://cache.example:1", "EPCTX_REMOTE_PLATFORM": "OSFamily"},
            "EPCTX_REMOTE_PLATFORM: found 'OSFamily'; expected NAME=VALUE",
        ),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(factory: Factory, env: dict[str, str], says: str) -> None:
    tree = project(factory, STUB_TARGET)
    run = here("plan", cwd=tree.root, env=env, check=False)
    assert run.code == 2
    assert says in run.err


# The machine of the identity


def test_a_worker_on_another_machine_refuses() -> None:
    machine = Host.here().document()
    job: Any = {"format": 1, "task": "scan", "inner": "hatch_epctx.worker.procedure", "ep": "", "model": "none"}
    for name, other in (
        ("os", "plan9"),
        ("isa", ["avx9"]),
        ("cores", 4096),
        ("topology", {"packages": 9}),
        ("python", "2.7"),
    ):
        result = elsewhere.run({**job, "machine": {**machine, name: other}})
        assert (result["ok"], result["reason"]) == (False, "other-machine")
        assert f"{name} is " in result["error"]
        assert Host.from_document(result["extra"]["machine"]) == Host.here()
    assert elsewhere.run({**job, "machine": machine})["reason"] != "other-machine"


@pytest.mark.parametrize(
    "value",
    [None, [], {}, {"os": "linux"}, {**Host.here().document(), "cores": "2"}, {**Host.here().document(), "isa": [1]}],
)
def test_a_machine_that_describes_itself_wrongly(value: Any) -> None:
    with pytest.raises(ValueError, match="no description of a machine"):
        Host.from_document(value)
    assert Host.from_document(Host.here().document()) == Host.here()


@pytest.mark.slow
@pytest.mark.ep_openvino
def test_machines_of_the_farm_that_changed(casd: Casd, factory: Factory, tmp_path: Path) -> None:
    """What was remembered of them no longer holds: the worker refuses, and the next build asks anew."""
    tree = project(factory, OPENVINO_TARGET)
    env = environment(casd.url, tmp_path)
    first = epctx("plan", "--json", cwd=tree.root, env=env)
    (fact,) = [path for path in (tmp_path / "remote").rglob("*") if path.is_file() and "/farm/" in str(path)]
    fact.chmod(0o600)
    fact.write_text(fact.read_text().replace('"packages":1', '"packages":7').replace('"packages": 1', '"packages": 7'))
    changed = epctx("plan", "--json", cwd=tree.root, env=env)
    assert changed.json["variants"][0]["identity"] != first.json["variants"][0]["identity"]
    refused = epctx("build", cwd=tree.root, env=env, check=False)
    assert refused.code == 5
    assert "the worker runs on another machine than the identity names: topology is " in refused.err
    again = epctx("build", "--json", cwd=tree.root, env=env)
    assert again.json["variants"][0]["identity"] == first.json["variants"][0]["identity"]
