"""Builds with a remote cache: `epctx build` and `hatch build` on two machines, casd and nginx between them.

A machine is a store, a HOME and a folder of its own. The stub EP stands where faults and counts matter; the real EPs
compile once, in the test of the cold machine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from frontend_support import SYSTEM_ENVIRONMENT, front_end, package_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reapi_server import Casd, Nginx, Script, free_port, silent_port
from support import OPENVINO_TARGET, QNN_TARGET, REPOSITORY, STUB_TARGET, Factory, Run, Tree, epctx, here

from hatch_epctx.cli.projects import described
from hatch_epctx.compile import check_facts
from hatch_epctx.config import load_project
from hatch_epctx.digest import digest_bytes
from hatch_epctx.doctor import remote as doctor_remote
from hatch_epctx.frontend import dynamic_requirements
from hatch_epctx.pipeline import Build, Entry, Pipeline, summary
from hatch_epctx.pipeline.remoting import RemoteCache
from hatch_epctx.remote.entry import RECORD_NAME, key_of
from hatch_epctx.remote.proto import reapi_pb2 as pb
from hatch_epctx.report import render_page
from hatch_epctx.store import Artifact, Store
from hatch_epctx.wheel.contents import model_contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import grpc

    from hatch_epctx.config import Project
    from hatch_epctx.pipeline import Planned

pytestmark = pytest.mark.reapi

STUB = Path(__file__).parent / "stub_ep"
COMPILES = {"compile", "share", "load", "check"}
"""Worker tasks of which a machine that fetches everything starts none."""


@dataclass
class Machine:
    """One machine with its copy of the project."""

    folder: Path
    tree: Tree
    url: str
    more: dict[str, str] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {
            "EPCTX_CACHE_DIR": str(self.folder / "cache"),
            "EPCTX_REMOTE_CACHE": self.url,
            "EPCTX_REMOTE_RETRIES": "1",
            "EPCTX_TRACE_WORKERS": str(self.folder / "workers.txt"),
            "HOME": str(self.folder / "home"),
            "XDG_CACHE_HOME": str(self.folder / "home" / "cache"),
            **self.more,
        }

    def build(self, *arguments: str, run: Callable[..., Run] = here, check: bool = True, **env: str) -> Run:
        self.tasks()
        return run("build", "--json", *arguments, cwd=self.tree.root, env={**self.env, **env}, check=check)

    def tasks(self) -> list[str]:
        """Tasks of the workers since the last look."""
        path = self.folder / "workers.txt"
        if not path.exists():
            return []
        text = path.read_text()
        path.unlink()
        return text.split()


@pytest.fixture
def machine(factory: Factory, tmp_path: Path) -> Callable[..., Machine]:
    """Makes machines, each with a copy of one project."""
    count = 0

    def make(url: str, table: str = STUB_TARGET, **more: str) -> Machine:
        nonlocal count
        count += 1
        folder = tmp_path / f"machine-{count}"
        if not (tmp_path / "project").exists():
            factory.project(table + SYSTEM_ENVIRONMENT)
        shutil.copytree(tmp_path / "project", folder / "work" / "project")
        (folder / "home").mkdir()
        return Machine(folder, Tree(folder / "work" / "project"), url, more)

    return make


@pytest.fixture(scope="module")
def casd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Casd]:
    with Casd(tmp_path_factory.mktemp("casd")) as server:
        yield server


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with Nginx(tmp_path_factory.mktemp("nginx")) as server:
        yield server


def statuses(run: Run) -> dict[str, str]:
    return {item["variant"]: item["status"] for item in run.json["variants"]}


def artifacts(run: Run) -> dict[str, Any]:
    return {
        item["variant"]: sorted((a["path"], a["sha256"]) for a in item["artifacts"]) for item in run.json["variants"]
    }


def warnings(run: Run) -> list[str]:
    return [line for line in run.err.splitlines() if "warning" in line]


# What it is for


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_a_cold_machine_gets_everything_and_compiles_nothing(
    tmp_path: Path, machine: Callable[..., Machine], casd: Casd, nginx: Nginx
) -> None:
    """Over both protocols, with real EPs; the wheel is the same byte for byte."""
    targets = OPENVINO_TARGET + QNN_TARGET.replace('"60", ', "")
    first = machine(casd.url, targets)
    compiled = first.build(run=epctx)
    assert statuses(compiled) == {"detector.intel-cpu": "compiled", "detector.snapdragon-88": "compiled"}
    # The other cache gets the entries of a machine that compiles for itself.
    second = machine(nginx.url)
    assert set(statuses(second.build(run=epctx)).values()) == {"compiled"}
    for url in (casd.url, nginx.url):
        cold = machine(url)
        fetched = cold.build(run=epctx)
        assert set(statuses(fetched).values()) == {"fetched"}
        assert not COMPILES & set(cold.tasks())
        assert artifacts(fetched) == artifacts(compiled)
        inputs = [[item["facts"]["inputs"] for item in run.json["variants"]] for run in (fetched, compiled)]
        assert inputs[0] == inputs[1]
        assert warnings(fetched) == []
        again = cold.build()
        assert set(statuses(again).values()) == {"hit"}
        assert again.json["remote"]["round_trips"] == {}
    colder = machine(nginx.url)
    built = front_end("hatch", colder.tree.root, out=tmp_path / "cold", env=colder.env)
    assert not COMPILES & set(colder.tasks())
    assert built.output.count(": fetched ") == 2
    warm = front_end("hatch", first.tree.root, out=tmp_path / "warm", env=first.env)
    assert digest_bytes(built.wheel.read_bytes()) == digest_bytes(warm.wheel.read_bytes())
    assert any(name.endswith("snapdragon-88_ctx.onnx") for name in package_files(built.wheel))


def test_round_trips_of_a_build(machine: Callable[..., Machine], casd: Casd, nginx: Nginx) -> None:
    """What docs/remote.md says of a miss, a push and a hit; a null build touches no network at all."""
    for url, miss, hit in (
        (
            casd.url,
            {
                "BatchUpdateBlobs": 1,
                "FindMissingBlobs": 1,
                "GetActionResult": 1,
                "GetCapabilities": 1,
                "UpdateActionResult": 1,
            },
            {"BatchReadBlobs": 1, "GetActionResult": 1, "GetCapabilities": 1},
        ),
        (nginx.url, {"GET ac": 1, "HEAD cas": 7, "PUT ac": 1, "PUT cas": 7}, {"GET ac": 1, "GET cas": 3}),
    ):
        one, other = machine(url), machine(url)
        assert one.build().json["remote"]["round_trips"] == miss
        assert other.build().json["remote"]["round_trips"] == hit
        assert other.build(EPCTX_REMOTE_CACHE=f"grpc://127.0.0.1:{free_port()}").json["remote"]["round_trips"] == {}


def test_the_project_names_the_cache_and_its_mode(machine: Callable[..., Machine], nginx: Nginx) -> None:
    url = f"{nginx.url}/named"
    table = STUB_TARGET + f'[tool.epctx.cache]\nremote = "{url}"\nremote-mode = "read-only"\n'
    table += "[[tool.epctx.overrides]]\nif = { env = { CI = true } }\ncache.remote-mode = 'read-write'\n"
    developer = machine("", table)
    ci, other = machine(""), machine("")
    assert statuses(developer.build()) == {"detector.stub": "compiled"}
    assert not (nginx.root / "named").exists()
    assert statuses(ci.build(CI="1")) == {"detector.stub": "compiled"}
    assert statuses(other.build()) == {"detector.stub": "fetched"}
    third = machine("")
    run = third.build(EPCTX_REMOTE_CACHE="0")
    assert (statuses(run), run.json["remote"]["round_trips"]) == ({"detector.stub": "compiled"}, {})
    fourth = machine("")
    run = fourth.build(EPCTX_OFFLINE="1", check=False)
    assert (statuses(run), run.json["remote"]["round_trips"]) == ({"detector.stub": "failed"}, {})


def test_a_shipped_source_stays_here(machine: Callable[..., Machine], nginx: Nginx) -> None:
    """It is made of the model that is here, without a compile: there is nothing to gain."""
    one = machine(f"{nginx.url}/source", STUB_TARGET)
    path = one.tree.root / "pyproject.toml"
    path.write_text(path.read_text().replace('detector.onnx"\n', 'detector.onnx"\nship-source = true\n', 1))
    run = one.build()
    assert statuses(run) == {"detector.stub": "compiled", "detector.source": "compiled"}
    assert run.json["remote"]["round_trips"]["GET ac"] == 1
    assert run.json["remote"]["round_trips"]["PUT ac"] == 1


def test_what_is_not_certain_neither_comes_nor_goes(
    machine: Callable[..., Machine], nginx: Nginx, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    shutil.copytree(STUB, site)
    (site / "epctx_stub" / "libepctx_stub.so").unlink()
    (site / "epctx_stub" / "driver.txt").unlink()
    one = machine(f"{nginx.url}/uncertain")
    run = one.build(run=epctx, PYTHONPATH=str(site))
    assert statuses(run) == {"detector.stub": "compiled"}
    assert run.json["variants"][0]["uncertain"] != []
    assert run.json["remote"]["round_trips"] == {}


def test_a_group_comes_whole(machine: Callable[..., Machine], casd: Casd) -> None:
    table = '[tool.epctx.models.two]\nsource = "models/detector.onnx"\nfree-dimensions = { batch = 1 }\n'
    table += STUB_TARGET + 'provider-options = { mode = "share" }\n[tool.epctx.groups.g]\nmodels = ["*"]\n'
    one = machine(casd.url, table)
    one.tree.model("detector", batch="batch")
    path = one.tree.root / "pyproject.toml"
    path.write_text(
        path.read_text().replace(
            '[tool.epctx.models.detector]\nsource = "models/detector.onnx"\n',
            '[tool.epctx.models.detector]\nsource = "models/detector.onnx"\nfree-dimensions = { batch = 1 }\n',
        )
    )
    compiled = one.build()
    assert set(statuses(compiled).values()) == {"compiled"}
    other = machine(casd.url)
    shutil.copytree(one.tree.root, other.tree.root, dirs_exist_ok=True)
    fetched = other.build(EPCTX_MODELS="two")
    assert statuses(fetched) == {"two.stub": "fetched"}
    assert artifacts(fetched)["two.stub"] == artifacts(compiled)["two.stub"]


# Faults


def lying(script: Script, change: Callable[[Any], Any]) -> None:
    """Change what the server keeps of records: consistent for everything but their meaning."""
    for key, data in list(script.results.items()):
        result = pb.ActionResult.FromString(data)
        for output in result.output_files:
            if output.path == RECORD_NAME:
                record = json.loads(script.blobs[output.digest.hash])
                text = json.dumps(change(record) or record).encode()
                output.digest.hash, output.digest.size_bytes = digest_bytes(text), len(text)
                script.blobs[digest_bytes(text)] = text
                output.contents = b""
        script.results[key] = result.SerializeToString()


LIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no result": (lambda r: r.pop("result") and None, "expected an object with"),
    "inputs": (lambda r: r["result"].update(inputs="x"), "result.inputs is no list"),
    "a document": (lambda r: r["document"].update(format="x"), "another identity"),
}  # fmt: skip


@pytest.mark.parametrize(
    "lie", ["inputs", *(pytest.param(lie, marks=pytest.mark.slow) for lie in LIES if lie != "inputs")]
)
def test_a_lying_server_is_a_miss(machine: Callable[..., Machine], lie: str) -> None:
    change, says = LIES[lie]
    with Script() as script:
        one, other = machine(script.url), machine(script.url)
        one.build()
        lying(script, change)
        run = other.build()
    assert statuses(run) == {"detector.stub": "compiled"}
    assert len(warnings(run)) == 1
    assert "taken as a miss" in warnings(run)[0]
    assert says in warnings(run)[0]


ARTIFACTS = (
    Artifact(role="model", path="model_ctx.onnx", size=1, digest="0" * 64),
    Artifact(role="context", path="a.bin", size=1, digest="1" * 64),
)
FACTS: dict[str, Any] = {
    "inputs": [{"name": "x", "type": "float", "shape": [1, None, "n"]}],
    "outputs": [],
    "compatibility": "",
    "context_nodes": 1,
    "nodes_left": 0,
    "coverage": {"StubExecutionProvider": 5},
    "left": [{"operator": "Cast", "count": 1, "reason": ""}],
    "seconds": {"compile": 1.5},
    "load_check": "passed",
    "prepared": {"steps": [{"step": "x"}], "metadata_lost": []},
    "check": {"outcome": "not-run", "why": "no device", "key": "0"},
}
OUTPUT = {
    "name": "y", "verdict": "within", "values": 5, "beyond": 0,
    "max_abs": 0.1, "max_rel": None, "cosine": 1, "exact": False,
}  # fmt: skip
PASSED = {
    "outcome": "passed", "samples": 1, "generated": True, "device": "cpu",
    "simulated": False, "outputs": [OUTPUT], "key": "0",
}  # fmt: skip


def test_facts_as_a_compile_writes_them_are_believed() -> None:
    check_facts(FACTS, ARTIFACTS, members=0)
    check_facts({**FACTS, "check": PASSED, "unheard-of": [{}]}, ARTIFACTS, members=0)
    member = {**FACTS, "artifacts": ["model_ctx.onnx", "a.bin"], "shared": True}
    check_facts({"shared": True, "members": [member, member]}, ARTIFACTS, members=2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"inputs": [{"name": "x"}]}, "result.inputs[0] has no"),
        ({"inputs": None}, "result.inputs is no list"),
        ({"compatibility": 1}, "result.compatibility is no text"),
        ({"context_nodes": -1}, "result.context_nodes is negative"),
        ({"coverage": {"a": True}}, "result.coverage.a is no integer"),
        ({"left": [1]}, "result.left[0] is no object"),
        ({"seconds": {"compile": -1}}, "result.seconds.compile is no duration"),
        ({"load_check": ["passed"]}, "result.load_check is no text"),
        ({"prepared": []}, "result.prepared is no object"),
        ({"prepared": {"steps": 1}}, "result.prepared.steps is no list"),
        ({"prepared": {"metadata_lost": [1]}}, "result.prepared.metadata_lost is no list of texts"),
        ({"check": {"outcome": "perfect"}}, "result.check.outcome"),
        ({"check": {**PASSED, "outputs": [{**OUTPUT, "values": "5"}]}}, "outputs[0].values is no integer"),
        ({"check": {**PASSED, "simulated": None}}, "result.check.simulated is no boolean"),
        ({"check": {"outcome": "passed"}}, "result.check"),
        ({"check": {**PASSED, "outcome": "not-run"}}, "result.check.outcome"),
        ({"check": {**PASSED, "seconds": "1"}}, "result.check.seconds"),
        ({"reproducible": "no"}, "result.reproducible is no boolean"),
        ({"startup": {"run": "soon"}}, "result.startup.seconds.run is no duration"),
        ({"ep_cache": []}, "result.ep_cache.files is no object"),
        ({"ep_cache": {"files": {"a": "b"}}}, "names 'b', which the record does not list"),
        ({"ep_cache": {"files": {"../a": "a.bin"}}}, "'..'"),
    ],
)
def test_other_facts_are_not(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        check_facts({**FACTS, **change}, ARTIFACTS, members=0)


@pytest.mark.parametrize("name", ["inputs", "outputs", "compatibility", "context_nodes", "nodes_left"])
def test_facts_that_are_owed(name: str) -> None:
    with pytest.raises(ValueError, match=f"has no {name}"):
        check_facts({key: value for key, value in FACTS.items() if key != name}, ARTIFACTS, members=0)


@pytest.mark.parametrize(
    ("members", "says"),
    [
        (None, "no list of 2"),
        ([], "no list of 2"),
        ([FACTS, FACTS], "result.members[0].artifacts is no list of texts"),
        ([{**FACTS, "artifacts": ["x"]}] * 2, "names what the record does not list"),
        ([{**FACTS, "artifacts": ["a.bin"]}] * 2, "result.members[0] has not exactly one model"),
        ([1, 2], "result.members[0] is no object"),
    ],
)
def test_facts_of_a_group(members: Any, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        check_facts({"shared": True, "members": members}, ARTIFACTS, members=2)


def test_names_in_an_ep_cache_are_such_as_a_manifest_may_hold() -> None:
    artifacts = [*ARTIFACTS, replace(ARTIFACTS[0], role="ep-cache", path="c.bin")]

    def check(*names: str, path: str = "c.bin") -> None:
        check_facts({**FACTS, "ep_cache": {"files": dict.fromkeys(names, path)}}, artifacts, members=0)

    check("blob", "CPU/blob")
    for names in (("a", "a/b"), ("A/x", "a"), ("Blob", "blob")):
        with pytest.raises(ValueError, match="one inside another"):
            check(*names)
    for name, says in (("con", "a device on Windows"), ("a//b", "''"), ("a/./b", "'.'")):
        with pytest.raises(ValueError, match=re.escape(says)):
            check(name)
    with pytest.raises(ValueError, match="does not list"):
        check("blob", path="model_ctx.onnx")


def test_roles_and_models_of_a_record() -> None:
    with pytest.raises(ValueError, match="unknown role program"):
        check_facts(FACTS, [replace(ARTIFACTS[0], role="program")], members=0)
    with pytest.raises(ValueError, match="not exactly one model"):
        check_facts(FACTS, [*ARTIFACTS, replace(ARTIFACTS[0], path="b.onnx")], members=0)


@pytest.mark.parametrize("change", ["poisoned", pytest.param("missing", marks=pytest.mark.slow)])
def test_damaged_artifacts_are_a_miss_and_are_replaced(
    machine: Callable[..., Machine], nginx: Nginx, change: str
) -> None:
    url = f"{nginx.url}/{change}"
    one, other, third = (machine(url) for _ in range(3))
    built = one.build()
    digest = next(item["sha256"] for item in built.json["variants"][0]["artifacts"] if item["path"].endswith(".bin"))
    path = nginx.root / change / "cas" / digest
    data = path.read_bytes()
    if change == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] + b"!")
    run = other.build()
    assert statuses(run) == {"detector.stub": "compiled"}
    assert len(warnings(run)) == 1
    assert f"is {change}" in warnings(run)[0]
    assert path.read_bytes() == data, "the machine that met the fault sent it anew"
    assert statuses(third.build()) == {"detector.stub": "fetched"}


@pytest.mark.parametrize("front", ["epctx", "hatch"])
def test_a_dead_cache_costs_one_warning(machine: Callable[..., Machine], tmp_path: Path, front: str) -> None:
    table = STUB_TARGET + '[tool.epctx.targets.two]\nep = "stub"\nprovider-options = { level = 4 }\n'
    one = machine(f"grpc://127.0.0.1:{free_port()}", table)
    if front == "epctx":
        run = one.build(run=epctx)
        assert set(statuses(run).values()) == {"compiled"}
        output = run.err
    else:
        built = front_end("hatch", one.tree.root, out=tmp_path / "out", env=one.env)
        assert any(name.startswith("detector.two") for name in package_files(built.wheel))
        output = built.output
    assert output.count("this build goes on without the remote cache") == 1
    assert output.count("warning") == 1


def test_a_silent_cache_costs_its_time_limit_once(machine: Callable[..., Machine]) -> None:
    with silent_port() as port:
        for scheme in ("grpc", "http"):
            one = machine(f"{scheme}://127.0.0.1:{port}", EPCTX_REMOTE_TIMEOUT="0.5")
            start = time.monotonic()
            run = one.build()
            assert time.monotonic() - start < 30
            assert statuses(run) == {"detector.stub": "compiled"}
            assert len(warnings(run)) == 1


def test_a_cache_that_dies_between_look_up_and_push(machine: Callable[..., Machine], tmp_path: Path) -> None:
    one = machine("", STUB_TARGET + 'provider-options = { mode = "slow", seconds = 2 }\n')
    with Casd(tmp_path / "casd") as casd:
        one.url = casd.url
        command = [sys.executable, "-m", "hatch_epctx", "build", "--json"]
        env = {**os.environ, **one.env, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(STUB)])}
        process = subprocess.Popen(
            command, cwd=one.tree.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "compiling" in line:
                break
        casd.kill()
        out, err = process.communicate(timeout=60)
    run = Run(code=process.returncode, out=out, err="".join(lines) + err)
    assert run.code == 0
    assert statuses(run) == {"detector.stub": "compiled"}
    assert len(warnings(run)) == 1
    assert "this build goes on without the remote cache" in warnings(run)[0]


def test_a_cache_that_takes_nothing(machine: Callable[..., Machine]) -> None:
    with Script(update=False) as script:
        one = machine(script.url)
        run = one.build()
        assert statuses(run) == {"detector.stub": "compiled"}
        assert len(warnings(run)) == 1
        assert "pushes nothing more" in warnings(run)[0]


def test_an_interrupt_ends_a_transfer(machine: Callable[..., Machine]) -> None:
    """Ctrl-C while the cache has gone to sleep: the build ends at once, not after the call's time."""
    with Script() as script:
        asleep: list[bool] = []

        def sleep(_request: Any, context: grpc.ServicerContext) -> Any:
            asleep.append(True)
            while context.is_active():
                time.sleep(0.05)
            return None

        script.faults["GetActionResult"] = sleep
        one = machine(script.url, EPCTX_REMOTE_TIMEOUT="60")
        env = {**os.environ, **one.env, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(STUB)])}
        process = subprocess.Popen(
            [sys.executable, "-m", "hatch_epctx", "build"],
            cwd=one.tree.root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        end = time.monotonic() + 60
        while not asleep and time.monotonic() < end:
            time.sleep(0.02)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=50)
        assert time.monotonic() - start < 30
        assert process.returncode == 130
        assert "Traceback" not in out


