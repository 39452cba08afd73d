"""Collection: what stays, what goes, in which order, and who is not hurt."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest
import store_support as support
from store_support import build, check, compile_into, identity_of, left_over

from hatch_epctx import collect as collecting
from hatch_epctx.collect import Limits, Root, after_build, clear, collect, look, pin, read_roots, unpin
from hatch_epctx.collect.automatic import SECONDS
from hatch_epctx.collect.expiry import FACTS_AGE, STAT_AGE, TEMP_AGE
from hatch_epctx.collect.inventory import Inventory
from hatch_epctx.collect.usage import remember_size, remembered_size
from hatch_epctx.errors import StoreError
from hatch_epctx.files import touch
from hatch_epctx.lease import Lease
from hatch_epctx.store import Generation, Miss, Store

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400.0
NOTHING = Limits(max_size=0)
EVERYTHING = Limits(max_size=1 << 60)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def fill(store: Store, *names: str, size: int = 0) -> int:
    """Build one generation for each name, used an hour after the other, the last one now; their common size."""
    now = time.time()
    for position, name in enumerate(reversed(names)):
        build(store, identity_of(name)).close()
        touch(store.layout.marker(identity_of(name)), now - 3600 * position)
    (one, *_) = {item.size for item in look(store).items}
    return one


def there(store: Store, *names: str) -> list[str]:
    """Those of the names whose generation is found, without counting as a use."""
    times = {name: path.stat().st_mtime for name in names if (path := store.layout.marker(identity_of(name))).exists()}
    found = []
    for name in names:
        generation = store.find(identity_of(name))
        if isinstance(generation, Generation):
            generation.close()
            touch(store.layout.marker(identity_of(name)), times[name])
            found.append(name)
    return found


def spotless(store: Store, *, generations: int) -> None:
    """Every marker selects a whole generation, and there is nothing else."""
    assert [found for found in collecting.check(store) if found.miss is not None] == []
    inventory = look(store)
    assert len(inventory.items) == generations
    assert all(item.identities for item in inventory.items)
    assert inventory.dangling == ()
    left = left_over(store)
    assert len(left.pop("generations")) == generations
    assert not any(left.values()), left


def test_an_inventory_sees_every_generation_with_its_size_and_last_use(store: Store) -> None:
    fill(store, "old", "new")
    inventory = look(store)
    assert [item.identities for item in inventory.items] == [(identity_of("old"),), (identity_of("new"),)]
    files = support.outputs(identity_of("old"))
    assert [item.size for item in inventory.items] == [sum(map(len, files.values()))] * 2
    assert inventory.size == sum(item.size for item in inventory.items)
    assert inventory.items[1].used - inventory.items[0].used == pytest.approx(3600, abs=1)
    assert inventory.finished


def test_an_empty_store_and_one_that_is_not_there_are_collected(store: Store) -> None:
    assert look(Store(store.root)).items == ()
    done = collect(store, NOTHING)
    assert (done.removed, done.size, done.finished) == ([], 0, True)
    assert clear(store).removed == []


def test_by_size_the_least_recently_used_go_first_and_no_more_than_need_be(store: Store) -> None:
    one = fill(store, "a", "b", "c", "d")
    done = collect(store, Limits(max_size=2 * one))
    assert there(store, "a", "b", "c", "d") == ["c", "d"]
    assert [(item.identities, why) for item, why in done.removed] == [
        ((identity_of("a"),), "size"),
        ((identity_of("b"),), "size"),
    ]
    assert (done.size, done.freed) == (2 * one, 2 * one)
    assert collect(store, Limits(max_size=2 * one)).removed == []
    spotless(store, generations=2)


def test_a_hit_is_a_use(store: Store) -> None:
    one = fill(store, "a", "b", "c")
    build(store, identity_of("a"), on_compile=pytest.fail).close()
    collect(store, Limits(max_size=one))
    assert there(store, "a", "b", "c") == ["a"]


def test_looking_listing_and_verifying_are_no_use(store: Store) -> None:
    fill(store, "a", "b")
    before = [item.used for item in look(store).items]
    assert len(list(collecting.check(store))) == 2
    assert [item.used for item in look(store).items] == before


def test_by_age_what_was_not_used_for_long_goes(store: Store) -> None:
    fill(store, "a", "b", "c")
    done = collect(store, Limits(max_age=1800 + 3600))
    assert there(store, "a", "b", "c") == ["b", "c"]
    assert [why for _, why in done.removed] == ["age"]


def test_case_24_names_that_share_a_prefix_never_evict_each_other(store: Store) -> None:
    """Identities are compared whole, shards are by their first digits."""
    first = identity_of("model")
    twin = first[:-1] + ("0" if first[-1] != "0" else "1")
    compile_into(store, first).close()
    compile_into(store, twin).close()
    touch(store.layout.marker(first), time.time() - 3600)
    one = look(store).items[0].size
    collect(store, Limits(max_size=one))
    assert isinstance(store.find(first), Miss)
    found = store.find(twin)
    assert isinstance(found, Generation)
    with found:
        check(found, twin)
    assert clear(store, [first]).removed == []


def test_a_file_with_two_names_is_counted_once(store: Store) -> None:
    one = fill(store, "a", "b")
    folders = sorted(store.layout.generations.iterdir())
    (binary,) = folders[0].glob("*.bin")
    os.link(binary, folders[1] / "another-name.bin")
    assert look(store).size == 2 * one


def test_one_generation_of_several_identities_is_counted_once_and_goes_as_one(store: Store) -> None:
    """A shared generation, as weight sharing makes it: every member's marker names it."""
    one = fill(store, "a", "b")
    (shared,) = [item for item in look(store).items if item.identities == (identity_of("a"),)]
    marker = json.loads(store.layout.marker(identity_of("a")).read_text())
    for name in ("c", "d"):
        path = store.layout.marker(identity_of(name))
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**marker, "identity": identity_of(name)}))
    inventory = look(store)
    assert inventory.size == 2 * one
    (item,) = [item for item in inventory.items if item.generation == shared.generation]
    assert sorted(item.identities) == sorted(identity_of(name) for name in "acd")
    # A use of any member is a use of the whole.
    assert item.used >= time.time() - 60
    for name in "acd":
        touch(store.layout.marker(identity_of(name)), time.time() - 7200)
    assert len(collect(store, Limits(max_size=one)).removed) == 1
    assert there(store, "a", "b", "c", "d") == ["b"]
    spotless(store, generations=1)


