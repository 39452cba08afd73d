"""Model folders of onnxruntime-genai whose parts are variants: a tiny language model, really generating."""

from __future__ import annotations

import json
import re
import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from runtime_support import F32, run_python
from support import REPOSITORY, save

from hatch_epctx import runtime
from hatch_epctx.config import load_project
from hatch_epctx.errors import LookupFailure
from hatch_epctx.pipeline import Pipeline
from hatch_epctx.runtime import genai
from hatch_epctx.runtime.choice import Choice
from hatch_epctx.runtime.epcaches import UsedCache
from hatch_epctx.runtime.genai import make_folder
from hatch_epctx.store import Store
from hatch_epctx.wheel import write_package

if TYPE_CHECKING:
    from pathlib import Path

WORDS, HEADS, SIZE = 32, 2, 4

GENERATE = """
import json, sys
import onnxruntime_genai as genai
genai.disable_telemetry_events()
from hatch_epctx import runtime
from pathlib import Path

package, folder, how = sys.argv[1:]
made = runtime.open(Path(package)).genai(folder, **json.loads(how))
model = genai.Model(made.config())
params = genai.GeneratorParams(model)
params.set_search_options(max_length=12)
generator = genai.Generator(model, params)
generator.append_tokens([1, 5, 7])
while not generator.is_done():
    generator.generate_next_token()
variants = {part: choice.variant for part, choice in made.choices.items()}
print(json.dumps([variants, [int(token) for token in generator.get_sequence(0)], str(made.path)]))
"""

PLAIN = """
import json, sys
import onnxruntime_genai as genai
genai.disable_telemetry_events()
for ep, library in json.loads(sys.argv[2]).items():
    genai.register_execution_provider_library(ep, library)
model = genai.Model(sys.argv[1])
params = genai.GeneratorParams(model)
params.set_search_options(max_length=12)
generator = genai.Generator(model, params)
generator.append_tokens([1, 5, 7])
while not generator.is_done():
    generator.generate_next_token()
print(json.dumps([int(token) for token in generator.get_sequence(0)]))
"""


