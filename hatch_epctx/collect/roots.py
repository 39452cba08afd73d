"""Roots: durable claims on what the store holds, whatever its limits say.

A root is one JSON file, ``roots/<32 hex of its name's digest>.json``::

    {"format": "epctx-root/1", "name": "acme-vision/detector.intel-cpu", "identity": "", "follows": "<key>", "since": 0}

It names an identity, or a variant whose last identity the store remembers (`follows` is the key of that fact): then
the newest generation of the variant is kept as identities move on. A root that cannot be read cannot say what it
claims, so nothing is collected by limits until it is repaired or removed.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hatch_epctx.digest import digest_bytes, is_digest
from hatch_epctx.errors import StoreError
from hatch_epctx.files import atomic_write, long_path, parse_json, read_bounded, remove_file
from hatch_epctx.store import Miss
from hatch_epctx.store.layout import store_error

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hatch_epctx.store import Store

__all__ = ["LAST", "Root", "parse_root", "pin", "pins", "read_roots", "readable_roots", "roots_seen", "unpin"]

FORMAT: Final = "epctx-root/1"
LAST: Final = "last"
"""Kind of the facts that hold each variant's last identity; the pipeline writes them."""
_LIMIT: Final = 4096
_NAME: Final = 512
"""Characters of a root's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A durable claim; exactly one of `identity` and `follows` is not empty."""

    name: str
    """What users call it: an identity, or project and variant."""
    identity: str = ""
    follows: str = ""
    """Key of the fact that holds the variant's last identity."""
    since: float = 0.0
    """Seconds since 1970; presentation only."""

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{digest_bytes(self.name.encode())[:32]}.json"


def parse_root(data: bytes) -> Root:
    """Read a root's file; the caller bounds its size.

    Raises:
        ValueError: it is not exactly of the form above.
    """
    value = parse_json(data)
    if not isinstance(value, dict) or value.keys() != {"format", "name", "identity", "follows", "since"}:
        raise ValueError("expected an object with follows, format, identity, name, since")
    if value["format"] != FORMAT:
        raise ValueError(f"format {value['format']!r:.40} is not {FORMAT!r}")
    name, identity, follows, since = value["name"], value["identity"], value["follows"], value["since"]
    if not isinstance(name, str) or not 0 < len(name) <= _NAME or not name.isprintable():
        raise ValueError("name is no short line of text")
    if (identity, follows) == ("", "") or (identity and follows):
        raise ValueError("expected one of identity and follows")
    if any(text != "" and not is_digest(text) for text in (identity, follows)):
        raise ValueError("identity and follows are SHA-256 digests")
    if isinstance(since, bool) or not isinstance(since, int | float):
        raise ValueError("since is a time")  # noqa: TRY004  # one error for all refusals
    return Root(name=name, identity=identity, follows=follows, since=float(since))


def read_roots(store: Store) -> tuple[Root, ...]:
    """All roots, sorted by name.

    Raises:
        StoreError: reason "unreadable-root": one of them cannot be read, or says nothing that can be understood.
    """
    found, unreadable = readable_roots(store)
    if unreadable:
        raise unreadable[0]
    return found


def readable_roots(store: Store) -> tuple[tuple[Root, ...], tuple[StoreError, ...]]:
    """Roots that can be read, sorted by name, and what is wrong with each other one: enough to tell, not to remove.

    Raises:
        StoreError: the folder cannot be read.
    """
    found, unreadable = [], []
    for name in _files(store):
        path = store.layout.roots / name
        try:
            root = parse_root(read_bounded(path, _LIMIT))
        except FileNotFoundError:
            continue  # unpinned just now
        except (OSError, ValueError) as error:
            wrong = StoreError(
                f"what is pinned cannot be read: {getattr(error, 'strerror', None) or error}",
                where=str(path),
                remedy="Nothing is collected until that file is repaired, or removed and its claim pinned again.",
                reason="unreadable-root",
            )
            wrong.__cause__ = error
            unreadable.append(wrong)
        else:
            found.append(root)
    return tuple(sorted(found, key=lambda root: root.name)), tuple(unreadable)


def _files(store: Store) -> list[str]:
    try:
        return sorted(path.name for path in long_path(store.layout.roots).iterdir() if path.name.endswith(".json"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise store_error(error, store.layout.roots, "read what is pinned") from error


def roots_seen(store: Store) -> frozenset[tuple[str, int]]:
    """What changes when a root is added, replaced or removed; cheaper than reading them.

    Raises:
        StoreError: the folder cannot be read.
    """
    try:
        with os.scandir(long_path(store.layout.roots)) as entries:
            return frozenset((entry.name, entry.inode()) for entry in entries if entry.name.endswith(".json"))
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise store_error(error, store.layout.roots, "read what is pinned") from error


def pins(store: Store, roots: Iterable[Root]) -> dict[str, tuple[str, ...]]:
    """Names of the roots of each identity that is claimed now."""
    found: dict[str, tuple[str, ...]] = {}
    for root in roots:
        identity = root.identity
        if root.follows:
            fact = store.recall(LAST, root.follows)
            identity = str(fact.get("identity")) if fact else ""
        if is_digest(identity):
            found[identity] = (*found.get(identity, ()), root.name)
    return found


def pin(store: Store, root: Root) -> None:
    """Make `root` durable. What it names is in the store then, and stays.

    Raises:
        StoreError: nothing in the store is named by it, or it cannot be written.
    """
    path = store.layout.roots / root.file
    value = {
        "format": FORMAT,
        "name": root.name,
        "identity": root.identity,
        "follows": root.follows,
        "since": root.since or time.time(),
    }
    data = json.dumps(value, allow_nan=False).encode()
    parse_root(data)
    if store.read_only:
        raise StoreError(
            "the store is read-only for this user",
            where=str(store.root),
            remedy="Pin as the user whose store it is.",
            reason="not-writable",
        )
    try:
        atomic_write(path, data, shared=True, point="root")
    except OSError as error:
        raise store_error(error, path, "pin") from error
    # The claim first, the look under a lease after it: whoever collects looks for claims where no lease can begin.
    if not any(_is_there(store, identity) for identity in pins(store, [root])):
        _remove(path)
        raise StoreError(
            f"the store holds no generation of {root.name!r}",
            where=str(store.root),
            expected="an identity that 'epctx cache list' shows, or a variant that was built with this store",
            remedy="Build it first, then pin it.",
            reason="nothing-to-pin",
        )


def _is_there(store: Store, identity: str) -> bool:
    found = store.find(identity, verify=False)
    if isinstance(found, Miss):
        return False
    found.close()
    return True


def unpin(store: Store, name: str) -> bool:
    """Remove the root called `name`; whether there was one.

    Raises:
        StoreError: it cannot be removed.
    """
    path = store.layout.roots / Root(name=name).file
    if not os.path.lexists(path):
        return False
    _remove(path)
    return True


def _remove(path: Path) -> None:
    try:
        remove_file(path)
    except OSError as error:
        raise store_error(error, path, "unpin") from error
