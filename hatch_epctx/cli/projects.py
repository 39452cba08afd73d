"""Commands over a project: plan, build, explain."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hatch_epctx.cli.output import emit_json, progress, size, table
from hatch_epctx.config import Project, load_project
from hatch_epctx.digest import is_digest
from hatch_epctx.errors import ConfigError, suggest
from hatch_epctx.identity import diff
from hatch_epctx.pipeline import Build, Entry, Pipeline
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

__all__ = ["build", "explain", "plan"]


def _open(options: Namespace) -> Pipeline:
    """The pipeline of the project in `--project`, with the command line standing in for the environment."""
    environ = dict(os.environ)
    for name in ("targets", "models", "jobs"):
        value = getattr(options, name, None)
        if value is not None:
            environ[f"EPCTX_{name.upper()}"] = value
    project: Project = load_project(options.project, environ=environ, state="wheel")
    store = Store(project.environment.cache_dir)
    return Pipeline(project, store, report=progress(options))


def plan(options: Namespace) -> int:
    """Every selected variant: identity, hit or miss, and why."""
    pipeline = _open(options)
    entries = pipeline.plan()
    if options.json:
        emit_json({"variants": [_described(pipeline, entry) for entry in entries]})
        return 0
    rows = [
        (
            entry.variant.name,
            entry.variant.provider.key,
            entry.variant.device,
            entry.planned.identity.short if entry.planned.identity else "-",
            entry.status,
            _why(pipeline, entry),
        )
        for entry in entries
    ]
    table(("VARIANT", "EP", "DEVICE", "IDENTITY", "STATUS", "WHY"), rows)
    hits = sum(entry.status == "hit" for entry in entries)
    misses = sum(entry.status == "miss" for entry in entries)
    print(f"{len(entries)} variants: {hits} hits, {misses} to compile")
    return 0


def _why(pipeline: Pipeline, entry: Entry) -> str:
    """The reason in words: what changed since the variant's last build, where that is known."""
    if entry.status != "miss" or entry.planned.identity is None:
        return entry.reason
    last = pipeline.last(entry.variant)
    if last is None or last[0] == entry.planned.identity.digest:
        return entry.reason
    changes = diff(last[1], entry.planned.identity.document)
    shown = ", ".join(change.field for change in changes[:3])
    return f"changed: {shown}" + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")


def _described(pipeline: Pipeline, entry: Entry) -> dict[str, Any]:
    identity = entry.planned.identity
    described: dict[str, Any] = {
        "variant": entry.variant.name,
        "model": entry.variant.model,
        "target": entry.variant.target,
        "ep": entry.variant.provider.names[0],
        "device": entry.variant.device,
        "identity": identity.digest if identity else None,
        "status": entry.status,
        "reason": _why(pipeline, entry),
    }
    if entry.error is not None:
        described["error"] = str(entry.error)
    if entry.generation is not None:
        record = entry.generation.record
        described["generation"] = entry.generation.name
        described["artifacts"] = [
            {"role": artifact.role, "path": artifact.path, "size": artifact.size, "sha256": artifact.digest}
            for artifact in record.artifacts
        ]
        described["facts"] = record.result
    return described


def build(options: Namespace) -> int:
    """Compile what changed; with --out, write the package folder."""
    pipeline = _open(options)
    with pipeline.build() as built:
        if options.json:
            emit_json({"variants": [_described(pipeline, entry) for entry in built.entries]})
        else:
            _print_build(built)
        built.raise_for_failures()
        if options.out is not None:
            from hatch_epctx.wheel import write_package

            write_package(built, options.out, version=pipeline.project.version)
            if not options.json:
                print(f"wrote {options.out}")
    return 0


def _print_build(built: Build) -> None:
    rows = []
    for entry in built.entries:
        artifacts = entry.generation.record.artifacts if entry.generation else ()
        rows.append(
            (
                entry.variant.name,
                entry.planned.identity.short if entry.planned.identity else "-",
                entry.status,
                f"{entry.seconds:.1f} s",
                size(sum(artifact.size for artifact in artifacts)) if artifacts else "-",
            )
        )
    table(("VARIANT", "IDENTITY", "STATUS", "TIME", "SIZE"), rows)


def explain(options: Namespace) -> int:
    """Field by field, what changed for one variant."""
    pipeline = _open(options)
    names = [variant.name for variant in pipeline.project.variants]
    if options.variant not in names:
        raise ConfigError(
            f"unknown variant {options.variant!r}",
            where="epctx explain",
            expected=f"one of {', '.join(names)}",
            remedy=suggest(options.variant, names),
            reason="unknown-variant",
        )
    entry = next(entry for entry in pipeline.plan() if entry.variant.name == options.variant)
    if entry.planned.identity is None:
        print(f"{entry.variant.name}: skipped: {entry.reason}")
        return 0
    identity, document = entry.planned.identity.digest, entry.planned.identity.document
    old = _earlier(pipeline, entry, options.against)
    changes = diff(old[1], document) if old else ()
    if options.json:
        emit_json(
            {
                "variant": entry.variant.name,
                "identity": identity,
                "status": entry.status,
                "reason": entry.reason,
                "document": document,
                "against": old[0] if old else None,
                "changes": [{"field": change.field, "old": change.old, "new": change.new} for change in changes],
            }
        )
        return 0
    print(f"{entry.variant.name}: {entry.status}{f' ({entry.reason})' if entry.reason else ''}")
    print(f"identity  {identity}")
    if old is None:
        print("against   nothing: this variant was never built with this store")
    else:
        print(f"against   {old[0]}")
        for change in changes:
            print(f"  {change}")
        if not changes:
            print("  no field differs")
    return 0


def _earlier(pipeline: Pipeline, entry: Entry, against: str) -> tuple[str, Mapping[str, Any]] | None:
    if against == "last":
        return pipeline.last(entry.variant)
    record = pipeline.store.record(against) if is_digest(against) else None
    if record is None:
        raise ConfigError(
            f"the store holds no identity {against!r}",
            where="--against",
            expected="'last' or a full identity of 64 hexadecimal digits that 'epctx plan --json' shows",
            reason="unknown-identity",
        )
    return against, record.document
