"""The command line: answers for people and programs, exit codes, and what every mistake says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from onnx import helper
from support import (
    OPENVINO_TARGET,
    QNN_TARGET,
    REPOSITORY,
    STUB_TARGET,
    Factory,
    Run,
    Tree,
    epctx,
    here,
    save,
    small_model,
)

from hatch_epctx.cli import main
from hatch_epctx.cli.parser import COMMANDS
from hatch_epctx.digest import digest_bytes, is_digest
from hatch_epctx.manifest import read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable


STUB_FOLDER = Path(__file__).parent / "stub_ep"
MODEL = '[tool.epctx.models.detector]\nsource = "models/detector.onnx"\n'
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.fixture
def project(factory: Factory) -> Tree:
    return factory.project(STUB_TARGET)


def write(factory: Factory, table: str, **model: Any) -> Tree:
    tree = factory.project("")
    tree.write(table)
    tree.model(**model)
    return tree


def wheel_of(tree: Tree, out: Path) -> Path:
    """A wheel with the package folder of the project, without a build back end."""
    here("build", "--out", out / "acme_vision" / "_epctx", cwd=tree.root)
    wheel = out / "acme_vision-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted((out / "acme_vision").rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(out))
    return wheel


# Plan, build, explain


def test_plan_says_what_a_build_would_do(project: Tree) -> None:
    first = epctx("plan", cwd=project.root)
    assert re.search(r"^detector\.stub +stub +cpu +[0-9a-f]{12} +miss .*not in the store$", first.out, re.MULTILINE)
    assert first.out.endswith("1 variant: 0 hits, 1 to compile\n")
    built = epctx("build", cwd=project.root)
    assert re.search(r"^detector\.stub +[0-9a-f]{12} +compiled +\d+\.\d s +\d", built.out, re.MULTILINE)
    assert "epctx: detector.stub: compiling" in built.err
    second = epctx("plan", "-v", cwd=project.root)
    assert "hit" in second.out
    assert re.search(r" [0-9a-f]{64} ", second.out)


def test_plan_and_build_for_programs(project: Tree) -> None:
    plan = here("plan", "--json", cwd=project.root).json["variants"]
    build = here("build", "--json", cwd=project.root).json["variants"]
    assert plan[0]["status"] == "miss"
    assert build[0]["status"] == "compiled"
    assert plan[0]["identity"] == build[0]["identity"]
    assert {item["role"] for item in build[0]["artifacts"]} == {"model", "context"}
    assert all(is_digest(item["sha256"]) for item in build[0]["artifacts"])
    assert here("plan", "--json", cwd=project.root).json["variants"][0]["status"] == "hit"


def test_loudness(project: Tree) -> None:
    assert here("build", "-q", cwd=project.root).err == ""
    assert "epctx: detector.stub: hit" in here("build", cwd=project.root).err
    assert here("build", cwd=project.root, env={"EPCTX_LOG": "warning"}).err == ""
    assert "epctx: store " in here("build", "-v", cwd=project.root, env={"EPCTX_LOG": "warning"}).err


def test_selection_and_jobs(factory: Factory) -> None:
    other = '[tool.epctx.targets.other]\nep = "stub"\nprovider-options = { level = 2 }\n'
    tree = factory.project(f"{STUB_TARGET}{other}", models=("detector", "encoder"))
    arguments = ("--json", "--targets", "oth*", "--models", "encoder")
    assert [item["variant"] for item in here("plan", *arguments, cwd=tree.root).json["variants"]] == ["encoder.other"]
    environment = {"EPCTX_TARGETS": "stub", "EPCTX_JOBS": "1"}
    run = here("build", "--json", "--targets", "other", "-j", "2", cwd=tree.root, env=environment)
    names = [item["variant"] for item in run.json["variants"]]
    assert names == ["detector.other", "encoder.other"], "an argument stands over its variable"


def test_the_project_may_be_elsewhere(project: Tree, tmp_path: Path) -> None:
    assert "1 to compile" in here("plan", "-C", project.root, cwd=tmp_path).out


def test_build_writes_and_rewrites_the_package_folder(project: Tree, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "_epctx"
    assert f"wrote {out}" in here("build", "--out", out, cwd=project.root).out
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    project.model(seed=9)
    here("build", "--out", out, cwd=project.root)
    second = {path.name: path.read_bytes() for path in out.iterdir()}
    assert second["manifest.json"] != first["manifest.json"]
    manifest = read_manifest(second["manifest.json"])
    assert second.keys() == {"manifest.json", *(artifact.path for artifact in manifest.artifacts())}
    assert [path.name for path in out.parent.iterdir()] == ["_epctx"]


def test_build_leaves_a_foreign_folder_alone(project: Tree, tmp_path: Path) -> None:
    trace = tmp_path / "workers"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work", encoding="utf-8")
    run = here(
        "build",
        "--out",
        tmp_path / "mine",
        cwd=project.root,
        check=False,
        env={"EPCTX_TRACE_WORKERS": str(trace)},
    )
    assert run.code == 6
    assert "the folder holds 'thesis.txt', which is no part of a package folder. Name a new or empty folder" in run.err
    assert not trace.exists(), "found before anything was compiled"


def test_one_failure_stops_no_other_variant(factory: Factory) -> None:
    bad = '[tool.epctx.targets.bad]\nep = "stub"\nprovider-options = { mode = "fail" }\n'
    tree = factory.project(f"{bad}{STUB_TARGET}")
    run = here("build", cwd=tree.root, check=False)
    assert run.code == 5
    assert re.search(r"^detector\.bad .* failed", run.out, re.MULTILINE)
    assert re.search(r"^detector\.stub .* compiled", run.out, re.MULTILINE)
    assert "epctx: error: detector.bad: the compile failed: the stub fails as it was told" in run.err
    answer = here("build", "--json", cwd=tree.root, check=False).json["variants"]
    assert [(item["status"], item.get("error", {}).get("exit_code")) for item in answer] == [
        ("failed", 5),
        ("hit", None),
    ]


def test_explain_in_words(factory: Factory, tmp_path: Path) -> None:
    tree = write(factory, f"{MODEL}{STUB_TARGET}provider-options = {{ level = 2 }}\n", weights="detector.data")
    ep = shutil.copytree(STUB_FOLDER, tmp_path / "ep")
    env = {"PYTHONPATH": str(ep)}

    def words(*arguments: str) -> list[str]:
        run = epctx("explain", "detector.stub", "--json", *arguments, cwd=tree.root, env=env)
        return list(run.json["words"])

    assert "never built with this store" in epctx("explain", "detector.stub", cwd=tree.root, env=env).out
    first = epctx("build", "--json", cwd=tree.root, env=env).json["variants"][0]["identity"]
    hit = epctx("explain", "detector.stub", cwd=tree.root, env=env).out
    assert "  nothing changed\n" in hit
    assert re.match(r"detector\.stub: hit; its compile took \d.* s\n", hit)
    tree.model(weights="detector.data", seed=5)
    assert words() == ["the model's ONNX file changed", "weights file detector.data changed"]
    epctx("build", cwd=tree.root, env=env)
    tree.write(f"{MODEL}{STUB_TARGET}provider-options = {{ level = 3 }}\n")
    assert words() == ["provider option level: 2 -> 3"]
    assert "provider option level: 2 -> 3" in epctx("plan", cwd=tree.root, env=env).out
    library = ep / "epctx_stub" / "libepctx_stub.so"
    library.write_bytes(library.read_bytes() + b"patched")
    assert re.fullmatch(r"EP library changed: files of epctx-stub 1\.0 differ \(\w{12} -> \w{12}\)", words()[1])
    metadata = ep / "epctx_stub-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 1.1"))
    assert words()[1] == "EP library changed: epctx-stub 1.0 -> 1.1"
    plain = epctx("explain", "detector.stub", "--against", first, cwd=tree.root, env=env).out
    assert [line.strip().split(" changed")[0] for line in plain.splitlines()[3:]] == [
        "the model's ONNX file",
        "weights file detector.data",
        "provider option level: 2 -> 3",
        "EP library",
    ]
    assert re.match(
        r"detector\.stub: miss \(not in the store\); compiling takes about .* s, by its last compile\n", plain
    )


def test_explain_and_plan_find_the_most_alike(factory: Factory, tmp_path: Path) -> None:
    """A variant that was never built under its name is compared with what the store has."""
    tree = factory.project(f'{STUB_TARGET}provider-options = {{ level = 2, mode = "slow", seconds = 0.2 }}\n')
    assert "nothing: this variant was never built" in here("explain", "detector.stub", cwd=tree.root).out
    here("build", cwd=tree.root)
    tree.model("encoder", seed=4)
    tree.write(
        MODEL + '[tool.epctx.models.encoder]\nsource = "models/encoder.onnx"\n'
        '[tool.epctx.targets.tablet]\nep = "stub"\nprovider-options = { level = 3, mode = "slow", seconds = 0.2 }\n'
    )
    tree.model(seed=1)
    answer = here("explain", "detector.tablet", "--json", cwd=tree.root).json
    assert answer["words"] == ["provider option level: 2 -> 3"]
    assert answer["against_own"] is False
    assert answer["cost"]["by"] == "the most alike in the store"
    assert answer["cost"]["seconds"] > 0.2
    assert "(the most alike in the store)" in here("explain", "detector.tablet", cwd=tree.root).out
    assert here("explain", "detector.tablet", "--against", "last", "--json", cwd=tree.root).json["against"] is None
    plan = here("plan", cwd=tree.root).out
    assert re.search(
        r"^detector\.tablet .* new; unlike [0-9a-f]{12}: provider option level: 2 -> 3$", plan, re.MULTILINE
    )
    assert re.search(r"^encoder\.tablet .* not in the store, nor is another compile of this model$", plan, re.MULTILINE)
    assert re.search(r"\nabout \d.* s of compiling, by earlier compiles\n", plan)
    here("build", cwd=tree.root)
    tree.model(seed=7)
    rows = here("plan", "--json", cwd=tree.root).json["variants"]
    assert [row["cost"] and row["cost"]["by"] for row in rows] == ["its last compile", None]


def test_a_shipped_source_is_no_neighbour_of_a_compile(factory: Factory) -> None:
    """It is made without a compile, so that its cost and its fields say nothing of one."""
    tree = factory.project(f"ship-source = true\n{STUB_TARGET}")
    here("build", "--targets", "source", cwd=tree.root)
    rows = here("plan", "--json", cwd=tree.root).json["variants"]
    assert [(row["variant"], row["status"], row["cost"]) for row in rows] == [
        ("detector.stub", "miss", None),
        ("detector.source", "hit", None),
    ]
    assert "unlike" not in here("plan", cwd=tree.root).out


# Compile, inspect


@pytest.mark.ep_openvino
def test_compile_names_its_files(factory: Factory, tmp_path: Path) -> None:
    source = save(small_model(weights="net.data"), tmp_path / "in" / "net.onnx")
    arguments = ("compile", source, "--ep", "openvino", "--option", 'load_config={"CPU":{}}', "-o", tmp_path / "out")
    run = here(*arguments, "--stable-alias", cwd=tmp_path)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert len(names) == 3
    content = next(name for name in names if re.fullmatch(r"net_openvino\.[0-9a-f]{64}\.bin", name))
    assert set(names) == {"net_openvino_ctx.onnx", "net_openvino.bin", content}
    data = (tmp_path / "out" / content).read_bytes()
    assert content == f"net_openvino.{digest_bytes(data)}.bin"
    assert (tmp_path / "out" / "net_openvino.bin").read_bytes() == data
    assert content.encode() in (tmp_path / "out" / "net_openvino_ctx.onnx").read_bytes()
    assert all(f"{tmp_path / 'out' / name}  " in run.out for name in names)
    before = {name: (tmp_path / "out" / name).read_bytes() for name in names}
    answer = here(*arguments, "--json", cwd=tmp_path).json
    assert answer["status"] == "hit"
    assert {Path(name).name for name in answer["files"]} == set(names) - {"net_openvino.bin"}
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    shutil.rmtree(tmp_path / "in")
    facts = here("inspect", tmp_path / "out" / "net_openvino_ctx.onnx", "--json").json
    assert facts["context_nodes"][0]["binary"] == content


def test_compile_embeds(tmp_path: Path) -> None:
    source = save(small_model(), tmp_path / "net.onnx")
    here("compile", source, "--ep", "stub", "--embed", "--stable-alias", "-o", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["net_stub_ctx.onnx"]
    assert "embedded" in here("inspect", tmp_path / "out" / "net_stub_ctx.onnx").out


@pytest.mark.parametrize("mode", ["fail", "crash-after", "load-fail"])
def test_a_failed_compile_leaves_nothing(mode: str, tmp_path: Path) -> None:
    source = save(small_model(), tmp_path / "net.onnx")
    run = here("compile", source, "--ep", "stub", "--option", f"mode={mode}", "-o", tmp_path / "out", check=False)
    assert run.code == 5
    assert "epctx: error: net.stub: the " in run.err
    assert "tool.epctx" not in run.err
    assert not (tmp_path / "out").exists()


def test_compile_replaces_whole_files_or_none(tmp_path: Path) -> None:
    source = save(small_model(), tmp_path / "net.onnx")
    out = tmp_path / "out"
    here("compile", source, "--ep", "stub", "-o", out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    # A folder where the ONNX file goes makes the last step fail.
    (out / "net_stub_ctx.onnx").unlink()
    (out / "net_stub_ctx.onnx" / "x").mkdir(parents=True)
    run = here("compile", source, "--ep", "stub", "-o", out, check=False)
    assert run.code == 6
    assert "cannot be written" in run.err
    left = {path.name for path in out.iterdir()}
    assert left == before.keys(), "no scratch files"


def test_inspect_a_wheel_a_folder_and_a_manifest(project: Tree, tmp_path: Path) -> None:
    wheel = wheel_of(project, tmp_path)
    plain = here("inspect", wheel)
    assert plain.out.startswith("acme_vision/_epctx: acme_vision 1.2.3, ")
    assert re.search(
        r"^detector\.stub +Stub +cpu +[0-9a-f]{12} .* KiB +epctx-stub 1\.0$",
        plain.out,
        re.MULTILINE,
    )
    assert max(map(len, plain.out.splitlines())) <= 120
    package = here("inspect", wheel, "--json").json["packages"][0]
    assert package["problems"] == []
    assert package["variants"][0]["context_nodes"] == 1
    folder = tmp_path / "acme_vision"
    for path in (folder, folder / "_epctx", folder / "_epctx" / "manifest.json"):
        (other,) = here("inspect", path, "--json").json["packages"]
        assert other["variants"] == package["variants"]
    verbose = here("inspect", wheel, "-v").out
    assert package["variants"][0]["artifacts"][0]["sha256"] in verbose


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bild"], "unknown command 'bild'; expected one of plan, build, "),
        (["bild", "--json"], "Did you mean 'build'?\n"),
        (["cache", "infos"], "unknown command 'infos'; expected one of info, list, "),
        (["cache", "infos"], "Did you mean 'info'?\n"),
    ],
)
def test_a_command_that_nobody_knows_has_a_suggestion(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_an_argument_that_nobody_knows_has_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["lock", "--chek"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: epctx lock ")
    assert said.endswith("epctx lock: error: unknown arguments: --chek. Did you mean '--check'?\n")


def test_inspect_names_what_does_not_fit(project: Tree, tmp_path: Path) -> None:
    folder = tmp_path / "package"
    here("build", "--out", folder, cwd=project.root)
    (binary,) = folder.glob("sha256-*.bin")
    binary.write_bytes(binary.read_bytes() + b"x")
    (folder / "stray.bin").write_bytes(b"x")
    (folder / "detector.stub_ctx.onnx").unlink()
    out = here("inspect", folder).out
    assert "problem: detector.stub_ctx.onnx is missing" in out
    assert re.search(rf"problem: {binary.name} has \d+ bytes; the manifest says \d+", out)
    assert "problem: stray.bin is in no variant" in out


def test_inspect_an_onnx_file(tmp_path: Path) -> None:
    path = save(small_model(batch="n", weights="w.data"), tmp_path / "net.onnx")
    out = here("inspect", path).out
    assert f"{path}: 5 nodes, 0 of them EPContext" in out
    assert "  input x: float [n, 3, 8, 8]" in out
    assert "  external data w.data\n" in out
    (tmp_path / "w.data").unlink()
    assert "  external data w.data (missing)" in here("inspect", path).out


def _not_a_zip(path: Path, _project: Tree) -> None:
    path.write_bytes(b"PK\x03\x04 and nothing that follows")


def _truncated(path: Path, project: Tree) -> None:
    data = wheel_of(project, path.parent / "w").read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _two_manifests(path: Path, _project: Tree) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/_epctx/manifest.json", "{}")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a/_epctx/manifest.json", "[]")


def _bomb(path: Path, _project: Tree) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/_epctx/manifest.json", b" " * (20 << 20))


def _deep(path: Path, _project: Tree) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/_epctx/manifest.json", '{"schema_version":' + "[" * 100_000)


def _many(path: Path, _project: Tree) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(101):
            archive.writestr(f"a{number}/_epctx/manifest.json", "{}")


def _escape(path: Path, project: Tree) -> None:
    with zipfile.ZipFile(wheel_of(project, path.parent / "w")) as archive:
        text = archive.read("acme_vision/_epctx/manifest.json").decode()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/_epctx/manifest.json", text.replace('"detector.stub_ctx.onnx"', '"../../secret.onnx"'))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_not_a_zip, "not a well-formed wheel: no readable zip"),
        (_truncated, "not a well-formed wheel: no readable zip"),
        (_two_manifests, "not a well-formed wheel: "),
        (_bomb, "20971520 bytes; expected at most 16777216"),
        (_deep, "a/_epctx/manifest.json"),
        (_many, "101 such files; expected at most 100"),
        (_escape, "a/_epctx/manifest.json"),
    ],
    ids=["not-a-zip", "truncated", "two-manifests", "bomb", "deep", "many", "escape"],
)
def test_inspect_refuses_hostile_wheels(
    make: Callable[[Path, Tree], None], message: str, project: Tree, tmp_path: Path
) -> None:
    path = tmp_path / "hostile-1-py3-none-any.whl"
    make(path, project)
    run = here("inspect", path, check=False)
    assert run.code == 8
    assert "epctx: error: " in run.err
    assert message in run.err
    assert len(run.err) < 2000


def test_names_do_not_drive_the_terminal(tmp_path: Path) -> None:
    model = small_model()
    model.graph.input[0].name = "x\x1b[2Jx\u202ey"
    model.graph.node[0].input[0] = model.graph.input[0].name
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    run = epctx("inspect", path)
    assert "input x\\x1b[2Jx\\u202ey: float" in run.out
    assert "\x1b" not in run.out + run.err


def test_a_node_that_refers_outside_its_folder_is_said(tmp_path: Path) -> None:
    attributes = {"source": "StubExecutionProvider", "embed_mode": 0, "ep_cache_context": "../../etc/passwd"}
    node = helper.make_node("EPContext", ["x"], ["y"], name="n", domain="com.microsoft", **attributes)
    value = [helper.make_tensor_value_info(name, 1, [1]) for name in "xy"]
    model = helper.make_model(helper.make_graph([node], "g", value[:1], value[1:]))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, tmp_path / "net.onnx")
    assert "../../etc/passwd (outside its folder" in here("inspect", tmp_path / "net.onnx").out


# Mistakes


def _replace(data: bytes) -> Callable[[Tree], None]:
    return lambda tree: (tree.root / "models" / "detector.onnx").write_bytes(data) and None  # type: ignore[func-returns-value]


MISTAKES: dict[str, tuple[str, Callable[[Tree], object] | None, int, str]] = {
    "unknown EP": (
        '[tool.epctx.targets.t]\nep = "opnvino"\n',
        None,
        2,
        "tool.epctx.targets.t.ep: unknown execution provider 'opnvino'; expected one of openvino, qnn, ",
    ),
    "EP without context models": (
        '[tool.epctx.targets.t]\nep = "cuda"\n',
        None,
        2,
        "tool.epctx.targets.t.ep: NVIDIA CUDA writes no EPContext models: ",
    ),
    "bogus option": (
        '[tool.epctx.targets.t]\nep = "qnn"\nprovider-options = { soc_model = "60", bogus = 1 }\n',
        None,
        2,
        "tool.epctx.targets.t.provider-options.bogus: unknown option 'bogus' of Qualcomm QNN",
    ),
    "no such chip": (
        '[tool.epctx.targets.t]\nep = "qnn"\nprovider-options = { soc_model = "abc" }\n',
        None,
        2,
        "tool.epctx.targets.t.provider-options.soc_model: unknown value 'abc'; expected one chip by number",
    ),
    "contradictory device": (
        '[tool.epctx.targets.t]\nep = "qnn"\ndevice = "cpu"\nprovider-options = { soc_model = "60" }\n',
        None,
        2,
        "tool.epctx.targets.t.device: Qualcomm QNN has no device 'cpu'; expected one of npu",
    ),
    "bad JSON": (
        '[tool.epctx.targets.t]\nep = "openvino"\nprovider-options = { load_config = "{bad" }\n',
        None,
        2,
        "tool.epctx.targets.t.provider-options.load_config: the text is not JSON: ",
    ),
    "unknown key": (f"{STUB_TARGET}timout = 3\n", None, 2, "tool.epctx.targets.stub: unknown key 'timout'"),
    "missing model": (
        STUB_TARGET,
        lambda tree: (tree.root / "models" / "detector.onnx").unlink(),
        3,
        "tool.epctx.models.detector.source: model does not exist at ",
    ),
    "LFS pointer": (
        STUB_TARGET,
        _replace(LFS),
        3,
        "tool.epctx.models.detector.source: model is a Git-LFS pointer, not the file itself: ",
    ),
    "LFS pointer in place of weights": (
        STUB_TARGET,
        lambda tree: (
            tree.model(weights="detector.data"),
            (tree.root / "models" / "detector.data").write_bytes(LFS),
        ),
        3,
        "tool.epctx.models.detector.source: external data 'detector.data' of detector.onnx is a Git-LFS pointer",
    ),
    "garbage": (
        STUB_TARGET,
        _replace(b"\x08\x07garbage" * 40),
        3,
        "tool.epctx.models.detector.source: reading detector.onnx failed: the file is no usable ONNX model",
    ),
    "empty file": (STUB_TARGET, _replace(b""), 3, "tool.epctx.models.detector.source: model is empty: "),
    "missing distribution": (
        f'{STUB_TARGET}requires = ["nonexistent-dist>=2"]\n',
        None,
        4,
        "tool.epctx.targets.stub.requires: nonexistent-dist is not installed; expected nonexistent-dist>=2. Install it",
    ),
    "EP that is not installed": (
        '[tool.epctx.targets.t]\nep = "vitisai"\n',
        None,
        4,
        "tool.epctx.targets.t.ep: the distribution onnxruntime-vitisai, which brings AMD Vitis AI, is not installed",
    ),
    "crash": (
        f'{STUB_TARGET}provider-options = {{ mode = "kill" }}\n',
        None,
        5,
        "detector.stub: the compile failed: the worker was killed by SIGKILL",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_a_message(name: str, factory: Factory) -> None:
    table, damage, code, message = MISTAKES[name]
    tree = write(factory, f"{MODEL}{table}")
    if damage is not None:
        damage(tree)
    for command in ("build", "plan") if code < 5 else ("build",):
        run = here(command, cwd=tree.root, check=False)
        assert run.code == code, run.err
        assert f"epctx: error: {message}" in run.err


@pytest.mark.ep_qnn
def test_dynamic_shapes_on_qnn_name_the_line_to_add(factory: Factory) -> None:
    tree = write(factory, f"{MODEL}{QNN_TARGET}", batch="batch")
    run = here("build", "--targets", "snapdragon-60", cwd=tree.root, check=False)
    assert run.code == 3
    assert "input 'x' keeps dynamic dims: 'batch' (axis 0)" in run.err
    assert "free-dimensions = { batch = 1 }" in run.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[tool.epctxx.models.m]\nsource = "m.onnx"\n',
            "tool.epctxx: unknown table; expected tool.epctx. Did you mean 'tool.epctx'?",
        ),
        (
            '[tool.epctx]\npackage = "acme"\n[[tool.epctx.models]]\nsource = "m.onnx"\n',
            "expected a table. Give each a name and a table of its own: [tool.epctx.models.NAME].",
        ),
    ],
)
def test_tables_that_are_none_of_ours(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "acme"\nversion = "1"\n{text}')
    run = here("plan", cwd=tmp_path, check=False)
    assert run.code == 2
    assert message in run.err


def test_a_compiled_model_is_no_source(project: Tree, tmp_path: Path) -> None:
    here("build", "--out", tmp_path / "out", cwd=project.root)
    shutil.copy(tmp_path / "out" / "detector.stub_ctx.onnx", project.root / "models" / "detector.onnx")
    run = here("plan", cwd=project.root, check=False)
    assert run.code == 3
    assert "compiled already: it holds EPContext nodes of StubExecutionProvider" in run.err


def test_no_project_and_unknown_names(project: Tree, tmp_path: Path) -> None:
    run = here("plan", "-C", tmp_path / "nowhere", check=False)
    assert (run.code, "pyproject.toml: the file does not exist" in run.err) == (2, True)
    run = here("explain", "detctor.stub", cwd=project.root, check=False)
    assert run.code == 2
    assert "epctx explain: unknown variant 'detctor.stub'; expected one of detector.stub. Did you mean" in run.err
    run = here("explain", "detector.stub", "--against", "abc", cwd=project.root, check=False)
    assert (run.code, "--against: the store holds no identity 'abc'" in run.err) == (2, True)
    for place, arguments, env in (
        ("--targets", ("--targets", "nothing"), {}),
        ("--targets", ("--targets", "nothing"), {"EPCTX_TARGETS": "stub"}),
        ("EPCTX_TARGETS", (), {"EPCTX_TARGETS": "nothing"}),
    ):
        run = here("plan", *arguments, cwd=project.root, env=env, check=False)
        assert (run.code, f"error: {place}: 'nothing' matches no target" in run.err) == (2, True), run.err


def test_what_cannot_be_read_or_written_is_told_with_the_way_out(project: Tree, tmp_path: Path) -> None:
    for command in ("provenance", "variant"):
        run = here(command, tmp_path / "no.whl", check=False)
        assert run.code == 8
        wanted = "no.whl: cannot be read: No such file or directory; expected a wheel. Build one first, or correct the"
        assert wanted in run.err
    out = project.root / "pyproject.toml" / "out"
    run = here("build", "--out", out, cwd=project.root, check=False)
    assert run.code == 6
    assert (
        f"error: {out}: cannot be written: Not a directory. Free some space there, or name another folder." in run.err
    )


def test_a_mistake_is_told_at_the_argument_or_at_the_variable(project: Tree) -> None:
    env = {"EPCTX_LOG": "loud"}
    run = here("build", "-j", "many", cwd=project.root, env=env, check=False)
    assert run.code == 2
    assert "epctx: error: 2 errors in the configuration\n" in run.err
    assert "\n--jobs: found 'many'; expected a number from 1 to 1024\n" in run.err
    assert "\nEPCTX_LOG: found 'loud'; expected one of debug, info, warning\n" in run.err
    run = here("build", "--json", "--models", "detectr", cwd=project.root, check=False)
    assert (run.code, run.json["error"]["where"]) == (2, "--models")


COMPILE_MISTAKES: dict[str, tuple[tuple[str, ...], int, str]] = {
    "unknown EP": (("--ep", "QNM"), 2, "--ep: unknown execution provider 'QNM'"),
    "no pair": (("--ep", "stub", "--option", "mode"), 2, "--option: found 'mode'; expected K=V"),
    "twice": (("--ep", "stub", "--option", "level=1", "--option", "level=2"), 2, "--option: 'level' is given twice"),
    "bogus": (("--ep", "qnn", "--option", "soc_model=60", "--option", "x=1"), 2, "--option x: unknown option 'x'"),
    "JSON": (("--ep", "openvino", "--option", "load_config={bad"), 2, "--option load_config: the text is not JSON"),
    "device": (("--ep", "qnn", "--device", "gpu", "--option", "soc_model=60"), 2, "--device: Qualcomm QNN has no"),
    "dimension": (("--ep", "stub", "--free-dimension", "b=x"), 2, "--free-dimension b: found 'x'; expected a number"),
    "timeout": (("--ep", "stub", "--timeout", "-3"), 2, "--timeout: found -3.0; expected a number above 0"),
    "session option": (
        ("--ep", "stub", "--session-option", "ep.context_enable=1"),
        2,
        "--session-option ep.context_enable: ",
    ),
    "no shape": (
        ("--ep", "stub", "--input-shape", "x=1,two"),
        2,
        "--input-shape x: found '1,two'; expected sizes such as 1,3,48,192",
    ),
    "shape of nothing": (
        ("--ep", "stub", "--input-shape", "z=1,2"),
        3,
        "Correct or remove 'z' in --input-shape",
    ),
    "no cores": (("--ep", "openvino", "--cores", "0"), 2, "--cores: found 0"),
    "cores of another EP": (("--ep", "stub", "--cores", "1"), 2, "--cores"),
    "no module": (("--ep", "stub", "--custom-ops", "my-ops"), 2, "--custom-ops: 'my-ops' names no library"),
    "no library": (
        ("--ep", "stub", "--custom-ops", "libs/none.so"),
        2,
        "--custom-ops: the library of custom op",
    ),
    "not installed": (("--ep", "vitisai"), 4, "--ep: the distribution onnxruntime-vitisai, which brings AMD Vitis AI"),
}


@pytest.mark.parametrize("name", COMPILE_MISTAKES)
def test_every_mistake_of_compile_is_told_in_its_own_words(name: str, tmp_path: Path) -> None:
    arguments, code, message = COMPILE_MISTAKES[name]
    source = save(small_model(), tmp_path / "net.onnx")
    run = here("compile", source, *arguments, "-o", tmp_path / "out", check=False)
    assert run.code == code, run.err
    assert message in run.err
    assert "tool.epctx" not in run.err
    assert not (tmp_path / "out").exists()


def test_an_error_for_programs(tmp_path: Path) -> None:
    run = epctx("compile", "nope.onnx", "--ep", "stub", "-o", "out", "--json", cwd=tmp_path, check=False)
    assert run.code == 3
    error = run.json["error"]
    assert (error["reason"], error["exit_code"], error["where"]) == ("missing-model", 3, "nope.onnx")
    assert run.err.startswith("epctx: error: nope.onnx: model does not exist")


# The store


def _world_writable(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def _foreign(path: Path) -> None:
    path.mkdir()
    os.chown(path, 12345, -1)


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_world_writable, "the cache folder is writable by everybody (mode 0777); expected a private folder"),
        pytest.param(
            _foreign,
            "the cache folder belongs to user ",
            marks=pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives away"),
        ),
        (lambda path: path.write_text("x"), "is no folder"),
    ],
    ids=["world-writable", "foreign", "file"],
)
def test_a_store_that_cannot_be_trusted(
    make: Callable[[Path], object], message: str, project: Tree, tmp_path: Path
) -> None:
    make(tmp_path / "cache")
    run = here("plan", cwd=project.root, env={"EPCTX_CACHE_DIR": str(tmp_path / "cache")}, check=False)
    assert run.code == 6
    assert message in run.err


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_store_serves_hits(project: Tree, tmp_path: Path) -> None:
    here("build", cwd=project.root)
    store = Path(os.environ["EPCTX_CACHE_DIR"])
    folders = [path for path in (store, *store.rglob("*")) if path.is_dir()]
    try:
        for folder in folders:
            folder.chmod(0o500)
        assert "hit" in here("plan", cwd=project.root).out
        assert re.search(r"^store .*read-only\)", here("doctor", "--no-trial").out, re.MULTILINE)
    finally:
        for folder in folders:
            folder.chmod(0o700)


# The machine


def bare_python(folder: Path, *links: str) -> Path:
    """A new environment that holds nothing but links to the named entries of this one's packages."""
    venv.create(folder, with_pip=False)
    packages = Path(sysconfig.get_path("purelib"))
    names = {"base": str(folder), "platbase": str(folder)}
    site = Path(sysconfig.get_path("purelib", "venv", names))
    for name in links:
        (site / name).symlink_to(packages / name)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def epctx_of(python: Path, *arguments: str, cwd: Path) -> Run:
    real = sys.executable
    try:
        sys.executable = str(python)
        return epctx(*arguments, cwd=cwd, check=False)
    finally:
        sys.executable = real


