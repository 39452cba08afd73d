"""Publishing: from artifacts in a staging folder to a durable generation, and to the marker that selects it."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING

from hatch_epctx.errors import StoreError
from hatch_epctx.files import atomic_write, fault_point, make_dir, publish_dir, remove_tree
from hatch_epctx.lease import Lease
from hatch_epctx.store.generation import Generation
from hatch_epctx.store.layout import store_error
from hatch_epctx.store.records import MARKER_LIMIT, Marker, Record, marker_bytes
from hatch_epctx.store.sweep import discard

if TYPE_CHECKING:
    from pathlib import Path

    from hatch_epctx.store.layout import Layout
    from hatch_epctx.store.staging import Staging

__all__ = ["publish"]

_ONCE = "The compile is used once and not kept"


def publish(layout: Layout, staging: Staging, record: Record, *, select: bool, source: Path) -> Generation:
    """Make a generation of the artifacts in `source` and, with `select`, the identity's marker; see `Store.publish`.

    Order: claim, artifacts durable, folder renamed, rename durable, marker durable, marker replaced, that durable.
    """
    name = uuid.uuid4().hex
    marker = marker_bytes(Marker(generation=name, record=record))
    try:
        out = staging.take(record.artifacts, source)
        fault_point("staged")
    except OSError as error:
        raise store_error(error, staging.folder, "take the artifacts") from error
    with ExitStack() as claims, ExitStack() as undo:
        path, warning = _place(layout, staging, out, _Claim(name, record.identity, claims, undo))
        if select and not warning:
            warning = _select(layout, record.identity, marker, scratch=staging.folder)
        selected = select and not warning
        removal = undo.pop_all()
        if not selected:  # otherwise the marker keeps it
            claims.push(removal)
        return Generation(
            name=name,
            path=path,
            record=record,
            selected=selected,
            warning=warning if select else "",
            claims=claims.pop_all(),
        )


class _Claim:
    """A generation to be: what closing it gives up, and what removes it unless it is selected."""

    def __init__(self, name: str, identity: str, claims: ExitStack, undo: ExitStack) -> None:
        self.name = name
        self.identity = identity
        self.claims = claims
        self.undo = undo


def _place(layout: Layout, staging: Staging, out: Path, claim: _Claim) -> tuple[Path, str]:
    """Bring the artifacts to where they stay; return (folder, warning)."""
    if staging.temporary:
        problem = f"the store at {layout.root} cannot be written. To keep it, set EPCTX_CACHE_DIR to another folder."
        claim.undo.push(staging.hand_over())
        return out, f"{_ONCE}: {problem}"
    final = layout.generations / claim.name
    try:
        # The note tells a sweep whose marker decides. It has to be there before the generation is.
        lease = claim.claims.enter_context(Lease.acquire(layout.leases, claim.name, note=claim.identity))
        claim.undo.callback(discard, layout, claim.identity, lease)
        publish_dir(out, final)
    except OSError as error:
        problem = str(store_error(error, final, "publish the generation"))
    except StoreError as error:
        problem = str(error)
    else:
        return final, ""
    if final.exists():  # moved, but perhaps not durable: good for now
        return final, f"{_ONCE}: {problem}"
    claim.undo.push(staging.hand_over())
    return out, f"{_ONCE}: {problem}"


def _select(layout: Layout, identity: str, marker: bytes, *, scratch: Path) -> str:
    """Replace the marker; return a warning when that failed."""
    path = layout.marker(identity)
    if len(marker) > MARKER_LIMIT:
        return f"{_ONCE}: its marker would have {len(marker):,} bytes, more than {MARKER_LIMIT:,}."
    try:
        fault_point("marker-before")
        make_dir(path.parent)
        if path.is_dir():  # tampered with: a file cannot replace it
            remove_tree(path)
        atomic_write(path, marker, shared=True, scratch=scratch, point="marker")
    except OSError as error:
        return f"{_ONCE}: {store_error(error, path, 'write the marker')}"
    fault_point("marker-after")
    return ""
