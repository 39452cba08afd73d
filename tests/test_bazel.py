"""The Bazel rule set on real EPs, caches and a remote-execution server.

Two output bases stand for two machines. What one builds the other must get from the cache, byte for byte, with the
number of hits that the actions have.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from bazel_support import RULES, SMOKE, Machine, environment, workers
from reapi_server import Casd, Nginx, Wire, free_port, silent_port
from support import pipeline, save
from test_custom_ops import LIBRARY, custom_model

from hatch_epctx.wheel import write_package

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.bazel, pytest.mark.ep_openvino, pytest.mark.ep_qnn, pytest.mark.timeout(1200)]

CELLS = ("//:vision_detector_intel-cpu", "//:vision_encoder_snapdragon-60")
"""One compile of each EP, one of them with external data."""
ONE = "//:vision_detector_snapdragon-60"
PYPROJECT = """
[project]
name = "acme-vision"
version = "1.2.3"
[tool.epctx]
package = "acme_vision"
[tool.epctx.models.detector]
source = "models/detector.onnx"
ship-source = true
[tool.epctx.models.encoder]
source = "models/encoder.onnx"
free-dimensions = { batch = 1 }
[tool.epctx.targets.intel-cpu]
ep = "openvino"
device = "cpu"
provider-options = { load_config = { CPU = { INFERENCE_PRECISION_HINT = "f32" } } }
[tool.epctx.targets.snapdragon]
ep = "qnn"
matrix = { soc_model = ["60"] }
provider-options = { backend_type = "htp" }
"""

CUSTOM = """
epctx_model(
    name = "custom",
    src = "models/custom.onnx",
    custom_ops = ["libs/parts.so"],
)

epctx_context_matrix(
    name = "custom_ops",
    eps = [":intel-cpu"],
    models = [":custom"],
)

epctx_package(
    name = "custom_package",
    contexts = [":custom_ops"],
    package = "custom",
    version = "1",
)
"""

WRONG_MATRICES = {
    "eps = []": "epctx_context_matrix m: eps is empty",
    'eps = ["//:intel-cpu", "//a:intel-cpu"]': 'epctx_context_matrix m: two labels of eps end in "intel-cpu"',
    'eps = ["//:intel-cpu"], exec_properties = {"npu": {}}': 'exec_properties for "npu", which is no EP of eps',
}
"""Attributes of epctx_context_matrix and what is said of them, which no analysis test can show."""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("environment") / "venv")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, python: Path) -> Iterator[tuple[Machine, Machine]]:
    folder = tmp_path_factory.mktemp("bazel")
    both = Machine(folder / "one", SMOKE, python), Machine(folder / "two", SMOKE, python)
    yield both
    for machine in both:
        machine.stop()


@pytest.fixture(scope="module")
def right(machines: tuple[Machine, Machine]) -> dict[str, str]:
    """Digests of the outputs of a plain local build."""
    one, _ = machines
    one.build(*CELLS, ONE)  # nothing to do where an earlier test has built it
    return one.digests()


def of(digests: dict[str, str], *labels: str) -> dict[str, str]:
    """The digests of these targets' outputs."""
    names = tuple(label.removeprefix("//:") + ".epctx" for label in labels)
    return {path: digest for path, digest in digests.items() if path.startswith(names)}


def test_analysis(tmp_path: Path, python: Path) -> None:
    machine = Machine(tmp_path / "rules", RULES, python)
    try:
        examples = machine.build("--nobuild", "//examples/...")
        tests = machine.run("test", "//tests/...", "//epctx/...")
        requirements = {name: execution_of(machine, f"//tests:{name}") for name in ("context_subject", "context_whole")}
    finally:
        machine.stop()
    assert re.search(r"Analyzed \d\d targets", examples.output)
    assert "Executed 31 out of 31 tests: 31 tests pass" in tests.output
    hermetic = {"block-network": "1", "supports-path-mapping": "1"}
    assert requirements["context_subject"] == hermetic
    assert requirements["context_whole"] == {**hermetic, "no-cache": "1", "no-remote": "1", "requires-npu": "1"}


