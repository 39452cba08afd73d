"""`epctx cache`, as a user runs it: over a project that the stub EP compiles."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from store_support import build, identity_of
from support import STUB_TARGET, Run, Tree
from support import epctx as epctx_process

from hatch_epctx.cli import main
from hatch_epctx.files import touch
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from support import Factory

TWO_TARGETS = STUB_TARGET + '[tool.epctx.targets.other]\nep = "stub"\nprovider-options = { level = "2" }\n'


class Command:
    """Runs the command line in this process: starting one takes longer than anything here."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str | Path, cwd: Path | None = None, check: bool = True, **environ: str) -> Run:
        with self._monkeypatch.context() as here:
            here.chdir(cwd or Path.cwd())
            for name, value in environ.items():
                here.setenv(name, value)
            code = main([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        assert "Traceback" not in err, err
        assert not check or code == 0, err + out
        return Run(code=code, out=out, err=err)

    def listed(self) -> list[str]:
        """Identities in the store, the last used first."""
        items = self("cache", "list", "--json").json["generations"]
        return [identity for item in items for identity in item["identities"]]


@pytest.fixture
def epctx(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "epctx-cache")


def fill(store: Store, *names: str) -> None:
    for position, name in enumerate(reversed(names)):
        build(store, identity_of(name)).close()
        touch(store.layout.marker(identity_of(name)), time.time() - 3600 * position)


def test_the_commands_are_there() -> None:
    assert epctx_process("cache", "info").out.startswith("store ")


def test_info_says_where_and_how_much(epctx: Command, store: Store) -> None:
    fill(store, "a", "b")
    out = epctx("cache", "info").out
    assert str(store.root) in out
    assert "generations  2, " in out
    assert "of 20.0 GiB" in out
    facts = epctx("cache", "info", "--json", "--max-size", "1MiB", "--max-age", "2d").json
    assert facts["generations"] == 2
    assert facts["size"] == sum(path.stat().st_size for path in store.layout.generations.rglob("*") if path.is_file())
    assert (facts["max_size"], facts["max_age"]) == (1 << 20, 172_800)
    assert (facts["pinned"], facts["unnamed"], facts["network"], facts["shared"]) == (0, 0, False, False)


def test_what_can_be_told_is_told_before_a_pin_that_cannot_be_read(epctx: Command, store: Store) -> None:
    fill(store, "a", "b")
    epctx("cache", "pin", identity_of("a"))
    (store.layout.roots / "x.json").write_bytes(b"{")
    for command, told in (("info", "pinned       1, "), ("list", "2 generations, "), ("verify", "2 generations, ")):
        run = epctx("cache", command, check=False)
        assert run.code == 6
        assert told in run.out
        assert run.err.startswith("epctx: error: ")
        assert "x.json: what is pinned cannot be read: " in run.err
    assert epctx("cache", "info", "--json", check=False).json["pinned"] == 1
    refused = epctx("cache", "collect", "--max-size", "1B", check=False)
    assert (refused.code, refused.out) == (6, "")
    assert len(list(store.layout.markers.rglob("*.json"))) == 2


def test_a_pin_needs_a_store_that_can_be_written(epctx: Command, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, "a")
    monkeypatch.setattr(Store, "read_only", property(lambda _: True))
    run = epctx("cache", "pin", identity_of("a"), check=False)
    assert run.code == 6
    assert "the store is read-only for this user. Pin as the user whose store it is." in run.err


def test_info_tells_of_kept_folders_which_nothing_collects(epctx: Command, store: Store) -> None:
    (store.root / "kept" / "deep").mkdir(parents=True)
    (store.root / "kept" / "deep" / "file").write_bytes(b"x" * 3000)
    assert epctx("cache", "info", "--json").json["kept"] == 3000
    out = epctx("cache", "info").out
    assert "kept         2.9 KiB, folders of failed compiles" in out
    fill(store, "a")
    epctx("cache", "clear")
    assert (store.root / "kept" / "deep" / "file").exists()


def test_list_shows_identities_by_last_use(epctx: Command, store: Store) -> None:
    fill(store, "a", "b")
    lines = epctx("cache", "list").out.splitlines()
    assert lines[0].split() == ["IDENTITY", "EP", "DEVICE", "SIZE", "USED", "PINNED", "BY"]
    assert lines[1].startswith(identity_of("b")[:12])
    assert "1 h" in lines[2]
    assert lines[-1].startswith("2 generations, ")
    assert identity_of("a") in epctx("cache", "list", "-v").out
    assert epctx.listed() == [identity_of("b"), identity_of("a")]


def test_collect_obeys_flags_and_tells(epctx: Command, store: Store) -> None:
    fill(store, "a", "b", "c")
    one = epctx("cache", "info", "--json").json["size"] // 3
    would = epctx("cache", "collect", "--dry-run", "--max-size", f"{one}B").out
    assert would.startswith("2 generations would go")
    assert len(epctx.listed()) == 3
    told = epctx("cache", "collect", "--json", "--max-size", f"{one}B").json
    assert [item["why"] for item in told["removed"]] == ["size", "size"]
    assert told["size"] == one
    assert epctx.listed() == [identity_of("c")]
    assert epctx("cache", "collect", "--max-age", "1h").out.startswith("0 generations collected")


@pytest.mark.parametrize(("flag", "value"), [("--max-size", "20"), ("--max-size", "much"), ("--max-age", "1y")])
def test_a_limit_that_is_none_is_refused(epctx: Command, flag: str, value: str) -> None:
    run = epctx("cache", "collect", flag, value, check=False)
    assert run.code == 2
    assert f"{flag}: {value!r} is not a" in run.err


def test_verify_reads_every_byte_and_removes_on_demand(epctx: Command, store: Store) -> None:
    fill(store, "a", "b")
    assert epctx("cache", "verify").out.endswith("2 generations, 57.2 KiB verified, 0 damaged\n")
    (binary, *_) = store.layout.generations.rglob("*.bin")
    binary.chmod(0o644)
    binary.write_bytes(binary.read_bytes()[:-1] + b"?")
    run = epctx("cache", "verify", check=False)
    assert run.code == 8
    assert "modified-artifact" in run.out
    assert "epctx cache verify --remove" in run.err
    run = epctx("cache", "verify", "--json", "--remove", check=False)
    assert run.code == 8
    assert [item["reason"] for item in run.json["checked"]].count("modified-artifact") == 1
    assert run.json["removed"] == 1
    assert epctx("cache", "verify").code == 0
    assert len(epctx.listed()) == 1


def test_verify_looks_at_one_identity(epctx: Command, store: Store) -> None:
    fill(store, "a", "b")
    assert epctx("cache", "verify", identity_of("a")[:8]).out.startswith("1 generation, ")
    for unknown in (identity_of("a")[:7], "0" * 64, "../../x"):
        run = epctx("cache", "verify", unknown, check=False)
        assert run.code == 2
        assert "epctx cache list" in run.err


def test_pins_by_identity(epctx: Command, store: Store) -> None:
    fill(store, "a", "b")
    assert epctx("cache", "pin", identity_of("a")[:10]).out == f"pinned {identity_of('a')}\n"
    epctx("cache", "collect", "--max-size", "0B")
    assert epctx.listed() == [identity_of("a")]
    run = epctx("cache", "collect", "--max-size", "0B")
    assert "pinned or in use" in run.err
    assert identity_of("a") in epctx("cache", "list").out
    assert epctx("cache", "unpin", "--json", identity_of("a")[:10]).json == {"unpinned": [identity_of("a")]}
    epctx("cache", "collect", "--max-size", "0B")
    assert epctx.listed() == []


def test_a_pin_follows_a_variant_through_its_builds(epctx: Command, factory: Factory) -> None:
    tree = factory.project(TWO_TARGETS)
    epctx("build", cwd=tree.root)
    first = set(epctx.listed())
    assert len(first) == 2
    out = epctx("cache", "pin", "detector.s*", cwd=tree.root).out
    assert out == "pinned acme-vision/detector.stub\n"
    tree.model(seed=5)
    epctx("build", cwd=tree.root)
    (now,) = [
        entry["identity"]
        for entry in epctx("plan", "--json", cwd=tree.root).json["variants"]
        if entry["variant"] == "detector.stub"
    ]
    assert now not in first
    epctx("cache", "collect", "--max-size", "0B")
    assert epctx.listed() == [now]
    epctx("cache", "clear")
    assert epctx.listed() == [now]
    assert "acme-vision/detector.stub" in epctx("cache", "list").out
    run = epctx("cache", "unpin", "detector.other", cwd=tree.root, check=False)
    assert run.code == 2
    assert "acme-vision/detector.stub" in run.err
    epctx("cache", "unpin", "detector.stub", cwd=tree.root)
    epctx("cache", "clear")
    assert epctx.listed() == []


def test_only_variants_that_are_and_were_built_can_be_pinned(epctx: Command, factory: Factory) -> None:
    tree = factory.project(STUB_TARGET)
    run = epctx("cache", "pin", "nothing.at-all", cwd=tree.root, check=False)
    assert run.code == 2
    assert "detector.stub" in run.err
    run = epctx("cache", "pin", "detector.stub", cwd=tree.root, check=False)
    assert run.code == 6
    assert "Build it first" in run.err
    assert epctx("cache", "unpin", "0123456789", check=False).code == 2


def test_clear_keeps_pins_unless_told(epctx: Command, store: Store) -> None:
    fill(store, "a", "b", "c")
    epctx("cache", "pin", identity_of("a"))
    assert epctx("cache", "clear", identity_of("b")).out.startswith("1 generation removed")
    assert sorted(epctx.listed()) == sorted([identity_of("a"), identity_of("c")])
    epctx("cache", "clear")
    assert epctx.listed() == [identity_of("a")]
    told = epctx("cache", "clear", "--pinned", "--json").json
    assert [item["why"] for item in told["removed"]] == ["asked"]
    assert epctx.listed() == []


def test_a_build_collects_by_the_limits_of_its_project(epctx: Command, factory: Factory, store: Store) -> None:
    tree = factory.project(TWO_TARGETS)
    fill(store, "older", "old")
    tree.write(_declared(tree) + '[tool.epctx.cache]\nmax-size = "1KiB"\n')
    run = epctx("build", cwd=tree.root)
    assert "collected 2 generations" in run.err
    # A build collects for two seconds at most; on a busy machine the next one comes to the end.
    said = run.err + epctx("build", cwd=tree.root).err
    assert "more than 0.0 MiB (cache.max-size)" in said
    assert len(epctx.listed()) == 2  # this build's own
    tree.write(_declared(tree) + '[tool.epctx.cache]\nmax-age = "1h"\n')
    for path in store.layout.markers.rglob("*.json"):
        touch(path, time.time() - 7200)
    told = epctx("cache", "collect", "--json", "-C", tree.root).json
    assert [item["why"] for item in told["removed"]] == ["age", "age"]


def _declared(tree: Tree) -> str:
    return '[tool.epctx.models.detector]\nsource = "models/detector.onnx"\n' + TWO_TARGETS


def test_an_offline_build_collects_nothing(epctx: Command, factory: Factory, store: Store) -> None:
    tree = factory.project(TWO_TARGETS)
    tree.write(_declared(tree) + '[tool.epctx.cache]\nmax-size = "1KiB"\n')
    epctx("build", cwd=tree.root)
    fill(store, "old")
    run = epctx("build", cwd=tree.root, EPCTX_OFFLINE="1")
    assert "collected" not in run.err
    assert len(epctx.listed()) == 3


def test_a_hostile_document_does_no_harm_to_the_list(epctx: Command, store: Store) -> None:
    fill(store, "a")
    marker = store.layout.marker(identity_of("a"))
    for target in ("\x1b[31m", {"ep": "\x1b]0;title\x07", "device": ["x"]}, {"ep": {"a": 1}}, None):
        value = {**json.loads(marker.read_text()), "document": {"target": target}}
        marker.write_text(json.dumps(value))
        out = epctx("cache", "list").out
        assert "\x1b" not in out
        assert "\x07" not in out


def test_a_store_that_is_not_there_is_empty(epctx: Command, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert epctx("cache", "list", EPCTX_CACHE_DIR=nowhere).out.endswith("0 generations, 0 B\n")
    assert epctx("cache", "info", EPCTX_CACHE_DIR=nowhere).code == 0
    assert epctx("cache", "verify", EPCTX_CACHE_DIR=nowhere).code == 0
    assert epctx("cache", "clear", EPCTX_CACHE_DIR=nowhere).code == 0


def test_an_unfit_store_is_exit_code_six(epctx: Command, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for command in ("info", "list", "verify", "collect", "clear"):
        run = epctx("cache", command, EPCTX_CACHE_DIR=str(tmp_path / "open"), check=False)
        assert run.code == 6
        assert "writable by everybody" in run.err
