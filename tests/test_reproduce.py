"""`epctx reproduce`: what compiles to the same bytes again, what does not, and what becomes known of that."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support import QNN_TARGET, Factory, epctx

from hatch_epctx.manifest import MANIFEST_NAME
from hatch_epctx.pipeline.reproducing import _first_difference

STUB = '[tool.epctx.targets.stub]\nep = "stub"\n'
RANDOM = '[tool.epctx.targets.stub]\nep = "stub"\nprovider-options = { mode = "random" }\n'


def facts(folder: Path, model: str = "detector", variant: str = "stub") -> dict[str, object]:
    manifest = json.loads((folder / MANIFEST_NAME).read_text())
    found: dict[str, object] = manifest["components"][model]["variants"][variant]["executor_info"]["epctx"]
    return found


def test_equal_bytes_are_reproduced(factory: Factory) -> None:
    tree = factory.project(STUB)
    assert epctx("reproduce", cwd=tree.root).out == "detector.stub: reproduced\n"
    epctx("build", cwd=tree.root)
    run = epctx("reproduce", "detector.stub", "--json", cwd=tree.root)
    (unit,) = run.json["units"]
    assert (unit["result"], unit["stored"], unit["differences"]) == ("reproduced", "same", [])


def test_other_bytes_are_named_with_the_first_that_differs(factory: Factory) -> None:
    tree = factory.project(RANDOM)
    run = epctx("reproduce", cwd=tree.root, check=False)
    assert run.code == 8
    assert run.out.startswith("detector.stub: differs: context 1 (4,096 bytes) differs from byte 0 on, in 4,0")
    assert "1 of 1 variants are not reproducible. The store keeps what was compiled once" in run.err
    run = epctx("reproduce", "--json", cwd=tree.root, check=False)
    (unit,) = run.json["units"]
    assert [item["role"] for item in unit["differences"]] == ["context", "model"]
    assert unit["differences"][0]["sizes"] == [4096, 4096]


def test_nothing_is_published_and_nothing_is_left(factory: Factory) -> None:
    tree = factory.project(RANDOM)
    epctx("reproduce", cwd=tree.root, check=False)
    base = Path(os.environ["EPCTX_CACHE_DIR"]) / "v1"
    assert not list((base / "generations").iterdir())
    assert not list((base / "staging").iterdir())
    assert not list((base / "markers").rglob("*.json"))


def test_case_18_what_differs_each_run_is_marked_and_a_warm_store_gives_the_same_wheel(factory: Factory) -> None:
    tree = factory.project(RANDOM)
    epctx("build", "--out", tree.root / "one", cwd=tree.root)
    assert "reproducible" not in facts(tree.root / "one"), "nobody saw it yet"
    epctx("reproduce", cwd=tree.root, check=False)
    run = epctx("reproduce", cwd=tree.root, check=False)
    assert run.code == 8
    for name in ("two", "three"):
        epctx("build", "--out", tree.root / name, cwd=tree.root)
    assert facts(tree.root / "two")["reproducible"] is False
    folders = [{path.name: path.read_bytes() for path in (tree.root / name).iterdir()} for name in ("two", "three")]
    assert folders[0] == folders[1], "a warm store gives the same wheel"
    binaries = [next((tree.root / name).glob("*.bin")).name for name in ("one", "two")]
    assert binaries[0] == binaries[1]
    assert "not reproducible: another compile gave other bytes" in epctx("inspect", "-v", tree.root / "two").out


def test_a_lock_carries_the_mark(factory: Factory) -> None:
    tree = factory.project(RANDOM)
    epctx("reproduce", cwd=tree.root, check=False)
    epctx("lock", cwd=tree.root)
    epctx("build", "--locked", "--out", tree.root / "out", cwd=tree.root)
    assert facts(tree.root / "out")["reproducible"] is False
    assert "detector.stub.facts.reproducible = false" in (tree.root / "epctx.lock").read_text()


def test_a_failed_compile_is_said_and_the_others_go_on(factory: Factory) -> None:
    broken = '[tool.epctx.targets.broken]\nep = "stub"\nprovider-options = { mode = "fail" }\n'
    tree = factory.project(broken + STUB)
    run = epctx("reproduce", cwd=tree.root, check=False)
    assert run.code == 5
    assert run.out == "detector.broken: failed\ndetector.stub: reproduced\n"
    assert "the stub fails as it was told" in run.err


def test_groups_are_compiled_as_one(factory: Factory) -> None:
    group = '[tool.epctx.groups.llm]\nmodels = ["one", "two"]\n'
    tree = factory.project(group + RANDOM, models=("one", "two"))
    run = epctx("reproduce", "one.stub", "--json", cwd=tree.root, check=False)
    (unit,) = run.json["units"]
    assert (unit["variants"], unit["result"]) == (["one.stub"], "differs")


def test_arguments(factory: Factory) -> None:
    tree = factory.project(STUB)
    run = epctx("reproduce", "detector.nope", cwd=tree.root, check=False)
    assert run.code == 2
    assert "unknown variant 'detector.nope'" in run.err
    run = epctx("reproduce", "--runs", "1", cwd=tree.root, check=False)
    assert run.code == 2
    assert "is no number from 2 to 1000" in run.err


@pytest.mark.parametrize(
    ("one", "two", "found"),
    [
        (b"same", b"same", (-1, 0)),
        (b"abcd", b"abXd", (2, 1)),
        (b"abcd", b"ab", (2, 2)),
        (b"", b"ab", (0, 2)),
        (b"x" * 300_000 + b"a" + b"y" * 10, b"x" * 300_000 + b"b" + b"y" * 9 + b"z", (300_000, 2)),
    ],
)
def test_the_first_byte_that_differs(tmp_path: Path, one: bytes, two: bytes, found: tuple[int, int]) -> None:
    for name, data in (("one", one), ("two", two)):
        (tmp_path / name).write_bytes(data)
    assert _first_difference(tmp_path / "one", tmp_path / "two") == found


@pytest.mark.ep_qnn
def test_qnn_reproduces(factory: Factory) -> None:
    tree = factory.project(QNN_TARGET.replace('["60", "88"]', '["60"]'))
    assert epctx("reproduce", cwd=tree.root).out == "detector.snapdragon-60: reproduced\n"


@pytest.mark.ep_openvino
def test_openvino_reproduces(factory: Factory) -> None:
    tree = factory.project('[tool.epctx.targets.cpu]\nep = "openvino"\n')
    assert epctx("reproduce", cwd=tree.root).out == "detector.cpu: reproduced\n"
