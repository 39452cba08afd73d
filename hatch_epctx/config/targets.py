"""Targets as they are compiled: the matrix expanded, the EP found, device and options checked.

Nothing is asked of the machine here: an EP's options are known from its module, whether it is installed or not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticCustomError

from hatch_epctx.config.errors import raise_all
from hatch_epctx.config.scalars import check_name
from hatch_epctx.errors import ConfigError
from hatch_epctx.providers import check_device, check_options, find_provider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from hatch_epctx.config.models import Target
    from hatch_epctx.providers import OptionValue, Provider

__all__ = ["ResolvedTarget", "resolve_target"]

_UNFIT = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTarget:
    """One expanded target."""

    name: str
    base: str
    declared: Target
    provider: Provider
    device: str
    provider_options: tuple[OptionValue, ...]
    runtime_options: tuple[OptionValue, ...]


def resolve_target(name: str, target: Target, root: Path, place: Callable[..., str]) -> tuple[ResolvedTarget, ...]:
    """Expand one target and check it against its EP.

    Args:
        name: its name in the configuration.
        target: its table.
        root: what file and folder options are relative to.
        place: dotted place of a key path below the target, for messages.

    Raises:
        ConfigError: an unknown EP, one that writes no EPContext models, a device it does not have, unknown or
            ill-typed options, an option's file that is missing, a matrix that gives unfit names; all at once.
    """
    return _Resolver(name, target, root, place).resolve()


class _Resolver:
    """One target on its way; errors are gathered, so that all of them are told at once."""

    def __init__(self, name: str, target: Target, root: Path, place: Callable[..., str]) -> None:
        self._name = name
        self._target = target
        self._root = root
        self._place = place
        self._errors: list[ConfigError] = []

    def resolve(self) -> tuple[ResolvedTarget, ...]:
        target = self._target
        provider = self._provider()
        device = self._device(provider)
        runtime = self._runtime_options(provider, device)
        if target.cores is not None and not (provider.bakes_cores and device == "cpu"):
            found = f"{provider.title} on the {device} does not depend on the number of cores"
            self._fail(found, "cores", remedy="Remove the key.")
        if target.embed and target.context_io == "callbacks":
            found = "'embed' puts the context data into the ONNX file, so that no callback is ever called"
            self._fail(found, "context-io", remedy="Remove one of the two keys.")
        if target.ep_cache:
            self._check_cache(provider)
        result = [
            ResolvedTarget(
                name=name,
                base=self._name,
                declared=target,
                provider=provider,
                device=device,
                provider_options=self._options(provider, device, values),
                runtime_options=runtime,
            )
            for name, values in self._combinations()
        ]
        for resolved in result if target.ep_cache else ():
            self._check_cached_options(provider, resolved.provider_options)
        raise_all(self._errors)
        return tuple(result)

    def _provider(self) -> Provider:
        provider = find_provider(self._target.ep, where=self._place("ep"))
        cached = provider.cache is not None and provider.cache.filled_by == "source"
        if not provider.epcontext and not (self._target.ep_cache and cached):
            ship = "To ship the EP's own cache, set 'ep-cache = true'. " if cached else ""
            raise ConfigError(
                f"{provider.title} writes no EPContext models: {provider.epcontext_reason}",
                where=self._place("ep"),
                remedy=f"{ship}To ship the source model, leave this target out and set 'ship-source = true' on the "
                "model.",
                reason="no-epcontext",
            )
        return provider

    def _check_cache(self, provider: Provider) -> None:
        """Refuse a cache that there is none of, and keys about a compiled model where none is made."""
        if provider.cache is None:
            found = f"{provider.title} keeps no cache that could be shipped"
            self._fail(found, "ep-cache", remedy="Remove the key: the compiled model is all that starting needs.")
        elif provider.cache.filled_by == "source":
            why = f"{provider.title} fills its cache from a source model, so that no EPContext model is made"
            for key, given in (("embed", self._target.embed), ("context-io", self._target.context_io == "callbacks")):
                if given:
                    self._fail(f"{why}, which this key is about", key, remedy="Remove it, or 'ep-cache'.")

    def _check_cached_options(self, provider: Provider, options: tuple[OptionValue, ...]) -> None:
        """Refuse what a compile at start would need and the wheel does not carry."""
        if provider.cache is None or provider.cache.filled_by != "source":
            return
        for option in options:
            if option.is_path:
                found = (
                    "the option names a file or folder, which the wheel does not carry, and the EP may have to compile"
                )
                self._fail(found, "provider-options", option.name, remedy="Remove it, or 'ep-cache'.")

    def _device(self, provider: Provider) -> str:
        try:
            return check_device(provider, self._target.device, where=self._place("device"))
        except ConfigError as error:
            self._errors.append(error)
            return provider.devices[0]

    def _combinations(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(expanded name, provider options) of each combination of the matrix, the last key changing fastest."""
        matrix = self._target.matrix
        if not matrix:
            yield self._name, {}
        elif clashes := [key for key in matrix if key in self._target.provider_options]:
            for key in clashes:
                found = f"the option {key!r} stands in provider-options too"
                self._fail(found, "matrix", key, remedy="Remove it from one of them.")
        else:
            for values in product(*matrix.values()):
                combination = dict(zip(matrix, values, strict=True))
                if name := self._expanded_name(combination):
                    yield name, combination

    def _expanded_name(self, combination: Mapping[str, Any]) -> str:
        """<target>-<value>-<value>; what cannot stand in a name becomes "-". Empty after an error."""
        parts = [self._name]
        for key, value in combination.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            part = "" if isinstance(value, (dict, list)) else _UNFIT.sub("-", text).strip("-")
            if not part:
                self._fail(f"no name can be made of {value!r}", "matrix", key, expected="a string, number or boolean")
                return ""
            parts.append(part)
        try:
            return check_name("-".join(parts))
        except PydanticCustomError as error:
            context = error.context or {}
            self._fail(context["found"], "matrix", expected=context["expected"], remedy="Shorten the target's name.")
            return ""

    def _options(self, provider: Provider, device: str, more: Mapping[str, Any]) -> tuple[OptionValue, ...]:
        """Options of the compile: provider-options with one combination of the matrix."""
        values = {**self._target.provider_options, **more}
        return self._checked(
            provider, device, values, lambda name: self._place("matrix" if name in more else "provider-options", name)
        )

    def _runtime_options(self, provider: Provider, device: str) -> tuple[OptionValue, ...]:
        place = partial(self._place, "runtime-options")
        options = self._checked(provider, device, self._target.runtime_options, place, runtime=True)
        for option in options:
            if option.phase == "compile":
                found = "the EP reads this option only while it compiles"
                self._fail(found, "runtime-options", option.name, remedy="Move it to provider-options.")
            elif option.is_path:
                found = "the option names a file or folder, which the wheel does not carry"
                self._fail(found, "runtime-options", option.name)
        return options

    def _checked(
        self,
        provider: Provider,
        device: str,
        values: Mapping[str, Any],
        place: Callable[[str], str],
        *,
        runtime: bool = False,
    ) -> tuple[OptionValue, ...]:
        try:
            return check_options(
                provider,
                device,
                values,
                where=place,
                root=self._root,
                allow_unknown=self._target.allow_unknown_options,
                runtime=runtime,
            )
        except ConfigError as error:
            self._errors.append(error)
            return ()

    def _fail(self, found: str, *keys: str, expected: str = "", remedy: str = "") -> None:
        where = self._place(*keys)
        self._errors.append(ConfigError(found, where=where, expected=expected, remedy=remedy, reason="bad-value"))
