"""EPContext data through ONNX Runtime's callbacks: with an EP that supports them, and with two that do not."""

from __future__ import annotations

import os
import threading
import time
import zipfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import plugin_support as plugin
import pytest
from runtime_support import CPU, OPENVINO, QNN, content, cpu, openvino, qnn, write
from support import Factory, Run, epctx, save

from hatch_epctx import runtime
from hatch_epctx.errors import LookupFailure, VerificationError
from hatch_epctx.runtime import sessions
from hatch_epctx.worker import contextio
from hatch_epctx.worker.failure import TaskError

if TYPE_CHECKING:
    from pathlib import Path

ort: Any = pytest.importorskip("onnxruntime")

TARGET = """[tool.epctx.models.neg]
source = "neg.onnx"
ship-source = true
[tool.epctx.models.twice]
source = "twice.onnx"
[tool.epctx.targets.t]
ep = "test-ep"
context-io = "{io}"
provider-options = {{ payload = 1000 }}
"""


def built(folder: Path, io: str = "callbacks", table: str = TARGET) -> Path:
    """The package folder of two models, compiled for the test EP by the command line."""
    tree = Factory(folder).project("", name=f"project-{io}", models=())
    save(plugin.neg_model(), tree.root / "neg.onnx")
    save(plugin.neg_model(2), tree.root / "twice.onnx")
    tree.write(table.format(io=io))
    run_build(tree.root, folder / f"out-{io}")
    return folder / f"out-{io}"


def run_build(project: Path, out: Path, *, check: bool = True) -> Run:
    path = os.pathsep.join([str(plugin.build()), os.environ["PYTHONPATH"]])
    return epctx("build", "--out", str(out), cwd=project, env={"PYTHONPATH": path}, check=check)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one compile by callbacks."""
    plugin.register()
    folder = tmp_path_factory.mktemp("callbacks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
        patch.setenv("PYTHONPATH", "")
        return built(folder)


@pytest.fixture
def folder(shared: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    import shutil

    return shutil.copytree(shared, tmp_path / "package")


class Storage:
    """An application's own storage, here in memory."""

    def __init__(self, folder: Path) -> None:
        self.held = {path.name: path.read_bytes() for path in folder.glob("*.bin")}
        self.asked: list[tuple[str, str, int]] = []

    def read(self, name: str, digest: str, size: int) -> Any:
        self.asked.append((name, digest, size))
        return self.held[name]


def check(session: Any, count: int = 1) -> None:
    assert session.get_providers()[0] == plugin.EP
    np.testing.assert_array_equal(session.run(None, plugin.INPUT)[0], plugin.expected(count))


def test_a_compile_by_callbacks_gives_what_one_by_files_gives(shared: Path, tmp_path: Path) -> None:
    by_files = built(tmp_path, "files")
    names = {path.name for path in shared.iterdir()}
    assert names == {path.name for path in by_files.iterdir()}
    assert len([name for name in names if name.endswith(".bin")]) == 1  # equal data lies there once
    for name in names - {"manifest.json"}:
        assert (shared / name).read_bytes() == (by_files / name).read_bytes()


def test_round_trip_as_it_was_compiled(folder: Path) -> None:
    """Without `data=` the session is made the way the compile was."""
    package = runtime.open(folder)
    session = package.session("neg", fallback="error")
    check(session)
    supply = runtime.explain(session).supply
    assert supply is not None
    assert supply.served == supply.names
    assert supply.limit == 1000
    check(package.session("twice", fallback="error"), 2)
    check(package.session("neg", data="files", fallback="error"))


def test_a_compile_by_files_can_be_opened_by_callbacks(tmp_path: Path, shared: Path) -> None:
    package = runtime.open(built(tmp_path, "files"))
    assert runtime.explain(package.session("neg")).supply is None
    check(package.session("neg", data="callbacks", fallback="error"))


def test_no_sidecar_and_a_storage_of_the_applications_own(folder: Path) -> None:
    storage = Storage(folder)
    (file,) = folder.glob("*.bin")
    file.unlink()
    package = runtime.open(folder)
    check(package.session("neg", data=storage, fallback="error"))
    ((name, digest, size),) = storage.asked
    assert (name, size) == (file.name, 1000)
    assert file.name == f"sha256-{digest[:32]}.bin"
    check(package.session("neg", data=storage, fallback="error", as_bytes=True))
    check(package.session("neg", data=storage, fallback="error", verify="never"))
    for data in ("callbacks", "files"):
        with pytest.raises(VerificationError) as caught:
            package.session("neg", data=data)
        assert caught.value.where == str(file)


