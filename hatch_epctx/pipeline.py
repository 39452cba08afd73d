"""From declared variants to published generations: identities, hits, compiles.

`Pipeline.prepare` reads sources and toolchains and gives every variant its identity before anything compiles, so
that a user's mistake costs no compile. `plan` says what is there; `build` makes the rest, several variants at once,
each under its identity's lock. A failed variant never stops another one's compile.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from hatch_epctx import compile as compiling
from hatch_epctx.digest import digest_bytes, digest_entries
from hatch_epctx.errors import CompileError, EpctxError, ModelError, ToolchainError
from hatch_epctx.identity import Identity, identify
from hatch_epctx.process import kill_workers
from hatch_epctx.source import SourceChangedError, SourceModel, read_source
from hatch_epctx.store import Generation, Miss, Record, Store
from hatch_epctx.toolchain import Toolchain, discover, machine_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from typing_extensions import Self

    from hatch_epctx.config import Project, Variant
    from hatch_epctx.providers import OptionValue, Provider
    from hatch_epctx.worker.protocol import ProbedDevice, ScannedModel

__all__ = ["Build", "Entry", "Pipeline", "Planned", "Status"]

ATTEMPTS = 3
"""Compiles of one variant whose source keeps changing."""

Status = Literal["hit", "miss", "compiled", "skipped", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A variant with its identity, or the reason why it is skipped."""

    variant: Variant
    source: SourceModel | None = None
    identity: Identity | None = None
    toolchain: Toolchain | None = None
    skipped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One variant and what became of it."""

    planned: Planned
    status: Status
    reason: str = ""
    """Why it is no hit, why it was skipped, why its generation was not selected."""
    generation: Generation | None = None
    """Leased until `Build.close`."""
    error: EpctxError | None = None
    seconds: float = 0.0
    """Wall time of this build's work on the variant; presentation only."""

    @property
    def variant(self) -> Variant:
        """The variant itself."""
        return self.planned.variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The entries of one build, in declaration order. Close it to give up the leases."""

    project: Project
    entries: tuple[Entry, ...]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release every generation."""
        for entry in self.entries:
            if entry.generation is not None:
                entry.generation.close()

    def raise_for_failures(self) -> None:
        """Raise the failure of this build; of several, one error that holds them all.

        Raises:
            EpctxError: of the first failed variant's class.
        """
        failures = [entry.error for entry in self.entries if entry.error is not None]
        raise_all(failures, f"of {len(self.entries)} variants")


