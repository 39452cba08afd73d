"""Files of the project that a build reads beside its models."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hatch_epctx.config.scalars import is_library
from hatch_epctx.config.targets import resolve_target
from hatch_epctx.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hatch_epctx.config.models import Settings

__all__ = ["further_inputs"]


def further_inputs(settings: Settings, root: Path) -> tuple[Path, ...]:
    """Inputs of checks, samples for quantising, custom operators, what is behind options; whether they exist or not.

    A target that does not fit its EP has none: that is said when a wheel is built, which may have an EP that is not
    installed here.
    """
    paths = [root / text for text in _of_models(settings)]
    for name, target in settings.targets.items():
        try:
            resolved = resolve_target(name, target, root, partial(settings.place, "targets", name))
        except ConfigError:
            continue
        options = [option for one in resolved for option in (*one.provider_options, *one.runtime_options)]
        paths += [path for option in options if (path := option.file or option.folder) is not None]
        paths += [package.library for option in options for package in option.packages]
    return tuple(dict.fromkeys(paths))


def _of_models(settings: Settings) -> Iterator[str]:
    for model in settings.models.values():
        yield from filter(is_library, model.custom_ops)
        if model.calibration is not None:
            yield model.calibration
        if model.check is not None and model.check.inputs is not None:
            yield model.check.inputs
