"""The look-up on older releases of ONNX Runtime: what it needs is looked for and never assumed.

Each release is installed by pip into a folder of its own (EPCTX_TEST_VENVS names one that is kept between runs) and put
before the environment's on the import path; the EPs and the packages that are opened are the newest. The oldest one
runs by default, those between with --slow; the newest is the environment's own.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from runtime_support import CPU, OPENVINO, QNN, edit
from support import OPENVINO_TARGET, QNN_TARGET, REPOSITORY, Factory, epctx

RELEASES = [
    "1.24",
    pytest.param("1.28", marks=pytest.mark.slow),
    pytest.param("1.31", marks=pytest.mark.slow),
    "newest",
]
"""1.24 is the first that the EPs' plugin packages of today load into."""

CALLBACKS = {"1.24": False, "1.28": False, "1.31": True, "newest": True}
"""Whether SessionOptions.set_ep_context_data_read_func is there."""
PACKAGES = {"1.24": False, "1.28": False, "1.31": False, "newest": True}
"""Whether ModelPackageContext is there."""


@cache
def installed(release: str) -> Path | None:
    """A folder with this release of onnxruntime; None for the environment's own."""
    if release == "newest":
        return None
    base = Path(os.environ.get("EPCTX_TEST_VENVS") or mkdtemp(prefix="epctx-test-ort-"))
    folder = base / f"onnxruntime-{release}"
    if not (folder / "onnxruntime").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        done = subprocess.run(
            [*command, f"onnxruntime~={release}.0"], capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"onnxruntime {release} cannot be installed here: {done.stderr[-300:]}")
    return folder


CHILD = """
import json, sys
import numpy as np
import onnxruntime as ort
from hatch_epctx import runtime
from hatch_epctx.errors import LookupFailure

folder, archive = sys.argv[1:]
feed = {"x": np.linspace(-1, 1, 3 * 8 * 8, dtype=np.float32).reshape(1, 3, 8, 8)}
expected = ort.InferenceSession(folder + "/detector.onnx", providers=["CPUExecutionProvider"]).run(None, feed)[0]
found = {"version": ort.__version__, "packages": hasattr(ort, "ModelPackageContext")}

def tell(name, make):
    try:
        session = make()
        choice = runtime.explain(session)
        error = float(np.abs(session.run(None, feed)[0] - expected).max())
        found[name] = [session.get_providers()[0], choice.variant, error, choice.note, choice.fallback]
    except LookupFailure as failure:
        found[name] = [failure.reason, failure.detail]

package = runtime.open(folder)
for ep in ("openvino", "qnn", "cpu"):
    tell(ep, lambda: package.session("detector", ep=ep, fallback="error"))
    tell(ep + " bytes", lambda: package.session("detector", ep=ep, fallback="error", as_bytes=True))
tell("default", lambda: package.session("detector"))
tell("policy", lambda: package.session("detector", prefer=ort.OrtExecutionProviderDevicePolicy.MAX_EFFICIENCY))
tell("archive", lambda: runtime.open(archive).session("detector", fallback="error"))
tell("callbacks", lambda: package.session("detector", ep="openvino", data="callbacks", fallback="error"))
tell("refused", lambda: package.session("detector", variant="other", fallback="error"))
tell("fallback", lambda: package.session("detector", variant="other"))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("versions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "store"))
        patch.setenv("PYTHONPATH", "")
        tree = Factory(folder).project(f"ship-source = true\n{OPENVINO_TARGET}{QNN_TARGET}")
        epctx("build", "--out", str(folder / "p"), cwd=tree.root)

    def change(document: Any) -> None:
        """One variant more, of another version of OpenVINO."""
        variants = document["components"]["detector"]["variants"]
        other = copy.deepcopy(variants["intel-cpu"])
        other["compatibility_string"] = other["compatibility_string"].replace("ov=20", "ov=19")
        other["executor_info"]["epctx"]["compatibility"] = other["compatibility_string"]
        variants["other"] = other

    edit(folder / "p", change)
    with zipfile.ZipFile(folder / "app.zip", "w") as archive:
        for path in (folder / "p").iterdir():
            archive.write(path, f"acme_vision/_epctx/{path.name}")
    return folder / "p", folder / "app.zip"


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
@pytest.mark.parametrize("release", RELEASES)
def test_the_look_up_on_a_release(package: tuple[Path, Path], release: str) -> None:
    folder = installed(release)
    path = os.pathsep.join([*([str(folder)] if folder else []), str(REPOSITORY)])
    environment = {**os.environ, "PYTHONPATH": path, "ORT_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", CHILD, *map(str, package)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert release == "newest" or found["version"].startswith(f"{release}.")
    limits = {OPENVINO: 1e-5, QNN: 5e-3, CPU: 0.0}
    wanted = {"openvino": OPENVINO, "qnn": QNN, "cpu": CPU}
    wanted |= {f"{ep} bytes": name for ep, name in wanted.items()}
    for name, ep in {**wanted, "default": OPENVINO, "policy": OPENVINO, "archive": OPENVINO, "fallback": CPU}.items():
        assert found[name][0] == ep, (name, found[name])
        assert found[name][2] <= limits[ep], (name, found[name])
    assert "OpenVINO 19" in found["refused"][1]
    assert found["fallback"][4]
    words = (
        "does not support the registered" if CALLBACKS[release] else f"onnxruntime {found['version']} has no EPContext"
    )
    assert words in found["callbacks"][1]
    assert found["packages"] == PACKAGES[release]
