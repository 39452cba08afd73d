"""Death and failing disks at every step of a publish, and the order in which bytes become durable."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
import store_support as support
from store_support import build, check, compile_into, identity_of, left_over

from hatch_epctx.errors import StoreError
from hatch_epctx.files import FAULT_POINTS, faults
from hatch_epctx.store import Generation, Miss, Store

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY = identity_of("m")

OTHERS = ("snapshot-", "compiled", "loaded", "file-", "sweep-", "discard-", "collect-", "root-")
PUBLISH = [point for point in FAULT_POINTS if not point.startswith(OTHERS)]
VISIBLE = {"marker-replaced", "marker-after"}
"""Points after which the generation is selected."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def clean(store: Store, *, generations: int) -> None:
    """Nothing is left of dead processes but this many generations, all of them named by markers."""
    left = left_over(store)
    assert len(left.pop("generations")) == generations
    assert not any(left.values()), left


@pytest.mark.parametrize("point", [*PUBLISH, "claim-made@2", "artifact-taken@2"])
def test_a_build_killed_anywhere_leaves_nothing_half_done(store: Store, tmp_path: Path, point: str) -> None:
    build(store, identity_of("before")).close()
    fault = {"EPCTX_TEST": "1", "EPCTX_TEST_FAULT": f"{point}:kill"}
    code, _ = support.run("build", store.root, "m", tmp_path / "log", check=False, **fault)
    assert code == -signal.SIGKILL
    found = store.find(IDENTITY)
    if point in VISIBLE:
        assert isinstance(found, Generation)
        check(found, IDENTITY)
        found.close()
    else:
        assert isinstance(found, Miss)
        assert found.reason == "absent"
    compiles: list[int] = []
    again = Store(store.root)
    with build(again, IDENTITY, on_compile=lambda: compiles.append(1)) as generation:
        check(generation, IDENTITY)
        assert generation.selected
    assert len(compiles) == (0 if point in VISIBLE else 1)
    again.sweep_dead()
    clean(store, generations=2)


@pytest.mark.parametrize("point", ["discard-before", "discard-moved"])
def test_a_generation_used_once_goes_although_its_maker_died_while_removing_it(store: Store, point: str) -> None:
    fault = {"EPCTX_TEST": "1", "EPCTX_TEST_FAULT": f"{point}:kill"}
    with support.Child("publish", store.root, "m", "no", **fault) as child:
        child.start()
        assert child.process.wait(timeout=30) == -signal.SIGKILL
    store.sweep_dead()
    clean(store, generations=0)


@pytest.mark.parametrize("point", ["sweep-before", "sweep-moved"])
def test_a_sweep_killed_anywhere_is_finished_by_the_next(store: Store, point: str) -> None:
    with support.Child("publish", store.root, "m", "no") as child, support.Child("stage", store.root) as other:
        child.kill()
        other.kill()
    fault = {"EPCTX_TEST": "1", "EPCTX_TEST_FAULT": f"{point}:kill"}
    code, _ = support.run("sweep", store.root, check=False, **fault)
    assert code == -signal.SIGKILL
    store.sweep_dead()
    clean(store, generations=0)


@pytest.mark.parametrize("point", ["file-temp", "file-replaced"])
def test_a_fact_whose_writer_was_killed_is_absent_or_whole(store: Store, tmp_path: Path, point: str) -> None:
    value = {"x": [1, 2, 3]}
    code = (
        "import os, sys; from pathlib import Path; from hatch_epctx.store import Store\n"
        "store = Store(Path(sys.argv[1])); store.read_only\n"
        f"os.environ.update(EPCTX_TEST='1', EPCTX_TEST_FAULT='{point}:kill')\n"
        "store.remember('scan', 'k', {'x': [1, 2, 3]})"
    )
    done = subprocess.run([support.sys.executable, "-c", code, str(store.root)], env=support.environment(), check=False)
    assert done.returncode == -signal.SIGKILL
    assert store.recall("scan", "k") == (value if point == "file-replaced" else None)
    store.remember("scan", "k", value)
    assert store.recall("scan", "k") == value


def _compile_or_error(store: Store) -> Generation | StoreError:
    try:
        return compile_into(store, IDENTITY)
    except StoreError as error:
        return error


