"""Writes the generated parts of the pages in this folder and the schema, from the same data that the program reads.

    python docs/generate.py            rewrite them
    python docs/generate.py --check    name the pages that are not up to date; exit code 1 when there are any

A generated part stands between two comment lines of a page and is replaced as a whole:

    <!-- generated: NAME (python docs/generate.py) -->
    <!-- end: NAME -->
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.cli.parser import COMMANDS, make_parser
from hatch_epctx.config import VARIABLES, InIdentity, Presentation, schema
from hatch_epctx.config.fields import key_of
from hatch_epctx.config.schema import tool_schema
from hatch_epctx.errors import (
    CompileError,
    ConfigError,
    LookupFailure,
    ModelError,
    StoreError,
    ToolchainError,
    VerificationError,
)
from hatch_epctx.providers import GROUP, all_providers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pydantic.fields import FieldInfo

    from hatch_epctx.cli.parser import Command
    from hatch_epctx.epcache import EpCache
    from hatch_epctx.providers import Option, Provider

FOLDER: Final = Path(__file__).resolve().parent
SCHEMA: Final = FOLDER.parent / "hatch_epctx" / "epctx.schema.json"
"""What the entry point for validate-pyproject reads, and what SchemaStore takes."""
_REFERENCE: Final = "#/$defs/"
_PART: Final = re.compile(
    r"^<!-- generated: (?P<name>[a-z-]+) \(python docs/generate\.py\) -->\n.*?^<!-- end: (?P=name) -->$",
    re.MULTILINE | re.DOTALL,
)


def main() -> int:
    """Rewrite or check every page."""
    parser = argparse.ArgumentParser(description="Writes the generated parts of the documentation.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 when a page is out of date")
    options = parser.parse_args()
    stale = [page for page in pages() if updated(page) != page.read_text(encoding="utf-8")]
    for page in stale:
        if not options.check:
            page.write_text(updated(page), encoding="utf-8", newline="\n")
        print(f"{page.relative_to(FOLDER.parent)}: {'out of date' if options.check else 'rewritten'}")
    return 1 if stale and options.check else 0


def pages() -> list[Path]:
    """The pages with generated parts, and the schema."""
    candidates = [FOLDER.parent / "README.md", *sorted(FOLDER.rglob("*.md"))]
    return [SCHEMA, *(page for page in candidates if _PART.search(page.read_text(encoding="utf-8")))]


def updated(page: Path) -> str:
    """The page's text with its generated parts made anew."""
    if page == SCHEMA:
        return json.dumps(tool_schema(), indent=2, ensure_ascii=False) + "\n"

    def made(match: re.Match[str]) -> str:
        name = match["name"]
        body = "\n".join(PARTS[name]()).strip("\n")
        return f"<!-- generated: {name} (python docs/generate.py) -->\n\n{body}\n\n<!-- end: {name} -->"

    return _PART.sub(made, page.read_text(encoding="utf-8"))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A Markdown table."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_cell(text) for text in row)} |"
    yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")


def _code(text: object) -> str:
    return f"`{text}`"


# reference/config.md

_TABLES: Final = (
    ("", "[tool.epctx]"),
    ("Model", "[tool.epctx.models.NAME]"),
    ("Check", "check of a model"),
    ("Target", "[tool.epctx.targets.NAME]"),
    ("Group", "[tool.epctx.groups.NAME]"),
    ("Wheel", "[tool.epctx.wheel]"),
    ("Cache", "[tool.epctx.cache]"),
    ("Condition", "if of [[tool.epctx.overrides]]"),
)
"""Definitions of the schema in the order of the page, and what their tables are called there."""


def configuration() -> Iterator[str]:
    """A section with a table of keys for every table of [tool.epctx]."""
    made = schema()
    fields = _fields()
    for name, title in _TABLES:
        node = made["$defs"][name] if name else made
        yield f"### `{title}`" if title.startswith("[") else f"### `{title.split()[0]}`{title[len(title.split()[0]) :]}"
        yield ""
        if name:
            yield node["description"]
            yield ""
        rows = [
            (
                _code(key),
                _type(value, made),
                _default(key, value, node),
                _identity(fields[name].get(key)),
                _text(value, made),
            )
            for key, value in node["properties"].items()
        ]
        yield from table(("key", "type", "default", "identity", "meaning"), rows)


def _fields() -> dict[str, dict[str, FieldInfo]]:
    """Fields of every table by its definition's name and the TOML key."""
    from hatch_epctx.config import models  # noqa: PLC0415  # private to the package, read here for its docstrings

    classes = {name: getattr(models, name or "Settings") for name, _ in _TABLES}
    return {
        name: {key_of(attribute, field): field for attribute, field in found.model_fields.items()}
        for name, found in classes.items()
    }


