"""pyproject.toml and hatch.toml: where the tables stand and what is wrong with the files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hatch_epctx.config import load_project, read_project
from hatch_epctx.errors import ConfigError

MODEL = '[tool.epctx.models.m]\nsource = "m.onnx"\n[tool.epctx.targets.t]\nep = "openvino"\n'
EXAMPLES = Path(__file__).parent.parent / "examples"


def write(root: Path, text: str, *packages: str) -> Path:
    (root / "pyproject.toml").write_text(text, encoding="utf-8")
    for package in packages:
        (root / package).mkdir(parents=True)
    return root


def test_the_table_as_it_stands(tmp_path: Path) -> None:
    write(tmp_path, '[tool.epctx]\npackage = "p"\n' + MODEL)
    assert read_project(tmp_path) == {
        "package": "p",
        "models": {"m": {"source": "m.onnx"}},
        "targets": {"t": {"ep": "openvino"}},
    }


def test_no_table(tmp_path: Path) -> None:
    assert read_project(write(tmp_path, '[project]\nname = "x"\n')) == {}


@pytest.mark.parametrize(
    ("name", "folder", "package"),
    [
        ("acme-vision", "acme_vision", "acme_vision"),
        ("Acme-Vision", "src/acme_vision", "acme_vision"),
        ("Acme-Vision", "Acme_Vision", "Acme_Vision"),
        ("acme.vision", "src/acme/vision", "acme.vision"),
        ("acme.vision", "acme_vision", "acme_vision"),
        ("acme", "other", None),
        ("", "acme", None),
    ],
)
def test_package_by_the_name_of_the_project(tmp_path: Path, name: str, folder: str, package: str | None) -> None:
    write(tmp_path, f'[project]\nname = "{name}"\n[tool.epctx]\n', folder)
    assert read_project(tmp_path).get("package") == package


def test_a_declared_package_stands(tmp_path: Path) -> None:
    write(tmp_path, '[project]\nname = "acme"\n[tool.epctx]\npackage = "other"\n', "acme")
    assert read_project(tmp_path)["package"] == "other"


def test_project(tmp_path: Path) -> None:
    write(tmp_path, '[project]\nname = "Acme-Vision"\n' + MODEL, "acme_vision")
    project = load_project(tmp_path, environ={"EPCTX_JOBS": "2"}, state="wheel")
    assert (project.root, project.name, project.settings.package) == (tmp_path, "Acme-Vision", "acme_vision")
    assert [variant.name for variant in project.variants] == ["m.t"]
    assert project.variants[0].source == tmp_path / "m.onnx"
    assert project.environment.jobs == 2


def test_a_relative_root_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, '[tool.epctx]\npackage = "p"\n' + MODEL)
    monkeypatch.chdir(tmp_path)
    project = load_project(Path(), environ={}, state="wheel")
    assert project.root == tmp_path
    assert project.name == "p"
    assert project.variants[0].source.is_absolute()


HOOK = "[tool.hatch.build.hooks.epctx.targets.t]\nembed = true\n"
TARGET_HOOK = "[tool.hatch.build.targets.wheel.hooks.epctx.targets.t]\ntimeout = 5\n"


@pytest.mark.parametrize(
    ("tables", "hatch", "expected"),
    [
        ("", None, (False, 600)),
        (HOOK, None, (True, 600)),
        # The table of the wheel target stands in for the general one, as hatch has it.
        (HOOK + TARGET_HOOK, None, (False, 5)),
        # A key of hatch.toml stands in for the same key of [tool.hatch].
        (HOOK, "[build.hooks.epctx.targets.t]\ntimeout = 9\n", (False, 9)),
        (HOOK, "[version]\npath = 'x'\n", (True, 600)),
    ],
)
def test_the_hook_table_is_found(tmp_path: Path, tables: str, hatch: str | None, expected: tuple[bool, float]) -> None:
    write(tmp_path, '[tool.epctx]\npackage = "p"\n' + MODEL + tables)
    if hatch is not None:
        (tmp_path / "hatch.toml").write_text(hatch, encoding="utf-8")
    (variant,) = load_project(tmp_path, environ={}, state="wheel").variants
    assert (variant.embed, variant.timeout) == expected


def test_a_hook_table_that_is_given_stands_in_for_the_file(tmp_path: Path) -> None:
    write(tmp_path, '[tool.epctx]\npackage = "p"\n' + MODEL + HOOK)
    hook = {"dependencies": ["x"], "targets": {"t": {"timeout": 3}}}
    (variant,) = load_project(tmp_path, hook=hook, environ={}, state="wheel").variants
    assert (variant.embed, variant.timeout) == (False, 3)


def test_errors_name_the_table_of_the_wheel_target(tmp_path: Path) -> None:
    write(tmp_path, '[tool.epctx]\npackage = "p"\n' + MODEL + TARGET_HOOK.replace("5", "0"))
    with pytest.raises(ConfigError) as caught:
        load_project(tmp_path, environ={}, state="wheel")
    assert caught.value.where == "tool.hatch.build.targets.wheel.hooks.epctx.targets.t.timeout"


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_project(tmp_path)
    path = tmp_path / "pyproject.toml"
    assert str(caught.value) == f"{path}: the file does not exist. Run in the project's folder, or name that with -C."


def test_no_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pyproject\.toml: is not valid TOML: .*line 2"):
        read_project(write(tmp_path, "[tool]\nx = = 1\n"))


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    write(tmp_path, "[tool]\n").joinpath("pyproject.toml").write_bytes(b"\xef\xbb\xbf[tool]\n")
    with pytest.raises(ConfigError, match=r"pyproject\.toml: begins with a byte-order mark\. Save it as UTF-8 without"):
        read_project(tmp_path)


def test_no_text(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"pyproject\.toml: is not valid TOML: "):
        read_project(tmp_path)


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").mkdir()
    with pytest.raises(ConfigError, match=r"pyproject\.toml: cannot be read: "):
        read_project(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tool = 1", "tool: found an integer; expected a table"),
        ("[tool]\nepctx = 'x'", "tool.epctx: found a string; expected a table"),
        ("[[tool.epctx]]", "tool.epctx: found an array; expected a table"),
        ("project = 1", "project: found an integer; expected a table"),
        ("[tool.hatch.build]\nhooks = 1", "tool.hatch.build.hooks: found an integer; expected a table"),
    ],
)
def test_tables_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_project(write(tmp_path, text), environ={}, state="wheel")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "root", sorted(path.parent for path in EXAMPLES.glob("*/pyproject.toml")), ids=lambda p: p.name
)
def test_examples(root: Path) -> None:
    project = load_project(root, environ={}, state="wheel")
    assert {variant.provider.key for variant in project.variants} == {"openvino", "qnn", "cpu"}


@pytest.mark.parametrize("text", ["x = " + "[" * 3000 + "]" * 3000, "x = 1" + "0" * 5000], ids=["deep", "long"])
def test_toml_beyond_what_python_reads_is_told(text: str, tmp_path: Path) -> None:
    tmp_path.joinpath("pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"pyproject\.toml: is not valid TOML: "):
        load_project(tmp_path, environ={}, state="wheel")
