"""`epctx explain`: what changed for one variant, in words and field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hatch_epctx.changes import in_words, miss_in_words
from hatch_epctx.cli.output import duration, emit_json, say
from hatch_epctx.cli.projects import cost, find_variant, open_pipeline
from hatch_epctx.digest import is_digest
from hatch_epctx.errors import ConfigError
from hatch_epctx.identity import diff
from hatch_epctx.pipeline import Earlier

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping

    from hatch_epctx.pipeline import Entry, Pipeline

__all__ = ["explain"]


def explain(options: Namespace) -> int:
    """Hold the identity document of one variant against an earlier one."""
    pipeline = open_pipeline(options)
    variant = find_variant(pipeline, options.variant, where="epctx explain")
    entry = next(entry for entry in pipeline.plan() if entry.variant == variant)
    old = _earlier(pipeline, entry, options.against)
    price = cost(pipeline, entry)
    took = _took(pipeline, entry)
    if options.json:
        emit_json(options, _described(entry, old, price, took))
    else:
        _print(entry, old, price, took, verbose=options.verbose)
    return 0


def _earlier(pipeline: Pipeline, entry: Entry, against: str) -> Earlier | None:
    if against == "last":
        return pipeline.last(entry.variant)
    if against == "nearest":
        return pipeline.nearest(entry.planned)
    record = pipeline.store.record(against) if is_digest(against) else None
    if record is None:
        raise ConfigError(
            f"the store holds no identity {against!r}",
            where="--against",
            expected="'nearest', 'last', or a full identity of 64 hexadecimal digits, as 'epctx plan -v' shows them",
            reason="unknown-identity",
        )
    return Earlier(identity=against, document=record.document)


def _described(
    entry: Entry, old: Earlier | None, price: Mapping[str, Any] | None, took: float | None
) -> dict[str, Any]:
    identity = entry.planned.identity
    document = identity.document if identity else None
    changes = diff(old.document, document) if old and document else ()
    return {
        "variant": entry.variant.name,
        "identity": identity.digest if identity else None,
        "status": entry.status,
        "reason": entry.reason,
        "cost": price,
        "took": took,
        "prepared": str(entry.prepared) if entry.prepared else None,
        "document": document,
        "against": old.identity if old else None,
        "against_own": old.own if old else None,
        "words": list(in_words(old.document, document)) if old and document else [],
        "changes": [{"field": change.field, "old": change.old, "new": change.new} for change in changes],
    }


def _took(pipeline: Pipeline, entry: Entry) -> float | None:
    """Seconds of the compile that made what is in the store; None for a miss."""
    identity = entry.planned.identity if entry.status == "hit" else None
    record = pipeline.store.record(identity.digest) if identity else None
    seconds = record.result.get("seconds") if record else None
    found = seconds.get("compile") if isinstance(seconds, dict) else None
    return found if isinstance(found, int | float) else None


def _print(
    entry: Entry, old: Earlier | None, price: Mapping[str, Any] | None, took: float | None, *, verbose: bool
) -> None:
    reason = miss_in_words(entry.reason) if entry.status == "miss" else entry.reason
    about = f"; compiling takes about {duration(price['seconds'])}, by {price['by']}" if price else ""
    if took is not None:
        about = f"; its compile took {duration(took)}"
    say(f"{entry.variant.name}: {entry.status}{f' ({reason})' if reason else ''}{about}")
    if entry.planned.identity is None:
        return
    say(f"identity  {entry.planned.identity.digest}")
    if entry.prepared is not None:
        say(f"prepared  {entry.prepared}")
    if old is None:
        say("against   nothing: this variant was never built with this store, nor one like it")
        return
    say(f"against   {old.identity} ({'its last build' if old.own else 'the most alike in the store'})")
    document = entry.planned.identity.document
    words = in_words(old.document, document)
    for text in words or ("nothing changed",):
        say(f"  {text}")
    if verbose and words:
        say("fields:")
        for change in diff(old.document, document):
            say(f"  {change}")
