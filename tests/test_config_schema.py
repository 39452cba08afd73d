"""The JSON Schema agrees with the models."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hatch_epctx.config import Settings, load_settings, schema, walk
from hatch_epctx.config.project import tomllib
from hatch_epctx.errors import ConfigError

jsonschema = pytest.importorskip("jsonschema")

EXAMPLES = Path(__file__).parent.parent / "examples"


def valid(table: dict[str, Any]) -> bool:
    checker = jsonschema.Draft202012Validator(schema())
    return bool(checker.is_valid(table))


def test_it_is_a_schema() -> None:
    made = schema()
    assert made["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(made)


def at(path: tuple[str, ...]) -> dict[str, Any]:
    made = schema()
    node = made
    for part in path:
        if "$ref" in node:
            node = made["$defs"][node["$ref"].removeprefix("#/$defs/")]
        if part == "*":
            node = node["items"] if "items" in node else next(iter(node["patternProperties"].values()))
        else:
            node = node["properties"][part]
    return node


@pytest.mark.parametrize("path", [path for path, _ in walk(Settings)], ids=".".join)
def test_every_field_stands_in_it_with_its_description(path: tuple[str, ...]) -> None:
    description = at(path)["description"]
    assert description
    assert "\n" not in description


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*/pyproject.toml")), ids=lambda path: path.parent.name)
def test_examples_are_valid(example: Path) -> None:
    assert valid(tomllib.loads(example.read_text(encoding="utf-8"))["tool"]["epctx"])


@pytest.mark.parametrize(
    "text",
    [
        "package = 1",
        "colour = 1",
        "[models.m]",
        "[models.'a b']\nsource = 'x'",
        "[models.m]\nsource = 'x'\nfree-dimensions = { a = 0 }",
        "[targets.t]\nep = 'x'\nprovider_options = {}",
        "[targets.t]\nep = 'x'\nsession-options = { 'a.b' = 1.5 }",
        "[targets.t]\nep = 'x'\noptimization = 'most'",
        "[cache]\nmax-size = 'big'",
        "[[overrides]]\nwheel.platform = 'any'",
        "[[overrides]]\nif = { state = 'other' }",
        "[[overrides]]\nif = { state = 'wheel' }\nwheel.colour = 1",
    ],
)
def test_what_it_refuses_the_models_refuse_too(text: str) -> None:
    table = tomllib.loads(text)
    assert not valid(table)
    with pytest.raises(ConfigError):
        load_settings({"package": "acme", **table}, environ={}, state="wheel")


def test_validate_pyproject_takes_the_schema_and_refuses_what_is_wrong(tmp_path: Path) -> None:
    """The installed program finds it by its entry point, which pyproject.toml declares."""
    api = pytest.importorskip("validate_pyproject.api")
    plugins = pytest.importorskip("validate_pyproject.plugins")
    project = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (name, target), *others = project["entry-points"]["validate_pyproject.tool_schema"].items()
    assert not others
    module, _, function = target.partition(":")
    get_schema = getattr(importlib.import_module(module), function)
    validator = api.Validator(plugins=[plugins.PluginWrapper(name, get_schema)])
    for example in EXAMPLES.glob("*/pyproject.toml"):
        validator(tomllib.loads(example.read_text(encoding="utf-8")))
    wrong = {"tool": {"epctx": {"models": {"m": {"source": "m.onnx", "colour": 1}}}}}
    with pytest.raises(ValueError, match=r"tool\.epctx\.models\.m` must not contain \{'colour'\} properties"):
        validator(wrong)
    jsonschema.Draft7Validator.check_schema(get_schema())
    with pytest.raises(ValueError, match=r"no schema of tool\.other"):
        get_schema("other")


def test_the_schema_for_validate_pyproject_needs_no_extra() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import hatch_epctx.tool_schema as t; t.get_schema(); "
    code += "assert not {'pydantic', 'onnx', 'filelock'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-I", "-c", code, str(EXAMPLES.parent)], check=True)


def test_an_override_holds_parts_of_tables() -> None:
    text = "[[overrides]]\nif = { state = ['wheel', 'sdist'], env = { CI = true } }\ntargets.t.embed = true"
    assert valid({**tomllib.loads(text), "targets": {"t": {"ep": "qnn"}}})


def test_each_call_gives_data_of_its_own() -> None:
    schema()["properties"].clear()
    assert schema()["properties"]
