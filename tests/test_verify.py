"""`epctx verify`: whatever is changed in a wheel, an installed package, a folder or beside an ONNX file is found."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest
from frontend_support import front_end
from support import OPENVINO_TARGET, QNN_TARGET, Factory, epctx, here, save, small_model

from hatch_epctx.digest import content_name, digest_bytes
from hatch_epctx.errors import ModelError
from hatch_epctx.store import Store
from hatch_epctx.verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from hatch_epctx.verification import Report

STUB = Path(__file__).parent / "stub_ep"
FOLDER = "acme_vision/_epctx"
INFO = "acme_vision-1.2.3.dist-info"
MODEL = "detector.stub_ctx.onnx"
TABLE = """
[tool.epctx.models.detector]
source = "models/detector.onnx"
ship-source = true
[tool.epctx.targets.stub]
ep = "stub"
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel with a compiled variant and a shipped source that has external data."""
    folder = tmp_path_factory.mktemp("original")
    tree = Factory(folder).project("", models=("unused",))
    save(small_model(weights="weights.data"), tree.root / "models" / "detector.onnx")
    tree.write(TABLE)
    env = {"EPCTX_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": os.pathsep.join([str(STUB), *sys.path])}
    return front_end("backend", tree.root, out=folder / "out", env=env).wheel


class Site:
    """A wheel unpacked as an installer does it, to be changed and packed again."""

    def __init__(self, wheel: Path, root: Path) -> None:
        self.wheel = wheel
        self.root = root
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(root)

    @property
    def folder(self) -> Path:
        return self.root / FOLDER

    @property
    def binary(self) -> Path:
        """The context binary."""
        (name,) = (item["path"] for item in self.variant()["artifacts"] if item["role"] == "context")
        return self.folder / name

    def manifest(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "manifest.json").read_text()))

    def variant(self, name: str = "stub") -> dict[str, Any]:
        return dict(self.manifest()["components"]["detector"]["variants"][name]["executor_info"]["epctx"])

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the manifest's record of the compiled variant."""
        manifest = self.manifest()
        change(manifest["components"]["detector"]["variants"]["stub"]["executor_info"]["epctx"])
        (self.folder / "manifest.json").write_text(json.dumps(manifest))

    def record(self, path: Path) -> None:
        """Let the manifest say of a file what it is now."""
        data = path.read_bytes()

        def change(facts: dict[str, Any]) -> None:
            for item in facts["artifacts"]:
                if item["path"] == path.name:
                    item.update(size=len(data), sha256=digest_bytes(data))

        self.edit(change)

    def model(self, change: Callable[[onnx.ModelProto], None]) -> None:
        """Change the compiled model, and let the manifest say of it what it is now."""
        model = onnx.load(self.folder / MODEL, load_external_data=False)
        change(model)
        (self.folder / MODEL).write_bytes(model.SerializeToString())
        self.record(self.folder / MODEL)

    def bill(self, change: Callable[[list[dict[str, Any]]], None]) -> None:
        path = next((self.root / INFO / "sboms").glob("*.json"))
        document = json.loads(path.read_text())
        change(document["components"])
        path.write_text(json.dumps(document))

    def pack(self, out: Path, *, honest: bool) -> Path:
        """A wheel of what is here; `honest`: its RECORD says so."""
        record = self.root / INFO / "RECORD"
        names = sorted(path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file())
        if honest:
            rows = [f"{name},{_record_digest(self.root / name)}" for name in names if name != f"{INFO}/RECORD"]
            record.write_text("\n".join([*rows, f"{INFO}/RECORD,,"]) + "\n")
        out.mkdir(exist_ok=True)
        with zipfile.ZipFile(out / self.wheel.name, "w") as archive:
            for name in names:
                archive.write(self.root / name, name)
        return out / self.wheel.name


def _record_digest(path: Path) -> str:
    data = path.read_bytes()
    value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={value},{len(data)}"


@pytest.fixture
def site(original: Path, tmp_path: Path) -> Site:
    return Site(original, tmp_path / "site")


def look(path: Path) -> Report:
    return verify(path, Store(), fit=False)


