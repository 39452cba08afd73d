"""The manifest: what is written is what ORT and the strict reader take, and nothing else is read."""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hatch_epctx.errors import VerificationError
from hatch_epctx.manifest import (
    FORMAT,
    MAX_BYTES,
    Artifact,
    Component,
    Facts,
    Manifest,
    Variant,
    read_manifest,
    write_manifest,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DIGEST = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4


def artifact(path: str = "detector.laptop_ctx.onnx", role: str = "model", digest: str = DIGEST) -> Artifact:
    return Artifact(path=path, size=12, digest=digest, role=role)


def variant(name: str = "laptop", **changes: Any) -> Variant:
    model = artifact(f"detector.{name}_ctx.onnx")
    binary = artifact("sha256-0123456789abcdef0123456789abcdef.bin", "context")
    facts = Facts(
        kind="compiled",
        artifacts=(model, binary),
        identity=DIGEST,
        compatibility="ov=1",
        device="cpu",
        options={"optimization": "basic", "embed": False, "free-dimensions": {"batch": 1}},
        toolchain={"onnxruntime": {"version": "1.32.0"}},
        coverage={"nodes": 5, "context": 1},
        runtime={"distribution": "onnxruntime-ep-openvino", "version": "1.8.1"},
        signature={"inputs": [{"name": "x", "type": "float", "shape": [1, None, "n"]}]},
    )
    base = Variant(
        name=name,
        ep="OpenVINOExecutionProvider",
        model_file=model.path,
        device="cpu",
        compatibility_string="ov=1",
        session_options={"session.disable_model_compile": "1"},
        provider_options={"load_config": '{"CPU":{"INFERENCE_PRECISION_HINT":"f32"}}'},
        facts=facts,
    )
    return replace(base, **changes)


def manifest(*variants: Variant) -> Manifest:
    component = Component(name="detector", variants=variants or (variant(),))
    return Manifest(package_name="acme_vision", package_version="1.2.3", components=(component,))


def document() -> Any:
    return json.loads(write_manifest(manifest()))


def read(value: Any) -> Manifest:
    return read_manifest(json.dumps(value).encode())


LAPTOP = ("components", "detector", "variants", "laptop")


def put(value: Any, *path: str) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        for key in path[:-1]:
            tree = tree[int(key)] if isinstance(tree, list) else tree[key]
        tree[int(path[-1]) if isinstance(tree, list) else path[-1]] = value

    return change


def drop(*path: str) -> Callable[[Any], None]:
    def change(tree: Any) -> None:
        for key in path[:-1]:
            tree = tree[key]
        del tree[path[-1]]

    return change


def test_records_survive_the_round_trip() -> None:
    before = manifest(variant(), variant("tablet", device=None, compatibility_string=None), variant("raw"))
    assert read_manifest(write_manifest(before)) == before


def test_equal_records_give_equal_bytes_and_order_counts_only_for_models_and_variants() -> None:
    one = manifest(variant("b"), variant("a"))
    facts = variant("b").facts
    assert facts is not None
    shuffled = replace(facts, artifacts=facts.artifacts[::-1], options=dict(reversed(facts.options.items())))
    two = manifest(variant("b", facts=shuffled), variant("a"))
    data = write_manifest(one)
    assert data == write_manifest(two)
    assert list(json.loads(data)["components"]["detector"]["variants"]) == ["b", "a"]
    assert data.endswith(b"}\n")
    assert b"\r" not in data


def test_the_written_form() -> None:
    bare = variant(facts=None, compatibility_string=None, session_options={}, provider_options={"b": "2", "a": "1"})
    text = write_manifest(manifest(bare)).decode()
    assert text.startswith('{\n  "layout": "portable",\n  "package_name": "acme_vision",\n')
    assert json.loads(text) == {
        "layout": "portable",
        "package_name": "acme_vision",
        "package_version": "1.2.3",
        "schema_version": "1.0",
        "components": {
            "detector": {
                "variants": {
                    "laptop": {
                        "device": "cpu",
                        "ep": "OpenVINOExecutionProvider",
                        "executor_info": {
                            "ort": {
                                "model_file": "detector.laptop_ctx.onnx",
                                "provider_options": {"a": "1", "b": "2"},
                                "session_options": {},
                            }
                        },
                        "variant_directory": ".",
                    }
                }
            }
        },
    }
    assert text.index('"a": "1"') < text.index('"b": "2"')


def test_every_file_of_the_package_is_listed_once() -> None:
    paths = [item.path for item in manifest(variant("b"), variant("a")).artifacts()]
    binary = "sha256-0123456789abcdef0123456789abcdef.bin"
    assert paths == ["detector.a_ctx.onnx", "detector.b_ctx.onnx", binary]


def test_ort_opens_what_is_written(tmp_path: Path) -> None:
    import onnxruntime as ort

    (tmp_path / "manifest.json").write_bytes(write_manifest(manifest(variant("b"), variant("a"))))
    package = ort.ModelPackage.open(str(tmp_path))
    try:
        info = package.get_info()
        assert package.get_variant_json("detector", "b").count(FORMAT) == 1
    finally:
        package.close()
    assert "acme_vision" in str(info)


@pytest.mark.parametrize(
    ("change", "place", "reason"),
    [
        (put("2.0", "schema_version"), "schema_version", "unknown-schema"),
        (put(1, "schema_version"), "schema_version", "malformed-manifest"),
        (drop("schema_version"), "schema_version", "malformed-manifest"),
        (put("installed", "layout"), "layout", "malformed-manifest"),
        (put({"sha256:" + DIGEST: "assets"}, "shared_assets"), "shared_assets", "malformed-manifest"),
        (put(1, "surprise"), "surprise", "unknown-field"),
        (put([], "components"), "components", "malformed-manifest"),
        (put({}, "components"), "components", "malformed-manifest"),
        (put("detector", "components", "detector"), "components.detector", "malformed-manifest"),
        (put({}, "components", "detector", "variants"), "components.detector.variants", "malformed-manifest"),
        (put(1, "components", "detector", "surprise"), "components.detector.surprise", "unknown-field"),
        (put(1, *LAPTOP, "surprise"), ".".join((*LAPTOP, "surprise")), "unknown-field"),
        (put("sub", *LAPTOP, "variant_directory"), ".".join((*LAPTOP, "variant_directory")), "escape"),
        (drop(*LAPTOP, "variant_directory"), "variant_directory", "malformed-manifest"),
        (drop(*LAPTOP, "ep"), "laptop.ep", "malformed-manifest"),
        (put(None, *LAPTOP, "ep"), "laptop.ep", "malformed-manifest"),
        (put("tpu", *LAPTOP, "device"), "laptop.device", "malformed-manifest"),
        (put(7, *LAPTOP, "compatibility_string"), "compatibility_string", "malformed-manifest"),
        (put("info.json", *LAPTOP, "executor_info", "ort"), "executor_info.ort", "malformed-manifest"),
        (drop(*LAPTOP, "executor_info", "ort"), "executor_info.ort", "malformed-manifest"),
        (put(1, *LAPTOP, "executor_info", "ort", "surprise"), "ort.surprise", "unknown-field"),
        (put("other.onnx", *LAPTOP, "executor_info", "ort", "model_file"), "ort.model_file", "malformed-manifest"),
        (
            put({"session.x": 1}, *LAPTOP, "executor_info", "ort", "session_options"),
            "session_options.session.x",
            "malformed-manifest",
        ),
        (
            put({"session.enable_profiling": "1"}, *LAPTOP, "executor_info", "ort", "session_options"),
            "session_options.session.enable_profiling",
            "escape",
        ),
        (put("a\0b", *LAPTOP, "ep"), "laptop.ep", "malformed-manifest"),
        (put("epctx-manifest/2", *LAPTOP, "executor_info", "epctx", "format"), "epctx.format", "unknown-format"),
        (put("both", *LAPTOP, "executor_info", "epctx", "kind"), "epctx.kind", "malformed-manifest"),
        (put("abc", *LAPTOP, "executor_info", "epctx", "identity"), "epctx.identity", "malformed-manifest"),
        (put([], *LAPTOP, "executor_info", "epctx", "toolchain"), "epctx.toolchain", "malformed-manifest"),
        (put({}, *LAPTOP, "executor_info", "epctx", "artifacts"), "epctx.artifacts", "malformed-manifest"),
        (drop(*LAPTOP, "executor_info", "epctx", "artifacts"), "epctx.artifacts", "malformed-manifest"),
        (
            put(-1, *LAPTOP, "executor_info", "epctx", "artifacts", "0", "size"),
            "artifacts.0.size",
            "malformed-manifest",
        ),
        (
            put(True, *LAPTOP, "executor_info", "epctx", "artifacts", "0", "size"),
            "artifacts.0.size",
            "malformed-manifest",
        ),
        (
            put("f", *LAPTOP, "executor_info", "epctx", "artifacts", "0", "sha256"),
            "artifacts.0.sha256",
            "malformed-manifest",
        ),
        (
            put("spy", *LAPTOP, "executor_info", "epctx", "artifacts", "0", "role"),
            "artifacts.0.role",
            "malformed-manifest",
        ),
    ],
)
def test_malformed_manifests_are_refused_with_their_place(change: Any, place: str, reason: str) -> None:
    tree = document()
    change(tree)
    with pytest.raises(VerificationError) as caught:
        read(tree)
    assert caught.value.where.startswith("manifest.json: ")
    assert caught.value.where.endswith(place), caught.value.where
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    "name",
    [
        "../x.onnx",
        "a/../b.onnx",
        "a/b.onnx",
        "/etc/passwd",
        "C:\\x.onnx",
        "C:x.onnx",
        "\\\\server\\x.onnx",
        "x.onnx:stream",
        "..",
        ".",
        "",
        "nul",
        "con.onnx",
        "x.onnx.",
        "x\n.onnx",
        "x" * 201,
    ],
)
def test_references_that_leave_the_folder_are_refused(name: str) -> None:
    tree = document()
    put(name, *LAPTOP, "executor_info", "ort", "model_file")(tree)
    with pytest.raises(VerificationError, match="unsafe name") as caught:
        read(tree)
    assert caught.value.reason == "escape"
    tree = document()
    put(name, *LAPTOP, "executor_info", "epctx", "artifacts", "1", "path")(tree)
    with pytest.raises(VerificationError, match="unsafe name"):
        read(tree)
    tree = document()
    tree["components"][name] = tree["components"].pop("detector")
    with pytest.raises(VerificationError, match="unsafe name"):
        read(tree)


