"""The stub's procedure: tasks compile, load and probe; scan and source are the real ones."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from onnx import ModelProto, TensorProto, helper

from hatch_epctx.worker import compiling, graphs, sharing
from hatch_epctx.worker import procedure as real
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.protocol import CONTEXT_NAME, FORMAT, MODEL_NAME, RESULT_NAME
from hatch_epctx.worker.rewriting import ContentNames
from hatch_epctx.worker.scanning import parse

BINARY = "model_ctx_stub.bin"


def run(job: dict[str, Any]) -> dict[str, Any]:
    try:
        if job["task"] == "compile":
            return {"format": FORMAT, **_compile(job)}
        if job["task"] == "share":
            return {"format": FORMAT, **_share(job)}
        if job["task"] in ("load", "warm"):
            return {"format": FORMAT, **_load(job)}
        if job["task"] == "check":
            return {"format": FORMAT, **_check(job)}
        if job["task"] == "probe":
            return {"format": FORMAT, **_probe(job)}
    except TaskError as error:
        return real.failed(error)
    return real.run(job)


def _compile(job: dict[str, Any]) -> dict[str, Any]:
    mode = job["provider_options"].get("mode", "ok")
    if mode == "old-output":
        _write(job, "ok", parse(Path(MODEL_NAME)))
    source = compiling.prepare(job)
    _before(job, mode)
    if mode not in ("no-output", "old-output"):
        _write(job, mode, source.model)
    _after(job, mode, source)
    result = compiling.finish(job, source)
    result["ep_version"] = "1.0"
    result["onnxruntime"] = "0"
    return dict(result)


def _share(job: dict[str, Any]) -> dict[str, Any]:
    """Every member in turn; in mode "share" they get one binary, made of what all of them are made of."""
    jobs = sharing.member_jobs(job)
    sources = []
    for position, member in enumerate(jobs):
        with sharing.about(position):
            sources.append(compiling.prepare(member))
    mode = job["provider_options"].get("mode", "ok")
    for position, (member, source) in enumerate(zip(jobs, sources, strict=True)):
        with sharing.about(position):
            _before(member, mode)
            _write(member, mode, source.model, BINARY if mode.startswith("share") else f"model-{position}_stub.bin")
    names = ContentNames(Path.cwd())
    results = []
    for position, (member, source) in enumerate(zip(jobs, sources, strict=True)):
        with sharing.about(position):
            results.append(compiling.finish(member, source, names))
    sharing.check_partitions([member["output"] for member in jobs])
    return {"ok": True, "members": results, "ep_version": "1.0", "onnxruntime": "0"}


def _before(job: dict[str, Any], mode: str) -> None:
    """What happens before anything is written."""
    if mode == "fail":
        raise TaskError("ep-error", "the stub fails as it was told", remedy="Choose another mode.")
    if mode == "raise":
        raise RuntimeError(f"nobody expects this in {Path.cwd()}/deep/inside")
    if mode == "no-node":
        raise TaskError("no-node", "the stub took no node of the model", remedy="Choose another mode.")
    if mode == "crash-before":
        os._exit(3)
    if mode == "abort":
        os.abort()
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    _linger(job, mode)
    _log(mode)


def _linger(job: dict[str, Any], mode: str) -> None:
    if mode in ("hang-child", "leave-child"):
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        Path("grandchild.pid").write_text(str(other.pid))
    if mode in ("hang", "hang-child"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path("hanging").touch()
        while True:
            time.sleep(60)
    if mode == "slow":
        time.sleep(float(job["provider_options"].get("seconds", "1")))


def _log(mode: str) -> None:
    if mode == "noisy":
        for _ in range(4096):
            os.write(1, b"x" * 1023 + b"\n")
            os.write(2, b"y" * 1023 + b"\n")
    while mode == "flood":
        os.write(1, b"flood " * 10000)
    if mode == "escapes":
        os.write(1, b"\x1b[31mcompiling\x1b[0m 1%\r\x1b[2Kcompiling 100%\r\n")
        os.write(2, b"\x1b]0;title\x07in " + os.fsencode(Path.cwd() / "deep"))
        os._exit(3)


def _after(job: dict[str, Any], mode: str, source: Any) -> None:
    """What happens after the output was written."""
    if mode == "crash-after":
        os._exit(3)
    if mode == "crash-late":
        result = {"format": FORMAT, **compiling.finish(job, source)}
        Path(RESULT_NAME).write_text(json.dumps(result))
        os._exit(3)
    if mode == "exit-zero":
        os._exit(0)
    if mode == "bad-result":
        Path(RESULT_NAME).write_text(json.dumps({"format": FORMAT, "ok": True, "artifacts": "all of them"}))
        os._exit(0)
    if mode == "huge-result":
        Path(RESULT_NAME).write_bytes(b" " * (32 << 20))
        os._exit(0)
    if mode == "orphan":
        Path("orphan.bin").write_bytes(b"nobody refers to me")
        Path(f"{CONTEXT_NAME.removesuffix('.onnx')}_orphan.bin").write_bytes(b"nor to me")


def _payload(job: dict[str, Any], mode: str) -> bytes:
    """4 KiB that are a function of the job's fields and of the files in its folder."""
    skipped = {"sys_path", "task", "procedure", "module"}
    if mode.startswith("share"):  # one payload for all
        skipped |= {"model", "output", "session_options"}
    hasher = hashlib.sha256(json.dumps({k: v for k, v in job.items() if k not in skipped}, sort_keys=True).encode())
    own = ("job.json", "worker.log")  # and what this run wrote
    files = (path for path in Path().rglob("*") if path.is_file() and path.name not in own)
    for path in sorted(path for path in files if not path.name.endswith(("_ctx.onnx", "_stub.bin"))):
        hasher.update(f"{path.as_posix()}:{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    if mode == "random":
        hasher.update(os.urandom(16))
    return b"".join(hashlib.sha256(hasher.digest() + bytes([index])).digest() for index in range(128))


def _write(job: dict[str, Any], mode: str, source: ModelProto, binary: str = BINARY) -> None:
    """A small EPContext model, or what the mode makes of it."""
    payload, output = _payload(job, mode), Path(job.get("output", CONTEXT_NAME))
    if mode == "garbage":
        output.write_bytes(payload)
        return
    if mode == "path-in-binary":
        payload += os.fsencode(Path.cwd() / "deep")
    asked = {**job, "embed": False} if mode == "not-embedded" else job
    model = _context_model(asked, mode, source, b"" if mode == "empty-payload" else payload, binary)
    _distort_nodes(model, mode)
    _distort_texts(model, mode)
    _distort_interface(model, mode)
    output.write_bytes(model.SerializeToString())


def _distort_nodes(model: ModelProto, mode: str) -> None:
    node = model.graph.node[0]
    attributes = {attribute.name: attribute for attribute in node.attribute}
    if mode == "no-context":
        node.op_type = "Identity"
    if mode == "no-primary":
        attributes["main_context"].i = 0
        attributes["ep_cache_context"].s = b""
    if mode == "two-sources":
        other = model.graph.node.add()
        other.CopyFrom(node)
        other.output[:] = [f"{name}_too" for name in node.output]
        next(attribute for attribute in other.attribute if attribute.name == "source").s = b"CPUExecutionProvider"
    if mode == "memory-address":
        tensor = model.graph.initializer.add(name="address", data_type=TensorProto.FLOAT, dims=[2])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "*/_ORT_MEM_ADDR_/*"), ("offset", "94906265624"), ("length", "8")):
            tensor.external_data.add(key=key, value=value)