def test_case_24_what_is_leased_stays_and_goes_when_the_process_is_dead(store: Store) -> None:
    with support.Child("publish", store.root, "held", "yes") as child:
        fill(store, "a", "b")
        done = collect(store, NOTHING)
        assert [item.identities for item in done.busy] == [(identity_of("held"),)]
        assert there(store, "held", "a", "b") == ["held"]
        assert clear(store).removed == []
        child.kill()
    assert len(collect(store, NOTHING).removed) == 1
    spotless(store, generations=0)


def test_what_is_read_stays_whole_until_its_reader_is_done(store: Store) -> None:
    fill(store, "m")
    reader = store.find(identity_of("m"))
    assert isinstance(reader, Generation)
    assert collect(store, NOTHING).removed == []
    with reader:
        check(reader, identity_of("m"))
    assert len(collect(store, NOTHING).removed) == 1


def test_a_generation_whose_identity_is_locked_is_in_use(store: Store) -> None:
    fill(store, "m")
    with support.Child("lock", store.layout.lock(identity_of("m"))):
        done = collect(store, NOTHING)
        assert (done.removed, len(done.busy)) == ([], 1)
    assert there(store, "m") == ["m"]


def test_a_superseded_generation_goes_although_its_maker_closed_normally(store: Store) -> None:
    compile_into(store, identity_of("m"), salt="1").close()
    compile_into(store, identity_of("m"), salt="2").close()
    assert store.sweep_dead().generations == 0
    done = collect(store, EVERYTHING)
    assert [why for _, why in done.removed] == ["superseded"]
    found = store.find(identity_of("m"))
    assert isinstance(found, Generation)
    with found:
        check(found, identity_of("m"), salt="2")
    spotless(store, generations=1)


def test_a_superseded_generation_stays_while_it_is_read(store: Store) -> None:
    compile_into(store, identity_of("m"), salt="1").close()
    reader = store.find(identity_of("m"))
    assert isinstance(reader, Generation)
    compile_into(store, identity_of("m"), salt="2").close()
    assert collect(store, EVERYTHING).removed == []
    with reader:
        check(reader, identity_of("m"), salt="1")
    assert len(collect(store, EVERYTHING).removed) == 1


