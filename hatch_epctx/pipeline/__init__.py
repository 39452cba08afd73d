"""From declared variants to published generations: identities, hits, compiles.

`core` is what front ends call; `preparing` gives variants their identities, `obtaining` finds or makes the generation
of one, `remoting` asks the remote cache, `farming` says where compiles run, `reproducing` compiles again to compare,
`locking` holds both against epctx.lock and `relocking` makes one,
`history` remembers each variant's last identity, `earlier` compares with what there was, `summary` keeps what became
of a build, `progress` says what goes on, `records` are what callers get.
"""

from __future__ import annotations

from hatch_epctx.pipeline.core import Pipeline
from hatch_epctx.pipeline.earlier import Earlier, Estimate
from hatch_epctx.pipeline.farming import remote_url
from hatch_epctx.pipeline.history import last_key
from hatch_epctx.pipeline.obtaining import ATTEMPTS
from hatch_epctx.pipeline.preparing import Preparer
from hatch_epctx.pipeline.progress import Report, Watcher, silent
from hatch_epctx.pipeline.records import Build, Entry, Planned, Status, raise_all
from hatch_epctx.pipeline.relocking import Relocked, relock
from hatch_epctx.pipeline.reproducing import Difference, Reproduced
from hatch_epctx.pipeline.summary import recall_summary, summary

__all__ = [
    "ATTEMPTS",
    "Build",
    "Difference",
    "Earlier",
    "Entry",
    "Estimate",
    "Pipeline",
    "Planned",
    "Preparer",
    "Relocked",
    "Report",
    "Reproduced",
    "Status",
    "Watcher",
    "last_key",
    "raise_all",
    "recall_summary",
    "relock",
    "remote_url",
    "silent",
    "summary",
]
