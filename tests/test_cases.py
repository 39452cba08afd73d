"""Cases: how builds of this kind failed real users, each as a whole project with the command line.

Cases of one part alone stand in the tests of that part, under the same kind of name.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from frontend_support import front_end
from onnx import numpy_helper
from support import OPENVINO_TARGET, REPOSITORY, Factory, Tree, epctx, pipeline, save, small_model

from hatch_epctx.digest import content_name, digest_file

if TYPE_CHECKING:
    from collections.abc import Callable

STUB_EP = Path(__file__).parent / "stub_ep"
QNN_TARGET = '[tool.epctx.targets.phone]\nep = "qnn"\nprovider-options = { backend_type = "htp", soc_model = "60" }\n'


def stub_target(options: str = "", *, extra: str = "", ep: str = "stub") -> str:
    return f'[tool.epctx.targets.stub]\nep = "{ep}"\nprovider-options = {{ {options} }}\n{extra}'


def declared(**models: str) -> str:
    return "".join(f'[tool.epctx.models.{name}]\nsource = "{path}"\n' for name, path in models.items())


def plan(root: Path, **env: str) -> dict[str, dict[str, Any]]:
    """What a build would do, by variant: from the command line where it must see another import path."""
    if "PYTHONPATH" in env:
        rows = epctx("plan", "--json", cwd=root, env=env).json["variants"]
        return {row["variant"]: row for row in rows}
    return {entry.variant.name: {"status": entry.status} for entry in pipeline(root).plan()}


def statuses(rows: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: row["status"] for name, row in rows.items()}


def misses(root: Path, **env: str) -> set[str]:
    return {name for name, status in statuses(plan(root, **env)).items() if status == "miss"}


def keeping_times(change: Callable[[Path], None], path: Path) -> None:
    """Change a file and put its times back: they must not count."""
    before = path.stat()
    change(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def site(folder: Path, *names: str) -> Path:
    """The installed distributions of these names in another place, found first: a tree of links."""
    folder.mkdir()
    for name in names:
        distribution = metadata.distribution(name)
        base = Path(str(distribution.locate_file("")))
        for top in {path.parts[0] for path in distribution.files or () if path.parts[0] not in ("..", "__pycache__")}:
            source = base / top
            if source.is_dir():
                shutil.copytree(
                    source, folder / top, copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__")
                )
    return folder


def own_copy(path: Path) -> Path:
    """Make a link a file of its own."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    return path


def python_path(*folders: Path) -> str:
    return os.pathsep.join([*map(str, folders), str(STUB_EP)])