def test_a_generation_whose_claim_was_lost_in_a_power_cut_goes(store: Store) -> None:
    """The claim's note is not flushed: after a power cut it may be empty, and nobody knows whose marker decides."""
    with support.Child("publish", store.root, "m", "no") as child:
        child.kill()
        (claim,) = (store.layout.leases / child.said).iterdir()
        claim.write_bytes(b"")
    assert store.sweep_dead().generations == 0
    assert len(left_over(store)["generations"]) == 1
    assert [why for _, why in collect(store, EVERYTHING).removed] == ["superseded"]
    spotless(store, generations=0)


def test_a_generation_that_is_being_published_is_no_orphan(store: Store) -> None:
    store.sweep_dead()
    with support.Child("publish", store.root, "m", "no") as child:
        assert collect(store, NOTHING).removed == []
        assert clear(store).removed == []
        assert left_over(store)["generations"] == [child.said]


def test_a_marker_that_the_disk_does_not_give_makes_no_orphan(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, "a", "b")
    real = collecting.inventory.read_bounded
    marker = store.layout.marker(identity_of("a"))

    def broken(path: Path, limit: int) -> bytes:
        if path == marker:
            raise OSError(5, "Input/output error", str(path))
        return real(path, limit)

    monkeypatch.setattr(collecting.inventory, "read_bounded", broken)
    done = collect(store, EVERYTHING)
    assert done.removed == []
    assert str(marker) in done.failed[0]
    monkeypatch.undo()
    assert there(store, "a", "b") == ["a", "b"]


@pytest.mark.parametrize("damage", ["dangling", "garbage", "empty", "link", "folder", "pipe", "huge"])
def test_markers_that_name_nothing_go(store: Store, tmp_path: Path, damage: str) -> None:
    fill(store, "a", "b")
    marker = store.layout.marker(identity_of("a"))
    if damage == "dangling":
        (item,) = [item for item in look(store).items if item.identities == (identity_of("a"),)]
        (store.layout.generations / item.generation).rename(tmp_path / "lost")
    elif damage in ("garbage", "empty"):
        marker.write_bytes(b"garbage" if damage == "garbage" else b"")
    elif damage == "huge":
        with open(marker, "r+b") as stream:
            stream.truncate(1 << 40)
    else:
        marker.unlink()
        if damage == "link":
            marker.symlink_to(store.layout.marker(identity_of("b")))
        elif damage == "folder":
            (marker / "full").mkdir(parents=True)
        else:
            os.mkfifo(marker)
    assert look(store).dangling == (identity_of("a"),)
    done = collect(store, EVERYTHING)
    assert done.dangling == 1
    assert done.failed == []
    assert there(store, "a", "b") == ["b"]
    collect(store, EVERYTHING)  # what the marker named is an orphan by now
    spotless(store, generations=1)


def test_a_marker_that_names_something_new_is_not_dangling(store: Store) -> None:
    from hatch_epctx.collect.removing import Remover

    fill(store, "a")
    assert not Remover(store).drop(identity_of("a"))
    with support.Child("lock", store.layout.lock(identity_of("a"))):
        assert not Remover(store).drop(identity_of("a"))


def test_use_after_the_survey_saves(store: Store) -> None:
    from hatch_epctx.collect.removing import Remover

    fill(store, "a", "b")
    item = look(store).items[0]
    build(store, identity_of("a")).close()
    assert not Remover(store).evict(item)
    assert Remover(store, despite_use=True).evict(item)
    assert there(store, "a", "b") == ["b"]


def test_a_marker_that_moved_on_after_the_survey_saves(store: Store) -> None:
    from hatch_epctx.collect.removing import Remover

    fill(store, "a")
    (item,) = look(store).items
    compile_into(store, identity_of("a"), salt="new").close()
    assert not Remover(store, despite_use=True).evict(item)
    found = store.find(identity_of("a"))
    assert isinstance(found, Generation)
    found.close()


def test_roots_keep_what_they_name_whatever_the_limits(store: Store) -> None:
    fill(store, "a", "b", "c")
    pin(store, Root(name=identity_of("a"), identity=identity_of("a")))
    touch(store.layout.marker(identity_of("a")), time.time() - 100 * DAY)
    collect(store, Limits(max_size=0, max_age=DAY))
    assert there(store, "a", "b", "c") == ["a"]
    assert clear(store).removed == []
    (item,) = look(store).items
    assert item.pins == (identity_of("a"),)
    assert unpin(store, identity_of("a"))
    assert not unpin(store, identity_of("a"))
    assert len(collect(store, NOTHING).removed) == 1
    spotless(store, generations=0)