def raise_all(errors: list[EpctxError], scope: str) -> None:
    """Raise the one error, or one of the first one's class that shows them all; nothing when there is none."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        detail = "\n\n".join(str(error) for error in errors)
        raise type(errors[0])(f"{len(errors)} failures {scope}", reason=errors[0].reason, detail=detail)


def ignore(variant: Variant | None, text: str) -> None:
    """The progress callback that tells nobody."""


class Pipeline:
    """The way of one project's variants into the store.

    Args:
        project: declaration, settings of this run, selected variants in order.
        store: where generations live.
        report: called with a variant (None: the whole build) and a line of progress, from any thread.
    """

    def __init__(
        self, project: Project, store: Store, *, report: Callable[[Variant | None, str], None] = ignore
    ) -> None:
        self.project = project
        self.store = store
        self._report = report
        self._toolchains: dict[tuple[Any, ...], Toolchain] = {}
        self._guard = threading.Lock()

    def prepare(self) -> tuple[Planned, ...]:
        """Identities of all selected variants.

        Raises:
            EpctxError: what is wrong with sources and toolchains, all of it at once.
        """
        planned: list[Planned] = []
        errors: list[EpctxError] = []
        broken: set[Path] = set()
        for variant in self.project.variants:
            try:
                planned.append(self._prepare(variant))
            except EpctxError as error:
                if isinstance(error, ModelError) and variant.source in broken:
                    continue  # said once already
                broken.add(variant.source)
                errors.append(error)
        raise_all(errors, "before anything was compiled")
        return tuple(planned)

    def _prepare(self, variant: Variant) -> Planned:
        source = self._source(variant)
        try:
            toolchain = self._toolchain(variant)
        except ToolchainError as error:
            if variant.required:
                raise
            return Planned(variant=variant, source=source, skipped=str(error))
        identity = identify(variant, source, toolchain, self._option_digests(variant))
        return Planned(variant=variant, source=source, identity=identity, toolchain=toolchain)

    def plan(self) -> tuple[Entry, ...]:
        """What a build would find and do. Nothing is compiled; generations are verified and released again."""
        entries = []
        for planned in self.prepare():
            if planned.identity is None:
                entries.append(Entry(planned=planned, status="skipped", reason=planned.skipped))
                continue
            found = self._find(planned.identity)
            if isinstance(found, Miss):
                entries.append(Entry(planned=planned, status="miss", reason=found.reason))
            else:
                found.close()
                entries.append(Entry(planned=planned, status="hit"))
        return tuple(entries)

    def build(self) -> Build:
        """Bring every selected variant into the store.

        Returns:
            All entries, failed ones too (see `Build.raise_for_failures`).

        Raises:
            EpctxError: sources, toolchains or the store are unfit; nothing was compiled.
        """
        planned = self.prepare()
        jobs = max(1, min(self.project.environment.jobs, len(planned)))
        pool = ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="epctx")
        futures: list[Future[Entry]] = []
        try:
            futures = [pool.submit(self._entry, item) for item in planned]
            entries = tuple(future.result() for future in futures)
        except BaseException:
            for future in futures:
                future.cancel()
            kill_workers()
            pool.shutdown(wait=True)
            for future in futures:
                if future.done() and not future.cancelled() and future.exception() is None:
                    generation = future.result().generation
                    if generation is not None:
                        generation.close()
            raise
        pool.shutdown()
        return Build(project=self.project, entries=entries)

    def _entry(self, planned: Planned) -> Entry:
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

    def _obtain(self, planned: Planned) -> Entry:
        """A leased generation of this variant: found, or compiled from the source as it is now."""
        variant = planned.variant
        for _ in range(ATTEMPTS):
            try:
                return self._attempt(planned)
            except SourceChangedError as changed:
                self._report(variant, f"{changed}; trying again")
                planned = self._prepare(variant)
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
        cacheable = not identity.uncertain

        def waiting(owner: str) -> None:
            self._report(variant, f"waiting for {owner}, which compiles the same identity {identity.short}")

        with self.store.lock(identity.digest, on_wait=waiting):
            found = self._find(identity)
            if not isinstance(found, Miss):
                self._report(variant, f"hit {identity.short}")
                self._remember(planned)
                return Entry(planned=planned, status="hit", generation=found)
            self._refuse_offline(variant, found)
            self._report(variant, f"compiling {identity.short} ({found.reason})")
            with self.store.staging() as staging:
                start = time.monotonic()
                compiled = compiling.compile_variant(variant, source, staging.path)
                self._unchanged(planned)
                record = Record(
                    identity=identity.digest,
                    document=dict(identity.document),
                    artifacts=compiled.artifacts,
                    result=compiled.facts,
                )
                generation = self.store.publish(staging, record, select=cacheable)
            self._remember(planned)
        self._report(variant, f"compiled {identity.short} in {time.monotonic() - start:.1f} s")
        reason = found.reason if cacheable else f"not cacheable: {'; '.join(identity.uncertain)}"
        if generation.warning:
            self._report(variant, f"warning: {generation.warning}")
        return Entry(planned=planned, status="compiled", reason=reason, generation=generation)

    def _find(self, identity: Identity) -> Generation | Miss:
        if identity.uncertain:
            return Miss(reason=f"not cacheable: {'; '.join(identity.uncertain)}")
        return self.store.find(identity.digest)

    def _refuse_offline(self, variant: Variant, miss: Miss) -> None:
        if self.project.environment.offline:
            raise CompileError(
                f"no usable generation in the store ({miss.reason}) and EPCTX_OFFLINE is set",
                where=variant.name,
                remedy="Build once without EPCTX_OFFLINE, or point EPCTX_CACHE_DIR at the store that holds it.",
                reason="offline",
            )

    def _unchanged(self, planned: Planned) -> None:
        """Refuse a compile whose identity is stale by now."""
        with self._guard:
            self._toolchains.clear()
        now = self._prepare(planned.variant).identity
        if now is None or planned.identity is None or now.digest != planned.identity.digest:
            raise SourceChangedError("the source or its toolchain changed meanwhile", reason="source-changed")

    def _remember(self, planned: Planned) -> None:
        """Keep this identity as the variant's last one, for `explain`."""
        if planned.identity is not None:
            value = {"identity": planned.identity.digest, "document": dict(planned.identity.document)}
            self.store.remember("last", self.last_key(planned.variant), value)

    def last_key(self, variant: Variant) -> str:
        """Where the store remembers the variant's last identity: by project and variant name, not by folder."""
        return digest_bytes(f"{self.project.name}/{variant.name}".encode())

    def last(self, variant: Variant) -> tuple[str, Mapping[str, Any]] | None:
        """(identity, document) of the variant's last build on this machine."""
        value = self.store.recall("last", self.last_key(variant))
        if value is None or not isinstance(value.get("document"), dict):
            return None
        return str(value.get("identity", "")), value["document"]

    def _source(self, variant: Variant) -> SourceModel:
        place = f"tool.epctx.models.{variant.model}.source"

        def scan(path: Path) -> ScannedModel:
            with self.store.staging() as staging:
                return compiling.scan(path, staging.path, place=place)

        return read_source(variant.source, place=place, store=self.store, scan=scan)

    def _toolchain(self, variant: Variant) -> Toolchain:
        provider = variant.provider
        key = (provider.key, variant.device, variant.requires, tuple(sorted(variant.env.items())))
        with self._guard:
            if key not in self._toolchains:
                self._toolchains[key] = discover(
                    provider,
                    variant.device,
                    digest=self.store.digest,
                    probe=lambda components: self._probe(variant, components),
                    requires=variant.requires,
                    where=f"tool.epctx.targets.{variant.base_target}",
                )
            return self._toolchains[key]

    def _probe(self, variant: Variant, components: str) -> list[ProbedDevice]:
        """Devices of the EP; a CPU's answer is remembered by EP libraries and machine, a driver's never."""
        provider = variant.provider
        key = digest_entries([("components", components), ("machine", machine_key()), ("ep", provider.names[0])])
        if variant.device == "cpu" and not variant.env and (known := self.store.recall("probe", key)):
            return list(known["devices"])
        with self.store.staging() as staging:
            place = f"tool.epctx.targets.{variant.base_target}.ep"
            devices = compiling.probe(provider, variant.device, staging.path, env=variant.env, place=place)
        if variant.device == "cpu" and not variant.env:
            self.store.remember("probe", key, {"devices": devices})
        return devices

    def _option_digests(self, variant: Variant) -> dict[str, str]:
        options: Iterable[OptionValue] = (*variant.provider_options, *variant.runtime_options)
        return {option.name: self._option_digest(option) for option in options if option.is_path}

    def _option_digest(self, option: OptionValue) -> str:
        if option.file is not None:
            return self.store.digest(option.file)
        folder = option.folder
        if folder is None:
            raise ModelError(f"option {option.name} names no file", reason="missing-option-file")
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return digest_entries((path.relative_to(folder).as_posix(), self.store.digest(path)) for path in files)


def providers_of(variants: Iterable[Variant]) -> tuple[Provider, ...]:
    """The EPs that the variants use, each once, in order of first use."""
    return tuple({variant.provider.key: variant.provider for variant in variants}.values())
