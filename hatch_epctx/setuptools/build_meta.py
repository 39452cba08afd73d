"""A build backend: setuptools' own, with requirements of the selected targets and ``-C`` settings.

    [build-system]
    requires = ["setuptools>=77", "hatch-epctx[setuptools]"]
    build-backend = "hatch_epctx.setuptools.build_meta"

``-C epctx.targets=snapdragon-*`` is EPCTX_TARGETS for this build and stands over it; any variable that
`config.VARIABLES` lists has such a setting, in lower case and with dashes. All other settings are setuptools'.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from setuptools import build_meta as plain

from hatch_epctx.setuptools.commands import plain_errors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_PREFIX: Final = "epctx."


def get_requires_for_build_wheel(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Setuptools' requirements and those of the selected targets."""
    with _settings(config_settings) as others:
        return [*plain.get_requires_for_build_wheel(others), *_of_targets()]


def get_requires_for_build_editable(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Setuptools' requirements and those of the selected targets."""
    with _settings(config_settings) as others:
        return [*plain.get_requires_for_build_editable(others), *_of_targets()]


def get_requires_for_build_sdist(config_settings: Mapping[str, Any] | None = None) -> list[str]:
    """Setuptools' requirements: an sdist needs no EP."""
    with _settings(config_settings) as others:
        return list(plain.get_requires_for_build_sdist(others))


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Mapping[str, Any] | None = None) -> str:
    """As setuptools; nothing is compiled."""
    with _settings(config_settings) as others:
        return str(plain.prepare_metadata_for_build_wheel(metadata_directory, others))


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: Mapping[str, Any] | None = None
) -> str:
    """As setuptools; nothing is compiled."""
    with _settings(config_settings) as others:
        return str(plain.prepare_metadata_for_build_editable(metadata_directory, others))


def build_wheel(
    wheel_directory: str, config_settings: Mapping[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """As setuptools, with the compiled models."""
    with _settings(config_settings) as others:
        return str(plain.build_wheel(wheel_directory, others, metadata_directory))


def build_editable(
    wheel_directory: str, config_settings: Mapping[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """As setuptools, with the pointer to the compiled models."""
    with _settings(config_settings) as others:
        return str(plain.build_editable(wheel_directory, others, metadata_directory))


def build_sdist(sdist_directory: str, config_settings: Mapping[str, Any] | None = None) -> str:
    """As setuptools, with the models."""
    with _settings(config_settings) as others:
        return str(plain.build_sdist(sdist_directory, others))


def _of_targets() -> tuple[str, ...]:
    from hatch_epctx.frontend import dynamic_requirements

    with plain_errors():
        return dynamic_requirements(Path.cwd(), environ=os.environ)


@contextmanager
def _settings(given: Any) -> Iterator[dict[str, Any]]:
    """Set the variables that ``epctx.*`` settings stand for while the block runs; gives the other settings."""
    with plain_errors():
        ours = dict(_variable(key, value) for key, value in (given or {}).items() if key.startswith(_PREFIX))
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield {key: value for key, value in (given or {}).items() if not key.startswith(_PREFIX)}
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _variable(key: str, value: Any) -> tuple[str, str]:
    """The variable that a setting stands for, and its value; several values of one key are joined.

    Raises:
        ConfigError: there is no such variable.
    """
    from hatch_epctx.config import VARIABLES
    from hatch_epctx.errors import ConfigError, suggest

    name = "EPCTX_" + key.removeprefix(_PREFIX).upper().replace("-", "_")
    if name not in VARIABLES:
        known = [_PREFIX + known[len("EPCTX_") :].lower().replace("_", "-") for known in VARIABLES if "*" not in known]
        raise ConfigError(
            "no such setting",
            where=f"-C {key}",
            expected=f"one of {', '.join(known)}",
            remedy=suggest(key, known),
            reason="unknown-setting",
        )
    # A setting without a value switches on, as setuptools has it.
    return name, "1" if value is None else value if isinstance(value, str) else ",".join(value)
