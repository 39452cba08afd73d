"""Cases 22 to 27 and 36: how stores of this kind failed real users, each as a whole project with the command line.

What one part alone can show stands in that part's tests, under the same kind of name.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from store_support import can_mount, left_over
from support import REPOSITORY, STUB_TARGET, epctx, here, pipeline

from hatch_epctx import collect as collecting
from hatch_epctx import runtime
from hatch_epctx.errors import EpctxError

if TYPE_CHECKING:
    from pathlib import Path

    from support import Factory, Tree

    from hatch_epctx.store import Store

ESCAPES = ("../outside.bin", "/etc/passwd", "C:\\outside.bin", "link.bin", "sub/../../outside.bin")


def statuses(tree: Tree, **env: str) -> dict[str, str]:
    rows = here("build", "--json", cwd=tree.root, env=env).json["variants"]
    return {row["variant"]: row["status"] for row in rows}


def store_of(tree: Tree) -> Store:
    return pipeline(tree.root).store


def test_case_22_whatever_vanishes_is_a_miss(factory: Factory) -> None:
    """Each part of an entry in turn, as where another host collects; a miss without a traceback, and one compile."""
    tree = factory.project(STUB_TARGET)
    statuses(tree)
    for pattern in ("generations/*/*.bin", "generations/*", "markers/*"):
        (path,) = (store_of(tree).root / "v1").glob(pattern)
        path.parent.chmod(0o700)
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert here("plan", cwd=tree.root).code == 0
        assert statuses(tree) == {"detector.stub": "compiled"}, pattern
        assert statuses(tree) == {"detector.stub": "hit"}, pattern
        here("cache", "collect", cwd=tree.root)


@pytest.mark.skipif(not can_mount(), reason="may not mount file systems here: needs root")
def test_case_23_the_disk_fills_up_while_writing(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(STUB_TARGET)
    disk = tmp_path / "disk"
    disk.mkdir()
    run = f"{sys.executable} -m hatch_epctx"
    script = f"""
mount -t tmpfs -o size=1m,mode=700 none {disk}
{run} plan > /dev/null
dd if=/dev/zero of={disk}/ballast bs=4k 2> /dev/null || true
code=0; {run} build > {tmp_path}/full.log 2>&1 || code=$?; echo $code
ls {disk}/v1/generations | wc -l; find {disk}/v1/markers -type f | wc -l
rm {disk}/ballast
{run} cache verify > /dev/null; echo $?
{run} build --json | tr -d '\\n'; echo
{run} cache verify > /dev/null; echo $?
"""
    paths = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script],
        cwd=tree.root,
        env={**os.environ, "EPCTX_CACHE_DIR": str(disk), "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    code, generations, markers, verified, built, verified_again = done.stdout.splitlines()
    said = (tmp_path / "full.log").read_text()
    assert (code, generations.strip(), markers.strip()) == ("6", "0", "0"), said
    assert "Traceback" not in said
    assert "space" in said
    assert (verified, verified_again) == ("0", "0"), done.stderr
    assert [row["status"] for row in json.loads(built)["variants"]] == ["compiled"]


def test_case_24_a_size_limit_with_a_live_reader(factory: Factory) -> None:
    """Two models whose names share a prefix: what one build holds stays whole, the other one's goes, either way."""
    tree = factory.project(STUB_TARGET, models=("det", "detector"))
    for held, other in (("det", "detector"), ("detector", "det")):
        statuses(tree)
        before = collecting.look(store_of(tree)).size
        with pipeline(tree.root, EPCTX_MODELS=held).build() as built:
            (entry,) = built.entries
            assert entry.generation is not None
            here("cache", "collect", "--max-size", "0B", cwd=tree.root)
            assert 0 < collecting.look(store_of(tree)).size < before
            for artifact in entry.generation.record.artifacts:
                assert entry.generation.file(artifact).stat().st_size == artifact.size
        assert statuses(tree) == {f"{held}.stub": "hit", f"{other}.stub": "compiled"}


