"""Write rules.md from the docs of rules, attributes, providers and macros in the .bzl files.

    python docs/generate.py [--check]

Starlark is read with Python's own parser, whose syntax it shares; nothing is run, and no Bazel is needed.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "rules.md"
HEAD = """# Rules

<!-- generated from the .bzl files: python rules/docs/generate.py -->

Load all of these from `@rules_epctx//epctx:defs.bzl`. Every rule has Bazel's common attributes too (`name`, `tags`,
`exec_properties`, ...). How they work together: [docs/bazel.md](../../docs/bazel.md).
"""
ORDER = (
    "epctx_toolchain", "epctx_ep", "epctx_model", "epctx_context", "epctx_context_group", "epctx_context_matrix",
    "epctx_contexts", "epctx_package", "epctx_wheel", "epctx_test",
)  # fmt: skip
KINDS = {
    "bool": "boolean",
    "int": "integer",
    "label": "label",
    "label_keyed_string_dict": "dictionary: label to string",
    "label_list": "list of labels",
    "string": "string",
    "string_dict": "dictionary: string to string",
    "string_list": "list of strings",
    "string_list_dict": "dictionary: string to list of strings",
}


def main() -> int:
    text = document()
    if "--check" in sys.argv[1:]:
        if not OUT.is_file() or OUT.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{OUT} is not what the .bzl files say; run python rules/docs/generate.py\n")
            return 1
        return 0
    OUT.write_text(text, encoding="utf-8")
    return 0


def document() -> str:
    modules = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("epctx/**/*.bzl"))}
    constants = {
        name: value for tree in modules.values() for name, value in assigned(tree) if not isinstance(value, ast.Name)
    }
    found: dict[str, str] = {}
    for tree in modules.values():
        for name, value in assigned(tree):
            if is_call(value, "rule") and not name.startswith("_"):
                found[name] = rule(name, value, constants)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name in ORDER:
                found[node.name] = macro(node)
    public = {name for name, _ in assigned(modules[ROOT / "epctx/defs.bzl"])}
    if public != set(ORDER) or not public <= found.keys():
        sys.exit(
            f"defs.bzl and this program name different rules: {sorted(public ^ set(ORDER) | public - found.keys())}"
        )
    parts = [HEAD, *(found[name] for name in ORDER)]
    parts.append(
        "# Repositories\n\n`@rules_epctx//epctx:repositories.bzl`, and as a tag of the module extension `epctx` in "
        "`@rules_epctx//epctx:extensions.bzl`.\n"
    )
    parts.append(rule("epctx_local_runtime", constants["epctx_local_runtime"], constants))
    parts.append("# Providers\n\n`@rules_epctx//epctx:providers.bzl`.\n")
    for name, value in assigned(modules[ROOT / "epctx/providers.bzl"]):
        parts.append(provider(name, value))
    return "\n".join(parts)


def assigned(tree: ast.Module) -> list[tuple[str, ast.expr]]:
    return [
        (node.targets[0].id, node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    ]


def is_call(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def keywords(call: ast.expr) -> dict[str, ast.expr]:
    return {item.arg: item.value for item in call.keywords if item.arg} if isinstance(call, ast.Call) else {}


def text_of(node: ast.expr | None) -> str:
    """A string, or strings that are added."""
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    return str(ast.literal_eval(node)) if node is not None else ""


def rule(name: str, call: ast.expr, constants: dict[str, ast.expr]) -> str:
    fields = keywords(call)
    rows = [row(attribute, value) for attribute, value in sorted(attributes(fields.get("attrs"), constants).items())]
    if not rows or not text_of(fields.get("doc")):
        sys.exit(f"{name} has no attributes or no doc")
    table = "\n".join(["| attribute | type | default | what it says |", "|---|---|---|---|", *rows])
    return f"## {name}\n\n{text_of(fields.get('doc'))}\n\n{table}\n"


def attributes(node: ast.expr | None, constants: dict[str, ast.expr]) -> dict[str, ast.expr]:
    if isinstance(node, ast.Name):
        return attributes(constants[node.id], constants)
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        found = {text_of(key): value for key, value in pairs if key is not None}
    elif is_call(node, "dict") if node else False:
        found = {}
        for argument in node.args:
            found |= attributes(argument, constants)
        found |= keywords(node)
    else:
        found = {}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def row(name: str, call: ast.expr) -> str:
    fields = keywords(call)
    kind = KINDS[call.func.attr]
    if "values" in fields:
        kind = "one of " + ", ".join(f"`{value}`" for value in ast.literal_eval(fields["values"]) if value)
    required = "mandatory" in fields
    default = "**mandatory**" if required else f"`{ast.unparse(fields['default'])}`" if "default" in fields else ""
    doc = text_of(fields.get("doc"))
    if not doc:
        sys.exit(f"the attribute {name} has no doc")
    return f"| `{name}` | {kind} | {default} | {cell(doc)} |"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def macro(node: ast.FunctionDef) -> str:
    doc = ast.get_docstring(node) or ""
    head, _, rest = doc.partition("\nArgs:\n")
    meanings: dict[str, str] = {}
    last = ""
    for line in rest.splitlines():
        name, colon, text = line.strip().partition(":")
        if colon and line.startswith("    ") and not line.startswith("     "):
            last = name
            meanings[last] = text.strip()
        elif last:
            meanings[last] += " " + line.strip()
    arguments = [argument.arg for argument in node.args.args]
    if set(meanings) != set(arguments):
        sys.exit(f"{node.name}: the docstring says {sorted(meanings)}, the function has {sorted(arguments)}")
    defaults = dict(zip(arguments[-len(node.args.defaults) :], map(ast.unparse, node.args.defaults), strict=True))
    rows = [
        f"| `{name}` | {f'`{defaults[name]}`' if name in defaults else '**mandatory**'} | {cell(meanings[name])} |"
        for name in arguments
    ]
    table = "\n".join(["| argument | default | what it says |", "|---|---|---|", *rows])
    return f"## {node.name}\n\nA macro. {head.strip()}\n\n{table}\n"


def provider(name: str, call: ast.expr) -> str:
    fields = keywords(call)
    pairs = fields["fields"]
    rows = [
        f"| `{text_of(key)}` | {cell(text_of(value))} |" for key, value in zip(pairs.keys, pairs.values, strict=True)
    ]
    return "\n".join(
        [f"## {name}\n", text_of(fields["doc"]) + "\n", "| field | what it holds |", "|---|---|", *rows, ""]
    )


if __name__ == "__main__":
    sys.exit(main())
