"""Bazel as a user starts it, offline, on the module `rules/e2e/smoke` and on `rules` itself.

Bazel 4.2 comes with Debian (bazel-bootstrap); what it would fetch is overridden by the copies of Debian and by stubs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import REPOSITORY

from hatch_epctx.digest import digest_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

RULES = REPOSITORY / "rules"
SMOKE = RULES / "e2e" / "smoke"
DEBIAN = Path("/usr/share/bazel")
TIMEOUT = 420
"""Seconds of one invocation."""

_STUBS = {
    "rules_cc/cc/defs.bzl": "".join(
        f"{name} = native.{name}\n"
        for name in (
            *("cc_binary", "cc_import", "cc_library", "cc_proto_library", "cc_test", "cc_toolchain"),
            *("cc_toolchain_suite", "objc_library"),
        )
    ),
    "rules_cc/cc/BUILD": "",
    "rules_cc/WORKSPACE": "",
    "coverage/WORKSPACE": "",
    "coverage/noop.sh": "#!/bin/sh\n",
    "coverage/BUILD": 'package(default_visibility = ["//visibility:public"])\n'
    + "".join(
        f'sh_binary(name = "{name}", srcs = ["noop.sh"])\n' for name in ("lcov_merger", "coverage_report_generator")
    ),
}
_COUNTS = re.compile(r"^INFO: \d+ process(?:es)?: (.*)\.$", re.MULTILINE)


@dataclass(frozen=True)
class Ran:
    """What one invocation left."""

    code: int
    output: str

    @property
    def processes(self) -> dict[str, int]:
        """How many actions ran by which way: "internal", "linux-sandbox", "remote", "remote cache hit"."""
        lines = _COUNTS.findall(self.output)
        parts = (part.strip().split(" ", 1) for part in lines[-1].split(",")) if lines else ()
        return {way: int(count) for count, way in parts}

    @property
    def ways(self) -> dict[str, int]:
        """The same without what Bazel does inside itself."""
        return {way: count for way, count in self.processes.items() if way != "internal"}


class Machine:
    """One output base: to Bazel, another machine with nothing on it.

    Args:
        folder: of the output base and its files.
        workspace: the module that is built.
        python: interpreter of the environment that epctx_local_runtime takes.
    """

    def __init__(self, folder: Path, workspace: Path, python: Path) -> None:
        program = shutil.which("bazel")
        if program is None or not DEBIAN.is_dir():
            pytest.skip("Bazel is not there: apt-get install bazel-bootstrap bazel-skylib bazel-platforms ...")
        self._workspace = workspace
        folder.mkdir(parents=True)
        for name, text in _STUBS.items():
            path = folder / "stubs" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        overrides = {
            "bazel_skylib": DEBIAN / "tools/skylib",
            "platforms": DEBIAN / "tools/platforms",
            "remote_coverage_tools": folder / "stubs/coverage",
            "rules_cc": folder / "stubs/rules_cc",
            "rules_java": DEBIAN / "rules/java",
            "rules_proto": DEBIAN / "rules/proto",
        }
        lines = [f"common --override_repository={name}={path}" for name, path in overrides.items()]
        lines += [
            "build --sandbox_debug=false --symlink_prefix=/ --incompatible_strict_action_env --nobuild_runfile_links",
            f"build --repo_env=EPCTX_BAZEL_PYTHON={python} --color=no --curses=no --noshow_progress",
            "build --spawn_strategy=linux-sandbox,local --test_output=errors --jobs=2",
        ]
        (folder / "bazelrc").write_text("\n".join(lines) + "\n")
        self._start = [
            program,
            f"--bazelrc={folder / 'bazelrc'}",
            "--nohome_rc",
            "--noworkspace_rc",
        ]  # Debian's own rc names the server
        self._start += [f"--output_base={folder / 'base'}", "--max_idle_secs=300", "--host_jvm_args=-Xmx1g"]
        self._environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8"}
        self._bin: Path | None = None

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        """Start Bazel; the caller waits."""
        return subprocess.Popen(
            [*self._start, command, *arguments],
            cwd=self._workspace,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, command: str, *arguments: str, check: bool = True) -> Ran:
        process = self.start(command, *arguments)
        output, _ = process.communicate(timeout=TIMEOUT)
        if check:
            assert process.returncode == 0, output
        return Ran(code=process.returncode, output=output)

    def build(self, *arguments: str, check: bool = True) -> Ran:
        return self.run("build", *arguments, check=check)

    @property
    def bin(self) -> Path:
        """The folder of outputs."""
        if self._bin is None:
            self._bin = Path(self.run("info", "bazel-bin").output.strip().splitlines()[-1])
        return self._bin

    def forget(self) -> None:
        """Remove all outputs: what is built next is built or fetched anew."""
        for path in sorted(self.bin.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(self.bin, ignore_errors=True)

    def digests(self) -> dict[str, str]:
        """Digest of every output that a rule of ours made, by its path."""
        kinds = (".epctx.json", ".whl", ".onnx", ".bin", "manifest.json")
        return {
            path.relative_to(self.bin).as_posix(): digest_bytes(path.read_bytes())
            for path in sorted(self.bin.rglob("*"))
            if path.is_file() and path.name.endswith(kinds) and ".runfiles" not in str(path)
        }

    def stop(self) -> None:
        subprocess.run([*self._start, "shutdown"], cwd=self._workspace, env=self._environment, check=False)


def environment(folder: Path) -> Path:
    """The interpreter of a small environment that sees this checkout and this interpreter's packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    site = Path(
        subprocess.run(
            [python, "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
    )
    (site / "above.pth").write_text(f"{REPOSITORY}\n{sysconfig.get_path('purelib')}\n")
    return python


def workers(above: int) -> list[int]:
    """Compiles that run now as descendants of the process `above`."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [
        pid for pid in pids if b"worker/__main__.py" in _read(Path(f"/proc/{pid}/cmdline")) and above in _ancestors(pid)
    ]


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        fields = _read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
        if len(fields) < 2:
            return
        pid = int(fields[1])
        yield pid


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