def _type(node: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    if "$ref" in node:
        name = node["$ref"].removeprefix(_REFERENCE)
        return _type(root["$defs"][name], root) if name == "JsonValue" else f"table, `{name.lower()}`"
    if "enum" in node:
        return ", ".join(_code(value) for value in node["enum"])
    for key in ("anyOf", "oneOf"):
        if key in node:
            return " or ".join(dict.fromkeys(_type(item, root) for item in node[key]))
    kind = node.get("type")
    if kind == "array":
        return f"array of {_several(node.get('items', {}), root)}"
    if kind == "object":
        inner = next(iter(node.get("patternProperties", {}).values()), node.get("additionalProperties"))
        return f"table of {_several(inner, root)}" if isinstance(inner, dict) else "table"
    if isinstance(kind, list):
        return " or ".join(kind)
    return str(kind or "any value")


def _several(node: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """The type in the plural: "strings", "tables, `model`"; one that is named by its values stays as it is."""
    kind = _type(node, root)
    if kind.startswith("`"):
        return kind
    return re.sub(r"^(array|table|string|integer|number|boolean|any value)\b", r"\1s", kind)


def _default(key: str, value: Mapping[str, Any], table_node: Mapping[str, Any]) -> str:
    if key in table_node.get("required", ()):
        return "required"
    default = value.get("default")
    if default in (None, [], {}):
        return ""
    return _code(str(default).lower() if isinstance(default, bool) else default)


def _identity(field: FieldInfo | None) -> str:
    for marker in field.metadata if field is not None else ():
        if isinstance(marker, InIdentity):
            return _code(marker.at)
        if isinstance(marker, Presentation):
            return f"no: {marker.why}"
    return ""


def _text(value: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """The key's docstring; a key whose docstring is that of its table has none of its own in the schema."""
    named = root["$defs"].get(str(value.get("$ref", "")).removeprefix(_REFERENCE), {})
    return str(value.get("description") or named.get("description", ""))


def variables() -> Iterator[str]:
    """The EPCTX_* variables."""
    yield from table(("variable", "meaning"), [(_code(name), text) for name, text in VARIABLES.items()])


# providers.md


def _own() -> list[Provider]:
    """The EPs that this project knows: what happens to be installed on the writing machine must not count."""
    foreign = {point.name for point in metadata.entry_points(group=GROUP)}
    return [provider for provider in all_providers() if provider.key not in foreign]


def providers() -> Iterator[str]:
    """EPs that write EPContext models, and those that do not."""
    compiling = [provider for provider in _own() if provider.epcontext]
    rows = [
        (
            _code(provider.key),
            _code(provider.names[0]),
            ", ".join(map(_code, provider.distributions)) or "part of ONNX Runtime or the system",
            ", ".join(provider.devices),
            "yes" if provider.run_here else "not run here",
            _target_needs(provider),
        )
        for provider in compiling
    ]
    yield from table(("ep", "registered name", "distributions", "devices", "tested", "compiles"), rows)
    caches = [(_code(provider.key), *_cache(provider.cache)) for provider in _own() if provider.cache is not None]
    yield "Caches that EPs keep of their own, which `ep-cache = true` ships ([run time](runtime.md#ep-caches)):"
    yield ""
    yield from table(("ep", "option", "holds", "shipped with", "tested"), caches)
    yield "These write no EPContext models and are refused, with the reason; those with a cache are taken for that:"
    yield ""
    others = [(_code(provider.key), provider.epcontext_reason) for provider in _own() if not provider.epcontext]
    yield from table(("ep", "why"), others)


def _cache(cache: EpCache) -> tuple[str, ...]:
    names = ", ".join(map(_code, (cache.option, *cache.also, *cache.switches)))
    inside = f": {'.'.join(cache.inside)}" if cache.inside else ""
    shipped = "the source model" if cache.filled_by == "source" else "the compiled model"
    return (names + inside, cache.holds, shipped, "on CPUs" if cache.run_here else "not run here")


def _target_needs(provider: Provider) -> str:
    parts = ["for devices that need not be present" if provider.offline else "on the device itself"]
    if provider.needs_static_shapes:
        parts.append("static shapes only")
    parts.append(f"at level {provider.default_optimization}, loads at {provider.load_optimization}")
    return "; ".join(parts)


def options() -> Iterator[str]:
    """The provider options of every EP that a target may name."""
    for provider in _own():
        if not provider.epcontext and provider.cache is None:
            continue
        yield f"### {provider.title} (`{provider.key}`)"
        yield ""
        if not provider.run_here:
            yield "Not run here: from the EP's documentation and source."
            yield ""
        taken = [option for option in provider.options.values() if not option.refuse and not option.ignored]
        rows = [(_code(o.name), _values(o), _when(o), _meaning(provider, o)) for o in taken]
        yield from table(("option", "value", "read by", "meaning"), rows)
        refused = [option for option in provider.options.values() if option.refuse or option.ignored]
        if refused:
            yield "Refused:"
            yield ""
            yield from table(("option", "why"), [(_code(o.name), o.refuse or o.ignored) for o in refused])


_LONG: Final = 12
"""Values of an option that a table names; of more, the message's own words stand."""
_KINDS: Final[Mapping[str, str]] = {
    "string": "text",
    "json": "table, or JSON text",
    "json-or-file": "table, JSON text, or the path of a JSON file",
    "file": "path of a file",
    "folder": "path of a folder",
    "output-path": "path that the EP writes to",
    "op-packages": "list of op packages",
    "int": "integer",
    "float": "number",
}


def _values(option: Option) -> str:
    if option.kind == "bool":
        return "boolean"
    if option.kind == "enum":
        values = ", ".join(map(_code, option.values)) if len(option.values) <= _LONG else option.expected
        return values or f"one of {len(option.values)} words"
    text = _KINDS[option.kind]
    if option.minimum is not None or option.maximum is not None:
        low, high = (str(end) if end is not None else "" for end in (option.minimum, option.maximum))
        text += f", {low} to {high}" if low and high else f", at least {low}" if low else f", at most {high}"
    return text + (f", or {', '.join(map(_code, option.values))}" if option.values else "")


def _when(option: Option) -> str:
    return {"compile": "compile", "run": "load", "both": "compile and load"}[option.phase]


def _meaning(provider: Provider, option: Option) -> str:
    default = provider.defaults.get(option.name)
    text = option.doc + (f" Default here: `{default}`." if default is not None else "")
    return text + (f" Not beside {', '.join(map(_code, option.excludes))}." if option.excludes else "")


# commands.md

_COMMON: Final = frozenset({"-h", "--json", "-q", "-v"})
"""Options of every command, which the page tells once."""


def command_list() -> Iterator[str]:
    """One row for each command: what must be given, and what it does."""
    parser = make_parser()
    rows = []
    for command in COMMANDS:
        needed = [_needed(action) for action in _sub_parser(parser, command.name)._actions if action.required]
        groups = ["|".join(inner.name for inner in command.commands)] if command.commands else needed
        rows.append((_code(" ".join(["epctx", command.name, *groups])), command.text))
    yield from table(("command", "what it does"), rows)


def _needed(action: argparse.Action) -> str:
    return _names(action)[0] if not action.option_strings else f"{action.option_strings[0]} {action.metavar}"


def commands() -> Iterator[str]:
    """Every command with its arguments."""
    parser = make_parser()
    for command in COMMANDS:
        yield from _command(command, _sub_parser(parser, command.name), command.name)


def _command(command: Command, parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    yield f"### `epctx {name}`"
    yield ""
    yield f"{command.text[0].upper()}{command.text[1:]}."
    yield ""
    if command.commands:
        for inner in command.commands:
            yield from _command(inner, _sub_parser(parser, inner.name), f"{name} {inner.name}")
        return
    rows = [
        (", ".join(map(_code, _names(action))), _help(action))
        for action in parser._actions  # argparse has no public list of them
        if action.help != argparse.SUPPRESS and not _COMMON.intersection(action.option_strings)
    ]
    if rows:
        yield from table(("argument", "meaning"), rows)


def _names(action: argparse.Action) -> list[str]:
    value = action.metavar or (action.choices and "|".join(map(str, action.choices))) or action.dest.upper()
    takes = action.nargs != 0
    if not action.option_strings:
        return [str(value)]
    return [
        f"{name} {value}" if takes and name == action.option_strings[-1] else name for name in action.option_strings
    ]


def _help(action: argparse.Action) -> str:
    text = (action.help or "").replace("%%", "%")
    return f"{text[:1].upper()}{text[1:]}." + (" Required." if action.required and action.option_strings else "")


def _sub_parser(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    found = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    chosen: argparse.ArgumentParser = found.choices[name]
    return chosen


def exit_codes() -> Iterator[str]:
    """What each exit code means, from the error classes."""
    errors = (ConfigError, ModelError, ToolchainError, CompileError, StoreError, LookupFailure, VerificationError)
    rows = [("0", "Done."), ("1", "A bug in hatch-epctx, shown with a traceback.")]
    rows += [(str(error.exit_code), (error.__doc__ or "").split("\n")[0]) for error in errors]
    yield from table(("code", "meaning"), rows)


PARTS: Final[Mapping[str, Callable[[], Iterator[str]]]] = {
    "configuration": configuration,
    "variables": variables,
    "providers": providers,
    "options": options,
    "command-list": command_list,
    "commands": commands,
    "exit-codes": exit_codes,
}

if __name__ == "__main__":
    sys.exit(main())
