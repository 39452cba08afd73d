"""Finding the package folder by import name and by path, without importing the package."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from runtime_support import CPU, cpu, install, run_python, write

from hatch_epctx import runtime
from hatch_epctx.errors import LookupFailure, VerificationError

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] in ("acme", "acme_vision")]:
        del sys.modules[name]


def test_by_import_name_without_importing_it(site: Path) -> None:
    folder = install(site, cpu())
    package = runtime.open("acme_vision")
    assert package.path == folder / "_epctx"
    assert (package.name, package.version, package.models) == ("acme_vision", "1.2.3", ("detector",))
    assert package.variants("detector") == ("source",)
    assert "acme_vision" in repr(package)
    assert "acme_vision" not in sys.modules


def test_a_nested_package_and_one_below_a_namespace(site: Path) -> None:
    install(site, cpu(), package="acme.vision")  # acme itself has no __init__.py
    assert runtime.open("acme.vision").path == site / "acme" / "vision" / "_epctx"
    (site / "acme" / "__init__.py").write_text("")
    assert runtime.open("acme.vision").path == site / "acme" / "vision" / "_epctx"


def test_a_namespace_in_two_places(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other" / "acme" / "sound").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path / "other"))
    install(site, cpu(), package="acme.vision")
    assert runtime.open("acme.vision").path == site / "acme" / "vision" / "_epctx"


def test_an_editable_install_whose_sources_hide_the_folder(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 31: force-included files land in site-packages, the modules come from the checkout."""
    write(site / "acme_vision" / "_epctx", cpu())
    checkout = tmp_path / "checkout" / "acme_vision"
    checkout.mkdir(parents=True)
    (checkout / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(checkout.parent))
    assert runtime.open("acme_vision").path == site / "acme_vision" / "_epctx"


def test_an_imported_package_without_a_spec(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    folder = install(site, cpu())
    module = types.ModuleType("acme_vision")
    module.__path__ = [str(folder)]
    module.__spec__ = None
    monkeypatch.setitem(sys.modules, "acme_vision", module)
    assert runtime.open("acme_vision").path == folder / "_epctx"


@pytest.mark.parametrize("form", ["manifest", "folder", "package", "text"])
def test_by_path(tmp_path: Path, form: str) -> None:
    folder = install(tmp_path, cpu()) / "_epctx"
    given = {"manifest": folder / "manifest.json", "folder": folder, "package": folder.parent, "text": str(folder)}
    assert runtime.open(given[form]).path == folder


def test_a_relative_path_stays_right_when_the_cwd_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = install(tmp_path, cpu()) / "_epctx"
    monkeypatch.chdir(tmp_path)
    by_path, by_text = runtime.open(Path("acme_vision")), runtime.open("acme_vision")
    monkeypatch.chdir("/")
    assert by_path.path == by_text.path == folder


def test_an_unknown_package_says_so() -> None:
    with pytest.raises(LookupFailure, match="no package 'acme_nowhere'") as caught:
        runtime.open("acme_nowhere")
    assert caught.value.reason == "unknown-package"
    assert sys.prefix in caught.value.remedy


def test_a_package_without_a_folder_says_where_it_was_looked_for(site: Path) -> None:
    (site / "acme_vision").mkdir()
    (site / "acme_vision" / "__init__.py").write_text("")
    with pytest.raises(LookupFailure, match=r"has no _epctx/manifest\.json") as caught:
        runtime.open("acme_vision")
    assert str(site / "acme_vision") in caught.value.detail


def test_a_module_is_no_package(site: Path) -> None:
    (site / "acme_vision.py").write_text("")
    with pytest.raises(LookupFailure):
        runtime.open("acme_vision")


def test_a_path_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(LookupFailure, match="no such folder"):
        runtime.open(tmp_path / "nowhere")
    with pytest.raises(LookupFailure, match=r"no manifest\.json there"):
        runtime.open(tmp_path)


def test_a_manifest_that_is_no_regular_file_or_malformed(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "manifest.json").write_text("{}")
    with pytest.raises(VerificationError) as caught:
        runtime.open(tmp_path / "a")
    assert caught.value.where.startswith(str(tmp_path / "a" / "manifest.json"))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "manifest.json").symlink_to(tmp_path / "a" / "manifest.json")
    with pytest.raises(VerificationError, match="cannot be read"):
        runtime.open(tmp_path / "b")


TIMING = """
import sys, time
before = set(sys.modules)
start = time.process_time()
import hatch_epctx.runtime
print((time.process_time() - start) * 1000)
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def test_the_import_is_fast_and_brings_the_standard_library_alone() -> None:
    """Under 30 ms of this process's own time: the machine that runs the tests has other work too."""
    runs = [run_python(TIMING).stdout.splitlines() for _ in range(5)]
    assert min(float(run[0]) for run in runs) < 30
    assert set(runs[0][1].split()) - set(sys.stdlib_module_names) == {"hatch_epctx"}


OPENING = """
import sys
before = set(sys.modules)
from hatch_epctx import runtime
package = runtime.open(sys.argv[1])
assert "onnxruntime" not in sys.modules
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def test_opening_a_package_needs_neither_onnxruntime_nor_anything_else(tmp_path: Path) -> None:
    install(tmp_path, cpu())
    run = run_python(OPENING, str(tmp_path / "acme_vision"))
    assert set(run.stdout.split()) - set(sys.stdlib_module_names) == {"hatch_epctx"}, run.stderr


def test_the_module_has_its_interface_and_nothing_else() -> None:
    assert runtime.Choice.__name__ == "Choice"
    assert runtime.Package.__name__ == "Package"
    assert runtime.Rejection.__name__ == "Rejection"
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        runtime.Nothing  # noqa: B018


GONE = """
import os, sys
from pathlib import Path
from hatch_epctx import runtime
from hatch_epctx.errors import LookupFailure
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
sys.path[:0] = ["", "relative", Path("odd"), None, b"odd", sys.argv[2]]
print(runtime.open("acme_vision").name)
for name in ("./acme_vision", "acme_none"):
    try:
        runtime.open(name)
    except LookupFailure as failure:
        print(failure)
"""


def test_a_current_folder_that_is_gone_and_an_odd_import_path(site: Path, tmp_path: Path) -> None:
    install(site, cpu())
    (tmp_path / "gone").mkdir()
    done = run_python(GONE, str(tmp_path / "gone"), str(site))
    assert done.returncode == 0, done.stderr
    found, relative, none = done.stdout.splitlines()
    assert found == "acme_vision"
    assert "the path is relative, and the current folder is gone. Pass an absolute path." in relative
    assert "there is no package 'acme_none' on the import path" in none


@pytest.mark.parametrize("name", ["a" * 5000, "a/" * 5000, "x" * 300 + "/y", "a\0b", "\0"])
def test_a_name_that_cannot_be_is_not_found(name: str) -> None:
    with pytest.raises(LookupFailure):
        runtime.open(name)


@pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode elsewhere")
def test_a_place_whose_name_is_no_unicode(tmp_path: Path) -> None:
    """ONNX Runtime takes paths in UTF-8 alone: said in words, not in those of its binding."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    write(folder, cpu())
    with pytest.raises(LookupFailure) as caught:
        runtime.open(folder).session("detector", variant="source", fallback="error")
    assert "it takes paths in UTF-8 alone" in caught.value.detail
    assert runtime.open(folder).session("detector", variant="source", as_bytes=True).get_providers() == [CPU]