@pytest.mark.parametrize(
    "value",
    ["/lib/evil.so", "\\lib", "C:\\evil.dll", "../evil.so", "a/../../b", "..", '{"CPU":{"CACHE_DIR":"/tmp/x"}}'],
)
def test_options_that_name_places_outside_the_package_are_refused(value: str) -> None:
    tree = document()
    put({"backend_path": value}, *LAPTOP, "executor_info", "ort", "provider_options")(tree)
    with pytest.raises(VerificationError, match="outside the package") as caught:
        read(tree)
    assert caught.value.where.endswith("provider_options.backend_path")
    assert caught.value.reason == "escape"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("op_packages", "MyAdd:/tmp/evil.so:Provider:CPU"),
        ("op_packages", "MyAdd:evil.so:Provider"),
        ("trt_extra_plugin_lib_paths", "a.so;/tmp/evil.so"),
        ("backend_path", "folder/evil.so"),
        ("backend_path", "C:evil.dll"),
    ],
)
@pytest.mark.parametrize("field", ["provider_options", "session_options"])
def test_options_that_have_code_loaded_are_refused(name: str, value: str, field: str) -> None:
    tree = document()
    key = name if field == "provider_options" else f"ep.qnnexecutionprovider.{name}"
    put({key: value}, *LAPTOP, "executor_info", "ort", field)(tree)
    with pytest.raises(VerificationError, match="librar") as caught:
        read(tree)
    assert key in caught.value.where
    assert caught.value.reason == "escape"