def test_without_the_build_extra(project: Tree, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "environment")
    for command in (("plan",), ("build",), ("compile", "x.onnx", "--ep", "stub", "-o", "out"), ("schema",)):
        run = epctx_of(python, *command, cwd=project.root)
        assert run.code == 4, run.err
        assert 'is not installed. Building needs the build extra: pip install "hatch-epctx[build]"' in run.err
    run = epctx_of(python, "doctor", cwd=project.root)
    assert run.code == 4
    assert "Building needs the build extra" in run.out
    assert epctx_of(python, "--version", cwd=project.root).code == 0


def test_without_the_eps(factory: Factory, tmp_path: Path) -> None:
    packages = Path(sysconfig.get_path("purelib"))
    hidden = ("onnxruntime_ep_openvino", "onnxruntime_qnn", "hatch_epctx", "__editable__", "_hatch_epctx")
    links = [path.name for path in packages.iterdir() if not path.name.startswith(hidden)]
    python = bare_python(tmp_path / "environment", *links)
    tree = write(factory, f"{MODEL}{OPENVINO_TARGET}{QNN_TARGET}")
    run = epctx_of(python, "plan", cwd=tree.root)
    assert run.code == 4
    assert "2 failures before anything was compiled" in run.err
    assert 'pip install "hatch-epctx[openvino]"' in run.err
    assert 'pip install "hatch-epctx[qnn]"' in run.err
    doctor = epctx_of(python, "doctor", cwd=tree.root)
    assert re.search(r'^openvino +pip install "hatch-epctx\[openvino\]"$', doctor.out, re.MULTILINE)
    assert re.search(r'^qnn +pip install "hatch-epctx\[qnn\]"$', doctor.out, re.MULTILINE)
    tree.write(f"{MODEL}{OPENVINO_TARGET}required = false\n{QNN_TARGET}required = false\n")
    run = epctx_of(python, "build", "--out", str(tmp_path / "out"), cwd=tree.root)
    assert run.code == 0
    assert "detector.intel-cpu: skipped: " in run.err
    assert "warning: every variant was skipped" in run.err
    assert not (tmp_path / "out").exists()


