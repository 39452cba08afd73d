"""The whole way once, on a fresh machine: build this example's wheel, install it elsewhere, run it, compare.

    python examples/quickstart/main_job.py [--work DIR] [--keep] [--installer uv|pip]

1. a build environment: this repository with its OpenVINO and QNN extras
2. two wheels of `examples/quickstart`: the first compiles, the second finds everything in the store, bit for bit
3. a new environment with the wheel, the look-up (no build extra) and the EP packages
4. `python -m acme_vision.demo` there, for each EP: the chosen variant, and the difference to the CPU EP

Uses the standard library only, and uv where it is on the PATH (pip otherwise). Everything happens in one folder,
a temporary one by default, which also holds the store, so that nothing is left behind and nothing old is reused.
Ends with 0 when every step succeeded and all outputs agree; with 1, naming the step, otherwise.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parent
REPOSITORY = EXAMPLE.parents[1]
EPS = ("openvino", "qnn")


class StepFailedError(Exception):
    """A step did not succeed; the message names it."""


class Job:
    """The steps, sharing one working folder."""

    def __init__(self, work: Path, installer: str) -> None:
        self.work = work
        self.installer = installer
        self.trace = work / "workers.txt"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EPCTX_", "PYTHON"))}
        # The user's own packages and settings must not help: this shows what a new machine does.
        self.environment = kept | {
            "EPCTX_CACHE_DIR": str(work / "store"),
            "EPCTX_TRACE_WORKERS": str(self.trace),
            "PYTHONNOUSERSITE": "1",
            "PYTHONUNBUFFERED": "1",
        }
        for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
            self.environment.pop(name, None)

    def run(self, step: str, *command: str | Path) -> None:
        """Run one command with its output shown; raise StepFailedError unless it ends with 0."""
        print(f"== {step}", flush=True)
        start = time.monotonic()
        ended = subprocess.run([str(part) for part in command], cwd=self.work, env=self.environment, check=False)
        if ended.returncode:
            shown = " ".join(str(part) for part in command)
            raise StepFailedError(f"{step}: exit code {ended.returncode} from: {shown}")
        print(f"   {time.monotonic() - start:.1f} s", flush=True)

    def new_environment(self, name: str, *requirements: str | Path) -> Path:
        """A virtual environment with `requirements`; returns its interpreter."""
        folder = self.work / name
        python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        if self.installer == "uv":
            self.run(f"new environment: {name}", "uv", "venv", "--quiet", "--python", sys.executable, folder)
            # uv would take an earlier wheel of this checkout from its cache unless pyproject.toml changed.
            refresh = ("--refresh-package", "hatch-epctx")
            install: tuple[str | Path, ...] = ("uv", "pip", "install", "--quiet", *refresh, "--python", python)
        else:
            venv.create(folder, with_pip=True)
            install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        self.run(f"install into {name}: {', '.join(map(str, requirements))}", *install, *requirements)
        return python

    def build(self, python: Path, name: str) -> Path:
        """Build the example's wheel into the folder `name`; without isolation: `python` has what building needs."""
        out = self.work / name
        self.run(f"build {name}", python, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, EXAMPLE)
        (wheel,) = out.glob("*.whl")
        return wheel

    def compiles(self) -> int:
        """How many compiles the builds have started so far."""
        lines = self.trace.read_text(encoding="utf-8").splitlines() if self.trace.exists() else []
        return sum(line.split()[0] == "compile" for line in lines if line.strip())


def check_wheels(job: Job, first: Path, compiled: int, second: Path) -> None:
    """The first build compiled, the second did not, and both gave the same bytes."""
    with zipfile.ZipFile(first) as archive:
        for entry in archive.infolist():
            if "/_epctx/" in entry.filename:
                print(f"   {entry.file_size:>9} {entry.filename}")
    print(f"   {first.name}: {first.stat().st_size} bytes, {compiled} compiles, then {job.compiles() - compiled}")
    if not compiled:
        raise StepFailedError("the first build compiled nothing")
    if job.compiles() != compiled:
        raise StepFailedError("the second build compiled again")
    if first.read_bytes() != second.read_bytes():
        raise StepFailedError("the second build gave another wheel")


def main_job(job: Job) -> None:
    """All steps in order."""
    extras = ",".join(EPS)
    builder = job.new_environment("build-environment", f"hatch-epctx[{extras}] @ {REPOSITORY.as_uri()}", "build")
    first = job.build(builder, "first-wheel")
    compiled = job.compiles()
    second = job.build(builder, "second-wheel")
    check_wheels(job, first, compiled, second)
    python = job.new_environment(
        "run-environment", f"hatch-epctx @ {REPOSITORY.as_uri()}", f"acme-vision[{extras}] @ {first.as_uri()}"
    )
    # The store is out of reach now: what runs, runs from the installed wheel.
    (job.work / "store").rename(job.work / "store-away")
    job.run("run, EP chosen by the look-up", python, "-I", "-m", "acme_vision.demo")
    for ep in EPS:
        job.run(f"run, {ep}", python, "-I", "-m", "acme_vision.demo", "--ep", ep)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build, install and run examples/quickstart on a fresh machine.")
    parser.add_argument("--work", type=Path, help="working folder, new or empty (default: a temporary one)")
    parser.add_argument("--keep", action="store_true", help="leave the working folder in place")
    parser.add_argument("--installer", choices=("uv", "pip"), default="uv" if shutil.which("uv") else "pip")
    options = parser.parse_args(arguments)
    if sys.version_info < (3, 11):  # a user may well start this with an older one
        version = ".".join(map(str, sys.version_info[:2]))
        print(f"main_job: this is Python {version}, and onnxruntime-qnn needs 3.11 or later", file=sys.stderr)
        return 1
    if options.work is None:
        work = Path(tempfile.mkdtemp(prefix="hatch-epctx-"))
    else:
        work = options.work.resolve()
        work.mkdir(parents=True, exist_ok=True)
        if any(work.iterdir()):
            print(f"main_job: {work} is not empty; name a new folder", file=sys.stderr)
            return 1
    try:
        main_job(Job(work, options.installer))
    except StepFailedError as error:
        print(f"main_job: failed: {error}", file=sys.stderr)
        return 1
    finally:
        if options.keep:
            print(f"kept: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    print("main_job: done, all outputs agree with the CPU EP")
    return 0


if __name__ == "__main__":
    sys.exit(main())
