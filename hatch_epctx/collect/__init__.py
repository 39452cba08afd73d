"""Looking after the store: what there is, what is kept, what goes, and whether it is whole.

Collection is mark and sweep. Marked is what a root names, what a living process has leased, and what the limits leave
room for, by last use; the rest goes, and so do the leavings of dead processes. A hit or a build never waits for it,
and nothing runs in the background: `collect` is called by a command, `after_build` by a build that is over a limit.

`inventory` looks, `roots` are durable claims, `removing` takes away without hurting anybody, `expiry` forgets what was
only remembered, `collecting` puts them together, `automatic` bounds it after a build, `checking` reads every byte.

Guarantees, for any number of threads and processes on one host: what is leased stays, and so does the newest
generation of every root; a process that dies at any step leaves a store in which every marker selects a whole
generation, and what it left is collected later. No clock is trusted with more than the order in which things go: a
clock that jumps may make the store forget early or late, never wrongly.

Limits: on network file systems other hosts' leases cannot be trusted, and nothing is removed unless the caller says
that no other host uses the store.
"""

from __future__ import annotations

from hatch_epctx.collect.automatic import after_build
from hatch_epctx.collect.checking import Checked, check
from hatch_epctx.collect.collecting import Collected, clear, collect, look, select
from hatch_epctx.collect.inventory import Inventory, Item, marked_identities, recent_identities, survey
from hatch_epctx.collect.limits import DEFAULT_SIZE, Limits
from hatch_epctx.collect.roots import LAST, Root, pin, pins, read_roots, readable_roots, unpin

__all__ = [
    "DEFAULT_SIZE",
    "LAST",
    "Checked",
    "Collected",
    "Inventory",
    "Item",
    "Limits",
    "Root",
    "after_build",
    "check",
    "clear",
    "collect",
    "look",
    "marked_identities",
    "pin",
    "pins",
    "read_roots",
    "readable_roots",
    "recent_identities",
    "select",
    "survey",
    "unpin",
]
