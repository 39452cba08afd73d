"""EP records, their option tables, and what is refused before anything compiles."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
from support import REPOSITORY, save, small_model

from hatch_epctx import providers
from hatch_epctx.errors import ConfigError
from hatch_epctx.providers import (
    Option,
    OptionErrors,
    OptionValue,
    Provider,
    all_providers,
    check_device,
    check_options,
    find_provider,
    table,
)
from hatch_epctx.providers.openvino import CPU_PROPERTIES, OPENVINO, REFUSED_PROPERTIES
from hatch_epctx.providers.qnn import QNN
from hatch_epctx.providers.socs import SOC_ALIASES, SOCS
from hatch_epctx.providers.values import JSON_LIMIT, canonical_json, close_match, read_value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WHERE = "tool.epctx.targets.laptop.provider-options"
REAL = (OPENVINO, QNN)
OWN = all_providers.__globals__["_OWN"]
CHIP = {"soc_model": "60"}


def texts(provider: Provider, values: dict[str, Any], **more: Any) -> dict[str, str]:
    device = more.pop("device", provider.devices[0])
    return {value.name: value.text for value in check_options(provider, device, values, where=WHERE, **more)}


def refusal(provider: Provider, values: dict[str, Any], **more: Any) -> ConfigError:
    device = more.pop("device", provider.devices[0])
    with pytest.raises(ConfigError) as caught:
        check_options(provider, device, values, where=WHERE, **more)
    assert caught.value.exit_code == 2
    return caught.value


# ---- records


@pytest.mark.parametrize("provider", OWN, ids=lambda provider: provider.key)
def test_a_record_is_consistent(provider: Provider) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9-]*", provider.key)
    assert provider.names[0].endswith(("ExecutionProvider", ".AUTO"))
    assert provider.devices
    assert set(provider.devices) <= {"cpu", "gpu", "npu"}
    assert len(set(provider.devices)) == len(provider.devices)
    assert bool(provider.epcontext_reason) is not provider.epcontext
    assert provider.default_optimization in {"disable-all", "basic", "extended", "all"}
    assert provider.load_optimization in {"disable-all", "basic", "extended", "all"}
    assert set(provider.needs_any) <= provider.options.keys()
    assert bool(provider.needs_any) is bool(provider.needs_any_reason)
    assert not provider.simulated or provider.offline
    assert providers._inconsistent(provider) == ""
    for name, text in provider.defaults.items():
        assert read_value(provider.options[name], text, where="", root=None).text == text


@pytest.mark.parametrize("provider", OWN, ids=lambda provider: provider.key)
def test_an_option_table_is_consistent(provider: Provider) -> None:
    assert_table(provider.options)


def test_the_properties_of_the_openvino_cpu_are_consistent() -> None:
    assert_table(CPU_PROPERTIES)
    assert not CPU_PROPERTIES.keys() & REFUSED_PROPERTIES.keys()


def assert_table(options: Any) -> None:
    for name, option in options.items():
        assert option.name == name
        assert option.doc.endswith("."), name
        assert not (option.refuse and option.ignored), name
        assert bool(option.values) or option.kind != "enum", name
        assert option.kind != "bool" or len(option.values) in (0, 2), name
        assert set(option.aliases.values()) <= set(option.values), name
        assert all(alias == alias.casefold() for alias in option.aliases), name
        assert set(option.excludes) <= options.keys(), name
        assert option.kind != "output-path" or option.refuse, name
        assert not (option.refuse or option.ignored).endswith("."), name
        if option.minimum is not None and option.maximum is not None:
            assert option.minimum < option.maximum, name


def test_names_are_unique_and_found() -> None:
    names = [name for provider in OWN for name in (provider.key, *provider.names)]
    assert len(set(names)) == len(names)
    for provider in OWN:
        assert all(find_provider(name) is provider for name in (provider.key, *provider.names))


def test_the_project_runs_openvino_and_qnn_and_installs_them() -> None:
    assert {provider.key for provider in OWN if provider.run_here} == {"openvino", "openvino-auto", "qnn", "cpu"}
    pyproject = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    for provider in REAL:
        assert provider.extra
        assert re.search(rf'^{provider.extra} = \[.*"{provider.distributions[0]}>=', pyproject, re.MULTILINE)


@pytest.mark.parametrize(
    "key", ["cpu", "cuda", "dml", "rocm", "xnnpack", "webgpu", "coreml", "migraphx", "openvino-auto"]
)
def test_eps_without_epcontext_models_say_why(key: str) -> None:
    assert not find_provider(key).epcontext


@pytest.mark.parametrize(
    "name", ["VitisAIExecutionProvider", "NvTensorRTRTXExecutionProvider", "TensorrtExecutionProvider"]
)
def test_eps_that_do_not_run_here_have_option_tables(name: str) -> None:
    provider = find_provider(name)
    assert provider.epcontext
    assert not provider.run_here
    assert len(provider.options) > 5
    with pytest.raises(ConfigError, match="unknown option 'bogus'"):
        check_options(provider, provider.devices[0], {"bogus": 1}, where=WHERE)


def test_the_catalog_of_windows_ml_is_known() -> None:
    catalog = {provider.key for provider in OWN if provider.windows_catalog}
    assert catalog == {"migraphx", "openvino", "qnn", "tensorrt-rtx", "vitisai"}


def test_the_eps_that_this_onnxruntime_names_are_known() -> None:
    listing = "import onnxruntime; print('\\n'.join(onnxruntime.get_all_providers()))"
    run = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert {find_provider(name).names[0] for name in run.stdout.split()} == set(run.stdout.split())


# ---- finding


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("QNM", "qnn"),
        ("OpenVino", "openvino"),
        ("openvin", "openvino"),
        ("qnnexecutionprovider", "QNNExecutionProvider"),
    ],
)
def test_an_unknown_ep_is_refused_with_a_suggestion(name: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_provider(name, where="tool.epctx.targets.laptop.ep")
    known = ", ".join(provider.key for provider in all_providers() if provider.epcontext or provider.cache)
    assert known.startswith("openvino, qnn, tensorrt-rtx, tensorrt, vitisai, migraphx, coreml")
    assert str(caught.value) == (
        f"tool.epctx.targets.laptop.ep: unknown execution provider {name!r}; expected one of {known}, or a full"
        f" registered name. Did you mean {meant!r}?"
    )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    providers._foreign.cache_clear()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield Site(tmp_path / "site")
    providers._foreign.cache_clear()
    for module in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[module]


class Site:
    """A folder on the import path with distributions that bring EPs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, module: str, code: str, key: str = "acme") -> None:
        info = self.folder / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[{providers.GROUP}]\n{key} = {module}:PROVIDER\n", encoding="utf-8")
        (self.folder / f"{module}.py").write_text(code, encoding="utf-8")


