"""EP caches: filled at build time, shipped, restored for the EP. OpenVINO's is real; the stub EP makes the faults."""

from __future__ import annotations

import json
import logging
import os
import stat
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from runtime_support import CPU, F32, OPENVINO, edit, run_python, variant_of
from support import save, small_model
from test_config_expand import error_of, variants
from test_runtime_forms import pack

from hatch_epctx import runtime
from hatch_epctx.config import load_project
from hatch_epctx.epcache import CACHES, names_a_place, with_folder
from hatch_epctx.errors import VerificationError
from hatch_epctx.manifest import MANIFEST_NAME, read_manifest
from hatch_epctx.pipeline import Build, Pipeline
from hatch_epctx.process import worker_runs
from hatch_epctx.runtime import epcaches
from hatch_epctx.runtime.places import private_folder
from hatch_epctx.store import Store
from hatch_epctx.wheel import write_package

if TYPE_CHECKING:
    from pathlib import Path

ort: Any = pytest.importorskip("onnxruntime")

INPUT = {"x": np.linspace(-1, 1, 2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)}
MODEL = '[project]\nname = "acme"\nversion = "1"\n[tool.epctx]\npackage = "acme"\n'
MODEL += '[tool.epctx.models.detector]\nsource = "model.onnx"\n'
TARGET = '[tool.epctx.targets.cached]\nep = "openvino"\nep-cache = true\n'
TARGET += 'provider-options = { load_config = { CPU = { INFERENCE_PRECISION_HINT = "f32" } } }\n'


def built(folder: Path, text: str, store: Path | None = None) -> Build:
    folder.mkdir(exist_ok=True)
    if not (folder / "model.onnx").exists():
        save(small_model(batch="batch"), folder / "model.onnx")
    (folder / "pyproject.toml").write_text(text)
    project = load_project(folder, environ={}, state="wheel")
    return Pipeline(project, Store(store or folder / "store")).build()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package folder whose model is shipped with OpenVINO's cache."""
    folder = tmp_path_factory.mktemp("cached")
    text = (
        MODEL + "free-dimensions = { batch = 2 }\nmin-coverage = 1.0\ncheck = { rtol = 0.01, atol = 0.01 }\n" + TARGET
    )
    with built(folder, text) as build:
        build.raise_for_failures()
        write_package(build, folder / "out", version="1")
    return folder / "out"


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and nothing said yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    monkeypatch.setattr(epcaches, "_said", set())
    base = private_folder("ep-caches")
    assert base is not None
    return base