def test_the_newest_generation_of_a_root_that_follows_a_variant_stays(store: Store) -> None:
    key = identity_of("acme/detector.intel")
    fill(store, "old", "new", "other")
    store.remember(collecting.LAST, key, {"identity": identity_of("old"), "document": {}})
    pin(store, Root(name="acme/detector.intel", follows=key))
    collect(store, NOTHING)
    assert there(store, "old", "new", "other") == ["old"]
    fill(store, "old", "new")
    store.remember(collecting.LAST, key, {"identity": identity_of("new"), "document": {}})
    collect(store, NOTHING)
    assert there(store, "old", "new") == ["new"]
    clear(store)
    assert there(store, "new") == ["new"]  # and the fact that it follows was not forgotten
    assert store.recall(collecting.LAST, key) is not None
    assert len(clear(store, pinned=True).removed) == 1
    assert [root.name for root in read_roots(store)] == ["acme/detector.intel"]


def test_only_what_is_there_can_be_pinned(store: Store) -> None:
    fill(store, "a")
    for root in (
        Root(name="x", identity=identity_of("nothing")),
        Root(name="p/m.t", follows=identity_of("never built")),
    ):
        with pytest.raises(StoreError, match="no generation") as caught:
            pin(store, root)
        assert caught.value.reason == "nothing-to-pin"
    assert read_roots(store) == ()


def test_a_pin_made_after_the_survey_counts(store: Store) -> None:
    from hatch_epctx.collect.removing import Remover

    fill(store, "a", "b")
    item, other = look(store).items
    remover = Remover(store, despite_use=True)
    assert remover.evict(other)
    pin(store, Root(name=identity_of("a"), identity=identity_of("a")))
    assert not remover.evict(item)
    unpin(store, identity_of("a"))
    assert remover.evict(item)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"garbage", b'{"format": "epctx-root/2", "name": "x", "identity": "", "follows": "", "since": 0}'],
)
def test_a_root_that_cannot_be_read_stops_collection(store: Store, data: bytes) -> None:
    fill(store, "a")
    (store.layout.roots / "x.json").write_bytes(data)
    with pytest.raises(StoreError) as caught:
        collect(store, NOTHING)
    assert caught.value.reason == "unreadable-root"
    assert "x.json" in str(caught.value)
    said: list[str] = []
    assert after_build(store, NOTHING, grown=1, say=said.append) is None
    assert said[0].startswith("warning: ")
    assert there(store, "a") == ["a"]
    clear(store, pinned=True)  # which does not ask for roots
    (store.layout.roots / "x.json").unlink()


def test_facts_and_digests_are_forgotten_and_leavings_of_killed_writers_removed(store: Store) -> None:
    store.remember("scan", "old", {})
    store.remember("scan", "young", {})
    (old, *_) = [path for path in store.layout.facts.rglob("*.json") if b'"old"' in path.read_bytes()]
    touch(old, time.time() - FACTS_AGE - 60)
    stat = store.layout.stat / "ab" / "x.json"
    stat.parent.mkdir()
    stat.write_bytes(b"{}")
    touch(stat, time.time() - STAT_AGE - 60)
    leavings = [folder / ".tmp-0123" for folder in (stat.parent, old.parent, store.layout.roots, store.layout.leases)]
    for path in leavings:
        path.write_bytes(b"half")
        touch(path, time.time() - TEMP_AGE - 60)
    fresh = stat.parent / ".tmp-4567"
    fresh.write_bytes(b"being written")
    assert collect(store, EVERYTHING).expired == 2 + len(leavings)
    assert store.recall("scan", "old") is None
    assert store.recall("scan", "young") == {}
    assert not any(path.exists() for path in leavings)
    assert fresh.exists()
    clear(store)
    assert store.recall("scan", "young") is None
    assert fresh.exists()


def test_clear_removes_all_or_what_it_is_told(store: Store) -> None:
    fill(store, "a", "b", "c")
    done = clear(store, [identity_of("b")])
    assert [(item.identities, why) for item, why in done.removed] == [((identity_of("b"),), "asked")]
    assert there(store, "a", "b", "c") == ["a", "c"]
    assert len(clear(store).removed) == 2
    spotless(store, generations=0)
    build(store, identity_of("a")).close()
    spotless(store, generations=1)


def test_a_dry_run_changes_nothing_and_tells_the_same(store: Store) -> None:
    one = fill(store, "a", "b", "c")
    compile_into(store, identity_of("c"), salt="2").close()
    before = sorted(path for path in store.root.rglob("*"))
    would = collect(store, Limits(max_size=one), dry_run=True)
    assert sorted(path for path in store.root.rglob("*")) == before
    did = collect(store, Limits(max_size=one))
    assert [item.generation for item, _ in would.removed] == [item.generation for item, _ in did.removed]
    assert would.size == did.size