@pytest.mark.parametrize("change", ["longer", "shorter", "empty", "flipped", "huge"])
def test_other_data_than_was_compiled_never_reaches_the_ep(folder: Path, change: str) -> None:
    """Oversized and partial data, and data of the right size: an error whatever the fallback."""
    storage = Storage(folder)
    for name, data in storage.held.items():
        changed = {"longer": data + b".", "shorter": data[:-1], "empty": b"", "huge": data * 5000}
        storage.held[name] = changed.get(change, data[:-1] + b"!")
    with pytest.raises(VerificationError, match=r"1000 bytes|SHA-256") as caught:
        runtime.open(folder).session("neg", data=storage)
    assert (caught.value.reason, caught.value.where) == ("modified-file", next(iter(storage.held)))


def test_a_flipped_byte_in_the_folder_is_found_in_the_bytes_that_are_handed_over(folder: Path) -> None:
    (file,) = folder.glob("*.bin")
    data = file.read_bytes()
    file.write_bytes(data[:-1] + b"!")
    with pytest.raises(VerificationError, match="other bytes"):
        runtime.open(folder).session("neg", data="callbacks", verify="never")


@pytest.mark.parametrize("error", [KeyError("not here"), OSError(5, "disk"), RuntimeError("locked"), MemoryError()])
def test_a_storage_that_fails_is_named_with_its_own_error(folder: Path, error: Exception) -> None:
    storage = Storage(folder)
    storage.read = lambda *_: (_ for _ in ()).throw(error)  # type: ignore[method-assign]
    package = runtime.open(folder)
    with pytest.raises(LookupFailure) as caught:
        package.session("neg", data=storage, fallback="error")
    assert caught.value.reason == "creation-failed"
    assert type(error).__name__ in caught.value.detail
    assert caught.value.__cause__ is error
    session = package.session("neg", data=storage)
    assert session.get_providers() == [CPU]
    assert runtime.explain(session).rejected[0].reason == "creation-failed"


def test_a_storage_that_gives_no_bytes(folder: Path) -> None:
    storage = Storage(folder)
    storage.read = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(LookupFailure) as caught:
        runtime.open(folder).session("neg", data=storage, fallback="error")
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("name", ["../secret.bin", "/etc/hostname", "other.bin", "a/../b.bin", ""])
def test_the_ep_gets_the_variants_own_binaries_and_nothing_else(folder: Path, tmp_path: Path, name: str) -> None:
    """A consistent package whose ONNX file asks for something else."""
    (tmp_path / "secret.bin").write_bytes(b"EPCTXTEST 5 ")
    model = onnx.load(folder / "neg.t_ctx.onnx")
    (attribute,) = [a for node in model.graph.node for a in node.attribute if a.name == "ep_cache_context"]
    attribute.s = name.encode()
    onnx.save(model, tmp_path / "crafted.onnx")
    (file,) = folder.glob("*.bin")
    crafted = cpu(
        "t",
        ep=plugin.EP,
        kind="compiled",
        files=(content(tmp_path / "crafted.onnx", "model"), content(file, "context")),
    )
    write(tmp_path / "p", crafted)
    storage = Storage(folder)
    with pytest.raises((VerificationError, LookupFailure)) as caught:
        runtime.open(tmp_path / "p").session("detector", data=storage, fallback="error")
    if name:
        assert caught.value.reason == "escape"
        assert repr(name) in str(caught.value)
    assert storage.asked == []


def test_many_threads_of_the_ep_ask_at_once(folder: Path) -> None:
    storage = Storage(folder)
    gate = threading.Barrier(8)
    plain = storage.read

    def read(name: str, digest: str, size: int) -> Any:
        gate.wait(30)  # only eight at once get past it
        return plain(name, digest, size)

    storage.read = read  # type: ignore[method-assign]
    options = {"reads": "8"}
    check(runtime.open(folder).session("neg", data=storage, fallback="error", provider_options=options))
    assert len(storage.asked) == 8


