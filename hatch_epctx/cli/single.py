"""`epctx compile`: one model, without a project, through the same store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hatch_epctx.cli.output import emit_json, progress, size
from hatch_epctx.compile import rename_references
from hatch_epctx.config import single_project
from hatch_epctx.errors import ConfigError
from hatch_epctx.files import atomic_write, copy_file, make_private_dir, move, remove_tree
from hatch_epctx.pipeline import Pipeline
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from pathlib import Path

    from hatch_epctx.pipeline import Entry

__all__ = ["compile_one"]

_FLAGS = {
    "provider-options": "--option",
    "session-options": "--session-option",
    "free-dimensions": "--free-dimension",
    "env": "--env",
    "ep": "--ep",
    "device": "--device",
    "timeout": "--timeout",
}


def compile_one(options: Namespace) -> int:
    """Compile one model into `--out`."""
    try:
        project = single_project(options.model, _target(options), model=_model(options), environ=os.environ)
    except ConfigError as error:
        raise _as_flags(error) from error
    store = Store(project.environment.cache_dir)
    with Pipeline(project, store, report=progress(options)).build() as built:
        built.raise_for_failures()
        written = _write(store, built.entries[0], options.out, stable_alias=options.stable_alias)
        if options.json:
            entry = built.entries[0]
            identity = entry.planned.identity
            emit_json(
                {
                    "identity": identity.digest if identity else None,
                    "status": entry.status,
                    "files": [str(path) for path in written],
                    "facts": entry.generation.record.result if entry.generation else {},
                }
            )
            return 0
    for path in written:
        print(f"{path}  {size(path.stat().st_size)}")
    return 0


def _target(options: Namespace) -> dict[str, Any]:
    """The target's table as it would stand in pyproject.toml."""
    table: dict[str, Any] = {
        "ep": options.ep,
        "provider-options": _pairs(options.option, "--option"),
        "session-options": _pairs(options.session_option, "--session-option"),
        "env": _pairs(options.env, "--env"),
        "embed": options.embed,
        "load-check": not options.no_load_check,
        "timeout": float(options.timeout),
        "allow-unknown-options": options.allow_unknown_option,
    }
    if options.device:
        table["device"] = options.device
    if options.optimization:
        table["optimization"] = options.optimization
    return table


def _model(options: Namespace) -> dict[str, Any]:
    dimensions: dict[str, int] = {}
    for name, text in _pairs(options.free_dimension, "--free-dimension").items():
        if not text.isdecimal():
            raise ConfigError(f"found {text!r}", where=f"--free-dimension {name}", expected="a number of elements")
        dimensions[name] = int(text)
    return {"free-dimensions": dimensions}


def _pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"found {text!r}", where=flag, expected="K=V", reason="bad-argument")
        pairs[name] = value
    return pairs


def _as_flags(error: ConfigError) -> ConfigError:
    """The same error with the command line's words for its places."""

    def said(text: str) -> str:
        for key, flag in _FLAGS.items():
            if text == key or text.startswith(f"{key}."):
                rest = text[len(key) + 1 :]
                return f"{flag} {rest}".rstrip()
        return text

    detail = "\n".join(
        ": ".join([said(line.partition(": ")[0]), line.partition(": ")[2]]) for line in error.detail.split("\n")
    )
    return ConfigError(
        error.found,
        where=said(error.where),
        expected=error.expected,
        remedy=error.remedy,
        reason=error.reason,
        detail=detail if error.detail else "",
    )


def _write(store: Store, entry: Entry, out: Path, *, stable_alias: bool) -> list[Path]:
    """Publish the generation's files in `out` under the model's and the EP's names, the ONNX file last.

    Every file appears whole: it is copied under a temporary name and renamed.
    """
    generation = entry.generation
    if generation is None:
        raise ConfigError(entry.reason or "nothing was compiled", where=entry.variant.name)
    stem = f"{entry.variant.source.stem}_{entry.variant.provider.key}"
    out.mkdir(parents=True, exist_ok=True)
    artifacts = generation.record.artifacts
    names = {item.path: f"{stem}.{item.digest}.bin" for item in artifacts if item.role != "model"}
    onnx_file = next(item for item in artifacts if item.role == "model")
    written = [_publish(generation.file(item), out / names[item.path]) for item in artifacts if item.path in names]
    with store.staging() as staging:
        data = rename_references(generation.file(onnx_file), names, staging.path, place=entry.variant.name)
    if stable_alias:
        contexts = [item for item in artifacts if item.role == "context"]
        written += [_publish(generation.file(item), out / f"{stem}.bin") for item in contexts[:1]]
    target = out / f"{stem}_ctx.onnx"
    atomic_write(target, data, 0o644)
    return [*written, target]


def _publish(source: Path, target: Path) -> Path:
    scratch = target.parent / f".{target.name}.part"
    make_private_dir(target.parent)
    remove_tree(scratch)
    copy_file(source, scratch)
    scratch.chmod(0o644)
    move(scratch, target)
    return target
