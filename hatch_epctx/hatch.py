"""The hatch build hook: compiles the declared variants and puts the package folder into the wheel.

`initialize` brings every variant into the store, so that a failure costs no archive; `finalize` adds the folder to
the finished wheel in one streaming pass, stored or deflated as `[tool.epctx.wheel] compression` says. An sdist holds
sources alone and starts no compile. Front ends that hide a back end's output (pip, uv) show the lines with ``-v``.

A folder ``<package>/_epctx`` in the source tree (left by a build of another kind) is nobody's source: neither an sdist
nor a wheel takes anything from it. It is not removed, since what lies in the source tree is the user's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

from hatch_epctx.console import Lines, missing_extra, printable
from hatch_epctx.errors import EpctxError

if TYPE_CHECKING:
    from hatch_epctx.config import Environment, Project
    from hatch_epctx.config.scalars import State
    from hatch_epctx.pipeline import Build

__all__ = ["EpctxBuildHook", "hatch_register_build_hook"]


class EpctxBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # its number of parameters changes between releases
    """`[tool.hatch.build.hooks.epctx]`."""

    PLUGIN_NAME = "epctx"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile what changed. `version` is hatchling's build version: "standard" or "editable".

        Raises:
            SystemExit: by the one error family's message and exit code, so that no front end shows a traceback.
        """
        self._built: Build | None = None
        with _PlainErrors(self):
            environment = self._environment()
            if environment.skip or self.target_name != "wheel":
                self._leave_out(self._package(environment), version)
                if self.target_name == "wheel":
                    self._warn("EPCTX_SKIP is set: the wheel holds no compiled models")
                return
            project = self._project("editable" if version == "editable" else "wheel")
            self._leave_out(project.settings.package, version)
            self._built = self._build(project)
            if project.settings.wheel.platform != "any":
                build_data["pure_python"] = False
                build_data["tag"] = f"py3-none-{project.settings.wheel.platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Add the package folder to the wheel at `artifact_path`."""
        built = getattr(self, "_built", None)
        if built is None:
            return
        from hatch_epctx.wheel import add_package

        with built, _PlainErrors(self):
            if add_package(built, Path(artifact_path), version=self.metadata.version) is None:
                self._warn("every variant was skipped: the wheel holds no compiled models")

    def _environment(self) -> Environment:
        from hatch_epctx.config import read_environment

        return read_environment(os.environ)

    def _project(self, state: State) -> Project:
        from hatch_epctx.config import load_project

        return load_project(Path(self.root), hook=dict(self.config), environ=os.environ, state=state)

    def _package(self, environment: Environment) -> str:
        """The package's import name, where nothing is built; of a skipped build nothing else is demanded."""
        from hatch_epctx.config import load_settings, read_project

        table = read_project(Path(self.root))
        if environment.skip:
            return str(self.config.get("package", table.get("package", "")))
        return load_settings(table, hook=dict(self.config), environ=os.environ, state="sdist").package

    def _leave_out(self, package: str, version: str) -> None:
        """Keep what lies in the package's `_epctx` in the source tree out of the archive, whatever selects it.

        Reserved paths are hatchling's own way to keep project files out that a hook brings itself; they stand above
        include, exclude and artifacts.
        """
        from hatch_epctx.wheel import folder_in_wheel

        if not package:
            return
        folder = folder_in_wheel(package)
        files = self.build_config.builder.recurse_selected_project_files()
        paths = [file.distribution_path for file in files]
        stale = [path for path in paths if f"/{folder}" in f"/{path.replace(os.sep, '/')}"]
        self.build_config.build_reserved_paths.update(stale)
        if version == "editable":
            hiding = [base for base in ("", "src") if Path(self.root, base, folder).is_dir()]
            if hiding:
                place = Path(hiding[0], folder).as_posix()
                self._warn(f"{place} in the source tree hides the installed one from the look-up; remove it")
        elif stale:
            self._warn(f"{folder} in the source tree is no source: nothing of it is taken")

    def _warn(self, text: str) -> None:
        self.app.display_warning(printable(f"epctx: warning: {text}"))

    def _build(self, project: Project) -> Build:
        from hatch_epctx.pipeline import Pipeline
        from hatch_epctx.store import Store

        store = Store(project.environment.cache_dir)
        lines = Lines(self.app.display_info, level=project.environment.log)
        lines.debug(f"store {store.root}{' (read-only)' if store.read_only else ''}, {project.environment.jobs} jobs")
        built = Pipeline(project, store, report=lines).build()
        try:
            built.raise_for_failures()
        except BaseException:
            built.close()
            raise
        return built


@hookimpl
def hatch_register_build_hook() -> type[EpctxBuildHook]:
    """Hatchling's entry: the hook class."""
    return EpctxBuildHook


class _PlainErrors:
    """Turn a user's error into a message and an exit code; leave everything else alone."""

    def __init__(self, hook: EpctxBuildHook) -> None:
        self._hook = hook

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ModuleNotFoundError):
            error = missing_extra(error)
        if isinstance(error, EpctxError):
            self._hook.app.abort(printable(f"epctx: error: {error}"), code=error.exit_code)