# An attacker who may write to the cache: everything is consistent, and the record says whatever it likes.


@dataclass
class Attacked:
    """One project, and what its server answers when nobody tampers with it."""

    project: Project
    planned: Planned
    record: dict[str, Any]
    blobs: dict[str, bytes]
    results: dict[str, bytes]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    folder = tmp_path_factory.mktemp("attacked")
    tree = Factory(folder).project(STUB_TARGET)
    with Script() as script:
        project = load_project(tree.root, environ={"EPCTX_REMOTE_CACHE": script.url}, state="wheel")
        with Pipeline(project, Store(folder / "store")).build() as built:
            planned = built.entries[0].planned
            built.raise_for_failures()
        listed = pb.ActionResult.FromString(next(iter(script.results.values()))).output_files
        record = json.loads(next(script.blobs[item.digest.hash] for item in listed if item.path == RECORD_NAME))
        return Attacked(project, planned, record, dict(script.blobs), dict(script.results))


NASTY = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        2**70,
        1e308,
        "",
        "..",
        "/etc/passwd",
        "a\x00b",
        "\ud800",
        "x" * 5000,
        [],
        {},
        [[]],
        {"": None},
        [1],
        "CON",
    ]
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
def test_whatever_a_record_says_nothing_breaks(attacked: Attacked, data: st.DataObject) -> None:
    record = json.loads(json.dumps(attacked.record))
    for _ in range(data.draw(st.integers(1, 2))):
        spots = [path for path in places(record) if path[0] != "document"]
        if not spots:
            break
        *parents, last = data.draw(st.sampled_from(spots))
        node = record
        for key in parents:
            node = node[key]
        if data.draw(st.booleans()):
            node[last] = data.draw(NASTY)
        elif isinstance(node, dict):
            del node[last]
        else:
            node.append(node[last])
    with Script() as script, tempfile.TemporaryDirectory() as name:
        script.blobs, script.results = dict(attacked.blobs), dict(attacked.results)
        lying(script, lambda _record: record)
        said: list[str] = []
        store = Store(Path(name))
        environment = replace(attacked.project.environment, remote_cache=script.url, remote={})
        config = attacked.project.settings.model_copy()
        config._environment = environment
        project = replace(attacked.project, settings=config)
        cache = RemoteCache(project, store, report=lambda _variant, text: said.append(text))
        assert attacked.planned.identity is not None
        try:
            generation = cache.fetch([attacked.planned], attacked.planned.identity)
        finally:
            cache.close()
        if generation is None:
            assert len(said) == 1
            assert "taken as a miss" in said[0]
            assert not list(store.layout.generations.glob("*"))
            return
        with generation:
            pipe = Pipeline(replace(project, settings=attacked.project.settings), store)
            entry = pipe._obtainer.shown(
                Entry(planned=attacked.planned, status="fetched", generation=generation), generation
            )
            json.dumps(described(pipe, entry))
            built = Build(project=attacked.project, entries=(entry,))
            model_contents(built)
            render_page(summary(built))


