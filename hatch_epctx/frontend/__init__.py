"""What the front ends share: one build, its dynamic requirements, the sources of an sdist, editable installs."""

from hatch_epctx.frontend.backend import Backend, project_version
from hatch_epctx.frontend.building import build_project, without_companions
from hatch_epctx.frontend.editable import add_pointer, refresh
from hatch_epctx.frontend.requirements import dynamic_requirements
from hatch_epctx.frontend.sources import SourceFile, source_files

__all__ = [
    "Backend",
    "SourceFile",
    "add_pointer",
    "build_project",
    "dynamic_requirements",
    "project_version",
    "refresh",
    "source_files",
    "without_companions",
]
