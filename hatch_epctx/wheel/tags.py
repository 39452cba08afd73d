"""The platform tag of a wheel, from its targets and `[tool.epctx.wheel] platform`.

Compiled models are data: a wheel of targets for several platforms serves all of them (``any``), and the look-up
chooses. A wheel is of one platform where the project says so, or where all of its targets do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hatch_epctx.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hatch_epctx.config import Settings, Variant

__all__ = ["ANY", "platform_of"]

ANY: Final = "any"


def platform_of(settings: Settings, variants: Iterable[Variant]) -> str:
    """The platform tag of a wheel that holds `variants`: EPCTX_PLATFORM, else the project's, else the targets'.

    Shipped sources run anywhere and have no say.

    Raises:
        ConfigError: the wheel's own platform is another than that of a target in it.
    """
    given = settings.environment.platform
    declared = given or settings.wheel.platform
    compiled = [variant for variant in variants if not variant.is_source]
    if declared == ANY and not given:
        platforms = {variant.platform or ANY for variant in compiled}
        return platforms.pop() if len(platforms) == 1 else ANY
    for variant in compiled:
        if variant.platform not in ("", declared):
            raise ConfigError(
                f"the target belongs in a wheel for {variant.platform}, and this wheel is for {declared}",
                where=settings.place("targets", variant.base_target, "platform"),
                remedy=f"Remove {'EPCTX_PLATFORM' if given else 'tool.epctx.wheel.platform'}, select targets of one "
                "platform (EPCTX_TARGETS), or make a wheel for each (epctx build --split).",
                reason="platform",
            )
    return declared
