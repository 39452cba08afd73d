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
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

from hatch_epctx.console import missing_extra, printable
from hatch_epctx.errors import EpctxError
from hatch_epctx.files import copy_file

if TYPE_CHECKING:
    from hatch_epctx.config import Environment, Project
    from hatch_epctx.config.scalars import State
    from hatch_epctx.frontend import SourceFile
    from hatch_epctx.pipeline import Build

__all__ = ["EpctxBuildHook", "hatch_register_build_hook"]


class EpctxBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # its number of parameters changes between releases
    """`[tool.hatch.build.hooks.epctx]`."""

    PLUGIN_NAME = "epctx"

    def dependencies(self) -> list[str]:
        """Distributions that the selected targets need to compile; none for an sdist. Nothing but reading happens."""
        if self.target_name != "wheel":
            return []
        with _PlainErrors(self):
            from hatch_epctx.frontend import dynamic_requirements

            return list(dynamic_requirements(Path(self.root), hook=self.config, environ=os.environ))

    def clean(self, versions: list[str]) -> None:
        """Nothing: nothing of ours lies in the project, and the store is every project's (``epctx cache``)."""

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
                elif self.target_name == "sdist" and not environment.skip:
                    self._take_sources(build_data)
                return
            project = self._project("editable" if version == "editable" else "wheel")
            self._leave_out(project.settings.package, version)
            self._require_package(project, build_data)
            self._tag(project, build_data)
            self._built = self._build(project)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Add the package folder to the wheel at `artifact_path`; to an editable one, the pointer to a folder."""
        built = getattr(self, "_built", None)
        if built is None:
            return
        from hatch_epctx.frontend import add_pointer
        from hatch_epctx.wheel import add_package, judge_wheel, why_empty

        wheel = Path(artifact_path)
        with built, _PlainErrors(self):
            if version == "editable":
                plan = add_pointer(built, wheel, version=self.metadata.version, environ=os.environ)
            else:
                plan = add_package(built, wheel, version=self.metadata.version)
                for warning in judge_wheel(wheel, built.project.settings):
                    self._warn(warning)
            if plan is None:
                self._warn(f"{why_empty(built)}: the wheel holds no compiled models")

    def _environment(self) -> Environment:
        from hatch_epctx.config import read_environment

        return read_environment(os.environ)

    def _project(self, state: State) -> Project:
        """The project with the variants that its wheel holds; an editable install has all of them."""
        from hatch_epctx.config import load_project
        from hatch_epctx.frontend import missing_extras, without_companions

        project = load_project(Path(self.root), hook=dict(self.config), environ=os.environ, state=state)
        if state == "editable":
            return project
        for warning in missing_extras(project, self.metadata.version):
            self._warn(warning)
        return without_companions(project)

    def _require_package(self, project: Project, build_data: dict[str, Any]) -> None:
        """Refuse a wheel whose models would lie in a package that it does not have."""
        from hatch_epctx.frontend import misplaced_in_hatch

        if error := misplaced_in_hatch(project, self.build_config, build_data["force_include"]):
            raise error

    def _tag(self, project: Project, build_data: dict[str, Any]) -> None:
        """Give the wheel its platform; interpreter and ABI stay what another hook made them."""
        from hatch_epctx.wheel import ANY, platform_of

        platform = platform_of(project.settings, project.variants)
        if platform == ANY:
            return
        tag = build_data.get("tag") or "py3-none-any"
        if build_data.get("infer_tag"):
            tag = self.build_config.builder.get_best_matching_tag()
        build_data["infer_tag"] = False
        build_data["pure_python"] = False
        build_data["tag"] = "-".join([*tag.split("-")[:2], platform])

    def _take_sources(self, build_data: dict[str, Any]) -> None:
        """Put every file that a wheel is built from into the sdist, as a regular file."""
        from hatch_epctx.frontend import absent_models, source_files

        for warning in absent_models(Path(self.root), hook=self.config, environ=os.environ):
            self._warn(warning)
        forced: dict[str, str] = build_data["force_include"]
        for file in source_files(Path(self.root), hook=self.config, environ=os.environ):
            # Hatchling keeps selected files away from a forced one by its source: a link's is elsewhere.
            self.build_config.build_reserved_paths.add(self.build_config.get_distribution_path(file.name))
            forced[self._distinct(file, forced)] = file.name

    def _distinct(self, file: SourceFile, forced: dict[str, str]) -> str:
        """A source for `file` that no other one of the sdist has: two links may lead to the same file."""
        if str(file.path) not in forced:
            return str(file.path)
        self._copies = getattr(self, "_copies", None) or TemporaryDirectory(prefix="epctx-sdist-")
        copy = Path(self._copies.name, file.name)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy_file(file.path, copy)
        return str(copy)

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
        from hatch_epctx.frontend import build_project

        return build_project(project, self.app.display_info)


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
