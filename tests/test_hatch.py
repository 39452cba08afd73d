"""The build hook through real front ends, from the source tree to sessions of the installed wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from frontend_support import (
    NAMES,
    SYSTEM_ENVIRONMENT,
    Workers,
    environment_like_this_one,
    front_end,
    package_files,
    run_front_end,
)
from support import OPENVINO_TARGET, QNN_TARGET, REPOSITORY, STUB_TARGET, Factory, Tree, epctx, save, small_model

from hatch_epctx.digest import content_name, digest_bytes
from hatch_epctx.wheelfile import check_wheel

SHIPPED = "ship-source = true\n"
MODEL = '[tool.epctx.models.detector]\nsource = "models/detector.onnx"\n'

TOLERANCE = {
    # Told to compute in f32: the same sums in another order. Outputs are of the order of 1.
    "intel-cpu": 1e-5,
    # The HTP computes in f16, 11 significant bits; two layers of it.
    "snapdragon-60": 1e-2,
    "snapdragon-88": 1e-2,
    # The same model on the same EP.
    "source": 0.0,
}
"""Largest absolute difference to the CPU EP."""


def checkout(tree: Tree, to: Path) -> Tree:
    """A fresh checkout of the same project in another place."""
    shutil.copytree(tree.root, to, ignore=shutil.ignore_patterns("dist", "__pycache__"))
    return Tree(to)


def stub_project(factory: Factory, more: str = "", **settings: Any) -> Tree:
    return factory.project(f"{STUB_TARGET}{more}", **settings)


def manifest_of(wheel: Path) -> Any:
    with zipfile.ZipFile(wheel) as archive:
        return json.loads(archive.read("acme_vision/_epctx/manifest.json"))


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_every_front_end_gives_the_same_wheel_and_one_compiles(factory: Factory, tmp_path: Path) -> None:
    """Each build happens in a fresh checkout elsewhere; only the first one has anything to compile."""
    tree = factory.project(OPENVINO_TARGET + QNN_TARGET, name="first")
    tree.write(f"{MODEL}{SHIPPED}{OPENVINO_TARGET}{QNN_TARGET}{SYSTEM_ENVIRONMENT}")
    tree.model("detector", weights="detector.data")
    workers = Workers(tmp_path)
    wheels: dict[str, bytes] = {}
    for name in NAMES:
        elsewhere = checkout(tree, tmp_path / name / "checkout of another name")
        out = tmp_path / name / "dist"
        built = front_end(name, elsewhere.root, out=out, env=workers.env)
        started = workers.new()
        if not wheels:
            assert started.count("compile") == 3
            assert set(started) == {"scan", "probe", "compile", "load", "source"}
            assert "epctx: detector.intel-cpu: compiled" in built.output
        else:
            assert started == [], name
            assert "epctx: detector.intel-cpu: hit" in built.output
        wheels[name] = built.wheel.read_bytes()
        for sdist in built.sdists:
            check_sources(sdist)
        assert bool(built.sdists) is (name != "pip")
        assert not list(elsewhere.root.rglob("_epctx")), "something was written into the source tree"
    assert len(set(wheels.values())) == 1
    check_payload(built.wheel, tree)


def check_sources(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == {
        "PKG-INFO",
        "acme_vision/__init__.py",
        "models/detector.data",
        "models/detector.onnx",
        "pyproject.toml",
    }


def check_payload(wheel: Path, tree: Tree) -> None:
    """The wheel holds exactly what its manifest names, under the names that the contents have."""
    manifest = manifest_of(wheel)
    variants = manifest["components"]["detector"]["variants"]
    assert list(variants) == ["intel-cpu", "snapdragon-60", "snapdragon-88", "source"]
    artifacts = {a["path"]: a for v in variants.values() for a in v["executor_info"]["epctx"]["artifacts"]}
    assert package_files(wheel) == {"manifest.json", *artifacts}
    with zipfile.ZipFile(wheel) as archive:
        for path, artifact in artifacts.items():
            data = archive.read(f"acme_vision/_epctx/{path}")
            assert (digest_bytes(data), len(data)) == (artifact["sha256"], artifact["size"])
            if artifact["role"] != "model":
                assert path == content_name(artifact["sha256"])
        packed = archive.read("acme_vision/_epctx/detector.onnx")
    assert b"detector.data" not in packed, "the shipped source refers to weights by their content"
    weights = digest_bytes((tree.root / "models" / "detector.data").read_bytes())
    assert content_name(weights) in artifacts


@pytest.mark.ep_openvino
def test_isolated_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a user's machine: the front end installs the hook and the EP into an environment of its own."""
    monkeypatch.delenv("PYTHONPATH")
    links = tmp_path / "links"
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(links), str(REPOSITORY)]
    run_front_end(command, tmp_path, out=links)
    tree = Factory(tmp_path).project("")
    tree.write(f"{MODEL}{OPENVINO_TARGET}")
    pyproject = tree.root / "pyproject.toml"
    pyproject.write_text(pyproject.read_text().replace("hatch-epctx[build]", "hatch-epctx[openvino]"))
    out = tmp_path / "dist"
    command = [sys.executable, "-m", "uv", "build", "--wheel", "--find-links", str(links), "--python", sys.executable]
    # Not uv's copy of another build of this version.
    command += ["--refresh-package", "hatch-epctx", "-o", str(out)]
    built = run_front_end(command, tree.root, out=out, env={"PYTHONPATH": ""})
    assert "epctx: detector.intel-cpu: compiled" in built.output
    assert len(package_files(built.wheel)) == 3


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_case_35_the_installed_and_moved_wheel_agrees_with_the_cpu_ep(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project("")
    tree.write(f"{MODEL}{SHIPPED}{OPENVINO_TARGET}{QNN_TARGET}")
    tree.model("detector", weights="detector.data")
    built = front_end("pip", tree.root, out=tmp_path / "dist")
    reference = save(small_model(), tmp_path / "reference.onnx")
    shutil.rmtree(tree.root)
    site = install(built.wheel, tmp_path / "site")
    # Neither the place of installation nor the current folder is known to anything in the wheel.
    moved = tmp_path / "another place" / "deeper"
    moved.parent.mkdir()
    site.rename(moved)
    shutil.rmtree(Path(os.environ["EPCTX_CACHE_DIR"]))
    elsewhere = tmp_path / "cwd"
    elsewhere.mkdir()
    found = compare(moved, reference, cwd=elsewhere)
    assert Path(found["folder"]) == moved / "acme_vision" / "_epctx"
    differences = found["differences"]
    assert differences["lookup"].keys() == TOLERANCE.keys()
    # ONNX Runtime picks by EP, and the first of two variants that are equally good to it.
    assert differences["native"].keys() == TOLERANCE.keys() - {"snapdragon-88"}
    for way in differences.values():
        for variant, difference in way.items():
            assert difference <= TOLERANCE[variant], (variant, difference)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.ep_qnn
def test_onnx_runtime_opens_the_one_selected_target(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project("")
    tree.write(f"{MODEL}{QNN_TARGET}")
    built = front_end("pip", tree.root, out=tmp_path / "dist", env={"EPCTX_TARGETS": "snapdragon-88"})
    found = compare(install(built.wheel, tmp_path / "site"), tree.root / "models" / "detector.onnx", cwd=tmp_path)
    assert found["differences"]["native"].keys() == {"snapdragon-88"}
    assert found["differences"]["native"]["snapdragon-88"] <= TOLERANCE["snapdragon-88"]


def install(wheel: Path, site: Path) -> Path:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(command, check=True, timeout=300)
    return site


def compare(site: Path, source: Path, *, cwd: Path) -> Any:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(REPOSITORY)])}
    script = Path(__file__).with_name("compare_sessions.py")
    command = [sys.executable, str(script), "acme_vision", "detector", str(source)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.ep_openvino
def test_case_31_an_editable_install_follows_epctx_build(factory: Factory, tmp_path: Path) -> None:
    """Source modules win; the artifacts lie in the cache; `epctx build` refreshes them, importing does not."""
    tree = factory.project("")
    tree.write(f"{MODEL}{OPENVINO_TARGET}")
    python = environment_like_this_one(tmp_path / "environment")
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    command = [*pip, "install", "-v", "--no-deps", "--no-build-isolation", "-e", "."]
    built = run_front_end(command, tree.root, out=tmp_path)
    assert "epctx: detector.intel-cpu: compiled" in built.output

    def opened() -> list[str]:
        code = (
            "import acme_vision, hatch_epctx.runtime as runtime\n"
            "package = runtime.open('acme_vision')\n"
            "print(acme_vision.__file__)\nprint(package.path)\nprint(package.version)\n"
            "print(package.session('detector', fallback='error').get_providers()[0])\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = [python, "-c", code]
        run = subprocess.run(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return run.stdout.splitlines()

    module, folder, *rest = opened()
    assert Path(module) == tree.root / "acme_vision" / "__init__.py"
    assert Path(folder).is_relative_to(os.environ["EPCTX_CACHE_DIR"])
    assert rest == ["1.2.3", "OpenVINOExecutionProvider"]
    tree.model("detector", seed=7)
    assert opened()[1] == folder, "nothing is rebuilt at import"
    assert "an editable install of acme_vision finds this 1 variant now" in epctx("build", "-C", tree.root).out
    second = opened()[1]
    assert second != folder
    assert Path(folder).is_dir(), "a process that has it open goes on"
    epctx("build", "-C", tree.root)
    assert opened()[1] == second, "nothing changed"
    tree.model("detector", seed=8)
    epctx("build", "-C", tree.root)
    assert opened()[1] not in (folder, second)
    assert not Path(folder).exists()
    assert Path(second).is_dir()
    assert not list(tree.root.rglob("_epctx"))
    pointer = Path(python).parent.parent.glob("**/__editable__.acme_vision.epctx.json")
    assert len(list(pointer)) == 1
    run_front_end([*pip, "uninstall", "-y", "acme-vision"], tmp_path, out=tmp_path)
    assert not list(Path(python).parent.parent.glob("**/*epctx.json"))


@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_is_a_message_in_every_front_end(name: str, factory: Factory, tmp_path: Path) -> None:
    tree = factory.project('[tool.epctx.targets.laptop]\nep = "QNM"\n' + SYSTEM_ENVIRONMENT)
    out = tmp_path / "dist"
    built = front_end(name, tree.root, out=out, check=False)
    # pip and build have one code of their own for everything that goes wrong below them.
    assert built.code == {"hatch": 2, "uv": 2, "build": 1, "pip": 1}[name]
    assert "epctx: error: tool.epctx.targets.laptop.ep: unknown execution provider 'QNM'" in built.output
    assert "Did you mean 'qnn'?" in built.output
    assert not built.wheels


def test_a_failed_compile_leaves_no_wheel(factory: Factory, tmp_path: Path) -> None:
    options = 'provider-options = { mode = "crash-before" }\n'
    tree = stub_project(factory, f'{options}[tool.epctx.targets.good]\nep = "stub"\n')
    workers = Workers(tmp_path)
    built = front_end("backend", tree.root, out=tmp_path / "dist", env=workers.env, check=False)
    assert built.code == 5
    assert "epctx: detector.good: compiled" in built.output
    assert "epctx: error: detector.stub: the compile failed: the worker ended with exit status 3" in built.output
    assert "See tool.epctx.targets.stub" in built.output
    assert built.wheels == []
    workers.new()
    front_end("backend", tree.root, out=tmp_path / "dist", env=workers.env, check=False)
    assert workers.new() == ["compile"], "what succeeded was kept"


def test_skip_demands_no_model_and_says_so(factory: Factory, tmp_path: Path) -> None:
    tree = stub_project(factory)
    shutil.rmtree(tree.root / "models")
    workers = Workers(tmp_path)
    for value, name in (("1", "pip"), ("true", "backend")):
        built = front_end(name, tree.root, out=tmp_path / name, env={**workers.env, "EPCTX_SKIP": value})
        assert "epctx: warning: EPCTX_SKIP is set: the wheel holds no compiled models" in built.output
        assert package_files(built.wheel) == set()
    assert workers.new() == []
    built = front_end("backend", tree.root, out=tmp_path / "not-skipped", env={"EPCTX_SKIP": "0"}, check=False)
    assert "epctx: error: tool.epctx.models.detector.source: model does not exist" in built.output


def test_offline_takes_hits_only(factory: Factory, tmp_path: Path) -> None:
    tree = stub_project(factory)
    offline = {"EPCTX_OFFLINE": "1"}
    built = front_end("backend", tree.root, out=tmp_path / "one", env=offline, check=False)
    assert built.code == 5
    assert "epctx: error: detector.stub: no usable generation in the store (absent)" in built.output
    assert "EPCTX_OFFLINE is set" in built.output
    front_end("backend", tree.root, out=tmp_path / "two")
    workers = Workers(tmp_path)
    built = front_end("backend", tree.root, out=tmp_path / "three", env={**offline, **workers.env})
    assert workers.new() == []
    assert package_files(built.wheel)


def test_targets_models_jobs_and_log(factory: Factory, tmp_path: Path) -> None:
    other = '[tool.epctx.targets.other]\nep = "stub"\nprovider-options = { level = 2 }\n'
    tree = stub_project(factory, other, models=("detector", "encoder"))

    def build(**env: str) -> tuple[Any, str]:
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        built = front_end("backend", tree.root, out=out, env={f"EPCTX_{key}": value for key, value in env.items()})
        components = manifest_of(built.wheel)["components"]
        return {name: list(component["variants"]) for name, component in components.items()}, built.output

    assert build(TARGETS="oth*", MODELS="detector")[0] == {"detector": ["other"]}
    everything, output = build(JOBS="1")
    assert everything == {"detector": ["stub", "other"], "encoder": ["stub", "other"]}
    lines = [line.strip() for line in output.splitlines() if line.strip().startswith("epctx: ")]
    # With one job, each variant is done before the next one starts.
    done = [line.split(": ")[1] for line in lines if ": hit" in line or ": compiled" in line]
    assert done == ["detector.stub", "detector.other", "encoder.stub", "encoder.other"]
    assert "epctx: " not in build(LOG="warning")[1]
    assert "epctx: store " in build(LOG="debug")[1]


def test_case_32_leavings_in_the_source_tree_do_not_travel(factory: Factory, tmp_path: Path) -> None:
    """Whatever selects them: by default, by `artifacts`, or together with a skipped build."""
    tree = stub_project(factory)
    expected = package_files(front_end("backend", tree.root, out=tmp_path / "clean").wheel)
    leavings = tree.root / "acme_vision" / "_epctx"
    leavings.mkdir()
    for name in ("old.bin", "manifest.json", *expected):
        (leavings / name).write_bytes(b"old")
    for number, selection in enumerate(("", "artifacts = ['acme_vision/_epctx/*']\n", "exclude = ['*.txt']\n")):
        changed = checkout(tree, tmp_path / f"tree{number}")
        pyproject = changed.root / "pyproject.toml"
        text = pyproject.read_text().replace('packages = ["acme_vision"]\n', f'packages = ["acme_vision"]\n{selection}')
        pyproject.write_text(f"{text}[tool.hatch.build.targets.sdist]\n{selection}")
        built = front_end("backend", changed.root, out=tmp_path / f"dist{number}")
        assert package_files(built.wheel) == expected
        assert b"old" not in zipfile.ZipFile(built.wheel).read("acme_vision/_epctx/manifest.json")
        with tarfile.open(built.sdists[0]) as archive:
            assert not [name for name in archive.getnames() if "_epctx" in name]
        assert "warning: acme_vision/_epctx/ in the source tree is no source" in built.output
        assert (changed.root / "acme_vision" / "_epctx" / "old.bin").exists(), "the user's tree stays as it is"
        skipped = front_end("backend", changed.root, out=tmp_path / f"skipped{number}", env={"EPCTX_SKIP": "1"})
        assert package_files(skipped.wheel) == set()


def test_case_34_a_renamed_target_leaves_nothing_behind(factory: Factory, tmp_path: Path) -> None:
    tree = stub_project(factory)
    out = tmp_path / "dist"
    before = package_files(front_end("backend", tree.root, out=out).wheel)
    assert "detector.stub_ctx.onnx" in before
    tree.write(f'{MODEL}[tool.epctx.targets.renamed]\nep = "stub"\n')
    after = package_files(front_end("backend", tree.root, out=out).wheel)
    assert "detector.renamed_ctx.onnx" in after
    assert "detector.stub_ctx.onnx" not in after
    assert {name for name in before if name.endswith(".bin")} == {name for name in after if name.endswith(".bin")}


def test_the_platform_is_the_wheels_tag(factory: Factory, tmp_path: Path) -> None:
    platform = "win_arm64"
    tree = stub_project(factory, f'[tool.epctx.wheel]\nplatform = "{platform}"\n')
    out = tmp_path / "dist"
    wheel = front_end("backend", tree.root, out=out).wheel
    assert wheel.name == f"acme_vision-1.2.3-py3-none-{platform}.whl"
    assert check_wheel(wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        headers = archive.read("acme_vision-1.2.3.dist-info/WHEEL").decode()
    assert f"Tag: py3-none-{platform}\n" in headers
    assert "Root-Is-Purelib: false\n" in headers


def test_nothing_but_skipped_targets_is_a_warning(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project('[tool.epctx.targets.amd]\nep = "vitisai"\nrequired = false\n')
    built = front_end("backend", tree.root, out=tmp_path / "dist")
    assert "epctx: detector.amd: skipped: " in built.output
    assert "epctx: warning: every variant was skipped: the wheel holds no compiled models" in built.output
    assert package_files(built.wheel) == set()


def test_without_the_build_extra_the_message_names_it(factory: Factory, tmp_path: Path) -> None:
    tree = stub_project(factory)
    blocker = tmp_path / "blocker"
    blocker.mkdir()
    (blocker / "sitecustomize.py").write_text("import sys\nsys.modules['pydantic'] = None\n", encoding="utf-8")
    path = os.pathsep.join([str(blocker), str(REPOSITORY)])
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path / "dist")]
    built = run_front_end(command, tree.root, out=tmp_path / "dist", env={"PYTHONPATH": path}, check=False)
    assert built.code == 4
    assert "epctx: error: the module 'pydantic' is not installed" in built.output
    assert 'pip install "hatch-epctx[build]"' in built.output


def test_an_sdist_needs_no_model_but_right_settings(factory: Factory, tmp_path: Path) -> None:
    tree = stub_project(factory)
    shutil.rmtree(tree.root / "models")
    workers = Workers(tmp_path)
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path / "dist")]
    built = run_front_end(command, tree.root, out=tmp_path / "dist", env=workers.env)
    assert len(built.sdists) == 1
    assert workers.new() == []
    tree.write(f"{MODEL}{STUB_TARGET}timout = 3\n")
    built = run_front_end(command, tree.root, out=tmp_path / "dist", check=False)
    assert "epctx: error: tool.epctx.targets.stub: unknown key 'timout'" in built.output
