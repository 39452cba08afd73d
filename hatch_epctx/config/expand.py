"""From settings to variants: models x targets, names and globs, selection by environment.

Variants come in the order of declaration: models first, of each model its targets, its shipped source last.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ValidationError

from hatch_epctx.config.errors import findings, raise_all
from hatch_epctx.config.groups import Groups
from hatch_epctx.config.layers import Layer, Layers, dotted
from hatch_epctx.config.matching import bad, matching
from hatch_epctx.config.models import Model, Target
from hatch_epctx.config.points import Point, check_points, points_of
from hatch_epctx.config.scalars import RESERVED_TARGET, is_library
from hatch_epctx.config.targets import ResolvedTarget, resolve_target
from hatch_epctx.config.variant import CheckPlan, CustomOps, Variant
from hatch_epctx.errors import ConfigError
from hatch_epctx.providers import find_provider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hatch_epctx.config.base import Table
    from hatch_epctx.config.matching import Named
    from hatch_epctx.config.models import Check, Settings

__all__ = ["expand", "single_variant"]

_T = TypeVar("_T", bound="Table")

_ADD_MODEL = "Add a table such as [tool.epctx.models.detector] with 'source = \"models/detector.onnx\"'."

_SOURCE_EP = "cpu"
"""The EP that runs shipped source models."""


def expand(settings: Settings, root: Path) -> tuple[Variant, ...]:
    """The selected variants of a project.

    Every target is checked against its EP, used and selected or not.

    Args:
        settings: what `load_settings` gave.
        root: the project's folder; sources, files and folders are relative to it.

    Raises:
        ConfigError: nothing to build; an EP, device or option that does not fit; names that clash; a name or glob,
            in the configuration or in EPCTX_MODELS and EPCTX_TARGETS, that matches nothing. All at once.
    """
    root = root.absolute()
    errors: list[ConfigError] = []
    targets = _targets(settings, root, errors)
    _check_clashes(settings, "models", [(name, name) for name in settings.models], errors)
    _check_clashes(settings, "targets", [(target.name, target.base) for target in targets], errors)
    if not settings.models:
        errors.append(bad("no model is declared", settings.place("models"), remedy=_ADD_MODEL))
    chosen = {name: _targets_of(name, model, targets, settings, errors) for name, model in settings.models.items()}
    for name, model in settings.models.items():
        place = partial(settings.place, "models", name)
        errors += check_points(model, [target.name for target in chosen[name]], place)
        errors += _check_calibration(model, place)
    companions = _companions(settings, targets, errors)
    groups = Groups(settings, targets, chosen, errors)
    raise_all(errors)
    every = _every(settings, root, chosen, companions)
    return _select(settings, targets, chosen, groups.assign(every))


def single_variant(
    source: Path,
    target: Mapping[str, Any],
    *,
    model: Mapping[str, Any] | None = None,
    custom_ops: Sequence[str] = (),
) -> Variant:
    """The variant of one model file outside any project.

    Args:
        source: the ONNX file.
        target: a target's table with TOML's keys; file and folder options are relative to the current folder.
        model: further keys of the model's table, such as "free-dimensions".
        custom_ops: libraries of custom operators: import names, and paths relative to the current folder.

    Raises:
        ConfigError: as `load_settings` and `expand` have it; places are the tables' own keys.
    """
    errors: list[ConfigError] = []
    declared = _validated(Target, target, errors)
    modules = [text for text in custom_ops if not is_library(text)]
    of_model = _validated(Model, {"source": source.name, "custom-ops": modules, **(model or {})}, errors)
    raise_all(errors)
    declared, of_model = cast("Target", declared), cast("Model", of_model)
    resolved = resolve_target(declared.ep, declared, Path.cwd(), lambda *keys: dotted("", keys))[0]
    variant = _variant(source.stem, source.absolute(), of_model, resolved, points_of(of_model)[0])
    return replace(variant, custom_ops=tuple(_library(text, Path.cwd()) for text in custom_ops))


def _validated(table: type[_T], data: Mapping[str, Any], errors: list[ConfigError]) -> _T | None:
    try:
        return table.model_validate(data)
    except ValidationError as error:
        errors += findings(error, table, Layers((Layer(place="", table=data),)))
        return None


def _targets(settings: Settings, root: Path, errors: list[ConfigError]) -> list[ResolvedTarget]:
    resolved = (_resolved(settings, name, root, errors) for name in settings.targets)
    return [target for targets in resolved for target in targets]


def _resolved(settings: Settings, name: str, root: Path, errors: list[ConfigError]) -> tuple[ResolvedTarget, ...]:
    try:
        return resolve_target(name, settings.targets[name], root, partial(settings.place, "targets", name))
    except ConfigError as error:
        errors.append(error)
        return ()


def _check_clashes(settings: Settings, key: str, names: Iterable[Named], errors: list[ConfigError]) -> None:
    """Refuse names that some file systems take for the same file."""
    seen: dict[str, str] = {}
    for name, declared in names:
        other = seen.get(name.lower())
        seen.setdefault(name.lower(), name)
        if other is None:
            continue
        twice = f"the name {name!r} is there twice"
        found = twice if other == name else f"{name!r} and {other!r} differ in case only"
        remedy = "Choose other names; a target with a matrix has its values in its name."
        errors.append(bad(found, settings.place(key, declared), remedy=remedy))


def _targets_of(
    name: str, model: Model, targets: list[ResolvedTarget], settings: Settings, errors: list[ConfigError]
) -> tuple[ResolvedTarget, ...]:
    """The targets of one model, in the order of their declaration."""
    declared = model.targets
    if declared is None:
        chosen = tuple(targets)
    else:
        names = [(target.name, target.base) for target in targets]
        # A target that failed its own checks is not "no target"; how it would expand is not known.
        failed = settings.targets.keys() - {base for _, base in names}
        patterns = [pattern for pattern in declared if not any(_could_be(pattern, base) for base in failed)]
        place = partial(settings.place, "models", name, "targets")
        wanted = matching(patterns, names, "target", lambda pattern: place(declared.index(pattern)), errors)
        chosen = tuple(target for target in targets if target.name in wanted)
    if not chosen and not model.ship_source and not errors:
        remedy = "Declare one under [tool.epctx.targets], or set 'ship-source = true'."
        errors.append(bad("the model has no target", settings.place("models", name), remedy=remedy))
    return chosen


def _companions(settings: Settings, targets: list[ResolvedTarget], errors: list[ConfigError]) -> set[str]:
    """Expanded names of the targets that go into data packages of their own."""
    declared, names = settings.wheel.companions, [(target.name, target.base) for target in targets]
    place = partial(settings.place, "wheel", "companions")
    return matching(declared, names, "target", lambda pattern: place(declared.index(pattern)), errors)


def _check_calibration(model: Model, place: Callable[..., str]) -> Iterator[ConfigError]:
    """Quantising needs samples, and samples without quantising would be ignored."""
    quantises = [step for step in model.prepare if step.partition(":")[0] == "quantize-qdq"]
    if len(quantises) > 1:
        remedy = "Keep one of them."
        yield bad(
            "'quantize-qdq' stands there twice: what is quantised cannot be again", place("prepare"), remedy=remedy
        )
    if quantises and model.calibration is None:
        remedy = 'Write calibration = "samples.npz": inputs by name, one sample each or several along a first axis.'
        yield bad("'quantize-qdq' needs samples of the model's inputs", place("prepare"), remedy=remedy)
    if model.calibration is not None and not quantises:
        remedy = "Add 'quantize-qdq' to prepare, or remove the key."
        yield bad("no step of 'prepare' reads it", place("calibration"), remedy=remedy)


def _could_be(pattern: str, base: str) -> bool:
    return fnmatchcase(base, pattern) or pattern.startswith(f"{base}-")


def _every(
    settings: Settings, root: Path, chosen: Mapping[str, tuple[ResolvedTarget, ...]], companions: set[str]
) -> Iterator[tuple[str, Variant]]:
    """All variants in the order of declaration, each with its target's expanded name."""
    for name, model in settings.models.items():
        source = root / model.source
        for target, point in _pairs(chosen[name], model):
            variant = _variant(name, source, model, target, point, root)
            yield target.name, replace(variant, companion=target.name in companions)
        if model.ship_source:
            yield RESERVED_TARGET, _source_variant(name, source, _custom_ops(model, root))


