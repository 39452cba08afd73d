"""Differences of identity documents in words."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hatch_epctx.changes import in_words, miss_in_words
from hatch_epctx.digest import is_digest
from hatch_epctx.pipeline.earlier import seconds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GOLDEN = Path(__file__).parent / "golden"


def document() -> dict[str, Any]:
    return {
        "format": "epctx/1",
        "model": {"onnx": "a" * 64, "external-data": [{"location": "detector.data", "digest": "b" * 64}]},
        "compile": {
            "embed": False,
            "free-dimensions": {"batch": 1},
            "optimization": "basic",
            "session-options": {"session.disable_cpu_ep_fallback": "1"},
        },
        "target": {
            "device": "cpu",
            "env": {},
            "ep": "OpenVINOExecutionProvider",
            "provider-options": {
                "load_config": '{"CPU":{"INFERENCE_PRECISION_HINT":"f32"}}',
                "table": {"content": "c" * 64},
            },
            "runtime-options": {},
        },
        "toolchain": {
            "cores": 2,
            "device": {"metadata": {"driver": "1.0"}},
            "ep": {"distribution": "onnxruntime-ep-openvino", "version": "1.8.0", "digest": "d" * 64},
            "isa": ["avx2", "fma"],
            "onnxruntime": {"distribution": "onnxruntime", "version": "1.32.0", "digest": "e" * 64},
            "sdk": {"openvino": "2026.1"},
        },
        "worker": {"format": 1},
    }


def put(*path: str | int) -> Callable[[dict[str, Any], Any], None]:
    def change(target: dict[str, Any], value: Any) -> None:
        node: Any = target
        for key in path[:-1]:
            node = node[key]
        if value is ...:
            del node[path[-1]]
        else:
            node[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("model", "onnx"), "f" * 64, "the model's ONNX file changed"),
        (("model", "external-data", 0, "digest"), "f" * 64, "weights file detector.data changed"),
        (("compile", "embed"), True, "embedding of the context binary: false -> true"),
        (("compile", "free-dimensions", "batch"), 2, "free dimension batch: 1 -> 2"),
        (("compile", "free-dimensions", "batch"), ..., "free dimension batch: 1 -> (none)"),
        (("compile", "optimization"), "all", "optimisation level: basic -> all"),
        (
            ("compile", "session-options", "session.disable_cpu_ep_fallback"),
            "0",
            "session option session.disable_cpu_ep_fallback: 1 -> 0",
        ),
        (("target", "device"), "gpu", "device: cpu -> gpu"),
        (("target", "env", "A"), "1", "environment variable A: (none) -> 1"),
        (
            ("target", "provider-options", "load_config"),
            '{"CPU":{"INFERENCE_PRECISION_HINT":"bf16"}}',
            "provider option load_config, CPU.INFERENCE_PRECISION_HINT: f32 -> bf16",
        ),
        (("target", "provider-options", "table", "content"), "f" * 64, "the file of provider option table changed"),
        (("target", "provider-options", "level"), "3", "provider option level: (none) -> 3"),
        (("toolchain", "cores"), 4, "CPUs that may be used: 2 -> 4"),
        (("toolchain", "device", "metadata", "driver"), "1.1", "device, driver: 1.0 -> 1.1"),
        (("toolchain", "isa"), ["avx2", "avx512f"], "CPU features changed: now without fma and with avx512f"),
        (("toolchain", "isa"), 7, 'CPU features: ["avx2","fma"] -> 7'),
        (("toolchain", "isa"), [["avx2"], 1, "fma"], "CPU features changed: now without avx2 and with 1, ['avx2']"),
        (("toolchain", "sdk", "openvino"), "2026.2", "SDK openvino: 2026.1 -> 2026.2"),
        (("worker", "format"), 2, "compile procedure of hatch-epctx: 1 -> 2"),
        (("toolchain", "strange"), "x", "toolchain.strange: (none) -> x"),
    ],
)
def test_one_field_is_one_line(path: tuple[str | int, ...], value: Any, words: str) -> None:
    changed = deepcopy(document())
    put(*path)(changed, value)
    assert in_words(document(), changed) == (words,)


@pytest.mark.parametrize("damage", [{"members": 5}, {"members": [1, None]}, {"seconds": [1]}])
def test_a_damaged_result_only_says_less_of_its_cost(damage: dict[str, Any]) -> None:
    assert seconds_of(damage) is None
    assert seconds_of({"seconds": {"compile": 1.5}, "members": [{"seconds": {"load": 1}}, 3]}) == 2.5


def test_an_option_of_bottomless_json_is_told_as_text() -> None:
    """A document of the store or of epctx.lock may hold any text."""
    changed = deepcopy(document())
    changed["target"]["provider-options"]["load_config"] = '{"a":' * 100_000 + "1" + "}" * 100_000
    (words,) = in_words(document(), changed)
    assert words.startswith("provider option load_config")
    assert len(words) < 1000


def test_a_library_is_one_line_whatever_of_it_changed() -> None:
    changed = document()
    changed["toolchain"]["ep"] |= {"version": "1.8.1", "digest": "0" * 64}
    assert in_words(document(), changed) == ("EP library changed: onnxruntime-ep-openvino 1.8.0 -> 1.8.1",)
    changed = document()
    changed["toolchain"]["onnxruntime"]["digest"] = "0" * 64
    assert in_words(document(), changed) == (
        "ONNX Runtime changed: files of onnxruntime 1.32.0 differ (eeeeeeeeeeee -> 000000000000)",
    )
    changed = document()
    changed["toolchain"]["ep"] = {"distribution": "other", "version": "1", "digest": "0" * 64}
    assert in_words(document(), changed) == ("EP library changed: onnxruntime-ep-openvino 1.8.0 -> other 1",)
    changed["toolchain"]["ep"] = None
    assert in_words(document(), changed) == ("EP library changed: onnxruntime-ep-openvino 1.8.0 -> (none)",)


def test_weights_that_come_and_go() -> None:
    changed = document()
    changed["model"]["external-data"] = [{"location": "new.data", "digest": "b" * 64}]
    assert set(in_words(document(), changed)) == {"weights file detector.data is gone", "weights file new.data is new"}
    changed["model"]["external-data"] = []
    assert in_words(document(), changed) == ("weights file detector.data is gone",)


def test_the_model_stands_first_and_nothing_is_said_of_what_is_equal() -> None:
    changed = document()
    changed["toolchain"]["ep"]["version"] = "1.8.1"
    changed["compile"]["embed"] = True
    changed["model"]["onnx"] = "f" * 64
    words = in_words(document(), changed)
    assert [line.split(":")[0] for line in words] == [
        "the model's ONNX file changed",
        "embedding of the context binary",
        "EP library changed",
    ]
    assert in_words(document(), document()) == ()


def leaves(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value of a document that holds no other."""
    members = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    if not members or not node:
        yield path, node
    for key, value in members:
        yield from leaves(value, (*path, key))


def another(value: Any) -> Any:
    """A value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return "0" * 64 if is_digest(value) else f"{value}x"
    return "0" * 64 if value is None else ["new"] if value == [] else {"new": "1"}


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("identity-*.json")), ids=lambda path: path.stem)
def test_whatever_changed_there_are_words_and_never_only_a_digest(golden: Path) -> None:
    old = json.loads(golden.read_text(encoding="utf-8"))
    old = old.get("document", old)
    old["compile"]["calibration"] = "c" * 64
    found = [path for path, _ in leaves(old)]
    assert len(found) > 30
    for path, value in leaves(old):
        if path == ("model", "external-data"):
            continue  # a list of tables: files that come and go have a test of their own
        changed = deepcopy(old)
        put(*path)(changed, another(value))
        words = in_words(old, changed)
        assert words, path
        for line in words:
            assert not re.search(r"[0-9a-f]{64}", line), line
            assert re.sub(r"\b[0-9a-f]{12}\b|->|[:().]|differ", "", line).strip(), line


def test_misses_have_words() -> None:
    assert miss_in_words("absent") == "not in the store"
    assert miss_in_words("not cacheable: the driver") == "not cacheable: the driver"
