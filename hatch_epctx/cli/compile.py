"""`epctx compile`: one model, without a project, through the same store.

It writes into the folder given, for a model ``detector.onnx`` and the EP "openvino":

    detector_openvino_ctx.onnx              the EPContext model; refers to its binaries by the names below
    detector_openvino.<sha256>.bin          each context binary or weights file, named by its full digest
    detector_openvino.bin                   with --stable-alias: a copy of the context binary
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hatch_epctx.cli.output import emit_json, progress, say, size
from hatch_epctx.compile import rename_references
from hatch_epctx.config import ConfigErrors, single_project
from hatch_epctx.errors import ConfigError, EpctxError, StoreError
from hatch_epctx.files import atomic_write, copy_file, move, remove_tree
from hatch_epctx.pipeline import Pipeline
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from pathlib import Path

    from hatch_epctx.pipeline import Entry

__all__ = ["compile_one"]

_MODE = 0o644
_QUOTE = '"'
"""Around a key with dots, as TOML writes it."""
_FLAGS = {
    "provider-options": "--option",
    "session-options": "--session-option",
    "free-dimensions": "--free-dimension",
    "input-shapes": "--input-shape",
    "custom-ops": "--custom-ops",
    "cores": "--cores",
    "allow-unknown-options": "--allow-unknown-option",
    "env": "--env",
    "ep": "--ep",
    "device": "--device",
    "optimization": "--optimization",
    "timeout": "--timeout",
}
"""Keys of the tables and the arguments that stand for them."""


def compile_one(options: Namespace) -> int:
    """Compile one model into ``--out``. The folder is made when there is something to put into it."""
    try:
        project = single_project(
            options.model,
            _target(options),
            model=_model(options),
            custom_ops=options.custom_ops,
            environ=os.environ,
        )
        store = Store(project.environment.cache_dir)
        pipeline = Pipeline(project, store, report=progress(options, project.environment.log))
        with pipeline.build() as built:
            built.raise_for_failures()
            written = _write(store, built.entries[0], options.out, stable_alias=options.stable_alias)
            if options.json:
                emit_json(options, _described(built.entries[0], written))
                return 0
    except EpctxError as error:
        raise _in_arguments(error, options) from error
    for path in written:
        say(f"{path}  {size(path.stat().st_size)}")
    return 0


def _described(entry: Entry, written: list[Path]) -> dict[str, Any]:
    identity = entry.planned.identity
    return {
        "identity": identity.digest if identity else None,
        "status": entry.status,
        "files": [str(path) for path in written],
        "facts": dict(entry.facts),
    }


def _target(options: Namespace) -> dict[str, Any]:
    """The target's table as it would stand in pyproject.toml."""
    table: dict[str, Any] = {
        "ep": options.ep,
        "provider-options": _pairs(options.option, "--option"),
        "session-options": _pairs(options.session_option, "--session-option"),
        "env": _pairs(options.env, "--env"),
        "embed": options.embed,
        "load-check": not options.no_load_check,
        "timeout": options.timeout,
        "allow-unknown-options": options.allow_unknown_option,
    }
    if options.device:
        table["device"] = options.device
    if options.optimization:
        table["optimization"] = options.optimization
    if options.cores is not None:
        table["cores"] = options.cores
    return table


def _model(options: Namespace) -> dict[str, Any]:
    dimensions: dict[str, int] = {}
    for name, text in _pairs(options.free_dimension, "--free-dimension").items():
        if not (text.isascii() and text.isdecimal()):
            where = f"--free-dimension {name}"
            raise ConfigError(f"found {text!r}", where=where, expected="a number, such as 1", reason="bad-argument")
        dimensions[name] = int(text)
    return {"free-dimensions": dimensions, "input-shapes": _shapes(options)}


def _shapes(options: Namespace) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for name, text in _pairs(options.input_shape, "--input-shape").items():
        try:
            shapes[name] = [int(size) for size in text.split(",")]
        except ValueError as error:
            where = f"--input-shape {name}"
            raise ConfigError(
                f"found {text!r}", where=where, expected="sizes such as 1,3,48,192", reason="bad-argument"
            ) from error
    return shapes


