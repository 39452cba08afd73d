"""The live display: on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from support import REPOSITORY, Factory, Tree, epctx, here

from hatch_epctx.cli.live import Live, can_show
from hatch_epctx.pipeline import Watcher

if TYPE_CHECKING:
    from collections.abc import Iterator

pty = pytest.importorskip("pty")

SLOW = """[tool.epctx.targets.stub]
ep = "stub"
provider-options = {{ mode = "slow", seconds = {} }}
"""
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")


def on_a_terminal(*arguments: str, tree: Tree, columns: int = 100, **env: str) -> tuple[int, str, str]:
    """Exit code, what stands on standard output, what the terminal of standard error got."""
    import fcntl
    import termios

    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    path = os.pathsep.join([str(REPOSITORY), os.environ["PYTHONPATH"]])
    process = subprocess.Popen(
        [sys.executable, "-m", "hatch_epctx", *arguments],
        cwd=tree.root,
        env={**os.environ, "TERM": "xterm", "PYTHONPATH": path, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal,
    )
    os.close(terminal)
    shown = b"".join(_read(reader))
    assert process.stdout is not None
    out = process.stdout.read()
    process.stdout.close()
    return process.wait(60), out.decode(), shown.decode(errors="replace")


def _read(descriptor: int) -> Iterator[bytes]:
    try:
        while data := os.read(descriptor, 65536):
            yield data
    except OSError:  # the other end is closed
        pass
    os.close(descriptor)


def test_a_terminal_sees_what_goes_on_and_how_long_it_will_take(factory: Factory) -> None:
    tree = factory.project(SLOW.format(1.5), models=("detector", "encoder"))
    code, out, shown = on_a_terminal("build", "-j", "1", tree=tree)
    assert code == 0
    assert "\x1b" not in out
    assert "\x1b[" in shown
    text = ESCAPES.sub("", shown)
    assert "0 of 2 variants" in text
    assert "1 of 2 variants" in text
    assert re.search(r"detector\.stub +compiling", text)
    assert " left" not in text, "nothing is known of a first compile"
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    assert any(re.match(r"epctx: detector\.stub: compiled [0-9a-f]{12} in \d", line) for line in lines)
    tree.model(seed=5)
    _, _, shown = on_a_terminal("build", "-j", "1", tree=tree)
    text = ESCAPES.sub("", shown)
    assert re.search(r"detector\.stub +compiling .*about \d.* left", text)
    assert re.search(r"\d of 2 variants, about \d.* left", text)
    assert "epctx: encoder.stub: hit" in text


def test_a_failure_stays_on_the_terminal_and_the_display_goes(factory: Factory) -> None:
    bad = '[tool.epctx.targets.bad]\nep = "stub"\nprovider-options = { mode = "fail" }\n'
    code, out, shown = on_a_terminal("build", tree=factory.project(bad))
    assert code == 5
    assert "failed" in out
    text = ESCAPES.sub("", shown)
    assert "epctx: detector.bad: failed" in text
    assert "\repctx: error: detector.bad: the compile failed" in text
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor is back"


@pytest.mark.parametrize("setting", [{"TERM": "dumb"}, {"EPCTX_LOG": "warning"}])
def test_other_terminals_get_lines(factory: Factory, setting: dict[str, str]) -> None:
    _, _, shown = on_a_terminal("build", tree=factory.project(SLOW.format(0.1)), **setting)
    assert "\x1b" not in shown
    assert ("compiling" in shown) == (setting.get("TERM") == "dumb")


def test_elsewhere_there_are_lines_that_say_how_long_it_will_take(factory: Factory) -> None:
    tree = factory.project(SLOW.format(5))
    assert "\x1b" not in epctx("build", cwd=tree.root).err
    tree.model(seed=5)
    project = tree.root / "pyproject.toml"
    # The line stands before the compile and tells of the last one: this one need not be long as well.
    project.write_text(project.read_text(encoding="utf-8").replace("seconds = 5 ", "seconds = 0 "), encoding="utf-8")
    assert re.search(
        r"detector\.stub: compiling [0-9a-f]{12} \(not in the store\), about \d+ s\n", here("build", cwd=tree.root).err
    )


def test_a_shipped_source_is_packed_not_compiled(factory: Factory) -> None:
    lines = here("build", cwd=factory.project(f"ship-source = true\n{SLOW.format(0)}").root).err
    assert re.search(r"detector\.source: packing [0-9a-f]{12} \(not in the store\)\n", lines)
    assert re.search(r"detector\.source: packed [0-9a-f]{12} in [0-9.]+ s\n", lines)
    assert re.search(r"detector\.stub: compiled [0-9a-f]{12} in [0-9.]+ s\n", lines)


class Screen:
    """A stream that says that it is a terminal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing."""

    def isatty(self) -> bool:
        return True


def test_the_rest_of_a_build_is_what_is_left_over_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    screen: Any = Screen()
    monkeypatch.setenv("TERM", "xterm")
    assert can_show(screen)
    live = Live(screen)
    assert isinstance(live, Watcher)
    names = ("a", "b", "c", "d")
    variants = {name: type("Variant", (), {"name": name})() for name in names}
    live.begin({"a": 10.0, "b": 20.0, "c": 30.0, "d": 0.0}, 2)
    try:
        live(variants["d"], "hit 1234")
        live(variants["a"], "compiling 1234 (absent)")
        live(variants["b"], "compiling 5678 (absent)")
        work = [("a", "compiling", 4.0, 10.0), ("b", "compiling", 4.0, 20.0)]
        assert live._rest(work) == (6 + 16 + 30) / 2
        live._expected["c"] = None
        assert live._rest(work) is None, "nobody knows"
        live._expected["c"] = 0.0
        assert live._rest([("b", "compiling", 1.0, 100.0)]) == 99.0, "one long compile is not shared out"
        time.sleep(0.3)
    finally:
        live.end()
    assert "compiling" in screen.text
    live(variants["c"], "compiling after the end")
    assert "epctx: c: compiling after the end" in screen.text
