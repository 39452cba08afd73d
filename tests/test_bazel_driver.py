"""The driver of Bazel's actions: its outputs are those of the hatch plugin, and it refuses what a cache must not hold.

These tests start the driver as an action does and need no Bazel.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontend_support import front_end
from support import OPENVINO_TARGET, REPOSITORY, Factory, Tree, pipeline, save, small_model
from test_custom_ops import LIBRARY, custom_model

from hatch_epctx.bazel.settings import ActionInputs, read_config, table_of
from hatch_epctx.errors import ConfigError
from hatch_epctx.manifest import MANIFEST_NAME
from hatch_epctx.wheel import write_package

OPENVINO = {
    "name": "intel-cpu",
    "settings": {
        "ep": "openvino",
        "device": "cpu",
        "provider-options": {"load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'},
    },
}
QNN = {
    "name": "snapdragon-60",
    "settings": {"ep": "qnn", "provider-options": {"backend_type": "htp", "soc_model": "60"}},
}
QNN_TARGET = """[tool.epctx.targets.snapdragon]
ep = "qnn"
matrix = { soc_model = ["60"] }
provider-options = { backend_type = "htp" }
"""
DRIVER = REPOSITORY / "rules" / "epctx" / "private" / "driver.py"


def driver(*arguments: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Start the driver as an action does: empty environment, isolated interpreter, trees of site-packages."""
    sites = [str(REPOSITORY), *(entry for entry in sys.path if entry.endswith("site-packages"))]
    command = [sys.executable, "-I", "-S", "-B", str(DRIVER), *(f"--site={site}" for site in sites), "--"]
    done = subprocess.run(
        [*command, *map(str, arguments)], cwd=cwd, env={}, capture_output=True, text=True, timeout=300, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    if check:
        assert done.returncode == 0, done.stderr
    return done


class Action:
    """The files of one compile in `folder`."""

    def __init__(
        self,
        folder: Path,
        models: dict[str, Path],
        target: dict[str, Any] | None,
        *,
        group: str = "",
        settings: dict[str, Any] | None = None,
    ) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.models = models
        value = {
            "format": "epctx-bazel/1",
            "cacheable": True,
            "group": group,
            "models": [{"name": name, "settings": settings or {}} for name in models],
            "target": target,
        }
        (folder / "config.json").write_text(json.dumps(value))

    def run(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        given = [part for name, path in self.models.items() for part in ("--model", name, path)]
        outputs = ["--out", "out.epctx", "--manifest", "out.json"]
        return driver("compile", "--config", "config.json", *given, *outputs, *arguments, cwd=self.folder, check=check)

    @property
    def manifest(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "out.json").read_text()))

    @property
    def context(self) -> list[str | Path]:
        return ["--context", self.folder / "out.json", self.folder / "out.epctx"]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("machine")
    path = folder / "machine.json"
    path.write_text(driver("machine", "--ep", "openvino", "--device", "cpu", cwd=folder).stdout)
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def plugin_folder(tree: Tree, out: Path) -> dict[str, bytes]:
    """The package folder of the project as every front end makes it."""
    with pipeline(tree.root).build() as built:
        built.raise_for_failures()
        write_package(built, out, version="1.2.3")
    return content(out)


def packed(actions: list[Action], out: Path) -> dict[str, bytes]:
    given = [part for action in actions for part in action.context]
    driver("package", *given, "--package", "acme_vision", "--version", "1.2.3", "--out", out, cwd=out.parent)
    return content(out)


