"""What goes into the wheel: the package folder of one build, its bill of materials, the wheel's tag and its limits."""

from hatch_epctx.wheel.contents import (
    add_package,
    folder_in_wheel,
    model_contents,
    plan_package,
    why_empty,
    write_package,
)
from hatch_epctx.wheel.limits import judge_wheel, orphan
from hatch_epctx.wheel.replacing import check_out, replace_package
from hatch_epctx.wheel.tags import ANY, platform_of

__all__ = [
    "ANY",
    "add_package",
    "check_out",
    "folder_in_wheel",
    "judge_wheel",
    "model_contents",
    "orphan",
    "plan_package",
    "platform_of",
    "replace_package",
    "why_empty",
    "write_package",
]
