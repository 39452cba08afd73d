"""Locked builds: every kind of drift in words, artifacts by digest without any EP, the same wheel everywhere."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from frontend_support import Built, front_end, package_files, run_front_end
from support import (
    OPENVINO_TARGET,
    QNN_TARGET,
    REPOSITORY,
    STUB_TARGET,
    Factory,
    Run,
    Tree,
    environment_without_eps,
    epctx,
    save,
    small_model,
)

from hatch_epctx.cli import main
from hatch_epctx.config import load_project
from hatch_epctx.digest import digest_bytes
from hatch_epctx.frontend import dynamic_requirements
from hatch_epctx.identity import canonical
from hatch_epctx.lockfile import LOCK_NAME, Lock, read_lock, write_lock
from hatch_epctx.pipeline import Pipeline
from hatch_epctx.remote import open_remote
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STUB = Path(__file__).parent / "stub_ep"


def locked(tree: Tree, *arguments: str, check: bool = True, **env: str) -> Run:
    return epctx("build", "-q", "--locked", *arguments, cwd=tree.root, env=env, check=check)


@dataclass
class Drifting:
    """Looks at a project with both commands that compare, in this process; `run` starts a process for each."""

    tree: Tree
    run: Callable[..., Run]

    def __call__(self, **env: str) -> list[dict[str, Any]]:
        """What `epctx lock --check` finds; `build --locked` has to find the same, and start no compile."""
        checked = self.run("lock", "--check", "--json", cwd=self.tree.root, env=env, check=False)
        found = checked.json
        assert checked.code == (8 if found["drift"] else 0), checked.err
        if not found["drift"]:
            return []
        traced = self.tree.root.parent / "workers.txt"
        env = {**env, "EPCTX_TRACE_WORKERS": str(traced)}
        built = self.run("build", "-q", "--locked", cwd=self.tree.root, env=env, check=False)
        assert built.code == 8, built.err
        assert not traced.exists() or "compile" not in traced.read_text()
        for item in found["drift"]:
            for words in item["words"]:
                assert f"  {item['variant']}: {words}" in built.err
        assert "If that is intended, run 'epctx lock'" in built.err
        return list(found["drift"])


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Run]:
    """As `support.epctx`, in this process: most of a command's time is its start."""

    def run(*arguments: str, cwd: Path, env: dict[str, str] | None = None, check: bool = True) -> Run:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            code = main([*arguments, "-C", str(cwd)])
        out, err = capsys.readouterr()
        assert "Traceback" not in err, err
        assert code == 0 or not check, err + out
        return Run(code=code, out=out, err=err)

    return run


@pytest.fixture
def drift(tree: Tree, within: Callable[..., Run]) -> Drifting:
    return Drifting(tree, within)


