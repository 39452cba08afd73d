"""Obtaining generations: found in the store, fetched from the remote cache, or compiled, under their identity's lock.

A unit of work is one variant, or the selected members of one weight-sharing group: these have one identity and one
generation, whichever of them are selected.
Either way it must meet what the variant demands beyond its identity (see `checking`).
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hatch_epctx.changes import in_words
from hatch_epctx.errors import CompileError, EpctxError, ModelError, ToolchainError
from hatch_epctx.pipeline.checking import Checker, check_coverage
from hatch_epctx.pipeline.publishing import Published, Publisher
from hatch_epctx.pipeline.records import Entry, artifacts_of, facts_of
from hatch_epctx.pipeline.unstable import is_unstable
from hatch_epctx.source import SourceChangedError
from hatch_epctx.store import Miss

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hatch_epctx.config import Variant
    from hatch_epctx.identity import Identity
    from hatch_epctx.pipeline.farming import Farm
    from hatch_epctx.pipeline.history import History
    from hatch_epctx.pipeline.locking import LockedBytes
    from hatch_epctx.pipeline.preparing import Preparer
    from hatch_epctx.pipeline.progress import Report
    from hatch_epctx.pipeline.records import Planned, Status
    from hatch_epctx.pipeline.remoting import RemoteCache
    from hatch_epctx.store import Generation, Store

__all__ = ["ATTEMPTS", "Obtainer"]

MARGIN: Final = 60.0
"""Seconds beyond its time limits that one holder of an identity's lock is given by those who wait."""
ATTEMPTS: Final = 3
"""Compiles of one variant whose source keeps changing."""
_FRESH: Final = 2.0
"""Seconds for which an identity counts as that of the source as it is now: a null build asks once."""


