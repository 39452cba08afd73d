"""Forms in which an application ships: a folder, a zip, bytes, a frozen program; read-only, from any cwd."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
import zipapp
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from runtime_support import CPU, OPENVINO, QNN, cpu, install, openvino, qnn, run_python, source, write

from hatch_epctx import runtime
from hatch_epctx.errors import LookupFailure, VerificationError
from hatch_epctx.runtime import archives, verify
from hatch_epctx.runtime.places import private_folder

if TYPE_CHECKING:
    from pathlib import Path

ort: Any = pytest.importorskip("onnxruntime")

INPUT = {"x": np.linspace(-1, 1, 3 * 8 * 8, dtype=np.float32).reshape(1, 3, 8, 8)}


def expected() -> Any:
    return ort.InferenceSession(str(source()), providers=[CPU]).run(None, INPUT)[0]


def check(session: Any, ep: str) -> None:
    assert session.get_providers()[0] == ep
    np.testing.assert_allclose(session.run(None, INPUT)[0], expected(), rtol=5e-3, atol=5e-3)


def pack(folder: Path, archive: Path, *, compressed: bool = True) -> Path:
    """The tree of `folder` as a zip file."""
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(archive, "w", method) as target:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                target.write(path, path.relative_to(folder).as_posix())
    return archive


def unpacked() -> list[str]:
    base = private_folder("unpacked")
    return sorted(path.name for path in base.iterdir() if path.is_dir()) if base is not None and base.exists() else []


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    """An import package inside a zip file: OpenVINO, QNN and the source."""
    install(tmp_path / "site", openvino(), qnn(), cpu())
    return pack(tmp_path / "site", tmp_path / "app.zip")


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_a_package_inside_a_zip_by_name_and_by_path(zipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(zipped))
    package = runtime.open("acme_vision")
    assert package.path == zipped / "acme_vision" / "_epctx"
    assert unpacked() == []
    check(package.session("detector"), OPENVINO)
    assert len(unpacked()) == 1  # what is not used stays packed
    check(package.session("detector", ep="qnn"), QNN)
    check(package.session("detector", ep="cpu"), CPU)
    assert len(unpacked()) == 3
    for form in (zipped, zipped / "acme_vision", zipped / "acme_vision" / "_epctx" / "manifest.json"):
        check(runtime.open(form).session("detector"), OPENVINO)
    assert len(unpacked()) == 3
    with pytest.raises(LookupFailure, match="no such folder"):
        runtime.open(zipped / "elsewhere")


@pytest.mark.ep_openvino
def test_what_was_unpacked_is_private_read_only_and_used_again(zipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = runtime.open(zipped)
    first = package.lookup("detector")
    base = private_folder("unpacked")
    assert base is not None
    assert first.path.parent.parent == base
    assert {stat.S_IMODE(path.stat().st_mode) for path in first.path.parent.iterdir()} == {0o444}
    assert stat.S_IMODE(base.stat().st_mode) == 0o700
    before = first.path.stat().st_ino
    monkeypatch.setattr(archives.Archive, "extract", lambda *_: pytest.fail("unpacked twice"))
    assert package.lookup("detector").path.stat().st_ino == before


@pytest.mark.ep_openvino
def test_a_damaged_unpacked_file_is_unpacked_anew(zipped: Path) -> None:
    package = runtime.open(zipped)
    path = package.lookup("detector").path
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    check(package.session("detector"), OPENVINO)
    (path.parent / path.name).unlink()
    check(package.session("detector"), OPENVINO)
    assert len(unpacked()) == 1


@pytest.mark.ep_openvino
@pytest.mark.parametrize("how", ["flipped", "other-size", "absent", "truncated"])
def test_a_damaged_archive_is_an_error(tmp_path: Path, zipped: Path, how: str) -> None:
    folder = tmp_path / "site" / "acme_vision" / "_epctx"
    (file,) = [path for path in folder.glob("*.bin") if path.stat().st_size == _openvino_size()]
    data = file.read_bytes()
    if how == "absent":
        file.unlink()
    else:
        file.write_bytes({"flipped": data[:-1] + b"?", "other-size": data + b"?"}.get(how, data))
    archive = pack(tmp_path / "site", tmp_path / "damaged.zip", compressed=False)
    if how == "truncated":
        whole = archive.read_bytes()
        at = whole.index(data)
        archive.write_bytes(whole[:at] + b"?" + whole[at + 1 :])  # the zip's own CRC is wrong now
    with pytest.raises(VerificationError) as caught:
        runtime.open(archive).session("detector")
    reasons = {"flipped": "modified-file", "other-size": "modified-file", "absent": "missing-file"}
    assert caught.value.reason in (reasons.get(how, "unreadable"), "modified-file" if how == "truncated" else "")
    assert unpacked() == []
    check(runtime.open(archive).session("detector", ep="cpu"), CPU)


@pytest.mark.parametrize("how", ["directory", "manifest", "header"])
def test_an_archive_that_is_damaged_elsewhere_is_an_error_too(
    tmp_path: Path, zipped: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by fuzzing. On the import path it is passed over, as Python does."""
    data = bytearray(zipped.read_bytes())
    with zipfile.ZipFile(zipped) as archive:
        info = archive.getinfo("acme_vision/_epctx/manifest.json")
    if how == "directory":
        data[data.rindex(b"PK\x01\x02")] ^= 1
    elif how == "manifest":
        start = info.header_offset + 30 + len(info.filename)
        data[start : start + 8] = b"\xff" * 8
    else:
        data[info.header_offset] ^= 1
    zipped.write_bytes(data)
    with pytest.raises(VerificationError) as caught:
        runtime.open(zipped)
    assert caught.value.reason == "unreadable"
    named = tmp_path / "acme_sound_epctx_phone.zip"
    shutil.copy(zipped, named)
    install(tmp_path / "other", cpu(), package="acme_sound")
    monkeypatch.syspath_prepend(named)
    monkeypatch.syspath_prepend(tmp_path / "other")
    check(runtime.open("acme_sound").session("detector"), CPU)