def test_options_of_the_compile_cannot_have_code_loaded_at_first_use() -> None:
    def with_options(**options: object) -> dict[str, Any]:
        tree = document()
        put(options, *LAPTOP, "executor_info", "epctx", "options")(tree)
        return tree

    for name, value in (("op_packages", "MyAdd:evil.so:Provider"), ("soc_list", "/etc/passwd")):
        with pytest.raises(VerificationError) as caught:
            read(with_options(provider_options={name: value}))
        assert caught.value.where.endswith(f"epctx.options.provider_options.{name}")
    with pytest.raises(VerificationError, match="it writes files"):
        read(with_options(session_options={"session.optimized_model_filepath": "x"}))
    with pytest.raises(VerificationError, match="expected"):
        read(with_options(provider_options={"soc_model": 60}))
    with pytest.raises(VerificationError, match="expected"):
        read(with_options(free_dimensions=[1]))
    read(with_options(provider_options={"op_packages": "file", "soc_model": "60"}))


def test_options_that_only_look_like_paths_pass() -> None:
    options = {"a": "1:2", "b": "libQnnHtp.so", "c": "x..y", "d": "a/b", "e": "", "f": '{"x": [1, "y..z", null]}'}
    assert read_manifest(write_manifest(manifest(variant(provider_options=options)))) == manifest(
        variant(provider_options=options)
    )


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "malformed-json"),
        (b"\xff\xfe{}", "malformed-json"),
        (b"\xef\xbb\xbf{}", "malformed-json"),
        (b'{"a": 1, "a": 2}', "malformed-json"),
        (b'{"a": NaN}', "malformed-json"),
        (b'{"a": 1e999}', "malformed-json"),
        (b'{"a": ' + b"9" * 5000 + b"}", "malformed-json"),
        (b'"\\ud800"', "malformed-json"),
        (b"[" * 100_000, "malformed-json"),
        (b'{"a":' * 2000 + b"1" + b"}" * 2000, "malformed-json"),
        (b"[]", "malformed-manifest"),
        (b"null", "malformed-manifest"),
        (b" " * (MAX_BYTES + 1), "too-large"),
    ],
)
def test_bytes_that_are_no_strict_json_object_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(VerificationError) as caught:
        read_manifest(data, where="there")
    assert caught.value.where.startswith("there")
    assert caught.value.reason == reason


