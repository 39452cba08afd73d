"""Making a lock: what is as it was locked stays as it is, the rest is obtained and written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hatch_epctx.changes import in_words
from hatch_epctx.errors import ConfigError, ToolchainError, suggest
from hatch_epctx.lockfile import Lock, LockedVariant
from hatch_epctx.pipeline.records import raise_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hatch_epctx.errors import EpctxError
    from hatch_epctx.pipeline.core import Pipeline
    from hatch_epctx.pipeline.records import Build, Planned

__all__ = ["Relocked", "relock"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocked:
    """A new lock, and what became of each variant."""

    lock: Lock
    written: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Variants that were locked now, with what changed in words; nothing: they were not locked before, or the same
    identity was locked anew."""
    kept: tuple[str, ...] = ()
    """Variants whose entry stays as it was."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Selected variants that cannot be locked here, with the reason; a target that is not required."""
    dropped: tuple[str, ...] = ()
    """Entries of variants that are no longer declared."""
    uncertain: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Variants that were locked now and whose identity is not certain, with what is not."""


def relock(pipeline: Pipeline, old: Lock, *, upgrade: Sequence[str] = ()) -> Relocked:
    """Bring the selected variants of `old` up to date.

    Args:
        pipeline: of the project, with `old` as the lock that toolchains are borrowed from.
        old: the lock so far.
        upgrade: globs of variants: these alone are locked, anew even where nothing changed.

    Raises:
        ConfigError: a glob of `upgrade` matches nothing.
        ToolchainError: a variant changed and its EP is not here.
        EpctxError: sources or toolchains are unfit, or a compile failed; there is no new lock.
    """
    planned = _chosen(pipeline.prepare(), upgrade)
    obtain = [item for item in planned if item.identity and (upgrade or not _as_locked(old, item))]
    _refuse_borrowed(old, obtain)
    with pipeline.obtain(obtain) as built:
        built.raise_for_failures()
        written = _written(built)
    declared = set(pipeline.project.declared)
    kept = dict(old.variants) if pipeline.project.settings.conditional else _only(old, declared)
    variants = {**kept, **written}
    return Relocked(
        lock=Lock(variants=variants, unlocked=frozenset(declared - variants.keys())),
        written={name: _changed(old, new) for name, new in written.items()},
        kept=tuple(sorted(kept.keys() - written.keys())),
        skipped={item.variant.name: item.skipped for item in planned if item.identity is None},
        dropped=tuple(sorted(old.variants.keys() - kept.keys())),
        uncertain={entry.variant.name: entry.uncertain for entry in built.entries if entry.uncertain},
    )


def _chosen(planned: Sequence[Planned], upgrade: Sequence[str]) -> list[Planned]:
    names = [item.variant.name for item in planned]
    for pattern in upgrade:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"{pattern!r} matches no variant",
                where="--upgrade",
                expected=f"a name or glob of {', '.join(names)}",
                remedy=suggest(pattern.strip("*?"), names),
                reason="unknown-variant",
            )
    chosen = upgrade or ("*",)
    return [item for item in planned if any(fnmatchcase(item.variant.name, pattern) for pattern in chosen)]


def _as_locked(lock: Lock, planned: Planned) -> bool:
    locked = lock.find(planned.variant.name)
    return locked is not None and planned.identity is not None and locked.identity == planned.identity.digest


def _refuse_borrowed(old: Lock, obtain: Sequence[Planned]) -> None:
    errors: list[EpctxError] = []
    for item in obtain:
        locked = old.find(item.variant.name)
        if not item.borrowed or locked is None or item.identity is None:
            continue
        changes = in_words(locked.document, item.identity.document)
        found = f"has to be locked anew ({'; '.join(changes)})" if changes else "is to be locked anew"
        errors.append(
            ToolchainError(
                f"{found}, and {item.variant.provider.title} is not here",
                where=item.variant.name,
                remedy=f"Run 'epctx lock --targets {item.variant.base_target}' where it is, or leave the target out "
                "here with --targets.",
                reason="missing-ep",
            )
        )
    raise_all(errors, "before anything was compiled")


def _written(built: Build) -> dict[str, LockedVariant]:
    return {
        entry.variant.name: LockedVariant.of(
            entry.variant.name,
            entry.generation.record,
            entry.check,
            position=entry.variant.group.position(entry.variant) if entry.variant.group else None,
            unstable=entry.facts.get("reproducible") is False,
        )
        for entry in built.entries
        if entry.generation is not None
    }


def _only(old: Lock, declared: set[str]) -> dict[str, LockedVariant]:
    return {name: variant for name, variant in old.variants.items() if name in declared}


def _changed(old: Lock, new: LockedVariant) -> tuple[str, ...]:
    before = old.find(new.name)
    return in_words(before.document, new.document) if before else ()
