"""epctx.lock as a file: one line for each field, the same bytes for the same lock, merged by git, read as untrusted."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hatch_epctx.digest import digest_bytes
from hatch_epctx.errors import VerificationError
from hatch_epctx.identity import canonical
from hatch_epctx.lockfile import LOCK_NAME, Lock, LockedVariant, drifts, parse_lock, read_lock, write_lock
from hatch_epctx.store import Artifact

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENT: dict[str, Any] = {
    "format": "epctx/1",
    "model": {
        "onnx": "a" * 64,
        "external-data": [{"digest": "b" * 64, "location": "a.data"}, {"digest": "c" * 64, "location": "sub/b.data"}],
    },
    "compile": {"calibration": None, "embed": False, "free-dimensions": {}, "session-options": {"session.x": "1"}},
    "target": {"device": "cpu", "provider-options": {"load_config": '{"CPU":{"HINT":"f32"}}'}},
    "toolchain": {"isa": ["avx", "avx2"], "cores": None, "onnxruntime": {"version": "1.32.0", "digest": "d" * 64}},
}


def locked(name: str, document: dict[str, Any] | None = None, *, data: bytes = b"bytes") -> LockedVariant:
    document = document if document is not None else {**DOCUMENT, "name": name}
    artifact = Artifact(role="model", path="model_ctx.onnx", size=len(data), digest=digest_bytes(data))
    facts = {
        "compatibility": "v2:6",
        "context_nodes": 1,
        "inputs": [{"name": "x", "type": "float", "shape": [1, None, "n"]}],
        "nodes_left": 0,
        "outputs": [],
    }
    identity = digest_bytes(canonical(document))
    return LockedVariant(name=name, identity=identity, document=document, artifacts=(artifact,), facts=facts)


def lock(*names: str, unlocked: tuple[str, ...] = ()) -> Lock:
    return Lock(variants={name: locked(name) for name in names}, unlocked=frozenset(unlocked))


def test_it_is_read_as_it_was_written() -> None:
    made = lock("detector.intel-cpu", "detector.snapdragon-60", unlocked=("classifier.intel-cpu",))
    data = write_lock(made)
    assert parse_lock(data) == made
    assert write_lock(parse_lock(data)) == data


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    # RFC 8785 has one spelling of each number and no surrogates.
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), inner, max_size=3)
        | st.lists(
            st.fixed_dictionaries({"location": st.text(st.characters(exclude_categories=["Cs"])), "d": inner}),
            max_size=3,
        )
        | st.dictionaries(st.sampled_from(["json", "a[b]", "external-data", "x.y"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(document=st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), json_values, max_size=4))
def test_every_document_comes_back_as_it_was(document: dict[str, Any]) -> None:
    made = Lock(variants={"m.t": locked("m.t", document)})
    data = write_lock(made)
    assert parse_lock(data).variants["m.t"].document == document
    head, _, body = data.decode().partition("# m.t\n")
    assert head
    assert all(line.startswith("m.t.") for line in body.splitlines())


def test_each_line_stands_for_itself_and_the_order_of_lines_does_not_count() -> None:
    made = lock("b.t", "a.t")
    lines = write_lock(made).decode().splitlines(keepends=True)
    start = lines.index("[variants]\n") + 1
    variants = "".join(lines[start:]).strip().split("\n\n")
    assert [variant.partition("\n")[0] for variant in variants] == ["# a.t", "# b.t"]
    assert all(variant.split("\n")[1:] == sorted(variant.split("\n")[1:]) for variant in variants)
    assert parse_lock("".join(lines[:start] + lines[:start:-1]).encode()) == made


def test_a_change_shows_as_the_fields_that_changed() -> None:
    before = write_lock(lock("a.t", "b.t")).decode().splitlines()
    document = {**DOCUMENT, "name": "b.t", "target": {**DOCUMENT["target"], "device": "npu"}}
    changed = Lock(variants={"a.t": locked("a.t"), "b.t": locked("b.t", document)})
    after = write_lock(changed).decode().splitlines()
    assert [line.partition(" = ")[0] for line in after if line not in before] == [
        "b.t.document.target.device",
        "b.t.identity",
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('device = "cpu"', 'device = "npu"', "a.t: the identity is not that of the document"),
        ("size = 5", 'size = "5"', "a.t: artifact 'model_ctx.onnx': expected a word, a number"),
        ('"model_ctx.onnx"', '"../model_ctx.onnx"', "a.t: "),
        ('role = "model", ', "", "expected role, sha256 and size"),
        ("epctx-lock/1", "epctx-lock/2", "format 'epctx-lock/2'; expected 'epctx-lock/1'"),
        ('format = "epctx-lock/1"', "", "the file names no format; expected 'epctx-lock/1'"),
        ("[variants]", "[variants", "is not valid TOML"),
        ("a.t.identity", "<<<<<<< ours\na.t.identity", "holds an unresolved merge conflict"),
        ("a.t.identity = ", 'a.t.identity = "x"\na.t.identity = ', "is not valid TOML"),
        ("a.t.facts.compatibility", "a.t.facts.more", "a document is a table, and so are facts"),
        ('facts.compatibility = "v2:6"', "facts.compatibility = 7", "a.t: result.compatibility"),
        ("facts.nodes_left = 0", "facts.nodes_left = 0\na.t.facts.coverage = 7", "a.t: result.coverage"),
        ("facts.nodes_left = 0", "facts.nodes_left = 0\na.t.facts.left = [1979-05-27]", "a.t: unsupported type"),
        ("facts.nodes_left = 0", "facts.nodes_left = nan", "a.t: nan"),
        ("a.t.facts.nodes_left = 0", "", "a.t: result has no nodes_left"),
        ('role = "model"', 'role = "other"', "a.t: model_ctx.onnx has the unknown role other"),
    ],
)  # fmt: skip
def test_a_damaged_lock_is_refused_with_its_place(old: str, new: str, problem: str) -> None:
    data = write_lock(lock("a.t", "b.t")).decode()
    assert old in data
    with pytest.raises(VerificationError) as caught:
        parse_lock(data.replace(old, new, 1).encode())
    assert problem in str(caught.value)
    assert caught.value.exit_code == 8
    assert "epctx lock" in caught.value.remedy or caught.value.reason == "unknown-format"


@pytest.mark.parametrize("data", [b"", b"\xff", b"[", b"format = 'x'", b"[[[[" * 10_000, b"a = 1\n" * 3])
def test_what_is_no_lock_is_refused(data: bytes) -> None:
    with pytest.raises(VerificationError):
        parse_lock(data)


def test_the_rest_of_a_damaged_lock_can_be_read() -> None:
    whole = lock("a.t", "b.t", "c.t", unlocked=("d.t",))
    data = write_lock(whole).decode().replace('b.t.identity = "', 'b.t.identity = "0', 1)
    found = parse_lock(data.encode(), lenient=True)
    assert found.variants.keys() == {"a.t", "c.t"}
    assert found.damaged.keys() == {"b.t"}
    assert found.unlocked == {"d.t"}
    conflict = f"<<<<<<< ours\nb.t.identity = 'x'\n=======\n{data}"
    found = parse_lock(conflict.encode(), lenient=True)
    assert (found.variants.keys(), found.damaged.keys()) == ({"a.t", "c.t"}, {"b.t"})


def test_there_may_be_no_lock(tmp_path: Path) -> None:
    assert read_lock(tmp_path / LOCK_NAME) is None
    (tmp_path / LOCK_NAME).mkdir()
    with pytest.raises(VerificationError, match="cannot be read"):
        read_lock(tmp_path / LOCK_NAME)


def test_drift() -> None:
    made = replace(lock("a.t", "b.t", "c.t"), damaged={"e.t": "is broken"})
    changed = {**DOCUMENT, "name": "b.t", "compile": {**DOCUMENT["compile"], "embed": True}}
    documents = {"a.t": {**DOCUMENT, "name": "a.t"}, "b.t": changed, "d.t": {}, "e.t": {}}
    found = drifts(made, documents, declared=["a.t", "b.t", "d.t", "e.t"])
    assert [(drift.name, drift.reason, drift.words) for drift in found] == [
        ("b.t", "differs", ("embedding of the context binary: false -> true",)),
        ("d.t", "not-locked", ("is not locked",)),
        ("e.t", "damaged", ("is broken",)),
        ("c.t", "not-declared", ("is locked and no longer declared",)),
    ]
    assert [str(change) for change in found[0].changes] == ["compile.embed: false -> true"]


class Repository:
    """A git repository with one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "main")
        self.git("commit", "-q", "--allow-empty", "-m", "start")

    def git(self, *arguments: str) -> str:
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def commit(self, content: Lock) -> None:
        (self.folder / LOCK_NAME).write_bytes(write_lock(content))
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "lock")

    def merged(self, ours: Lock, theirs: Lock) -> Lock | None:
        """Both on branches of what is there now, merged."""
        self.git("checkout", "-q", "-b", "theirs")
        self.commit(theirs)
        self.git("checkout", "-q", "-b", "ours", "main")
        self.commit(ours)
        self.git("merge", "-q", "-m", "merge", "theirs")
        return read_lock(self.folder / LOCK_NAME)


