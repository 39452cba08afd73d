"""The JSON Schema of `[tool.epctx]`, for editors and validators: draft 2020-12, and draft 7 where that is asked for."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from pydantic.json_schema import GenerateJsonSchema

from hatch_epctx.config.models import Settings

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import core_schema

__all__ = ["SCHEMA_DIALECT", "schema", "tool_schema"]

SCHEMA_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_DRAFT_7: Final = "http://json-schema.org/draft-07/schema#"
_ID: Final = "https://json.schemastore.org/partial-epctx.json"
"""Where SchemaStore serves the schema of a tool's table; validate-pyproject needs one too."""

_PARTIAL = "Partial"
"""Suffix of the definitions that overrides use: the same tables with nothing required."""
_REFERENCE = "#/$defs/"


def schema() -> dict[str, Any]:
    """The schema as plain data, made anew at each call.

    Keys are as in TOML, descriptions are the fields' docstrings. The schema knows types, allowed values and unknown
    keys; it does not know EPs and their options, nor what one key means for another. `package` is not required: it
    may come from the project's name.
    """
    made = Settings.model_json_schema(by_alias=True, mode="validation", schema_generator=_Generator)
    definitions = made.pop("$defs")
    made.pop("required")
    made["title"] = "tool.epctx"
    override = definitions["Override"]
    partial = {f"{name}{_PARTIAL}": _partial(table) for name, table in definitions.items() if name != "Override"}
    keys = {key: value for key, value in made["properties"].items() if key != "overrides"}
    override["properties"] |= _partial(keys)
    override["additionalProperties"] = False
    return {"$schema": SCHEMA_DIALECT, **made, "$defs": _used({**definitions, **partial}, made)}


def tool_schema() -> dict[str, Any]:
    """The same schema in draft 7, with an address: what validate-pyproject and SchemaStore take.

    Nothing that `schema` uses means something else there; definitions have another place.
    """
    made = _moved(schema())
    del made["$schema"]
    return {"$schema": _DRAFT_7, "$id": _ID, **made}


def _moved(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            "definitions" if key == "$defs" else key: value.replace(_REFERENCE, "#/definitions/")
            if key == "$ref"
            else _moved(value)
            for key, value in node.items()
        }
    return [_moved(value) for value in node] if isinstance(node, list) else node


class _Generator(GenerateJsonSchema):
    """Pydantic's schema as a TOML table has it: no null, no made-up titles, descriptions in one line."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        """A key that may be left out; TOML cannot write null."""
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """The default, unless it is nothing."""
        made = super().default_schema(schema)
        if made.get("default", ...) is None:
            del made["default"]
        return made

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """A table by name: what is no name is an unknown key."""
        made = super().dict_schema(schema)
        if "patternProperties" in made:
            made["additionalProperties"] = False
        return made

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        """Never: the key is the title."""
        return False

    def generate(self, schema: Any, mode: Any = "validation") -> JsonSchemaValue:
        """The schema with its descriptions in one line each."""
        made: JsonSchemaValue = _unwrapped(super().generate(schema, mode))
        return made


def _unwrapped(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: " ".join(value.split()) if key == "description" and isinstance(value, str) else _unwrapped(value)
            for key, value in node.items()
        }
    return [_unwrapped(value) for value in node] if isinstance(node, list) else node


def _partial(node: Any) -> Any:
    """A copy of a definition that requires nothing and refers to its like."""
    if isinstance(node, dict):
        copy = {key: _partial(value) for key, value in node.items() if key != "required" or not isinstance(value, list)}
        if isinstance(reference := copy.get("$ref"), str):
            copy["$ref"] = f"{reference}{_PARTIAL}"
        return copy
    return [_partial(value) for value in node] if isinstance(node, list) else deepcopy(node)


def _used(definitions: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Those definitions that something refers to, sorted by name."""
    wanted: set[str] = set()
    queue: list[Any] = [root]
    while queue:
        node = queue.pop()
        if isinstance(node, dict):
            name = str(node.get("$ref", "")).removeprefix(_REFERENCE)
            if name in definitions and name not in wanted:
                wanted.add(name)
                queue.append(definitions[name])
            queue += node.values()
        elif isinstance(node, list):
            queue += node
    return {name: definitions[name] for name in sorted(wanted)}