def _pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"found {text!r}", where=flag, expected="K=V", reason="bad-argument")
        if name in pairs:
            raise ConfigError(f"{name!r} is given twice", where=flag, expected="each once", reason="bad-argument")
        pairs[name] = value
    return pairs


def _in_arguments(error: EpctxError, options: Namespace) -> EpctxError:
    """The same error with the command line's words for the places of a project."""
    if isinstance(error, ConfigErrors):
        return ConfigErrors([_config_in_arguments(single) for single in error.errors])
    model, target = f"tool.epctx.models.{options.model.stem}", f"tool.epctx.targets.{options.ep}"
    places = {
        f"{model}.source": str(options.model),
        **{f"{model}.{key}": _FLAGS[key] for key in ("free-dimensions", "input-shapes", "custom-ops")},
        **{f"{target}.{key}": _FLAGS[key] for key in ("ep", "device")},
        target: "'epctx compile --help'",
        "in input-shapes": f"in {_FLAGS['input-shapes']}",
        ", relative to the project root": "",
    }

    def said(text: str) -> str:
        for place, argument in places.items():
            text = text.replace(place, argument)
        return text

    told = type(error)(
        said(error.found),
        where=said(error.where),
        expected=said(error.expected),
        remedy=said(error.remedy),
        reason=error.reason,
        detail=error.detail,
    )
    return _config_in_arguments(told) if isinstance(told, ConfigError) else told


def _config_in_arguments(error: ConfigError) -> ConfigError:
    key, _, rest = re.sub(r"\[\d+\]$", "", error.where).partition(".")
    where = f"{_FLAGS[key]} {rest.strip(_QUOTE)}".rstrip() if key in _FLAGS else error.where
    return ConfigError(
        error.found,
        where=where,
        expected=error.expected,
        remedy=error.remedy.replace("allow-unknown-options", "--allow-unknown-option"),
        reason=error.reason,
        detail=error.detail,
    )


def _write(store: Store, entry: Entry, out: Path, *, stable_alias: bool) -> list[Path]:
    """Put the generation's files into `out` under the model's and the EP's names, the ONNX file last.

    Every file appears whole, and the ONNX file only after all that it refers to.

    Raises:
        StoreError: the folder cannot be written.
    """
    generation = entry.generation
    if generation is None:
        raise ConfigError(entry.reason or "nothing was compiled", where=entry.variant.name, reason="skipped")
    stem = f"{entry.variant.source.stem}_{entry.variant.provider.key}"
    artifacts = entry.artifacts
    names = {item.path: f"{stem}.{item.digest}.bin" for item in artifacts if item.role != "model"}
    onnx_file = next(item for item in artifacts if item.role == "model")
    with store.staging() as staging:
        data = rename_references(generation.file(onnx_file), names, staging.path, place=entry.variant.name)
    files = [(generation.file(item), names[item.path]) for item in artifacts if item.path in names]
    if stable_alias:
        files += [(generation.file(item), f"{stem}.bin") for item in artifacts if item.role == "context"][:1]
    target = out / f"{stem}_ctx.onnx"
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = [_copy(source, out / name) for source, name in files]
        atomic_write(target, data, _MODE)
    except OSError as error:
        raise StoreError(
            f"cannot be written: {error.strerror or error}",
            where=str(error.filename or out),
            remedy="Name a folder that can be written with --out.",
            reason="unwritable",
        ) from error
    return [*written, target]


def _copy(source: Path, target: Path) -> Path:
    """Copy one file so that it appears whole under its name, or not at all."""
    scratch = target.parent / f".{target.name[:40]}.{os.getpid()}.part"
    try:
        copy_file(source, scratch)
        scratch.chmod(_MODE)
        move(scratch, target)
    except BaseException:
        with suppress(OSError):
            remove_tree(scratch)
        raise
    return target