def rewrite(tree: Tree, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Give the lock another document of one variant: what another machine would have locked."""
    path = tree.root / LOCK_NAME
    lock = read_lock(path)
    assert lock is not None
    document = json.loads(canonical(lock.variants[name].document))
    change(document)
    variant = replace(lock.variants[name], document=document, identity=digest_bytes(canonical(document)))
    path.write_bytes(write_lock(Lock(variants={**lock.variants, name: variant})))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A locked project with a model, weights beside another, and options of every kind; the stub EP compiles it."""
    folder = tmp_path_factory.mktemp("original")
    made = Factory(folder).project("", models=("detector",))
    save(small_model(seed=7, weights="weights.data"), made.root / "models" / "big.onnx")
    (made.root / "settings.json").write_text('{"a": 1}')
    (made.root / "data").mkdir()
    (made.root / "data" / "one").write_text("1")
    made.write(TABLE)
    epctx("lock", "-q", cwd=made.root, env={"EPCTX_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(STUB)})
    return folder


@pytest.fixture
def tree(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A copy of `original` with the store that it was locked with."""
    shutil.copytree(original / "project", tmp_path / "project")
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(original / "cache"))
    return Tree(tmp_path / "project")


NEW_MODEL = "[tool.epctx.models.new]\nsource = 'models/big.onnx'\n"
TABLE = """
[tool.epctx.models.detector]
source = "models/detector.onnx"
[tool.epctx.models.big]
source = "models/big.onnx"
[tool.epctx.targets.stub]
ep = "stub"
device = "cpu"
env = { FLAG = "1" }
session-options = { "session.x" = "1" }
provider-options = { level = 3, settings = "settings.json", tree = "data" }
"""


def edit(tree: Tree, old: str, new: str) -> None:
    assert old in TABLE
    tree.write(TABLE.replace(old, new))


def model(tree: Tree) -> None:
    tree.model("detector", seed=5)


def weights(tree: Tree) -> None:
    path = tree.root / "models" / "weights.data"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)


DRIFTS: dict[str, tuple[Callable[[Tree], None], dict[str, list[str]]]] = {
    "model": (model, {"detector.stub": ["the model's ONNX file changed"]}),
    "weights": (weights, {"big.stub": ["weights file weights.data changed"]}),
    "option": (
        lambda tree: edit(tree, "level = 3", "level = 4"),
        {name: ["provider option level: 3 -> 4"] for name in ("detector.stub", "big.stub")},
    ),
    "option file": (
        lambda tree: (tree.root / "settings.json").write_text('{"a": 2}') and None,
        {name: ["provider option settings, a: 1 -> 2"] for name in ("detector.stub", "big.stub")},
    ),
    "option folder": (
        lambda tree: (tree.root / "data" / "two").write_text("2") and None,
        {name: ["the file of provider option tree changed"] for name in ("detector.stub", "big.stub")},
    ),
    "session option": (
        lambda tree: edit(tree, '{ "session.x" = "1" }', "{}"),
        {
            name: ["session option session.x: 1 -> (none)", "session option of loading session.x: 1 -> (none)"]
            for name in ("detector.stub", "big.stub")
        },
    ),
    "environment": (
        lambda tree: edit(tree, 'FLAG = "1"', 'FLAG = "2"'),
        {name: ["environment variable FLAG: 1 -> 2"] for name in ("detector.stub", "big.stub")},
    ),
    "device": (
        lambda tree: edit(tree, '"cpu"', '"npu"'),
        {name: ["device: cpu -> npu"] for name in ("detector.stub", "big.stub")},
    ),
    "embed": (
        lambda tree: edit(tree, "env =", "embed = true\nenv ="),
        {name: ["embedding of the context binary: false -> true"] for name in ("detector.stub", "big.stub")},
    ),
    "optimisation": (
        lambda tree: edit(tree, "env =", 'optimization = "all"\nenv ='),
        {name: ["optimisation level: basic -> all"] for name in ("detector.stub", "big.stub")},
    ),
    "a model more": (
        lambda tree: edit(tree, "[tool.epctx.targets", f"{NEW_MODEL}[tool.epctx.targets"),
        {"new.stub": ["is not locked"]},
    ),
    "a target renamed": (
        lambda tree: edit(tree, "targets.stub", "targets.other"),
        {
            "detector.other": ["is not locked"],
            "big.other": ["is not locked"],
            "big.stub": ["is locked and no longer declared"],
            "detector.stub": ["is locked and no longer declared"],
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DRIFTS)
def test_each_kind_of_drift_is_caught_in_words(tree: Tree, drift: Drifting, kind: str) -> None:
    change, expected = DRIFTS[kind]
    change(tree)
    assert {item["variant"]: item["words"] for item in drift()} == expected


def test_nothing_changed_is_no_drift(tree: Tree, drift: Drifting) -> None:
    for path in tree.root.rglob("*"):
        os.utime(path)
    tree.write(TABLE.replace("level = 3, ", "").replace('"data" }', '"data", level = 3 }') + "timeout = 5\n")
    assert drift() == []


@pytest.mark.parametrize("old", ["ep library", "ep version", "onnxruntime", "onnx", "procedure", "os"])
def test_a_drift_of_the_toolchain_is_caught_in_words(
    tree: Tree, tmp_path: Path, within: Callable[..., Run], old: str
) -> None:
    """Of files that can be changed here for real, else by a lock as another machine would have made it."""
    own = tmp_path / "site"
    shutil.copytree(STUB, own)
    environment = {"PYTHONPATH": str(own)}
    drift = Drifting(tree, epctx if old.startswith("ep") else within)  # what is installed is looked at once
    assert drift(**environment) == []
    if old == "ep library":
        with (own / "epctx_stub" / "libepctx_stub.so").open("ab") as stream:
            stream.write(b"x")
    elif old == "ep version":
        metadata = own / "epctx_stub-1.0.dist-info" / "METADATA"
        metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 1.1"))
    else:
        rewrite(tree, "big.stub", REWRITES[old])
    found = drift(**environment)
    words = {text for item in found for text in item["words"]}
    assert len(words) == 1
    assert WORDS[old] in words.pop()
    assert len(found) == (2 if old.startswith("ep") else 1)


REWRITES: dict[str, Callable[[dict[str, Any]], None]] = {
    "onnxruntime": lambda document: document["toolchain"]["onnxruntime"].update(version="1.20.0", digest="0" * 64),
    "onnx": lambda document: document["toolchain"].update(onnx="1.0"),
    "procedure": lambda document: document["worker"].update(format=0),
    "os": lambda document: document["toolchain"].update(os="windows"),
}
WORDS = {
    "ep library": "EP library changed: files of epctx-stub 1.0 differ",
    "ep version": "EP library changed: epctx-stub 1.0 -> 1.1",
    "onnxruntime": "ONNX Runtime changed: onnxruntime 1.20.0 -> ",
    "onnx": "the onnx package: 1.0 -> ",
    "procedure": "compile procedure of hatch-epctx: 0 -> ",
    "os": "operating system: windows -> ",
}


def test_a_drift_of_the_device_is_caught_in_words(factory: Factory, tmp_path: Path) -> None:
    own = tmp_path / "site"
    shutil.copytree(STUB, own)
    tree = factory.project('[tool.epctx.targets.npu]\nep = "stub-npu"\n')
    environment = {"PYTHONPATH": str(own)}
    epctx("lock", "-q", cwd=tree.root, env=environment)
    drift = Drifting(tree, epctx)
    assert drift(**environment) == []
    (own / "epctx_stub" / "driver.txt").write_text("2.0\n")
    # The stub's driver is a file of its closure too, as nobody's driver is.
    words = {text for item in drift(**environment) for text in item["words"]}
    assert "device, driver: 1.2.3 -> 2.0" in words


@pytest.mark.ep_openvino
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_drift_of_the_cores_is_caught_in_words(factory: Factory, within: Callable[..., Run]) -> None:
    """The OpenVINO EP bakes the number of cores into the context binary."""
    tree = factory.project(OPENVINO_TARGET)
    epctx("lock", "-q", cwd=tree.root)
    drift = Drifting(tree, within)
    assert drift() == []
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        words = {text for item in drift() for text in item["words"]}
    finally:
        os.sched_setaffinity(0, before)
    assert f"CPUs that may be used: {len(before)} -> 1" in words


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_other_libraries_of_onnxruntime_and_of_eps_are_caught_in_words(factory: Factory, tmp_path: Path) -> None:
    """Real ones, in an environment where each has one file more than here."""
    tree = factory.project(OPENVINO_TARGET + QNN_TARGET.replace(', "88"', ""))
    epctx("lock", "-q", cwd=tree.root)
    packages = ("onnxruntime", "onnxruntime_ep_openvino", "onnxruntime_qnn")
    python = environment_without_eps(tmp_path / "changed", changed=dict.fromkeys(packages, "x"))
    command = [str(python), "-m", "hatch_epctx", "lock", "--check", "--json"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    run = subprocess.run(command, cwd=tree.root, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 8, run.stderr
    words = {item["variant"]: item["words"] for item in json.loads(run.stdout)["drift"]}
    assert words.keys() == {"detector.intel-cpu", "detector.snapdragon-60"}
    for variant, ep in (("intel-cpu", "onnxruntime-ep-openvino"), ("snapdragon-60", "onnxruntime-qnn")):
        library, runtime = sorted(words[f"detector.{variant}"])
        assert library.startswith(f"EP library changed: files of {ep} ")
        assert runtime.startswith("ONNX Runtime changed: files of onnxruntime ")


def test_two_machines_lock_their_own_targets_and_git_merges(factory: Factory, within: Callable[..., Run]) -> None:
    """With the commands that people use, from a lock of everything, as models change on both sides."""
    targets = '[tool.epctx.targets.one]\nep = "stub"\n[tool.epctx.targets.two]\nep = "stub"\ndevice = "npu"\n'
    tree = factory.project(targets, models=("detector", "encoder"))

    def git(*arguments: str) -> None:
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", *arguments]
        subprocess.run(command, cwd=tree.root, check=True, capture_output=True)

    within("lock", "-q", cwd=tree.root)
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-qm", "locked")
    tree.write(
        tree_text := (tree.root / "pyproject.toml").read_text().split('package = "acme_vision"\n')[1] + "embed = true\n"
    )
    assert "embed" in tree_text
    tree.model("detector", seed=8)
    git("commit", "-qam", "changed")
    for target in ("one", "two"):
        git("checkout", "-q", "-b", target, "main")
        within("lock", "-q", "--targets", target, cwd=tree.root)
        git("commit", "-qam", f"locked {target}")
    checked = within("lock", "--check", "--json", cwd=tree.root, check=False).json["drift"]
    assert {item["variant"] for item in checked} == {"detector.one"}
    git("merge", "-q", "-m", "merged", "one")
    assert within("lock", "--check", cwd=tree.root).code == 0


def test_the_hook_minds_the_variable(tree: Tree, tmp_path: Path) -> None:
    good = front_end("backend", tree.root, out=tmp_path / "good", env={"EPCTX_LOCKED": "1"})
    assert "manifest.json" in package_files(good.wheel)
    model(tree)
    bad = front_end("backend", tree.root, out=tmp_path / "bad", env={"EPCTX_LOCKED": "1"}, check=False)
    assert bad.code == 8
    assert not bad.wheels
    assert "epctx: error: " in bad.output
    assert "  detector.stub: the model's ONNX file changed" in bad.output


def test_a_source_distribution_holds_the_lock_whatever_it_selects(tree: Tree, tmp_path: Path) -> None:
    pyproject = tree.root / "pyproject.toml"
    pyproject.write_text(
        pyproject.read_text()
        + '[tool.hatch.build.targets.sdist]\nonly-include = ["acme_vision", "models", "settings.json", "data"]\n'
    )
    built = front_end("build", tree.root, out=tmp_path / "out", env={"EPCTX_LOCKED": "1"})
    assert len(built.wheels) == len(built.sdists) == 1
    listing = subprocess.run(["tar", "tzf", built.sdists[0]], capture_output=True, text=True, check=True).stdout
    assert listing.count(f"/{LOCK_NAME}\n") == 1


def test_without_a_lock_the_message_says_how_to_make_one(factory: Factory, within: Callable[..., Run]) -> None:
    tree = factory.project(STUB_TARGET)
    for command in (["build", "--locked"], ["lock", "--check"]):
        run = within(*command, cwd=tree.root, check=False)
        assert run.code == 8
        assert f"{LOCK_NAME}: the file does not exist, and the build is locked. Run 'epctx lock'" in run.err
    assert within("build", "-q", cwd=tree.root).code == 0


def test_one_model_without_a_project_is_not_locked(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(STUB_TARGET)
    source = tree.root / "models" / "detector.onnx"
    epctx("compile", source, "--ep", "stub", "-o", tmp_path / "out", env={"EPCTX_LOCKED": "1"})


def test_selected_variants_alone_have_to_be_as_locked(tree: Tree, within: Callable[..., Run]) -> None:
    model(tree)
    assert within("build", "-q", "--locked", "--models", "big", cwd=tree.root).code == 0
    assert within("build", "-q", "--locked", cwd=tree.root, check=False).code == 8
    checked = within("lock", "--check", "--models", "big", cwd=tree.root)
    assert "is up to date" in checked.out


def test_an_entry_of_another_platform_is_no_drift(tree: Tree, drift: Drifting, within: Callable[..., Run]) -> None:
    tree.write(
        TABLE.replace("[tool.epctx.targets.stub]", "[tool.epctx.targets.own]")
        + '\n[[tool.epctx.overrides]]\nif.env.ELSEWHERE = true\ntargets.stub.ep = "stub"\n'
    )
    within("lock", "-q", cwd=tree.root)
    lock = read_lock(tree.root / LOCK_NAME)
    assert lock is not None
    assert lock.variants.keys() == {"big.own", "big.stub", "detector.own", "detector.stub"}
    assert drift() == []


# Making a lock


def test_a_lock_is_changed_as_little_as_can_be(tree: Tree, drift: Drifting, within: Callable[..., Run]) -> None:
    path = tree.root / LOCK_NAME
    before = path.read_text()
    assert "nothing to change" in within("lock", cwd=tree.root).out
    assert path.read_text() == before
    model(tree)
    run = within("lock", "--json", cwd=tree.root, env={"EPCTX_LOCKED": "1"})
    assert run.json["locked"] == {"detector.stub": ["the model's ONNX file changed"]}
    assert run.json["kept"] == ["big.stub"]
    changed = {line.partition(" = ")[0] for line in set(path.read_text().splitlines()) - set(before.splitlines())}
    assert changed == {
        'detector.stub.artifacts."model_ctx.onnx"',
        *(name for name in changed if name.startswith('detector.stub.artifacts."sha256-')),
        "detector.stub.document.model.onnx",
        "detector.stub.identity",
    }
    assert drift() == []


def test_upgrade_locks_one_variant_and_leaves_the_others_alone(
    tree: Tree, drift: Drifting, within: Callable[..., Run]
) -> None:
    model(tree)
    weights(tree)
    run = within("lock", "--json", "--upgrade", "big.*", cwd=tree.root)
    assert run.json["locked"] == {"big.stub": ["weights file weights.data changed"]}
    assert [item["variant"] for item in drift()] == ["detector.stub"]
    wrong = within("lock", "--upgrade", "bog.stub", cwd=tree.root, check=False)
    assert wrong.code == 2
    assert "'bog.stub' matches no variant" in wrong.err
    assert "Did you mean 'big.stub'?" in wrong.err


def test_what_is_not_declared_is_dropped_and_what_is_damaged_is_locked_anew(
    tree: Tree, drift: Drifting, within: Callable[..., Run]
) -> None:
    path = tree.root / LOCK_NAME
    path.write_text(path.read_text().replace("big.stub.document.target.device", "big.stub.document.target.divice"))
    run = within("lock", "--check", cwd=tree.root, check=False)
    assert run.code == 8
    assert "big.stub: the identity is not that of the document" in run.err
    run = within("lock", "--json", cwd=tree.root)
    assert run.json["locked"].keys() == run.json["damaged"].keys() == {"big.stub"}
    edit(tree, '[tool.epctx.models.big]\nsource = "models/big.onnx"\n', "")
    run = within("lock", "--json", cwd=tree.root)
    assert run.json["dropped"] == ["big.stub"]
    assert drift() == []


def test_a_failed_compile_leaves_the_lock_as_it_was(tree: Tree, within: Callable[..., Run]) -> None:
    before = (tree.root / LOCK_NAME).read_bytes()
    edit(tree, "level = 3", 'level = 3, mode = "fail"')
    assert within("lock", cwd=tree.root, check=False).code == 5
    assert (tree.root / LOCK_NAME).read_bytes() == before


def test_what_is_not_here_keeps_its_place_in_the_lock(factory: Factory, within: Callable[..., Run]) -> None:
    tree = factory.project(STUB_TARGET + QNN_TARGET)
    run = within("lock", "--targets", "stub", "--json", cwd=tree.root)
    assert run.json["unlocked"] == ["detector.snapdragon-60", "detector.snapdragon-88"]
    assert "\n\n# detector.snapdragon-60\n\n# detector.snapdragon-88\n" in (tree.root / LOCK_NAME).read_text()
    assert [item["reason"] for item in Drifting(tree, within)()] == ["not-locked", "not-locked"]


# Bytes


def test_other_bytes_than_locked_are_refused(factory: Factory, tmp_path: Path) -> None:
    """A compiler that gives other bytes each time: only those that were locked will do."""
    tree = factory.project(STUB_TARGET + 'provider-options = { mode = "random" }\n')
    epctx("lock", "-q", cwd=tree.root)
    assert locked(tree).code == 0
    for _ in range(2):  # the compile gives others, then the store has others
        run = locked(tree, check=False, EPCTX_CACHE_DIR=str(tmp_path / "other"))
        assert run.code == 8
        assert "other bytes than were locked, for the same identity" in run.err
        assert "epctx lock --upgrade detector.stub" in run.err
        assert "model_ctx.onnx: locked " in run.err
    epctx("lock", "-q", "--upgrade", "detector.stub", cwd=tree.root, env={"EPCTX_CACHE_DIR": str(tmp_path / "other")})
    assert locked(tree, EPCTX_CACHE_DIR=str(tmp_path / "other")).code == 0


class Cas(BaseHTTPRequestHandler):
    """Bazel's HTTP cache, of files that the test put into `server.blobs`."""

    def do_GET(self) -> None:
        data = self.server.blobs.get(self.path.removeprefix("/cas/"))  # type: ignore[attr-defined]
        self.send_response(200 if data is not None else 404)
        self.send_header("Content-Length", str(len(data or b"")))
        self.end_headers()
        self.wfile.write(data or b"")

    def log_message(self, *_arguments: object) -> None:
        """Nothing."""


@contextmanager
def cas(blobs: dict[str, bytes]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Cas)
    server.blobs = blobs  # type: ignore[attr-defined]
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_artifacts_come_from_a_remote_cache_by_digest(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(STUB_TARGET + 'provider-options = { mode = "random" }\n')
    epctx("lock", "-q", cwd=tree.root)
    environ = {"EPCTX_LOCKED": "1"}
    project = load_project(tree.root, environ=environ, state="wheel")
    with Pipeline(project, Store()).build() as built:
        generation = built.entries[0].generation
        assert generation is not None
        blobs = {item.digest: generation.file(item).read_bytes() for item in generation.record.artifacts}
    said: list[str] = []
    with cas(blobs) as url, open_remote(url, mode="read-only", environ={}, warn=said.append) as remote:
        elsewhere = Store(tmp_path / "elsewhere")
        with Pipeline(project, elsewhere, remote=remote).build() as fetched:
            assert [entry.status for entry in fetched.entries] == ["fetched"]
            assert fetched.entries[0].generation is not None
            assert set(fetched.entries[0].generation.record.artifacts) == set(generation.record.artifacts)
        with Pipeline(project, elsewhere).build() as again:
            assert [entry.status for entry in again.entries] == ["hit"]
        blobs[next(iter(blobs))] = b"poisoned"
        with Pipeline(project, Store(tmp_path / "third"), remote=remote).build() as poisoned:
            assert [entry.status for entry in poisoned.entries] == ["failed"]
    assert len(said) == 1


# Without any EP


def test_what_is_in_the_store_as_it_was_locked_needs_no_ep(tree: Tree, original: Path, tmp_path: Path) -> None:
    """Front ends that isolate builds install nothing for it."""
    edit(tree, "env =", 'requires = ["epctx-stub"]\nenv =')
    environ = {"EPCTX_CACHE_DIR": str(original / "cache")}
    assert dynamic_requirements(tree.root, environ=environ) == ("epctx-stub",)
    assert dynamic_requirements(tree.root, environ={**environ, "EPCTX_LOCKED": "1"}) == ()
    elsewhere = {"EPCTX_LOCKED": "1", "EPCTX_CACHE_DIR": str(tmp_path / "empty")}
    assert dynamic_requirements(tree.root, environ=elsewhere) == ("epctx-stub",)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The interpreter of an environment with everything that these tests run in, but the EPs."""
    return environment_without_eps(tmp_path / "bare")


def wheel_with(python: Path, tree: Tree, out: Path, *, check: bool = True, **env: str) -> Built:
    """Build a wheel with hatchling in the environment of `python`, which does not see the stub EP either."""
    command = [str(python), "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    return run_front_end(command, tree.root, out=out, env={"PYTHONPATH": str(REPOSITORY), **env}, check=check)


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_a_locked_release_is_built_where_there_is_no_ep(factory: Factory, tmp_path: Path, bare: Path) -> None:
    tree = factory.project(OPENVINO_TARGET + QNN_TARGET)
    source = "[tool.epctx.models.detector]\nsource = 'models/detector.onnx'\nship-source = true\ncheck = { seed = 3 }\n"
    tree.write(source + OPENVINO_TARGET + QNN_TARGET)
    epctx("lock", "-q", cwd=tree.root)
    with_eps = wheel_with(Path(sys.executable), tree, tmp_path / "with", EPCTX_LOCKED="1")
    without = wheel_with(bare, tree, tmp_path / "without", EPCTX_LOCKED="1")
    assert without.wheel.read_bytes() == with_eps.wheel.read_bytes()
    assert any(name.endswith("snapdragon-88_ctx.onnx") for name in package_files(without.wheel))

    missing = wheel_with(bare, tree, tmp_path / "unlocked", check=False)
    assert missing.code == 4
    assert "which brings Intel OpenVINO, is not installed" in missing.output

    empty = {"EPCTX_LOCKED": "1", "EPCTX_CACHE_DIR": str(tmp_path / "empty")}
    nothing = wheel_with(bare, tree, tmp_path / "nothing", check=False, **empty)
    assert nothing.code == 4
    assert "its artifacts are in neither the store nor a remote cache, and Intel OpenVINO" in nothing.output

    # With an empty store, a remote cache gives the bytes by the digests in the lock alone.
    generations = (Path(os.environ["EPCTX_CACHE_DIR"])).rglob("generations/*/*")
    blobs = {digest_bytes(data): data for data in (path.read_bytes() for path in generations if path.is_file())}
    with cas(blobs) as url:
        remote = {**empty, "EPCTX_CACHE_DIR": str(tmp_path / "fetching"), "EPCTX_REMOTE_CACHE": url}
        fetched = wheel_with(bare, tree, tmp_path / "fetched", **remote)
    assert fetched.wheel.read_bytes() == with_eps.wheel.read_bytes()
    assert fetched.output.count(": fetched ") == 3

    # Whatever can be looked at without the EPs still has to be as it was locked.
    tree.write(
        (source + OPENVINO_TARGET + QNN_TARGET)
        .replace('"88"', '"60", "88"')
        .replace('["60", ', "[")
        .replace("f32", "bf16")
    )
    drifted = wheel_with(bare, tree, tmp_path / "drifted", check=False, EPCTX_LOCKED="1")
    assert drifted.code == 8
    words = "provider option load_config, CPU.INFERENCE_PRECISION_HINT: f32 -> bf16"
    assert f"detector.intel-cpu: {words}" in drifted.output
    again = [str(bare), "-m", "hatch_epctx", "lock"]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    run = subprocess.run(again, cwd=tree.root, env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 4
    assert f"detector.intel-cpu: has to be locked anew ({words}), and Intel OpenVINO is not here" in run.stderr
    assert "epctx lock --targets intel-cpu" in run.stderr