@pytest.mark.ep_openvino
def test_package_and_wheel_are_those_of_the_plugin(factory: Factory, tmp_path: Path, machine: Path) -> None:
    tree = factory.project(OPENVINO_TARGET)
    project = (tree.root / "pyproject.toml").read_text()
    source = tree.root / "models" / "detector.onnx"
    (tree.root / "pyproject.toml").write_text(
        project.replace('source = "models/detector.onnx"', 'source = "models/detector.onnx"\nship-source = true')
    )
    wheel = front_end("backend", tree.root, out=tmp_path / "plugin").wheel
    compiled = Action(tmp_path / "compiled", {"detector": source}, OPENVINO)
    compiled.run("--machine", machine)
    shipped = Action(tmp_path / "shipped", {"detector": source}, None)
    shipped.run()

    folder = packed([compiled, shipped], tmp_path / "folder")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
    prefix = "acme_vision/_epctx/"
    assert folder == {name.removeprefix(prefix): data for name, data in inside.items() if name.startswith(prefix)}

    made = make_wheel(tmp_path, [compiled, shipped], tree.root / "acme_vision" / "__init__.py")
    with zipfile.ZipFile(made) as archive:
        ours = {name: archive.read(name) for name in archive.namelist()}
        methods = {info.filename: info.compress_type for info in archive.infolist()}
    assert ours.keys() == inside.keys()
    differing = {name for name in ours if ours[name] != inside[name]}
    assert {name.rpartition("/")[2] for name in differing} <= {"METADATA", "WHEEL", "RECORD"}
    assert all(method == zipfile.ZIP_STORED for name, method in methods.items() if name.endswith(".bin"))


def make_wheel(folder: Path, actions: list[Action], module: Path) -> Path:
    (folder / "wheel.json").write_text(
        json.dumps(
            {
                **dict.fromkeys(("summary", "homepage", "author", "author_email", "license", "python_requires"), ""),
                "distribution": "acme-vision",
                "version": "1.2.3",
                "package": "acme_vision",
                "compression": "stored",
                "classifiers": [],
                "requires": [],
                "extra_requires": {},
                "project_urls": {},
                "license_files": [],
                "description_content_type": "",
                "distinfo": {},
            }
        )
    )
    out = folder / "acme_vision-1.2.3-py3-none-any.whl"
    given = [part for action in actions for part in action.context]
    driver(
        *("wheel", "--config", folder / "wheel.json", *given),
        *("--file", "acme_vision/__init__.py", module, "--out", out),
        cwd=folder,
    )
    return out


@pytest.mark.ep_qnn
def test_a_group_with_external_data_is_that_of_the_plugin(factory: Factory, tmp_path: Path) -> None:
    group = '[tool.epctx.groups.llm]\nmodels = ["prefill", "decode"]\ntargets = ["snapdragon-*"]\n'
    tree = factory.project(QNN_TARGET + group, models=("prefill", "decode"))
    save(small_model(seed=3, weights="w.bin"), tree.root / "models" / "decode.onnx")
    models = {name: tree.root / "models" / f"{name}.onnx" for name in ("prefill", "decode")}
    action = Action(tmp_path / "group", models, QNN, group="llm")
    action.run("--data", "decode", "w.bin", tree.root / "models" / "w.bin")
    assert packed([action], tmp_path / "folder") == plugin_folder(tree, tmp_path / "plugin")
    assert len(list((tmp_path / "folder").glob("*.bin"))) == 1, "the members share their binary"


@pytest.mark.ep_openvino
def test_outputs_are_the_same_bytes_from_links_and_other_folders(tmp_path: Path, machine: Path) -> None:
    model = save(small_model(), tmp_path / "a" / "detector.onnx")
    first = Action(tmp_path / "first", {"detector": model}, OPENVINO)
    first.run("--machine", machine)
    sandbox = tmp_path / "some" / "other" / "sandbox"
    second = Action(sandbox, {"detector": Path("link.onnx")}, OPENVINO)
    (sandbox / "link.onnx").symlink_to(model)
    (sandbox / "config.json").rename(sandbox / "real.json")
    (sandbox / "config.json").symlink_to("real.json")
    second.run("--machine", machine)
    assert content(first.folder / "out.epctx") == content(sandbox / "out.epctx")
    assert first.manifest == second.manifest
    assert "seconds" not in first.manifest["record"]["result"]
    assert not list(tmp_path.rglob("*.scratch")), "nothing is left beside the outputs"


