"""Layers, overrides and their conditions, precedence; what a table means when it is right."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hatch_epctx.config import Machine, Settings, load_settings
from hatch_epctx.config.layers import Layer, Layers, dotted, merge
from hatch_epctx.config.load import HATCH_KEYS
from hatch_epctx.config.project import tomllib
from hatch_epctx.errors import ConfigError

LINUX = Machine(system="linux", architecture="x86_64")
BASE = """
package = "acme"
[models.m]
source = "m.onnx"
[targets.t]
ep = "openvino"
provider-options = { load_config = { CPU = { A = "1", B = "2" } } }
"""


def load(
    text: str = BASE,
    *,
    hook: str | None = None,
    environ: dict[str, str] | None = None,
    state: Any = "wheel",
    machine: Machine = LINUX,
) -> Settings:
    table = None if hook is None else tomllib.loads(hook)
    return load_settings(tomllib.loads(text), hook=table, environ=environ or {}, state=state, machine=machine)


def error_of(*arguments: Any, **keywords: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*arguments, **keywords)
    return str(caught.value)


def test_the_whole_table_of_this_version() -> None:
    loaded = load("""
        package = "acme.vision"
        [models.detector]
        source = "./models//sub/../detector.onnx"
        free-dimensions = { batch = 1 }
        free-dimension-denotations = { DATA_BATCH = 2 }
        targets = ["intel-cpu", "snapdragon-*"]
        ship-source = true
        [targets.intel-cpu]
        ep = "openvino"
        device = "cpu"
        provider-options = { load_config = { CPU = { INFERENCE_PRECISION_HINT = "f32" } } }
        session-options = { "session.disable_cpu_ep_fallback" = true, "session.x" = 3, "session.y" = "z" }
        runtime-options = {}
        embed = false
        optimization = "basic"
        load-check = true
        requires = ["onnxruntime-ep-openvino>=1.8"]
        env = { }
        timeout = 600
        [targets.snapdragon]
        ep = "qnn"
        matrix = { soc_model = ["60", 88] }
        provider-options = { backend_type = "htp" }
        required = false
        allow-unknown-options = ["new"]
        [wheel]
        platform = "win_arm64"
        compression = "deflated"
        """)
    model, intel = loaded.models["detector"], loaded.targets["intel-cpu"]
    assert loaded.package == "acme.vision"
    assert (model.source, model.targets, model.ship_source) == (
        "models/detector.onnx",
        ("intel-cpu", "snapdragon-*"),
        True,
    )
    assert (model.free_dimensions, model.free_dimension_denotations) == ({"batch": 1}, {"DATA_BATCH": 2})
    assert intel.session_options == {"session.disable_cpu_ep_fallback": "1", "session.x": "3", "session.y": "z"}
    assert (intel.timeout, intel.requires) == (600.0, ("onnxruntime-ep-openvino>=1.8",))
    assert loaded.targets["snapdragon"].matrix == {"soc_model": ("60", 88)}
    assert (loaded.wheel.platform, loaded.wheel.compression) == ("win_arm64", "deflated")


def test_defaults() -> None:
    loaded = load()
    target = loaded.targets["t"]
    assert loaded.models["m"].targets is None
    assert (target.device, target.optimization, target.embed) == (None, None, False)
    assert (target.load_check, target.required, target.timeout) == (True, True, 600.0)
    assert (loaded.wheel.platform, loaded.wheel.compression) == ("any", "stored")


def test_settings_are_immutable() -> None:
    loaded = load()
    with pytest.raises(ValueError, match="frozen"):
        loaded.targets["t"].embed = True  # type: ignore[misc]


def test_hook_table_is_merged_deep_over_the_rest() -> None:
    loaded = load(hook='dependencies = []\n[targets.t]\nprovider-options = { load_config = { CPU = { B = "3" } } }')
    assert loaded.targets["t"].provider_options == {"load_config": {"CPU": {"A": "1", "B": "3"}}}


@pytest.mark.parametrize("key", sorted(HATCH_KEYS))
def test_keys_of_hatch_itself_are_left_alone(key: str) -> None:
    assert load(hook=f"{key} = true").package == "acme"


def test_arrays_are_replaced() -> None:
    text = BASE.replace('"m.onnx"', '"m.onnx"\ntargets = ["a", "b"]')
    assert load(text, hook='[models.m]\ntargets = ["t"]').models["m"].targets == ("t",)


def test_a_layer_may_bring_a_required_key() -> None:
    assert load("[models.m]", hook='package = "p"\n[models.m]\nsource = "x.onnx"').models["m"].source == "x.onnx"


def test_overrides_over_hook_table_over_table() -> None:
    text = BASE + '[wheel]\nplatform = "win32"\n[[overrides]]\nif = { state = "wheel" }\nwheel.platform = "win_arm64"'
    assert load(text, hook='[wheel]\nplatform = "win_amd64"').wheel.platform == "win_arm64"
    assert load(text, hook='[wheel]\nplatform = "win_amd64"', state="editable").wheel.platform == "win_amd64"
    assert load(text, state="editable").wheel.platform == "win32"


def test_later_overrides_win_and_those_of_the_hook_table_come_last() -> None:
    first = '[[overrides]]\nif = { state = "wheel" }\ntargets.t.timeout = 1\ntargets.t.embed = true\n'
    second = '[[overrides]]\nif = { state = "wheel" }\ntargets.t.timeout = 2\n'
    third = '[[overrides]]\nif = { state = "wheel" }\ntargets.t.timeout = 3\n'
    assert load(BASE + first + second).targets["t"].timeout == 2
    loaded = load(BASE + first + second, hook=third)
    assert (loaded.targets["t"].timeout, loaded.targets["t"].embed) == (3, True)
    assert loaded.overrides == ()


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ('platform-system = "linux"', True),
        ('platform-system = "Linux"', True),
        ('platform-system = "windows"', False),
        ('platform-system = ["win*", "lin*"]', True),
        ('platform-machine = "x86_64"', True),
        ('platform-machine = "AMD64"', True),
        ('platform-machine = "arm64"', False),
        ('state = "wheel"', True),
        ('state = ["editable", "sdist"]', False),
        ('platform-system = "linux", state = "editable"', False),
        ("env = { CI = true }", True),
        ("env = { CI = false }", False),
        ('env = { CI = "1" }', True),
        ('env = { CI = "2" }', False),
        ("env = { ZERO = true }", False),
        ("env = { ZERO = false }", True),
        ("env = { NONE = true }", False),
        ("env = { NONE = false }", True),
        ('env = { REF = "refs/tags/*" }', True),
        ('env = { REF = "refs/tags/*", CI = false }', False),
    ],
)
def test_conditions(condition: str, holds: bool) -> None:
    text = f"{BASE}[[overrides]]\nif = {{ {condition} }}\ntargets.t.embed = true"
    environ = {"CI": "1", "ZERO": "0", "REF": "refs/tags/v1"}
    assert load(text, environ=environ).targets["t"].embed is holds


@pytest.mark.parametrize(
    ("system", "architecture", "condition"),
    [
        ("darwin", "aarch64", 'platform-system = "macos", platform-machine = "arm64"'),
        ("windows", "x86", 'platform-machine = "i686"'),
    ],
)
def test_other_spellings_of_a_machine(system: str, architecture: str, condition: str) -> None:
    text = f"{BASE}[[overrides]]\nif = {{ {condition} }}\ntargets.t.embed = true"
    assert load(text, machine=Machine(system=system, architecture=architecture)).targets["t"].embed


def test_the_machine_is_this_one_when_not_told() -> None:
    here = Machine.here()
    text = f'{BASE}[[overrides]]\nif = {{ platform-system = "{here.system}" }}\ntargets.t.embed = true'
    assert load_settings(tomllib.loads(text), environ={}, state="wheel").targets["t"].embed


def test_errors_name_the_layer_whose_value_is_wrong() -> None:
    assert error_of(hook="[targets.t]\nembed = 1").startswith("tool.hatch.build.hooks.epctx.targets.t.embed: ")
    text = BASE + '[[overrides]]\nif = { state = "wheel" }\ntargets.t.embed = 1'
    assert error_of(text).startswith("tool.epctx.overrides[0].targets.t.embed: ")
    assert error_of(text, hook="targets.t.embed = 2").startswith("tool.epctx.overrides[0].targets.t.embed: ")
    assert error_of(hook='[[overrides]]\nif = { state = "wheel" }\ncolour = 1').startswith(
        "tool.hatch.build.hooks.epctx.overrides[0]: unknown key 'colour'"
    )


def test_a_mistake_in_an_override_is_found_where_it_does_not_apply() -> None:
    other = '[[overrides]]\nif = { platform-system = "windows" }\n'
    assert error_of(BASE + other + "targets.t.embd = true").startswith(
        "tool.epctx.overrides[0].targets.t: unknown key 'embd'"
    )
    assert error_of(BASE + other + "targets.new.embed = true").startswith(
        "tool.epctx.overrides[0].targets.new.ep: missing"
    )
    assert load(BASE + other + "targets.t.embed = true").targets["t"].embed is False


def test_an_error_of_the_rest_is_told_once_whatever_overrides_there_are() -> None:
    text = BASE + 'embed = 1\n[[overrides]]\nif = { state = "sdist" }\nwheel.platform = "any"'
    assert error_of(text).count("\n") == 0


def test_places_of_values() -> None:
    loaded = load(hook="[targets.t]\nembed = true")
    assert loaded.place("targets", "t", "embed") == "tool.hatch.build.hooks.epctx.targets.t.embed"
    assert loaded.place("targets", "t", "ep") == "tool.epctx.targets.t.ep"
    assert loaded.place("models", "m", "targets", 0) == "tool.epctx.models.m.targets[0]"
    assert loaded.place("targets", "t", "env", "A B") == 'tool.hatch.build.hooks.epctx.targets.t.env."A B"'


def test_environment_stands_on_the_settings() -> None:
    assert load(environ={"EPCTX_JOBS": "3"}).environment.jobs == 3


# Merging, for any tables.

slow_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
keys = st.text('abc-_. "', min_size=1, max_size=3)
scalars = st.one_of(st.booleans(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
tables = st.dictionaries(
    keys, st.recursive(scalars, lambda inner: st.dictionaries(keys, inner, max_size=3), max_leaves=6), max_size=4
)


@slow_machine
@given(tables)
def test_merging_nothing_changes_nothing(table: dict[str, Any]) -> None:
    assert merge(table, {}) == table == merge({}, table) == merge(table, table)


@slow_machine
@given(tables, tables, tables)
def test_merging_is_associative(a: dict[str, Any], b: dict[str, Any], c: dict[str, Any]) -> None:
    assert merge(merge(a, b), c) == Layers(tuple(Layer(place="x", table=t) for t in (a, b, c))).merged()


def leaves(table: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if not isinstance(table, dict) or not table:
        return {path: table}
    return {key: value for name, inner in table.items() for key, value in leaves(inner, (*path, name)).items()}


@slow_machine
@given(tables, tables)
def test_the_upper_layer_wins_and_the_originals_stay(lower: dict[str, Any], upper: dict[str, Any]) -> None:
    before = repr((lower, upper))
    layers = Layers((Layer(place="low", table=lower), Layer(place="high", table=upper)))
    merged = layers.merged()
    assert repr((lower, upper)) == before
    for path, value in leaves(upper).items():
        if path and value != {}:
            assert leaves(merged)[path] == value
            assert layers.place(path) == dotted("high", path)
    for path, value in leaves(merged).items():
        assert value in (leaves(lower).get(path), leaves(upper).get(path), {}) or value == {}
