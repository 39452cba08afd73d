"""`epctx cache`: looking after the store."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx import collect as collecting
from hatch_epctx.cli.output import complain, counted, emit_json, progress, say, size, table
from hatch_epctx.collect import Limits
from hatch_epctx.config import load_project, load_settings, read_environment
from hatch_epctx.errors import ConfigError, VerificationError
from hatch_epctx.frontend import installs
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterable, Sequence

    from hatch_epctx.collect import Checked, Collected, Item
    from hatch_epctx.errors import StoreError

__all__ = ["clear", "collect", "identities_of", "info", "is_hexadecimal", "list_items", "open_store", "verify"]

_SHORTEST: Final = 8
"""Digits of an identity that a prefix needs."""
_AGES: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def info(options: Namespace) -> int:
    """What the store holds, where it lies, and what it may hold."""
    store = open_store()
    roots, unreadable = collecting.readable_roots(store)
    inventory = collecting.look(store, roots=roots)
    layout = store.layout
    limits = _limits(options)
    editable = installs(store.root)
    kept = _size_of(store.root / "kept")
    facts: dict[str, Any] = {
        "path": str(store.root),
        "file_system": layout.file_system or None,
        "network": layout.on_network,
        "read_only": store.read_only,
        "shared": layout.shared,
        "generations": len(inventory.items),
        "size": inventory.size,
        "pinned": sum(bool(item.pins) for item in inventory.items),
        "pinned_size": sum(item.size for item in inventory.items if item.pins),
        "unnamed": sum(not item.identities for item in inventory.items),
        "editable": [{"package": item.package, "project": str(item.project), "size": item.size} for item in editable],
        "kept": kept,
        "max_size": limits.max_size,
        "max_age": limits.max_age,
    }
    if options.json:
        emit_json(options, facts)
        return _told(unreadable)
    say(f"store        {store.root}{_remarks(store)}")
    say(f"generations  {facts['generations']}, {size(inventory.size)} of {size(limits.max_size)}")
    say(f"pinned       {facts['pinned']}, {size(facts['pinned_size'])}")
    if facts["unnamed"]:
        say(f"unnamed      {facts['unnamed']}, superseded or in the making")
    for item in editable:
        say(f"editable     {item.package} of {item.project}, {size(item.size)} beside the generations")
    if kept:
        say(f"kept         {size(kept)}, folders of failed compiles (EPCTX_KEEP_STAGING), yours to remove")
    if layout.on_network:
        say("network      leases of other hosts cannot be trusted here: nothing is collected by itself")
    return _told(unreadable)


def _told(unreadable: Sequence[StoreError]) -> int:
    """0, once all else was told; raises what could not be read."""
    if unreadable:
        raise unreadable[0]
    return 0


def _size_of(folder: Path) -> int:
    """Bytes of all files below `folder`; 0 where it is not there."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += Path(place, name).lstat().st_size
    return total


def _remarks(store: Store) -> str:
    remarks = (store.layout.file_system, store.read_only and "read-only", store.layout.shared and "shared")
    shown = ", ".join(remark for remark in remarks if remark)
    return f" ({shown})" if shown else ""


def list_items(options: Namespace) -> int:
    """Every generation: identity, size, last use, pins."""
    store = open_store()
    roots, unreadable = collecting.readable_roots(store)
    inventory = collecting.look(store, roots=roots)
    items = sorted(inventory.items, key=lambda item: -item.used)
    if options.json:
        emit_json(options, {"generations": [_described(store, item) for item in items]})
        return _told(unreadable)
    now = time.time()
    rows = []
    for item in items:
        for identity in item.identities or ("",):
            target = _target(store, identity)
            shown = (identity if options.verbose else identity[:12]) or "-"
            rows.append((shown, *target, size(item.size), _ago(now - item.used), ", ".join(item.pins) or "-"))
    table(("IDENTITY", "EP", "DEVICE", "SIZE", "USED", "PINNED BY"), rows)
    say(f"{counted(len(items), 'generation')}, {size(inventory.size)}")
    return _told(unreadable)


def _described(store: Store, item: Item) -> dict[str, Any]:
    return {
        "generation": item.generation,
        "identities": list(item.identities),
        "targets": [dict(zip(("ep", "device"), _target(store, identity), strict=True)) for identity in item.identities],
        "size": item.size,
        "used": item.used,
        "pins": list(item.pins),
    }


def _target(store: Store, identity: str) -> tuple[str, str]:
    """EP and device of an identity, as its document names them."""
    record = store.record(identity) if identity else None
    target = record.document.get("target") if record is not None else None
    if not isinstance(target, dict):
        return "-", "-"
    return str(target.get("ep") or "-"), str(target.get("device") or "-")


def _ago(seconds: float) -> str:
    for unit, letter in _AGES:
        if seconds >= unit:
            return f"{seconds / unit:.0f} {letter}"
    return "now"


