"""The recipes of docs/ci.md are run as they stand there, and the hook by pre-commit itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import OPENVINO_TARGET, QNN_TARGET, REPOSITORY, STUB_TARGET, Factory, Tree, environment_without_eps, here

from hatch_epctx.cli.parser import make_parser
from hatch_epctx.wheelfile import check_wheel, read_members

if TYPE_CHECKING:
    from collections.abc import Mapping

yaml = pytest.importorskip("yaml")

PAGE = (REPOSITORY / "docs" / "ci.md").read_text(encoding="utf-8")
HOOKS = REPOSITORY / ".pre-commit-hooks.yaml"
STUB = REPOSITORY / "tests" / "stub_ep"
EXPRESSION = re.compile(r"\$\{\{ *([^}]+?) *\}\}")


def recipes() -> dict[str, Any]:
    """The page's files by name."""
    blocks = re.findall(r"^```yaml\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return {Path(name).name: yaml.safe_load(text) for name, text in blocks}


WORKFLOWS = {name: recipe for name, recipe in recipes().items() if "jobs" in recipe}


def runs(job: Mapping[str, Any]) -> list[str]:
    """The shell of a job, but for what it installs."""
    return [step["run"] for step in job["steps"] if "run" in step and " pip install " not in step["run"]]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_workflows_are_whole(name: str) -> None:
    for job in WORKFLOWS[name]["jobs"].values():
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            assert re.fullmatch(r"[\w-]+/[\w-]+@[\w/.]+", step.get("uses", "a/b@v1"))
        for line in "\n".join(runs(job)).splitlines():
            if line.startswith("epctx "):
                make_parser().parse_args(EXPRESSION.sub("x", line).replace('"', "").split()[1:])


class Machine:
    """A runner: a checkout of a project, and nothing else of the others'."""

    def __init__(self, folder: Path, tree: Tree, *, python: Path | None = None, **env: str) -> None:
        self.root = folder / "checkout"
        shutil.copytree(tree.root, self.root)
        programs = (python or Path(sys.executable)).parent
        self._env = {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(STUB)]),
            "HOME": str(folder),
            "EPCTX_CACHE_DIR": str(folder / "store"),
            **env,
        }

    def run(self, job: Mapping[str, Any], values: Mapping[str, str]) -> None:
        """Run the job's shell; `values` stand for its expressions."""
        for text in runs(job):
            command = EXPRESSION.sub(lambda match: values[match[1]], text)
            # As the release has it: what an index would give is here already.
            command = re.sub(r"(python -m build --wheel)$", r"\1 --no-isolation --skip-dependency-check", command)
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=self.root,
                env=self._env,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


TARGETS = """
[tool.epctx.targets.snapdragon]
ep = "stub"
matrix = { level = ["1", "2"] }
[tool.epctx.targets.intel-cpu]
ep = "stub"
"""


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
@pytest.mark.skipif(os.name == "nt", reason="POSIX: the runners' shell")
def test_a_release_is_compiled_in_parts_and_packaged_where_no_ep_is(factory: Factory, tmp_path: Path) -> None:
    pytest.importorskip("build")
    tree = factory.project(OPENVINO_TARGET + QNN_TARGET.replace(', "88"', ""))
    here("lock", "-q", cwd=tree.root)
    release = WORKFLOWS["release.yml"]
    compiling, packaging = release["jobs"]["compile"], release["jobs"]["package"]
    bare = environment_without_eps(tmp_path / "bare")
    last = Machine(tmp_path / "last", tree, python=bare, **release["env"])
    for number, values in enumerate(compiling["strategy"]["matrix"]["include"]):
        machine = Machine(tmp_path / str(number), tree, **release["env"])
        machine.run(compiling, {f"matrix.{name}": str(value) for name, value in values.items()})
        place = last.root / "stores" / f"store-{number}"
        place.mkdir(parents=True)
        shutil.copy(machine.root / "store.tar", place)
    last.run(packaging, {})
    (wheel,) = (last.root / "dist").glob("*.whl")
    assert check_wheel(wheel) == []
    names = read_members(wheel, lambda _name: False, limit=0)[0]
    compiled = {name.rpartition("/")[2] for name in names if name.endswith("_ctx.onnx")}
    assert compiled == {f"detector.{target}_ctx.onnx" for target in ("intel-cpu", "snapdragon-60")}