# What is said before anything runs


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://cache.example/x", "EPCTX_REMOTE_CACHE: unknown scheme 'ftp'"),
        ("grpc://cache.example", "EPCTX_REMOTE_CACHE: the URL names no port"),
        ("http://user:word@cache.example", "EPCTX_REMOTE_CACHE: the URL holds credentials"),
    ],
)
def test_a_wrong_url_is_said_before_anything_runs(machine: Callable[..., Machine], url: str, says: str) -> None:
    one = machine(url)
    run = here("plan", cwd=one.tree.root, env=one.env, check=False)
    assert run.code == 2
    assert says in run.err
    assert "user:word" not in run.err
    assert one.tasks() == []


def test_the_place_of_a_wrong_url(machine: Callable[..., Machine]) -> None:
    one = machine("", STUB_TARGET + '[tool.epctx.cache]\nremote = "grcp://cache.example:1"\n')
    run = one.build(check=False)
    assert run.code == 2
    assert "tool.epctx.cache.remote: unknown scheme 'grcp'" in run.err
    assert "Did you mean 'grpc'?" in run.err


def test_without_grpc_a_miss_says_what_to_install(machine: Callable[..., Machine], casd: Casd, tmp_path: Path) -> None:
    """A build of hits does not need it."""
    hidden = tmp_path / "hidden"
    (hidden / "grpc").mkdir(parents=True)
    (hidden / "grpc" / "__init__.py").write_text("raise ModuleNotFoundError('hidden', name='grpc')\n")
    one = machine(casd.url)
    env = {"PYTHONPATH": os.pathsep.join([str(hidden), str(STUB)])}
    run = one.build(run=epctx, check=False, **env)
    assert run.code == 4
    assert 'pip install "hatch-epctx[reapi]"' in run.err
    one.build(EPCTX_REMOTE_CACHE="0")
    run = one.build(run=epctx, **env)
    assert statuses(run) == {"detector.stub": "hit"}