def test_keys_of_ours_that_are_not_known_are_ignored_and_foreign_namespaces_pass() -> None:
    tree = document()
    info = tree["components"]["detector"]["variants"]["laptop"]["executor_info"]
    info["epctx"]["later"] = {"a": 1}
    info["epctx"]["artifacts"][0]["later"] = True
    info["genai"] = {"filename": "x"}
    assert read(tree) == manifest()


def test_a_manifest_of_another_tool_has_no_facts() -> None:
    tree = document()
    del tree["components"]["detector"]["variants"]["laptop"]["executor_info"]["epctx"]
    assert read(tree).components[0].variants[0].facts is None


def test_one_name_stands_for_one_content() -> None:
    one, two = variant("a"), variant("b")
    assert two.facts is not None
    clash = replace(two.facts, artifacts=(two.facts.artifacts[0], replace(two.facts.artifacts[1], digest=OTHER)))
    with pytest.raises(VerificationError, match="twice with different content"):
        write_manifest(manifest(one, replace(two, facts=clash)))
    loud = artifact("SHA256-0123456789abcdef0123456789abcdef.bin", "context")
    clash = replace(two.facts, artifacts=(two.facts.artifacts[0], loud))
    with pytest.raises(VerificationError, match="twice with different content"):
        write_manifest(manifest(one, replace(two, facts=clash)))


def test_records_that_the_reader_refuses_are_not_written() -> None:
    with pytest.raises(VerificationError, match="the manifest to be written"):
        write_manifest(manifest(variant(model_file="../x.onnx")))
    with pytest.raises(VerificationError):
        write_manifest(manifest(variant(ep="\ud800")))


def _mutations(tree: Any, draw: Any) -> None:
    """Replace one random value of the tree."""
    path = []
    node = tree
    while isinstance(node, (dict, list)) and node and (not path or draw(st.booleans())):
        key = draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
        path.append((node, key))
        node = node[key]
    if path:
        holder, key = path[-1]
        holder[key] = draw(
            st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.lists(st.text()), st.just({}))
        )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_mutation_is_read_or_refused(data: Any) -> None:
    tree = deepcopy(document())
    _mutations(tree, data.draw)
    with suppress(VerificationError):
        read(tree)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(VerificationError):
        read_manifest(data)
