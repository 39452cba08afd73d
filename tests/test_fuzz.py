"""A bounded run of the fuzzers, and of everything that they have found so far: the kept corpus."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent / "fuzz"
sys.path.insert(0, str(FUZZ))

from readers import READERS  # noqa: E402
from run import CORPUS  # noqa: E402
from run import READERS as NAMES  # noqa: E402


def test_every_reader_has_a_corpus_and_none_is_large() -> None:
    assert set(NAMES) == set(READERS) == {path.name for path in CORPUS.iterdir()}
    sizes = {path: path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 1 << 20
    assert len(sizes) < 2000


@pytest.mark.parametrize("reader", NAMES)
def test_the_kept_corpus_is_read_or_refused(reader: str) -> None:
    files = sorted((CORPUS / reader).iterdir())
    assert files
    for path in files:
        READERS[reader](path.read_bytes())


@pytest.mark.skipif(sys.platform != "linux", reason="atheris is built for Linux")
@pytest.mark.parametrize("runs", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reader", NAMES)
def test_a_bounded_run_finds_nothing(reader: str, runs: int, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is in the dev extra, for Linux on x86-64")
    command = [sys.executable, str(FUZZ / "run.py"), reader, "--runs", str(runs), "--artifacts", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert f"{reader}: {runs:,} executions" in done.stdout
