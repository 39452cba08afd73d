"""The pipeline of one project: identities of everything first, then hits and compiles, several variants at once.

`Pipeline.prepare` reads sources and toolchains and gives every variant its identity before anything compiles, so
that a user's mistake costs no compile. `plan` says what is there; `build` makes the rest, each variant under its
identity's lock. A failed variant never stops another one's compile.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

from hatch_epctx.collect import Limits, after_build
from hatch_epctx.pipeline.earlier import Earlier, Estimate, nearest, read_recent
from hatch_epctx.pipeline.farming import Farm
from hatch_epctx.pipeline.history import History
from hatch_epctx.pipeline.locking import LockedBytes, compare, prepare_locked, required_lock
from hatch_epctx.pipeline.obtaining import Obtainer
from hatch_epctx.pipeline.preparing import Preparer
from hatch_epctx.pipeline.progress import Report, silent, watched
from hatch_epctx.pipeline.records import Build, Entry, Planned, units_of
from hatch_epctx.pipeline.remoting import RemoteCache
from hatch_epctx.pipeline.reproducing import reproduce
from hatch_epctx.pipeline.summary import remember_summary
from hatch_epctx.process import kill_workers
from hatch_epctx.store import Miss, Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hatch_epctx.config import Project, Variant
    from hatch_epctx.lockfile import Drift, Lock
    from hatch_epctx.pipeline.reproducing import Reproduced
    from hatch_epctx.remote.client import Remote
    from hatch_epctx.store import Record

__all__ = ["Pipeline"]

_PAUSE: Final = 0.05
"""Seconds between two looks at threads that are being stopped."""


class Pipeline:
    """The way of one project's variants into the store.

    Args:
        project: declaration, settings of this run, selected variants in order.
        store: where generations live.
        report: called with a variant (None: the whole build) and a line of progress, from any thread.
        lock: gives toolchains of EPs that are not here, without demanding anything. A project whose environment says
            EPCTX_LOCKED reads its own, and everything has to be as it was locked.
        remote: an open client of a remote cache in place of the one that the project names; whoever opened it closes
            it, unless the build is stopped.

    Raises:
        ConfigError: the remote cache's URL or environment is wrong, or the executor is none.
        VerificationError: the build is locked, and there is no lock or it is damaged.
    """

    def __init__(
        self,
        project: Project,
        store: Store,
        *,
        report: Report = silent,
        lock: Lock | None = None,
        remote: Remote | None = None,
    ) -> None:
        self.project = project
        self.store = store
        self._report = report
        self._recent: tuple[Record, ...] | None = None
        self._threads: set[int] = set()
        """Threads that start workers of this pipeline."""
        self._lock = required_lock(project.root) if project.environment.locked else None
        self._farm = Farm(project, store)
        self._preparer = Preparer(store, self._lock or lock, farm=self._farm)
        self._history = History(store, project.name)
        self._remote = RemoteCache(project, store, report=report, client=remote)
        self._obtainer = Obtainer(
            store,
            self._preparer,
            self._history,
            report=report,
            remote=self._remote,
            farm=self._farm,
            offline=project.environment.offline,
            locked=LockedBytes(self._lock, store, self._remote) if self._lock else None,
            keep=project.environment.keep_staging,
        )

    def prepare(self) -> tuple[Planned, ...]:
        """Identities of all selected variants.

        Raises:
            EpctxError: what is wrong with sources and toolchains, all of it at once; or in what they differ from
                epctx.lock.
        """
        try:
            if self._lock is not None:
                return prepare_locked(self._preparer, self.project, self._lock)
            return self._preparer.prepare_all(self.project.variants)
        finally:
            self._farm.close()

    def drift(self) -> tuple[Drift, ...]:
        """In what a locked build differs from epctx.lock. Nothing is compiled.

        Raises:
            ValueError: the build is not locked.
            EpctxError: sources, options or toolchains are unfit.
        """
        if self._lock is None:
            raise ValueError("the build is not locked")
        return compare(self._preparer, self.project, self._lock)[1]

    def plan(self) -> tuple[Entry, ...]:
        """What a build would find and do. Nothing is compiled; generations are verified and released again."""
        entries = []
        for planned in self.prepare():
            if planned.identity is None:
                entries.append(Entry(planned=planned, status="skipped", reason=planned.skipped))
                continue
            found = self._obtainer.find(planned.identity)
            if isinstance(found, Miss):
                entries.append(Entry(planned=planned, status="miss", reason=found.reason))
            else:
                found.close()
                entries.append(self._obtainer.shown(Entry(planned=planned, status="hit"), found))
        return tuple(entries)

    def build(self) -> Build:
        """Bring every selected variant into the store.

        Returns:
            All entries, failed ones too (see `Build.raise_for_failures`).

        Raises:
            EpctxError: sources, toolchains or the store are unfit; nothing was compiled.
        """
        self._threads.add(threading.get_ident())
        self._obtainer.begun = time.monotonic()
        built = self.obtain(self.prepare())
        remember_summary(self.store, built)
        return built

    def stop(self) -> None:
        """End a `build` that another thread is in, soon: its workers are killed, what is left fails as stopped.

        A worker may just be starting: call it until `build` has returned.
        """
        self._obtainer.stopping.set()
        self._remote.stop()
        self._farm.close()
        kill_workers(frozenset(self._threads))

    def obtain(self, planned: Sequence[Planned]) -> Build:
        """Bring variants that were prepared into the store; see `build`."""
        units = units_of(planned)
        jobs = max(1, min(self.project.environment.jobs, len(units)))
        own = self._threads.add
        pool = ThreadPoolExecutor(jobs, thread_name_prefix="epctx", initializer=lambda: own(threading.get_ident()))
        futures: list[Future[tuple[Entry, ...]]] = []
        try:
            with watched(self._report, lambda: self._expected(units), jobs):
                futures = [pool.submit(self._obtainer.entries, unit) for unit in self._remote.in_turn(units)]
                by_name = {entry.variant.name: entry for future in futures for entry in future.result()}
        except BaseException:
            self._stop(futures)
            raise
        finally:
            pool.shutdown()
            self._farm.close()
            self._remote.close()
        entries = tuple(by_name[item.variant.name] for item in planned)
        if not self.project.environment.offline:  # what goes now could not be made again
            self._collect(entries)
        return Build(
            project=self.project,
            entries=entries,
            seconds=time.monotonic() - self._obtainer.begun,
            round_trips=self._round_trips(),
        )

    def _expected(self, units: Sequence[Sequence[Planned]]) -> dict[str, float | None]:
        """Seconds that each variant will take, see `progress.Watcher`; of a group, all of them stand at the first."""
        expected: dict[str, float | None] = {}
        for first, *others in units:
            expected[first.variant.name] = self._cost(first)
            expected |= {planned.variant.name: 0.0 for planned in others}
        return expected

    def _cost(self, planned: Planned) -> float | None:
        identity = planned.identity
        if identity is None or (not identity.uncertain and self.store.record(identity.digest) is not None):
            return 0.0
        estimate = self.estimate(planned)
        return estimate.seconds if estimate else None

    def _round_trips(self) -> dict[str, int]:
        return dict(sorted((Counter(self._farm.round_trips) + Counter(self._remote.round_trips)).items()))

    def _collect(self, entries: tuple[Entry, ...]) -> None:
        """Bring the store back within its limits; leases keep what this build is going to use."""
        made = {
            entry.generation.name: entry.generation
            for entry in entries
            if entry.status in ("compiled", "fetched") and entry.generation
        }
        grown = sum(artifact.size for generation in made.values() for artifact in generation.record.artifacts)
        limits = Limits.declared(self.project.settings.cache.max_size, self.project.settings.cache.max_age)
        after_build(self.store, limits, grown=grown, say=lambda text: self._report(None, text))

    def reproduce(self, planned: Sequence[Planned], *, runs: int = 2) -> Iterator[Reproduced]:
        """Compile variants that were prepared `runs` times and compare; see `reproducing`."""
        return reproduce(planned, self.store, report=self._report, farm=self._farm, runs=runs)

    def _stop(self, futures: list[Future[tuple[Entry, ...]]]) -> None:
        """End what runs, start nothing more, and give up what was obtained. Returns when all threads are done."""
        self._obtainer.stopping.set()
        self._remote.stop()  # its calls may be long, and a pool of its own ends with them
        for future in futures:
            future.cancel()
        running = set(futures)
        while running:
            self._farm.close()
            kill_workers(frozenset(self._threads))  # again and again: a thread may just have started one
            running = wait(running, timeout=_PAUSE).not_done
        for future in futures:
            if not future.cancelled() and future.exception() is None:
                for entry in future.result():
                    if entry.generation is not None:
                        entry.generation.close()

    def last(self, variant: Variant) -> Earlier | None:
        """The variant's last result on this machine."""
        return self._history.last(variant)

    def nearest(self, planned: Planned) -> Earlier | None:
        """The earlier result that is most like the variant as it is now; see `earlier.nearest`."""
        if planned.identity is None:
            return None
        if self._recent is None:
            self._recent = read_recent(self.store)
        return nearest(planned.identity.document, self._recent, self.last(planned.variant))

    def estimate(self, planned: Planned) -> Estimate | None:
        """What the variant's compile will cost, by its own last one or else by that of the nearest result."""
        last = self.last(planned.variant)
        if last is not None and last.seconds is not None:
            return Estimate(seconds=last.seconds, own=True)
        near = self.nearest(planned)
        return Estimate(seconds=near.seconds, own=False) if near and near.seconds is not None else None
