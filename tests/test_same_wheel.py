"""The same inputs give the same wheel, bit for bit, whoever builds it, where and how."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import OPENVINO_TARGET, QNN_TARGET, REPOSITORY, Factory, Tree, epctx, save, small_model

from hatch_epctx.wheelfile import check_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = """
[tool.epctx.models.detector]
source = "models/detector.onnx"
ship-source = true
check = { seed = 2 }
[tool.epctx.models.classifier]
source = "models/classifier.onnx"
"""
NOBODY = 65534


@contextmanager
def elsewhere(uid: int | None) -> Iterator[Path]:
    """A folder that is no other test's, of this user or of `uid`."""
    folder = Path(tempfile.mkdtemp(prefix="epctx elsewhere ü-"))
    try:
        if uid is not None:
            folder.chmod(0o755)
            os.chown(folder, uid, uid)
        yield folder
    finally:
        shutil.rmtree(folder)


def as_nobody() -> list[str]:
    """The head of a command that runs as another user; empty where this one may not become another.

    An interpreter in root's own home is out of reach of all others, so that they may be given the right to read it.
    """
    if os.name == "nt" or os.geteuid() != 0 or not shutil.which("setpriv"):
        return []
    plain = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    # Starting a process in turn, as workers are, tells whether the interpreter itself can be reached.
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', ''], check=True)"
    for head in (plain, [*plain, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]):
        if not subprocess.run([*head, sys.executable, "-c", code], capture_output=True, check=False).returncode:
            return head
    return []


def build(tree: Tree, out: Path, env: dict[str, str], *, umask: int, head: list[str]) -> Path:
    """Build a wheel with hatchling in an environment that is `env` and nothing else."""
    command = [*head, sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    # The only variables that both have in common.
    common = {"PYTHONPATH": str(REPOSITORY), "PATH": os.environ["PATH"], "EPCTX_LOCKED": "1"}
    done = subprocess.run(
        command, cwd=tree.root, env={**common, **env}, capture_output=True, text=True, umask=umask, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    assert check_wheel(wheel) == []
    return wheel


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
@pytest.mark.skipif(os.name == "nt", reason="POSIX: umask and users")
def test_two_environments_build_the_same_wheel(factory: Factory, tmp_path: Path) -> None:
    """Another folder, home, user, locale, time zone, umask, number of jobs, temporary folder, store."""
    one = factory.project("", models=("detector",))
    save(small_model(seed=9, weights="classifier.data"), one.root / "models" / "classifier.onnx")
    one.write(TABLE + OPENVINO_TARGET + QNN_TARGET)
    head = as_nobody()
    uid = NOBODY if head else None
    first = {
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path),
        "LC_ALL": "C",
        "TZ": "UTC",
        "EPCTX_JOBS": "1",
        "EPCTX_CACHE_DIR": os.environ["EPCTX_CACHE_DIR"],
    }
    epctx("lock", "-q", cwd=one.root)
    expected = build(one, tmp_path / "out", first, umask=0o022, head=[])
    with elsewhere(uid) as folder:
        two = Tree(folder / "another" / "name of it")
        shutil.copytree(one.root, two.root)
        (folder / "tmp").mkdir()
        if uid is not None:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, uid, uid)
        for path in two.root.rglob("*"):
            os.utime(path, (1_000_000_000, 1_000_000_000))
        second = {
            "HOME": str(folder),
            "TMPDIR": str(folder / "tmp"),
            "LC_ALL": "C.UTF-8",
            "LANG": "tr_TR.UTF-8",
            "TZ": "Asia/Kathmandu",
            "EPCTX_JOBS": "3",
            "USER": "somebody",
            "PYTHONHASHSEED": "7",
        }
        found = build(two, folder / "out", second, umask=0o077, head=head)
        assert found.name == expected.name
        if found.read_bytes() != expected.read_bytes():
            with zipfile.ZipFile(found) as new, zipfile.ZipFile(expected) as old:
                assert new.namelist() == old.namelist()
                differing = [name for name in new.namelist() if new.read(name) != old.read(name)]
                assert differing, "the archives differ, and no file in them"
            pytest.fail(f"the wheels differ: {differing}")