def verify(options: Namespace) -> int:
    """Read every byte of what the store selects."""
    store = open_store()
    identities = identities_of(store, options.identities) if options.identities else None
    _, unreadable = collecting.readable_roots(store)
    checked = [found for found in collecting.check(store, identities) if not _is_gone(found)]
    bad = [found for found in checked if found.miss is not None]
    if options.remove and bad:
        done = collecting.clear(store, [found.identity for found in bad], pinned=True, alone=options.alone)
        removed = done.dangling + len(done.removed)
    else:
        removed = 0
    if options.json:
        described = [
            {
                "identity": found.identity,
                "generation": found.generation or None,
                "size": found.size,
                "reason": found.miss.reason if found.miss else None,
                "detail": found.miss.detail if found.miss else "",
            }
            for found in checked
        ]
        emit_json(options, {"checked": described, "removed": removed})
    else:
        for found in bad:
            say(f"{found.identity if options.verbose else found.identity[:12]}  {found.miss}")
        total = sum(found.size for found in checked if found.miss is None)
        say(f"{counted(len(checked), 'generation')}, {size(total)} verified, {len(bad)} damaged")
    if not bad:
        return _told(unreadable)
    raise VerificationError(
        f"{len(bad)} of {len(checked)} generations are not what their markers say",
        where=str(store.root),
        remedy=f"{removed} were removed."
        if options.remove
        else "A build never uses them and compiles anew; 'epctx cache verify --remove' removes them.",
        reason="damaged-store",
    )


def _is_gone(found: Checked) -> bool:
    """Whether it was collected while we looked."""
    return found.miss is not None and found.miss.reason == "absent"


def collect(options: Namespace) -> int:
    """Bring the store down to its limits."""
    store = open_store()
    limits = _limits(options)
    done = collecting.collect(store, limits, dry_run=options.dry_run, alone=options.alone, on_wait=_waiting(options))
    _report(options, done, "would go" if options.dry_run else "collected", limits)
    return 0


def clear(options: Namespace) -> int:
    """Remove everything, or some identities."""
    store = open_store()
    identities = identities_of(store, options.identities) if options.identities else None
    done = collecting.clear(store, identities, pinned=options.pinned, alone=options.alone, on_wait=_waiting(options))
    _report(options, done, "removed", None)
    return 0


def _report(options: Namespace, done: Collected, word: str, limits: Limits | None) -> None:
    if options.json:
        facts = {
            "removed": [
                {"generation": item.generation, "identities": list(item.identities), "size": item.size, "why": why}
                for item, why in done.removed
            ],
            "freed": done.freed,
            "busy": [item.generation for item in done.busy],
            "failed": done.failed,
            "staging": done.staging,
            "dangling": done.dangling,
            "expired": done.expired,
            "size": done.size,
        }
        emit_json(options, facts)
        return
    for item, why in done.removed:
        if options.verbose:
            say(f"{item.identities[0][:12] if item.identities else item.generation[:12]}  {size(item.size)}  {why}")
    say(f"{counted(len(done.removed), 'generation')} {word}, {size(done.freed)}; {size(done.size)} left")
    if done.staging:
        say(f"{done.staging} leavings of dead processes removed")
    if done.busy:
        say(f"{len(done.busy)} generations are in use and stay")
    for failure in done.failed:
        complain(f"warning: {failure}")
    if limits is not None and done.size > limits.max_size:
        complain(f"warning: that is more than {size(limits.max_size)}; the rest is pinned or in use")


def is_hexadecimal(text: str) -> bool:
    """Whether `text` may be the beginning of an identity."""
    return len(text) >= _SHORTEST and not set(text) - set("0123456789abcdef")


def identities_of(store: Store, names: Iterable[str]) -> list[str]:
    """Full identities of those in the store that begin with each of `names`.

    Raises:
        ConfigError: a name is too short, no hexadecimal number, or the beginning of none or several.
    """
    there = collecting.marked_identities(store.layout)
    found = []
    for name in names:
        matches = [identity for identity in there if is_hexadecimal(name) and identity.startswith(name)]
        if len(matches) != 1:
            raise ConfigError(
                f"{len(matches)} identities in the store begin with {name!r}",
                where="epctx cache",
                expected=f"one identity, or at least its first {_SHORTEST} digits",
                remedy="'epctx cache list' shows them.",
                reason="unknown-identity",
            )
        found += matches
    return found


def open_store() -> Store:
    """The store of this user, as the environment says.

    Raises:
        StoreError: it cannot be used.
    """
    return Store(read_environment(os.environ).cache_dir)


def _waiting(options: Namespace) -> Callable[[str], None]:
    lines = progress(options, "info")
    return lambda owner: lines(None, f"waiting for {owner}, which collects")


def _limits(options: Namespace) -> Limits:
    """Limits of the command line over those of the project, if there is one, over the default ones."""
    flags = {"max-size": options.max_size, "max-age": options.max_age}
    given = {key: value for key, value in flags.items() if value is not None}
    try:
        own = load_settings({"package": "epctx", "cache": given}, environ={}, state="wheel").cache
    except ConfigError as error:
        where = error.where.replace("tool.epctx.cache.", "--")
        raise ConfigError(
            error.found, where=where, expected=error.expected, remedy=error.remedy, reason=error.reason
        ) from error
    if options.project is None:
        cache = own
    else:
        cache = load_project(options.project, environ=os.environ, state="wheel").settings.cache
    return Limits.declared(
        cache.max_size if own.max_size is None else own.max_size,
        cache.max_age if own.max_age is None else own.max_age,
    )
