"""The store's health: whether it can be written, has room, and is whole as far as sizes show.

`epctx cache verify` reads every byte; this looks at names and sizes only, so that it is quick in a large store.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx import collect
from hatch_epctx.console import size
from hatch_epctx.errors import StoreError
from hatch_epctx.store import Miss

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hatch_epctx.store import Store

__all__ = ["lines", "look", "unusable"]

_ROOM: Final = 2 << 30
"""Bytes of free space below which large compiles may fail."""
_HARMLESS: Final = ("absent", "missing-generation")
"""Collected while we looked, or waiting to be collected: no damage."""


def look(store: Store) -> dict[str, Any]:
    """Where the store is, what it holds, and `problems`: a list of what is wrong, each with what to do."""
    layout = store.layout
    facts: dict[str, Any] = {
        "path": str(store.root),
        "usable": True,
        "writable": not store.read_only,
        "file_system": layout.file_system or None,
        "network": layout.on_network,
        "shared": layout.shared,
        "free": _free(store.root),
        "generations": 0,
        "size": 0,
        "damaged": [],
        "problems": [],
    }
    problems: list[str] = facts["problems"]
    try:
        inventory = collect.look(store)
        facts |= {"generations": len(inventory.items), "size": inventory.size}
        if inventory.unreadable:
            problems.append(f"{len(inventory.unreadable)} markers cannot be read: see to the disk and to permissions")
        facts["damaged"] = [
            {"identity": found.identity, "reason": found.miss.reason}
            for found in collect.check(store, content=False)
            if isinstance(found.miss, Miss) and found.miss.reason not in _HARMLESS
        ]
    except StoreError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"it cannot be looked at: {error.strerror or error}")
    problems += _problems(facts)
    return facts


def unusable(path: Path, error: StoreError) -> dict[str, Any]:
    """The facts of a store that cannot be used at all."""
    nothing: dict[str, Any] = {"file_system": None, "network": False, "shared": False, "free": _free(path)}
    nothing |= {"generations": 0, "size": 0, "damaged": [], "problems": [str(error)]}
    return {"path": str(path), "usable": False, "writable": False, **nothing}


def _problems(facts: Mapping[str, Any]) -> Iterator[str]:
    if facts["damaged"]:
        yield f"{len(facts['damaged'])} identities are damaged: run 'epctx cache verify --remove'"
    if facts["free"] is not None and facts["free"] < _ROOM:
        yield f"only {size(facts['free'])} are free on its disk: run 'epctx cache collect', or set EPCTX_CACHE_DIR"
    if facts["network"]:
        yield "it is on a network file system, where nothing is collected by itself"


def lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """One line, and one for each problem."""
    if not facts["usable"]:
        yield f"store {facts['path']} cannot be used"
        yield from (f"store: {problem}" for problem in facts["problems"])
        return
    remarks = [facts["file_system"], None if facts["writable"] else "read-only", "shared" if facts["shared"] else None]
    shown = ", ".join(remark for remark in remarks if remark)
    free = f", {size(facts['free'])} free" if facts["free"] is not None else ""
    yield (
        f"store {facts['path']}{f' ({shown})' if shown else ''}: "
        f"{facts['generations']} generations, {size(facts['size'])}{free}"
    )
    for problem in facts["problems"]:
        yield f"store: {problem}"


def _free(path: Path) -> int | None:
    """Bytes free on the disk that `path`, or what there is of it, lies on."""
    with suppress(OSError):
        there = path
        while not there.exists() and there != there.parent:
            there = there.parent
        return shutil.disk_usage(there).free
    return None
