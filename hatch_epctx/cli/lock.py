"""`epctx lock`: write epctx.lock, or check it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hatch_epctx.cli.output import counted, emit_json, say
from hatch_epctx.cli.projects import open_pipeline
from hatch_epctx.errors import ConfigError, StoreError, VerificationError
from hatch_epctx.files import atomic_write
from hatch_epctx.lockfile import LOCK_NAME, Lock, describe, read_lock, write_lock
from hatch_epctx.pipeline import relock

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from hatch_epctx.lockfile import Drift
    from hatch_epctx.pipeline import Relocked

__all__ = ["lock"]

_MODE = 0o644


def lock(options: Namespace) -> int:
    """Lock every selected variant; with --check, compare and write nothing."""
    path = options.project.absolute() / LOCK_NAME
    if not options.check:
        return _write(options, path)
    if options.upgrade:
        raise ConfigError("stands beside --check", where="--upgrade", expected="one of them", reason="bad-arguments")
    return _check(options, path)


def _write(options: Namespace, path: Path) -> int:
    before = read_lock(path, lenient=True)
    old = before or Lock(variants={})
    pipeline = open_pipeline(options, locked=False, lock=old)
    new = relock(pipeline, old, upgrade=options.upgrade)
    data = write_lock(new.lock)
    changed = before is None or not path.is_file() or path.read_bytes() != data
    if changed:
        try:
            atomic_write(path, data, _MODE)
        except OSError as error:
            raise StoreError(
                f"cannot be written: {error.strerror or error}", where=str(path), reason="unwritable"
            ) from error
    if options.json:
        emit_json(options, _described(path, old, new, changed=changed))
    else:
        _print(path, old, new, changed=changed)
    return 0


def _described(path: Path, old: Lock, new: Relocked, *, changed: bool) -> dict[str, Any]:
    return {
        "path": str(path),
        "changed": changed,
        "locked": {name: list(words) for name, words in new.written.items()},
        "kept": list(new.kept),
        "skipped": new.skipped,
        "dropped": list(new.dropped),
        "unlocked": sorted(new.lock.unlocked),
        "damaged": dict(old.damaged),
        "uncertain": {name: list(texts) for name, texts in new.uncertain.items()},
    }


def _print(path: Path, old: Lock, new: Relocked, *, changed: bool) -> None:
    for name, problem in old.damaged.items():
        say(f"{name}: the entry was damaged ({problem})")
    for name, words in new.written.items():
        what = "; ".join(words) or ("the same identity, locked anew" if old.find(name) else "new")
        say(f"{name}: locked ({what})")
    for name, texts in new.uncertain.items():
        say(f"{name}: warning: not cacheable ({'; '.join(texts)}): a locked build cannot find it in the store")
    for name, reason in new.skipped.items():
        say(f"{name}: not locked here: {reason.partition(chr(10))[0]}")
    for name in new.dropped:
        say(f"{name}: dropped, no longer declared")
    say(f"{'wrote' if changed else 'nothing to change in'} {path}: {counted(len(new.lock.variants), 'variant')} locked")
    if new.lock.unlocked:
        say(f"not locked yet: {', '.join(sorted(new.lock.unlocked))} (run 'epctx lock' where their EPs are)")


def _check(options: Namespace, path: Path) -> int:
    found = open_pipeline(options, locked=True).drift()
    if options.json:
        emit_json(options, {"path": str(path), "ok": not found, "drift": [_drift(drift) for drift in found]})
        return 0 if not found else VerificationError.exit_code
    if found:
        raise describe(found, where=str(path))
    say(f"{path} is up to date")
    return 0


def _drift(drift: Drift) -> dict[str, Any]:
    changes = [{"field": change.field, "locked": change.old, "found": change.new} for change in drift.changes]
    return {"variant": drift.name, "reason": drift.reason, "words": list(drift.words), "changes": changes}
