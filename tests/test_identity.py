"""Identities: fixed bytes for fixed inputs, nothing of the place or the time, everything that a job says."""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shutil
import socket
import struct
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from identity_support import SCAN, Case, cases, fake_digest, source, toolchain, variant
from support import OPENVINO_TARGET, QNN_TARGET, STUB_TARGET, Factory, epctx

from hatch_epctx.compile.jobs import compile_job
from hatch_epctx.config import load_project
from hatch_epctx.config.variant import Variant
from hatch_epctx.epcache import CACHES
from hatch_epctx.identity import FORMAT, Change, canonical, diff, document_of, identify
from hatch_epctx.pipeline import Pipeline
from hatch_epctx.providers import OptionValue, find_provider
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hatch_epctx.identity import Identity

# RFC 8785.

SAMPLE = (
    '{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],'
    r' "string": "\u20ac$\u000F\u000aA' + "'" + r'\u0042\u0022\u005c\\\"\/", "literals": [null, true, false]}'
)
SAMPLE_CANONICAL = (
    '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":'
    '"\u20ac$\\u000f\\nA' + "'" + 'B\\"\\\\\\\\\\"/"}'
)
"""Sections 3.2.2 and 3.2.4."""

UNSORTED = {
    "\u20ac": "Euro Sign",
    "\r": "Carriage Return",
    "\ufb33": "Hebrew Letter Dalet With Dagesh",
    "1": "One",
    "\U0001f600": "Emoji: Grinning Face",
    "\u0080": "Control",
    "\u00f6": "Latin Small Letter O With Diaeresis",
}
SORTED = ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
"""Section 3.2.3: by UTF-16 code units, so that the emoji stands before the letter."""

NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("ffefffffffffffff", "-1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]
"""Appendix B."""


def test_the_sample_of_the_standard() -> None:
    assert canonical(json.loads(SAMPLE)) == SAMPLE_CANONICAL.encode()


def test_keys_are_sorted_as_the_standard_sorts_them() -> None:
    text = canonical(UNSORTED).decode()
    assert list(json.loads(text)) == SORTED
    assert " " not in text.replace("Euro Sign", "").replace("Carriage Return", "").split(":", maxsplit=1)[0]


@pytest.mark.parametrize(("bits", "text"), NUMBERS)
def test_numbers_of_the_standard(bits: str, text: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical({"n": value}) == f'{{"n":{text}}}'.encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 2**53, -(2**53), b"bytes", {1: 2}, {1}])
def test_what_json_cannot_say_exactly_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r".+"):
        canonical({"n": value})


TEXT = st.text(st.characters(codec="utf-8"))
SCALARS = (
    st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-1e15, 1e15)  # larger ones are written as integers that JSON readers may refuse
    | TEXT
)
JSON = st.recursive(
    SCALARS | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.dictionaries(TEXT, JSON, max_size=5))
def test_canonical_text_means_the_same_and_is_a_fixed_point(document: dict[str, Any]) -> None:
    text = canonical(document)
    assert json.loads(text) == document
    assert canonical(json.loads(text)) == text
    backwards = dict(reversed(list(document.items())))
    assert canonical(backwards) == text


