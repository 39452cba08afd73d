"""The hatch build hook: compiles the declared variants and puts the package folder into the wheel.

`initialize` brings every variant into the store, so that a failure costs no archive; `finalize` adds the folder to
the finished wheel in one streaming pass, stored or deflated as `[tool.epctx.wheel] compression` says. An sdist holds
sources alone and starts no compile. Front ends that hide a back end's output (pip, uv) show the lines with ``-v``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

if TYPE_CHECKING:
    from hatch_epctx.config import Project, Variant
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
        if self.target_name != "wheel":
            return
        with _PlainErrors(self):
            project = self._project("editable" if version == "editable" else "wheel")
            if project.environment.skip:
                self.app.display_warning("epctx: EPCTX_SKIP is set: the wheel holds no compiled models")
                return
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
            add_package(built, Path(artifact_path), version=self.metadata.version)

    def _project(self, state: Any) -> Project:
        from hatch_epctx.config import load_project

        return load_project(Path(self.root), hook=dict(self.config), environ=os.environ, state=state)

    def _build(self, project: Project) -> Build:
        from hatch_epctx.pipeline import Pipeline
        from hatch_epctx.store import Store

        pipeline = Pipeline(project, Store(project.environment.cache_dir), report=self._say)
        built = pipeline.build()
        try:
            built.raise_for_failures()
        except BaseException:
            built.close()
            raise
        return built

    def _say(self, variant: Variant | None, text: str) -> None:
        self.app.display_info(f"epctx: {variant.name + ': ' if variant else ''}{text}")


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
        from hatch_epctx.errors import EpctxError

        if isinstance(error, EpctxError):
            self._hook.app.abort(f"epctx: error: {error}", code=error.exit_code)