@pytest.mark.skipif(os.name == "nt", reason="POSIX: the runners' shell")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["build.yml", "wheels.yml"])
def test_builds_run_as_they_are_told(factory: Factory, tmp_path: Path, name: str) -> None:
    pytest.importorskip("build")
    tree = factory.project(TARGETS)
    (job,) = WORKFLOWS[name]["jobs"].values()
    # The doctor looks at this machine's EPs, and has tests of its own.
    job = {**job, "steps": [step for step in job["steps"] if step.get("run") != "epctx doctor"]}
    values = job.get("strategy", {}).get("matrix", {}).get("include", [{}])[0]
    env = {
        key: EXPRESSION.sub(lambda match: values[match[1].removeprefix("matrix.")], text)
        for key, text in job.get("env", {}).items()
    }
    machine = Machine(tmp_path / "machine", tree, **env)
    machine.run(job, {})
    (wheel,) = (machine.root / "dist").glob("*.whl")
    assert wheel.name.endswith("py3-none-win_arm64.whl" if values else "py3-none-any.whl")


# pre-commit


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=T", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def pre_commit(folder: Path, *arguments: str, check: bool = True) -> str:
    """What pre-commit says of a project."""
    env = {**os.environ, "PRE_COMMIT_HOME": str(folder.parent / "pre-commit"), "PATH": _path()}
    env["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), str(STUB)])
    command = [sys.executable, "-m", "pre_commit", *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == check, done.stdout + done.stderr
    return done.stdout


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def committed(factory: Factory) -> Tree:
    """A locked project under git."""
    pytest.importorskip("pre_commit")
    tree = factory.project(STUB_TARGET)
    here("lock", "-q", cwd=tree.root)
    git(tree.root, "init", "-q")
    git(tree.root, "add", "-A")
    return tree


def declared(tree: Tree, *repos: Any) -> None:
    (tree.root / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": list(repos)}), encoding="utf-8")
    git(tree.root, "add", "-A")


def test_the_hook_fails_a_commit_that_the_lock_does_not_know(committed: Tree) -> None:
    """The hook as its manifest has it, but for the environment that pre-commit would install."""
    pre_commit(committed.root, "validate-manifest", str(HOOKS))
    (hook,) = yaml.safe_load(HOOKS.read_text(encoding="utf-8"))
    version = hook.pop("minimum_pre_commit_version")
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    del hook["additional_dependencies"]
    (local,) = recipes()[".pre-commit-config.yaml"]["repos"]
    assert local["hooks"][0].items() <= {**hook, "language": "system"}.items()
    declared(committed, local)
    assert "Passed" in pre_commit(committed.root, "run")
    committed.model(seed=9)
    git(committed.root, "add", "-A")
    said = pre_commit(committed.root, "run", check=False)
    assert "exit code: 8" in said
    assert "detector.stub: the model's ONNX file changed" in said


@pytest.mark.slow
def test_pre_commit_installs_the_hook_from_this_repository(committed: Tree, tmp_path: Path) -> None:
    """As a user has it: an environment of its own without any EP, in which the lock is compared all the same."""
    own = tmp_path / "hatch-epctx"
    own.mkdir()
    for name in ("hatch_epctx", "README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", ".pre-commit-hooks.yaml"):
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        copy(REPOSITORY / name, own / name)
    git(own, "init", "-q")
    git(own, "add", "-A")
    git(own, "commit", "-qm", "One")
    git(own, "tag", "v1")
    declared(committed, {"repo": str(own), "rev": "v1", "hooks": [{"id": "epctx-lock-check"}]})
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        assert "Passed" in pre_commit(committed.root, "run")
        committed.model(seed=9)
        git(committed.root, "add", "-A")
        assert "detector.stub: the model's ONNX file changed" in pre_commit(committed.root, "run", check=False)