def language_model() -> onnx.ModelProto:
    """One layer with a key-value cache, and a mean over it in place of attention."""
    random = np.random.default_rng(0)
    width = HEADS * SIZE
    weights = [
        numpy_helper.from_array(random.normal(size=(WORDS, width)).astype(np.float32), "embedding"),
        numpy_helper.from_array(random.normal(size=(width, WORDS)).astype(np.float32), "head"),
        numpy_helper.from_array(np.array([0, 0, HEADS, SIZE], np.int64), "split"),
        numpy_helper.from_array(np.array([0, 0, width], np.int64), "merge"),
    ]
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["x"]),
        helper.make_node("Reshape", ["x", "split"], ["heads"]),
        helper.make_node("Transpose", ["heads"], ["now"], perm=[0, 2, 1, 3]),
        helper.make_node("Concat", ["past_key_values.0.key", "now"], ["present.0.key"], axis=2),
        helper.make_node("Concat", ["past_key_values.0.value", "now"], ["present.0.value"], axis=2),
        helper.make_node("ReduceMean", ["present.0.value"], ["mean"], axes=[2], keepdims=1),
        helper.make_node("Add", ["now", "mean"], ["sum"]),
        helper.make_node("Transpose", ["sum"], ["turned"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["turned", "merge"], ["out"]),
        helper.make_node("MatMul", ["out", "head"], ["logits"]),
    ]

    def value(name: str, dims: list[Any], kind: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, kind, dims)

    past, total = ["batch", HEADS, "past", SIZE], ["batch", HEADS, "total", SIZE]
    inputs = [
        value("input_ids", ["batch", "sequence"], TensorProto.INT64),
        value("attention_mask", ["batch", "total"], TensorProto.INT64),
        value("past_key_values.0.key", past),
        value("past_key_values.0.value", past),
    ]
    outputs = [
        value("logits", ["batch", "sequence", WORDS]),
        value("present.0.key", total),
        value("present.0.value", total),
    ]
    graph = helper.make_graph(nodes, "lm", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def configuration(filename: str = "llm.onnx") -> dict[str, Any]:
    decoder = {
        "filename": filename,
        "head_size": SIZE,
        "hidden_size": HEADS * SIZE,
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
        "num_key_value_heads": HEADS,
        "session_options": {"log_id": "acme", "provider_options": []},
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": WORDS, "context_length": 64}
    search = {"max_length": 16, "do_sample": False, "past_present_share_buffer": False}
    return {"model": {"type": "llama", "decoder": decoder, **tokens}, "search": search}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package with the language model compiled for OpenVINO, and its source."""
    folder = tmp_path_factory.mktemp("lm")
    save(language_model(), folder / "llm.onnx")
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "acme"\nversion = "1"\n[tool.epctx]\npackage = "acme"\n'
        '[tool.epctx.models.llm]\nsource = "llm.onnx"\nship-source = true\n'
        "[tool.epctx.targets.intel]\nep = 'openvino'\n"
        "provider-options = { load_config = { CPU = { INFERENCE_PRECISION_HINT = 'f32' } } }\n"
    )
    project = load_project(folder, environ={}, state="wheel")
    with Pipeline(project, Store(folder / "store")).build() as built:
        built.raise_for_failures()
        write_package(built, folder / "out", version="1")
    return folder / "out"


@pytest.fixture
def folder(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder as a model builder leaves it, and a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    made = tmp_path / "llm"
    made.mkdir()
    (made / "genai_config.json").write_text(json.dumps(configuration()))
    (made / "tokenizer.json").write_text("{}")
    (made / "llm.onnx").write_bytes((package / "llm.onnx").read_bytes())
    (made / "llm.onnx.data").write_bytes(b"weights that the compiled model has no use for")
    return made


def document(made: Any) -> Any:
    return json.loads((made.path / "genai_config.json").read_text())


@pytest.mark.ep_openvino
class TestGenerating:
    def test_the_compiled_variant_says_what_the_source_says(self, package: Path, folder: Path) -> None:
        pytest.importorskip("onnxruntime_genai")
        said = {}
        for variant in ("intel", "source"):
            done = run_python(GENERATE, str(package), str(folder), json.dumps({"variant": variant}))
            assert done.returncode == 0, done.stderr
            variants, tokens, _ = json.loads(done.stdout.splitlines()[-1])
            assert variants == {"decoder": variant}
            said[variant] = tokens
        assert len(said["intel"]) == 12
        assert said["intel"] == said["source"]
        plain = run_python(PLAIN, str(folder), "{}")
        assert json.loads(plain.stdout.splitlines()[-1]) == said["source"], plain.stderr

    def test_an_emitted_folder_needs_nothing_of_ours(self, package: Path, folder: Path, tmp_path: Path) -> None:
        pytest.importorskip("onnxruntime_genai")
        import onnxruntime_ep_openvino as plugin

        made = runtime.open(package).genai(folder, out=tmp_path / "whole")
        assert made.path == tmp_path / "whole"
        assert not any(path.is_symlink() for path in made.path.iterdir())
        moved = made.path.rename(tmp_path / "elsewhere")
        done = run_python(PLAIN, str(moved), json.dumps({"OpenVINOExecutionProvider": plugin.get_library_path()}))
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout.splitlines()[-1])) == 12

    def test_the_code_of_the_documentation(self, package: Path, folder: Path, tmp_path: Path) -> None:
        pytest.importorskip("onnxruntime_genai")
        page = (REPOSITORY / "docs" / "runtime.md").read_text(encoding="utf-8")
        (code,) = re.findall(r"^```python\n(import onnxruntime_genai\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
        installed = tmp_path / "acme_vision"
        installed.mkdir()
        (installed / "_epctx").symlink_to(package)
        (installed / "llm").symlink_to(folder)
        checks = "\nprint(type(model).__name__, llm.choices['decoder'].variant)"
        done = run_python(code + checks, cwd=tmp_path, PYTHONPATH=str(tmp_path))
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "Model intel"


@pytest.mark.ep_openvino
class TestFolder:
    def test_what_it_says_and_holds(self, package: Path, folder: Path) -> None:
        made = runtime.open(package).genai(folder)
        decoder = document(made)["model"]["decoder"]
        assert decoder["filename"] == "llm.intel_ctx.onnx"
        assert decoder["session_options"] == {
            "log_id": "acme",
            "graph_optimization_level": "ORT_DISABLE_ALL",
            "session.disable_model_compile": "1",
            "provider_options": [
                {"OpenVINO": {"load_config": F32, "device_filtering_options": {"hardware_device_type": "cpu"}}}
            ],
        }
        assert decoder["inputs"] == configuration()["model"]["decoder"]["inputs"]
        names = sorted(path.name for path in made.path.iterdir())
        (binary,) = (name for name in names if name.endswith(".bin"))
        assert names == ["genai_config.json", "llm.intel_ctx.onnx", binary, "tokenizer.json"]
        assert (made.path / binary).resolve() == package / binary

    def test_the_same_choice_is_the_same_folder_and_a_moved_package_another(
        self, package: Path, folder: Path, tmp_path: Path
    ) -> None:
        first = runtime.open(package).genai(folder)
        assert runtime.open(package).genai(folder).path == first.path
        copy = tmp_path / "copy"
        copy.mkdir()
        for path in package.iterdir():
            (copy / path.name).write_bytes(path.read_bytes())
        assert runtime.open(copy).genai(folder).path != first.path
        (first.path / "tokenizer.json").unlink()
        assert (runtime.open(package).genai(folder).path / "tokenizer.json").read_text() == "{}"

    def test_parts_by_name_and_in_pipelines(self, package: Path, folder: Path) -> None:
        config = configuration("phi.onnx")
        config["model"]["decoder"]["pipeline"] = [
            {"context": {"filename": "llm.onnx"}},
            {"head": {"filename": "h.onnx"}},
        ]
        (folder / "genai_config.json").write_text(json.dumps(config))
        made = runtime.open(package).genai(folder)
        assert list(made.choices) == ["decoder.pipeline.context"]
        made = runtime.open(package).genai(folder, parts={"decoder": "llm"})
        assert sorted(made.choices) == ["decoder", "decoder.pipeline.context"]
        assert document(made)["model"]["decoder"]["pipeline"][1] == {"head": {"filename": "h.onnx"}}

    def test_the_source_runs_on_the_cpu_by_its_own_options(self, package: Path, folder: Path) -> None:
        made = runtime.open(package).genai(folder, variant="source")
        options = document(made)["model"]["decoder"]["session_options"]
        assert options == {"log_id": "acme", "graph_optimization_level": "ORT_ENABLE_ALL", "provider_options": []}

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (None, "genai_config.json: cannot be read"),
            ("[]", "has no object 'model'"),
            ('{"model": 1}', "has no object 'model'"),
            ("{", "no valid JSON"),
            ('{"model": {}}', "none of its parts is a model of the package (it has none)"),
            ('{"model": {"decoder": {"filename": "other.onnx"}}}', "(decoder: other.onnx)"),
            ("[" * 100_000, "no valid JSON"),
        ],
    )
    def test_what_is_no_model_folder(self, package: Path, folder: Path, text: str | None, said: str) -> None:
        if text is None:
            (folder / "genai_config.json").unlink()
        else:
            (folder / "genai_config.json").write_text(text)
        with pytest.raises(LookupFailure) as caught:
            runtime.open(package).genai(folder)
        assert said in str(caught.value)

    def test_unknown_parts_and_models(self, package: Path, folder: Path) -> None:
        with pytest.raises(LookupFailure, match=r"there is no part 'encoder'.*expected one of decoder"):
            runtime.open(package).genai(folder, parts={"encoder": "llm"})
        with pytest.raises(LookupFailure, match="there is no model 'lm'"):
            runtime.open(package).genai(folder, parts={"decoder": "lm"})

    def test_a_folder_that_holds_something_is_left_alone(self, package: Path, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine.txt").write_text("mine")
        with pytest.raises(LookupFailure, match="the folder is not empty"):
            runtime.open(package).genai(folder, out=tmp_path / "out")
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine.txt"]

    def test_no_place_for_it(self, package: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        with pytest.raises(LookupFailure, match="no folder can be made for onnxruntime-genai"):
            runtime.open(package).genai(folder)


# ---- what a manifest and options may not do


def a_choice(path: Path, **options: str) -> Choice:
    return Choice(
        model="llm",
        variant="v",
        ep="CPUExecutionProvider",
        device="cpu",
        path=path,
        provider_options={},
        rejected=(),
        session_options=options,
    )


def a_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "genai_config.json").write_text(json.dumps(configuration()))
    return folder


@pytest.mark.parametrize("whole", [False, True])
def test_a_file_called_like_the_configuration_is_refused_and_stays(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    installed = tmp_path / "genai_config.json"
    installed.write_text("installed")
    out = tmp_path / "out" if whole else None
    with pytest.raises(LookupFailure) as caught:
        make_folder(a_folder(tmp_path), lambda _: a_choice(installed), ("llm",), {}, out)
    assert caught.value.reason == "name-clash"
    assert installed.read_text() == "installed"


def test_a_whole_folder_names_no_cache_of_this_user(tmp_path: Path) -> None:
    (tmp_path / "llm.onnx").write_bytes(b"x")
    kept = UsedCache(
        path=tmp_path / "kept",
        provider_options={"load_config": str(tmp_path / "kept")},
        plain_options={"device_type": "CPU"},
        restored=True,
        hold=None,
    )
    choice = replace(
        a_choice(tmp_path / "llm.onnx"),
        ep="OpenVINOExecutionProvider",
        provider_options=kept.provider_options,
        ep_cache=kept,
    )
    made = make_folder(a_folder(tmp_path), lambda _: choice, ("llm",), {}, tmp_path / "out")
    decoder = json.loads((made.path / "genai_config.json").read_text())["model"]["decoder"]
    assert decoder["session_options"]["provider_options"] == [{"OpenVINO": {"device_type": "CPU"}}]


def test_what_cannot_be_made_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "llm.onnx").write_bytes(b"x")
    folder = a_folder(tmp_path)
    monkeypatch.setattr(genai, "_link", full)
    monkeypatch.setattr(genai, "copy_file", full)
    (tmp_path / "there").mkdir()
    before = sorted(tmp_path.iterdir())
    for out in (None, tmp_path / "new", tmp_path / "there"):
        with pytest.raises(LookupFailure, match="No space left"):
            make_folder(folder, lambda _: a_choice(tmp_path / "llm.onnx"), ("llm",), {}, out)
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "cache"] == before
    assert list((tmp_path / "there").iterdir()) == []
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.name.startswith(".tmp-")] == []


def test_a_whole_folder_is_never_seen_half_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llm.onnx").write_bytes(b"x")
    folder, out, seen = a_folder(tmp_path), tmp_path / "out", []
    out.mkdir()
    out.chmod(0o755)
    real = genai.copy_file

    def copied(path: Path, target: Path) -> None:
        seen.append(list(out.iterdir()))
        real(path, target)

    monkeypatch.setattr(genai, "copy_file", copied)
    make_folder(folder, lambda _: a_choice(tmp_path / "llm.onnx"), ("llm",), {}, out)
    assert seen == [[]]
    assert {path.name for path in out.iterdir()} == {"genai_config.json", "llm.onnx"}
    assert stat.S_IMODE(out.stat().st_mode) == 0o755, "as its owner made it"


def test_who_fills_the_folder_meanwhile_keeps_what_is_his(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llm.onnx").write_bytes(b"x")
    folder, out, real = a_folder(tmp_path), tmp_path / "out", genai.copy_file

    def copied(path: Path, target: Path) -> None:
        (out / "mine.txt").write_text("mine")
        real(path, target)

    monkeypatch.setattr(genai, "copy_file", copied)
    with pytest.raises(LookupFailure, match="the folder is not empty any more"):
        make_folder(folder, lambda _: a_choice(tmp_path / "llm.onnx"), ("llm",), {}, out)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_file_that_was_replaced_is_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where links are a privilege, the folder holds copies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(genai, "_link", genai.copy_file)
    folder, model = a_folder(tmp_path), tmp_path / "llm.onnx"
    for content in (b"old", b"newer"):
        model.write_bytes(content)
        made = make_folder(folder, lambda _: a_choice(model), ("llm",), {}, None)
        assert (made.path / "llm.onnx").read_bytes() == content


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("session.graph_optimization_level", "some"),
        ("session.intra_op_num_threads", "many"),
        ("session.enable_mem_pattern", "yes"),
    ],
)
def test_session_options_mean_what_they_mean_to_a_session(key: str, value: str, tmp_path: Path) -> None:
    choice = a_choice(tmp_path / "llm.onnx", **{key: value})
    with pytest.raises(LookupFailure, match=re.escape(f"{key} = '{value}'")) as caught:
        make_folder(a_folder(tmp_path), lambda _: choice, ("llm",), {}, None)
    assert caught.value.reason == "bad-option"
