"""What the commands over a project share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hatch_epctx.changes import in_words, miss_in_words
from hatch_epctx.cli.output import progress
from hatch_epctx.config import ConfigErrors, load_project
from hatch_epctx.errors import ConfigError, suggest
from hatch_epctx.pipeline import Pipeline
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from argparse import Namespace

    from hatch_epctx.config import Variant
    from hatch_epctx.lockfile import Lock
    from hatch_epctx.pipeline import Entry

__all__ = ["cost", "described", "environment_of", "find_variant", "open_pipeline", "why"]

_SETTINGS = ("targets", "models", "jobs")
"""Arguments that stand for the environment variable EPCTX_<NAME>."""


def open_pipeline(options: Namespace, *, locked: bool | None = None, lock: Lock | None = None) -> Pipeline:
    """The pipeline of the project in ``--project``, with the command line standing over the environment.

    Args:
        options: the command's.
        locked: stands for EPCTX_LOCKED; None: as ``--locked`` or the variable says.
        lock: see `Pipeline`.

    Raises:
        ConfigError: there is no project, or its configuration is wrong.
        VerificationError: the build is locked, and there is no lock.
        StoreError: the store cannot be used.
    """
    environ = environment_of(options, locked=locked)
    try:
        project = load_project(options.project, environ=environ, state="wheel")
    except ConfigError as error:
        raise _at_flags(error, options) from None
    store = Store(project.environment.cache_dir)
    lines = progress(options, project.environment.log)
    lines.debug(f"project {project.name} {project.version} in {project.root}")
    lines.debug(f"store {store.root}{' (read-only)' if store.read_only else ''}, {project.environment.jobs} jobs")
    return Pipeline(project, store, report=lines, lock=lock)


def environment_of(options: Namespace, *, locked: bool | None = None) -> dict[str, str]:
    """The environment with the command line's settings over it."""
    environ = dict(os.environ)
    for name in _SETTINGS:
        value = getattr(options, name, None)
        if value is not None:
            environ[_variable(name)] = value
    if locked is not None or getattr(options, "locked", False):
        environ["EPCTX_LOCKED"] = "0" if locked is False else "1"
    return environ


def _variable(setting: str) -> str:
    return f"EPCTX_{setting.upper()}"


def _at_flags(error: ConfigError, options: Namespace) -> ConfigError:
    """The error at the argument that was given, where it names the variable that the argument stands for."""
    flags = {_variable(name): f"--{name}" for name in _SETTINGS if getattr(options, name, None) is not None}
    if isinstance(error, ConfigErrors):
        return ConfigErrors([_at_flags(single, options) for single in error.errors])
    error.where = flags.get(error.where, error.where)
    return error


def find_variant(pipeline: Pipeline, name: str, *, where: str) -> Variant:
    """The selected variant of this name.

    Raises:
        ConfigError: there is none; the message lists those that there are.
    """
    by_name = {variant.name: variant for variant in pipeline.project.variants}
    if name not in by_name:
        raise ConfigError(
            f"unknown variant {name!r}",
            where=where,
            expected=f"one of {', '.join(by_name)}",
            remedy=suggest(name, by_name),
            reason="unknown-variant",
        )
    return by_name[name]


def why(pipeline: Pipeline, entry: Entry) -> str:
    """Why a variant is no hit, in words: what changed since its last build, or against the most alike of its model."""
    if entry.status != "miss" or entry.planned.identity is None or entry.uncertain:
        return entry.reason  # what cannot be named with certainty is a miss whatever has changed
    document = entry.planned.identity.document
    last = pipeline.last(entry.variant) or pipeline.nearest(entry.planned)
    if last is None or last.identity == entry.planned.identity.digest:
        return miss_in_words(entry.reason)
    if not last.own and last.document.get("model") != document["model"]:
        return f"{miss_in_words(entry.reason)}, nor is another compile of this model"
    changes = in_words(last.document, document)
    text = "; ".join(changes[:2]) + (f"; and {len(changes) - 2} more" if len(changes) > 2 else "")
    return text if last.own else f"new; unlike {last.identity[:12]}: {text}"


def cost(pipeline: Pipeline, entry: Entry) -> dict[str, Any] | None:
    """What compiling a miss will cost: seconds, and of what that is known; None for a hit, or where it is not."""
    estimate = pipeline.estimate(entry.planned) if entry.status == "miss" else None
    if estimate is None:
        return None
    return {"seconds": estimate.seconds, "by": "its last compile" if estimate.own else "the most alike in the store"}


def described(pipeline: Pipeline, entry: Entry) -> dict[str, Any]:
    """One entry for ``--json``."""
    identity = entry.planned.identity
    facts: dict[str, Any] = {
        "variant": entry.variant.name,
        "model": entry.variant.model,
        "target": entry.variant.target,
        "ep": entry.variant.provider.names[0],
        "device": entry.variant.device,
        "group": entry.variant.group.name if entry.variant.group else None,
        "identity": identity.digest if identity else None,
        "status": entry.status,
        "reason": entry.reason,
        "why": why(pipeline, entry),
        "cost": cost(pipeline, entry),
        "uncertain": list(entry.uncertain),
    }
    if entry.error is not None:
        facts["error"] = {"message": str(entry.error), "reason": entry.error.reason, "exit_code": entry.error.exit_code}
    if entry.generation is not None:
        facts["generation"] = entry.generation.name
        facts["artifacts"] = [
            {"role": artifact.role, "path": artifact.path, "size": artifact.size, "sha256": artifact.digest}
            for artifact in entry.artifacts
        ]
        facts["facts"] = dict(entry.facts)
    if entry.facts.get("coverage"):
        facts["coverage"] = dict(entry.facts["coverage"])
        facts["left"] = list(entry.facts.get("left", ()))
    if entry.check is not None:
        facts["check"] = dict(entry.check)
    if entry.prepared is not None:
        facts["prepared"] = str(entry.prepared)
    return facts