ACME = """
from hatch_epctx.providers import Option, Provider, table
PROVIDER = Provider(
    key="acme", names=("AcmeExecutionProvider",), title="Acme", devices=("npu",),
    options=table(Option(name="speed", kind="int", doc="Speed.", minimum=1)),
)
"""


def test_a_distribution_adds_an_ep(site: Site) -> None:
    site.add("acme_one", ACME)
    provider = find_provider("AcmeExecutionProvider")
    assert provider.key == "acme"
    assert provider in all_providers()
    assert texts(provider, {"speed": "3"}) == {"speed": "3"}
    assert texts(find_provider("qnn"), CHIP)["soc_model"] == "60"


def test_entry_points_are_not_loaded_for_the_projects_own_eps(site: Site) -> None:
    site.add("acme_broken", "raise RuntimeError('loaded')")
    assert find_provider("qnn") is QNN
    with pytest.raises(
        ConfigError, match=r"acme_broken:PROVIDER of group hatch_epctx\.providers does not load: RuntimeError"
    ):
        find_provider("acme")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("PROVIDER = 3", "is int; expected a hatch_epctx.providers.Provider"),
        (ACME.replace('key="acme"', 'key="qnn"'), "brings an EP named 'qnn', which another EP has"),
        (ACME.replace('devices=("npu",)', "devices=()"), "the EP has no device"),
        (ACME.replace('title="Acme"', 'title="Acme", defaults={"x": "1"}'), "a default is no option"),
        (ACME.replace('title="Acme"', 'title="Acme", epcontext=False'), "no reason why it writes no EPContext models"),
    ],
)
def test_an_unfit_entry_point_is_named(site: Site, code: str, message: str) -> None:
    site.add("acme_unfit", code)
    with pytest.raises(ConfigError) as caught:
        find_provider("acme")
    assert message in str(caught.value)
    assert caught.value.remedy


# ---- every option by value


def usable(provider: Provider) -> list[Option]:
    return [option for option in provider.options.values() if not option.refuse and not option.ignored]


OPTIONS = [(provider, option) for provider in REAL for option in usable(provider)]
REFUSED = [
    (provider, option)
    for provider in (*REAL, *(provider for provider in OWN if provider.options))
    for option in provider.options.values()
    if option.refuse or option.ignored
]
IDS = [f"{provider.key}-{option.name}" for provider, option in OPTIONS]


