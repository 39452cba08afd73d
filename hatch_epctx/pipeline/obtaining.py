"""Obtaining one variant's generation: found in the store, or compiled under its identity's lock and published.

Either way it must meet what the variant demands beyond its identity (see `checking`).
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from hatch_epctx import compile as compiling
from hatch_epctx.errors import CompileError, EpctxError, ModelError, ToolchainError
from hatch_epctx.pipeline.checking import Checker, check_coverage
from hatch_epctx.pipeline.progress import signs_of_life
from hatch_epctx.pipeline.records import Entry
from hatch_epctx.source import SourceChangedError
from hatch_epctx.store import Miss, Record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hatch_epctx.compile import Compiled
    from hatch_epctx.config import Variant
    from hatch_epctx.identity import Identity
    from hatch_epctx.pipeline.history import History
    from hatch_epctx.pipeline.locking import LockedBytes
    from hatch_epctx.pipeline.preparing import Preparer
    from hatch_epctx.pipeline.progress import Report
    from hatch_epctx.pipeline.records import Planned, Status
    from hatch_epctx.source import SourceModel
    from hatch_epctx.store import Generation, Store

__all__ = ["ATTEMPTS", "Obtainer"]

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
        offline: a miss is an error.
        locked: the artifacts that a lock demands.
    """

    def __init__(
        self,
        store: Store,
        preparer: Preparer,
        history: History,
        *,
        report: Report,
        offline: bool = False,
        locked: LockedBytes | None = None,
    ) -> None:
        self._store = store
        self._preparer = preparer
        self._history = history
        self._report = report
        self._offline = offline
        self._checker = Checker(store, report=report)
        self._locked = locked
        self.stopping = threading.Event()
        """Set it to end waits for locks and to start no further compile."""

    def entry(self, planned: Planned) -> Entry:
        """What becomes of one variant: never raises for what a user can cause."""
        variant = planned.variant
        if planned.identity is None:
            self._report(variant, f"skipped: {planned.skipped}")
            return Entry(planned=planned, status="skipped", reason=planned.skipped)
        start = time.monotonic()
        try:
            entry = self._obtain(planned)
        except EpctxError as error:
            self._report(variant, "failed")
            entry = Entry(planned=planned, status="failed", error=error)
        return replace(entry, seconds=time.monotonic() - start)

    def find(self, identity: Identity) -> Generation | Miss:
        """The selected generation of `identity`, leased and verified, or why there is none."""
        if identity.uncertain:
            return Miss(reason=f"not cacheable: {'; '.join(identity.uncertain)}")
        return self._store.find(identity.digest)

    def _obtain(self, planned: Planned) -> Entry:
        """A leased generation of this variant: found, or compiled from the source as it is now."""
        variant = planned.variant
        for _ in range(ATTEMPTS):
            try:
                return self._attempt(planned)
            except SourceChangedError as changed:
                self._report(variant, f"{changed}; trying again")
                planned = self._preparer.prepare(variant)
        raise ModelError(
            f"the source changed {ATTEMPTS} times while it was being compiled",
            where=variant.name,
            remedy=f"Let {variant.source.name} come to rest and build again; nothing was published.",
            reason="source-changed",
        )

    def _attempt(self, planned: Planned) -> Entry:
        variant, identity, source = planned.variant, planned.identity, planned.source
        if identity is None or source is None:  # an EP that went away while the source was changing
            raise ToolchainError(planned.skipped, where=variant.name, reason="missing-ep")
        with self._held(variant, identity):
            found, status = self._found(planned, identity)
            if isinstance(found, Miss):
                self._refuse_offline(variant, found)
                if self.stopping.is_set():
                    raise CompileError("the build was stopped", where=variant.name, reason="stopped")
                generation = self._compile(planned, identity, source, why=found.reason)
                entry = Entry(planned=planned, status="compiled", reason=found.reason, generation=generation)
            else:
                generation, entry = found, self._hit(planned, identity, found, status)
        if generation.warning and entry.status == "compiled":
            self._report(variant, f"warning: {generation.warning}")
        return self._demanded(entry, identity, generation)

    def _demanded(self, entry: Entry, identity: Identity, generation: Generation) -> Entry:
        """The entry of a result that meets what the variant demands beyond its identity; else it is given up."""
        variant, facts = entry.variant, generation.record.result
        with ExitStack() as undo:
            undo.push(generation)
            check_coverage(variant, facts)
            check = self._checker.ensure(entry.planned, identity, generation, fresh=entry.status == "compiled")
            undo.pop_all()
        return replace(self.shown(entry, generation), check=check)

    def shown(self, entry: Entry, generation: Generation) -> Entry:
        """The entry with what the record of its generation says, which may be closed by then."""
        prepared = [generation.file(item) for item in generation.record.artifacts if item.role == "prepared"]
        return replace(entry, facts=generation.record.result, prepared=prepared[0] if prepared else None)

    def _found(self, planned: Planned, identity: Identity) -> tuple[Generation | Miss, Status]:
        """The generation of `identity`, with the locked artifacts where there is a lock."""
        found = self.find(identity)
        if self._locked is not None:
            return self._locked.obtain(planned, found)
        return found, "miss" if isinstance(found, Miss) else "hit"

    @contextmanager
    def _held(self, variant: Variant, identity: Identity) -> Iterator[None]:
        """Hold the identity's lock; what is not cacheable is nobody else's to wait for."""
        if identity.uncertain:
            yield
            return

        def waiting(owner: str) -> None:
            self._report(variant, f"waiting for {owner}, which compiles the same identity {identity.short}")

        # Whoever holds it compiles and loads, each within its time limit, and copies and digests files.
        patience = 3 * variant.timeout + 60
        with self._store.lock(identity.digest, timeout=patience, on_wait=waiting, cancel=self.stopping):
            yield

    def _hit(self, planned: Planned, identity: Identity, found: Generation, status: Status) -> Entry:
        """The entry of a hit, unless the source changed while the variant waited for its turn."""
        with ExitStack() as undo:
            undo.push(found)
            if time.monotonic() - planned.asked > _FRESH:
                self._unchanged(planned)
            self._report(planned.variant, f"{status} {identity.short}")
            self._history.remember(planned.variant, identity)
            undo.pop_all()
        return Entry(planned=planned, status=status, generation=found)

    def _compile(self, planned: Planned, identity: Identity, source: SourceModel, *, why: str) -> Generation:
        """Compile and publish, within the identity's lock."""
        variant = planned.variant
        self._report(variant, f"compiling {identity.short} ({why})")
        start = time.monotonic()
        with self._store.staging() as staging:
            with signs_of_life(self._report, variant):
                compiled = compiling.compile_variant(
                    variant,
                    source,
                    staging.path,
                    option_digests=planned.option_digests,
                    calibration=planned.calibration,
                )
            failure = self._judged(planned, identity, compiled, staging.path)
            self._unchanged(planned)
            record = Record(
                identity=identity.digest,
                document=dict(identity.document),
                artifacts=compiled.artifacts,
                result=compiled.facts,
            )
            generation = self._store.publish(staging, record, select=not identity.uncertain)
        if self._locked is not None:
            generation = self._locked.check(planned, generation)
        self._history.remember(variant, identity)
        if failure is not None:
            generation.close()
            raise failure
        self._report(variant, f"compiled {identity.short} in {time.monotonic() - start:.1f} s")
        for lost in compiled.facts.get("metadata_lost", ()):
            self._report(variant, f"warning: metadata lost by the compile: {lost}")
        return generation

    def _judged(self, planned: Planned, identity: Identity, compiled: Compiled, folder: Path) -> EpctxError | None:
        """What the variant's demands have against a result.

        It is published all the same: it is a right result of its identity, and other demands, such as a wider
        tolerance, may accept it without a new compile.
        """
        try:
            check_coverage(planned.variant, compiled.facts)
            if planned.variant.check is not None:
                check = self._checker.run(planned, identity, compiled.artifacts, folder)
                compiled.facts["check"] = check
        except (CompileError, ModelError) as error:
            return error
        return None

    def _refuse_offline(self, variant: Variant, miss: Miss) -> None:
        if self._offline:
            raise CompileError(
                f"no usable generation in the store ({miss.reason}) and EPCTX_OFFLINE is set",
                where=variant.name,
                remedy="Build once without EPCTX_OFFLINE, or point EPCTX_CACHE_DIR at the store that holds it.",
                reason="offline",
            )

    def _unchanged(self, planned: Planned) -> None:
        """Refuse a compile whose identity is stale by now."""
        self._preparer.forget_toolchains()
        now = self._preparer.prepare(planned.variant).identity
        if now is None or planned.identity is None or now.digest != planned.identity.digest:
            raise SourceChangedError("the source or its toolchain changed meanwhile", reason="source-changed")
