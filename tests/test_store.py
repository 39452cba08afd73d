"""The store as a build uses it: find, stage, publish, facts, and whom it refuses to serve."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import store_support as support
from store_support import build, check, compile_into, identity_of, left_over, outputs, record_of, write

from hatch_epctx.digest import digest_bytes
from hatch_epctx.errors import ModelError, StoreError
from hatch_epctx.files import copy_file, remove_tree
from hatch_epctx.store import Artifact, Generation, Marker, Miss, Store
from hatch_epctx.store.layout import default_root

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY = identity_of("detector for laptop")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache")


def miss(found: Generation | Miss) -> str:
    assert isinstance(found, Miss), found
    return found.reason


def test_looking_makes_nothing(store: Store) -> None:
    assert miss(store.find(IDENTITY)) == "absent"
    assert store.recall("scan", "x") is None
    assert not store.root.exists()


def test_what_was_published_is_found_whole(store: Store) -> None:
    with compile_into(store, IDENTITY) as made:
        assert made.selected
        assert not made.warning
        check(made, IDENTITY)
    found = Store(store.root).find(IDENTITY)
    assert isinstance(found, Generation)
    with found:
        assert (found.name, found.record, found.selected, found.warning) == (made.name, made.record, True, "")
        check(found, IDENTITY)
        for artifact in found.record.artifacts:
            status = found.file(artifact).stat()
            assert stat.S_IMODE(status.st_mode) == 0o444
            assert status.st_nlink == 1
    assert left_over(store) == {"staging": [], "leases": [], "generations": [made.name], "temporary": []}
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700
    marker = json.loads(store.layout.marker(IDENTITY).read_text())
    assert marker["format"] == "epctx-marker/1"
    assert marker["generation"] == made.name
    assert marker["document"] == {"format": "epctx/1"}


def test_identities_do_not_mix(store: Store) -> None:
    names = [f"m{number}" for number in range(20)]
    for name in names:
        build(store, identity_of(name)).close()
    for name in names:
        with build(store, identity_of(name), on_compile=pytest.fail) as found:
            check(found, identity_of(name))


def test_a_copied_store_with_fresh_times_still_hits(store: Store, tmp_path: Path) -> None:
    compile_into(store, IDENTITY).close()
    for source in store.root.rglob("*"):
        target = tmp_path / "moved" / source.relative_to(store.root)
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            copy_file(source, target)
    with build(Store(tmp_path / "moved"), IDENTITY, on_compile=pytest.fail) as found:
        check(found, IDENTITY)


def test_case_22_the_whole_store_may_vanish_meanwhile(store: Store, tmp_path: Path) -> None:
    compile_into(store, IDENTITY).close()
    store.root.rename(tmp_path / "gone")
    assert miss(store.find(IDENTITY)) == "absent"
    with build(store, IDENTITY) as made:
        assert made.selected
        check(made, IDENTITY)


def test_a_generation_that_is_not_selected_lives_until_it_is_closed(store: Store) -> None:
    with compile_into(store, IDENTITY, select=False) as made:
        assert not made.selected
        assert not made.warning
        check(made, IDENTITY)
        assert miss(store.find(IDENTITY)) == "absent"
        store.sweep_dead()
        check(made, IDENTITY)
    made.close()
    assert left_over(store) == {"staging": [], "leases": [], "generations": [], "temporary": []}


def test_a_marker_moves_on_and_leased_generations_stay(store: Store) -> None:
    first = compile_into(store, IDENTITY, salt="1")
    held = store.find(IDENTITY)
    assert isinstance(held, Generation)
    first.close()
    with compile_into(store, IDENTITY, salt="2") as second:
        assert second.name != first.name
        store.sweep_dead()
        check(held, IDENTITY, salt="1")
    held.close()
    found = store.find(IDENTITY)
    assert isinstance(found, Generation)
    with found:
        check(found, IDENTITY, salt="2")


def test_a_marker_that_is_replaced_while_it_is_read_is_followed(tmp_path: Path) -> None:
    class Slow(Store):
        """Its marker is replaced, and the old generation collected, between reading the marker and opening."""

        def _open(self, marker: Marker, *, verify: bool) -> Generation | Miss:
            if marker.record.result.get("context_nodes") == 1 and not replaced:
                replaced.append(marker.generation)
                compile_into(Store(self.root), IDENTITY, salt="new").close()
                (self.layout.generations / marker.generation).rename(tmp_path / "collected")
            return super()._open(marker, verify=verify)

    replaced: list[str] = []
    store = Slow(tmp_path / "cache")
    compile_into(store, IDENTITY, salt="old").close()
    found = store.find(IDENTITY)
    assert isinstance(found, Generation)
    with found:
        check(found, IDENTITY, salt="new")
    assert replaced


def test_only_named_artifacts_leave_the_staging_folder(store: Store) -> None:
    files = outputs(IDENTITY)
    with store.staging() as staging:
        folder = staging.path / "job"
        folder.mkdir()
        for name, data in {**files, "job.json": b"{}"}.items():
            (folder / name).write_bytes(data)
        with store.publish(staging, record_of(IDENTITY, files), source=folder) as made:
            check(made, IDENTITY)
        assert [path.name for path in folder.iterdir()] == ["job.json"]
    assert not staging.folder.exists()


def test_a_file_with_a_second_name_is_copied(store: Store, tmp_path: Path) -> None:
    files = outputs(IDENTITY)
    with store.staging() as staging:
        write(staging, files)
        for name in files:
            os.link(staging.path / name, tmp_path / name)
        made = store.publish(staging, record_of(IDENTITY, files))
    for name in files:
        (tmp_path / name).write_bytes(b"written through the other name")
    with made:
        check(made, IDENTITY)


@pytest.mark.parametrize("fault", ["missing", "longer", "changed", "link", "folder", "pipe"])
def test_artifacts_that_are_not_what_the_compile_said_are_refused(store: Store, tmp_path: Path, fault: str) -> None:
    files = outputs(IDENTITY)
    with store.staging() as staging:
        write(staging, files)
        path = staging.path / "model_ctx.onnx"
        data = path.read_bytes()
        path.unlink()
        if fault == "longer":
            path.write_bytes(data + b"x")
        elif fault == "changed":
            path.write_bytes(data[:-1] + b"x")
        elif fault == "link":
            (tmp_path / "outside").write_bytes(data)
            path.symlink_to(tmp_path / "outside")
        elif fault == "folder":
            path.mkdir()
        elif fault == "pipe":
            os.mkfifo(path)
        with pytest.raises(StoreError, match=r"model_ctx\.onnx"):
            store.publish(staging, record_of(IDENTITY, files))
    assert miss(store.find(IDENTITY)) == "absent"
    assert left_over(store) == {"staging": [], "leases": [], "generations": [], "temporary": []}


@pytest.mark.parametrize(
    "change",
    [
        {"path": "../escape"}, {"path": "a/b"}, {"path": "NUL"}, {"size": -1}, {"size": True}, {"size": 1.0},
        {"digest": "0" * 63}, {"digest": "A" * 64}, {"role": ""}, {"role": "Model"},
    ],
)  # fmt: skip
def test_a_record_that_could_not_be_read_again_is_a_bug(store: Store, change: dict[str, object]) -> None:
    files = outputs(IDENTITY)
    record = record_of(IDENTITY, files)
    bad = replace(record, artifacts=(replace(record.artifacts[0], **change), *record.artifacts[1:]))  # type: ignore[arg-type]
    with store.staging() as staging:
        write(staging, files)
        with pytest.raises(ValueError):  # noqa: PT011
            store.publish(staging, bad)
        assert (staging.path / "model_ctx.onnx").exists()


def test_two_names_that_differ_in_case_are_one_name_too_many(store: Store) -> None:
    artifacts = tuple(Artifact(role="model", path=name, size=0, digest=digest_bytes(b"")) for name in ("a", "A"))
    with store.staging() as staging, pytest.raises(ValueError, match="one name"):
        store.publish(staging, replace(record_of(IDENTITY, {}), artifacts=artifacts))


def test_a_document_too_large_for_a_marker_is_used_once(store: Store) -> None:
    files = outputs(IDENTITY)
    with store.staging() as staging:
        write(staging, files)
        record = replace(record_of(IDENTITY, files), document={"x": "y" * (5 << 20)})
        with store.publish(staging, record) as made:
            check(made, IDENTITY)
            assert not made.selected
            assert "marker" in made.warning
    assert miss(store.find(IDENTITY)) == "absent"
    assert left_over(store)["generations"] == []


def test_staging_folders_are_private_and_go_with_the_block(store: Store) -> None:
    with store.staging() as staging:
        assert stat.S_IMODE(staging.path.stat().st_mode) == 0o700
        assert not list(staging.path.iterdir())
        (staging.path / "deep").mkdir(mode=0o500)
    assert left_over(store) == {"staging": [], "leases": [], "generations": [], "temporary": []}


def test_a_staging_folder_goes_with_an_error_too(store: Store) -> None:
    with pytest.raises(KeyError), store.staging():
        raise KeyError
    assert left_over(store) == {"staging": [], "leases": [], "generations": [], "temporary": []}


def test_case_23_a_disk_that_fills_up_while_compiling_is_the_stores_error(store: Store) -> None:
    with pytest.raises(StoreError) as caught, store.staging():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.reason == "disk-full"
    assert "EPCTX_CACHE_DIR" in str(caught.value)
    with pytest.raises(FileNotFoundError), store.staging() as staging:
        (staging.path / "a bug of the caller").read_bytes()


def test_a_cache_that_is_removed_while_compiling_is_the_stores_error(store: Store) -> None:
    def compile_while_somebody_removes_the_cache() -> None:
        with store.staging() as staging:
            remove_tree(store.root)
            (staging.path / "job.json").write_bytes(b"{}")

    with pytest.raises(StoreError) as caught:
        compile_while_somebody_removes_the_cache()
    assert caught.value.reason == "vanished"


def test_a_worker_that_died_of_a_removed_cache_is_no_fault_of_the_model(store: Store) -> None:
    def a_worker_loses_its_folder() -> None:
        with store.staging(keep=True):
            remove_tree(store.root)
            raise ModelError("the worker ended with exit status 1", reason="died")

    with pytest.raises(StoreError) as caught:
        a_worker_loses_its_folder()
    assert caught.value.reason == "vanished"
    assert "run the same again" in str(caught.value)


def test_facts_are_remembered_until_they_are_damaged(store: Store) -> None:
    value = {"inputs": [{"name": "x", "shape": [1, "n", None]}], "é": 1.5}
    store.remember("scan", "abc-1", value)
    store.remember("scan", "abc-2", {})
    other = Store(store.root)
    assert other.recall("scan", "abc-1") == value
    assert other.recall("scan", "abc-2") == {}
    assert other.recall("probe", "abc-1") is None
    files = sorted(path for path in (store.layout.facts / "scan").rglob("*.json"))
    first, second = (path.read_bytes() for path in files)
    files[0].write_bytes(second)
    files[1].write_bytes(first)
    assert other.recall("scan", "abc-1") is None
    for damage in (b"", b"{}", b"null", first[:-1], first.replace(b"epctx-fact/1", b"epctx-fact/2")):
        for path in files:
            path.write_bytes(damage)
        assert other.recall("scan", "abc-1") is None
    store.remember("scan", "abc-1", value)
    assert other.recall("scan", "abc-1") == value
    store.remember("scan", "large", {"x": "y" * (9 << 20)})
    assert other.recall("scan", "large") is None
    with pytest.raises(ValueError, match="kind"):
        store.remember("../x", "k", {})
    with pytest.raises(ValueError, match="JSON"):
        store.remember("scan", "k", {"x": float("nan")})


def test_facts_are_not_written_through_a_link(store: Store, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    store.remember("scan", "warm", {})
    (store.layout.facts / "last").symlink_to(tmp_path / "elsewhere")
    store.remember("last", "key", {"a": 1})
    assert store.recall("last", "key") is None
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_digests_are_remembered_in_the_store(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    assert store.digest(tmp_path / "file") == digest_bytes(b"x")


@pytest.mark.parametrize("identity", ["", "x", "A" * 64, "../" * 21 + "a", "0" * 65])
def test_only_identities_are_looked_for(store: Store, identity: str) -> None:
    with pytest.raises(ValueError, match="identity"):
        store.find(identity)
    with pytest.raises(ValueError, match="identity"), store.lock(identity):
        pass


def test_a_hit_looks_at_as_many_files_in_a_large_store_as_in_a_small_one(store: Store) -> None:
    compile_into(store, identity_of("m")).close()
    small = support.run("opens", store.root, "m")[1]
    for number in range(150):
        for folder in (store.layout.generations, store.layout.leases, store.layout.staging):
            (folder / f"{number:032x}").mkdir()
        shard = store.layout.markers / f"{number:02x}"
        shard.mkdir(exist_ok=True)
        (shard / f"{number:064x}.json").write_bytes(b"{}")
    assert support.run("opens", store.root, "m")[1] == small
    assert int(small) < 20


def test_the_default_folder_is_the_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_root({"EPCTX_CACHE_DIR": str(tmp_path / "a")}) == tmp_path / "a"
    assert default_root({"EPCTX_CACHE_DIR": "relative"}) == tmp_path / "relative"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_root({"EPCTX_CACHE_DIR": "~/x"}) == tmp_path / "home" / "x"
    assert default_root({}).name == "hatch-epctx"
    with pytest.raises(StoreError, match="home"):
        default_root({"EPCTX_CACHE_DIR": "~nobody-of-that-name/x"})
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "named"))
    assert Store().root == tmp_path / "named"


@pytest.mark.parametrize("place", ["", "v1", "v1/markers", "v1/generations", "v1/locks"])
@pytest.mark.parametrize("fault", ["link", "world-writable", "not-a-folder", "foreign-owner"])
def test_a_cache_folder_that_others_could_change_is_refused(store: Store, place: str, fault: str) -> None:
    compile_into(store, IDENTITY).close()
    folder = store.root / place
    if fault == "link":
        folder.rename(store.root.parent / "elsewhere")
        folder.symlink_to(store.root.parent / "elsewhere")
    elif fault == "world-writable":
        folder.chmod(0o777)
    elif fault == "not-a-folder":
        folder.rename(store.root.parent / "elsewhere")
        folder.write_bytes(b"")
    else:
        if os.geteuid() != 0:
            pytest.skip("only root gives folders away")
        os.chown(folder, support.NOBODY, support.NOBODY)
    with pytest.raises(StoreError) as caught:
        Store(store.root)
    assert caught.value.reason == fault
    assert str(folder) in str(caught.value)
    assert caught.value.remedy


def test_case_25_a_read_only_store_gives_hits_and_compiles_elsewhere() -> None:
    with support.open_folder() as folder:
        root = folder / "cache"
        support.unprivileged("build", root, "m", folder / "log")
        for path in root.rglob("*"):
            if path.is_dir():
                path.chmod(0o555)
        assert support.unprivileged("read_only", root, "m").strip() == "ready"
        for path in [root, *root.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)


def test_a_store_that_cannot_be_made_compiles_elsewhere() -> None:
    with support.open_folder() as folder:
        folder.chmod(0o555)
        out = support.unprivileged("build", folder / "cache", "m", os.devnull)
        assert out.startswith("warning: ")
        assert "cannot be written" in out
        assert not (folder / "cache").exists()


def _on_tmpfs(
    command: str, size: str, tmp_path: Path, *, read_only_after: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a child on a small file system of its own, which only this child sees."""
    mount = tmp_path / "small"
    mount.mkdir()
    script = f"mount -t tmpfs -o size={size} none {mount} && {read_only_after or 'true'} && exec " + command
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", script], env=support.environment(), capture_output=True, text=True, check=False
    )


needs_mounts = pytest.mark.skipif(not support.can_mount(), reason="may not mount file systems here")


@needs_mounts
def test_case_23_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    child = " ".join(support.command_line("full_disk", tmp_path / "small"))
    done = _on_tmpfs(child, "1m", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ready\n"


@needs_mounts
def test_case_25_a_read_only_file_system_gives_hits(tmp_path: Path) -> None:
    root = tmp_path / "small" / "cache"
    fill = " ".join(support.command_line("build", root, "m", tmp_path / "log"))
    child = " ".join(support.command_line("read_only", root, "m"))
    done = _on_tmpfs(child, "1m", tmp_path, read_only_after=f"{fill} && mount -o remount,ro {tmp_path / 'small'}")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "selected\nready\n"
