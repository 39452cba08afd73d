"""The store: immutable generations, selected by markers, found by identity.

`core` is the door; `layout` says where things lie and who may own them, `records` how a marker is read, `generation`
how a hit is verified, `staging` where a compile works, `publish` the order of its last steps, `sweep` how the leavings
of dead processes go, `facts` what is remembered beside.
"""

from __future__ import annotations

from hatch_epctx.store.core import Store
from hatch_epctx.store.generation import Generation, Miss
from hatch_epctx.store.layout import default_root
from hatch_epctx.store.records import Artifact, Marker, Record, marker_bytes, marker_document, parse_marker
from hatch_epctx.store.staging import Staging
from hatch_epctx.store.sweep import Swept

__all__ = [
    "Artifact",
    "Generation",
    "Marker",
    "Miss",
    "Record",
    "Staging",
    "Store",
    "Swept",
    "default_root",
    "marker_bytes",
    "marker_document",
    "parse_marker",
]
