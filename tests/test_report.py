"""The report of a build: a page that a browser shows, tables, JSON; the same numbers in all of them."""

from __future__ import annotations

import html
import html.parser
import io
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from frontend_support import front_end
from support import OPENVINO_TARGET, Factory, here

from hatch_epctx.digest import digest_bytes
from hatch_epctx.pipeline import recall_summary
from hatch_epctx.report import default_place, print_report, render_page, write_page
from hatch_epctx.report.views import view
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
HOSTILE = '<img src=x onerror="alert(1)">'
NOTHING = {"artifacts": [], "size": 0, "coverage": None, "check": None, "startup": {}, "times": {}}


def variant(name: str, **changes: Any) -> dict[str, Any]:
    """A variant of a summary, as `pipeline.summary` makes it."""
    model, _, target = name.partition(".")
    artifacts = [
        {"role": "model", "name": f"{name}_ctx.onnx", "size": 1000, "sha256": f"{name:0<64}"},
        {"role": "context", "name": "sha256-0.bin", "size": 3 << 20, "sha256": f"{model:1<64}"},
    ]
    left = [{"operator": "If", "count": 2, "reason": "no kernel"}]
    output = {"name": "y", "verdict": "within", "max_abs": 0.0012, "max_rel": 0.0004, "cosine": 0.99999}
    made = {
        "name": name,
        "model": model,
        "target": target,
        "ep": "XExecutionProvider",
        "title": "the EP",
        "device": "npu",
        "source": False,
        "group": None,
        "status": "compiled",
        "reason": "absent",
        "identity": "a" * 64,
        "changed": [],
        "first": False,
        "uncertain": [],
        "started": 0.5,
        "seconds": 4.0,
        "worker": 0,
        "times": {"compile": 2.0, "load": 1.0, "check": 0.5},
        "startup": {"compile": 1.5, "session": 0.05, "run": 0.01},
        "coverage": {"taken": 8, "total": 10, "context_nodes": 1, "nodes_left": 2, "left": left},
        "check": {"outcome": "passed", "simulated": True, "outputs": [output]},
        "load_check": "passed",
        "metadata_lost": [],
        "compatibility": "v2",
        "artifacts": artifacts,
        "size": sum(item["size"] for item in artifacts),
        "error": None,
    }
    return {**made, **changes}


def failed(name: str, **changes: Any) -> dict[str, Any]:
    error = {
        "where": name,
        "found": "the compile failed: no",
        "expected": "",
        "remedy": "Try another.",
        "reason": "ep-error",
        "exit_code": 5,
        "detail": "line one\nline two",
    }
    return variant(name, status="failed", **{"error": error, **NOTHING, **changes})


def skipped(name: str) -> dict[str, Any]:
    return variant(name, status="skipped", seconds=0.0, **NOTHING)


def made_summary(*variants: dict[str, Any], before: Any = None) -> dict[str, Any]:
    statuses = ("hit", "compiled", "fetched", "skipped", "failed")
    return {
        "format": "epctx-report/1",
        "project": {"name": "acme-vision", "version": "1.2.3", "package": "acme_vision"},
        "made": "2026-01-02T03:04:05+00:00",
        "seconds": 9.0,
        "jobs": 2,
        "locked": False,
        "offline": False,
        "made_with": {"hatch-epctx": "1", "python": "3", "platform": "Linux", "command": "epctx"},
        "counts": {status: sum(item["status"] == status for item in variants) for status in statuses},
        "size": 5 << 20,
        "models": list(dict.fromkeys(item["model"] for item in variants)),
        "targets": list(dict.fromkeys(item["target"] for item in variants)),
        "variants": list(variants),
        "before": before,
    }


EVERYTHING = made_summary(
    variant("detector.npu", changed=["weights file detector.data changed"]),
    variant("detector.cpu", status="hit", started=0.2, seconds=0.1, worker=1),
    failed("encoder.npu", started=4.5, seconds=2.0),
    skipped("encoder.cpu"),
    before={
        "made": "2026-01-01T00:00:00+00:00",
        "seconds": 1.0,
        "size": 4 << 20,
        "variants": {
            "detector.npu": {"size": 2 << 20, "coverage": {"taken": 5, "total": 10}},
            "detector.old": {"size": 1, "coverage": None},
        },
    },
)