# 1. One input changes.


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(project, cache) of a whole build: two models, three targets, one of each EP."""
    folder = tmp_path_factory.mktemp("built")
    tree = Factory(folder).project("")
    tree.model("weighty", seed=5, weights="weighty.data")
    table = declared(detector="models/detector.onnx", weighty="models/weighty.onnx")
    tree.write(table + OPENVINO_TARGET + QNN_TARGET + stub_target("level = 1", extra='device = "cpu"\n'))
    cache = folder / "cache"
    epctx("build", cwd=tree.root, env={"EPCTX_CACHE_DIR": str(cache), "PYTHONPATH": str(STUB_EP)})
    return tree.root, cache


@pytest.fixture
def warm(built: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """A copy of that project; its store is the common one, which nothing here writes generations to."""
    root, cache = built
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(cache))
    shutil.copytree(root, tmp_path / "warm")
    return Tree(tmp_path / "warm")


def edit(tree: Tree, old: str, new: str) -> None:
    path = tree.root / "pyproject.toml"
    text = path.read_text()
    assert text.count(old) == 1
    keeping_times(lambda file: file.write_text(text.replace(old, new)) and None, path)


BOTH_MODELS = {"detector", "weighty"}


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda tree: None, set()),
        (
            lambda tree: keeping_times(flip, tree.root / "models" / "weighty.data"),
            {"weighty.intel-cpu", "weighty.phone", "weighty.stub"},
        ),
        (
            lambda tree: save(small_model(seed=77), tree.root / "models" / "detector.onnx"),
            {"detector.intel-cpu", "detector.phone", "detector.stub"},
        ),
        (lambda tree: edit(tree, '"f32"', '"bf16"'), {f"{model}.intel-cpu" for model in BOTH_MODELS}),
        (lambda tree: edit(tree, 'soc_model = "60"', 'soc_model = "88"'), {f"{model}.phone" for model in BOTH_MODELS}),
        (lambda tree: edit(tree, "level = 1", "level = 2"), {f"{model}.stub" for model in BOTH_MODELS}),
        (
            lambda tree: edit(tree, 'ep = "stub"\n', 'ep = "stub"\nembed = true\n'),
            {f"{model}.stub" for model in BOTH_MODELS},
        ),
        (
            lambda tree: (
                edit(tree, '[tool.epctx.targets.stub]\nep = "stub"', '[tool.epctx.targets.stub]\nep = "stub-npu"')
                or edit(tree, 'level = 1 }\ndevice = "cpu"', 'level = 1 }\ndevice = "npu"')
            ),
            {f"{model}.stub" for model in BOTH_MODELS},
        ),
    ],
    ids=["nothing", "weights", "model", "option", "matrix value", "level", "embed", "device"],
)
def test_case_01_one_input_changes_and_only_what_uses_it_is_compiled(
    warm: Tree, change: Callable[[Tree], None], expected: set[str]
) -> None:
    change(warm)
    assert misses(warm.root) == expected


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_case_01_a_byte_in_a_library_beside_the_plugin(warm: Tree, tmp_path: Path) -> None:
    copy = site(tmp_path / "site", "onnxruntime-ep-openvino")
    library = copy / "onnxruntime_ep_openvino" / "libopenvino_intel_gpu_plugin.so"
    assert library.is_symlink(), "the plugin of another device lies beside the one that compiles"
    path = python_path(copy)
    assert misses(warm.root, PYTHONPATH=path) == set(), "another place is no change"
    before = library.stat()
    keeping_times(lambda file: own_copy(file).write_bytes(file.read_bytes() + b"\0"), library)
    os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))
    rows = plan(warm.root, PYTHONPATH=path)
    assert {name for name, row in rows.items() if row["status"] == "miss"} == {
        "detector.intel-cpu",
        "weighty.intel-cpu",
    }
    assert "onnxruntime-ep-openvino" in rows["detector.intel-cpu"]["why"]


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_case_01_onnx_runtime_counts_for_every_target(warm: Tree, tmp_path: Path) -> None:
    copy = site(tmp_path / "site", "onnxruntime")
    library = next((copy / "onnxruntime" / "capi").glob("libonnxruntime_providers_shared.so"))
    own_copy(library).write_bytes(library.read_bytes() + b"\0")
    assert len(misses(warm.root, PYTHONPATH=python_path(copy))) == 6


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_case_01_only_what_changed_is_compiled_for_real(
    built: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path / "project")
    shutil.copytree(built[0], tree.root)
    shutil.copytree(built[1], tmp_path / "cache")
    trace = tmp_path / "workers"
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EPCTX_TRACE_WORKERS", str(trace))
    save(small_model(seed=78), tree.root / "models" / "detector.onnx")
    rows = epctx("build", "--json", cwd=tree.root).json["variants"]
    assert {row["variant"]: row["status"] for row in rows} == {
        "detector.intel-cpu": "compiled",
        "detector.phone": "compiled",
        "detector.stub": "compiled",
        "weighty.intel-cpu": "hit",
        "weighty.phone": "hit",
        "weighty.stub": "hit",
    }
    assert sorted(trace.read_text().split()) == ["compile"] * 3 + ["load"] * 3 + ["scan"]
    trace.unlink()
    edit(tree, '"60"', '"88"')
    rows = epctx("build", "--json", cwd=tree.root).json["variants"]
    assert [row["variant"] for row in rows if row["status"] == "compiled"] == ["detector.phone", "weighty.phone"]
    assert trace.read_text().split().count("compile") == 2


# A null build.

NULL_BUILD = """
import sys
from hatch_epctx.cli import main
code = main(sys.argv[1:])
heavy = {"onnx", "onnxruntime", "numpy", "onnxruntime_ep_openvino", "onnxruntime_qnn"} & sys.modules.keys()
assert not heavy, heavy
from hatch_epctx.process import worker_runs
assert worker_runs() == {}, worker_runs()
sys.exit(code)
"""


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
@pytest.mark.parametrize("command", [["build"], ["plan"], ["build", "--out"]])
def test_a_build_in_which_everything_hits_starts_no_worker_and_imports_nothing_heavy(
    warm: Tree, tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "workers"
    monkeypatch.setenv("EPCTX_TRACE_WORKERS", str(trace))
    out = [str(tmp_path / "out")] if command[-1] == "--out" else []
    done = subprocess.run(
        [sys.executable, "-c", NULL_BUILD, *command, *out],
        cwd=warm.root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(STUB_EP)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert "compiling" not in done.stderr
    assert not trace.exists(), "no worker was started"


# 2 and 3. Models that are alike.


def differences(package: Path, model: str, source: Path) -> dict[str, float]:
    """Largest difference to the CPU EP on `source`, by variant, each opened by the look-up in a process of its own."""
    script = Path(__file__).parent / "compare_sessions.py"
    done = subprocess.run(
        [sys.executable, str(script), str(package), model, str(source)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])["differences"]["lookup"]
    return found


def artifact_digests(row: dict[str, Any]) -> set[str]:
    return {item["sha256"] for item in row["artifacts"]}


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_case_02_models_that_differ_in_one_weight(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project("")
    first = save(small_model(), tree.root / "a" / "model.onnx")
    proto = onnx.load(first)
    weights = numpy_helper.to_array(proto.graph.initializer[1]).copy()
    weights[0, 0] += 40.0
    proto.graph.initializer[1].CopyFrom(numpy_helper.from_array(weights, proto.graph.initializer[1].name))
    second = save(proto, tree.root / "b" / "model.onnx")
    tree.write(declared(one="a/model.onnx", two="b/model.onnx") + OPENVINO_TARGET + QNN_TARGET)
    run = epctx("build", "--json", "--out", tmp_path / "out", cwd=tree.root)
    rows = {row["variant"]: row for row in run.json["variants"]}
    for target in ("intel-cpu", "phone"):
        one, two = rows[f"one.{target}"], rows[f"two.{target}"]
        assert one["identity"] != two["identity"]
        assert not artifact_digests(one) & artifact_digests(two)
    for model, own, other in (("one", first, second), ("two", second, first)):
        right, wrong = differences(tmp_path / "out", model, own), differences(tmp_path / "out", model, other)
        assert right.keys() == {"intel-cpu", "phone"}
        # OpenVINO computes in f32 as it was told; the HTP computes in f16, of values up to about 40.
        assert right["intel-cpu"] < 1e-4
        assert right["phone"] < 0.1
        assert all(value > 1 for value in wrong.values()), "the comparison sees the weight"


@pytest.mark.ep_openvino
@pytest.mark.parametrize("order", ["small-large", "large-small"])
def test_case_03_equal_graph_names_and_other_shapes_in_one_cache(factory: Factory, tmp_path: Path, order: str) -> None:
    tree = factory.project("")
    paths = {
        "small": save(small_model(size=3), tree.root / "models" / "small.onnx"),
        "large": save(small_model(size=4), tree.root / "models" / "large.onnx"),
    }
    names = order.split("-")
    tree.write(declared(**{name: f"models/{name}.onnx" for name in names}) + OPENVINO_TARGET)
    epctx("build", "--out", tmp_path / "out", cwd=tree.root, env={"EPCTX_JOBS": "1"})
    for name in names:
        assert differences(tmp_path / "out", name, paths[name])["intel-cpu"] < 1e-4


# 4 and 5. Toolchains.


def stub_site(folder: Path) -> Path:
    shutil.copytree(STUB_EP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def set_version(folder: Path, version: str) -> None:
    """Another version of the one distribution in `folder`, its libraries untouched."""
    (info,) = folder.glob("*.dist-info")
    text = (info / "METADATA").read_text()
    old = next(line for line in text.splitlines() if line.startswith("Version: "))
    own_copy(info / "METADATA").write_text(text.replace(old, f"Version: {version}", 1))
    info.rename(info.with_name(f"{info.name.rpartition('-')[0]}-{version}.dist-info"))


@pytest.mark.parametrize("what", ["driver", "ep", "onnxruntime"])
def test_case_04_another_driver_ep_or_onnx_runtime_is_a_miss(factory: Factory, tmp_path: Path, what: str) -> None:
    tree = factory.project(stub_target(ep="stub-npu"))
    stub = stub_site(tmp_path / "stub")
    runtime = site(tmp_path / "runtime", "onnxruntime")
    env = {"PYTHONPATH": os.pathsep.join([str(stub), str(runtime)])}
    epctx("build", cwd=tree.root, env=env)
    assert misses(tree.root, **env) == set()
    if what == "driver":
        (stub / "epctx_stub" / "driver.txt").write_text("9.9.9")
    else:
        set_version(stub if what == "ep" else runtime, "1.99.0")
    row = plan(tree.root, **env)["detector.stub"]
    assert row["status"] == "miss"
    assert {"driver": "driver: 1.2.3 -> 9.9.9", "ep": "epctx-stub 1.0 -> 1.99.0", "onnxruntime": "-> 1.99.0"}[
        what
    ] in row["why"]


def test_case_05_times_and_places_are_no_change(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(stub_target())
    stub = stub_site(tmp_path / "stub")
    cache = tmp_path / "cache"
    epctx("build", cwd=tree.root, env={"PYTHONPATH": str(stub), "EPCTX_CACHE_DIR": str(cache)})
    for path in stub.rglob("*"):
        os.utime(path, (1, 1))
    moved = tmp_path / "somewhere" / "else"
    shutil.move(tree.root, moved)
    fresh = tmp_path / "copied-cache"
    shutil.copytree(cache, fresh, copy_function=shutil.copyfile)
    trace = tmp_path / "workers"
    env = {"PYTHONPATH": str(stub), "EPCTX_CACHE_DIR": str(fresh), "EPCTX_TRACE_WORKERS": str(trace)}
    assert statuses(plan(moved, **env)) == {"detector.stub": "hit"}
    assert epctx("build", "--json", cwd=moved, env=env).json["variants"][0]["status"] == "hit"
    assert not trace.exists()


# 6 and 7. Options.


@pytest.mark.parametrize(
    ("options", "extra", "hit"),
    [
        ('level = 1, table = { b = 1, a = [1, 2] }, settings = "{\\"y\\": 1, \\"x\\": 2}"', "", True),
        ('settings = "  {  \\"x\\" : 2 ,\\n \\"y\\" : 1 }", table = { a = [1, 2], b = 1 }, level = "1"', "", True),
        ('table = "{\\"b\\":1,\\"a\\":[1,2]}", settings = { x = 2, y = 1 }, level = 1', "", True),
        ("level = 1, table = { b = 1, a = [2, 1] }, settings = { x = 2, y = 1 }", "", False),
        ("level = 1, table = { b = 2, a = [1, 2] }, settings = { x = 2, y = 1 }", "", False),
        ("level = 1, table = { b = 1, a = [1, 2] }, settings = { x = 2 }", "", False),
        ("level = 2, table = { b = 1, a = [1, 2] }, settings = { x = 2, y = 1 }", "", False),
        ("level = 1, table = { b = 1, a = [1, 2] }, settings = { x = 2, y = 1 }", 'optimization = "basic"\n', True),
        ("level = 1, table = { b = 1, a = [1, 2] }, settings = { x = 2, y = 1 }", 'optimization = "all"\n', False),
        ("level = 1, table = { b = 1, a = [1, 2] }, settings = { x = 2, y = 1 }", "timeout = 5\n", True),
    ],
)  # fmt: skip
def test_case_06_options_count_by_what_they_mean(
    option_cache: Path, factory: Factory, monkeypatch: pytest.MonkeyPatch, options: str, extra: str, hit: bool
) -> None:
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(option_cache))
    tree = factory.project(stub_target(options, extra=extra))
    row = plan(tree.root)["detector.stub"]
    assert (row["status"] == "hit") == hit, row


@pytest.fixture(scope="module")
def option_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("options")
    options = "level = 1, table = { b = 1, a = [1, 2] }, settings = { x = 2, y = 1 }"
    tree = Factory(folder).project(stub_target(options))
    epctx("build", cwd=tree.root, env={"EPCTX_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(STUB_EP)})
    return folder / "cache"


def test_case_06_the_effective_optimisation_level_is_recorded(factory: Factory) -> None:
    tree = factory.project(stub_target())
    document = epctx("explain", "detector.stub", "--json", cwd=tree.root).json["document"]
    assert document["compile"]["optimization"] == "basic", "so that another default of ONNX Runtime's changes nothing"
    assert document["target"]["load-session-options"]["session.graph_optimization_level"] == "disable_all"


@pytest.mark.parametrize("option", ["settings", "data", "tree"])
def test_case_07_what_is_behind_an_option_counts_by_content(factory: Factory, option: str) -> None:
    value = {"settings": "files/settings.json", "data": "files/data.bin", "tree": "files/tree"}[option]
    tree = factory.project(stub_target(f'{option} = "{value}"'))
    files = tree.root / "files"
    (files / "tree" / "deep").mkdir(parents=True)
    changing = {
        "settings": files / "settings.json",
        "data": files / "data.bin",
        "tree": files / "tree" / "deep" / "a.bin",
    }[option]
    changing.write_text('{"x": 1}')
    epctx("build", cwd=tree.root)
    assert misses(tree.root) == set()
    keeping_times(lambda path: path.write_text('{"x": 2}') and None, changing)
    assert misses(tree.root) == {"detector.stub"}
    changing.write_text('{"x": 1}')
    assert misses(tree.root) == set()

    shutil.rmtree(files)
    run = epctx("build", cwd=tree.root, check=False)
    assert run.code == 2
    what = "folder" if option == "tree" else "file"
    assert f"tool.epctx.targets.stub.provider-options.{option}: the {what} {value!r} of option {option!r}" in run.err
    assert f"does not exist: {tree.root / value}" in run.err


# 8, 9 and 10. Trees.


def test_case_08_a_git_lfs_pointer_is_an_error_and_nothing_is_cached(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(stub_target())
    (tree.root / "models" / "detector.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    run = epctx("build", cwd=tree.root, check=False)
    assert run.code == 3
    assert "tool.epctx.models.detector.source: model is a Git-LFS pointer" in run.err
    assert "Run 'git lfs pull'" in run.err
    assert not list((tmp_path / "epctx-cache" / "v1" / "markers").rglob("*.json"))


@pytest.mark.ep_openvino
def test_case_09_isolated_folders_sdists_and_other_homes_compile_nothing_again(
    factory: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = factory.project(OPENVINO_TARGET)
    first = epctx("build", "--json", cwd=tree.root).json["variants"]
    trace = tmp_path / "workers"
    monkeypatch.setenv("EPCTX_TRACE_WORKERS", str(trace))

    isolated = tmp_path / "build-env-x7" / "project"
    shutil.copytree(tree.root, isolated)
    home = tmp_path / "other-home"
    home.mkdir()
    sdist = front_end("backend", tree.root, out=tmp_path / "dist").sdists[0]
    unpacked = tmp_path / "unpacked"
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (from_sdist,) = unpacked.iterdir()
    for root, env in ((isolated, {}), (isolated, {"HOME": str(home), "USER": "other"}), (from_sdist, {})):
        again = epctx("build", "--json", cwd=root, env=env).json["variants"]
        assert [row["status"] for row in again] == ["hit"]
        assert [row["identity"] for row in again] == [row["identity"] for row in first]
        assert [row["artifacts"] for row in again] == [row["artifacts"] for row in first]
    assert not trace.exists(), "no worker was started"


@pytest.mark.ep_openvino
def test_case_10_a_tree_of_a_model_hub_gives_regular_files(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project("")
    plain = save(small_model(weights="weights.data"), tmp_path / "plain" / "model.onnx")
    blobs, shown = tmp_path / "hub" / "blobs", tree.root / "models"
    blobs.mkdir(parents=True)
    for path in plain.parent.iterdir():
        blob = blobs / digest_file(path)
        shutil.copy(path, blob)
        (shown / path.name).symlink_to(blob)
    tree.write(declared(detector="models/model.onnx") + "ship-source = true\n" + OPENVINO_TARGET)
    wheel = front_end("backend", tree.root, out=tmp_path / "dist").wheel
    with zipfile.ZipFile(wheel) as archive:
        infos = [info for info in archive.infolist() if "/_epctx/" in info.filename]
        assert len(infos) >= 5
        assert not [info.filename for info in infos if stat.S_ISLNK(info.external_attr >> 16)]
        weights = f"acme_vision/_epctx/{content_name(digest_file(plain.parent / 'weights.data'))}"
        assert archive.read(weights) == (plain.parent / "weights.data").read_bytes()
    link = shown / "weights.data"
    other = blobs / "other"
    other.write_bytes(bytes(link.stat().st_size))
    link.unlink()
    link.symlink_to(other)
    assert misses(tree.root) == {"detector.intel-cpu", "detector.source"}


# 14. Settings that cannot be.

TARGET = "[tool.epctx.targets.t]\n"


@pytest.mark.parametrize(
    ("table", "place", "words"),
    [
        (
            TARGET + 'ep = "qnn"\ndevice = "cpu"\nprovider-options = { backend_type = "htp", soc_model = "60" }\n',
            "tool.epctx.targets.t.device",
            "Qualcomm QNN has no device 'cpu'; expected one of npu",
        ),
        (
            TARGET + 'ep = "qnn"\nprovider-options = { backend_type = "htp", soc_model = "abc" }\n',
            "tool.epctx.targets.t.provider-options.soc_model",
            "'abc'",
        ),
        (
            TARGET + 'ep = "openvino"\nprovider-options = { bogus = "1" }\n',
            "tool.epctx.targets.t.provider-options.bogus",
            "bogus",
        ),
        (
            TARGET + 'ep = "QNM"\n',
            "tool.epctx.targets.t.ep",
            "unknown execution provider 'QNM'",
        ),
        (TARGET + "embed = true\n", "tool.epctx.targets.t.ep", ""),
        (TARGET + 'ep = "openvino"\ndevise = "cpu"\n', "tool.epctx.targets.t", "unknown key 'devise'"),
    ],
    ids=["device", "soc", "option", "ep", "no default ep", "key"],
)
def test_case_14_settings_that_cannot_be_are_refused_before_anything_starts(
    factory: Factory, tmp_path: Path, table: str, place: str, words: str
) -> None:
    tree = factory.project(table)
    trace = tmp_path / "workers"
    run = epctx("build", cwd=tree.root, env={"EPCTX_TRACE_WORKERS": str(trace)}, check=False)
    assert run.code == 2
    assert f"epctx: error: {place}: " in run.err
    assert words in run.err
    assert not trace.exists()


# 17. Pieces of one model.

PIECES = """
import json, sys
import numpy as np
from hatch_epctx import runtime
package = runtime.open(sys.argv[1])
sessions = [package.session(name, fallback="error") for name in sys.argv[2].split(",")]
value = np.random.default_rng(2).normal(size=(1, 3, 8, 8)).astype(np.float32)
for session in sessions:
    (value,) = session.run(None, {session.get_inputs()[0].name: value})