def test_git_merges_locks_of_two_machines_for_different_targets(tmp_path: Path) -> None:
    """Each machine locks what it can; variants that are next to each other, first and last, do not conflict."""
    names = ["a.cpu", "a.npu", "b.cpu", "b.npu", "c.cpu", "c.npu"]
    repository = Repository(tmp_path / "repository")
    repository.commit(lock(unlocked=tuple(names)))
    cpu, npu = [name for name in names if "cpu" in name], [name for name in names if "npu" in name]
    merged = repository.merged(lock(*cpu, unlocked=tuple(npu)), lock(*npu, unlocked=tuple(cpu)))
    assert merged == lock(*names)
    assert (repository.folder / LOCK_NAME).read_bytes() == write_lock(lock(*names))


def test_git_merges_new_versions_of_different_variants(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    base = lock("a.t", "b.t", "c.t")
    repository.commit(base)
    one = replace(base, variants={**base.variants, "a.t": locked("a.t", data=b"new")})
    two = replace(base, variants={**base.variants, "b.t": locked("b.t", {**DOCUMENT, "extra": 1})})
    assert repository.merged(one, two) == Lock(
        variants={"a.t": one.variants["a.t"], "b.t": two.variants["b.t"], "c.t": base.variants["c.t"]}
    )


def test_git_merges_two_first_locks_where_the_attribute_says_union(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    (repository.folder / ".gitattributes").write_text("epctx.lock merge=union\n")
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "attributes")
    assert repository.merged(lock("a.npu", "b.npu"), lock("a.cpu", "b.cpu")) == lock("a.cpu", "a.npu", "b.cpu", "b.npu")


def test_a_union_of_two_versions_of_one_variant_is_found(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    (repository.folder / ".gitattributes").write_text("epctx.lock merge=union\n")
    repository.commit(lock("a.t", "b.t"))
    other = {**DOCUMENT, "name": "b.t", "format": "epctx/2"}
    ours = replace(lock("a.t"), variants={"a.t": locked("a.t"), "b.t": locked("b.t", other)})
    theirs = replace(ours, variants={"a.t": locked("a.t"), "b.t": locked("b.t", {**other, "format": "epctx/3"})})
    with pytest.raises(VerificationError, match=r"(?s)is not valid TOML.*epctx lock"):
        repository.merged(ours, theirs)
    found = read_lock(repository.folder / LOCK_NAME, lenient=True)
    assert found is not None
    assert (found.variants.keys(), found.damaged.keys()) == ({"a.t"}, {"b.t"})