class Page(html.parser.HTMLParser):
    """What a page holds, for tests: tables as rows of texts, tags, identifiers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self._in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.tags.append((tag, named))
        if named.get("id"):
            self.ids.append(str(named["id"]))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_cell:
            self.rows[-1][-1] += data

    def of(self, first: str) -> list[list[str]]:
        """Rows that begin with this text."""
        rows = [[" ".join(cell.split()) for cell in row] for row in self.rows if row]
        return [row for row in rows if row[0] == first]


def test_the_page_says_everything() -> None:
    page = Page(render_page(EVERYTHING))
    assert ["detector", "● compiled2.0 s, 3.0 MiB", "✓ hit3.0 MiB"] in page.of("detector")
    words = ("weights file detector.data changed", "size 2.0 MiB → 3.0 MiB (+50%)", "coverage 5 of 10 → 8 of 10")
    assert page.of("detector.npu") == [
        ["detector.npu", "".join(words)],
        ["detector.npu", "compiled", "1", "0.50", "4.00", "2.00", "1.00", "0.50"],
        ["detector.npu", "", "80%", "8 of 10", "1", "2 If no kernel"],
        ["detector.npu", "y", "within (simulator)", "0.0012", "0.0004", "0.999990"],
        ["detector.npu", "", "50 ms", "1.6 s", "31.0"],
    ]
    assert ["sha256-0.bin", "", "3.0 MiB", "99.9%", "context", "detector.npu, detector.cpu"] in page.of("sha256-0.bin")
    for text in ("The compile failed: no.", "Try another.", "line one\nline two", "Not in this build: detector.old."):
        assert text in page.text
    assert "4.0 MiB → 5.0 MiB (+25%)" in page.text


def test_the_page_needs_nothing_beside_it_and_every_link_leads_somewhere() -> None:
    page = Page(render_page(EVERYTHING))
    assert len(page.ids) == len(set(page.ids))
    for tag, attributes in page.tags:
        assert tag not in {"link", "img", "iframe", "object"}
        assert "src" not in attributes
        if target := attributes.get("href"):
            assert target.startswith("#")
            assert target[1:] in page.ids
    policies = [str(attributes.get("content")) for tag, attributes in page.tags if tag == "meta"]
    assert any("default-src 'none'" in policy for policy in policies)
    assert not re.search(r"https?://", render_page(EVERYTHING))


def test_the_page_is_accessible() -> None:
    """Tables have heads with scopes, sections have names, and what only the eye can read has a table behind it."""
    page = Page(render_page(EVERYTHING))
    assert [attributes for tag, attributes in page.tags if tag == "html"] == [{"lang": "en"}]
    assert all(attributes.get("scope") for tag, attributes in page.tags if tag == "th")
    assert all(attributes["aria-labelledby"] in page.ids for tag, attributes in page.tags if tag == "section")
    (lanes,) = (attributes for tag, attributes in page.tags if attributes.get("class") == "lanes")
    assert lanes["aria-hidden"] == "true"
    assert sum(tag == "h1" for tag, _ in page.tags) == 1
    assert "The time line as a table" in page.text


def test_names_and_logs_cannot_write_the_page() -> None:
    hostile = made_summary(
        failed("a.b", error={**failed("a.b")["error"], "found": HOSTILE, "detail": f"</pre><script>{HOSTILE}"}),
        variant("c.b", title=HOSTILE, changed=[HOSTILE], compatibility=HOSTILE, metadata_lost=[HOSTILE]),
    )
    hostile["project"]["name"] = HOSTILE
    text = render_page(hostile)
    assert "<img" not in text
    assert text.count("<script") == 1
    assert text.count("&lt;img") >= 6


def test_a_first_build_and_an_empty_one_have_a_page() -> None:
    first = view(made_summary(variant("a.b", first=True)))
    assert first["changes"] == {"since": None, "rows": [], "gone": [], "size": ""}
    assert "skipped" in render_page(made_summary(skipped("a.b")))
    assert view(made_summary())["timeline"] == {"lanes": [], "rows": [], "ticks": []}


def test_nearly_all_is_not_all() -> None:
    coverage = {"taken": 260, "total": 261, "context_nodes": 2, "nodes_left": 1, "left": []}
    (row,) = view(made_summary(variant("a.b", coverage=coverage)))["coverage"]
    assert row["share"] == "99.6%"


def test_what_failed_shows_what_and_by_how_much() -> None:
    output = {"name": "y", "verdict": "beyond", "max_abs": 1.052, "max_rel": 0.055, "cosine": 0.9994}
    bad = failed("a.b", check={"outcome": "failed", "simulated": True, "outputs": [output]})
    bad["error"] = {**bad["error"], "reason": "check-failed"}
    page = Page(render_page(made_summary(bad)))
    assert page.of("a") == [["a", "✕ failedcheck failed"]]
    assert ["a.b", "y", "beyond (simulator)", "1.05", "0.055", "0.999400"] in page.of("a.b")


def test_members_of_a_group_are_one_piece_of_work() -> None:
    group = [variant(f"{name}.npu", group="llm") for name in ("prefill", "decode")]
    (lane,) = view(made_summary(*group))["timeline"]["lanes"]
    (bar,) = lane["bars"]
    assert bar["name"] == "llm.npu (2 models)"


def test_bars_lie_where_the_numbers_say() -> None:
    lanes = view(EVERYTHING)["timeline"]["lanes"]
    names = [[bar["name"] for bar in lane["bars"]] for lane in lanes]
    assert names == [["detector.npu", "encoder.npu"], ["detector.cpu"]]
    bar = lanes[0]["bars"][0]
    assert bar["left"] == pytest.approx(100 * 0.5 / 6.5, abs=0.01)
    assert bar["width"] == pytest.approx(100 * 4 / 6.5, abs=0.01)
    assert [part["width"] for part in bar["parts"]] == [50.0, 25.0, 12.5]
    bars = [bar for lane in lanes for bar in lane["bars"]]
    assert all(bar["left"] >= 0 and bar["left"] + bar["width"] <= 100.01 for bar in bars)


def test_tables_say_the_same() -> None:
    plain = io.StringIO()
    print_report(EVERYTHING, plain)
    text = plain.getvalue()
    assert "\x1b" not in text
    assert "4 variants: 1 compiled, 1 hit, 1 skipped, 1 failed" in text
    assert "weights file detector.data changed" in text
    assert re.search(r"detector\.npu +y +within \(simulator\) +0\.0012 +0\.0004 +0\.999990", text)
    assert re.search(r"detector\.npu +50 ms +1\.6 s +31\.0", text)
    print_report(made_summary(variant("a.b", title="\x1b[2Jx", changed=["\x1b[2J"])), hostile := io.StringIO())
    assert "\x1b" not in hostile.getvalue()


# Of real builds


@pytest.mark.ep_openvino
def test_the_last_build_is_remembered_whatever_became_of_it(factory: Factory, tmp_path: Path) -> None:
    bad = '[tool.epctx.targets.bad]\nep = "stub"\nprovider-options = { mode = "fail" }\n'
    absent = '[tool.epctx.targets.absent]\nep = "vitisai"\nrequired = false\n'
    tree = factory.project(f'{OPENVINO_TARGET}[tool.epctx.targets.stub]\nep = "stub"\n{bad}{absent}')
    nothing = here("report", cwd=tree.root, check=False)
    assert nothing.code == 6
    assert "knows no build of acme-vision. Build first" in nothing.err
    assert here("build", cwd=tree.root, check=False).code == 5
    found = here("report", "--json", cwd=tree.root).json
    statuses = {item["target"]: item["status"] for item in found["variants"]}
    assert statuses == {"intel-cpu": "compiled", "stub": "compiled", "bad": "failed", "absent": "skipped"}
    real = found["variants"][0]
    assert real["coverage"]["taken"] == real["coverage"]["total"] > 0
    assert real["startup"]["compile"] > 0 < real["startup"]["session"]
    assert real["times"].keys() >= {"compile", "load"}
    assert found["variants"][2]["error"]["found"].endswith("the stub fails as it was told")
    assert found["before"] is None
    tree.model(seed=5)
    here("build", cwd=tree.root, check=False)
    again = here("report", "--json", cwd=tree.root).json
    assert again["variants"][0]["changed"] == ["the model's ONNX file changed"]
    assert again["before"]["variants"]["detector.stub"]["status"] == "compiled"
    out = tmp_path / "page.html"
    assert f"wrote {out}" in here("report", "-o", out, cwd=tree.root).out
    assert "the model's ONNX file changed" in Page(out.read_text()).text
    place = re.search(r"wrote (.+\.html)", here("report", cwd=tree.root).out)
    assert place is not None
    assert Path(place[1]).is_relative_to(os.environ["EPCTX_CACHE_DIR"])


@pytest.mark.parametrize("name", ["../../evil", "/etc/evil", "..", "-x", "a\0b", "n" * 300, "acme-vision"])
def test_a_page_lies_in_the_store_whatever_the_project_is_called(name: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    place = default_place(store, name, "acme")
    write_page(EVERYTHING, place)
    assert place.parent == store.layout.base / "reports"
    assert [path.name for path in place.parent.iterdir()] == [place.name]
    assert place.name.startswith("acme-vision-") == (name == "acme-vision")


def test_a_summary_that_lacks_something_counts_as_none(tmp_path: Path) -> None:
    """Another version wrote it, or it was damaged: no build stumbles over what only a page is made of."""
    store, key = Store(tmp_path), digest_bytes(b"acme-vision/acme_vision")
    whole = json.loads(json.dumps(EVERYTHING))

    def recalled(changed: Any) -> Any:
        store.remember("report", key, changed)
        return recall_summary(store, "acme-vision", "acme_vision")

    assert recalled(whole) == whole
    for name in whole.keys() - {"before"}:
        assert recalled({field: value for field, value in whole.items() if field != name}) is None, name
    for name in whole["variants"][0]:
        short = {field: value for field, value in whole["variants"][0].items() if field != name}
        assert recalled({**whole, "variants": [short]}) is None, name
    for before in ([], {}, {**whole["before"], "variants": []}, {**whole["before"], "variants": {"a.b": 1}}):
        assert recalled({**whole, "before": before}) is None


def test_a_part_of_a_project_has_a_report_of_that_part(factory: Factory) -> None:
    tree = factory.project('[tool.epctx.targets.a]\nep = "stub"\n[tool.epctx.targets.b]\nep = "stub"\ndevice = "npu"\n')
    here("build", cwd=tree.root)
    here("build", "--targets", "a", cwd=tree.root)
    found = here("report", "--json", cwd=tree.root).json
    assert [item["name"] for item in found["variants"]] == ["detector.a"]
    assert sorted(found["before"]["variants"]) == ["detector.a", "detector.b"]


def test_a_build_writes_its_page_where_the_project_asks_for_it(factory: Factory, tmp_path: Path) -> None:
    table = 'report = true\n[tool.epctx.models.detector]\nsource = "models/detector.onnx"\n'
    tree = factory.project("")
    tree.write(f'{table}[tool.epctx.targets.stub]\nep = "stub"\n')
    built = front_end("backend", tree.root, out=tmp_path / "out")
    place = re.search(r"epctx: report: (.+\.html)", built.output)
    assert place is not None
    assert "compiled" in Path(place[1]).read_text()
    tree.model(seed=3)
    tree.write(f'{table}[tool.epctx.targets.stub]\nep = "stub"\nprovider-options = {{ mode = "fail" }}\n')
    run = here("build", cwd=tree.root, check=False)
    assert run.code == 5
    assert f"report: {place[1]}" in run.err
    assert "as it was told" in Path(place[1]).read_text()


# In a browser


def pixels(png: bytes) -> tuple[int, int, Iterator[bytes]]:
    """Width, bytes of a pixel, and lines of a PNG without interlacing."""
    width, _height, depth, kind = struct.unpack_from(">IIBB", png, 16)
    assert depth == 8
    channels = {2: 3, 6: 4}[kind]
    data, position = b"", 8
    while position < len(png):
        (length,) = struct.unpack_from(">I", png, position)
        if png[position + 4 : position + 8] == b"IDAT":
            data += png[position + 8 : position + 8 + length]
        position += 12 + length
    return width, channels, _lines(zlib.decompress(data), width * channels, channels)


def _lines(raw: bytes, stride: int, step: int) -> Iterator[bytes]:
    """Undo the filters of a PNG's lines (ISO 15948, 9.2)."""
    above = bytes(stride)
    for start in range(0, len(raw), stride + 1):
        kind, line = raw[start], bytearray(raw[start + 1 : start + 1 + stride])
        for i in range(stride if kind else 0):
            a = line[i - step] if i >= step else 0
            b, c = above[i], above[i - step] if i >= step else 0
            if kind == 4:
                p = a + b - c
                line[i] = (line[i] + min((a, b, c), key=lambda value: abs(p - value))) & 255
            else:
                line[i] = (line[i] + (0, a, b, (a + b) // 2)[kind]) & 255
        above = bytes(line)
        yield above


def browse(page: Path, tmp_path: Path, *flags: str) -> str:
    """What Chromium prints; all its processes end with it."""
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, page.as_uri()]
    out = tmp_path / "out.txt"
    with out.open("wb") as stream, (tmp_path / "err.txt").open("wb") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=errors, start_new_session=True
        )
        try:
            process.wait(120)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return out.read_text(encoding="utf-8", errors="replace")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)")