@pytest.mark.parametrize("error", ["ENOSPC", "EACCES", "EIO", "EROFS", "EDQUOT", "ESTALE"])
@pytest.mark.parametrize("point", [*PUBLISH[:-1], "claim-made@2", "artifact-taken@2"])
def test_a_failing_disk_gives_a_clear_error_or_a_generation_for_one_use(
    store: Store, monkeypatch: pytest.MonkeyPatch, point: str, error: str
) -> None:
    store.sweep_dead()  # folders and all are there
    monkeypatch.setenv("EPCTX_TEST", "1")
    monkeypatch.setenv("EPCTX_TEST_FAULT", f"{point}:{error}")
    faults._passed.clear()
    made = _compile_or_error(store)
    if isinstance(made, StoreError):
        assert made.remedy
        assert made.where
        assert point.partition("@")[0] in {"claim-made", "staging-made", "artifact-taken", "staged"}
    else:
        check(made, IDENTITY)
        assert not made.selected
        assert "used once" in made.warning
        made.close()
    monkeypatch.delenv("EPCTX_TEST")
    found = store.find(IDENTITY)
    if isinstance(found, Generation):
        assert point == "marker-replaced"  # the marker was in place when the disk failed
        check(found, IDENTITY)
        found.close()
    with build(store, IDENTITY) as generation:
        check(generation, IDENTITY)
        assert generation.selected
    store.sweep_dead()
    clean(store, generations=1)


def test_living_work_is_never_swept(store: Store) -> None:
    with (
        support.Child("stage", store.root) as stage,
        support.Child("publish", store.root, "m", "no") as once,
        support.Child("publish", store.root, "kept", "yes") as kept,
        store.staging() as mine,
    ):
        swept = store.sweep_dead()
        assert (swept.staging, swept.generations, swept.finished) == (0, 0, True)
        assert (store.layout.staging / stage.said / "work" / "half.bin").exists()
        assert mine.path.exists()
        assert {once.said, kept.said} == set(left_over(store)["generations"])
        for child in (stage, once, kept):
            child.kill()
        swept = store.sweep_dead()
        assert (swept.staging, swept.generations, swept.finished) == (1, 1, True)
        assert mine.path.exists()
    with build(store, identity_of("kept"), on_compile=pytest.fail) as found:
        assert found.name == kept.said
    clean(store, generations=1)


def test_a_dead_makers_superseded_generation_goes_when_its_last_reader_does(store: Store) -> None:
    with support.Child("publish", store.root, "m", "yes") as maker:
        reader = store.find(IDENTITY)
        assert isinstance(reader, Generation)
        maker.kill()
    compile_into(store, IDENTITY, salt="newer").close()
    assert store.sweep_dead().generations == 0
    check(reader, IDENTITY)
    reader.close()
    assert store.sweep_dead().generations == 1
    clean(store, generations=1)


def test_a_hit_needs_no_space(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_into(store, IDENTITY).close()
    monkeypatch.setenv("EPCTX_TEST", "1")
    monkeypatch.setenv("EPCTX_TEST_FAULT", "claim-made:ENOSPC")
    found = store.find(IDENTITY)
    assert isinstance(found, Generation)
    with found:
        check(found, IDENTITY)
        assert "cannot be leased" in found.warning


def test_the_first_staging_folder_of_a_process_sweeps_a_little(store: Store) -> None:
    children = [support.Child("stage", store.root) for _ in range(3)]
    for child in children:
        with child:
            child.kill()
    with Store(store.root).staging() as staging:
        assert left_over(store)["staging"] == [staging.folder.name]


def test_a_sweep_is_bounded(store: Store) -> None:
    store.sweep_dead()
    for number in range(10):
        (store.layout.staging / f"{number:032x}").mkdir()
    assert (store.sweep_dead(limit=4).staging, store.sweep_dead(limit=4).finished) == (4, False)
    assert store.sweep_dead(seconds=0.0).staging == 0
    swept = store.sweep_dead()
    assert (swept.staging, swept.finished) == (2, True)
    (store.layout.staging / "not ours").mkdir()
    store.sweep_dead()
    assert (store.layout.staging / "not ours").exists()
