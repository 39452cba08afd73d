"""The configuration: `[tool.epctx]` and the EPCTX_* environment, read, checked and expanded into variants.

`load_project` is the way in for a project, `single_variant` for one model outside any. Only this sub-package knows
pydantic; everything it hands out is frozen.
"""

from hatch_epctx.config.base import InIdentity, Presentation
from hatch_epctx.config.environment import VARIABLES, Environment, LogLevel, read_environment
from hatch_epctx.config.errors import ConfigErrors
from hatch_epctx.config.expand import expand, single_variant
from hatch_epctx.config.fields import walk
from hatch_epctx.config.inputs import further_inputs
from hatch_epctx.config.load import Machine, load_settings
from hatch_epctx.config.models import Settings
from hatch_epctx.config.project import BuildSystem, Project, build_system, load_project, read_project, single_project
from hatch_epctx.config.schema import schema
from hatch_epctx.config.variant import CheckPlan, CustomOps, SharedGroup, Variant

__all__ = [
    "VARIABLES",
    "BuildSystem",
    "CheckPlan",
    "ConfigErrors",
    "CustomOps",
    "Environment",
    "InIdentity",
    "LogLevel",
    "Machine",
    "Presentation",
    "Project",
    "Settings",
    "SharedGroup",
    "Variant",
    "build_system",
    "expand",
    "further_inputs",
    "load_project",
    "load_settings",
    "read_environment",
    "read_project",
    "schema",
    "single_project",
    "single_variant",
    "walk",
]