def reasons(report: Report) -> set[str]:
    return {problem.reason for problem in report.problems}


def test_what_was_built_is_as_recorded(site: Site, original: Path) -> None:
    wheel = look(original)
    assert (wheel.kind, wheel.problems, wheel.notes) == ("wheel", (), ())
    assert wheel.packages[0].bill
    assert [variant.name for variant in wheel.packages[0].variants] == ["detector.stub", "detector.source"]
    assert wheel.packages[0].variants[0].identity == site.variant()["identity"]
    for path in (site.root / "acme_vision", site.folder, site.folder / "manifest.json"):
        installed = look(path)
        assert (installed.kind, installed.problems) == ("installed", ())
        assert installed.packages[0].bill
    shutil.rmtree(site.root / INFO)
    folder = look(site.folder)
    assert (folder.kind, folder.problems) == ("folder", ())
    for name in (MODEL, "detector.onnx"):
        assert look(site.folder / name).problems == ()


def test_an_installed_package_is_found_by_its_import_name(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(site.root))
    (tmp_path / "acme_vision").mkdir()  # a source tree of that name holds nothing to verify
    monkeypatch.chdir(tmp_path)
    assert look(Path("acme_vision")).packages[0].place == str(site.folder)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


FILES: dict[str, tuple[Callable[[Site], object], set[str]]] = {
    "a byte of the context binary": (lambda site: flip(site.binary), {"digest"}),
    "a byte of the model": (lambda site: flip(site.folder / MODEL), {"digest"}),
    "a shorter context binary": (lambda site: os.truncate(site.binary, 10), {"size"}),
    "an empty context binary": (lambda site: os.truncate(site.binary, 0), {"size"}),
    "no context binary": (lambda site: site.binary.unlink(), {"missing"}),
    "no model": (lambda site: (site.folder / MODEL).unlink(), {"missing"}),
    "a further file": (lambda site: (site.folder / "more.bin").write_bytes(b"x"), {"unlisted"}),
    "a link": (lambda site: link(site.binary), {"escape", "unlisted"}),
    "a manifest that is none": (lambda site: (site.folder / "manifest.json").write_text("{"), {"malformed-json"}),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_changed_folder_is_found(site: Site, kind: str) -> None:
    change, expected = FILES[kind]
    change(site)
    shutil.rmtree(site.root / INFO)
    assert reasons(look(site.folder)) == expected


def node(model: onnx.ModelProto) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.op_type == "EPContext")


def attribute(model: onnx.ModelProto, name: str, value: bytes) -> None:
    next(item for item in node(model).attribute if item.name == name).s = value


def no_context(model: onnx.ModelProto) -> None:
    made = node(model)
    made.op_type, made.domain = "Identity", ""
    del made.attribute[:]


def no_compatibility(model: onnx.ModelProto) -> None:
    del model.metadata_props[:]


def renamed_input(model: onnx.ModelProto) -> None:
    node(model).input[0] = model.graph.input[0].name = "other"