def copied(package: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in package.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def opened(folder: Path, **arguments: Any) -> tuple[Any, runtime.Choice]:
    session = runtime.open(folder).session("detector", fallback="error", **arguments)
    assert session.get_providers()[0] == OPENVINO
    source = ort.InferenceSession(str(folder / "detector.cached_src.onnx"), providers=[CPU])
    np.testing.assert_allclose(session.run(None, INPUT)[0], source.run(None, INPUT)[0], rtol=5e-3, atol=5e-3)
    return session, runtime.explain(session)


def files(choice: runtime.Choice) -> dict[str, os.stat_result]:
    assert choice.ep_cache is not None
    folder = choice.ep_cache.path
    return {path.relative_to(folder).as_posix(): path.stat() for path in folder.rglob("*") if path.is_file()}


class TestDeclaration:
    def test_an_ep_without_a_cache_is_refused(self) -> None:
        text = "[models.m]\nsource = 'm.onnx'\n[targets.t]\nep = 'qnn'\nep-cache = true\n"
        text += "provider-options = { soc_model = 60 }\n"
        assert "tool.epctx.targets.t.ep-cache: Qualcomm QNN keeps no cache that could be shipped" in error_of(text)

    @pytest.mark.parametrize("key", ["embed = true", "context-io = 'callbacks'"])
    def test_keys_about_a_compiled_model_do_not_go_with_it(self, key: str) -> None:
        text = f"[models.m]\nsource = 'm.onnx'\n[targets.t]\nep = 'openvino'\nep-cache = true\n{key}\n"
        assert "no EPContext model is made, which this key is about" in error_of(text)

    def test_options_that_name_files_do_not_go_with_it(self, tmp_path: Path) -> None:
        table = tmp_path / "calibration.table"
        table.write_text("x")
        text = "[models.m]\nsource = 'm.onnx'\n[targets.t]\nep = 'tensorrt'\nep-cache = true\n"
        text += f"provider-options = {{ trt_int8_calibration_table_name = {str(table)!r} }}\n"
        assert "which the wheel does not carry, and the EP may have to compile" in error_of(text)

    def test_a_group_has_none(self) -> None:
        text = (
            "[models.a]\nsource = 'a.onnx'\n[models.b]\nsource = 'b.onnx'\n[targets.t]\nep = 'stub'\nep-cache = true\n"
        )
        assert "a cache belongs to one model" in error_of(text + "[groups.g]\nmodels = ['a', 'b']\n")

    @pytest.mark.parametrize("ep", ["migraphx", "coreml"])
    def test_eps_that_only_cache_are_targets_with_it(self, ep: str) -> None:
        text = f"[models.m]\nsource = 'm.onnx'\n[targets.t]\nep = '{ep}'\n"
        assert "To ship the EP's own cache, set 'ep-cache = true'." in error_of(text)
        (variant,) = variants(text + "ep-cache = true\n")
        assert variant.kind == "cached"

    def test_what_fills_the_cache_decides_what_is_shipped(self) -> None:
        text = "[models.m]\nsource = 'm.onnx'\n[targets.t]\nep = '{}'\nep-cache = true\n"
        kinds = {key: variants(text.format(key))[0].kind for key in ("openvino", "tensorrt-rtx", "tensorrt", "vitisai")}
        assert kinds == {"openvino": "cached", "tensorrt-rtx": "compiled", "tensorrt": "cached", "vitisai": "cached"}


class TestTable:
    @pytest.mark.parametrize("ep", sorted(CACHES))
    def test_the_folder_goes_into_the_eps_own_option(self, ep: str) -> None:
        cache = CACHES[ep]
        made = with_folder(cache, "gpu", {"other": "1"}, "/place")
        assert made["other"] == "1"
        assert "/place" in made[cache.option]
        assert not names_a_place(cache, "gpu", {"other": "1"})
        assert names_a_place(cache, "gpu", made)

    def test_openvinos_stands_among_its_properties(self) -> None:
        made = with_folder(CACHES[OPENVINO], "cpu", {"load_config": F32}, "/place")
        assert json.loads(made["load_config"]) == {"CPU": {"INFERENCE_PRECISION_HINT": "f32", "CACHE_DIR": "/place"}}

    @pytest.mark.parametrize("text", ["/some/config.json", "[1]", '{"CPU": 1}', '{"CPU":{"CACHE_DIR":"/mine"}}', "["])
    def test_a_form_that_takes_none_is_left_alone(self, text: str) -> None:
        assert names_a_place(CACHES[OPENVINO], "cpu", {"load_config": text})


class TestBuild:
    @pytest.mark.ep_openvino
    def test_what_is_shipped(self, package: Path) -> None:
        (variant,) = read_manifest((package / MANIFEST_NAME).read_bytes()).components[0].variants
        facts = variant.facts
        assert facts is not None
        assert (facts.kind, variant.model_file, facts.load_check) == ("cached", "detector.cached_src.onnx", "passed")
        assert sorted(artifact.role for artifact in facts.artifacts) == ["ep-cache", "model"]
        ((name, path),) = facts.ep_cache["files"].items()
        assert name.endswith(".blob")
        assert (package / path).is_file()
        assert facts.coverage["coverage"] == {OPENVINO: 5}
        assert facts.check["outcome"] == "passed"
        assert variant.session_options == {"session.graph_optimization_level": "enable_basic"}
        model = onnx.load(package / variant.model_file)
        assert [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == [2, 3, 8, 8]

    @pytest.mark.ep_openvino
    def test_the_next_build_hits_and_another_store_gives_the_same_bytes(self, package: Path, tmp_path: Path) -> None:
        text = (package.parent / "pyproject.toml").read_text()
        before = worker_runs()
        with built(package.parent, text) as build:
            assert [entry.status for entry in build.entries] == ["hit"]
        assert worker_runs() == before
        with built(package.parent, text, tmp_path / "other") as build:
            write_package(build, tmp_path / "out", version="1")
        again = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
        assert again == {path.name: path.read_bytes() for path in package.iterdir()}

    @pytest.mark.ep_openvino
    def test_with_and_without_it_are_two_identities(self, tmp_path: Path) -> None:
        texts = [MODEL + "free-dimensions = { batch = 2 }\n" + TARGET, ""]
        texts[1] = texts[0].replace("ep-cache = true\n", "")
        documents = []
        for text in texts:
            (tmp_path / "pyproject.toml").write_text(text)
            save(small_model(batch="batch"), tmp_path / "model.onnx")
            project = load_project(tmp_path, environ={}, state="wheel")
            (planned,) = Pipeline(project, Store(tmp_path / "store")).prepare()
            assert planned.identity is not None
            documents.append(planned.identity.document["compile"])
        assert documents[0]["task"] == "pack"
        assert "ep-cache" in documents[0]
        assert documents[1]["task"] == "compile"
        assert "ep-cache" not in documents[1]

    def stub(self, folder: Path, mode: str) -> Build:
        target = f'[tool.epctx.targets.t]\nep = "stub"\nep-cache = true\nprovider-options = {{ mode = "{mode}" }}\n'
        return built(folder, MODEL + "free-dimensions = { batch = 2 }\n" + target)

    def test_a_compiled_model_may_have_a_cache_beside_it(self, tmp_path: Path) -> None:
        with self.stub(tmp_path, "cache") as build:
            write_package(build, tmp_path / "out", version="1")
        (variant,) = read_manifest((tmp_path / "out" / MANIFEST_NAME).read_bytes()).components[0].variants
        assert variant.facts is not None
        assert variant.facts.kind == "compiled"
        assert sorted(artifact.role for artifact in variant.facts.artifacts) == ["context", "ep-cache", "model"]
        assert list(variant.facts.ep_cache["files"]) == ["k/entry.bin"]

    def test_what_no_cache_can_be_made_of(self, tmp_path: Path) -> None:
        wanted = {
            "cache-none": ("cache-empty", "wrote nothing into its cache"),
            "cache-again": ("cache-unused", "does not take up, in a second process, the cache that it wrote"),
            "cache-link": ("cache-unfit", "'link' is no regular file"),
            "cache-odd": ("cache-unfit", "'a:b' holds ':'"),
            "cache-deep": ("cache-unfit", "is no regular file"),
            "cache-many": ("cache-unfit", "1025 files, more than 1024"),
        }
        target = f'[tool.epctx.targets.t]\nep = "stub"\nep-cache = true\nmatrix = {{ mode = {list(wanted)} }}\n'
        with built(tmp_path, MODEL + "free-dimensions = { batch = 2 }\n" + target) as build:
            errors = {entry.variant.target.removeprefix("t-"): entry.error for entry in build.entries}
        assert errors.keys() == wanted.keys()
        for mode, (reason, said) in wanted.items():
            error = errors[mode]
            assert error is not None
            assert error.reason == reason
            assert said in str(error)
            assert "Remove 'ep-cache'" in str(error)


@pytest.mark.ep_openvino
class TestStart:
    def test_the_cache_is_restored_once_and_hit(self, package: Path, own_folder: Path) -> None:
        _, choice = opened(package)
        before = files(choice)
        assert choice.ep_cache is not None
        assert choice.ep_cache.restored
        assert choice.ep_cache.path.parent == own_folder
        assert stat.S_IMODE(own_folder.stat().st_mode) == 0o700
        assert str(choice.ep_cache.path) in choice.provider_options["load_config"]
        _, again = opened(package)
        assert again.ep_cache is not None
        assert not again.ep_cache.restored
        assert again.ep_cache.path == choice.ep_cache.path
        after = files(again)
        assert {name: (s.st_ino, s.st_mtime_ns) for name, s in after.items()} == {
            name: (s.st_ino, s.st_mtime_ns) for name, s in before.items()
        }  # the EP read it and wrote nothing
        assert len(after) == 1

    def test_a_lookup_gives_the_same_options(self, package: Path) -> None:
        choice = runtime.open(package).lookup("detector")
        assert choice.ep_cache is not None
        assert choice.provider_options == choice.ep_cache.provider_options
        assert "session.disable_model_compile" not in choice.session_options

    def test_from_an_archive(self, package: Path, tmp_path: Path) -> None:
        site = tmp_path / "site" / "acme"
        site.mkdir(parents=True)
        copied(package, site / "_epctx")
        archive = pack(tmp_path / "site", tmp_path / "app.zip")
        session = runtime.open(archive).session("detector", fallback="error")
        choice = runtime.explain(session)
        assert choice.ep_cache is not None
        assert len(files(choice)) == 1
        assert not [path for path in choice.path.parent.iterdir() if path.suffix == ".bin"]

    def test_a_foreign_cache_is_a_miss(self, package: Path, tmp_path: Path) -> None:
        """Another version's: OpenVINO sees that it does not fit, compiles and writes its own."""
        folder = copied(package, tmp_path / "foreign")
        (path,) = folder.glob("*.bin")
        from hatch_epctx.digest import content_name, digest_bytes

        foreign = path.read_bytes().replace(b"2026.4.1", b"2025.1.0")
        digest = digest_bytes(foreign)
        path.unlink()
        (folder / content_name(digest)).write_bytes(foreign)

        def change(document: Any) -> None:
            facts = variant_of(document, "cached")["executor_info"]["epctx"]
            for artifact in facts["artifacts"]:
                if artifact["role"] == "ep-cache":
                    artifact |= {"path": content_name(digest), "sha256": digest, "size": len(foreign)}
            facts["ep_cache"]["files"] = dict.fromkeys(facts["ep_cache"]["files"], content_name(digest))

        edit(folder, change)
        _, choice = opened(folder)
        assert [status.st_mtime != epcaches._SHIPPED for status in files(choice).values()] == [True]
        written = files(choice)
        _, again = opened(folder)
        assert again.ep_cache is not None
        assert not again.ep_cache.restored
        assert {n: s.st_mtime_ns for n, s in files(again).items()} == {n: s.st_mtime_ns for n, s in written.items()}

    def test_what_is_damaged_later_is_restored_anew(self, package: Path) -> None:
        _, choice = opened(package)
        assert choice.ep_cache is not None
        (path,) = choice.ep_cache.path.iterdir()
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 0xFF
        path.write_bytes(damaged)
        os.utime(path, (epcaches._SHIPPED, epcaches._SHIPPED))
        _, again = opened(package)
        assert again.ep_cache is not None
        assert again.ep_cache.restored
        assert path.read_bytes() != bytes(damaged)

    def test_a_damaged_package_costs_the_cache_alone(
        self, package: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = copied(package, tmp_path / "damaged")
        (path,) = folder.glob("*.bin")
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        for _ in range(2):
            _, choice = opened(folder)
            assert choice.ep_cache is None
            assert choice.provider_options == {"load_config": F32}
        warnings = [record for record in caplog.records if "cache cannot be restored" in record.message]
        assert len(warnings) == 1

    @pytest.mark.parametrize("obstacle", ["file", "shared", "no-home"])
    def test_no_place_for_it_is_one_warning(
        self,
        package: Path,
        own_folder: Path,
        obstacle: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        own_folder.parent.mkdir(parents=True)
        if obstacle == "file":
            own_folder.write_text("in the way")
        elif obstacle == "shared":
            own_folder.mkdir()
            own_folder.chmod(0o777)
        else:
            monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        for _ in range(3):
            _, choice = opened(package)
            assert choice.ep_cache is None
        assert [record.levelno for record in caplog.records if record.name == "hatch_epctx"] == [logging.WARNING]

    def test_a_session_that_fails_with_it_is_made_without(
        self, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").touch()
        real = epcaches.with_folder
        monkeypatch.setattr(epcaches, "with_folder", lambda *given: real(*given[:3], str(tmp_path / "file" / "x")))
        _, choice = opened(package)
        assert choice.ep_cache is None
        assert choice.provider_options == {"load_config": F32}
        assert "a session is made without the EP's cache" in caplog.text

    def test_the_callers_own_place_goes_over_it(self, package: Path, tmp_path: Path, own_folder: Path) -> None:
        mine = json.dumps({"CPU": {"INFERENCE_PRECISION_HINT": "f32", "CACHE_DIR": str(tmp_path / "mine")}})
        _, choice = opened(package, provider_options={"load_config": mine})
        assert choice.ep_cache is None
        assert list((tmp_path / "mine").iterdir())
        assert not own_folder.exists()

    def test_an_ep_that_cannot_write_its_cache_runs_all_the_same(self, package: Path, tmp_path: Path) -> None:
        """The disk is full, as far as one file of OpenVINO's is concerned."""
        code = (
            "import resource, signal, sys, logging\n"
            "from pathlib import Path\n"
            "from hatch_epctx import runtime\n"
            "choice = runtime.open(Path(sys.argv[1])).lookup('detector')\n"
            "[path.unlink() for path in choice.ep_cache.path.iterdir()]\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))\n"
            "session = runtime.open(Path(sys.argv[1])).session('detector', fallback='error')\n"
            "print(session.get_providers()[0], [path.stat().st_size for path in choice.ep_cache.path.iterdir()])\n"
        )
        done = run_python(code, str(package), XDG_CACHE_HOME=str(tmp_path / "c"))
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(OPENVINO)

    def test_several_processes_start_at_once(self, package: Path, tmp_path: Path) -> None:
        import subprocess
        import sys

        from support import REPOSITORY

        code = (
            "import sys; from pathlib import Path; from hatch_epctx import runtime\n"
            "s = runtime.open(Path(sys.argv[1])).session('detector', fallback='error')\n"
            "print(runtime.explain(s).ep_cache.path)\n"
        )
        env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "c"), "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-c", code, str(package)]
        children = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        places = {child.communicate(timeout=120)[0] for child in children}
        assert [child.returncode for child in children] == [0, 0, 0]
        assert len(places) == 1
        base = tmp_path / "c" / "hatch-epctx" / "ep-caches"
        assert sorted(path.suffix for path in base.iterdir()) == ["", ".lock"]


class TestCallbacks:
    """What ONNX Runtime may hand to the application one day; none of its releases does yet."""

    def used(self, folder: Path) -> epcaches.UsedCache:
        folder.mkdir()
        return epcaches.UsedCache(path=folder, provider_options={}, plain_options={}, restored=True, hold=None)

    def test_this_onnxruntime_has_none(self, tmp_path: Path) -> None:
        assert not hasattr(ort.SessionOptions, epcaches.CALLBACKS)
        assert not epcaches.offer(ort.SessionOptions(), self.used(tmp_path / "cache"))

    def test_the_folder_is_the_storage(self, tmp_path: Path) -> None:
        given: list[Any] = []
        options = SimpleNamespace(**{epcaches.CALLBACKS: lambda *functions: given.extend(functions)})
        assert epcaches.offer(options, self.used(tmp_path / "cache"))
        read, write, limit = given
        assert limit == epcaches.ENTRY_LIMIT
        assert read("kernel-1.bin") is None
        assert write("kernel-1.bin", b"kernels")
        assert read("kernel-1.bin") == b"kernels"
        assert (tmp_path / "cache" / "kernel-1.bin").read_bytes() == b"kernels"

    @pytest.mark.parametrize("key", ["../up", "/etc/passwd", "a/b", "", ".", "..", "a\0b", "C:x", "con", "x" * 300])
    def test_a_key_is_a_name_and_no_path(self, tmp_path: Path, key: str) -> None:
        used = self.used(tmp_path / "cache")
        assert used.read(key) is None
        assert not used.write(key, b"x")
        assert not list((tmp_path / "cache").iterdir())
        assert [path.name for path in tmp_path.iterdir()] == ["cache"]

    def test_failed_writes_are_a_bounded_number_of_warnings(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        used = self.used(tmp_path / "cache")
        (tmp_path / "cache").rmdir()
        for number in range(100):
            assert not used.write(f"k{number}", b"x")
            assert not used.write("k0", b"x")
        assert len(caplog.records) == 1

    def test_an_entry_beyond_the_limit_is_not_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        used = self.used(tmp_path / "cache")
        monkeypatch.setattr(epcaches, "ENTRY_LIMIT", 4)
        assert not used.write("k", b"12345")
        (tmp_path / "cache" / "k").write_bytes(b"12345")
        assert used.read("k") is None


@pytest.mark.ep_openvino
class TestManifest:
    @pytest.mark.parametrize(
        ("names", "reason"),
        [
            (["../x.blob"], "escape"),
            (["/etc/x"], "escape"),
            (["a\\b"], "escape"),
            (["a//b"], "escape"),
            (["C:x"], "escape"),
            (["a/./b"], "escape"),
            (["nul"], "escape"),
            (["a", "a/b"], "name-clash"),
            (["A", "a"], "name-clash"),
        ],
    )
    def test_a_hostile_name_is_refused(self, package: Path, tmp_path: Path, names: list[str], reason: str) -> None:
        folder = copied(package, tmp_path / "hostile")

        def change(document: Any) -> None:
            cache = variant_of(document, "cached")["executor_info"]["epctx"]["ep_cache"]
            (artifact,) = cache["files"].values()
            cache["files"] = dict.fromkeys(names, artifact)

        edit(folder, change)
        with pytest.raises(VerificationError) as caught:
            runtime.open(folder)
        assert caught.value.reason == reason

    @pytest.mark.parametrize("files", [{"a.blob": "detector.cached_src.onnx"}, {"a.blob": "none.bin"}, {"a": 1}, [], 7])
    def test_what_is_no_cache_file_is_refused(self, package: Path, tmp_path: Path, files: Any) -> None:
        folder = copied(package, tmp_path / "hostile")

        def change(document: Any) -> None:
            variant_of(document, "cached")["executor_info"]["epctx"]["ep_cache"] = {"files": files}

        edit(folder, change)
        with pytest.raises(VerificationError):
            runtime.open(folder)

    def test_no_manifest_chooses_the_option_that_gets_the_path(self, package: Path, tmp_path: Path) -> None:
        folder = copied(package, tmp_path / "hostile")

        def change(document: Any) -> None:
            cache = variant_of(document, "cached")["executor_info"]["epctx"]["ep_cache"]
            cache["option"] = "backend_path"

        edit(folder, change)
        with pytest.raises(VerificationError, match="unknown field"):
            runtime.open(folder)
