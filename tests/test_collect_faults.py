"""Death at every step of a collection, of a pin, and of a whole build; afterwards the next one is right."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
import store_support as support
from store_support import build, check, compile_into, identity_of, left_over
from support import STUB_TARGET, epctx

from hatch_epctx import collect as collecting
from hatch_epctx.collect import Limits, Root, collect, read_roots
from hatch_epctx.files import FAULT_POINTS
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from support import Factory

COLLECT = [point for point in FAULT_POINTS if point.startswith(("collect-", "sweep-"))]
WHOLE_BUILD = [
    *("snapshot-copied@2", "compiled", "loaded", "marker-after"),
    *(pytest.param(point, marks=pytest.mark.slow) for point in ("snapshot-copied", "staged", "marker-before")),
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def dies(store: Store, command: str, *arguments: object, at: str) -> None:
    fault = {"EPCTX_TEST": "1", "EPCTX_TEST_FAULT": f"{at}:kill"}
    code, out = support.run(command, store.root, *arguments, check=False, **fault)
    assert code == -signal.SIGKILL, out


def sound(store: Store, *names: str) -> None:
    assert [found for found in collecting.check(store) if found.miss is not None] == []
    for name in names:
        with build(store, identity_of(name)) as generation:
            check(generation, identity_of(name))
            assert generation.selected
    done = collect(store, Limits(max_size=1 << 60))
    assert not done.failed
    left = left_over(store)
    assert len(left.pop("generations")) == len(names)
    assert not any(left.values()), left


@pytest.mark.parametrize("point", [*COLLECT, "collect-moved@2", "collect-unmarked@2", "sweep-before@2"])
def test_case_26_a_collection_killed_anywhere_is_finished_by_the_next(store: Store, point: str) -> None:
    for name in ("a", "b"):
        build(store, identity_of(name)).close()
    compile_into(store, identity_of("b"), salt="again").close()
    compile_into(store, identity_of("b")).close()
    with (
        support.Child("publish", store.root, "once", "no") as first,
        support.Child("publish", store.root, "twice", "no") as second,
        support.Child("stage", store.root) as third,
    ):
        for child in (first, second, third):
            child.kill()
    dies(store, "collect", at=point)
    sound(store, "a", "b")
    collect(store, Limits(max_size=0))
    sound(store)


@pytest.mark.parametrize("point", ["root-temp", "root-replaced"])
def test_a_pin_killed_anywhere_is_there_or_not(store: Store, point: str) -> None:
    build(store, identity_of("m")).close()
    dies(store, "everything", "m", at=point)
    assert [root.name for root in read_roots(store)] == ([identity_of("m")] if point == "root-replaced" else [])
    collecting.pin(store, Root(name=identity_of("m"), identity=identity_of("m")))
    collect(store, Limits(max_size=0))
    sound(store, "m")


@pytest.mark.parametrize("point", WHOLE_BUILD)
def test_case_26_a_whole_build_killed_anywhere(factory: Factory, tmp_path: Path, point: str) -> None:
    """The pipeline with its real worker processes; the model has external data, so that a snapshot has two files."""
    tree = factory.project(STUB_TARGET)
    tree.model(weights="detector.data")
    store = Store(tmp_path / "epctx-cache")
    run = epctx("build", cwd=tree.root, env={"EPCTX_TEST": "1", "EPCTX_TEST_FAULT": f"{point}:kill"}, check=False)
    assert run.code == -signal.SIGKILL, run.err
    assert [found for found in collecting.check(store) if found.miss is not None] == []
    (entry,) = epctx("build", "--json", cwd=tree.root).json["variants"]
    assert entry["status"] == ("hit" if point == "marker-after" else "compiled")
    (item,) = collecting.look(store).items
    assert item.identities == (entry["identity"],)
    store.sweep_dead()
    left = left_over(store)
    del left["generations"]
    assert not any(left.values()), left


def test_a_collector_that_was_killed_holds_nobody_up(store: Store) -> None:
    build(store, identity_of("a")).close()
    holder = subprocess.Popen(
        support.command_line("lock", store.layout.locks / "collect.lock"),
        env=support.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    holder.kill()
    holder.communicate()
    assert len(collect(store, Limits(max_size=0), seconds=10).removed) == 1