def good_values(option: Option, folder: Path) -> list[tuple[object, str]]:
    """(value, the EP's text) of every form of value that the option takes."""
    false, true = (option.values or ("0", "1"))[:2] if option.kind == "bool" else ("", "")
    if option.kind == "bool":
        return [(True, true), (False, false), (1, true), ("0", false), ("TRUE", true), (true, true), (false, false)]
    if option.kind == "int":
        low, high = option.minimum or 0, option.maximum or 7
        return [
            (low, str(low)),
            (str(high), str(high)),
            (f" {low} ", str(low)),
            *((word, word) for word in option.values),
        ]
    if option.kind == "enum":
        plain = [(value, value) for value in option.values]
        return plain + [(spelling, text) for name, text in option.aliases.items() for spelling in (name, name.upper())]
    if option.kind == "file":
        (folder / "settings.json").write_text("{}", encoding="utf-8")
        return [("settings.json", "settings.json"), (str(folder / "settings.json"), str(folder / "settings.json"))]
    if option.kind == "json-or-file":
        return [({}, "{}"), ("{ }", "{}")]
    if option.kind == "op-packages":
        (folder / "add.so").write_bytes(b"a library")
        return [(text := "MyAdd:add.so:AddProvider", text), ([f"{text}:HTP", f"{text}:CPU"], f"{text}:HTP,{text}:CPU")]
    assert option.kind == "string"
    return [("x[1,3]", "x[1,3]"), (7, "7")]


def bad_values(option: Option) -> list[object]:
    """Values that the option refuses."""
    always: list[object] = [[], None, "nul\0"]
    by_kind: dict[str, list[object]] = {
        "bool": ["maybe", 2, -1, 1.5, {}, ""],
        "int": ["x", True, 1.5, "1.0", "", {}, "1e3", "0x10"],
        "enum": ["bogus", "", True, {}, 99999, 1.5],
        "file": ["missing.json", "", {}, 3, "."],
        "json-or-file": ["missing.json", "[1]", "{", "{]", "", 3, True],
        "string": [True, {}],
        "op-packages": ["", "MyAdd", "MyAdd:missing.so:AddProvider", "MyAdd:/:AddProvider", 3, True, {}],
    }
    bounds = []
    if option.kind == "int":
        bounds += [option.minimum - 1] if option.minimum is not None else []
        bounds += [option.maximum + 1] if option.maximum is not None else []
    return [*always, *by_kind[option.kind], *bounds]


@pytest.mark.parametrize(("provider", "option"), OPTIONS, ids=IDS)
def test_an_option_is_accepted_by_value(provider: Provider, option: Option, tmp_path: Path) -> None:
    chip = {"soc_model": "88"} if provider is QNN and option.name != "htp_arch" else {}
    for value, text in good_values(option, tmp_path):
        given = {**chip, option.name: value}
        values = check_options(provider, provider.devices[0], given, where=WHERE, root=tmp_path, runtime=True)
        (checked,) = [item for item in values if item.name == option.name]
        assert (checked.text, checked.phase, checked.kind) == (text, option.phase, option.kind), value


@pytest.mark.parametrize(("provider", "option"), OPTIONS, ids=IDS)
def test_an_option_is_refused_by_value(provider: Provider, option: Option, tmp_path: Path) -> None:
    for value in bad_values(option):
        error = refusal(provider, {option.name: value}, root=tmp_path, runtime=True)
        assert error.where == f"{WHERE}.{option.name}", value
        assert error.expected or error.remedy or error.reason == "missing-option-file" or "NUL" in error.found, value
        assert error.reason in {"bad-option-value", "missing-option-file"}, value


@pytest.mark.parametrize(
    ("provider", "option"), REFUSED, ids=lambda item: getattr(item, "key", getattr(item, "name", ""))
)
def test_a_refused_or_ignored_option_says_why(provider: Provider, option: Option) -> None:
    error = refusal(provider, {option.name: "1"}, runtime=True, allow_unknown=[option.name])
    verb = "is refused" if option.refuse else "has no effect"
    assert str(error) == f"{WHERE}.{option.name}: the option {option.name!r} {verb}: {option.refuse or option.ignored}"
    assert error.reason == ("refused-option" if option.refuse else "ignored-option")


# ---- kinds


