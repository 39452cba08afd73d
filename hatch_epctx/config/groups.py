"""Weight-sharing groups: which variants are compiled together.

A group is resolved for each target by itself. Its members are the variants of the group's models for that target, in
the order in which the group names the models; a model with several sizes brings one member for each. The members of
one group and target are one unit of work with one identity, so that they are the same members whichever models and
targets a run selects.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from hatch_epctx.config.matching import bad, matching
from hatch_epctx.config.variant import SharedGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hatch_epctx.config.models import Group, Settings
    from hatch_epctx.config.targets import ResolvedTarget
    from hatch_epctx.config.variant import Variant
    from hatch_epctx.errors import ConfigError

__all__ = ["Groups"]


class Groups:
    """The groups of a project, resolved against its models and targets.

    Args:
        settings: the project's settings.
        targets: all expanded targets.
        chosen: the targets of each model.
        errors: gets what is wrong: a name or glob that matches nothing, a group of fewer than two members, a model
            that is not compiled for a target which the group names, or stands in two groups for one target, and a
            target that embeds or hands its context data to callbacks.
    """

    def __init__(
        self,
        settings: Settings,
        targets: Sequence[ResolvedTarget],
        chosen: Mapping[str, tuple[ResolvedTarget, ...]],
        errors: list[ConfigError],
    ) -> None:
        self._settings = settings
        self._targets = targets
        self._chosen = chosen
        self._errors = errors
        self._models: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {}
        """(target, model) -> (group, the group's models in order)."""
        for name, group in settings.groups.items():
            self._resolve(name, group)

    def assign(self, variants: Iterable[tuple[str, Variant]]) -> list[Variant]:
        """The variants, each given with its target's name, with their groups filled in."""
        pairs = list(variants)
        members: dict[tuple[str, str], list[Variant]] = {}
        for target, variant in pairs:
            if (target, variant.model) in self._models:
                members.setdefault((target, self._models[target, variant.model][0]), []).append(variant)
        groups: dict[tuple[str, str], SharedGroup] = {}
        for (target, name), found in members.items():
            order = self._models[target, found[0].model][1]
            found.sort(key=lambda variant: order.index(variant.model))
            groups[target, name] = SharedGroup(name=name, members=tuple(found))
        return [
            replace(variant, group=groups.get((target, self._models.get((target, variant.model), ("",))[0])))
            for target, variant in pairs
        ]

    def _resolve(self, name: str, group: Group) -> None:
        place = partial(self._settings.place, "groups", name)
        models = self._ordered_models(group, place)
        targets = self._targets_of(group, models, place)
        sizes = sum(_points(self._settings, model) for model in models)
        if models and sizes < 2:
            found = f"the group has one member, {models[0]!r}"
            remedy = "Name another model, or give this one several sizes with a matrix."
            self._errors.append(bad(found, place("models"), expected="at least two members", remedy=remedy))
        for target in targets:
            self._claim(name, target, models, place)

    def _ordered_models(self, group: Group, place: Callable[..., str]) -> tuple[str, ...]:
        names = [(model, model) for model in self._settings.models]
        ordered: dict[str, None] = {}
        for index, pattern in enumerate(group.models):
            found = matching([pattern], names, "model", partial(_at, place("models", index)), self._errors)
            ordered |= dict.fromkeys(model for model, _ in names if model in found)
        return tuple(ordered)

    def _targets_of(
        self, group: Group, models: tuple[str, ...], place: Callable[..., str]
    ) -> tuple[ResolvedTarget, ...]:
        """The targets that the group names, else those that all its models have."""
        if group.targets is None:
            every = [{target.name for target in self._chosen[model]} for model in models]
            common = set.intersection(*every) if every else set()
            if models and not common:
                found = f"no target is common to {', '.join(models)}"
                remedy = "Give the models a common target, or remove the group."
                self._errors.append(bad(found, place("models"), remedy=remedy))
            return tuple(target for target in self._targets if target.name in common)
        names = [(target.name, target.base) for target in self._targets]
        patterns = group.targets
        wanted = matching(
            patterns, names, "target", lambda pattern: place("targets", patterns.index(pattern)), self._errors
        )
        return tuple(target for target in self._targets if target.name in wanted)

    def _claim(self, name: str, target: ResolvedTarget, models: tuple[str, ...], place: Callable[..., str]) -> None:
        if target.declared.embed:
            where = self._settings.place("targets", target.base, "embed")
            found = f"the group {name!r} shares context binaries, and embed = true puts each into its own ONNX file"
            self._errors.append(bad(found, where, remedy="Remove the key, or take the target out of the group."))
        if target.declared.context_io == "callbacks":
            where = self._settings.place("targets", target.base, "context-io")
            found = f"the group {name!r} compiles its members into one binary, which the EP itself writes to a file"
            self._errors.append(bad(found, where, remedy="Remove the key, or take the target out of the group."))
        if target.declared.ep_cache:
            where = self._settings.place("targets", target.base, "ep-cache")
            found = f"the group {name!r} ships one context binary, and a cache belongs to one model"
            self._errors.append(bad(found, where, remedy="Remove the key, or take the target out of the group."))
        for model in models:
            if target not in self._chosen[model]:
                found = f"the member {model!r} is not compiled for the target {target.name!r}"
                remedy = f"Add it to the targets of {model!r}, or take it out of the group's."
                self._errors.append(bad(found, place("targets"), remedy=remedy))
                continue
            other = self._models.setdefault((target.name, model), (name, models))[0]
            if other != name:
                found = f"{model!r} is in the group {other!r} too, for the target {target.name!r}"
                self._errors.append(bad(found, place("models"), remedy="A variant is compiled in one group."))


def _points(settings: Settings, model: str) -> int:
    """Number of variants that the model brings for one target."""
    count = 1
    for sizes in settings.models[model].matrix.values():
        count *= len(sizes)
    return count


def _at(place: str, _pattern: str) -> str:
    return place