@pytest.mark.ep_openvino
def test_an_undeclared_or_other_machine_is_refused_before_the_compile(tmp_path: Path, machine: Path) -> None:
    model = save(small_model(), tmp_path / "detector.onnx")
    action = Action(tmp_path / "action", {"detector": model}, OPENVINO)
    undeclared = action.run(check=False)
    assert undeclared.returncode == 2
    assert "bakes cores, device, isa, topology" in undeclared.stderr
    assert "python -m hatch_epctx.bazel machine --ep openvino --device cpu" in undeclared.stderr

    found = json.loads(machine.read_text())
    found["topology"]["physical-cores"] += 6
    found["isa"] = [flag for flag in found["isa"] if flag != "avx2"]
    other = tmp_path / "other.json"
    other.write_text(json.dumps(found))
    refused = action.run("--machine", other, check=False)
    assert refused.returncode == 4
    assert "this machine is not the declared one" in refused.stderr
    assert "topology.physical-cores" in refused.stderr
    assert "isa" in refused.stderr
    assert not (action.folder / "out.epctx").exists()


def test_what_cannot_be_named_is_not_cacheable(tmp_path: Path) -> None:
    model = save(small_model(), tmp_path / "detector.onnx")
    target = {"name": "stub", "settings": {"ep": "stub"}}
    action = Action(tmp_path / "action", {"detector": model}, target)
    done = action.run(check=False)
    assert done.returncode == 2
    assert "stub" in done.stderr, "an EP that no declared tree brings is unknown"
    assert "epctx_ep stub: ep" in done.stderr, "places are said in the rules' words"


@pytest.mark.ep_qnn
def test_mistakes_are_said_in_the_rules_words(tmp_path: Path) -> None:
    model = save(small_model(), tmp_path / "detector.onnx")
    target = {"name": "phone", "settings": {"ep": "qnn", "provider-options": {"soc_modell": "60"}}}
    done = Action(tmp_path / "action", {"detector": model}, target).run(check=False)
    assert done.returncode == 2
    assert "epctx_ep phone: provider-options.soc_modell" in done.stderr
    assert "tool.epctx" not in done.stderr


@pytest.mark.ep_qnn
def test_the_check_against_the_cpu_ep(tmp_path: Path) -> None:
    model = save(small_model(), tmp_path / "detector.onnx")
    action = Action(tmp_path / "action", {"detector": model}, QNN)
    action.run()
    given = ["test", *action.context, "--model", "detector", model]
    passed = driver(*given, "--rtol", "0.05", "--atol", "0.01", cwd=tmp_path)
    assert "passed" in passed.stderr
    failed = driver(*given, "--rtol", "0", "--atol", "1e-12", cwd=tmp_path, check=False)
    assert failed.returncode == 5
    other = save(small_model(seed=9), tmp_path / "other.onnx")
    foreign = driver(*given[:-1], other, "--rtol", "1", "--atol", "1", cwd=tmp_path, check=False)
    assert foreign.returncode == 8
    assert "not the one that was compiled" in foreign.stderr


@pytest.mark.ep_qnn
def test_a_cache_that_delivers_other_bytes_is_found_out(tmp_path: Path) -> None:
    action = Action(tmp_path / "action", {"detector": save(small_model(), tmp_path / "detector.onnx")}, QNN)
    action.run()
    pack = ["package", *action.context, "--package", "acme_vision", "--version", "1", "--out", tmp_path / "folder"]
    (binary,) = (action.folder / "out.epctx").glob("*.bin")
    right = binary.read_bytes()
    binary.write_bytes(bytes([right[0] ^ 1]) + right[1:])
    flipped = driver(*pack, cwd=tmp_path, check=False)
    assert flipped.returncode == 8
    assert "not what its manifest says" in flipped.stderr
    binary.write_bytes(right)
    manifest = action.manifest
    manifest["record"]["document"]["target"]["device"] = "cpu"
    (action.folder / "out.json").write_text(json.dumps(manifest))
    forged = driver(*pack, cwd=tmp_path, check=False)
    assert forged.returncode == 8
    assert "the identity is not that of its document" in forged.stderr