def _openvino_size() -> int:
    return openvino().files[1].size


def test_several_packages_in_one_archive_have_to_be_told_apart(tmp_path: Path) -> None:
    install(tmp_path / "site", cpu())
    install(tmp_path / "site", cpu(), package="acme_sound")
    archive = pack(tmp_path / "site", tmp_path / "app.zip")
    with pytest.raises(LookupFailure, match="holds 2 package folders") as caught:
        runtime.open(archive)
    assert str(archive / "acme_sound" / "_epctx") in caught.value.expected
    check(runtime.open(archive / "acme_sound").session("detector"), CPU)


@pytest.mark.ep_openvino
def test_a_companion_inside_the_same_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "site", cpu())
    write(tmp_path / "site" / "acme_vision_epctx_intel" / "_epctx", openvino())
    monkeypatch.syspath_prepend(str(pack(tmp_path / "site", tmp_path / "app.zip")))
    package = runtime.open("acme_vision")
    assert runtime.explain(package.session("detector")).package == "acme_vision_epctx_intel"


def test_without_a_place_to_unpack_the_message_says_so(zipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = runtime.open(zipped)
    monkeypatch.setenv("XDG_CACHE_HOME", str(zipped))
    with pytest.raises(LookupFailure, match="cannot be") as caught:
        package.lookup("detector", ep="cpu")
    assert caught.value.reason == "unwritable"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "nowhere")
    with pytest.raises(LookupFailure, match="no cache folder"):
        package.lookup("detector", ep="cpu")


def test_a_cache_that_others_may_write_is_refused(zipped: Path) -> None:
    package = runtime.open(zipped)
    package.lookup("detector", ep="cpu")
    base = private_folder("unpacked")
    assert base is not None
    base.chmod(0o777)
    with pytest.raises(LookupFailure, match="may be written by others"):
        package.lookup("detector", ep="cpu")


