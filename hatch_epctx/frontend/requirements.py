"""Distributions that a build needs beyond `[build-system] requires`: the `requires` of the selected targets.

A front end that isolates builds installs them beside the build backend, so that a wheel for one target does not
install the EPs of all others. Asking reads the configuration and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from hatch_epctx.config import build_system, expand, load_settings, read_project
from hatch_epctx.errors import ConfigError, EpctxError
from hatch_epctx.lockfile import LOCK_NAME, read_lock
from hatch_epctx.store import Miss, Store
from hatch_epctx.toolchain import BUILDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from hatch_epctx.config import Settings

__all__ = ["dynamic_requirements"]

_BACKEND: Final = "build-system.requires"
_OWN: Final = "hatch-epctx"
_EXTRA: Final = "reapi"
_WAY_OUT: Final = (
    "Build them apart (EPCTX_TARGETS=<one of them> for each): what is compiled stays in the store, and a last build "
    "without isolation takes all of it from there"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    requirement: Requirement
    place: str
    """Who asks for it, a dotted place."""

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    def __str__(self) -> str:
        return f"{self.place} asks for {self.requirement}"


def dynamic_requirements(
    root: Path, *, hook: Mapping[str, Any] | None = None, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """The `requires` of the targets that a wheel built now would hold, and what its remote cache needs, sorted.

    Args:
        root: the folder with pyproject.toml.
        hook: the hook's own table; none when left out.
        environ: environment variables: EPCTX_TARGETS, EPCTX_MODELS and EPCTX_SKIP select; with EPCTX_LOCKED, what is
            in the store as it was locked needs no EP.

    Raises:
        ConfigError: the configuration is wrong, or two requirements cannot be met in one environment.
    """
    settings = load_settings(read_project(root), hook=hook, environ=environ, state="wheel")
    if settings.environment.skip:
        return ()
    asked = [
        _Asked(requirement=Requirement(text), place=settings.place("targets", target, "requires"))
        for target in _targets(settings, root)
        for text in settings.targets[target].requires
    ]
    asked += _of_remote(settings)
    _refuse_conflicts([*_of_backend(root), *asked])
    return tuple(sorted({str(item.requirement) for item in asked}))


def _targets(settings: Settings, root: Path) -> list[str]:
    """Declared names of the selected targets; of all where that cannot be told.

    An EP that one of the requirements brings is not known before they are installed; what is wrong with the rest is
    said when the wheel is built.
    """
    try:
        variants = expand(settings, root)
    except ConfigError:
        return list(settings.targets)
    stored = _stored(settings, root)
    chosen = {item.base_target for item in variants if not item.companion and item.name not in stored}
    return [name for name in settings.targets if name in chosen]


def _stored(settings: Settings, root: Path) -> frozenset[str]:
    """Variants of a locked build whose locked identity is in the store: nothing has to be compiled for them."""
    if not settings.environment.locked:
        return frozenset()
    try:
        lock, store = read_lock(root / LOCK_NAME), Store(settings.environment.cache_dir)
    except EpctxError:  # said when the wheel is built
        return frozenset()
    found = {item.name: store.find(item.identity, verify=False) for item in (lock.variants if lock else {}).values()}
    for generation in found.values():
        if not isinstance(generation, Miss):
            generation.close()
    return frozenset(name for name, generation in found.items() if not isinstance(generation, Miss))


def _of_remote(settings: Settings) -> list[_Asked]:
    """What a gRPC cache or executor needs: the extra "reapi" of this very distribution."""
    environment = settings.environment
    url = settings.cache.remote or "" if environment.remote_cache is None else environment.remote_cache
    if environment.offline or not url.startswith("grpc"):
        return []
    try:
        declared = metadata.requires(_OWN) or []
    except metadata.PackageNotFoundError:  # run from a checkout
        return []
    place = "EPCTX_REMOTE_CACHE" if environment.remote_cache else settings.place("cache", "remote")
    found = []
    for requirement in map(Requirement, declared):
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}) or not marker.evaluate({"extra": _EXTRA}):
            continue
        if canonicalize_name(requirement.name) != _OWN:
            requirement.marker = None
            found.append(_Asked(requirement=requirement, place=place))
    return found


def _of_backend(root: Path) -> list[_Asked]:
    """Requirements of `[build-system]`; one that cannot be read is the front end's to refuse."""
    found = []
    for text in build_system(root).requires:
        try:
            found.append(_Asked(requirement=Requirement(text), place=_BACKEND))
        except InvalidRequirement:
            continue
    return found


def _refuse_conflicts(asked: Iterable[_Asked]) -> None:
    here = [item for item in asked if item.requirement.marker is None or item.requirement.marker.evaluate()]
    for one, other in combinations(here, 2):
        if why := _conflict(one, other):
            raise ConfigError(
                f"{one}, and {other}: {why}",
                where=other.place,
                remedy=f"{_WAY_OUT}. Or let both ask for the same.",
                reason="conflicting-requirements",
            )


def _conflict(one: _Asked, other: _Asked) -> str:
    """Why the two cannot be installed together, a clause; empty where nothing is known against it."""
    if one.name == other.name:
        if one.requirement.url and other.requirement.url and one.requirement.url != other.requirement.url:
            return "these are two sources of one distribution"
        both = one.requirement.specifier & other.requirement.specifier
        return "no version is both" if both.is_unsatisfiable() else ""
    if {one.name, other.name} <= set(BUILDS):
        return "both bring the module onnxruntime, and one would overwrite the other"
    return ""
