"""What the front ends share: one build, its dynamic requirements, the sources of an sdist, editable installs."""

from hatch_epctx.frontend.backend import Backend, project_version
from hatch_epctx.frontend.building import build_project, without_companions
from hatch_epctx.frontend.companions import Companion, build_companions, companions_of, missing_extras
from hatch_epctx.frontend.editable import Install, add_pointer, installs, refresh
from hatch_epctx.frontend.placing import misplaced, misplaced_in_hatch
from hatch_epctx.frontend.requirements import dynamic_requirements
from hatch_epctx.frontend.sources import SourceFile, absent_models, source_files
from hatch_epctx.frontend.splitting import Part, Split, build_parts, parts_of

__all__ = [
    "Backend",
    "Companion",
    "Install",
    "Part",
    "SourceFile",
    "Split",
    "absent_models",
    "add_pointer",
    "build_companions",
    "build_parts",
    "build_project",
    "companions_of",
    "dynamic_requirements",
    "installs",
    "misplaced",
    "misplaced_in_hatch",
    "missing_extras",
    "parts_of",
    "project_version",
    "refresh",
    "source_files",
    "without_companions",
]