# Golden documents.


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_fixed_inputs_have_fixed_identities(case: Case) -> None:
    golden = json.loads(case.path.read_text(encoding="utf-8"))
    identity = case.identity()
    assert identity.document == golden["document"], "read CONTRIBUTING.md, 'Golden files', before changing this"
    assert identity.digest == golden["digest"]


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_an_identity_is_the_sha256_of_the_canonical_document(case: Case) -> None:
    identity = case.identity()
    plain = json.dumps(identity.document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert (
        canonical(identity.document) == plain.encode()
    )  # all keys are ASCII and all numbers integers: JSON's own form
    assert identity.digest == hashlib.sha256(plain.encode()).hexdigest()
    assert identity.short == identity.digest[:12]
    assert identity.document["format"] == FORMAT == "epctx/1"


def test_every_golden_file_has_its_case() -> None:
    folder = cases()[0].path.parent
    assert {path.name for path in folder.glob("identity-*.json")} == {case.path.name for case in cases()}


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_no_path_stands_in_a_document(case: Case) -> None:
    text = canonical(case.identity().document).decode()
    assert "nowhere" not in text
    assert "/home" not in text


# What counts, and what does not.

Inputs = tuple[Variant, Any, Any, dict[str, str]]


def jobs(item: Variant) -> list[Any]:
    """Everything that the workers of one variant are told, in the form of JSON."""
    load = [(option.name, option.text) for option in item.load_options]
    return [
        compile_job(item),
        load,
        item.load_optimization,
        dict(item.load_session_options),
        item.load_check,
        dict(item.env),
    ]


OPTION = OptionValue(name="load_config", text='{"CPU":{"INFERENCE_PRECISION_HINT":"bf16"}}', kind="json-or-file")
CHANGES: dict[str, Any] = {
    "ep_cache": CACHES["OpenVINOExecutionProvider"],
    "model": "other",
    "target": "other",
    "base_target": "other",
    "source": Path("/somewhere/else.onnx"),
    "provider": find_provider("qnn"),
    "device": "npu",
    "provider_options": (OPTION,),
    "runtime_options": (OptionValue(name="threads", text="4", kind="int", phase="run"),),
    "session_options": {"session.intra_op_thread_affinities": "1"},
    "free_dimensions": {"batch": 2},
    "free_dimension_denotations": {"DATA_BATCH": 2},
    "input_shapes": {"x": (1, 3, 8, 8)},
    "embed": True,
    "context_io": "callbacks",
    "optimization": "all",
    "load_check": False,
    "requires": ("onnxruntime>=1",),
    "env": {"A": "1"},
    "timeout": 1.0,
    "memory_limit": 1 << 30,
    "required": False,
    "platform": "win_arm64",
    "companion": True,
    "is_source": True,
}
FREE = {"model", "target", "base_target", "source", "requires", "timeout", "memory_limit", "required"}
FREE |= {"platform", "companion"}
"""Names, places and presentation."""
ELSEWHERE = {"prepare", "calibration", "min_coverage", "check", "group", "cores", "custom_ops"}
"""Fields that the tests of what they are for look at."""


def changed_variants() -> list[Any]:
    return [pytest.param(name, variant(**{name: value}), id=name) for name, value in CHANGES.items()]


def identity_of(item: Variant) -> Identity:
    return identify(item, source(), toolchain(), {})


def test_every_field_of_a_variant_is_tried() -> None:
    assert {field.name for field in fields(Variant)} == CHANGES.keys() | ELSEWHERE


@pytest.mark.parametrize(("name", "changed"), changed_variants())
def test_a_field_counts_unless_it_is_a_name_or_presentation(name: str, changed: Variant) -> None:
    assert (identity_of(changed).digest == identity_of(variant()).digest) == (name in FREE)


@pytest.mark.parametrize(("name", "changed"), changed_variants())
def test_what_a_worker_is_told_stands_in_the_identity(name: str, changed: Variant) -> None:
    """The compile and the identity read the same values: another job is another identity."""
    if jobs(changed) != jobs(variant()):
        assert identity_of(changed).digest != identity_of(variant()).digest


@pytest.mark.parametrize("changed", ["digest", "external"])
def test_the_source_counts_by_its_bytes(changed: str) -> None:
    value = fake_digest("other") if changed == "digest" else (("detector.onnx", fake_digest("x")),)
    assert identify(variant(), source(**{changed: value}), toolchain(), {}).digest != identity_of(variant()).digest


def test_where_a_source_lies_and_what_was_read_from_it_does_not_count() -> None:
    other = source(path=Path("/x/y.onnx"), size=1, scan={**SCAN, "nodes": 7})
    assert identify(variant(), other, toolchain(), {}).digest == identity_of(variant()).digest


TOOLCHAIN_CHANGES: dict[str, Any] = {
    "onnxruntime": replace(toolchain().onnxruntime, version="1.33.0"),
    "onnx_version": "1.24.0",
    "ep": replace(toolchain().onnxruntime, digest=fake_digest("another library")),
    "sdk": {"openvino": "2027.1"},
    "device": {**toolchain().device, "metadata": {"driver": "2"}},
    "isa": ("avx2", "fma"),
    "cores": 4,
    "topology": {**toolchain().topology, "physical-cores": 2},
    "os": "windows",
    "architecture": "aarch64",
}


@pytest.mark.parametrize("name", TOOLCHAIN_CHANGES)
def test_every_field_of_the_toolchain_counts(name: str) -> None:
    changed = toolchain(**{name: TOOLCHAIN_CHANGES[name]})
    (*_, change) = diff(identity_of(variant()).document, identify(variant(), source(), changed, {}).document)
    assert change.field.startswith("toolchain.")


def test_every_field_of_the_toolchain_is_tried() -> None:
    assert {field.name for field in fields(toolchain())} == TOOLCHAIN_CHANGES.keys() | {"uncertain"}


def test_what_is_uncertain_is_no_part_of_the_document() -> None:
    uncertain = identify(variant(), source(), toolchain(uncertain=("the driver",)), {})
    assert uncertain.digest == identity_of(variant()).digest
    assert uncertain.uncertain == ("the driver",)


def test_a_files_content_counts_and_its_path_does_not() -> None:
    def digest(path: str, content: str) -> str:
        option = OptionValue(name="data", text=path, kind="file", file=Path(path))
        return identify(variant(provider_options=(option,)), source(), toolchain(), {"data": content}).digest

    assert digest("/a/b", "1") == digest("c", "1")
    assert digest("/a/b", "1") != digest("/a/b", "2")


# Differences.


def test_equal_documents_do_not_differ() -> None:
    document = document_of(variant(), source(), toolchain(), {})
    assert diff(document, json.loads(canonical(document))) == ()


def test_a_difference_names_the_field_and_both_values() -> None:
    old = {"compile": {"embed": False, "flags": ["A"]}, "target": {"env": {}}}
    new = {"compile": {"embed": True, "flags": ["A", "B"]}, "target": {"env": {"A": "1"}}}
    assert diff(old, new) == (
        Change(field="compile.embed", old=False, new=True),
        Change(field="compile.flags", old=["A"], new=["A", "B"]),
        Change(field="target.env", old={}, new=None),
        Change(field="target.env.A", old=None, new="1"),
    )
    assert [str(change) for change in diff(old, new)] == [
        "compile.embed: false -> true",
        'compile.flags: ["A"] -> ["A","B"]',
        "target.env: {} -> (none)",
        "target.env.A: (none) -> 1",
    ]


def test_one_weights_file_of_many_shows_as_itself() -> None:
    def document(**files: str) -> dict[str, Any]:
        return document_of(variant(), source(external=tuple(sorted(files.items()))), toolchain(), {})

    changes = diff(document(a="1", b="2", c="3"), document(a="1", b="9", d="3"))
    assert [str(change) for change in changes] == [
        "model.external-data[b].digest: 2 -> 9",
        "model.external-data[c].digest: 3 -> (none)",
        "model.external-data[d].digest: (none) -> 3",
    ]


TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(TREES, TREES)
def test_documents_differ_exactly_when_a_field_does(old: Any, new: Any) -> None:
    assert bool(diff({"x": old}, {"x": new})) == (canonical({"x": old}) != canonical({"x": new}))


# Nothing of the place and the time.

TABLE = (
    '[tool.epctx.models.weighty]\nsource = "models/weighty.onnx"\nship-source = true\n'
    f"{OPENVINO_TARGET}{QNN_TARGET}{STUB_TARGET}"
    'provider-options = { data = "extra/data.bin", tree = "extra", settings = "extra/settings.json" }\n'
    'env = { GREETING = "hello" }\n'
)


def project(factory: Factory, name: str) -> Path:
    tree = factory.project(TABLE, name=name)
    tree.model("weighty", seed=5, weights="weighty.data")
    extra = tree.root / "extra"
    extra.mkdir()
    (extra / "data.bin").write_bytes(b"data")
    (extra / "settings.json").write_text('{"b": 1, "a": [2]}')
    return tree.root


def planned(root: Path, cache: Path, **env: str) -> dict[str, str]:
    run = epctx("plan", "--json", cwd=root, env={"EPCTX_CACHE_DIR": str(cache), **env})
    return {item["variant"]: item["identity"] for item in run.json["variants"]}


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_neither_place_nor_time_nor_user_counts(factory: Factory, tmp_path: Path) -> None:
    root = project(factory, "here")
    loaded = load_project(root, environ={}, state="wheel")
    documents = {item.variant.name: item.identity for item in Pipeline(loaded, Store(tmp_path / "cache-1")).prepare()}
    assert len(documents) == 9
    for identity in documents.values():
        assert identity is not None
        check_no_place(identity.document, tmp_path)

    moved = tmp_path / "there" / "deeper" / "with space"
    shutil.copytree(root, moved, copy_function=shutil.copyfile)  # other times, other modes
    for path in moved.rglob("*"):
        os.utime(path, (1, 1))
    home = tmp_path / "home"
    home.mkdir()
    foreign = {
        "HOME": str(home),
        "USER": "somebody",
        "TZ": "Asia/Kathmandu",
        "LC_ALL": "C",
        "TMPDIR": str(home),
        "SOURCE_DATE_EPOCH": "1",
        "PYTHONHASHSEED": "7",
    }
    old = os.umask(0o077)
    try:
        after = planned(moved, tmp_path / "cache-2", **foreign)
    finally:
        os.umask(old)
    assert after == {name: identity.digest for name, identity in documents.items() if identity}


def check_no_place(document: Any, folder: Path) -> None:
    text = canonical(document).decode()
    for word in (str(folder), str(Path.home()), str(Path.cwd()), socket.gethostname()):
        assert word not in text
    assert f'"{getpass.getuser()}"' not in text
    assert not [value for value in strings(document) if value.startswith("/")]


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value
