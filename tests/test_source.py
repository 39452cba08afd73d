"""Source models and files behind options: what is refused and in which words, what counts, what a compile reads."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest
from support import save, small_model

from hatch_epctx.compile import scan as scan_in_worker
from hatch_epctx.digest import digest_bytes, digest_file
from hatch_epctx.errors import ConfigError, EpctxError, ModelError
from hatch_epctx.providers import OptionValue
from hatch_epctx.source import (
    SourceChangedError,
    SourceModel,
    digest_option,
    read_source,
    snapshot,
    snapshot_model,
    snapshot_option,
)
from hatch_epctx.store import Store
from hatch_epctx.worker.protocol import MODEL_NAME

if TYPE_CHECKING:
    from hatch_epctx.worker.protocol import ScannedModel

PLACE = "tool.epctx.models.detector.source"
POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 123456\n"
)


class Reader:
    """Reads sources through one store and counts the scans."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.scans = 0

    def scan(self, path: Path, digest: str) -> ScannedModel:
        self.scans += 1
        with self.store.staging() as staging:
            return scan_in_worker(path, digest, staging.path, place=PLACE)

    def read(self, path: Path) -> SourceModel:
        return read_source(path, place=PLACE, store=self.store, scan=self.scan)

    def refuse(self, path: Path, reason: str) -> str:
        """Read, expect an error of this reason, and return its text."""
        with pytest.raises(EpctxError) as caught:
            self.read(path)
        assert isinstance(caught.value, ModelError)
        assert caught.value.exit_code == 3
        assert caught.value.reason == reason
        assert caught.value.where == PLACE
        return str(caught.value)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path / "store")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save(small_model(), tmp_path / "models" / "detector.onnx")


@pytest.fixture
def weighty(tmp_path: Path) -> Path:
    """A model with external data in detector.data."""
    return save(small_model(weights="detector.data"), tmp_path / "weighty" / "detector.onnx")


def test_a_model_in_one_file(reader: Reader, model: Path) -> None:
    source = reader.read(model)
    assert (source.digest, source.size, source.external) == (digest_file(model), model.stat().st_size, ())
    assert [value["name"] for value in source.scan["inputs"]] == ["x"]


def test_external_data_counts_by_location_and_content(reader: Reader, weighty: Path) -> None:
    data = weighty.parent / "detector.data"
    before = reader.read(weighty)
    assert before.external == (("detector.data", digest_file(data)),)
    changed = bytearray(data.read_bytes())
    changed[7] ^= 1
    data.write_bytes(changed)
    after = reader.read(weighty)
    assert after.digest == before.digest
    assert after.external == (("detector.data", digest_bytes(bytes(changed))),)


def test_facts_are_remembered_by_content_and_not_by_place(reader: Reader, model: Path, tmp_path: Path) -> None:
    first = reader.read(model)
    again = reader.read(model)
    copy = tmp_path / "elsewhere" / "other.onnx"
    copy.parent.mkdir()
    shutil.copy(model, copy)
    moved = reader.read(copy)
    assert reader.scans == 1
    assert first == again == replace(moved, path=model)


def test_another_store_object_scans_nothing_either(reader: Reader, model: Path) -> None:
    reader.read(model)
    fresh = Reader(reader.store.root)
    fresh.read(model)
    assert fresh.scans == 0