def test_json_means_the_same_whatever_its_order_and_spacing(tmp_path: Path) -> None:
    table_form = {"CPU": {"NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}}
    text_form = '{ "CPU" : { "INFERENCE_PRECISION_HINT":"f32",\n "NUM_STREAMS": 1 } }'
    (tmp_path / "settings.json").write_text(text_form, encoding="utf-8")
    wanted = '{"CPU":{"INFERENCE_PRECISION_HINT":"f32","NUM_STREAMS":1}}'
    for value in (table_form, text_form, "settings.json"):
        assert texts(OPENVINO, {"load_config": value}, root=tmp_path) == {"load_config": wanted}


def test_a_json_file_is_inlined_and_an_edit_shows(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    path.write_text('\ufeff{"CPU": {"NUM_STREAMS": 1}}', encoding="utf-8")
    (value,) = check_options(OPENVINO, "cpu", {"load_config": "settings.json"}, where=WHERE, root=tmp_path)
    assert (value.file, value.is_path, value.phase) == (path, False, "both")
    path.write_text('{"CPU": {"NUM_STREAMS": 2}}', encoding="utf-8")
    assert texts(OPENVINO, {"load_config": "settings.json"}, root=tmp_path) != {"load_config": value.text}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON: Expecting property name enclosed in double quotes, line 1, column 2"),
        (b'{"CPU": {}, "CPU": {}}', "the key 'CPU' stands twice in one object"),
        (b'{"CPU": NaN}', "NaN is no JSON number"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"[]", "found an array; expected a table, or JSON text of an object, or the path of a JSON file"),
        (b" " * (JSON_LIMIT + 1), f"is too large; expected at most {JSON_LIMIT} bytes of JSON"),
        (b'{"a":' * 9000 + b"1" + b"}" * 9000, "is not JSON: maximum recursion depth exceeded"),
        (b'{"a":' * 20 + b"1" + b"}" * 20, "tables nest deeper than 16 levels"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "is a Git LFS pointer"),
    ],
)
def test_an_unfit_json_file_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_bytes(content)
    error = refusal(OPENVINO, {"load_config": "settings.json"}, root=tmp_path)
    assert message in str(error)
    assert error.where == f"{WHERE}.load_config"


def test_a_missing_file_names_option_and_path(tmp_path: Path) -> None:
    error = refusal(QNN, {**CHIP, "op_affinity": "conf/affinity.json"}, root=tmp_path)
    assert str(error) == (
        f"{WHERE}.op_affinity: the file 'conf/affinity.json' of option 'op_affinity' does not exist:"
        f" {tmp_path / 'conf/affinity.json'}. Paths of options are relative to the project root."
    )
    (tmp_path / "conf/affinity.json").mkdir(parents=True)
    assert "is no file" in refusal(QNN, {**CHIP, "op_affinity": "conf/affinity.json"}, root=tmp_path).found


def test_links_count_as_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text('{"op_type": {}}', encoding="utf-8")
    (tmp_path / "affinity.json").symlink_to(tmp_path / "blob")
    values = check_options(QNN, "npu", {**CHIP, "op_affinity": "affinity.json"}, where=WHERE, root=tmp_path)
    (value,) = [value for value in values if value.name == "op_affinity"]
    assert value.is_path
    assert value.file == tmp_path / "affinity.json"


def test_a_folder_option_names_a_folder(tmp_path: Path) -> None:
    option = Option(name="data", kind="folder", doc="Data.")
    (tmp_path / "data").mkdir()
    value = read_value(option, "data", where=WHERE, root=tmp_path)
    assert (value.folder, value.file, value.is_path) == (tmp_path / "data", None, True)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="the folder 'file' of option 'data' is no folder"):
        read_value(option, "file", where=WHERE, root=tmp_path)


@pytest.mark.parametrize(("value", "text"), [(0.5, "0.5"), ("0.50", "0.5"), (1, "1"), (1.0, "1"), ("1e-3", "0.001")])
def test_a_number_has_one_spelling(value: object, text: str) -> None:
    assert read_value(Option(name="x", kind="float", doc="X.", minimum=0), value, where="", root=None).text == text


@pytest.mark.parametrize("value", ["nan", float("inf"), "x", True, -1, {}])
def test_what_is_no_number_in_range_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="expected a number of at least 0"):
        read_value(Option(name="x", kind="float", doc="X.", minimum=0), value, where="", root=None)