# Manners


def test_schema_is_json() -> None:
    schema = here("schema").json
    assert schema["title"] == "tool.epctx"
    assert here("schema", "--json").json == schema


def test_help_names_every_command_and_exit_code() -> None:
    out = epctx("--help").out
    for command in COMMANDS:
        assert re.search(rf"^ +{command.name}\b", out, re.MULTILINE)
        if not command.commands:
            assert "--json" in epctx(command.name, "--help").out
    assert "Exit codes: 0 done, 1 a bug, 2 configuration" in " ".join(out.split())
    assert epctx("frobnicate", check=False).code == 2
    assert epctx("plan", "--target", "x", check=False).code == 2, (
        "no abbreviations: a new option must not break scripts"
    )


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-8"])
def test_any_encoding_will_do(encoding: str, factory: Factory) -> None:
    tree = factory.project(STUB_TARGET, name="projekt-日本")
    env = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    out = tree.root / "aus-日本"
    run = epctx("build", "--out", out, cwd=tree.root, env=env)
    assert ("aus-日本" in run.out) is (encoding == "utf-8")
    assert (out / "manifest.json").is_file()
    assert "\x1b" not in run.out + run.err
    (tree.root / "models" / "detector.onnx").unlink()
    assert "does not exist" in epctx("plan", cwd=tree.root, env=env, check=False).err
    answer = epctx("inspect", out, "--json", cwd=tree.root, env=env)
    assert json.loads(answer.out)["path"] == str(out)


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_an_interrupt_ends_the_workers_and_leaves_nothing(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(f'{STUB_TARGET}provider-options = {{ mode = "slow", seconds = 300 }}\n')
    trace = tmp_path / "workers"
    environment = {**os.environ, "EPCTX_TRACE_WORKERS": str(trace)}
    environment["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), str(STUB_FOLDER)])
    command = [sys.executable, "-m", "hatch_epctx", "build"]
    with subprocess.Popen(command, cwd=tree.root, env=environment, stderr=subprocess.PIPE, text=True) as running:
        while not trace.exists() or "compile" not in trace.read_text(encoding="utf-8"):
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert errors.splitlines()[-1] == "epctx: interrupted"
    assert "Traceback" not in errors
    staging = Path(os.environ["EPCTX_CACHE_DIR"]) / "v1" / "staging"
    assert list(staging.iterdir()) == []
    assert "1 to compile" in here("plan", cwd=tree.root).out


def test_a_reader_that_leaves_is_no_error(project: Tree) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(STUB_FOLDER)])}
    command = [sys.executable, "-m", "hatch_epctx", "schema"]
    running = subprocess.Popen(
        command, cwd=project.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert running.stdout is not None
    running.stdout.close()
    _, errors = running.communicate(timeout=60)
    assert errors == ""
    assert running.returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("redirect", "code"),
    [
        ("", 0),
        (">&-", 0),
        ("2>&-", 0),
        ("<&- >&- 2>&-", 0),
        ("2>/dev/full", 0),
        (">/dev/full", 6),
        ("| true; exit ${PIPESTATUS[0]}", 0),
    ],
)
def test_streams_that_take_nothing_change_no_result(redirect: str, code: int, project: Tree) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(STUB_FOLDER)])}
    for command, expected in (("build", code), ("report", code), ("plan -C /nowhere", 2)):
        line = f"{shlex.quote(sys.executable)} -m hatch_epctx {command} {redirect}"
        ran = subprocess.run(
            ["bash", "-c", line], cwd=project.root, env=environment, capture_output=True, text=True, check=False
        )
        assert ran.returncode == expected, ran.stderr
        assert "Traceback" not in ran.stderr
        assert ran.stderr.endswith("standard output cannot be written: No space left on device\n") == (expected == 6)
    assert "1 hit" in here("plan", cwd=project.root).out
