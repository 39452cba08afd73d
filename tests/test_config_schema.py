"""The JSON Schema agrees with the models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hatch_epctx.config import UNAVAILABLE, Settings, load_settings, schema, walk
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
    assert description.startswith("(Not available in this version.) ") == (".".join(path) in UNAVAILABLE)


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


def test_an_override_holds_parts_of_tables() -> None:
    text = "[[overrides]]\nif = { state = ['wheel', 'sdist'], env = { CI = true } }\ntargets.t.embed = true"
    assert valid({**tomllib.loads(text), "targets": {"t": {"ep": "qnn"}}})


def test_each_call_gives_data_of_its_own() -> None:
    schema()["properties"].clear()
    assert schema()["properties"]
