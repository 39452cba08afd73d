"""The house keeps its shape: imports point down the floors, and dangerous things have one owner."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hatch_epctx

PACKAGE = Path(hatch_epctx.__file__).parent

FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"tool_schema", "errors", "digest"}),
    frozenset({"epcache", "files", "redact"}),
    frozenset({"manifest", "providers"}),
    frozenset({"runtime", "worker", "lease", "statcache"}),
    frozenset({"config", "process", "_pyinstaller"}),
    frozenset({"store", "toolchain"}),
    frozenset({"source", "remote", "collect"}),
    frozenset({"identity", "compile", "findings"}),
    frozenset({"changes", "folder", "wheelfile", "sbom"}),
    frozenset({"lockfile", "verification"}),
    frozenset({"pipeline"}),
    frozenset({"console", "firstuse", "provenance", "wheel", "wheelvariant"}),
    frozenset({"doctor", "report"}),
    frozenset({"frontend"}),
    frozenset({"bazel", "hatch", "setuptools", "cli"}),
    frozenset({"__main__"}),
)
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}

PROTOCOL = ("hatch_epctx.worker.protocol", "hatch_epctx.worker.dimensions")
"""The worker's modules that the parent imports: types and names of job and result, and a check of plain facts."""

OWNERS = {
    "filelock": {"lease"},
    "hashlib": {"digest"},
    "onnx": {"worker"},
    "onnxruntime": {"worker", "runtime"},
    "pickle": set(),
    "pydantic": {"config"},
    "subprocess": {"process"},
}


def modules() -> list[tuple[str, str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts == ("__init__",):
            continue
        found.append((parts[0], ".".join(parts), path))
    return found


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            if node.module == "hatch_epctx":
                names.update(f"hatch_epctx.{alias.name}" for alias in node.names)
    return names


def test_the_documentation_shows_the_same_floors() -> None:
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", text, flags=re.MULTILINE)
    assert [(int(floor), set(re.findall(r"`(\w+)`", names))) for floor, names in rows] == list(enumerate(FLOORS))


def test_every_module_stands_on_a_floor() -> None:
    assert {top for top, _, _ in modules()} <= FLOOR.keys()


@pytest.mark.parametrize(("top", "name", "path"), modules(), ids=[name for _, name, _ in modules()])
def test_imports_point_down(top: str, name: str, path: Path) -> None:
    for target in imported(path):
        parts = target.split(".")
        if parts[0] != "hatch_epctx" or len(parts) == 1 or parts[1] not in FLOOR:
            continue
        assert parts[1] == top or FLOOR[parts[1]] < FLOOR[top], f"{name} imports {target}, which is not below it"


@pytest.mark.parametrize(("top", "name", "path"), modules(), ids=[name for _, name, _ in modules()])
def test_dangerous_things_have_one_owner(top: str, name: str, path: Path) -> None:
    for target in imported(path):
        owners = OWNERS.get(target.split(".")[0])
        assert owners is None or top in owners, f"{name} imports {target}, which belongs to {owners}"


def test_the_parent_imports_only_the_protocol_of_the_worker() -> None:
    for top, name, path in modules():
        if top == "worker":
            continue
        for target in imported(path):
            if target.startswith("hatch_epctx.worker") and target != "hatch_epctx.worker":
                assert target.startswith(PROTOCOL), f"{name} imports {target}"


def test_the_lookup_needs_the_standard_library_alone() -> None:
    code = "import sys; import hatch_epctx.runtime; print('\\n'.join(sorted({m.split('.')[0] for m in sys.modules})))"
    run = subprocess.run([sys.executable, "-I", "-c", _with_path(code)], capture_output=True, text=True, check=True)
    foreign = set(run.stdout.split()) - set(sys.stdlib_module_names) - {"hatch_epctx", "__main__", "sitecustomize"}
    assert not {name for name in foreign if not name.startswith(("_", "__editable__"))}


def test_the_front_ends_do_not_import_onnxruntime_or_onnx() -> None:
    code = "import sys; import hatch_epctx.hatch, hatch_epctx.pipeline, hatch_epctx.cli.plan, hatch_epctx.wheel\n"
    code += "assert not {'onnx', 'onnxruntime', 'numpy'} & sys.modules.keys(), 'heavy import'"
    subprocess.run([sys.executable, "-I", "-c", _with_path(code)], check=True)


def _with_path(code: str) -> str:
    return f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n{code}"