@pytest.mark.ep_qnn
def test_a_prepared_model_and_an_option_file_are_those_of_the_plugin(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(QNN_TARGET)
    samples = tree.root / "samples.npz"
    np.savez(samples, x=np.random.default_rng(1).normal(size=(2, 1, 3, 8, 8)).astype(np.float32))
    project = (tree.root / "pyproject.toml").read_text()
    settings = 'prepare = ["infer-shapes", "quantize-qdq"]\ncalibration = "samples.npz"\nmin-coverage = 0.5'
    (tree.root / "pyproject.toml").write_text(
        project.replace('source = "models/detector.onnx"', f'source = "models/detector.onnx"\n{settings}')
    )
    model = tree.root / "models" / "detector.onnx"
    declared = {"prepare": ["infer-shapes", "quantize-qdq"], "min-coverage": "0.5"}
    action = Action(tmp_path / "action", {"detector": model}, QNN, settings=declared)
    action.run("--calibration", "detector", samples)
    assert packed([action], tmp_path / "folder") == plugin_folder(tree, tmp_path / "plugin")
    given = ["test", *action.context, "--model", "detector", model, "--calibration", "detector", samples]
    driver(*given, "--rtol", "0.5", "--atol", "0.5", cwd=tmp_path)


@pytest.mark.ep_qnn
def test_compiles_that_contradict_each_other_are_not_packed(tmp_path: Path) -> None:
    model = save(small_model(), tmp_path / "detector.onnx")
    first = Action(tmp_path / "first", {"detector": model}, QNN)
    other = {"name": "snapdragon-60", "settings": {**QNN["settings"], "optimization": "disable-all"}}
    second = Action(tmp_path / "second", {"encoder": model}, other)
    third = Action(tmp_path / "third", {"detector": model}, QNN)
    source = Action(tmp_path / "source", {"detector": model}, None)
    for action in (first, second, third, source):
        action.run()
    assert "detector.onnx" in packed([source], tmp_path / "alone"), "a source alone is a package too"
    for actions, message in (
        ([first, second], "epctx_ep snapdragon-60: is declared in two ways"),
        ([first, third], "detector.snapdragon-60: the variant stands twice"),
    ):
        given = [part for action in actions for part in action.context]
        done = driver(
            *("package", *given, "--package", "acme_vision", "--version", "1", "--out", tmp_path / "folder"),
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == 2
        assert message in done.stderr
        assert not (tmp_path / "folder").exists()


def test_a_toolchain_without_the_driver_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", str(DRIVER), f"--site={tmp_path}", "--", "machine", "--ep", "qnn"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert "hatch_epctx is in no site-packages tree of the toolchain" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "changes",
    [
        {"group": "g", "target": None},
        {"target": {"name": "t", "settings": {"ep": "qnn", "provider-options": [1]}}},
        {"models": [{"name": "m", "settings": {}}] * 2},
        {"models": [{"name": "..", "settings": {}}]},
    ],
)
def test_a_configuration_of_another_form_is_refused(changes: dict[str, Any]) -> None:
    whole = {
        "format": "epctx-bazel/1",
        "cacheable": True,
        "group": "",
        "models": [{"name": "m", "settings": {}}],
        "target": {"name": "t", "settings": {"ep": "qnn"}},
    }
    assert read_config(whole, "c") == whole
    with pytest.raises(ConfigError, match="is no configuration of an action"):
        read_config({**whole, **changes}, "c")


def test_external_data_cannot_take_the_models_place(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"")
    config = {"models": [{"name": "m", "settings": {}}], "target": None, "group": ""}
    inputs = ActionInputs(models={"m": model}, data={("m", "model.onnx"): model})
    with pytest.raises(ConfigError, match="where the model is put"):
        table_of(config, inputs, tmp_path / "root")


# ---- wheels without compiles: what the rule's attributes may hold

ATTRIBUTES: dict[str, Any] = {
    **dict.fromkeys(("author", "author_email", "description_content_type", "homepage", "license"), ""),
    **dict.fromkeys(("python_requires", "summary"), ""),
    **dict.fromkeys(("classifiers", "license_files", "requires"), ()),
    "compression": "stored",
    "distinfo": {},
    "distribution": "acme",
    "extra_requires": {},
    "package": "acme",
    "project_urls": {},
    "version": "1.0",
}
WHEEL = "acme-1.0-py3-none-any.whl"


def plain_wheel(
    folder: Path, attributes: dict[str, Any], *more: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Start the driver with all arguments in a file, as the rule does where there are many."""
    (folder / "wheel.json").write_text(json.dumps({**ATTRIBUTES, **attributes}))
    (folder / "file.py").write_text("")
    lines = ["wheel", "--config", "wheel.json", *more, "--out", WHEEL]
    (folder / "arguments").write_text("".join(f"{line}\n" for line in lines))
    return driver("@arguments", cwd=folder, check=check)


def test_a_file_may_be_called_like_a_file_of_arguments(tmp_path: Path) -> None:
    (tmp_path / "types").mkdir()
    (tmp_path / "types" / "x.js").write_text("--out\nelsewhere\n")
    plain_wheel(tmp_path, {}, "--file", "@types/x.js", "file.py")
    assert "@types/x.js" in zipfile.ZipFile(tmp_path / WHEEL).namelist()
    assert not (tmp_path / "elsewhere").exists()
    missing = driver("wheel", "@none", cwd=tmp_path, check=False)
    assert missing.returncode == 2
    assert "the arguments cannot be read" in missing.stderr


@pytest.mark.parametrize(
    ("attributes", "place"),
    [
        ({"project_urls": {"Home\nRequires-Dist: evil": "https://example.com"}}, "project_urls"),
        ({"license_files": ["LICENSE\nRequires-Dist: evil"]}, "license_files"),
        ({"extra_requires": {"x\nRequires-Dist: evil": []}}, "extra_requires"),
        ({"extra_requires": {"x": ["numpy >"]}}, "extra_requires"),
        ({"requires": ["not a requirement"]}, "requires"),
        ({"summary": "one\u2028two"}, "summary"),
    ],
)
def test_attributes_that_would_spoil_the_metadata(attributes: dict[str, Any], place: str, tmp_path: Path) -> None:
    done = plain_wheel(tmp_path, attributes, check=False)
    assert done.returncode == 2
    assert f"error: {place}: " in done.stderr
    assert not (tmp_path / WHEEL).exists()


def test_a_description_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "readme.md").write_bytes(b"caf\xe9")
    done = plain_wheel(tmp_path, {}, "--description", "readme.md", check=False)
    assert done.returncode == 2
    assert "description_file: is no UTF-8 text" in done.stderr


# ---- libraries of custom operators, and names that look like options


@pytest.mark.ep_openvino
def test_libraries_of_custom_operators_are_those_of_the_plugin(factory: Factory, tmp_path: Path, machine: Path) -> None:
    """A module of the toolchain and a file, which lies elsewhere: compile, package, source and test."""
    tree = factory.project(OPENVINO_TARGET)
    save(custom_model(), tree.root / "models" / "detector.onnx")
    (tree.root / "libs").mkdir()
    shutil.copyfile(LIBRARY, tree.root / "libs" / "parts.so")
    project = (tree.root / "pyproject.toml").read_text()
    settings = 'custom-ops = ["libs/parts.so"]\nship-source = true'
    source = 'source = "models/detector.onnx"'
    (tree.root / "pyproject.toml").write_text(project.replace(source, f"{source}\n{settings}"))
    model = tree.root / "models" / "detector.onnx"
    (tmp_path / "elsewhere").mkdir()
    library = tmp_path / "elsewhere" / "parts.so"
    library.symlink_to(tree.root / "libs" / "parts.so")
    given = ("--custom-ops", "detector", library)
    compiled = Action(tmp_path / "compiled", {"detector": model}, OPENVINO)
    compiled.run("--machine", machine, *given)
    shipped = Action(tmp_path / "shipped", {"detector": model}, None)
    shipped.run(*given)
    folder = packed([compiled, shipped], tmp_path / "folder")
    assert folder == plugin_folder(tree, tmp_path / "plugin")
    assert b'"file": "parts.so"' in folder[MANIFEST_NAME]
    assert str(tmp_path).encode() not in (compiled.folder / "out.json").read_bytes()
    test = ["test", *compiled.context, "--model", "detector", model, "--rtol", "0.05", "--atol", "0.01"]
    assert "passed" in driver(*test, *given, cwd=tmp_path).stderr
    other = tmp_path / "other" / "parts.so"
    other.parent.mkdir()
    other.write_bytes(library.read_bytes() + b"\0")
    foreign = driver(*test, "--custom-ops", "detector", other, cwd=tmp_path, check=False)
    assert foreign.returncode == 8
    assert "the libraries of custom operators are not those of the compile" in foreign.stderr

    module = Action(
        tmp_path / "module", {"detector": model}, OPENVINO, settings={"custom-ops": ["onnxruntime_extensions"]}
    )
    module.run("--machine", machine)
    of_module = packed([module], tmp_path / "of-module")
    assert b'"module": "onnxruntime_extensions"' in of_module[MANIFEST_NAME]
    without = Action(tmp_path / "without", {"detector": model}, OPENVINO).run("--machine", machine, check=False)
    assert without.returncode == 3
    assert "Name the library that brings the operator in the model's 'custom-ops'" in without.stderr


def test_the_order_of_libraries_and_their_names(tmp_path: Path) -> None:
    files = [tmp_path / "b" / "one.so", tmp_path / "a" / "one.so"]
    for path in files:
        path.parent.mkdir()
        path.write_bytes(str(path).encode())
    config = {"models": [{"name": "m", "settings": {"custom-ops": ["a_module"]}}], "target": None, "group": ""}
    inputs = ActionInputs(models={"m": files[0]}, custom_ops={"m": files})
    table = table_of(config, inputs, tmp_path / "root")
    named = table["models"]["m"]["custom-ops"]
    assert named == ["a_module", "custom-ops/m/0/one.so", "custom-ops/m/1/one.so"]
    assert [(tmp_path / "root" / name).resolve() for name in named[1:]] == files
    wrong = replace(inputs, custom_ops={"m": [tmp_path / "con.so"]})
    with pytest.raises(ConfigError, match="epctx_model m: custom_ops"):
        table_of(config, wrong, tmp_path / "other")


@pytest.mark.ep_qnn
def test_a_manifest_of_a_cache_makes_no_file_elsewhere(tmp_path: Path) -> None:
    action = Action(tmp_path / "action", {"detector": save(small_model(), tmp_path / "detector.onnx")}, QNN)
    action.run()
    right = action.manifest
    pack = ["package", *action.context, "--package", "acme_vision", "--version", "1", "--out", tmp_path / "folder"]
    for forged in ({"detector": ["../../x.so"]}, {"detector": [1]}, ["x"]):
        (action.folder / "out.json").write_text(json.dumps({**right, "custom_ops": forged}))
        done = driver(*pack, cwd=tmp_path, check=False)
        assert (done.returncode, "is no manifest of a compile" in done.stderr) == (8, True)
    (action.folder / "out.json").write_text(json.dumps({**right, "custom_ops": {"../../../stray": ["x.so"]}}))
    driver(*pack, cwd=tmp_path, check=False)
    assert not list(tmp_path.rglob("stray*"))


@pytest.mark.ep_qnn
@pytest.mark.parametrize("name", ["-w.bin", "--out", "--", "@w.bin", "--data"])
def test_a_file_may_be_called_like_an_option(factory: Factory, tmp_path: Path, name: str) -> None:
    """As external data, as the model itself, and where all arguments stand in a file."""
    tree = factory.project(QNN_TARGET)
    save(small_model(weights=name), tree.root / "models" / "detector.onnx")
    action = Action(tmp_path / "action", {"detector": Path("-m.onnx")}, QNN)
    shutil.copyfile(tree.root / "models" / "detector.onnx", action.folder / "-m.onnx")
    shutil.copyfile(tree.root / "models" / name, action.folder / name)
    action.run("--data", "detector", name, name)
    assert packed([action], tmp_path / "folder") == plugin_folder(tree, tmp_path / "plugin")


def test_values_that_are_no_numbers_are_said(tmp_path: Path) -> None:
    done = driver("test", "--rtol", "-x", "--atol", "1", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "argument --rtol: found '-x'; expected a number" in done.stderr
    helped = driver("machine", "--help", cwd=tmp_path)
    assert "--device" in helped.stdout


def test_a_wheel_may_hold_files_called_like_options(tmp_path: Path) -> None:
    plain_wheel(tmp_path, {}, "--file", "--out", "file.py", "--file", "-x.py", "file.py")
    assert {"--out", "-x.py"} <= set(zipfile.ZipFile(tmp_path / WHEEL).namelist())
