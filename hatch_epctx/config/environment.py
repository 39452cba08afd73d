"""The EPCTX_* variables: settings of one run, not of the project.

An empty variable counts as not set. A variable of our prefix that is not in `VARIABLES` is an error, so that a
misspelt one is never ignored in silence.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, cast, get_args

from hatch_epctx.config.errors import raise_all
from hatch_epctx.config.scalars import is_platform_tag
from hatch_epctx.errors import ConfigError, suggest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["VARIABLES", "Environment", "LogLevel", "available_cores", "read_environment"]

LogLevel = Literal["debug", "info", "warning"]

VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "EPCTX_CACHE_DIR": "Folder of the store; the user cache folder when not set.",
        "EPCTX_JOBS": "Compiles at the same time; the number of usable cores when not set.",
        "EPCTX_TARGETS": "Globs of targets to build, by commas or spaces; shipped sources ride along.",
        "EPCTX_MODELS": "Globs of models to build, by commas or spaces.",
        "EPCTX_PLATFORM": "Platform tag of the wheel, in place of [tool.epctx.wheel] platform.",
        "EPCTX_SKIP": "1: the build hook does nothing.",
        "EPCTX_OFFLINE": "1: hits only; a miss is an error.",
        "EPCTX_LOCKED": "1: fail when anything differs from epctx.lock.",
        "EPCTX_REMOTE_CACHE": "Remote cache, in place of [tool.epctx.cache] remote; 0: none.",
        "EPCTX_REMOTE_HEADER_*": "A header of every call to the remote cache.",
        "EPCTX_REMOTE_TLS_CA": "PEM file of the authorities that the remote cache's certificate is held against.",
        "EPCTX_REMOTE_TLS_CERT": "PEM file of the client's certificate for the remote cache.",
        "EPCTX_REMOTE_TLS_KEY": "PEM file of that certificate's key.",
        "EPCTX_REMOTE_TIMEOUT": "Seconds of one call to the remote cache.",
        "EPCTX_REMOTE_RETRIES": "Further attempts of a call to the remote cache that met passing trouble.",
        "EPCTX_REMOTE_CONNECTIONS": "Calls to the remote cache at one time.",
        "EPCTX_REMOTE_MAX_SIZE": "Bytes of one entry of the remote cache.",
        "EPCTX_REMOTE_PLATFORM": "With the executor reapi: properties of its workers, NAME=VALUE by commas.",
        "EPCTX_REMOTE_PYTHON": "With the executor reapi: path of Python on its workers; this machine's when not set.",
        "EPCTX_PREFER": "At run time: the user's order of EPs, devices and variants, over the application's.",
        "EPCTX_LOG": "How much is said: debug, info or warning.",
        "EPCTX_TRACE_WORKERS": "A file that gets one line for each worker process started, for debugging.",
        "EPCTX_KEEP_STAGING": "1: keep the folder of a failed compile, to look inside.",
    }
)
"""Every variable and what it does; `*` stands for the rest of a name. `remote` reads those of the remote cache,
`runtime` the one that orders variants."""

_TESTS = "EPCTX_TEST"
"""Prefix of the variables that only this project's own tests set."""

_REMOTE: Final = "EPCTX_REMOTE_"
"""Prefix of the variables that `remote` reads."""

_WORDS: Final[Mapping[str, bool]] = MappingProxyType(
    {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
)
_JOBS_LIMIT = 1024
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the variables say."""

    cache_dir: Path | None = None
    """Absolute. None: the store's default."""
    jobs: int = field(default_factory=available_cores)
    """Compiles at the same time, at least 1."""
    offline: bool = False
    """Hits only; a miss is an error."""
    skip: bool = False
    """The build hook does nothing."""
    locked: bool = False
    """Fail when anything differs from epctx.lock."""
    keep_staging: bool = False
    """The folder of a failed compile is kept."""
    log: LogLevel = "info"
    """How much is said."""
    targets: tuple[str, ...] = ()
    """Globs; empty: all."""
    models: tuple[str, ...] = ()
    """Globs; empty: all."""
    platform: str = ""
    """Platform tag of the wheel; empty: as the project says."""
    remote_cache: str | None = None
    """URL of the remote cache; empty: none, whatever the project says; None: as the project says."""
    remote: Mapping[str, str] = field(default_factory=lambda: _NONE, repr=False)
    """All EPCTX_REMOTE_* variables, for `remote.endpoint`; there may be secrets among them."""


def read_environment(environ: Mapping[str, str]) -> Environment:
    """Read the EPCTX_* variables of `environ`.

    Raises:
        ConfigError: an unknown variable, a bad value, or a variable of what this version cannot do; all at once.
    """
    values = {name: value.strip() for name, value in environ.items() if name.startswith("EPCTX_") and value.strip()}
    errors = [_unknown(name) for name in sorted(values) if not _known(name)]
    readers = {
        "cache_dir": _folder,
        "jobs": _jobs,
        "offline": _flag,
        "skip": _flag,
        "keep_staging": _flag,
        "locked": _flag,
        "log": _level,
        "targets": _globs,
        "models": _globs,
        "platform": _platform,
        "remote_cache": _remote_cache,
    }
    read: dict[str, object] = {}
    for key, reader in readers.items():
        name = f"EPCTX_{key.upper()}"
        if name in values:
            try:
                read[key] = reader(name, values[name])
            except ConfigError as error:
                errors.append(error)
    raise_all(errors)
    read["remote"] = {name: values[name] for name in sorted(values) if name.startswith(_REMOTE)}
    return Environment(**read)  # type: ignore[arg-type]  # each reader gives its field's type


def _known(name: str) -> bool:
    return name.startswith(_TESTS) or any(fnmatchcase(name, known) for known in VARIABLES)


def _unknown(name: str) -> ConfigError:
    return ConfigError(
        "no such variable",
        where=name,
        expected=f"one of {', '.join(VARIABLES)}",
        remedy=suggest(name, VARIABLES),
        reason="unknown-variable",
    )


def _bad(name: str, value: str, expected: str, remedy: str = "") -> ConfigError:
    return ConfigError(f"found {value!r}", where=name, expected=expected, remedy=remedy, reason="bad-variable")


def _flag(name: str, value: str) -> bool:
    word = _WORDS.get(value.lower())
    if word is None:
        raise _bad(name, value, "1 or 0")
    return word


def _jobs(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", value) or not 1 <= int(value) <= _JOBS_LIMIT:
        raise _bad(name, value, f"a number from 1 to {_JOBS_LIMIT}")
    return int(value)


def _level(name: str, value: str) -> LogLevel:
    levels = get_args(LogLevel)
    if value.lower() not in levels:
        raise _bad(name, value, f"one of {', '.join(levels)}", suggest(value.lower(), levels))
    return cast("LogLevel", value.lower())


def _folder(name: str, value: str) -> Path:
    path = Path(value).expanduser()
    if not path.is_absolute():
        remedy = "Front ends build in folders of their own, so that a relative one would be another each time."
        raise _bad(name, value, "an absolute path", remedy)
    return path


def _platform(name: str, value: str) -> str:
    if not is_platform_tag(value):
        raise _bad(name, value, "'any' or a tag such as 'win_arm64' or 'manylinux_2_28_x86_64'")
    return value


def _remote_cache(_name: str, value: str) -> str:
    return "" if _WORDS.get(value.lower()) is False else value


def _globs(name: str, value: str) -> tuple[str, ...]:
    globs = tuple(part for part in re.split(r"[,\s]+", value) if part)
    if not globs:
        raise _bad(name, value, "names or globs, by commas or spaces")
    return globs
