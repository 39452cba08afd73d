"""Package folders made of really compiled models, for the tests of manifest, folder and look-up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from support import REPOSITORY, save, small_model

from hatch_epctx.digest import content_name, digest_file
from hatch_epctx.folder import ContentFile, FolderPlan, ModelContent, VariantContent, write_folder
from hatch_epctx.manifest import loading_options

OPENVINO = "OpenVINOExecutionProvider"
QNN = "QNNExecutionProvider"
CPU = "CPUExecutionProvider"
MODULES = {OPENVINO: "onnxruntime_ep_openvino", QNN: "onnxruntime_qnn"}
F32 = '{"CPU":{"INFERENCE_PRECISION_HINT":"f32"}}'

_COMPILE = """
import importlib, json, sys
import onnx, onnxruntime as ort
from onnxruntime.capi import _pybind_state as state
from hatch_epctx.digest import content_name, digest_file
from pathlib import Path

module, ep, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
ort.register_execution_provider_library(ep, importlib.import_module(module).get_library_path())
devices = [device for device in ort.get_ep_devices() if device.ep_name == ep][:1]
session_options = ort.SessionOptions()
session_options.add_provider_for_devices(devices, options)
ort.ModelCompiler(
    session_options,
    "model.onnx",
    embed_compiled_data_into_model=False,
    flags=ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
    graph_optimization_level=ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
).compile_to_file("model_ctx.onnx")
compatibility = state.get_compatibility_info_from_model("model_ctx.onnx", ep)
model = onnx.load("model_ctx.onnx")
names = []
for node in model.graph.node:
    for attribute in node.attribute:
        if attribute.name == "ep_cache_context" and attribute.s:
            old = Path(attribute.s.decode())
            name = content_name(digest_file(old))
            old.rename(name)
            attribute.s = name.encode()
            names.append(name)
onnx.save(model, "model_ctx.onnx")
Path("facts.json").write_text(json.dumps({"compatibility": compatibility, "binaries": names}))
"""


def run_python(code: str, *arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process that sees this repository."""
    path = os.pathsep.join([str(REPOSITORY), env.pop("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "ORT_DISABLE_TELEMETRY": "1", **env}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)


def content(path: Path, role: str) -> ContentFile:
    return ContentFile(path=path, size=path.stat().st_size, digest=digest_file(path), role=role)


@cache
def source(seed: int = 1) -> Path:
    """The source model of this seed."""
    return save(small_model(seed=seed), Path(mkdtemp(prefix="epctx-test-")) / "model.onnx")


@cache
def compiled(ep: str, seed: int = 1, options: str = "{}") -> VariantContent:
    """The source model of this seed, compiled once per test run in a process of its own."""
    folder = Path(mkdtemp(prefix="epctx-test-"))
    shutil.copy(source(seed), folder)
    done = run_python(_COMPILE, MODULES[ep], ep, options, cwd=folder)
    assert done.returncode == 0, done.stderr
    facts = json.loads((folder / "facts.json").read_text())
    binaries = tuple(content(folder / name, "context") for name in facts["binaries"])
    return VariantContent(
        name="replaced",
        ep=ep,
        files=(content(folder / "model_ctx.onnx", "model"), *binaries),
        identity=digest_file(source(seed)),
        compatibility=facts["compatibility"],
        session_options=loading_options("disable-all", {}),
        options={"provider": json.loads(options)},
    )


def openvino(name: str = "intel-cpu", **changes: Any) -> VariantContent:
    runtime = {"distribution": "onnxruntime-ep-openvino", "version": "1.8.1"}
    base = compiled(OPENVINO, changes.pop("seed", 1))
    given = {"device": "cpu", "provider_options": {"load_config": F32}, "runtime": runtime, **changes}
    return replace(base, name=name, **given)


def qnn(name: str = "snapdragon-60", *, soc: str = "60", **changes: Any) -> VariantContent:
    base = compiled(QNN, changes.pop("seed", 1), json.dumps({"backend_type": "htp", "soc_model": soc}))
    runtime = {"distribution": "onnxruntime-qnn", "version": "2.7.0"}
    given = {
        "device": "npu",
        "ort_device": False,
        "ort_compatibility": False,
        "provider_options": {"backend_type": "htp"},
        "runtime": runtime,
        **changes,
    }
    return replace(base, name=name, **given)


def cpu(name: str = "source", **changes: Any) -> VariantContent:
    files = (content(source(changes.pop("seed", 1)), "model"),)
    base = VariantContent(name=name, ep=CPU, kind="source", files=files, session_options=loading_options("all", {}))
    return replace(base, **changes)


def write(out: Path, *variants: VariantContent, model: str = "detector", name: str = "acme_vision") -> FolderPlan:
    """A package folder with one model."""
    components = [ModelContent(name=model, variants=variants)]
    return write_folder(out, package_name=name, package_version="1.2.3", models=components)


def install(site: Path, *variants: VariantContent, package: str = "acme_vision") -> Path:
    """An installed import package with its folder, as a wheel's installation leaves it."""
    folder = site.joinpath(*package.split("."))
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('the look-up must not import the package')\n")
    write(folder / "_epctx", *variants, name=package)
    return folder


def edit(folder: Path, change: Any) -> None:
    """Change the manifest in place: `change` gets the parsed document."""
    file = folder / "manifest.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    change(document)
    file.write_text(json.dumps(document), encoding="utf-8")


def variant_of(document: Any, variant: str, model: str = "detector") -> Any:
    return document["components"][model]["variants"][variant]


@dataclass(frozen=True)
class Site:
    """An import path of its own: a child that sees these packages and nothing else."""

    folder: Path

    @classmethod
    def make(cls, folder: Path, *packages: str) -> Site:
        """Link installed packages, and what onnxruntime needs, into `folder`."""
        folder.mkdir(parents=True)
        import onnxruntime

        installed = Path(onnxruntime.__file__).parent.parent
        needed = ("numpy", "numpy.libs", "flatbuffers", "google", "packaging", "sympy", "mpmath")
        for name in (*packages, *needed):
            if (installed / name).exists() and not (folder / name).exists():
                (folder / name).symlink_to(installed / name)
        return cls(folder)

    def run(self, code: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run code in a child without site-packages."""
        head = f"import sys; sys.path[:0] = {[str(self.folder), str(REPOSITORY)]!r}\n"
        command = [sys.executable, "-I", "-S", "-c", head + code, *arguments]
        environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "1", **env}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


__all__ = [
    "CPU",
    "F32",
    "OPENVINO",
    "QNN",
    "Site",
    "content",
    "content_name",
    "cpu",
    "edit",
    "install",
    "openvino",
    "qnn",
    "run_python",
    "source",
    "variant_of",
    "write",
]