USER = """
import sys
from hatch_epctx import runtime
package = runtime.open(sys.argv[1])
session = package.session("detector", ep="cpu")
print("open", flush=True)
sys.stdin.read()
"""


def test_what_a_process_uses_is_kept_and_the_rest_goes_by_age(tmp_path: Path, zipped: Path) -> None:
    import subprocess

    environment = {**os.environ, "PYTHONPATH": str(verify.__file__).split("/hatch_epctx/")[0]}
    child = subprocess.Popen(
        [sys.executable, "-c", USER, str(zipped)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "open\n"
    (used,) = unpacked()
    base = private_folder("unpacked")
    assert base is not None
    abandoned = base / ".tmp-0123456789abcdef"
    abandoned.mkdir()
    old = time.time() - archives.KEPT - 100
    for path in (base / f"{used}.lock", abandoned):
        os.utime(path, (old, old))
    runtime.open(zipped).lookup("detector", variant="intel-cpu")  # unpacks, and collects
    assert used in unpacked()
    assert not abandoned.exists()
    child.communicate("")
    os.utime(base / f"{used}.lock", (old, old))
    other = tmp_path / "other"
    install(other, cpu("source", seed=2))
    runtime.open(pack(other, tmp_path / "other.zip")).lookup("detector", ep="cpu")
    assert used not in unpacked()
    check(runtime.open(zipped).session("detector", ep="cpu"), CPU)


MANY = """
import sys, threading
from hatch_epctx import runtime
package = runtime.open(sys.argv[1])
gate, failed = threading.Barrier(8), []
def work():
    gate.wait()
    try:
        package.session("detector", ep="cpu")
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(failed)
"""


def test_many_at_once_unpack_to_one_folder(zipped: Path) -> None:
    run = run_python(MANY, str(zipped))
    assert run.stdout == "[]\n", run.stderr
    assert len(unpacked()) == 1


ZIPAPP = """
import json
from hatch_epctx import runtime
session = runtime.open("acme_vision").session("detector", fallback="error")
print(json.dumps([session.get_providers()[0], str(runtime.explain(session).path)]))
"""


@pytest.mark.ep_openvino
def test_a_zip_application_with_hatch_epctx_inside(tmp_path: Path) -> None:
    """`python app.pyz` from another cwd: package and look-up come from the archive, native code from site-packages."""
    app = tmp_path / "app"
    install(app, openvino())
    package = verify.__file__.split("/runtime/")[0]
    shutil.copytree(package, app / "hatch_epctx", ignore=shutil.ignore_patterns("__pycache__"))
    (app / "__main__.py").write_text(ZIPAPP)
    zipapp.create_archive(app, tmp_path / "app.pyz", compressed=True)
    shutil.rmtree(app)
    run = run_python(
        "import runpy, sys; sys.path[:] = [p for p in sys.path if 'hatch' not in p]; runpy.run_path(sys.argv[1])",
        str(tmp_path / "app.pyz"),
        cwd=tmp_path,
    )
    assert OPENVINO in run.stdout, run.stderr
    assert "unpacked" in run.stdout


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_case_40_a_model_as_bytes_finds_its_binary_from_any_cwd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 40."""
    write(tmp_path / "p", openvino(), qnn(), cpu())
    package = runtime.open(tmp_path / "p")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    for ep, name in (("openvino", OPENVINO), ("qnn", QNN), ("cpu", CPU)):
        check(package.session("detector", ep=ep, as_bytes=True), name)
        check(package.session("detector", ep=ep), name)
    assert list((tmp_path / "cwd").iterdir()) == []


def test_weights_beside_a_model_that_comes_as_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime_support import content
    from support import save, small_model

    folder = tmp_path / "source"
    model = small_model(weights="placeholder.bin")
    save(model, folder / "model.onnx")
    weights = content(folder / "placeholder.bin", "weights")
    name = f"sha256-{weights.digest[:32]}.bin"
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = name
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    write(tmp_path / "p", cpu(files=(content(folder / "model.onnx", "model"), weights)))
    monkeypatch.chdir("/")
    session = runtime.open(tmp_path / "p").session("detector", as_bytes=True)
    np.testing.assert_array_equal(session.run(None, INPUT)[0], expected())


def test_bytes_are_checked_themselves(tmp_path: Path) -> None:
    """Between the digest of the file and its bytes nothing can change: they are the same ones."""
    write(tmp_path, cpu())
    package = runtime.open(tmp_path)
    path = tmp_path / "detector.onnx"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(VerificationError, match="other bytes"):
        package.session("detector", verify="never", as_bytes=True)


FROZEN = """
import json, sys
from hatch_epctx import runtime
package = runtime.open("acme_vision")
made = {}
for ep in sys.argv[1:]:
    session = package.session("detector", ep=ep, fallback="error")
    made[ep] = [session.get_providers()[0], str(runtime.explain(session).path)]
print(json.dumps([getattr(sys, "frozen", False), made]))
"""


@pytest.mark.slow
@pytest.mark.ep_openvino
@pytest.mark.parametrize("form", ["--onedir", "--onefile"])
def test_a_frozen_application(tmp_path: Path, form: str) -> None:
    """PyInstaller, for real: what docs/runtime.md says is enough."""
    import json
    import subprocess

    pytest.importorskip("PyInstaller")
    install(tmp_path / "site", openvino(), cpu())
    (tmp_path / "site" / "acme_vision" / "__init__.py").write_text("")
    (tmp_path / "main.py").write_text("import acme_vision\n" + FROZEN)
    root = verify.__file__.split("/hatch_epctx/")[0]
    command = [sys.executable, "-m", "PyInstaller", form, "--noconfirm", "--log-level", "ERROR"]
    command += ["--paths", str(tmp_path / "site"), "--collect-data", "acme_vision"]
    command += ["--additional-hooks-dir", f"{root}/hatch_epctx/_pyinstaller", "main.py"]  # else by the entry point
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, str(tmp_path / "site")])}
    built = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert built.returncode == 0, built.stderr[-3000:]
    program = tmp_path / "dist" / "main" if form == "--onefile" else tmp_path / "dist" / "main" / "main"
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [program, "openvino", "cpu"], cwd="/", env=clean, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    frozen, made = json.loads(done.stdout)
    assert frozen
    assert made["openvino"][0] == OPENVINO
    assert made["cpu"][0] == CPU
    assert not made["openvino"][1].startswith(str(tmp_path / "site"))


@pytest.mark.slow
@pytest.mark.ep_openvino
def test_a_pex(tmp_path: Path) -> None:
    """A pex with hatch-epctx and the application inside; the native packages come from the environment."""
    import json
    import subprocess

    pytest.importorskip("pex")
    app = tmp_path / "app"
    install(app, openvino(), cpu())
    (app / "acme_vision" / "__init__.py").write_text("")
    package = verify.__file__.split("/runtime/")[0]
    shutil.copytree(package, app / "hatch_epctx", ignore=shutil.ignore_patterns("__pycache__"))
    (app / "start.py").write_text(FROZEN)
    command = [sys.executable, "-m", "pex", "-D", str(app), "-m", "start", "-o", str(tmp_path / "app.pex")]
    command += ["--inherit-path=fallback", "--no-pypi", "--pex-root", str(tmp_path / "root")]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr[-3000:]
    shutil.rmtree(app)
    environment = {**os.environ, "PEX_ROOT": str(tmp_path / "root"), "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, tmp_path / "app.pex", "openvino", "cpu"],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    _, made = json.loads(done.stdout)
    assert (made["openvino"][0], made["cpu"][0]) == (OPENVINO, CPU)