@pytest.mark.parametrize(("scheme", "ground"), [(1, (246, 247, 249)), (0, (16, 20, 27))], ids=["light", "dark"])
def test_a_browser_shows_the_page(tmp_path: Path, scheme: int, ground: tuple[int, int, int]) -> None:
    page, shot = tmp_path / "page.html", tmp_path / "shot.png"
    page.write_text(render_page(EVERYTHING))
    flags = (f"--screenshot={shot}", "--window-size=640,480", f"--blink-settings=preferredColorScheme={scheme}")
    browse(page, tmp_path, *flags)
    assert shot.is_file(), (tmp_path / "err.txt").read_text()
    width, channels, lines = pixels(shot.read_bytes())
    shown = list(lines)
    assert (width, len(shown)) == (640, 480)
    assert tuple(shown[2][:3]) == ground
    colours = {line[i : i + 3] for line in shown[::5] for i in range(0, len(line), 3 * channels)}
    assert len(colours) > 20, "there is something to see"


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)")
def test_the_pages_script_sorts_and_opens(tmp_path: Path) -> None:
    """In the browser: no error, a table that is sorted by a click, a variant that a link opens, nothing too wide."""
    page = tmp_path / "page.html"
    script = """<script>
    const sizes = document.querySelector("#sizes table");
    const names = () => [...sizes.tBodies[0].rows].map(row => row.cells[0].textContent.trim());
    const before = names();
    sizes.tHead.rows[0].cells[2].querySelector("button").click();
    const after = names();
    location.hash = "v-detector.npu";
    setTimeout(() => {
      document.title = JSON.stringify({
        moved: after[after.length - 1] === before[0],
        sort: sizes.tHead.rows[0].cells[2].getAttribute("aria-sort"),
        open: document.getElementById("v-detector.npu").querySelector("details").open,
        wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
        errors: window.seenErrors ?? 0,
      });
    }, 50);
    </script>"""
    counting = (
        "<script>addEventListener('error', () => { window.seenErrors = (window.seenErrors ?? 0) + 1; });</script>"
    )
    text = render_page(EVERYTHING).replace("<style>", f"{counting}<style>", 1).replace("</body>", f"{script}</body>")
    page.write_text(text)
    shown = browse(page, tmp_path, "--dump-dom", "--virtual-time-budget=2000", "--window-size=420,800")
    title = re.search(r"<title>(.*?)</title>", shown)
    assert title is not None, (tmp_path / "err.txt").read_text()
    expected = {"moved": True, "sort": "ascending", "open": True, "wide": False, "errors": 0}
    assert json.loads(html.unescape(title[1])) == expected
