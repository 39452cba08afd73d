"""The project's own build backend, called in this environment: what the version is, and wheels of selected targets.

Nothing is isolated and nothing is installed: what `[build-system] requires` names must be here. For anything else there
are the front ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NoReturn

from pyproject_hooks import BackendUnavailable, BuildBackendHookCaller

from hatch_epctx.config import build_system
from hatch_epctx.errors import ToolchainError
from hatch_epctx.process import run_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hatch_epctx.config import Project

__all__ = ["Backend", "project_version"]

_WARNING: Final = "epctx: warning: "
_LINES: Final = 30
"""Lines of a failed backend's output that a message shows."""


class _Failed(Exception):  # control flow inside this module
    """The backend's process ended badly; the text is its output."""


class Backend:
    """The build backend of the project in `root`.

    Args:
        root: the folder with pyproject.toml.
        environ: environment variables that it sees.
        report: gets the warnings of this project's own that its output has, one line each.

    Raises:
        ConfigError: pyproject.toml cannot be read.
    """

    def __init__(self, root: Path, environ: Mapping[str, str], *, report: Callable[[str], None] | None = None) -> None:
        system = build_system(root)
        self._name = system.backend
        self._root = root
        self._environ = dict(environ)
        self._report = report
        self._hooks = BuildBackendHookCaller(
            str(root),
            system.backend,
            backend_path=list(system.backend_path) or None,
            runner=self._run,
            python_executable=sys.executable,
        )
        self._settings: dict[str, str] = {}

    def version(self) -> str:
        """The version in normal form, as the backend states it. Nothing is compiled.

        Raises:
            ToolchainError: the backend is not installed, or fails.
        """
        with TemporaryDirectory(prefix="epctx-") as folder:
            # A backend without the hook builds a wheel for it, with no models: EPCTX_SKIP is set.
            name = self._call("prepare_metadata_for_build_wheel", folder, skip="1")
            return Path(folder, name).name.removesuffix(".dist-info").rpartition("-")[2]

    def build_wheel(self, out: Path, settings: Mapping[str, str]) -> Path:
        """Build a wheel into the folder `out`, with the environment variables of `settings` over the others.

        Raises:
            ToolchainError: the backend is not installed, or fails; its output says why.
        """
        out.mkdir(parents=True, exist_ok=True)
        return out / self._call("build_wheel", str(out.absolute()), **settings)

    def _call(self, hook: str, folder: str, **settings: str) -> str:
        self._settings = {f"EPCTX_{name.upper()}": value for name, value in settings.items()}
        try:
            return str(getattr(self._hooks, hook)(folder))
        except _Failed as error:
            self._refuse(f"failed in {hook}", "", "\n".join(str(error).splitlines()[-_LINES:]))
        except BackendUnavailable as error:
            requires = " ".join(f"'{text}'" for text in build_system(self._root).requires)
            why = "".join((error.traceback or "").splitlines()[-1:])
            self._refuse(f"cannot be imported ({why})", f"Install it: pip install {requires}", "")

    def _run(self, cmd: Sequence[str], cwd: str | None = None, extra_environ: Mapping[str, str] | None = None) -> None:
        environ = {**self._environ, **self._settings, **(extra_environ or {})}
        done = run_tool(cmd, cwd=Path(cwd or os.curdir), environ=environ)
        if done.exit_code:
            raise _Failed(done.output)
        for line in done.output.splitlines():
            if self._report is not None and _WARNING in line:
                self._report(line[line.index(_WARNING) :])

    def _refuse(self, found: str, remedy: str, detail: str) -> NoReturn:
        raise ToolchainError(
            f"the build backend {self._name} {found}",
            where=str(self._root),
            remedy=remedy,
            reason="backend-failed",
            detail=detail,
        )


def project_version(project: Project, environ: Mapping[str, str]) -> str:
    """The version of `project`: as declared, or as its build backend states it where it is dynamic.

    Raises:
        ToolchainError: the backend is not installed, or fails.
    """
    if project.version != "0":
        return project.version
    return Backend(project.root, environ).version()
