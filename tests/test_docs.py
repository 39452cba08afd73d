"""README.md and docs are true: examples load and run, tables are those of the program, links lead somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from support import REPOSITORY, here, save, small_model

from hatch_epctx.cli.parser import EXIT_CODES
from hatch_epctx.config import ConfigErrors, load_project, load_settings
from hatch_epctx.config.project import tomllib
from hatch_epctx.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

PAGES = (REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md")))
PAGES += tuple(sorted((REPOSITORY / "examples").glob("*/README.md")))
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("epctx_docs_generate", REPOSITORY / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def readme_project(tmp_path: Path) -> Path:
    """The project that README.md describes."""
    (tmp_path / "acme_vision").mkdir()
    (tmp_path / "acme_vision" / "__init__.py").write_text("", encoding="utf-8")
    project = '\n[project]\nname = "acme-vision"\nversion = "1.0"\n'
    (tmp_path / "pyproject.toml").write_text(blocks(README, "toml")[0] + project, encoding="utf-8")
    save(small_model(batch="batch"), tmp_path / "models" / "detector.onnx")
    return tmp_path


def test_generated_parts_are_up_to_date() -> None:
    module = generator()
    names = {page.name for page in module.pages()}
    assert {"README.md", "config.md", "providers.md", "commands.md"} <= names
    for page in module.pages():
        assert module.updated(page) == page.read_text(encoding="utf-8"), f"{page}: run python docs/generate.py"


def test_every_key_of_the_configuration_is_explained() -> None:
    for line in generator().configuration():
        if line.startswith("| `"):
            assert not line.rstrip(" |").endswith("|"), line
            assert line.split(" | ")[-1].strip(" |"), line


def test_the_readmes_project_is_what_it_says(readme_project: Path) -> None:
    project = load_project(readme_project, environ={}, state="wheel")
    assert project.settings.package == "acme_vision"
    names = [variant.name for variant in project.variants]
    assert names == ["detector.intel-cpu", "detector.snapdragon-60", "detector.snapdragon-88", "detector.source"]


@pytest.mark.ep_openvino
@pytest.mark.ep_qnn
def test_the_readmes_console_is_what_a_user_sees(readme_project: Path) -> None:
    (console,) = [block for block in blocks(README, "console") if "$ epctx plan\n" in block]
    shown = console.split("$ epctx plan\n")[1].split("...\n")[0].splitlines()
    seen = here("plan", cwd=readme_project).out.splitlines()
    identity = re.compile(r"[0-9a-f]{12}")
    for line, real in zip(shown, seen, strict=False):
        assert identity.sub("", line) == identity.sub("", real)


@pytest.mark.ep_openvino
def test_the_readmes_code_runs(readme_project: Path, tmp_path: Path) -> None:
    here("build", "--targets", "intel-cpu", "--out", tmp_path / "acme_vision" / "_epctx", cwd=readme_project)
    (code,) = blocks(README, "python")
    named = re.findall(r"\.([a-z_]+)", code.split("#")[-1])
    checks = f"for name in {named!r}:\n    getattr(choice, name)\nprint(choice.variant, type(session).__name__)\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])}
    command = [sys.executable, "-c", code + checks]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    assert run.stdout.split() == ["intel-cpu", "InferenceSession"]


@pytest.mark.ep_openvino
def test_the_code_of_the_page_on_run_time_runs(readme_project: Path, tmp_path: Path) -> None:
    """Its Python blocks in order, as one program; the one about callbacks is refused by this EP, as the page says."""
    here("build", "--targets", "intel-cpu", "--out", tmp_path / "acme_vision" / "_epctx", cwd=readme_project)
    page = (REPOSITORY / "docs" / "runtime.md").read_text(encoding="utf-8")
    *code, callbacks, genai = blocks(page, "python")
    assert "genai" in genai  # which tests/test_genai.py runs
    named = re.findall(r"\.([a-z_]+)", code[0].split("#")[-1])
    checks = f"for name in {named!r}:\n    getattr(choice, name)\nprint(choice.variant, type(session).__name__)\n"
    refused = "session = {}\nchoice = runtime.explain(session)\nprint(choice.fallback, choice.rejected[-1].reason)\n"
    program = [code[0], checks, *code[1:], refused.format(callbacks.splitlines()[0].partition("  #")[0])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)]),
        "EPCTX_CACHE_DIR": str(tmp_path / "store"),
    }
    command = [sys.executable, "-c", "\n".join(program)]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    assert run.stdout.splitlines() == ["intel-cpu InferenceSession", "True callbacks-unsupported"]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_toml_on_every_page_loads(page: Path) -> None:
    base = tomllib.loads(blocks(README, "toml")[0])["tool"]["epctx"]
    for block in blocks(page.read_text(encoding="utf-8"), "toml"):
        table = tomllib.loads(block).get("tool", {}).get("epctx")
        if table is not None:
            whole: dict[str, Any] = table if "package" in table and "models" in table else {**base, **table}
            assert not reasons(whole), (page, block)


def reasons(table: dict[str, Any]) -> set[str]:
    """Why a configuration is refused; empty when it is not."""
    try:
        load_settings(table, environ={}, state="wheel")
    except ConfigError as error:
        return {single.reason for single in (error.errors if isinstance(error, ConfigErrors) else (error,))}
    return set()


def test_the_readme_tells_the_exit_codes() -> None:
    assert f"Exit codes: {EXIT_CODES}." in README


@pytest.mark.parametrize("page", PAGES, ids=[f"{page.parent.name}-{page.name}" for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]*)(#[^)\s]+)?\)", text):
        place, anchor = target
        if place.startswith(("http://", "https://")):
            continue
        file = (page.parent / place).resolve() if place else page
        assert file.exists(), f"{page.name}: {place}"
        if anchor and file.suffix == ".md":
            assert anchor[1:] in anchors(file), f"{page.name}: {place}{anchor}"


def anchors(page: Path) -> set[str]:
    """Anchors that a Markdown renderer gives to the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
