"""Build front ends as users start them: hatch, build, pip and uv, each in a process of its own.

All of them run without build isolation, so that the back end is the hook of this checkout; one test of `test_hatch`
builds in isolation from a wheel of this checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from support import REPOSITORY

from hatch_epctx.wheelfile import check_wheel

if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM_ENVIRONMENT = '\n[tool.hatch.envs.hatch-build]\ntype = "system"\n'
"""Makes `hatch build` use the environment that it runs in and install nothing."""

NAMES = ("hatch", "build", "uv", "pip")
"""What users start. "backend" starts hatchling alone, for tests in which the front end does not matter: it is fast."""


@dataclass(frozen=True)
class Built:
    """What a front end left. `output` is what it printed on both streams."""

    code: int
    output: str
    wheels: list[Path] = field(default_factory=list)
    sdists: list[Path] = field(default_factory=list)

    @property
    def wheel(self) -> Path:
        (wheel,) = self.wheels
        return wheel


def front_end(name: str, root: Path, *, out: Path, env: Mapping[str, str] | None = None, check: bool = True) -> Built:
    """Build the project in `root` with one of `NAMES`, or "backend", into the new folder `out`, as its users do.

    hatch, build and uv make an sdist first; build and uv then make the wheel from the unpacked sdist, hatch makes it
    from the tree, and pip makes no sdist.
    """
    return run_front_end(_command(name, out), root, out=out, env=env, check=check)


def _command(name: str, out: Path) -> list[str]:
    return {
        "hatch": [sys.executable, "-m", "hatch", "build", str(out)],
        "build": [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)],
        "uv": [sys.executable, "-m", "uv", "build", "--no-build-isolation", "--python", sys.executable, "-o", str(out)],
        "backend": [sys.executable, "-m", "hatchling", "build", "-d", str(out)],
        "pip": [
            sys.executable,
            "-m",
            "pip",
            *["wheel", "-v", "--no-deps", "--no-build-isolation", "-w"],
            str(out),
            ".",
        ],
    }[name]


def run_front_end(
    command: list[str], root: Path, *, out: Path, env: Mapping[str, str] | None = None, check: bool = True
) -> Built:
    """Run one command in `root`; `out` is where it puts what it builds."""
    data = root.parent / "hatch-data"
    # Hatch 1.18 does not make this folder by itself for environments of type "system".
    (data / "env" / "system").mkdir(parents=True, exist_ok=True)
    merged = {**os.environ, "HATCH_DATA_DIR": str(data), "NO_COLOR": "1", "COLUMNS": "200", **(env or {})}
    merged["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # noqa: PTH120
    if "PYTHONPATH" not in (env or {}):
        merged["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), merged.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=root,
        env=merged,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    output = done.stdout
    assert "Traceback" not in output, output
    if check:
        assert done.returncode == 0, output
    return Built(
        code=done.returncode,
        output=output,
        wheels=sorted(out.glob("*.whl")),
        sdists=sorted(out.glob("*.tar.gz")),
    )


def package_files(wheel: Path, folder: str = "acme_vision/_epctx/") -> set[str]:
    """Names below the package folder of a wheel that is in every respect what its RECORD says."""
    assert check_wheel(wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    return {name.removeprefix(folder) for name in names if name.startswith(folder)}


class Workers:
    """Counts worker processes of the builds that get its `env`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "workers.txt"
        self._seen = 0

    @property
    def env(self) -> dict[str, str]:
        return {"EPCTX_TRACE_WORKERS": str(self._file)}

    def new(self) -> list[str]:
        """Tasks of the workers that were started since the last call."""
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
        new, self._seen = lines[self._seen :], len(lines)
        return new


def environment_like_this_one(folder: Path) -> Path:
    """A new environment that sees this one's packages and installs into its own folder; returns its interpreter."""
    venv.create(folder, with_pip=False)
    names = {"base": str(folder), "platbase": str(folder)}
    (Path(sysconfig.get_path("purelib", "venv", names)) / "outer.pth").write_text(sysconfig.get_path("purelib"))
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