def execution_of(machine: Machine, label: str) -> dict[str, str]:
    """The execution requirements of the target's compile, which analysis tests cannot see."""
    shown = machine.run("aquery", f'mnemonic("EpctxCompile", {label})').output
    (line,) = set(re.findall(r"ExecutionInfo: \{(.*)\}", shown))
    return {name.strip(): value.strip() for name, value in (part.split(":", 1) for part in line.split(","))}


def test_buildifier() -> None:
    buildifier = shutil.which("buildifier")
    if buildifier is None:
        pytest.skip("buildifier is not there: npm install @bazel/buildifier@8.2.1")
    done = subprocess.run(
        [buildifier, "-mode=check", "-lint=warn", "-r", RULES], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_everything_builds_locally_and_comes_from_the_disk_cache(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    one, two = machines
    one.forget()
    disk = f"--disk_cache={tmp_path / 'disk'}"
    targets = ("//:package", "//:wheel", "//:pair")
    # Four cells of the matrix, the group, the source for the package and for the wheel, both of these.
    assert one.build(*targets, disk).ways == {"linux-sandbox": 9}
    assert one.build(*targets, disk).ways == {}, "nothing to do"
    two.forget()
    assert two.build(*targets, disk).ways == {"remote cache hit": 9}
    digests = one.digests()
    assert len(digests) > 20
    assert two.digests() == digests

    for name in ("models", "acme_vision"):
        shutil.copytree(SMOKE / name, tmp_path / "project" / name)
    (tmp_path / "project" / "pyproject.toml").write_text(PYPROJECT)
    with pipeline(tmp_path / "project").build() as built:
        built.raise_for_failures()
        write_package(built, tmp_path / "plugin", version="1.2.3")
        identities = {entry.planned.identity.digest for entry in built.entries if entry.planned.identity}
    plugin = {path.name: path.read_bytes() for path in (tmp_path / "plugin").iterdir()}
    bazel = {path.name: path.read_bytes() for path in (one.bin / "acme_vision" / "_epctx").iterdir()}
    assert bazel == plugin, "Bazel's package folder is the hatch plugin's, byte for byte"
    for identity in identities:
        assert identity in bazel["manifest.json"].decode()

    tested = one.run("test", "//:vision_encoder_intel-cpu_test", "//:vision_detector_snapdragon-60_test")
    assert "2 tests pass" in tested.output


def test_a_library_of_custom_operators_is_an_input(tmp_path: Path, python: Path) -> None:
    """Compiled, packed and tested with it, in the sandbox; another library is another key."""
    module = tmp_path / "module"
    shutil.copytree(SMOKE, module)
    workspace = module / "WORKSPACE"
    workspace.write_text(workspace.read_text().replace('path = "../.."', f'path = "{RULES}"'))
    save(custom_model(), module / "models" / "custom.onnx")
    (module / "libs").mkdir()
    shutil.copyfile(LIBRARY, module / "libs" / "parts.so")
    with (module / "BUILD.bazel").open("a") as stream:
        stream.write(CUSTOM)
    machine = Machine(tmp_path / "machine", module, python)
    try:
        assert machine.build("//:custom_package").ways == {"linux-sandbox": 2}
        folder = machine.bin / "custom" / "_epctx"
        need = json.loads((folder / "manifest.json").read_text())["components"]["custom"]["variants"]["intel-cpu"]
        assert [each["file"] for each in need["executor_info"]["epctx"]["runtime"]["custom_ops"]] == ["parts.so"]
        assert "1 test passes" in machine.run("test", "//:custom_ops_tests").output
        with (module / "libs" / "parts.so").open("ab") as stream:
            stream.write(b"\0")
        assert machine.build("//:custom_package").ways == {"linux-sandbox": 2}
        for number, (attributes, message) in enumerate(WRONG_MATRICES.items()):
            package = module / f"wrong{number}"
            package.mkdir()
            (package / "BUILD.bazel").write_text(
                'load("@rules_epctx//epctx:defs.bzl", "epctx_context_matrix")\n'
                f'epctx_context_matrix(name = "m", models = ["//:custom"], {attributes})\n'
            )
            refused = machine.run("query", f"//wrong{number}:all", check=False)
            assert refused.code != 0
            assert message in refused.output
    finally:
        machine.stop()


def test_grpc_cache(machines: tuple[Machine, Machine], right: dict[str, str], tmp_path: Path) -> None:
    one, two = machines
    with Casd(tmp_path / "casd") as casd:
        one.forget()
        assert one.build(*CELLS, f"--remote_cache={casd.url}").ways == {"linux-sandbox": 2}
        two.forget()
        assert two.build(*CELLS, f"--remote_cache={casd.url}").ways == {"remote cache hit": 2}
        assert two.digests() == of(right, *CELLS)
        with Wire(casd.port) as wire:
            wire.pause = 0.1
            two.forget()
            slow = two.build(*CELLS, f"--remote_cache=grpc://127.0.0.1:{wire.port}")
            assert wire.passed > 100_000
        assert slow.ways == {"remote cache hit": 2}, "a slow cache is a cache"
        assert two.digests() == of(right, *CELLS)


def test_http_cache(machines: tuple[Machine, Machine], right: dict[str, str], tmp_path: Path) -> None:
    one, two = machines
    with Nginx(tmp_path / "nginx") as nginx:
        one.forget()
        assert one.build(*CELLS, f"--remote_cache={nginx.url}").ways == {"linux-sandbox": 2}
        two.forget()
        assert two.build(*CELLS, f"--remote_cache={nginx.url}").ways == {"remote cache hit": 2}
        assert two.digests() == of(right, *CELLS)


def test_remote_execution_and_a_worker_killed_in_the_middle(
    machines: tuple[Machine, Machine], right: dict[str, str], python: Path, tmp_path: Path
) -> None:
    one, two = machines
    also = (str(python.parent.parent),)
    with Casd(tmp_path / "casd", execute=True, also=also) as casd:
        remote = (f"--remote_executor={casd.url}", "--spawn_strategy=remote")
        one.forget()
        assert one.build(*CELLS, *remote).ways == {"remote": 2}
        assert one.digests() == of(right, *CELLS)
        two.forget()
        assert two.build(*CELLS, *remote).ways == {"remote cache hit": 2}
        assert two.digests() == of(right, *CELLS)

        process = one.start("build", ONE, *remote)
        _kill_first_worker(casd.process.pid)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 1, output
        assert "the compile failed: the worker was killed by SIGKILL" in output or "SIGKILL" in output, output
        assert of(one.digests(), ONE) == {}, "nothing of it is there"
        again = one.build(ONE, *remote)
        assert again.ways == {"remote": 1}, "a failure is not cached"
        assert of(one.digests(), ONE) == of(right, ONE)


def _kill_first_worker(above: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        for pid in workers(above):
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.005)
    pytest.fail("no worker was seen")


def test_dead_and_silent_servers(machines: tuple[Machine, Machine], right: dict[str, str]) -> None:
    one, _ = machines
    nobody = free_port()
    grpc, http = f"grpc://127.0.0.1:{nobody}", f"http://127.0.0.1:{nobody}"

    one.forget()
    dead = one.build(ONE, f"--remote_cache={grpc}", "--remote_retries=0", check=False)
    assert dead.code != 0, "a dead gRPC cache is an error of Bazel 4.2"
    assert "Failed to query remote execution capabilities" in dead.output

    fallback = one.build(
        ONE,
        f"--remote_executor={grpc}",
        "--remote_local_fallback",
        "--remote_retries=0",
        "--spawn_strategy=remote,local",
    )
    assert "remote" not in fallback.ways
    assert sum(fallback.ways.values()) == 1
    assert of(one.digests(), ONE) == of(right, ONE)

    with ExitStack() as stack:
        silent = f"http://127.0.0.1:{stack.enter_context(silent_port())}"
        for cache in (http, silent):
            one.forget()
            built = one.build(ONE, f"--remote_cache={cache}", "--remote_timeout=2")
            assert built.ways == {"linux-sandbox": 1}
            assert "WARNING" in built.output
            assert of(one.digests(), ONE) == of(right, ONE)