MODELS: dict[str, tuple[Callable[[onnx.ModelProto], None], set[str]]] = {
    "a way out": (
        lambda model: attribute(model, "ep_cache_context", b"../../etc/passwd"),
        {"escape", "unreferenced"},
    ),
    "an absolute path": (
        lambda model: attribute(model, "ep_cache_context", b"/etc/passwd"),
        {"escape", "unreferenced"},
    ),
    "a file of nobody": (
        lambda model: attribute(model, "ep_cache_context", b"other.bin"),
        {"unknown-reference", "unreferenced"},
    ),
    "another EP": (
        lambda model: attribute(model, "source", b"OpenVINOExecutionProvider"),
        {"foreign-source"},
    ),
    "no EPContext node": (no_context, {"no-context-node", "other-nodes", "unreferenced"}),
    "no compatibility": (no_compatibility, {"other-compatibility"}),
    "another input": (renamed_input, {"other-signature"}),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_is_not_what_its_manifest_says_is_found(site: Site, kind: str) -> None:
    """Digests are right: who changed the model changed the manifest too."""
    change, expected = MODELS[kind]
    site.model(change)
    shutil.rmtree(site.root / INFO)
    assert reasons(look(site.folder)) == expected


def test_a_model_that_is_no_onnx_file_is_found(site: Site) -> None:
    (site.folder / MODEL).write_bytes(b"not a model" * 40)
    site.record(site.folder / MODEL)
    shutil.rmtree(site.root / INFO)
    assert "invalid-model" in reasons(look(site.folder))


def test_a_binary_is_called_by_its_content(site: Site) -> None:
    flip(site.binary)
    site.record(site.binary)
    shutil.rmtree(site.root / INFO)
    (problem,) = look(site.folder).problems
    assert problem.reason == "name"
    assert content_name(digest_bytes(site.binary.read_bytes())) in problem.text


def test_a_variant_without_digests_cannot_be_verified(site: Site) -> None:
    manifest = site.manifest()
    del manifest["components"]["detector"]["variants"]["stub"]["executor_info"]["epctx"]
    (site.folder / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(site.root / INFO)
    assert "unverifiable" in reasons(look(site.folder))


def no_files(components: list[dict[str, Any]]) -> None:
    components[:] = [item for item in components if item["name"] != f"{FOLDER}/{MODEL}"]


def more_files(components: list[dict[str, Any]]) -> None:
    components.append({"type": "file", "name": f"{FOLDER}/more.bin"})


def another_digest(components: list[dict[str, Any]]) -> None:
    next(item for item in components if item["name"] == f"{FOLDER}/{MODEL}")["hashes"][0]["content"] = "0" * 64


def another_identity(components: list[dict[str, Any]]) -> None:
    variant = next(item for item in components if item["name"] == "detector.stub")
    next(item for item in variant["properties"] if item["name"] == "hatch-epctx:identity")["value"] = "0" * 64


BILLS: dict[str, tuple[Callable[[list[dict[str, Any]]], None], str]] = {
    "a file less": (no_files, "bill-missing"),
    "a file more": (more_files, "bill-unknown"),
    "another digest": (another_digest, "bill-digest"),
    "another identity": (another_identity, "bill-identity"),
}


@pytest.mark.parametrize("kind", BILLS)
def test_a_bill_of_materials_that_says_something_else_is_found(site: Site, tmp_path: Path, kind: str) -> None:
    change, expected = BILLS[kind]
    site.bill(change)
    report = look(site.pack(tmp_path / "out", honest=True))
    assert [problem.reason for problem in report.problems] == [expected]


def test_a_bill_that_is_none_is_found(site: Site, tmp_path: Path) -> None:
    next((site.root / INFO / "sboms").glob("*.json")).write_text("[]")
    report = look(site.pack(tmp_path / "out", honest=True))
    assert reasons(report) == {"bill-malformed"}
    assert not report.packages[0].bill


def test_a_changed_wheel_is_found_whatever_was_mended(site: Site, tmp_path: Path) -> None:
    """One byte: RECORD tells; with RECORD mended the manifest does; with both mended the bill and the name do."""
    flip(site.binary)
    name = f"{FOLDER}/{site.binary.name}"
    found = look(site.pack(tmp_path / "one", honest=False))
    assert [(problem.where, problem.reason) for problem in found.problems] == [(name, "digest")]
    found = look(site.pack(tmp_path / "two", honest=True))
    assert [(problem.where, problem.reason) for problem in found.problems] == [(name, "digest")]
    assert "the manifest says" in found.problems[0].text
    site.record(site.binary)
    found = look(site.pack(tmp_path / "three", honest=True))
    assert reasons(found) == {"name", "bill-digest"}


def test_a_wheel_that_is_none_is_found(tmp_path: Path) -> None:
    path = tmp_path / "acme_vision-1.0-py3-none-any.whl"
    path.write_bytes(b"PK")
    assert reasons(look(path)) == {"not-a-zip"}


def test_changed_code_of_an_installed_package_is_found(site: Site) -> None:
    with (site.root / "acme_vision" / "__init__.py").open("a") as stream:
        stream.write("import os\n")
    report = look(site.folder)
    assert [(problem.where, problem.reason) for problem in report.problems] == [("acme_vision/__init__.py", "size")]
    (site.root / "acme_vision" / "__init__.py").unlink()
    assert reasons(look(site.folder)) == {"missing"}


def test_a_changed_file_is_said_once(site: Site) -> None:
    flip(site.binary)
    (problem,) = look(site.folder).problems
    assert problem.where == f"{FOLDER}/{site.binary.name}"


def test_files_beside_an_onnx_file(site: Site, tmp_path: Path) -> None:
    flip(site.binary)
    assert reasons(look(site.folder / MODEL)) == {"digest"}
    site.binary.unlink()
    assert reasons(look(site.folder / MODEL)) == {"missing"}


@pytest.mark.parametrize("name", ["nothing.whl", "no_such_package", "."])
def test_where_there_is_nothing_the_message_says_what_there_could_be(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ModelError, match=r"expected a wheel, a package folder with manifest\.json, an installed package"
    ):
        look(Path(name))


@pytest.mark.parametrize("kind", ["wheel", "installed", "folder", "onnx"])
def test_the_command_ends_with_8_and_a_list_for_whatever_it_is_given(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """Of each kind of thing: nothing wrong, then two things wrong, for people and as JSON."""
    monkeypatch.syspath_prepend(site.root)
    if kind in ("folder", "onnx"):
        shutil.rmtree(site.root / INFO)

    def given() -> Path:
        places = {"installed": Path("acme_vision"), "folder": site.folder, "onnx": site.folder / MODEL}
        return places[kind] if kind in places else site.pack(tmp_path / "packed", honest=True)

    assert here("verify", given(), "--no-compatibility", "--json", cwd=tmp_path).json["problems"] == []
    assert "detector.stub" in here("inspect", given(), cwd=tmp_path).out or kind == "onnx"
    flip(site.binary)
    if kind != "onnx":
        (site.folder / "detector.onnx").unlink()
    thing = given()
    shown = here("verify", thing, "--no-compatibility", cwd=tmp_path, check=False)
    answer = here("verify", thing, "--no-compatibility", "--json", cwd=tmp_path, check=False)
    problems = answer.json["problems"]
    assert (shown.code, answer.code, answer.json["ok"], answer.json["kind"]) == (8, 8, False, kind)
    assert {problem["reason"] for problem in problems} >= ({"digest"} if kind == "onnx" else {"digest", "missing"})
    assert f"{len(problems)} problem" in shown.err
    for problem in problems:
        assert str(problem["where"]) in shown.err


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_compatibility_with_this_machine_and_exit_codes(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(
        OPENVINO_TARGET + QNN_TARGET.replace('["60", "88"]', '["60"]') + '[tool.epctx.targets.stub]\nep = "stub"\n'
    )
    wheel = front_end("backend", tree.root, out=tmp_path / "out").wheel
    run = epctx("verify", wheel, "--runs-here")
    assert "everything is as recorded" in run.out
    variants = {item["name"]: item for item in epctx("verify", wheel, "--json").json["packages"][0]["variants"]}
    assert variants["detector.intel-cpu"]["fits"] is True
    assert variants["detector.snapdragon-60"]["fits"] is True
    assert "simulator" in variants["detector.snapdragon-60"]["verdict"]
    assert (variants["detector.stub"]["fits"], variants["detector.stub"]["reason"]) == (False, "missing-ep")

    site = Site(wheel, tmp_path / "site")
    shutil.rmtree(site.root / INFO)
    flip(site.folder / "detector.intel-cpu_ctx.onnx")
    run = epctx("verify", site.folder, "--no-compatibility", check=False)
    assert run.code == 8
    assert "1 problem. Build or install it again" in run.err
    assert "detector.intel-cpu_ctx.onnx: SHA-256 " in run.err
    run = epctx("verify", site.folder, "--json", check=False)
    assert (run.code, run.json["ok"], len(run.json["problems"])) == (8, False, 1)
    broken, whole, *_ = run.json["packages"][0]["variants"]
    assert (broken["fits"], broken["reason"]) == (False, "damaged")
    assert broken["verdict"] == "detector.intel-cpu_ctx.onnx is not as recorded"
    assert whole["fits"] is True