@pytest.mark.parametrize("value", [{"a": object()}, {1: 2}, {"a": float("nan")}])
def test_canonical_json_refuses_what_json_cannot_say(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonical_json(value)


def test_a_close_match_overlooks_case_and_hyphens() -> None:
    assert close_match("Snapdragon_X_Elite", SOC_ALIASES) == "Did you mean 'snapdragon-x-elite'?"
    assert close_match("quite different", SOC_ALIASES) == ""


def test_two_options_of_one_name_are_a_bug() -> None:
    with pytest.raises(ValueError, match="same name"):
        table(Option(name="x", kind="string", doc="X."), Option(name="x", kind="int", doc="X."))


# ---- unknown options, defaults, several findings


def test_an_unknown_option_is_refused_with_a_suggestion() -> None:
    error = refusal(QNN, {**CHIP, "htp_performance_mod": "burst"})
    assert str(error) == (
        f"{WHERE}.htp_performance_mod: unknown option 'htp_performance_mod' of Qualcomm QNN. Did you mean"
        " 'htp_performance_mode'? An option that only a newer EP knows is passed when 'allow-unknown-options' names it."
    )
    assert "expected one of load_config, reshape_input" in str(refusal(OPENVINO, {"bogus": "1"}))


def test_an_allowed_unknown_option_passes_as_text() -> None:
    values = check_options(
        QNN, "npu", {**CHIP, "new_one": 3, "new_flag": True}, where=WHERE, allow_unknown=["new_one", "new_flag"]
    )
    passed = {value.name: value for value in values if value.name.startswith("new")}
    assert {name: value.text for name, value in passed.items()} == {"new_one": "3", "new_flag": "1"}
    assert all(not value.checked and value.phase == "both" for value in passed.values())
    error = refusal(QNN, {**CHIP, "new_one": {"a": 1}}, allow_unknown=["new_one"])
    assert "passed as it stands" in error.found


def test_a_newer_value_of_a_known_option_can_be_passed() -> None:
    assert texts(QNN, {"soc_model": 140, "htp_bf16_enable": True}, allow_unknown=["soc_model"])["soc_model"] == "140"
    newer = {"load_config": {"CPU": {"NEW_PROPERTY": "1"}}}
    assert texts(OPENVINO, newer, allow_unknown=["load_config"]) == {"load_config": '{"CPU":{"NEW_PROPERTY":"1"}}'}


def test_defaults_fill_what_is_left_out() -> None:
    assert texts(QNN, CHIP) == {"backend_type": "htp", "soc_model": "60"}
    assert texts(QNN, {**CHIP, "backend_path": "QnnHtp.dll"}) == {"backend_path": "QnnHtp.dll", "soc_model": "60"}
    assert texts(QNN, {"htp_performance_mode": "burst"}, runtime=True) == {"htp_performance_mode": "burst"}
    assert texts(OPENVINO, {}) == {}


def test_all_findings_are_told_at_once_and_survive_pickling() -> None:
    error = refusal(QNN, {**CHIP, "bogus": 1, "vtcm_mb": 0, "extended_udma": True})
    assert isinstance(error, OptionErrors)
    assert [item.where.rpartition(".")[2] for item in error.errors] == ["bogus", "vtcm_mb", "extended_udma"]
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # made on this line
    assert str(again) == str(error)
    assert "3 errors in provider options" in str(error)


def test_the_place_of_an_option_may_be_a_function() -> None:
    with pytest.raises(ConfigError) as caught:
        check_options(QNN, "npu", {"soc_model": "abc"}, where=lambda name: f"matrix[{name}]")
    assert caught.value.where == "matrix[soc_model]"


def test_options_come_sorted_by_name() -> None:
    names = [value.name for value in check_options(QNN, "npu", {"vtcm_mb": 4, **CHIP}, where=WHERE)]
    assert names == sorted(names)


# ---- devices and contradictions


def test_a_device_that_the_ep_lacks_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        check_device(QNN, "cpu", where="tool.epctx.targets.laptop.device")
    assert str(caught.value) == (
        "tool.epctx.targets.laptop.device: Qualcomm QNN has no device 'cpu'; expected one of npu. Did you mean 'npu'?"
    )
    assert check_device(QNN, None, where="") == "npu"
    assert check_device(OPENVINO, "gpu", where="") == "gpu"


QNN_CONTRADICTIONS = [
    ({"soc_model": "abc"}, "soc_model", "unknown value 'abc'"),
    ({"soc_model": "60,88"}, "soc_model", "several chips are a matrix"),
    ({"soc_model": 0}, "soc_model", "unknown value '0'"),
    ({"soc_model": "14"}, "soc_model", "unknown value '14'"),
    ({}, "soc_model", "missing; 'soc_model' or 'htp_arch' must be set"),
    ({"htp_arch": "99"}, "htp_arch", "unknown value '99'; expected one of 68, 69, 73, 75, 79, 81"),
    ({"htp_arch": "85"}, "htp_arch", "unknown value '85'"),
    ({**CHIP, "htp_arch": 75}, "htp_arch", "v75 does not go with soc_model 60, whose HTP is v73. Remove htp_arch"),
    ({**CHIP, "backend_type": "cpu"}, "backend_type", "the one backend that writes context binaries"),
    ({**CHIP, "backend_type": "gpu"}, "backend_type", "the one backend that writes context binaries"),
    ({**CHIP, "backend_path": "libQnnCpu.so"}, "backend_path", "unknown value 'libQnnCpu.so'"),
    ({**CHIP, "backend_path": "/opt/libQnnHtp.so"}, "backend_path", "would not be part of the toolchain"),
    (
        {**CHIP, "backend_type": "htp", "backend_path": "libQnnHtp.so"},
        "backend_type",
        "'backend_type' and 'backend_path' exclude each other. Remove one of them.",
    ),
    ({**CHIP, "htp_bf16_enable": True}, "htp_bf16_enable", "soc_model 60 (SC8380XP) has no bfloat16"),
    ({"htp_arch": 81, "htp_bf16_enable": True}, "htp_bf16_enable", "the option needs a soc_model"),
    ({"htp_arch": 73, "enable_htp_fp16_precision": 1}, "enable_htp_fp16_precision", "the option needs a soc_model"),
    (
        {"soc_model": "QCS6490", "enable_htp_fp16_precision": 1},
        "enable_htp_fp16_precision",
        "soc_model 93 (QCS6490) takes no floating-point models. Remove the option and quantise the model.",
    ),
    ({**CHIP, "extended_udma": True}, "extended_udma", "v73 has no extended UDMA; expected a chip with v81 or later"),
    ({"htp_arch": 79, "extended_udma": "1"}, "extended_udma", "v79 has no extended UDMA"),
    (
        {**CHIP, "enable_vtcm_backup_buffer_sharing": 1, "htp_share_resource_optimization": 1},
        "enable_vtcm_backup_buffer_sharing",
        "exclude each other",
    ),
]


@pytest.mark.parametrize(("values", "option", "message"), QNN_CONTRADICTIONS)
def test_what_does_not_go_together_on_qnn_is_refused(values: dict[str, Any], option: str, message: str) -> None:
    error = refusal(QNN, values)
    assert error.where == f"{WHERE}.{option}"
    assert message in str(error)


def test_what_goes_together_on_qnn_passes() -> None:
    assert texts(QNN, {"soc_model": "SC8380XP", "htp_arch": "v73"})["htp_arch"] == "73"
    assert texts(QNN, {"soc_model": "snapdragon-x2-elite", "htp_bf16_enable": True, "extended_udma": True}) == {
        "backend_type": "htp",
        "soc_model": "88",
        "htp_bf16_enable": "1",
        "extended_udma": "1",
    }
    assert texts(QNN, {"htp_arch": 81, "extended_udma": True})["extended_udma"] == "1"


LOAD_CONFIG_CONTRADICTIONS = [
    ("cpu", {"GPU": {}}, "the entry 'GPU' does not go with device 'cpu': the EP ignores it; expected 'CPU'"),
    ("cpu", {"cpu": {}}, "Did you mean 'CPU'?"),
    ("cpu", {"AUTO": {}}, "the entry 'AUTO' does not go with device 'cpu'"),
    ("npu", {"CPU": {"NUM_STREAMS": 1}}, "the entry 'CPU' does not go with device 'npu'"),
    ("cpu", {"CPU": 3}, "the entry 'CPU' holds 3; expected a table of properties"),
    ("cpu", {"CPU": {"INFERENCE_PRECISION_HINT": "F32"}}, "unknown value 'F32'"),
    ("cpu", {"CPU": {"inference_precision_hint": "f32"}}, "Did you mean 'INFERENCE_PRECISION_HINT'?"),
    ("cpu", {"CPU": {"BOGUS": "1"}}, "unknown property CPU.BOGUS"),
    ("cpu", {"CPU": {"CACHE_DIR": "x"}}, "the property CPU.CACHE_DIR cannot be set"),
    ("gpu", {"GPU.1": {"CACHE_DIR": "x"}}, "the property GPU.1.CACHE_DIR cannot be set"),
    ("cpu", {"CPU": {"NUM_STREAMS": [1]}}, "the property CPU.NUM_STREAMS holds [1]"),
    ("cpu", {"CPU": {"NUM_STREAMS": None}}, "the property CPU.NUM_STREAMS holds None"),
    ("npu", {"NPU": {"a": {"b": {"c": {"d": {"e": {"f": {"g": {}}}}}}}}}, "nested 8 deep at most"),
]


@pytest.mark.parametrize(("device", "config", "message"), LOAD_CONFIG_CONTRADICTIONS)
def test_what_the_ep_would_ignore_in_load_config_is_refused(device: str, config: Any, message: str) -> None:
    error = refusal(OPENVINO, {"load_config": config}, device=device)
    assert error.where == f"{WHERE}.load_config"
    assert message in str(error)


def test_load_config_of_other_devices_is_taken_as_it_stands() -> None:
    config = {"GPU": {"NEW": {"INNER": True}}, "GPU.1": {"MODEL_PRIORITY": "LOW"}}
    assert json.loads(texts(OPENVINO, {"load_config": config}, device="gpu")["load_config"]) == config


def test_every_cpu_property_is_held_against_its_table(tmp_path: Path) -> None:
    for name, option in CPU_PROPERTIES.items():
        for value, _ in good_values(option, tmp_path) if option.kind != "float" else [(0.5, "")]:
            texts(OPENVINO, {"load_config": {"CPU": {name: value}}})
        error = refusal(OPENVINO, {"load_config": {"CPU": {name: "no such value"}}})
        assert f"the property CPU.{name}: " in str(error)


# ---- chips


def test_chips_are_named_uniquely() -> None:
    spellings = [spelling for soc in SOCS.values() for spelling in (soc.chip.lower(), *soc.names)]
    assert len(set(spellings)) == len(spellings)
    assert not set(spellings) & SOCS.keys()
    assert {soc.htp_arch for soc in SOCS.values()} == {68, 69, 73, 75, 79, 81, 85}
    assert SOC_ALIASES["snapdragon-x-elite"] == "60"


# ---- against the EPs themselves

COMPILE = """
import importlib, json, re, sys
import onnxruntime as ort
module, device, options, out = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
helper = importlib.import_module(module)
ort.register_execution_provider_library(helper.get_ep_name(), helper.get_library_path())
devices = [item for item in ort.get_ep_devices() if item.ep_name == helper.get_ep_name()]
session = ort.SessionOptions()
session.add_provider_for_devices(devices[:1], options)
compiler = ort.ModelCompiler(
    session, "model.onnx", flags=ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED,
    graph_optimization_level=ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
)
compiler.compile_to_file(out + "_ctx.onnx")
"""


class Lab:
    """Compiles one small model with an EP, each time in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def run(self, module: str, options: dict[str, str]) -> tuple[int, bytes, str]:
        """(exit code, context binary, log) of one compile."""
        self.count += 1
        stem = f"out{self.count}"
        command = [sys.executable, "-c", textwrap.dedent(COMPILE), module, "cpu", json.dumps(options), stem]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=300, check=False)
        binaries = sorted(self.folder.glob(f"{stem}_ctx*.bin"))
        return done.returncode, binaries[0].read_bytes() if binaries else b"", done.stdout + done.stderr

    def compile(self, provider: Provider, values: dict[str, Any]) -> bytes:
        """The context binary of a compile with checked options, which must succeed."""
        checked = check_options(provider, provider.devices[0], values, where=WHERE, root=self.folder)
        code, binary, log = self.run(provider.module, {value.name: value.text for value in checked})
        assert code == 0, log
        return binary


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    save(small_model(), tmp_path / "model.onnx")
    (tmp_path / "settings.json").write_text('{"op_type": {}}', encoding="utf-8")
    return Lab(tmp_path)


def chip_facts(binary: bytes) -> tuple[str, int, int]:
    """(chip, architecture, VTCM in MiB) that a QNN context binary tells."""
    chip = re.search(rb"soc_type=([^;]*);", binary)
    arch = re.search(rb"min_arch=(\d+);", binary)
    vtcm = re.search(rb";vtcm_size=(\d+);", binary)
    assert chip
    assert arch
    assert vtcm
    return chip[1].decode(), int(arch[1]), int(vtcm[1]) >> 20


@pytest.mark.ep_qnn
@pytest.mark.parametrize("model", ["30", "36", "60", "57", "69", "88", "103"])
def test_qnn_compiles_for_the_chip_of_the_table(lab: Lab, model: str) -> None:
    soc = SOCS[model]
    assert soc.floating_point
    assert chip_facts(lab.compile(QNN, {"soc_model": soc.chip})) == (soc.chip, soc.htp_arch, soc.vtcm_mb)


@pytest.mark.ep_qnn
@pytest.mark.slow
def test_qnn_knows_every_chip_of_the_table(lab: Lab) -> None:
    for soc in SOCS.values():
        code, binary, log = lab.run(QNN.module, {"backend_type": "htp", "soc_model": str(soc.model)})
        assert (code == 0) is soc.floating_point, log
        assert not soc.floating_point or chip_facts(binary) == (soc.chip, soc.htp_arch, soc.vtcm_mb)


@pytest.mark.ep_qnn
@pytest.mark.parametrize(
    "options", [{"soc_model": "abc"}, {"soc_model": "QCS6490"}, {"htp_arch": "99"}, {"htp_arch": "85"}, {"bogus": "1"}]
)
def test_qnn_itself_takes_a_wrong_value_for_the_oldest_chip(lab: Lab, options: dict[str, str]) -> None:
    code, binary, _ = lab.run(QNN.module, {"backend_type": "htp", **options})
    assert code == 0
    assert chip_facts(binary) == ("UNKNOWN_SDM", 68, 4)


@pytest.mark.ep_qnn
@pytest.mark.parametrize("backend", ["cpu", "gpu", "saver", "ir", "genie", ""])
def test_qnn_writes_contexts_with_htp_alone(lab: Lab, backend: str) -> None:
    code, _, _ = lab.run(QNN.module, {"soc_model": "60", **({"backend_type": backend} if backend else {})})
    assert code == 1


def sample(option: Option) -> object:
    """A value that differs from the EP's default and that the compiler takes."""
    special: dict[str, object] = {"op_affinity": "settings.json", "soc_model": "88", "htp_arch": "81", "device_id": 0}
    special |= {
        "rpc_control_latency": 100,
        "enable_vtcm_backup_buffer_sharing": False,
        "offload_graph_io_quantization": False,
    }
    if option.name in special:
        return special[option.name]
    if option.kind == "bool":
        return True
    return option.values[-1] if option.kind == "enum" else 8


GIVEN = ("backend_type", "soc_model", "op_packages")
"""The first two are given to each compile; a real library of operators takes Qualcomm's SDK to build."""
COMPILED = [option for option in usable(QNN) if option.phase != "run" and option.name not in GIVEN]


@pytest.mark.ep_qnn
@pytest.mark.parametrize("option", COMPILED, ids=lambda option: option.name)
def test_qnn_compiles_with_each_option(lab: Lab, option: Option) -> None:
    value = "libQnnHtp.so" if option.name == "backend_path" else sample(option)
    lab.compile(QNN, {"soc_model": "88", option.name: value})


@pytest.mark.ep_qnn
def test_qnn_refuses_late_what_is_refused_here(lab: Lab) -> None:
    for options in (
        {"soc_model": "60", "htp_bf16_enable": "1"},
        {"htp_bf16_enable": "1"},
        {"enable_htp_fp16_precision": "1"},
        {"soc_model": "60", "extended_udma": "1"},
        {"soc_model": "60", "backend_path": "libQnnHtp.so"},
    ):
        code, _, _ = lab.run(QNN.module, {"backend_type": "htp", **options})
        assert code == 1, options


@pytest.mark.ep_openvino
def test_openvino_takes_every_cpu_property(lab: Lab) -> None:
    rounds = max(len(option.values) for option in CPU_PROPERTIES.values())
    for number in range(rounds):
        config = {
            name: option.values[min(number, len(option.values) - 1)] if option.values else str(option.maximum and 1)
            for name, option in CPU_PROPERTIES.items()
        }
        # Precision and execution mode are two words for one thing, and so are the caches' precisions.
        drop = ("EXECUTION_MODE_HINT",) if number % 2 else ("INFERENCE_PRECISION_HINT",)
        lab.compile(
            OPENVINO, {"load_config": {"CPU": {name: value for name, value in config.items() if name not in drop}}}
        )


@pytest.mark.ep_openvino
@pytest.mark.parametrize("name", ["COMPILATION_NUM_THREADS", "MODEL_PRIORITY", "NPU_QDQ_OPTIMIZATION", "BOGUS"])
def test_openvino_refuses_properties_that_the_table_lacks(lab: Lab, name: str) -> None:
    assert name not in CPU_PROPERTIES
    code, _, log = lab.run(OPENVINO.module, {"load_config": json.dumps({"CPU": {name: "1"}})})
    assert code == 1
    assert f"Unsupported property {name} by CPU plugin" in log


@pytest.mark.ep_openvino
def test_openvino_ignores_what_is_refused_here(lab: Lab) -> None:
    _, plain, _ = lab.run(OPENVINO.module, {})
    ignored = [option.name for option in OPENVINO.options.values() if option.ignored]
    for options in (
        dict.fromkeys(ignored, "1"),
        {"load_config": json.dumps({"GPU": {"INFERENCE_PRECISION_HINT": "f32"}})},
        {"load_config": json.dumps({"cpu": {"INFERENCE_PRECISION_HINT": "f32"}})},
    ):
        code, binary, log = lab.run(OPENVINO.module, options)
        assert (code, len(binary)) == (0, len(plain)), log


@pytest.mark.ep_openvino
@pytest.mark.parametrize("variable", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_openvino_reads_the_environment_that_the_record_names(
    lab: Lab, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert variable in OPENVINO.run_environment
    monkeypatch.setenv(variable, "SSE41")
    code, _, _ = lab.run(OPENVINO.module, {})
    lower = [path.read_bytes() for path in sorted(lab.folder.glob("*_ctx.onnx"))]
    assert code != 0 or b"isa=Intel SSE4.1" in lower[0]


def test_option_values_are_plain_records() -> None:
    value = OptionValue(name="x", text="1")
    assert (value.kind, value.phase, value.is_path, value.checked) == ("string", "both", False, True)
    assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301  # made on this line


def test_soc_is_another_name_of_soc_model() -> None:
    def checked(**values: object) -> dict[str, str]:
        return {item.name: item.text for item in check_options(QNN, "npu", values, where="o")}

    assert checked(soc="snapdragon-x-elite") == checked(soc_model="60")
    assert checked(soc="Snapdragon-X2-Elite")["soc_model"] == "88"
    with pytest.raises(ConfigError, match=r"o\.soc: unknown value 'snapdragon-x-elit'.*Did you mean 'snapdra"):
        checked(soc="snapdragon-x-elit")
    with pytest.raises(ConfigError, match="'soc' and 'soc_model' are one option"):
        checked(soc="60", soc_model="88")