def test_a_missing_model(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "models" / "detector.onnx"
    text = reader.refuse(path, "missing-model")
    assert text == (f"{PLACE}: model does not exist at {path}. Check the path, or make the file before the build.")


@pytest.mark.parametrize("name", ["x" * 300, "x/" * 3000 + "y"], ids=["name", "path"])
def test_a_path_that_is_too_long(name: str, reader: Reader, tmp_path: Path) -> None:
    text = reader.refuse(tmp_path / name, "missing-model")
    assert text.endswith("Check the path, or make the file before the build.")


def test_a_link_that_leads_nowhere(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "detector.onnx"
    path.symlink_to(tmp_path / "blobs" / "gone")
    assert "The link leads nowhere." in reader.refuse(path, "missing-model")


def test_a_folder_in_place_of_a_model(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "detector.onnx"
    path.mkdir()
    assert reader.refuse(path, "not-a-file") == f"{PLACE}: model is no regular file: {path}; expected a file"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_in_place_of_a_model_does_not_block(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "detector.onnx"
    os.mkfifo(path)
    assert "is no regular file" in reader.refuse(path, "not-a-file")


def test_an_empty_model(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "detector.onnx"
    path.touch()
    assert reader.refuse(path, "empty-model") == f"{PLACE}: model is empty: {path}; expected an ONNX model"


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n" + bytes(64), b"hello world\n" * 9, b"\x00" * 300])
def test_garbage_in_place_of_a_model(reader: Reader, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "detector.onnx"
    path.write_bytes(data)
    text = reader.refuse(path, "invalid-model")
    assert text.startswith(f"{PLACE}: reading detector.onnx failed: the file is no usable ONNX model: ")
    assert "Check that it was written and copied whole" in text
    reader.refuse(path, "invalid-model")
    assert reader.scans == 2, "a failure is not remembered"


def test_a_truncated_model(reader: Reader, model: Path) -> None:
    data = model.read_bytes()
    model.write_bytes(data[: len(data) // 2])
    reader.refuse(model, "invalid-model")


def test_a_model_beyond_protobufs_limit_is_not_even_digested(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "detector.onnx"
    with path.open("wb") as stream:
        stream.truncate(1 << 31)  # sparse: takes no space
    text = reader.refuse(path, "too-large")
    assert "has 2,147,483,648 bytes; an ONNX file cannot be read beyond 2,147,483,647 (protobuf)" in text
    assert "save_as_external_data=True" in text


@pytest.mark.parametrize("what", ["model", "weights"])
def test_case_08_a_git_lfs_pointer_is_refused_with_the_hint(reader: Reader, weighty: Path, what: str) -> None:
    path = weighty if what == "model" else weighty.parent / "detector.data"
    path.write_text(POINTER)
    text = reader.refuse(weighty, "git-lfs-pointer")
    said = "model" if what == "model" else "external data 'detector.data' of detector.onnx"
    assert text == (
        f"{PLACE}: {said} is a Git-LFS pointer, not the file itself: {path}. "
        "Run 'git lfs pull' (in CI: check out with LFS) and build again."
    )


def test_missing_external_data(reader: Reader, weighty: Path) -> None:
    (weighty.parent / "detector.data").unlink()
    text = reader.refuse(weighty, "missing-model")
    assert f"external data 'detector.data' of detector.onnx does not exist at {weighty.parent}/detector.data" in text


def test_empty_external_data(reader: Reader, weighty: Path) -> None:
    (weighty.parent / "detector.data").write_bytes(b"")
    assert "external data 'detector.data' of detector.onnx is empty" in reader.refuse(weighty, "empty-model")


@pytest.mark.parametrize("location", ["../secret.data", "/etc/passwd", "a/../../b", "C:/weights", "a\\b"])
def test_external_data_outside_the_folder(reader: Reader, tmp_path: Path, location: str) -> None:
    proto = small_model()
    tensor = proto.graph.initializer[0]
    onnx.external_data_helper.set_external_data(tensor, location=location)
    tensor.ClearField("raw_data")
    path = tmp_path / "detector.onnx"
    path.write_bytes(proto.SerializeToString())
    text = reader.refuse(path, "external-data-escape")
    assert "tensor 'kernel' names external data outside the model's folder" in text
    assert "Save the model again with its external data beside it." in text


def test_a_location_that_leaves_its_folder_and_comes_back_is_plain(reader: Reader, tmp_path: Path) -> None:
    path = save(small_model(weights="detector.data"), tmp_path / "detector.onnx")
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].external_data[0].value = "sub/../detector.data"
    path.write_bytes(proto.SerializeToString())
    assert [location for location, _ in reader.read(path).external] == ["detector.data"]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs permissions that bind")
def test_an_unreadable_model(reader: Reader, model: Path) -> None:
    model.chmod(0)
    assert f"cannot read {model}: Permission denied" in reader.refuse(model, "unreadable")


def test_a_model_that_fails_to_open_says_so(reader: Reader, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(reader.store, "digest", fail)
    text = reader.refuse(model, "unreadable")
    assert text == (
        f"{PLACE}: cannot read {model}: Permission denied. "
        "Give this user read access, and see that nothing replaces the file during the build."
    )


# Hub-style trees: model and weights are links into a store of blobs.


def hub(tree: Path, model: Path) -> Path:
    """The tree of a model hub with the files of `model`; return the link to the ONNX file."""
    blobs, shown = tree / "blobs", tree / "snapshots" / "0a1b2c"
    blobs.mkdir(parents=True)
    shown.mkdir(parents=True)
    for path in model.parent.iterdir():
        blob = blobs / digest_file(path)
        shutil.copy(path, blob)
        (shown / path.name).symlink_to(os.path.relpath(blob, shown))
    return shown / model.name


def test_case_10_links_into_a_store_of_blobs_are_read_through(reader: Reader, weighty: Path, tmp_path: Path) -> None:
    link = hub(tmp_path / "hub", weighty)
    plain, linked = reader.read(weighty), reader.read(link)
    assert reader.scans == 1
    assert replace(linked, path=weighty) == plain
    folder = tmp_path / "job"
    folder.mkdir()
    snapshot(linked, folder)
    assert {path.name: path.is_symlink() for path in folder.iterdir()} == {MODEL_NAME: False, "detector.data": False}
    assert digest_file(folder / MODEL_NAME) == digest_file(weighty)


def test_another_blob_behind_the_same_link_counts(reader: Reader, weighty: Path, tmp_path: Path) -> None:
    link = hub(tmp_path / "hub", weighty)
    before = reader.read(link)
    other = tmp_path / "hub" / "blobs" / "other"
    other.write_bytes(bytes(len((weighty.parent / "detector.data").read_bytes())))
    (link.parent / "detector.data").unlink()
    (link.parent / "detector.data").symlink_to(other)
    assert reader.read(link).external != before.external


# The snapshot.


def test_a_snapshot_has_canonical_names_and_the_same_bytes(reader: Reader, tmp_path: Path) -> None:
    proto = small_model(weights="deep/weights.data")
    (tmp_path / "deep").mkdir()
    path = save(proto, tmp_path / "some name.onnx")
    folder = tmp_path / "job"
    folder.mkdir()
    snapshot(reader.read(path), folder)
    names = sorted(found.relative_to(folder).as_posix() for found in folder.rglob("*") if found.is_file())
    assert names == ["deep/weights.data", MODEL_NAME]
    assert (folder / MODEL_NAME).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("what", ["detector.onnx", "detector.data"])
@pytest.mark.parametrize("change", ["changed", "went away"])
def test_a_source_that_changes_before_its_snapshot(
    reader: Reader, weighty: Path, tmp_path: Path, what: str, change: str
) -> None:
    source = reader.read(weighty)
    if change == "changed":
        (weighty.parent / what).write_bytes(b"something else")
    else:
        (weighty.parent / what).unlink()
    folder = tmp_path / "job"
    folder.mkdir()
    with pytest.raises(SourceChangedError, match=f"{what} {change} while it was being read"):
        snapshot(source, folder)


def test_a_folder_that_cannot_be_written_is_not_taken_for_a_change(reader: Reader, model: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        snapshot(reader.read(model), tmp_path / "no-such-folder")
    assert "no-such-folder" in str(caught.value)


def test_facts_of_other_bytes_are_never_remembered(
    reader: Reader, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file changes between its digest and its scan: the old digest must not get the new file's facts."""
    real = reader.scan

    def late(path: Path, digest: str) -> ScannedModel:
        save(small_model(size=12), path)
        return real(path, digest)

    monkeypatch.setattr(reader, "scan", late)
    old = digest_file(model)
    with pytest.raises(SourceChangedError):
        reader.read(model)
    assert digest_file(model) != old
    monkeypatch.undo()
    save(small_model(), model)
    assert reader.read(model).scan["inputs"][0]["shape"] == [1, 3, 8, 8]


def test_a_snapshot_of_the_model_alone(model: Path, tmp_path: Path) -> None:
    snapshot_model(model, digest_file(model), tmp_path)
    assert (tmp_path / MODEL_NAME).read_bytes() == model.read_bytes()


# Files and folders behind options.

OPTION_PLACE = "tool.epctx.targets.stub.provider-options.tree"


def tree(folder: Path) -> OptionValue:
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "a.bin").write_bytes(b"a")
    (folder / "deep" / "er" / "b.bin").write_bytes(b"b")
    return OptionValue(name="tree", text=str(folder), kind="folder", folder=folder)


def digest(option: OptionValue) -> str:
    return digest_option(option, place=OPTION_PLACE, digest=digest_file)


def test_a_folder_counts_with_its_whole_content(tmp_path: Path) -> None:
    option = tree(tmp_path / "tree")
    folder = tmp_path / "tree"
    seen = [digest(option)]
    (folder / "deep" / "er" / "b.bin").write_bytes(b"c")
    seen.append(digest(option))
    (folder / "deep" / "er" / "b.bin").rename(folder / "deep" / "b.bin")
    seen.append(digest(option))
    (folder / "new.bin").touch()
    seen.append(digest(option))
    assert len(set(seen)) == len(seen)


def test_a_folder_does_not_count_by_place_time_mode_or_empty_folders(tmp_path: Path) -> None:
    option = tree(tmp_path / "tree")
    before = digest(option)
    (tmp_path / "tree").rename(tmp_path / "moved")
    os.utime(tmp_path / "moved" / "a.bin", (0, 0))
    (tmp_path / "moved" / "a.bin").chmod(0o755)
    (tmp_path / "moved" / "empty").mkdir()
    assert digest(replace(option, folder=tmp_path / "moved")) == before


def test_linked_files_and_folders_count_as_what_they_lead_to(tmp_path: Path) -> None:
    plain = tree(tmp_path / "tree")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "a.bin").symlink_to(tmp_path / "tree" / "a.bin")
    (linked / "deep").symlink_to(tmp_path / "tree" / "deep", target_is_directory=True)
    option = replace(plain, folder=linked)
    assert digest(option) == digest(plain)
    job = tmp_path / "job"
    job.mkdir()
    snapshot_option(option, job, digest(plain))
    copies = {path.relative_to(job).as_posix(): path for path in job.rglob("*") if path.is_file()}
    assert copies.keys() == {"option-tree/a.bin", "option-tree/deep/er/b.bin"}
    assert not any(path.is_symlink() for path in job.rglob("*"))


def test_a_link_that_leads_back_up_ends(tmp_path: Path) -> None:
    option = tree(tmp_path / "tree")
    before = digest(option)
    (tmp_path / "tree" / "deep" / "loop").symlink_to(tmp_path / "tree", target_is_directory=True)
    assert digest(option) == before


def test_a_file_is_its_content(tmp_path: Path) -> None:
    path = tmp_path / "settings.bin"
    path.write_bytes(b"one")
    option = OptionValue(name="data", text=str(path), kind="file", file=path)
    assert digest(option) == digest_bytes(b"one")
    snapshot_option(option, tmp_path, digest_bytes(b"one"))
    assert (tmp_path / "option-data").read_bytes() == b"one"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_went_away_since_the_configuration_was_read(tmp_path: Path, kind: str) -> None:
    gone = tmp_path / "gone"
    option = (
        OptionValue(name="data", text="gone", kind="file", file=gone)
        if kind == "file"
        else OptionValue(name="tree", text="gone", kind="folder", folder=gone)
    )
    with pytest.raises(ConfigError) as caught:
        digest(option)
    assert str(caught.value) == (
        f"{OPTION_PLACE}: the {kind} of option {option.name!r} cannot be read: No such file or directory: {gone}. "
        "Check the path and its permissions, or make the files before the build."
    )
    assert (caught.value.exit_code, caught.value.reason) == (2, "missing-option-file")


@pytest.mark.parametrize("change", ["edit", "remove", "add"])
def test_an_option_that_changes_before_its_snapshot(tmp_path: Path, change: str) -> None:
    option = tree(tmp_path / "tree")
    before = digest(option)
    job = tmp_path / "job"
    job.mkdir()
    if change == "edit":
        (tmp_path / "tree" / "a.bin").write_bytes(b"edited")
    elif change == "remove":
        shutil.rmtree(tmp_path / "tree")
    else:
        (tmp_path / "tree" / "new.bin").touch()
    with pytest.raises(SourceChangedError, match="the folder of option 'tree' changed while it was being read"):
        snapshot_option(option, job, before)


def test_an_option_whose_copy_cannot_be_written_is_not_taken_for_a_change(tmp_path: Path) -> None:
    option = tree(tmp_path / "tree")
    with pytest.raises(FileNotFoundError):
        snapshot_option(option, tmp_path / "no-such-folder", digest(option))


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes there")
def test_names_that_are_no_unicode_count(tmp_path: Path) -> None:
    option = tree(tmp_path / "tree")
    before = digest(option)
    Path(os.fsdecode(os.fsencode(tmp_path / "tree") + b"/\xff.bin")).touch()
    assert digest(option) != before