def test_isolated_builds_install_what_the_url_needs(factory: Factory) -> None:
    tree = factory.project(STUB_TARGET + '[tool.epctx.cache]\nremote = "grpc://cache.example:1"\n')
    names = {re.split(r"[^a-z]", text)[0] for text in dynamic_requirements(tree.root, environ={})}
    assert {"grpcio", "protobuf"} <= names
    for env in ({"EPCTX_REMOTE_CACHE": "0"}, {"EPCTX_REMOTE_CACHE": "http://cache.example"}, {"EPCTX_OFFLINE": "1"}):
        assert dynamic_requirements(tree.root, environ=env) == ()


def test_two_machines_at_one_time(machine: Callable[..., Machine], nginx: Nginx) -> None:
    """Both compile, both push, both are right; a third fetches what one of them made."""
    url = f"{nginx.url}/race"
    machines = [machine(url, STUB_TARGET + 'provider-options = { mode = "random" }\n') for _ in range(3)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(STUB)])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "hatch_epctx", "build", "--json"],
            cwd=item.tree.root, env={**env, **item.env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for item in machines[:2]
    ]  # fmt: skip
    runs = []
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        runs.append(Run(code=0, out=out, err=err))
    last = machines[2].build()
    assert statuses(last) == {"detector.stub": "fetched"}
    assert artifacts(last) in [artifacts(run) for run in runs]
    entries = list((nginx.root / "race" / "ac").iterdir())
    assert [entry.name for entry in entries] == [key_of(last.json["variants"][0]["identity"]).action.digest]