def test_a_clock_that_was_set_back_does_not_keep_things_for_ever(store: Store) -> None:
    one = fill(store, "future", "a", "b")
    touch(store.layout.marker(identity_of("future")), time.time() + 4000 * DAY)
    collect(store, Limits(max_size=2 * one, max_age=DAY))
    assert there(store, "future", "a", "b") == ["future", "b"]
    used = {item.identities[0]: item.used for item in look(store).items}
    assert abs(used[identity_of("future")] - time.time()) < 60


def test_a_clock_that_jumps_forward_costs_compiles_and_nothing_else(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, "a", "b")
    pin(store, Root(name=identity_of("a"), identity=identity_of("a")))
    with build(store, identity_of("leased")) as leased:
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + 4000 * DAY)
        collect(store, Limits(max_age=DAY))
        assert there(store, "a", "b", "leased") == ["a", "leased"]
        check(leased, identity_of("leased"))
        monkeypatch.undo()
    build(store, identity_of("b")).close()
    collect(store, Limits(max_age=DAY))
    spotless(store, generations=3)


def test_collectors_do_not_do_the_same_work_twice(store: Store) -> None:
    fill(store, "a")
    with support.Child("lock", store.layout.locks / "collect.lock") as other:
        with pytest.raises(StoreError) as caught:
            collect(store, NOTHING, seconds=1)
        assert caught.value.reason == "lock-timeout"
        assert after_build(store, NOTHING, grown=1, say=pytest.fail) is None
        other.kill()
    assert len(collect(store, NOTHING, seconds=10).removed) == 1


def test_a_store_on_a_network_file_system_is_left_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, "a")
    with support.Child("stage", store.root) as child:
        child.kill()
    monkeypatch.setattr("hatch_epctx.store.layout.file_system", lambda _: "nfs4")
    far = Store(store.root)
    assert far.layout.on_network
    assert far.sweep_dead().staging == 0
    assert after_build(far, NOTHING, grown=1, say=pytest.fail) is None
    for remove in (lambda: collect(far, NOTHING), lambda: clear(far)):
        with pytest.raises(StoreError) as caught:
            remove()
        assert caught.value.reason == "network-file-system"
        assert "nfs4" in str(caught.value)
        assert "--alone" in str(caught.value)
    assert there(far, "a") == ["a"]
    done = collect(far, NOTHING, alone=True)
    assert (len(done.removed), done.staging) == (1, 1)


def test_case_25_a_read_only_store_is_not_collected() -> None:
    with support.open_folder() as folder:
        root = folder / "cache"
        support.unprivileged("build", root, "m", folder / "log")
        for path in root.rglob("*"):
            if path.is_dir():
                path.chmod(0o555)
        said = support.unprivileged("collect_read_only", root)
        assert said.split() == ["not-writable", "not-writable", "None", "1", "0"]
        for path in [root, *root.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)


def test_after_a_build_nothing_is_surveyed_until_it_is_due(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one = fill(store, "a", "b")
    said: list[str] = []
    done = after_build(store, Limits(max_size=4 * one), grown=0, say=said.append)
    assert done is not None
    assert (done.removed, said) == ([], [])
    monkeypatch.setattr("hatch_epctx.collect.automatic.collect", pytest.fail)
    assert after_build(store, Limits(max_size=4 * one), grown=one, say=said.append) is None
    assert remembered_size(store) == (3 * one, pytest.approx(time.time(), abs=60))
    assert after_build(store, Limits(max_size=4 * one), grown=one, say=said.append) is None
    monkeypatch.undo()
    assert after_build(store, Limits(max_size=4 * one), grown=one, say=said.append) is not None
    assert remembered_size(store) == (2 * one, pytest.approx(time.time(), abs=60))
    remember_size(store, 0, time.time() - 2 * DAY)
    assert after_build(store, EVERYTHING, grown=0, say=said.append) is not None
    remember_size(store, 0, time.time() + 2 * DAY)
    assert after_build(store, EVERYTHING, grown=0, say=said.append) is not None


def test_after_a_build_room_is_made_for_the_next(store: Store) -> None:
    one = fill(store, *map(str, range(12)))
    said: list[str] = []
    done = after_build(store, Limits(max_size=10 * one), grown=one, say=said.append)
    assert done is not None
    assert len(done.removed) == 3
    assert said[0].startswith("collected 3 generations, ")
    spotless(store, generations=9)


def test_after_a_build_time_is_bounded_and_another_build_goes_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, *map(str, range(6)))
    real = collecting.removing.remove_tree

    def slow(path: Path) -> None:
        time.sleep(0.4)
        real(path)

    monkeypatch.setattr(collecting.removing, "remove_tree", slow)
    monkeypatch.setattr("hatch_epctx.collect.automatic.SECONDS", 0.5)
    start = time.monotonic()
    done = after_build(store, NOTHING, grown=1, say=lambda _: None)
    assert done is not None
    assert time.monotonic() - start < 5
    assert not done.finished
    assert 1 <= len(done.removed) < 6
    monkeypatch.undo()
    assert SECONDS == 2.0
    done = after_build(store, NOTHING, grown=1, say=lambda _: None)
    assert done is not None
    assert done.finished
    spotless(store, generations=0)