def _select(
    settings: Settings,
    targets: list[ResolvedTarget],
    chosen: Mapping[str, tuple[ResolvedTarget, ...]],
    every: Iterable[Variant],
) -> tuple[Variant, ...]:
    """Variants that EPCTX_MODELS and EPCTX_TARGETS leave. Shipped sources ride along: they cost no compile."""
    environment, errors = settings.environment, list[ConfigError]()
    names = [(target.name, target.base) for target in targets]
    for name, model in settings.models.items():
        for target, point in _pairs(chosen[name], model) if model.matrix else ():
            names += [(f"{target.name}{point.suffix}", target.name), (f"{target.name}{point.suffix}", target.base)]
    if any(model.ship_source for model in settings.models.values()):
        names.append((RESERVED_TARGET, RESERVED_TARGET))
    models = matching(environment.models, [(name, name) for name in chosen], "model", lambda _: "EPCTX_MODELS", errors)
    wanted = matching(environment.targets, names, "target", lambda _: "EPCTX_TARGETS", errors)
    raise_all(errors)
    variants = tuple(
        variant
        for variant in every
        if (not environment.models or variant.model in models)
        and (not environment.targets or variant.is_source or variant.target in wanted)
    )
    if not variants:
        found = "no selected model is compiled for a selected target"
        raise bad(found, "EPCTX_TARGETS", remedy="Select other models or targets, or set EPCTX_SKIP=1 to build none.")
    return variants


