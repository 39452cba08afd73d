"""Whether the wheel will have the import package that the package folder goes into, as far as that is certain.

Known before anything compiles: hatchling selects files by configuration alone, unless another hook brings files of its
own. What cannot be told beforehand is a warning about the finished wheel (`wheel.judge_wheel`).
"""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.config import build_system
from hatch_epctx.wheel import orphan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hatch_epctx.config import Project
    from hatch_epctx.errors import ConfigError

__all__ = ["misplaced", "misplaced_in_hatch"]

_HOOK: Final = "epctx"


def misplaced(project: Project) -> ConfigError | None:
    """What the hatch hook would refuse; None where nothing is wrong, or another backend builds the project."""
    if build_system(project.root).backend != "hatchling.build":
        return None
    try:
        from hatchling.builders.wheel import WheelBuilder  # noqa: PLC0415  # only where hatchling builds the project
        from hatchling.plugin.manager import PluginManager  # noqa: PLC0415

        return misplaced_in_hatch(project, WheelBuilder(str(project.root), plugin_manager=PluginManager()).config, {})
    except Exception:  # noqa: BLE001  # other people's plugins and metadata: the front end says what is wrong with them
        return None


def misplaced_in_hatch(project: Project, config: Any, forced: Mapping[str, str]) -> ConfigError | None:
    """Models of a package of which the wheel will hold nothing else; None where that is not certain.

    Args:
        project: with the variants that the wheel holds.
        config: hatchling's configuration of the wheel.
        forced: what other hooks force into the wheel so far, by source.
    """
    if not project.variants or set(config.hook_config) - {_HOOK}:
        return None
    names = [file.distribution_path for file in config.builder.recurse_selected_project_files()]
    # What is forced in may be a folder; "/" and "." are the wheel's root.
    targets = (*config.get_force_include().values(), *forced.values())
    folders = [f"{posixpath.normpath(_slashed(config.get_distribution_path(name)))}/" for name in targets]
    return orphan([*map(_slashed, names), *("/" if name == "./" else name for name in folders)], project.settings)


def _slashed(path: str) -> str:
    return path.replace(os.sep, "/").strip("/")