print(json.dumps(value.tolist()))
"""


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(OPENVINO_TARGET, marks=pytest.mark.ep_openvino, id="openvino"),
        pytest.param(QNN_TARGET, marks=pytest.mark.ep_qnn, id="qnn"),
    ],
)
def test_case_17_two_pieces_of_one_model_in_one_folder_do_not_clash(
    target: str, factory: Factory, tmp_path: Path
) -> None:
    """Both pieces have the whole model's graph name and file name, as tools that split models leave them."""
    tree = factory.project(target)
    names = {"whole": "models/detector.onnx"}
    for name, inputs, outputs in (("head", ["x"], ["r"]), ("tail", ["r"], ["y"])):
        names[name] = f"models/{name}/model.onnx"
        piece = tree.root / names[name]
        piece.parent.mkdir()
        onnx.utils.extract_model(str(tree.root / names["whole"]), str(piece), inputs, outputs)
        model = onnx.load(piece)
        model.graph.name = "small"
        save(model, piece)
    tree.write(declared(**names) + target)
    out = tmp_path / "out"
    epctx("build", "--out", out, cwd=tree.root)
    files = [path.name for path in out.iterdir()]
    assert sum(name.endswith("_ctx.onnx") for name in files) == sum(name.endswith(".bin") for name in files) == 3
    whole, pieces = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", PIECES, str(out), models],
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                capture_output=True,
                text=True,
                check=True,
                timeout=300,
            ).stdout.splitlines()[-1]
        )
        for models in ("whole", "head,tail")
    )
    assert pieces[0] == pytest.approx(whole[0], rel=0.02, abs=0.002)


# 12 and 20.


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
@pytest.mark.parametrize("target", ["intel-cpu", "phone"])
def test_case_20_a_model_of_an_earlier_build_is_no_source(
    built: tuple[Path, Path], factory: Factory, target: str
) -> None:
    root, cache = built
    row = plan_of(root, cache)[f"detector.{target}"]
    tree = factory.project(OPENVINO_TARGET)
    shutil.copytree(cache / "v1" / "generations" / row["generation"], tree.root / "models", dirs_exist_ok=True)
    tree.write(declared(detector="models/model_ctx.onnx") + OPENVINO_TARGET)
    run = epctx("build", cwd=tree.root, check=False)
    assert run.code == 3
    assert "tool.epctx.models.detector.source: " in run.err
    assert "the model is compiled already: it holds EPContext nodes of " in run.err
    assert "a compiled model cannot be compiled again" in run.err


def plan_of(root: Path, cache: Path) -> dict[str, dict[str, Any]]:
    env = {"EPCTX_CACHE_DIR": str(cache)}
    return {row["variant"]: row for row in epctx("build", "--json", cwd=root, env=env).json["variants"]}