def test_many_sessions_at_once_share_one_storage(folder: Path) -> None:
    storage = Storage(folder)
    package = runtime.open(folder)
    failed: list[BaseException] = []
    gate = threading.Barrier(8)

    def work(model: str, count: int) -> None:
        gate.wait(30)
        try:
            check(package.session(model, data=storage, fallback="error", provider_options={"reads": "3"}), count)
        except BaseException as error:  # noqa: BLE001  # told by the assertion below
            failed.append(error)

    threads = [threading.Thread(target=work, args=(("neg", 1), ("twice", 2))[n % 2]) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_storage_may_open_a_session_itself(folder: Path) -> None:
    """Re-entrance: nothing is locked while the application's code runs."""
    package = runtime.open(folder)
    outer, inner = Storage(folder), Storage(folder)

    def read(name: str, digest: str, size: int) -> Any:
        check(package.session("twice", data=inner, fallback="error"), 2)
        return inner.read(name, digest, size)

    outer.read = read  # type: ignore[method-assign]
    check(package.session("neg", data=outer, fallback="error"))


def test_what_the_storage_gave_may_be_wiped_once_the_session_is_made(folder: Path) -> None:
    storage = Storage(folder)
    buffers = {name: bytearray(data) for name, data in storage.held.items()}
    storage.read = lambda name, _digest, _size: memoryview(buffers[name])  # type: ignore[method-assign]
    session = runtime.open(folder).session("neg", data=storage, fallback="error")
    for buffer in buffers.values():
        buffer[:] = bytes(len(buffer))
    check(session)


def test_from_an_archive_nothing_is_unpacked(folder: Path, tmp_path: Path) -> None:
    from hatch_epctx.runtime.places import private_folder

    archive = tmp_path / "app.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for path in folder.iterdir():
            target.write(path, f"acme_vision/_epctx/{path.name}")
    package = runtime.open(archive)
    check(package.session("neg", data="callbacks", as_bytes=True, fallback="error"))
    base = private_folder("unpacked")
    assert base is not None
    assert not base.exists()


def test_an_ep_that_says_it_cannot_is_refused_in_onnx_runtimes_words(folder: Path) -> None:
    package = runtime.open(folder)
    with pytest.raises(LookupFailure) as caught:
        package.session("neg", fallback="error", provider_options={"support": "2"})
    assert caught.value.reason == "callbacks-unsupported"
    assert "does not support the registered EPContext data read callback" in caught.value.detail
    check(package.session("neg", data="files", fallback="error", provider_options={"support": "0"}))


@pytest.mark.parametrize(
    "ep", [pytest.param(OPENVINO, marks=pytest.mark.ep_openvino), pytest.param(QNN, marks=pytest.mark.ep_qnn)]
)
def test_openvino_and_qnn_are_refused_by_onnx_runtime(tmp_path: Path, ep: str) -> None:
    """When this fails, the EP has learnt it: run the tests above with it, and say so in docs/runtime.md."""
    write(tmp_path, openvino("it") if ep == OPENVINO else qnn("it"), cpu())
    package = runtime.open(tmp_path)
    with pytest.raises(LookupFailure) as caught:
        package.session("detector", data="callbacks", fallback="error")
    assert caught.value.reason == "callbacks-unsupported"
    assert f"EP '{ep}' does not support the registered EPContext data read callback" in caught.value.detail
    session = package.session("detector", data="callbacks")
    assert session.get_providers() == [CPU]
    assert runtime.explain(session).rejected[0].reason == "callbacks-unsupported"
    assert package.session("detector", fallback="error").get_providers()[0] == ep


def test_an_ep_that_never_asked_is_refused_here(folder: Path, tmp_path: Path) -> None:
    """It would have its data from elsewhere: a file, or a cache of its own."""
    (file,) = folder.glob("*.bin")
    (tmp_path / "more.bin").write_bytes(b"more")
    files = (content(folder / "neg.t_ctx.onnx", "model"), content(file, "context"))
    both = cpu("t", ep=plugin.EP, kind="compiled", files=(*files, content(tmp_path / "more.bin", "context")))
    write(tmp_path / "p", both)
    with pytest.raises(LookupFailure, match="no variant") as caught:
        runtime.open(tmp_path / "p").session("detector", data="callbacks", fallback="error")
    assert caught.value.reason == "callbacks-unsupported"
    assert "without asking for its context data sha256-" in caught.value.detail


def test_an_onnx_runtime_without_callbacks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "supports_callbacks", lambda _ort: False)
    with pytest.raises(LookupFailure) as caught:
        runtime.open(folder).session("neg", fallback="error")
    assert f"onnxruntime {ort.__version__} has no EPContext data callbacks" in caught.value.detail
    check(runtime.open(folder).session("neg", data="files", fallback="error"))