class Obtainer:
    """Finds or makes generations. Any thread may use it.

    Args:
        store: where generations live.
        preparer: gives identities anew after a compile.
        history: told each identity that was obtained.
        report: told what goes on.
        remote: asked before a compile, and given what was compiled.
        farm: where compiles run.
        offline: a miss is an error.
        locked: the artifacts that a lock demands.
        keep: keep the folder of a failed compile.
    """

    def __init__(
        self,
        store: Store,
        preparer: Preparer,
        history: History,
        *,
        report: Report,
        remote: RemoteCache,
        farm: Farm,
        offline: bool = False,
        locked: LockedBytes | None = None,
        keep: bool = False,
    ) -> None:
        self._store = store
        self._preparer = preparer
        self._history = history
        self._report = report
        self._remote = remote
        self._offline = offline
        self._checker = Checker(store, report=report, farm=farm)
        self._locked = locked
        self._publisher = Publisher(
            store=store,
            preparer=preparer,
            history=history,
            checker=self._checker,
            report=report,
            farm=farm,
            locked=locked,
            keep=keep,
        )
        self.begun = time.monotonic()
        """When the build began."""
        self.stopping = threading.Event()
        """Set it to end waits for locks and to start no further compile."""

    def entries(self, unit: Sequence[Planned]) -> tuple[Entry, ...]:
        """What becomes of the variants of one unit, in order: never raises for what a user can cause."""
        if unit[0].identity is None:
            for planned in unit:
                self._report(planned.variant, f"skipped: {planned.skipped}")
            return tuple(Entry(planned=planned, status="skipped", reason=planned.skipped) for planned in unit)
        start = time.monotonic()
        since = [self._since(planned) for planned in unit]
        try:
            entries = self._obtain(unit)
        except EpctxError as error:
            entries = tuple(Entry(planned=planned, status="failed", error=error) for planned in unit)
        for entry in entries:
            if entry.status == "failed":
                self._report(entry.variant, "failed")
        return tuple(
            replace(
                entry,
                changed=changed,
                first=first,
                started=start - self.begun,
                seconds=time.monotonic() - start,
                worker=_worker(),
            )
            for entry, (changed, first) in zip(entries, since, strict=True)
        )

    def find(self, identity: Identity) -> Generation | Miss:
        """The selected generation of `identity`, leased and verified, or why there is none."""
        if identity.uncertain:
            return Miss(reason=f"not cacheable: {'; '.join(identity.uncertain)}")
        return self._store.find(identity.digest)

    def _obtain(self, unit: Sequence[Planned]) -> tuple[Entry, ...]:
        """A leased generation of this unit: found, or compiled from the sources as they are now."""
        variant = unit[0].variant
        for _ in range(ATTEMPTS):
            try:
                return self._attempt(unit)
            except SourceChangedError as changed:
                self._report(variant, f"{changed}; trying again")
                unit = [self._preparer.prepare(planned.variant) for planned in unit]
        raise ModelError(
            f"the source changed {ATTEMPTS} times while it was being compiled",
            where=variant.name,
            remedy=f"Let {variant.source.name} come to rest and build again; nothing was published.",
            reason="source-changed",
        )

    def _attempt(self, unit: Sequence[Planned]) -> tuple[Entry, ...]:
        variant, identity = unit[0].variant, unit[0].identity
        if identity is None:  # an EP that went away while the source was changing
            raise ToolchainError(unit[0].skipped, where=variant.name, reason="missing-ep")
        made: Published | None = None
        with self._held(variant, identity):
            found, status = self._found(unit, identity)
            if isinstance(found, Miss):
                self._refuse_offline(variant, found)
                if self.stopping.is_set():
                    raise CompileError("the build was stopped", where=variant.name, reason="stopped")
                made = self._publisher.publish(unit, identity, why=found.reason)
                generation, status, reason = made.generation, "compiled", found.reason
            else:
                generation, reason = self._hit(unit, identity, found, status), ""
        if generation.warning and status != "hit":
            self._report(variant, f"warning: {generation.warning}")
        with ExitStack() as undo:
            undo.push(generation)
            if made is not None:  # after the lock: whoever waits for it has no need of the remote cache
                self._remote.push(unit, identity, made.record, generation)
            entries = tuple(
                self._demanded(
                    Entry(planned=planned, status=status, reason=reason, generation=generation),
                    identity,
                    generation,
                    made.failures.get(planned.variant.name) if made else None,
                )
                for planned in unit
            )
            if any(entry.generation for entry in entries):
                undo.pop_all()
        return entries

    def _since(self, planned: Planned) -> tuple[tuple[str, ...], bool]:
        """What changed since the variant's last result, in words, and whether there is none."""
        last = self._history.last(planned.variant)
        if last is None or planned.identity is None:
            return (), last is None
        same = last.identity == planned.identity.digest
        return () if same else in_words(last.document, planned.identity.document), False

    def _demanded(self, entry: Entry, identity: Identity, generation: Generation, failure: EpctxError | None) -> Entry:
        """The entry of a result that meets what the variant demands beyond its identity; else a failed one.

        `failure` is what is known to be against it.
        """
        variant = entry.variant
        try:
            if failure is not None:
                raise failure
            check_coverage(variant, facts_of(variant, generation.record))
            check = self._checker.ensure(entry.planned, identity, generation, fresh=entry.status == "compiled")
        except SourceChangedError:
            raise
        except EpctxError as error:
            return replace(self.shown(entry, generation), status="failed", error=error, generation=None)
        return replace(self.shown(entry, generation), check=check)

    def shown(self, entry: Entry, generation: Generation) -> Entry:
        """The entry with what the record of its generation says, which may be closed by then."""
        own = artifacts_of(entry.variant, generation.record)
        prepared = [generation.file(item) for item in own if item.role == "prepared"]
        facts = facts_of(entry.variant, generation.record)
        # A locked build says what the lock says.
        if self._locked is None and is_unstable(self._store, generation.record.identity):
            facts = {**facts, "reproducible": False}
        return replace(entry, facts=facts, prepared=prepared[0] if prepared else None)

    def _found(self, unit: Sequence[Planned], identity: Identity) -> tuple[Generation | Miss, Status]:
        """The generation of `identity`, with the locked artifacts where there is a lock; here or elsewhere."""
        found = self.find(identity)
        if self._locked is not None:
            return self._locked.obtain(unit, found)
        if not isinstance(found, Miss):
            return found, "hit"
        fetched = self._remote.fetch(unit, identity)
        return (found, "miss") if fetched is None else (fetched, "fetched")

    @contextmanager
    def _held(self, variant: Variant, identity: Identity) -> Iterator[None]:
        """Hold the identity's lock; what is not cacheable is nobody else's to wait for."""
        if identity.uncertain:
            yield
            return

        def waiting(owner: str) -> None:
            self._report(variant, f"waiting for {owner}, which compiles the same identity {identity.short}")

        # Whoever holds it compiles and loads, each within its time limit, and copies and digests files.
        members = variant.group.members if variant.group else (variant,)
        patience = 3 * sum(member.timeout for member in members) + MARGIN
        with self._store.lock(identity.digest, timeout=patience, on_wait=waiting, cancel=self.stopping):
            yield

    def _hit(self, unit: Sequence[Planned], identity: Identity, found: Generation, status: Status) -> Generation:
        """The generation that was found, unless the source changed while the unit waited for its turn."""
        with ExitStack() as undo:
            undo.push(found)
            if time.monotonic() - unit[0].asked > _FRESH:
                self._preparer.confirm(unit[0])
            for planned in unit:
                self._report(planned.variant, f"{status} {identity.short}")
                self._history.remember(planned.variant, identity, found.record.result)
            undo.pop_all()
        return found

    def _refuse_offline(self, variant: Variant, miss: Miss) -> None:
        if self._offline:
            raise CompileError(
                f"no usable generation in the store ({miss.reason}) and EPCTX_OFFLINE is set",
                where=variant.name,
                remedy="Build once without EPCTX_OFFLINE, or point EPCTX_CACHE_DIR at the store that holds it.",
                reason="offline",
            )


def _worker() -> int:
    """The number of this thread among those of the build's pool."""
    number = threading.current_thread().name.rpartition("_")[2]
    return int(number) if number.isdigit() else 0