# epctx doctor


def doctored(tree: Tree, **env: str) -> tuple[dict[str, Any], str]:
    """What `epctx doctor` finds of the remote cache of the project, and its lines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tree.root)
        for name, value in env.items():
            patch.setenv(name, value)
        facts = doctor_remote.look(Store())
    return facts, "\n".join(doctor_remote.lines(facts))


def test_doctor_asks_the_remote_cache(factory: Factory, nginx: Nginx) -> None:
    with Script(update=False) as script:
        tree = factory.project(f'{STUB_TARGET}[tool.epctx.cache]\nremote = "{script.url}"\n')
        path = tree.root / "pyproject.toml"
        path.write_text(path.read_text().replace("[tool.epctx]\n", '[tool.epctx]\nexecutor = "reapi"\n', 1))
        facts, text = doctored(tree)
        assert facts["state"] == "answers"
        assert (facts["writes"], facts["executes"]) == (False, False)
        assert f"remote cache {script.url} (tool.epctx.cache.remote) answers in" in text
        assert "takes no results, executes nothing" in text
        assert text.splitlines()[0].partition(" answers")[0] in here("doctor", "--no-trial", cwd=tree.root).out
        assert "and it executes nothing" in text
        facts, text = doctored(tree, EPCTX_REMOTE_CACHE=nginx.url)
        assert (facts["state"], facts["writes"]) == ("answers", None)
        assert f"remote cache {nginx.url} (EPCTX_REMOTE_CACHE) answers in" in text
    dead = f"grpc://127.0.0.1:{free_port()}"
    facts, text = doctored(tree, EPCTX_REMOTE_CACHE=dead)
    assert facts["state"] == "unreachable"
    assert f"remote cache {dead} (EPCTX_REMOTE_CACHE) unreachable: " in text
    facts, text = doctored(tree, EPCTX_REMOTE_CACHE="grcp://x:1")
    assert "unknown scheme 'grcp'" in text
    facts, text = doctored(factory.project(STUB_TARGET, name="without"))
    assert (facts["name"], text) == ("", "")


# docs/scale.md


def test_the_simulation_counts_what_is_keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "benchmarks"))
    from farm import World, simulate

    world = World(models=4, cross=3, here=2, kinds=2, jobs=2, compile=1, size=1, latency=0.001, bandwidth=1e9)
    found = [(outcome.hits, outcome.compiles, outcome.trips) for _, outcome in simulate(world, 2)]
    assert found[0] == (0, 20, 20 * (1 + 3))
    assert found[1] == (20, 0, 20 * 2)
    assert found[2] == (12, 8, 12 * 2 + 8 * 4), "the CPU's targets alone differ"
    assert found[3] == (12 + 20, 8, 32 * 2 + 8 * 4)
    assert found[4] == (15, 5, 15 * 2 + 5 * 4), "one model in every target"
    assert found[5] == (8, 12, 8 * 2 + 12 * 4)
    assert found[6] == (0, 40, 40 * 4), "there is no lock across machines"
    assert found[7][1] < 40
