"""Writes the first files of each corpus: good inputs, from which a fuzzer finds bad ones. Run when a format changes."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import support
from onnx import TensorProto, helper
from readers import IDENTITY
from store_support import outputs, record_of

from hatch_epctx.digest import digest_bytes
from hatch_epctx.identity import canonical
from hatch_epctx.lockfile import Lock, LockedVariant, write_lock
from hatch_epctx.remote.entry import RECORD_NAME, result_of, serialize
from hatch_epctx.remote.entry import Artifact as RemoteArtifact
from hatch_epctx.store import Artifact
from hatch_epctx.store.records import Marker, marker_bytes
from hatch_epctx.worker.protocol import FORMAT


def marker() -> list[bytes]:
    return [marker_bytes(Marker(generation="0" * 32, record=record_of(IDENTITY, outputs(IDENTITY))))]


def root() -> list[bytes]:
    fixed = {"format": "epctx-root/1", "name": IDENTITY, "identity": IDENTITY, "follows": "", "since": 1.5}
    follows = {**fixed, "name": "acme/detector.intel-cpu", "identity": "", "follows": IDENTITY}
    return [json.dumps(value).encode() for value in (fixed, follows)]


def manifest() -> list[bytes]:
    artifact = {"path": "m.t_ctx.onnx", "size": 3, "sha256": IDENTITY, "role": "model"}
    facts = {
        "format": "epctx-manifest/1", "kind": "compiled", "identity": IDENTITY, "artifacts": [artifact],
        "compatibility": "x", "device": "cpu", "options": {}, "toolchain": {}, "coverage": {}, "runtime": {},
        "signature": {},
    }  # fmt: skip
    ort = {
        "model_file": "m.t_ctx.onnx",
        "session_options": {"session.disable_cpu_ep_fallback": "1"},
        "provider_options": {"load_config": '{"CPU": {"A": "b"}}'},
    }
    variant = {"variant_directory": ".", "ep": "E", "device": "cpu", "compatibility_string": "x"}
    full = {**variant, "executor_info": {"ort": ort, "epctx": facts}}
    bare = {"variant_directory": ".", "ep": "E", "executor_info": {"ort": {"model_file": "m.onnx"}}}
    whole = {
        "schema_version": "1.0", "package_name": "p", "package_version": "1", "layout": "portable",
        "components": {"m": {"variants": {"t": full, "source": bare}}},
    }  # fmt: skip
    return [json.dumps(whole).encode()]


def result() -> list[bytes]:
    value = {"name": "x", "type": "float", "shape": [1, "n", None]}
    scan = {
        "inputs": [value], "outputs": [value], "external_data": ["w"], "nodes": 1, "opsets": {"": 17},
        "denotations": [], "context_sources": [], "embedded_size": 0,
    }  # fmt: skip
    artifact = {"role": "model", "path": "model_ctx.onnx", "size": 1, "digest": IDENTITY}
    compiled = {
        "artifacts": [artifact], "inputs": [value], "outputs": [value], "compatibility": "", "context_nodes": 1,
        "nodes_left": 0,
    }  # fmt: skip
    answers = [{"scan": scan}, {"devices": []}, compiled, compiled, {"providers": ["E"]}, {"scan": scan, "extra": {}}]
    good = [
        bytes([task]) + json.dumps({"format": FORMAT, "ok": True, **answer}).encode()
        for task, answer in enumerate(answers)
    ]
    bad = {"format": FORMAT, "ok": False, "error": "x", "reason": "ep-error", "remedy": ""}
    return [*good, b"\0" + json.dumps(bad).encode()]


def onnx() -> list[bytes]:
    plain = support.small_model(channels=1, size=2)
    external = support.small_model(channels=1, size=2, batch="n", weights="sub/w.data")
    external.graph.initializer[0].ClearField("raw_data")
    return [plain.SerializeToString(), external.SerializeToString()]


def references() -> list[bytes]:
    def model(**attributes: object) -> bytes:
        value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
        out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
        node = helper.make_node(
            "EPContext", ["x"], ["y"], domain="com.microsoft", source="OpenVINOExecutionProvider", **attributes
        )
        graph = helper.make_graph([node], "g", [value], [out])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        made: bytes = helper.make_model(graph, opset_imports=opsets).SerializeToString()
        return made

    return [
        model(embed_mode=0, ep_cache_context="a.bin", main_context=1),
        model(embed_mode=0, ep_cache_context="deep/b.bin"),
        model(embed_mode=0, ep_cache_context="../outside.bin"),
        model(embed_mode=1, ep_cache_context=b"payload"),
    ]


def wheel() -> list[bytes]:
    def made(compression: int) -> bytes:
        stream = io.BytesIO()
        files = {
            "acme_vision/__init__.py": b"",
            "acme_vision-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "acme_vision-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: acme-vision\nVersion: 1.0\n",
        }
        import base64

        rows = [
            f"{name},sha256={base64.urlsafe_b64encode(bytes.fromhex(digest_bytes(data))).rstrip(b'=').decode()},{len(data)}"
            for name, data in files.items()
        ]
        record = "acme_vision-1.0.dist-info/RECORD"
        files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
        with zipfile.ZipFile(stream, "w", compression) as archive:
            for name, data in files.items():
                archive.writestr(zipfile.ZipInfo(name), data, compression)
        return stream.getvalue()

    return [made(zipfile.ZIP_STORED), made(zipfile.ZIP_DEFLATED)]


def lock() -> list[bytes]:
    document = {"format": "epctx/1", "model": {"onnx": IDENTITY}, "target": {"ep": "stub", "options": {"a": "1"}}}
    artifact = Artifact(role="model", path="model_ctx.onnx", size=3, digest=IDENTITY)
    variant = LockedVariant(
        name="m.t", identity=digest_bytes(canonical(document)), document=document, artifacts=(artifact,), facts={}
    )
    return [write_lock(Lock(variants={"m.t": variant}, unlocked=frozenset({"m.u"})))]


def entry() -> list[bytes]:
    """A result with and without the record inside."""
    files = outputs(IDENTITY)
    record = json.dumps({"identity": IDENTITY, "document": {}, "artifacts": []}).encode()
    found = result_of(
        record, [RemoteArtifact(name, HERE, digest_bytes(data), len(data)) for name, data in files.items()]
    )
    plain = serialize(found)
    for output in found.output_files:
        if output.path == RECORD_NAME:
            output.contents = record
    return [plain, serialize(found)]


def archive() -> list[bytes]:
    made = []
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", compression) as zipped:
            zipped.writestr(zipfile.ZipInfo("acme/_epctx/manifest.json"), manifest()[0], compression)
        made.append(stream.getvalue())
    return made


def strict_json() -> list[bytes]:
    return [b'{"a": [1, -2.5e3, null, true, "\\u00e9\\n"], "b": {}}', b"[[[]]]", b'"x"', b"12345678901234567890"]


SEEDS = {
    "marker": marker, "root": root, "manifest": manifest, "result": result, "onnx": onnx, "references": references,
    "wheel": wheel, "json": strict_json, "lock": lock, "entry": entry, "archive": archive,
}  # fmt: skip


def main() -> None:
    for reader, seeds in SEEDS.items():
        folder = HERE / "corpus" / reader
        folder.mkdir(parents=True, exist_ok=True)
        for data in seeds():
            (folder / digest_bytes(data)[:40]).write_bytes(data)


if __name__ == "__main__":
    main()