def _distort_texts(model: ModelProto, mode: str) -> None:
    if mode == "path-inside":
        model.graph.node[0].doc_string = f"made in {Path.cwd()}"
    if mode == "python-path":
        model.metadata_props.add(key="made-by", value=f"{sys.prefix}/lib/compiler")
    if mode == "lost-metadata":
        for entry in model.metadata_props:
            entry.value += " and more"


def _context_model(job: dict[str, Any], mode: str, source: ModelProto, payload: bytes, binary: str) -> ModelProto:
    """One EPContext node from all inputs to all outputs; in mode partial, a CPU node behind the first output."""
    own = {tensor.name for tensor in source.graph.initializer}
    inputs = [value for value in source.graph.input if value.name not in own]
    outputs = [value.name for value in source.graph.output]
    made = [f"{outputs[0]}_context", *outputs[1:]] if mode == "partial" else outputs
    ep = "OpenVINOExecutionProvider" if mode == "foreign-source" else job["ep"]
    node = helper.make_node(
        "EPContext",
        [value.name for value in inputs],
        made,
        name=f"{ep}_0",
        domain="com.microsoft",
        main_context=1,
        embed_mode=int(job.get("embed", False)),
        ep_cache_context=payload if job.get("embed") else _binary(mode, payload, binary),
        source=ep,
        partition_name="stub_0" if mode == "share-clash" else f"stub_{job.get('output', '0')}",
    )
    nodes = [node]
    if mode == "partial":
        nodes.append(helper.make_node("Identity", made[:1], outputs[:1], name="left"))
    graph = helper.make_graph(nodes, "stub", inputs, list(source.graph.output))
    sizes = job.get("free_dimensions", {})
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    opsets = [*source.opset_import, helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    model.metadata_props.extend(source.metadata_props)
    model.metadata_props.add(key=f"ep_compatibility_info.{job['ep']}", value=f"stub:{job.get('device', 'cpu')}")
    return model


def _binary(mode: str, payload: bytes, name: str) -> bytes:
    """Write the context binary; return the reference to it."""
    if mode == "missing-payload":
        return b"not_there.bin"
    if mode == "absolute":
        return os.fsencode(Path.cwd() / name)
    if mode == "escape":
        Path("../escaped.bin").write_bytes(payload)
        return b"../escaped.bin"
    if mode == "link-payload":
        Path("target.bin").write_bytes(payload)
        Path(name).symlink_to("target.bin")
    else:
        Path(name).write_bytes(payload)
    return name.encode()


def _distort_interface(model: ModelProto, mode: str) -> None:
    output = model.graph.output[0].type.tensor_type
    if mode == "wrong-input":
        model.graph.input[0].name += "_renamed"
    if mode == "wrong-type":
        output.elem_type = TensorProto.DOUBLE
    if mode == "lost-shape":
        output.shape.dim[-1].ClearField("value")
    if mode == "wrong-shape":
        output.shape.dim[-1].dim_value += 1


def _load(job: dict[str, Any]) -> dict[str, Any]:
    mode = job["provider_options"].get("mode", "ok")
    if mode == "load-crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if mode == "load-hang":
        while True:
            time.sleep(60)
    model = parse(Path(job["model"]))
    for node in graphs.context_nodes(model):
        name = graphs.attribute_text(node, "ep_cache_context") or ""
        if graphs.attribute_number(node, "embed_mode", 1) == 0 and not Path(name).is_file():
            raise TaskError("load-failed", f"the context binary {name} is not there")
    if mode == "load-fail":
        raise TaskError("load-failed", "the stub cannot open the model, as it was told", remedy="Choose another mode.")
    if mode == "load-fallback":
        raise TaskError("fallback", f"ONNX Runtime opened the model on CPUExecutionProvider in place of {job['ep']}")
    if mode == "run-fail":
        raise TaskError("run-failed", f"{job['ep']} opens the model and fails at the first inference: as it was told")
    if "cache_dir" in job["provider_options"]:
        _cache(Path(job["provider_options"]["cache_dir"]), mode)
    return {"ok": True, "providers": [job["ep"], "CPUExecutionProvider"], "seconds": {}, "extra": {}}


def _cache(folder: Path, mode: str) -> None:
    """What the EP does with its cache while it opens a model."""
    entry = folder / "k" / "entry.bin"
    if mode == "cache-again" or (mode == "cache" and not entry.exists()):
        entry.parent.mkdir(exist_ok=True)
        entry.unlink(missing_ok=True)
        entry.write_bytes(b"kernels")
    if mode == "cache-link":
        (folder / "link").symlink_to("/etc/hostname")
    if mode == "cache-odd":
        (folder / "a:b").write_bytes(b"kernels")
    if mode == "cache-deep":
        deep = folder.joinpath(*"abcdefghij")
        deep.mkdir(parents=True)
        (deep / "entry.bin").write_bytes(b"kernels")
    for number in range(1025 if mode == "cache-many" else 0):
        (folder / f"{number}.bin").write_bytes(b"kernels")


def _check(job: dict[str, Any]) -> dict[str, Any]:
    if job["provider_options"].get("mode") == "check-no-device":
        raise TaskError("no-device", "the stub shows no device, as it was told")
    output = {"name": "y", "verdict": "within", "values": 1, "beyond": 0, "max_abs": 0.0, "max_rel": 0.0}
    output |= {"cosine": 1.0, "exact": False}
    return {"ok": True, "check": {"samples": 1, "generated": True, "device": "cpu", "outputs": [output]}}


def _probe(job: dict[str, Any]) -> dict[str, Any]:
    driver = (Path(__file__).parent / "driver.txt").read_text().strip()
    device = {
        "ep": job["ep"],
        "type": job["device"],
        "vendor": "Stub",
        "vendor_id": 0x57AB,
        "device_id": 1,
        "metadata": {"driver": driver, "version": "1.0"},
    }
    return {"ok": True, "devices": [device], "chosen": device, "ep_version": "1.0", "onnxruntime": "0"}
