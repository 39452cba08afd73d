"""Models x targets: matrix, names, globs, selection, EPs and their options; no EP needs to be installed."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hatch_epctx.config import Variant, expand, load_settings, single_variant
from hatch_epctx.config.project import tomllib
from hatch_epctx.errors import ConfigError

GOLDEN = Path(__file__).parent / "golden" / "variant-messages.toml"
CASES = tomllib.loads(GOLDEN.read_text(encoding="utf-8"))["case"]

ROOT = Path("/project")
ONE = '[models.a]\nsource = "a.onnx"\n'
MODELS = '[models.a]\nsource = "m/a.onnx"\n[models.b]\nsource = "b.onnx"\nship-source = true\n'
CPU = '[targets.intel-cpu]\nep = "openvino"\n'
SNAPDRAGON = """[targets.snapdragon]
ep = "qnn"
matrix = { soc_model = ["60", 88] }
provider-options = { backend_type = "htp" }
"""
TARGETS = CPU + SNAPDRAGON


def variants(text: str, root: Path = ROOT, **environ: str) -> tuple[Variant, ...]:
    table = {"package": "acme", **tomllib.loads(text)}
    return expand(load_settings(table, environ=environ, state="wheel"), root)


def names(text: str, **environ: str) -> list[str]:
    return [variant.name for variant in variants(text, **environ)]


def error_of(text: str, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        variants(text, **environ)
    assert caught.value.exit_code == 2
    return str(caught.value)


def texts(options: Any) -> dict[str, str]:
    return {option.name: option.text for option in options}


def test_order_is_that_of_declaration_and_sources_come_last() -> None:
    assert names(MODELS + TARGETS) == [
        "a.intel-cpu",
        "a.snapdragon-60",
        "a.snapdragon-88",
        "b.intel-cpu",
        "b.snapdragon-60",
        "b.snapdragon-88",
        "b.source",
    ]


def test_a_variant_is_complete() -> None:
    text = """
        [models.a]
        source = "m/a.onnx"
        free-dimensions = { batch = 1 }
        free-dimension-denotations = { DATA = 2 }
        [targets.x]
        ep = "OpenVINOExecutionProvider"
        device = "cpu"
        provider-options = { load_config = { CPU = { INFERENCE_PRECISION_HINT = "f32" } } }
        session-options = { "session.disable_cpu_ep_fallback" = true }
        embed = true
        optimization = "extended"
        load-check = false
        requires = ["onnxruntime-ep-openvino>=1.8"]
        env = { A = "1" }
        timeout = 7
        required = false
        """
    (variant,) = variants(text)
    assert (variant.model, variant.target, variant.base_target) == ("a", "x", "x")
    assert (variant.source, variant.device, variant.is_source) == (ROOT / "m/a.onnx", "cpu", False)
    assert (variant.provider.key, variant.optimization, variant.embed) == ("openvino", "extended", True)
    assert texts(variant.provider_options)["load_config"] == '{"CPU":{"INFERENCE_PRECISION_HINT":"f32"}}'
    assert (dict(variant.free_dimensions), dict(variant.free_dimension_denotations)) == ({"batch": 1}, {"DATA": 2})
    assert (dict(variant.session_options), dict(variant.env)) == ({"session.disable_cpu_ep_fallback": "1"}, {"A": "1"})
    assert (variant.load_check, variant.required, variant.timeout) == (False, False, 7.0)
    assert variant.requires == ("onnxruntime-ep-openvino>=1.8",)


def test_defaults_come_from_the_ep() -> None:
    (variant,) = variants('[models.a]\nsource = "a.onnx"\n' + CPU)
    assert variant.device == variant.provider.devices[0]
    assert variant.optimization == variant.provider.default_optimization
    assert variant.load_optimization == variant.provider.load_optimization


def test_matrix_values_are_options_and_part_of_the_name() -> None:
    _, first, second = variants('[models.a]\nsource = "a.onnx"\n' + TARGETS)
    assert (first.target, first.base_target) == ("snapdragon-60", "snapdragon")
    assert texts(first.provider_options)["soc_model"] == "60"
    assert texts(second.provider_options)["soc_model"] == "88"
    assert texts(first.provider_options)["backend_type"] == "htp"


def test_several_matrix_keys_multiply_in_the_order_of_their_declaration() -> None:
    text = '[models.a]\nsource = "a.onnx"\n[targets.q]\nep = "qnn"\n'
    text += 'matrix = { htp_graph_finalization_optimization_mode = [3, 1], soc_model = ["88", "60"] }'
    assert names(text) == ["a.q-3-88", "a.q-3-60", "a.q-1-88", "a.q-1-60"]


def test_matrix_values_are_made_fit_for_a_name() -> None:
    text = '[models.a]\nsource = "a.onnx"\n[targets.q]\nep = "qnn"\nallow-unknown-options = ["new"]\n'
    text += 'matrix = { soc_model = [60], new = ["a.b/c d", true, 1.5] }'
    assert names(text) == ["a.q-60-a-b-c-d", "a.q-60-true", "a.q-60-1-5"]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ('["intel-cpu"]', ["intel-cpu"]),
        ('["snapdragon-*"]', ["snapdragon-60", "snapdragon-88"]),
        ('["snapdragon"]', ["snapdragon-60", "snapdragon-88"]),
        ('["snapdragon-88", "intel-*"]', ["intel-cpu", "snapdragon-88"]),
        ('["*", "intel-cpu"]', ["intel-cpu", "snapdragon-60", "snapdragon-88"]),
        ('["*-[6-7]0"]', ["snapdragon-60"]),
    ],
)
def test_targets_of_a_model(patterns: str, expected: list[str]) -> None:
    text = f'[models.a]\nsource = "a.onnx"\ntargets = {patterns}\n{TARGETS}'
    assert names(text) == [f"a.{name}" for name in expected]


def test_only_the_source() -> None:
    assert names('[models.a]\nsource = "a.onnx"\nship-source = true\ntargets = []\n' + TARGETS) == ["a.source"]
    assert names('[models.a]\nsource = "a.onnx"\nship-source = true\n') == ["a.source"]


def test_a_shipped_source_depends_on_nothing_but_the_model() -> None:
    text = MODELS.replace("ship-source = true", "ship-source = true\nfree-dimensions = { batch = 1 }")
    source = variants(text + TARGETS)[-1]
    assert (source.is_source, source.provider.key, source.device) == (True, "cpu", "cpu")
    assert (source.free_dimensions, source.provider_options, source.env) == ({}, (), {})
    assert source.source == ROOT / "b.onnx"


def test_run_time_options_travel() -> None:
    text = '[models.a]\nsource = "a.onnx"\n[targets.x]\nep = "openvino"\ndevice = "cpu"\n'
    hint = "provider-options = { load_config = { CPU = { INFERENCE_PRECISION_HINT = 'f32' } } }\n"
    (variant,) = variants(text + hint)
    assert texts(variant.load_options) == {"load_config": '{"CPU":{"INFERENCE_PRECISION_HINT":"f32"}}'}
    assert variant.runtime_options == ()
    (variant,) = variants(text + hint + "runtime-options = { load_config = { CPU = { NUM_STREAMS = '1' } } }")
    assert texts(variant.load_options) == texts(variant.runtime_options)
    assert texts(variant.load_options)["load_config"] == '{"CPU":{"NUM_STREAMS":"1"}}'


def test_what_is_read_while_compiling_does_not_travel() -> None:
    *_, variant = variants('[models.a]\nsource = "a.onnx"\n' + SNAPDRAGON)
    assert "soc_model" not in texts(variant.load_options)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"EPCTX_MODELS": "a"}, ["a.intel-cpu", "a.snapdragon-60", "a.snapdragon-88"]),
        ({"EPCTX_TARGETS": "intel-*"}, ["a.intel-cpu", "b.intel-cpu", "b.source"]),
        (
            {"EPCTX_TARGETS": "snapdragon"},
            ["a.snapdragon-60", "a.snapdragon-88", "b.snapdragon-60", "b.snapdragon-88", "b.source"],
        ),
        ({"EPCTX_TARGETS": "snapdragon-60,intel-cpu", "EPCTX_MODELS": "a"}, ["a.intel-cpu", "a.snapdragon-60"]),
        ({"EPCTX_TARGETS": "source"}, ["b.source"]),
        ({"EPCTX_TARGETS": "source intel-cpu", "EPCTX_MODELS": "b"}, ["b.intel-cpu", "b.source"]),
    ],
)
def test_selection(environ: dict[str, str], expected: list[str]) -> None:
    assert names(MODELS + TARGETS, **environ) == expected


@pytest.mark.parametrize("case", CASES, ids=[f"{n}: {case['message'][:60]}" for n, case in enumerate(CASES)])
def test_message(case: dict[str, Any]) -> None:
    assert error_of(case["toml"], **case.get("environ", {})) == case["message"]


@pytest.mark.parametrize(
    ("table", "start"),
    [
        ('ep = "qnm"', "tool.epctx.targets.x.ep: unknown execution provider 'qnm'; expected one of "),
        ('ep = "cpu"', "tool.epctx.targets.x.ep: "),
        ('ep = "openvino"\ndevice = "tpu"', "tool.epctx.targets.x.device: "),
        ('ep = "qnn"\ndevice = "cpu"\nprovider-options = { soc_model = "60" }', "tool.epctx.targets.x.device: "),
        (
            'ep = "openvino"\nprovider-options = { bogus = 1 }',
            "tool.epctx.targets.x.provider-options.bogus: unknown option",
        ),
        ('ep = "qnn"\nprovider-options = { soc_model = "abc" }', "tool.epctx.targets.x.provider-options.soc_model: "),
        ('ep = "qnn"\nmatrix = { soc_model = ["abc"] }', "tool.epctx.targets.x.matrix.soc_model: "),
        (
            'ep = "openvino"\nruntime-options = { bogus = 1 }',
            "tool.epctx.targets.x.runtime-options.bogus: unknown option",
        ),
    ],
)
def test_eps_devices_and_options_are_checked(table: str, start: str) -> None:
    assert error_of(f"{ONE}[targets.x]\n{table}\n").startswith(start)


def test_the_suggestion_for_an_ep() -> None:
    assert error_of(ONE + '[targets.x]\nep = "qnm"').endswith("Did you mean 'qnn'?")


def test_an_ep_without_epcontext_says_why_and_what_to_do() -> None:
    text = error_of(ONE + '[targets.x]\nep = "cpu"')
    assert " writes no EPContext models: " in text
    assert text.endswith("To ship the source model, leave this target out and set 'ship-source = true' on the model.")


def test_targets_are_checked_though_nobody_uses_or_selects_them() -> None:
    text = ONE + 'targets = ["intel-cpu"]\n' + CPU + '[targets.x]\nep = "qnm"'
    assert error_of(text, EPCTX_TARGETS="intel-cpu").startswith("tool.epctx.targets.x.ep: ")


def test_a_target_that_failed_is_not_called_missing() -> None:
    text = ONE + 'targets = ["x", "y-*", "z"]\n[targets.x]\nep = "qnm"\n'
    text += '[targets.y]\nep = "qnm"\nmatrix = { soc_model = ["60"] }\n'
    lines = error_of(text).splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        "3 errors in the configuration",
        "tool.epctx.targets.x.ep",
        "tool.epctx.targets.y.ep",
        "tool.epctx.models.a.targets[2]",
    ]


def test_one_mistake_in_a_matrix_is_told_once() -> None:
    text = ONE + '[targets.x]\nep = "qnn"\nmatrix = { soc_model = ["60", "88"] }\nprovider-options = { bogus = 1 }'
    assert error_of(text).startswith("tool.epctx.targets.x.provider-options.bogus: ")


def test_an_unknown_option_passes_when_it_is_named() -> None:
    text = ONE + '[targets.x]\nep = "openvino"\nallow-unknown-options = ["bogus"]\nprovider-options = { bogus = "1" }'
    (variant,) = variants(text)
    assert texts(variant.provider_options)["bogus"] == "1"


def test_errors_of_a_hook_table_name_it() -> None:
    table = {"package": "acme", **tomllib.loads(ONE + CPU)}
    hook = tomllib.loads('[targets.intel-cpu]\nep = "qnm"')
    with pytest.raises(ConfigError, match=r"^tool\.hatch\.build\.hooks\.epctx\.targets\.intel-cpu\.ep: "):
        expand(load_settings(table, hook=hook, environ={}, state="wheel"), ROOT)


def test_variants_are_immutable() -> None:
    variant = variants(MODELS + TARGETS)[0]
    with pytest.raises(AttributeError):
        variant.embed = True  # type: ignore[misc]
    with pytest.raises(TypeError):
        variant.env["A"] = "1"  # type: ignore[index]


# One model outside any project.


def test_single_variant() -> None:
    target = {"ep": "qnn", "provider-options": {"soc_model": "60"}, "embed": True}
    variant = single_variant(Path("/x/detector v2.onnx"), target, model={"free-dimensions": {"batch": 1}})
    assert (variant.model, variant.target, variant.source) == ("detector v2", "qnn", Path("/x/detector v2.onnx"))
    assert (variant.embed, dict(variant.free_dimensions)) == (True, {"batch": 1})


@pytest.mark.parametrize(
    ("target", "start"),
    [
        ({"ep": "qnm"}, "ep: unknown execution provider 'qnm'"),
        ({}, "ep: missing"),
        ({"ep": "openvino", "provider-options": {"bogus": "1"}}, "provider-options.bogus: unknown option"),
        ({"ep": "openvino", "session-options": {"ep.context_enable": "1"}}, 'session-options."ep.context_enable": '),
        ({"ep": "openvino", "colour": 1}, "unknown key 'colour'"),
    ],
)
def test_single_variant_errors(target: dict[str, Any], start: str) -> None:
    with pytest.raises(ConfigError) as caught:
        single_variant(Path("a.onnx"), target)
    assert str(caught.value).startswith(start)


# For any names and matrix.

name = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,8}", fullmatch=True)
unique_names = st.lists(name, min_size=1, max_size=4, unique_by=str.lower)
slow_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)


@slow_machine
@given(unique_names, unique_names, st.lists(st.sampled_from([30, 43, 60, 88]), min_size=1, max_size=3, unique=True))
def test_every_model_meets_every_target_once(models: list[str], targets: list[str], socs: list[int]) -> None:
    assume(not {"source", "con", "prn", "aux", "nul"} & {each.lower() for each in [*models, *targets]})
    table = {
        "package": "acme",
        "models": {each: {"source": f"{each}.onnx"} for each in models},
        "targets": {each: {"ep": "qnn", "matrix": {"soc_model": socs}} for each in targets},
    }
    made = [f"{target}-{soc}".lower() for target in targets for soc in socs]
    assume(len(set(made)) == len(made))
    found = expand(load_settings(table, environ={}, state="wheel"), ROOT)
    expected = [(model, f"{target}-{soc}") for model in models for target in targets for soc in socs]
    assert [(variant.model, variant.target) for variant in found] == expected


@slow_machine
@given(st.text("intelcpusad-*?[]06", min_size=1, max_size=6))
def test_a_glob_selects_what_it_matches_or_is_an_error(pattern: str) -> None:
    every = ["intel-cpu", "snapdragon-60", "snapdragon-88"]
    bases = ["intel-cpu", "snapdragon", "snapdragon"]
    wanted = [
        each
        for each, base in zip(every, bases, strict=True)
        if fnmatchcase(each, pattern) or fnmatchcase(base, pattern)
    ]
    text = ONE + TARGETS
    if wanted:
        assert names(text, EPCTX_TARGETS=pattern) == [f"a.{each}" for each in wanted]
    else:
        assert error_of(text, EPCTX_TARGETS=pattern).startswith(f"EPCTX_TARGETS: {pattern!r} matches no target")