def _pairs(targets: Iterable[ResolvedTarget], model: Model) -> Iterator[tuple[ResolvedTarget, Point]]:
    """Every target of a model at each of its shape points."""
    return ((target, point) for target in targets for point in points_of(model))


def _variant(
    name: str, source: Path, model: Model, target: ResolvedTarget, point: Point, root: Path | None = None
) -> Variant:
    declared = target.declared
    root = root or source.parent
    return Variant(
        model=name,
        target=f"{target.name}{point.suffix}",
        base_target=target.base,
        source=source,
        provider=target.provider,
        device=target.device,
        provider_options=target.provider_options,
        runtime_options=target.runtime_options,
        session_options=MappingProxyType(declared.session_options),
        free_dimensions=point.sizes,
        free_dimension_denotations=MappingProxyType(model.free_dimension_denotations),
        input_shapes=MappingProxyType(model.input_shapes),
        custom_ops=_custom_ops(model, root),
        prepare=model.prepare,
        calibration=_inputs(model.calibration, root, point),
        min_coverage=model.min_coverage,
        check=_check_plan(model.check, root, point),
        embed=declared.embed,
        context_io=declared.context_io,
        optimization=declared.optimization or target.provider.default_optimization,
        load_check=declared.load_check,
        ep_cache=target.provider.cache if declared.ep_cache else None,
        requires=declared.requires,
        env=MappingProxyType(declared.env),
        cores=declared.cores,
        timeout=declared.timeout,
        memory_limit=declared.memory_limit,
        required=declared.required,
        platform=declared.platform or "",
    )


def _inputs(path: str | None, root: Path, point: Point) -> Path | None:
    """A file of inputs; {batch} in its name stands for the size of the free dimension batch."""
    if path is None:
        return None
    for name, size in point.sizes.items():
        path = path.replace(f"{{{name}}}", str(size))
    return root / path


def _check_plan(check: Check | None, root: Path, point: Point) -> CheckPlan | None:
    if check is None:
        return None
    return CheckPlan(
        inputs=_inputs(check.inputs, root, point),
        rtol=check.rtol,
        atol=check.atol,
        cosine=check.cosine,
        seed=check.seed,
        ranges=MappingProxyType(check.ranges),
    )


def _custom_ops(model: Model, root: Path) -> tuple[CustomOps, ...]:
    return tuple(_library(text, root) for text in model.custom_ops)


def _library(text: str, root: Path) -> CustomOps:
    return CustomOps(file=root / text) if is_library(text) else CustomOps(module=text)


def _source_variant(name: str, source: Path, custom_ops: tuple[CustomOps, ...] = ()) -> Variant:
    """The source model as it is: no option of any target counts for it."""
    provider = find_provider(_SOURCE_EP)
    return Variant(
        model=name,
        target=RESERVED_TARGET,
        base_target=RESERVED_TARGET,
        source=source,
        provider=provider,
        device=provider.devices[0],
        optimization=provider.default_optimization,
        custom_ops=custom_ops,
        is_source=True,
    )