def test_wrong_arguments(folder: Path) -> None:
    wrong: Any
    for wrong in ("file", 5, {"read": 1}):
        with pytest.raises(ValueError, match="data="):
            runtime.open(folder).session("neg", data=wrong)


def test_a_variant_without_binaries_needs_no_callbacks(tmp_path: Path) -> None:
    write(tmp_path, cpu())
    assert runtime.open(tmp_path).session("detector", data="callbacks", ep="cpu").get_providers() == [CPU]


# Compiling.


@pytest.mark.ep_openvino
def test_a_compile_by_an_ep_without_callbacks_says_so(factory: Factory) -> None:
    tree = factory.project('[tool.epctx.targets.cpu]\nep = "openvino"\ncontext-io = "callbacks"\n')
    run = epctx("build", "--out", str(factory.folder / "out"), cwd=tree.root, check=False)
    assert run.code == 5
    assert "does not support the registered EPContext data write callback" in run.err
    assert 'Set context-io = "files"' in run.err
    assert not (factory.folder / "out").exists()


def test_a_test_ep_that_only_reads_is_refused_too(factory: Factory) -> None:
    plugin.register()
    tree = factory.project("", models=())
    save(plugin.neg_model(), tree.root / "neg.onnx")
    save(plugin.neg_model(2), tree.root / "twice.onnx")
    tree.write(TARGET.format(io="callbacks").replace("payload = 1000", "support = 1"))
    run = run_build(tree.root, factory.folder / "out", check=False)
    assert run.code == 5
    assert "data write callback" in run.err


def test_embedding_and_callbacks_contradict_each_other(factory: Factory) -> None:
    table = '[tool.epctx.targets.cpu]\nep = "openvino"\nembed = true\ncontext-io = "callbacks"\n'
    run = epctx("plan", cwd=factory.project(table).root, check=False)
    assert run.code == 2
    assert "tool.epctx.targets.cpu.context-io: 'embed' puts the context data into the ONNX file" in run.err


def test_the_way_of_the_data_is_part_of_the_identity(tmp_path: Path) -> None:
    tree = Factory(tmp_path).project("", models=())
    save(plugin.neg_model(), tree.root / "neg.onnx")
    save(plugin.neg_model(2), tree.root / "twice.onnx")
    path = os.pathsep.join([str(plugin.build()), os.environ["PYTHONPATH"]])
    identities = []
    for io in ("files", "callbacks"):
        tree.write(TARGET.format(io=io))
        plan = epctx("plan", "--json", cwd=tree.root, env={"PYTHONPATH": path}).json
        identities.append({item["variant"]: item["identity"] for item in plan["variants"]})
    assert identities[0]["neg.t"] != identities[1]["neg.t"]
    assert identities[0]["neg.source"] == identities[1]["neg.source"]


class Handed:
    """What ONNX Runtime hands to a write callback."""

    def __init__(self, data: bytes, size: int | None = None) -> None:
        self.size = len(data) if size is None else size
        self._data = data

    def read(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]


JOB: Any = {"ep": "AcmeExecutionProvider", "context_io": "callbacks"}


@pytest.mark.parametrize("name", ["", "..", "../x.bin", "/x.bin", "a/b.bin", "C:x.bin", "x\0.bin", "con", "x" * 300])
def test_a_name_that_is_no_flat_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"."):
        contextio.Received()(name, Handed(b"x"))
    assert list(tmp_path.iterdir()) == []


def test_what_a_write_callback_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    received = contextio.Received()
    received("a.bin", Handed(b"a" * (40 << 20)))
    assert (tmp_path / "a.bin").stat().st_size == 40 << 20
    with pytest.raises(ValueError, match="written twice"):
        received("a.bin", Handed(b"b"))
    (tmp_path / "there.bin").write_bytes(b"")
    with pytest.raises(FileExistsError):
        received("there.bin", Handed(b"b"))
    with pytest.raises(ValueError, match="bytes"):
        received("b.bin", Handed(b"", 1 << 41))
    received.check(JOB, ["there.bin"])
    (tmp_path / "secret_cache.bin").write_bytes(b"")
    with pytest.raises(TaskError, match=r"wrote secret_cache\.bin beside"):
        received.check(JOB, ["there.bin"])
    with pytest.raises(TaskError, match="handed no context data"):
        contextio.Received().check(JOB, [])


def test_an_onnx_runtime_without_callbacks_at_compile_time(tmp_path: Path) -> None:
    for call in (
        lambda: contextio.receive(JOB, object(), ort),
        lambda: contextio.give_back(JOB, object(), ort, tmp_path),
    ):
        with pytest.raises(
            TaskError, match=rf"onnxruntime {ort.__version__} has no EPContext data callbacks"
        ) as caught:
            call()
        assert caught.value.reason == "callbacks-unsupported"