def test_case_26_a_crash_at_any_step_leaves_nothing_that_a_collection_does_not_remove(factory: Factory) -> None:
    """A crash, then only a collection, no build: nothing may be left but what is selected."""
    tree = factory.project(STUB_TARGET)
    store = store_of(tree)
    for point, selected in (("staged", 0), ("marker-before", 0), ("marker-after", 1)):
        env = {"EPCTX_TEST": "1", "EPCTX_TEST_FAULT": f"{point}:kill"}
        assert epctx("build", cwd=tree.root, env=env, check=False).code == -signal.SIGKILL, point
        here("cache", "collect", cwd=tree.root)
        left = left_over(store)
        assert len(left.pop("generations")) == selected, point
        assert not any(left.values()), (point, left)
    assert statuses(tree) == {"detector.stub": "hit"}


def _hostile(folder: Path, kind: str, name: str) -> None:
    """Let one document of an installed package refer to `name`."""
    path = folder / "manifest.json"
    manifest: Any = json.loads(path.read_text())
    (variant,) = manifest["components"]["detector"]["variants"].values()
    info = variant["executor_info"]
    if kind == "model-file":
        info["ort"]["model_file"] = name
    else:
        info["epctx"]["artifacts"][0]["path"] = name
    path.write_text(json.dumps(manifest))


def test_case_36_a_manifest_that_leads_out_is_refused(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(STUB_TARGET)
    here("build", "--out", tmp_path / "out", cwd=tree.root)
    (good,) = [path.parent for path in (tmp_path / "out").rglob("manifest.json")]
    (tmp_path / "outside.bin").write_bytes(b"x")
    (good / "link.bin").symlink_to(tmp_path / "outside.bin")
    for number, (kind, name) in enumerate(itertools.product(("model-file", "artifact"), ESCAPES)):
        folder = tmp_path / str(number)
        shutil.copytree(good, folder, symlinks=True)
        _hostile(folder, kind, name)
        with pytest.raises(EpctxError) as caught:
            runtime.open(folder).session("detector", fallback="error")
        assert str(caught.value), (kind, name)
        assert here("verify", folder, check=False).code == 8, (kind, name)


def test_case_36_a_marker_that_leads_out_is_a_miss(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(STUB_TARGET)
    statuses(tree)
    v1 = store_of(tree).root / "v1"
    (tmp_path / "outside.bin").write_bytes(b"x")
    (generation,) = (v1 / "generations").iterdir()
    generation.chmod(0o700)
    (generation / "link.bin").symlink_to(tmp_path / "outside.bin")
    (marker,) = v1.glob("markers/*/*.json")
    good = json.loads(marker.read_text())
    for name in ESCAPES:
        value = {**good, "artifacts": [{**good["artifacts"][0], "path": name}, *good["artifacts"][1:]]}
        marker.write_text(json.dumps(value))
        assert here("cache", "verify", cwd=tree.root, check=False).code == 8, name
        (row,) = here("plan", "--json", cwd=tree.root).json["variants"]
        assert row["status"] == "miss", name
    assert statuses(tree) == {"detector.stub": "compiled"}
    assert here("cache", "verify", cwd=tree.root).code == 0
    assert (tmp_path / "outside.bin").read_bytes() == b"x"


@pytest.mark.parametrize("name", [*ESCAPES[:3], ESCAPES[4]])
def test_case_36_a_model_that_leads_out_is_refused(factory: Factory, tmp_path: Path, name: str) -> None:
    tree = factory.project(STUB_TARGET)
    path = tree.model(weights="placeholder.data")
    (tree.root / "outside.bin").write_bytes(b"x" * 4096)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for item in tensor.external_data:
            if item.key == "location":
                item.value = name
    path.write_bytes(model.SerializeToString())
    run = here("build", cwd=tree.root, check=False)
    assert run.code == 3
    assert "external data outside" in run.err + run.out