def test_a_store_too_large_to_be_surveyed_is_kept_within_its_size_all_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow disk or huge store: the least recently used go by what is believed of its size; pins and leases hold."""
    one = fill(store, *map(str, range(10)))
    pin(store, Root(name=identity_of("0"), identity=identity_of("0")))
    assert after_build(store, EVERYTHING, grown=0, say=lambda _: None) is not None
    leased = store.find(identity_of("1"))
    assert isinstance(leased, Generation)
    for name, hours in (("0", 20), ("1", 19)):
        touch(store.layout.marker(identity_of(name)), time.time() - 3600 * hours)
    unfinished = Inventory(items=(), dangling=(), unreadable=(), finished=False)
    monkeypatch.setattr(collecting.collecting, "survey", lambda *_args, **_kwargs: unfinished)
    said: list[str] = []
    with leased:
        done = after_build(store, Limits(max_size=9 * one), grown=0, say=said.append)
    assert done is not None
    assert not done.finished
    assert [item.identities for item, _ in done.removed] == [(identity_of("2"),), (identity_of("3"),)]
    assert [item.identities for item in done.busy] == [(identity_of("1"),)]
    assert remembered_size(store) == (8 * one, 0.0)
    assert said[0].startswith("collected 2 generations, ")
    assert after_build(store, Limits(max_size=9 * one), grown=0, say=said.append) is not None
    assert "run 'epctx cache collect'" in said[-1]
    monkeypatch.undo()
    spotless(store, generations=8)


def test_after_a_build_what_it_uses_stays_and_the_user_hears_of_a_limit_too_small(store: Store) -> None:
    fill(store, "old")
    said: list[str] = []
    with build(store, identity_of("mine")) as mine:
        done = after_build(store, Limits(max_size=1), grown=1, say=said.append)
        assert done is not None
        assert len(done.removed) == 1
        check(mine, identity_of("mine"))
    assert "in use or pinned" in said[-1]
    assert there(store, "old", "mine") == ["mine"]


def test_a_lease_file_of_another_kind_does_not_stop_collection(store: Store) -> None:
    fill(store, "a")
    (item,) = look(store).items
    claims = store.layout.leases / item.generation
    claims.mkdir()
    os.mkfifo(claims / "pipe.lease")
    assert len(collect(store, NOTHING).removed) == 1


def test_what_cannot_be_removed_is_told_and_the_rest_goes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, "a", "b")
    monkeypatch.setenv("EPCTX_TEST", "1")
    monkeypatch.setenv("EPCTX_TEST_FAULT", "collect-before@1:EIO")
    from hatch_epctx.files import faults

    faults._passed.clear()
    done = collect(store, NOTHING)
    monkeypatch.delenv("EPCTX_TEST")
    assert len(done.failed) == 1
    assert len(done.removed) == 1
    assert there(store, "a", "b") == ["a"]
    collect(store, NOTHING)
    spotless(store, generations=0)


def test_leases_are_taken_for_a_check_so_that_nothing_vanishes_under_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, "a")
    real = collecting.checking.verify_folder
    seen: list[int] = []

    def verify(*arguments: object, **keywords: object) -> Miss | None:
        seen.append(len(collect(store, NOTHING).busy))
        return real(*arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(collecting.checking, "verify_folder", verify)
    assert [found.miss for found in collecting.check(store)] == [None]
    assert seen == [1]


def test_a_lease_on_nothing_keeps_nothing_from_going(store: Store) -> None:
    fill(store, "a")
    with Lease.acquire(store.layout.leases, "0" * 32):
        assert len(collect(store, NOTHING).removed) == 1
