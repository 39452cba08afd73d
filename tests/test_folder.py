"""The package folder: names, sharing, sameness, and what is refused."""

from __future__ import annotations

import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from hatch_epctx.digest import content_name, digest_bytes
from hatch_epctx.errors import StoreError, VerificationError
from hatch_epctx.folder import (
    ContentFile,
    ModelContent,
    VariantContent,
    plan_folder,
    write_folder,
)
from hatch_epctx.manifest import loading_options, read_manifest

if TYPE_CHECKING:
    from pathlib import Path


class Store:
    """Files with content, as a store's generations hold them: private and read-only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def file(self, data: bytes, role: str = "context") -> ContentFile:
        self.count += 1
        path = self.folder / f"stored-{self.count}"
        path.write_bytes(data)
        path.chmod(0o400)
        return ContentFile(path=path, size=len(data), digest=digest_bytes(data), role=role)

    def variant(self, name: str, *binaries: ContentFile, model: bytes | None = None, **changes: Any) -> VariantContent:
        files = (self.file(model if model is not None else name.encode(), "model"), *binaries)
        base = VariantContent(name=name, ep="OpenVINOExecutionProvider", files=files, identity="a" * 64, device="cpu")
        return replace(base, **changes)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    folder = tmp_path / "store"
    folder.mkdir()
    return Store(folder)


def model(name: str, *variants: VariantContent) -> ModelContent:
    return ModelContent(name=name, variants=variants)


def write(out: Path, *models: ModelContent) -> Any:
    return write_folder(out, package_name="acme_vision", package_version="1.2.3", models=models)


def test_files_get_their_final_names_and_equal_content_lies_there_once(store: Store, tmp_path: Path) -> None:
    shared, own = store.file(b"shared"), store.file(b"own", "weights")
    copy = store.file(b"shared")
    source = VariantContent(
        name="source", ep="CPUExecutionProvider", kind="source", files=(store.file(b"source", "model"), own)
    )
    out = tmp_path / "out"
    plan = write(
        out,
        model("detector", store.variant("laptop", shared, own), store.variant("tablet", copy), source),
        model("classifier", store.variant("laptop", model=b"other")),
    )
    names = sorted(path.name for path in out.iterdir())
    assert names == sorted(
        [
            "classifier.laptop_ctx.onnx",
            "detector.laptop_ctx.onnx",
            "detector.onnx",
            "detector.tablet_ctx.onnx",
            "manifest.json",
            content_name(shared.digest),
            content_name(own.digest),
        ]
    )
    assert (out / content_name(shared.digest)).read_bytes() == b"shared"
    assert (out / "detector.onnx").read_bytes() == b"source"
    manifest = read_manifest((out / "manifest.json").read_bytes())
    assert manifest == plan.manifest
    assert [variant.name for variant in manifest.components[0].variants] == ["laptop", "tablet", "source"]
    assert {file.name for file in plan.files} == set(names) - {"manifest.json"}
    assert [artifact.path for artifact in manifest.artifacts()] == [file.name for file in plan.files]


def test_files_are_plain_and_never_links_into_the_store(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    binary = store.file(b"binary")
    write(out, model("detector", store.variant("laptop", binary)))
    for path in out.iterdir():
        status = path.lstat()
        assert stat.S_ISREG(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o644
        assert status.st_nlink == 1


def test_the_same_records_give_the_same_bytes(store: Store, tmp_path: Path) -> None:
    binary = store.file(b"binary")
    options = {"b": {"d": 1, "c": 2}, "a": [3, 1]}
    one = store.variant("laptop", binary, options=options)
    two = replace(one, files=one.files[::-1], options={"a": [3, 1], "b": {"c": 2, "d": 1}})
    write(tmp_path / "one", model("detector", one))
    write(tmp_path / "two", model("detector", two))
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_what_ort_must_not_use_stays_in_our_part(store: Store) -> None:
    variant = store.variant("snapdragon", device="npu", compatibility="v2:6", ort_device=False, ort_compatibility=False)
    plan = plan_folder(package_name="p", package_version="1", models=[model("m", variant)])
    written = plan.manifest.components[0].variants[0]
    assert (written.device, written.compatibility_string) == (None, None)
    assert written.facts is not None
    assert (written.facts.device, written.facts.compatibility) == ("npu", "v2:6")
    plain = plan_folder(
        package_name="p", package_version="1", models=[model("m", store.variant("l", compatibility="v2:6"))]
    )
    assert plain.manifest.components[0].variants[0].compatibility_string == "v2:6"


def test_loading_options() -> None:
    assert loading_options("disable-all", {"session.disable_cpu_ep_fallback": "1"}) == {
        "session.graph_optimization_level": "disable_all",
        "session.disable_model_compile": "1",
        "session.disable_cpu_ep_fallback": "1",
    }
    assert loading_options("all", {}, compiled=False) == {"session.graph_optimization_level": "enable_all"}


def test_two_contents_never_share_a_name(store: Store) -> None:
    one = store.file(b"one")
    twin = replace(store.file(b"two"), digest=one.digest[:32] + "0" * 32)
    with pytest.raises(VerificationError, match="one name for two contents") as caught:
        plan_folder(
            package_name="p",
            package_version="1",
            models=[model("m", store.variant("a", one), store.variant("b", twin))],
        )
    assert caught.value.reason == "name-clash"


def test_names_that_differ_in_case_alone_are_refused(store: Store) -> None:
    with pytest.raises(VerificationError, match="one name for two contents") as caught:
        plan_folder(
            package_name="p",
            package_version="1",
            models=[model("Detector", store.variant("a")), model("detector", store.variant("a", model=b"x"))],
        )
    assert "Rename" in caught.value.remedy


def test_a_model_and_a_variant_stand_once(store: Store) -> None:
    for components in (
        [model("m", store.variant("a")), model("m", store.variant("a"))],
        [model("m", store.variant("a"), store.variant("a"))],
    ):
        with pytest.raises(VerificationError, match="stands twice"):
            plan_folder(package_name="p", package_version="1", models=components)


@pytest.mark.parametrize("name", ["../m", "a/b", "con", "x:y", ""])
def test_unsafe_names_are_refused(store: Store, name: str) -> None:
    with pytest.raises(VerificationError):
        plan_folder(package_name="p", package_version="1", models=[model(name, store.variant("a"))])
    with pytest.raises(VerificationError):
        plan_folder(package_name="p", package_version="1", models=[model("m", store.variant(name))])


def test_a_variant_has_one_onnx_file(store: Store) -> None:
    none = replace(store.variant("a"), files=(store.file(b"x"),))
    with pytest.raises(VerificationError, match="0 ONNX files"):
        plan_folder(package_name="p", package_version="1", models=[model("m", none)])


def test_stale_files_cannot_get_into_a_wheel(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "old.bin").write_bytes(b"")
    with pytest.raises(StoreError, match="not empty"):
        write(out, model("m", store.variant("a")))
    assert [path.name for path in out.iterdir()] == ["old.bin"]


def test_a_file_of_another_size_is_refused(store: Store, tmp_path: Path) -> None:
    binary = replace(store.file(b"binary"), size=7)
    with pytest.raises(VerificationError, match=r"6 bytes with digest .*; expected 7 bytes with digest "):
        write(tmp_path / "out", model("m", store.variant("a", binary)))


def test_a_vanished_file_and_an_unusable_folder_are_plain_errors(store: Store, tmp_path: Path) -> None:
    binary = store.file(b"binary")
    variant = store.variant("a", binary)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot be written"):
        write(tmp_path / "file", model("m", variant))
    binary.path.unlink()
    with pytest.raises(StoreError, match="No such file"):
        write(tmp_path / "out", model("m", variant))