def test_large_data_in_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB through both callbacks of a real compile and a real session."""
    size = 64 << 20
    options = ort.SessionOptions()
    options.add_provider_for_devices([plugin.device()], {"payload": str(size)})
    save(plugin.neg_model(), tmp_path / "neg.onnx")
    compiler = ort.ModelCompiler(options, str(tmp_path / "neg.onnx"))
    monkeypatch.chdir(tmp_path)
    received = contextio.Received()
    compiler.set_ep_context_data_write_func(received)
    started = time.monotonic()
    compiler.compile_to_file(str(tmp_path / "neg_ctx.onnx"))
    (name,) = received.names
    binary = content(tmp_path / name, "context")
    assert binary.size == size
    model = onnx.load(tmp_path / "neg_ctx.onnx")
    (attribute,) = [a for node in model.graph.node for a in node.attribute if a.name == "ep_cache_context"]
    attribute.s = f"sha256-{binary.digest[:32]}.bin".encode()
    onnx.save(model, tmp_path / "named.onnx")
    variant = replace(
        cpu("t", ep=plugin.EP, kind="compiled"), files=(content(tmp_path / "named.onnx", "model"), binary)
    )
    write(tmp_path / "p", variant)
    check(runtime.open(tmp_path / "p").session("detector", data="callbacks", fallback="error"))
    assert time.monotonic() - started < 60


# The worked example.


@pytest.fixture
def example() -> Any:
    pytest.importorskip("cryptography")
    import importlib.util

    from support import REPOSITORY

    file = REPOSITORY / "docs" / "examples" / "encrypted_context.py"
    spec = importlib.util.spec_from_file_location("encrypted_context", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_with_encrypted_context_data(example: Any, folder: Path, tmp_path: Path) -> None:
    key = os.urandom(32)
    (tmp_path / "key").write_bytes(key)
    clear = {path.name: path.read_bytes() for path in folder.glob("*.bin")}
    example.main("seal", str(folder), str(tmp_path / "sealed"), str(tmp_path / "key"))
    assert not list((tmp_path / "sealed").glob("*.bin"))
    for name, data in clear.items():
        assert data[:100] not in (tmp_path / "sealed" / f"{name}.sealed").read_bytes()
    package = runtime.open(tmp_path / "sealed")
    for model, count in (("neg", 1), ("twice", 2)):
        storage = example.Sealed(tmp_path / "sealed", key)
        check(package.session(model, data=storage, fallback="error"), count)


@pytest.mark.parametrize("change", ["key", "byte", "cut", "longer", "absent"])
def test_the_example_refuses_what_was_changed(example: Any, folder: Path, tmp_path: Path, change: str) -> None:
    key = os.urandom(32)
    example.seal(folder, tmp_path / "sealed", key)
    (file,) = (tmp_path / "sealed").glob("*.sealed")
    data = file.read_bytes()
    file.write_bytes(
        {"byte": data[:500] + b"!" + data[501:], "cut": data[:-1], "longer": data + b"!"}.get(change, data)
    )
    if change == "absent":
        file.unlink()
    storage = example.Sealed(tmp_path / "sealed", os.urandom(32) if change == "key" else key)
    with pytest.raises(LookupFailure) as caught:
        runtime.open(tmp_path / "sealed").session("neg", data=storage, fallback="error")
    assert type(caught.value.__cause__).__name__ == ("FileNotFoundError" if change == "absent" else "InvalidTag")


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 20, 35])
def test_the_examples_parts(example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(example, "PART", 10)
    storage = example.Sealed(tmp_path, os.urandom(32))
    data = os.urandom(size)
    storage.write("x", "0" * 64, data)
    assert storage.read("x", "0" * 64, size) == data
    if size == 35:  # whole parts cannot change places or go missing
        (file,) = tmp_path.glob("*.sealed")
        sealed = file.read_bytes()
        parts = [sealed[8 + n * 26 : 8 + (n + 1) * 26] for n in range(4)]
        for order in ([1, 0, 2, 3], [0, 2, 1, 3], [0, 1, 3], [0, 1, 2]):
            file.write_bytes(sealed[:8] + b"".join(parts[n] for n in order))
            with pytest.raises(Exception, match=r"^$"):
                storage.read("x", "0" * 64, size)
