"""The configuration of an action: a part of `[tool.epctx]` as JSON, without a path.

    {"format": "epctx-bazel/1", "cacheable": true, "group": "",
     "models": [{"name": "detector", "settings": {"free-dimensions": {"batch": 1}}}],
     "target": {"name": "intel-cpu", "settings": {"ep": "openvino", "device": "cpu"}}}

`target` is null for a source model that is shipped as it is. Equal configurations and equal bytes give equal outputs,
wherever the files lie; so Bazel's key of the action is at least as fine as the compile identity's declared part.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.config import Project, expand, load_settings
from hatch_epctx.errors import ConfigError, EpctxError
from hatch_epctx.files import check_location, check_name, parse_json, read_bounded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["FORMAT", "ActionInputs", "in_rules_words", "project_of", "read_config", "read_object", "table_of"]

FORMAT: Final = "epctx-bazel/1"
LIMIT: Final = 4 << 20
"""Bytes of a configuration, a manifest or a machine's description."""
_KEYS: Final = frozenset({"format", "cacheable", "group", "models", "target"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionInputs:
    """Where the declared inputs of an action lie."""

    models: Mapping[str, Path]
    """ONNX files by model."""
    data: Mapping[tuple[str, str], Path] = field(default_factory=dict)
    """External data by model and location."""
    calibrations: Mapping[str, Path] = field(default_factory=dict)
    """Files of samples for quantising, by model."""
    custom_ops: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    """Shared libraries of custom operators in their order, by model."""
    options: Mapping[str, Path] = field(default_factory=dict)
    """What is behind file and folder options, by option."""


def read_object(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in the file at `path`.

    Raises:
        ConfigError: it cannot be read, is too large or no JSON object.
    """
    try:
        value = parse_json(read_bounded(path.resolve(), LIMIT))  # a sandbox holds links to what was declared
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", where=str(path), reason="unreadable") from error
    except ValueError as error:
        raise ConfigError(f"is no {what}: {error}", where=str(path), reason="malformed-record") from error
    if not isinstance(value, dict):
        raise ConfigError(f"is no {what}", where=str(path), expected="a JSON object", reason="malformed-record")
    return value


def read_config(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """`value` as an action's configuration; what stands in the tables is judged by `project_of`.

    Raises:
        ConfigError: it is of another form.
    """
    target = value.get("target")
    models = value.get("models")
    right = (
        value.keys() == _KEYS
        and value["format"] == FORMAT
        and isinstance(value["group"], str)
        and isinstance(value["cacheable"], bool)
        and isinstance(models, list)
        and bool(models)
        and all(map(_is_named, models))
        and (target is None or _is_named(target))
        and (target is not None or not value["group"])
        and (target is None or isinstance(target["settings"].get("provider-options", {}), dict))
        and len({model["name"] for model in models}) == len(models)
    )
    if not right:
        raise ConfigError(
            "is no configuration of an action",
            where=where,
            expected=f"an object of the form {FORMAT}",
            remedy="Use the rules and the hatch-epctx distribution of one version.",
            reason="malformed-record",
        )
    return dict(value)


def _is_named(value: object) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "settings"}
        and isinstance(value["name"], str)
        and _NAME.match(value["name"]) is not None
        and isinstance(value["settings"], dict)
        and isinstance(value["settings"].get("custom-ops", []), list)
    )


def table_of(config: Mapping[str, Any], inputs: ActionInputs, root: Path) -> dict[str, Any]:
    """The tables below `[tool.epctx]` that `config` stands for; `inputs` are made visible below `root` by links.

    Raises:
        ConfigError: a model has no file, or a name is unsafe.
    """
    target = config["target"]
    models = {item["name"]: _model(item, target, inputs, root) for item in config["models"]}
    table: dict[str, Any] = {"package": "bazel", "models": models}
    if target is not None:
        settings = dict(target["settings"])
        settings["provider-options"] = {
            **settings.get("provider-options", {}),
            **{name: _linked(root, f"options/{check_name(name)}", path) for name, path in inputs.options.items()},
        }
        table["targets"] = {target["name"]: settings}
    if config["group"]:
        table["groups"] = {config["group"]: {"models": list(models), "targets": [target["name"]]}}
    return table


def _model(item: Mapping[str, Any], target: Mapping[str, Any] | None, inputs: ActionInputs, root: Path) -> Any:
    name, folder = item["name"], f"models/{item['name']}"
    if name not in inputs.models:
        raise ConfigError("the model has no file", where=f"epctx_model {name}", reason="missing-model")
    settings = dict(item["settings"])
    settings["source"] = _linked(root, f"{folder}/model.onnx", inputs.models[name])
    for (model, location), path in inputs.data.items():
        if model == name:
            place = f"{folder}/{_location(name, location)}"
            if (root / place).is_symlink():
                where = f"epctx_model {name}"
                found = f"external data {location!r} stands twice, or where the model is put"
                raise ConfigError(found, where=where, expected="another file name", reason="name-clash")
            _linked(root, place, path)
    if name in inputs.calibrations:
        settings["calibration"] = _linked(root, f"calibrations/{name}.npz", inputs.calibrations[name])
    libraries = [
        _linked(root, f"custom-ops/{name}/{number}/{_library(name, path)}", path)
        for number, path in enumerate(inputs.custom_ops.get(name, ()))
    ]
    if libraries:
        settings["custom-ops"] = [*settings.get("custom-ops", ()), *libraries]
    if isinstance(settings.get("min-coverage"), str):  # Bazel 4 has no floating-point numbers
        settings["min-coverage"] = _share(name, settings["min-coverage"])
    settings["targets"] = [target["name"]] if target else []
    settings["ship-source"] = target is None
    return settings


def _share(model: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        where = f"epctx_model {model}: min_coverage"
        raise ConfigError(f"found {text!r}", where=where, expected="a number from 0 to 1", reason="bad-value") from None


def _location(model: str, location: str) -> str:
    try:
        return str(check_location(location))
    except ValueError as error:
        where = f"epctx_model {model}"
        raise ConfigError(f"external data {location!r}: {error}", where=where, reason="external-data-escape") from error


def _library(model: str, path: Path) -> str:
    try:
        return check_name(path.name)
    except ValueError as error:
        where = f"epctx_model {model}: custom_ops"
        raise ConfigError(str(error), where=where, expected="another file name", reason="bad-value") from error


def _linked(root: Path, name: str, path: Path) -> str:
    link = root / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(path.resolve())
    return name


def project_of(
    table: Mapping[str, Any], root: Path, *, name: str = "bazel", version: str = "0", licence: str = ""
) -> Project:
    """The project of these tables, with no environment variable at work.

    Raises:
        ConfigError: what is wrong with models, targets and options, all of it at once.
    """
    settings = load_settings(table, environ={}, state="wheel")
    variants = expand(settings, root)
    return Project(
        root=root,
        name=name,
        version=version,
        licence=licence,
        settings=settings,
        variants=variants,
        declared=tuple(variant.name for variant in variants),
    )


def in_rules_words(error: EpctxError) -> str:
    """The message of `error` with the rules' words for the places of a project."""
    text = re.sub(r"\btool\.epctx\.models\.([A-Za-z0-9_-]+)\.", r"epctx_model \1: ", str(error))
    text = re.sub(r"\btool\.epctx\.models\.([A-Za-z0-9_-]+)", r"epctx_model \1", text)
    text = re.sub(r"\btool\.epctx\.targets\.([A-Za-z0-9_-]+)\.", r"epctx_ep \1: ", text)
    text = re.sub(r"\btool\.epctx\.targets\.([A-Za-z0-9_-]+)", r"epctx_ep \1", text)
    return re.sub(r"\btool\.epctx\.groups\.([A-Za-z0-9_-]+)\.?", r"epctx_context_group \1 ", text)
