"""Giving variants their identities: sources, toolchains and option files are read, nothing is compiled.

A variant's identity is asked for twice, before its compile and after it, so that what changed meanwhile is never
published under a stale identity.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx import compile as compiling
from hatch_epctx.digest import digest_entries
from hatch_epctx.errors import EpctxError, ModelError, ToolchainError
from hatch_epctx.identity import document_of, identify, identify_group
from hatch_epctx.pipeline.locking import borrowed_preparation, borrowed_toolchain, with_locked_hardware
from hatch_epctx.pipeline.records import Member, Planned, raise_all
from hatch_epctx.source import (
    SourceChangedError,
    SourceModel,
    digest_inputs,
    digest_option,
    read_custom_ops,
    read_source,
)
from hatch_epctx.toolchain import Toolchain, discover, is_installed, machine_key, read_preparation
from hatch_epctx.worker.dimensions import dimension_fault, input_shape_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from hatch_epctx.config import Variant
    from hatch_epctx.identity import Identity
    from hatch_epctx.lockfile import Lock
    from hatch_epctx.pipeline.farming import Farm
    from hatch_epctx.store import Store
    from hatch_epctx.worker.protocol import ProbedDevice, ScannedModel

__all__ = ["Preparer"]

_READS: Final = 3
"""Readings of one model that keeps changing."""


class Preparer:
    """Reads what identities are made of, through the store's memory of digests and facts. Any thread may use it.

    Args:
        store: remembers digests and facts.
        lock: gives the toolchain of an EP that is not here (see `locking`).
        farm: where compiles run; on this machine when left out.
    """

    def __init__(self, store: Store, lock: Lock | None = None, *, farm: Farm | None = None) -> None:
        self._store = store
        self._lock = lock
        self._farm = farm
        self._toolchains: dict[tuple[Any, ...], Toolchain] = {}
        self._guard = threading.Lock()

    def prepare_all(self, variants: Iterable[Variant]) -> tuple[Planned, ...]:
        """Identities of `variants`. Each model is read once.

        Raises:
            EpctxError: what is wrong with sources, options and toolchains, all of it at once and each thing once.
        """
        asked = time.monotonic()
        planned: list[Planned] = []
        errors: dict[str, EpctxError] = {}
        sources: dict[str, SourceModel | EpctxError] = {}
        for variant in variants:
            try:
                planned.append(self._planned(variant, sources, asked))
            except EpctxError as error:
                errors.setdefault(str(error), error)
        raise_all(list(errors.values()), "before anything was compiled")
        return tuple(planned)

    def prepare(self, variant: Variant) -> Planned:
        """Identity of `variant` as things are now, but for toolchains that are known since `forget_toolchains`.

        Raises:
            EpctxError: its source or an option's file is unfit, or its toolchain is and the target is required.
        """
        asked = time.monotonic()
        return self._planned(variant, {}, asked)

    def confirm(self, planned: Planned) -> None:
        """Read everything anew, toolchains too.

        Raises:
            SourceChangedError: the identity of `planned` is stale.
        """
        self.forget_toolchains()
        now = self.prepare(planned.variant).identity
        if now is None or planned.identity is None or now.digest != planned.identity.digest:
            raise SourceChangedError("the source or its toolchain changed meanwhile", reason="source-changed")

    def _planned(self, variant: Variant, sources: dict[str, SourceModel | EpctxError], asked: float) -> Planned:
        """The identity of `variant`; `sources` remembers models that were read, or why they could not be."""
        source = self._remembered(variant, sources)
        _check_dimensions(variant, source)
        of_group = variant.group.members if variant.group else ()
        members = tuple(
            Member(source=self._remembered(member, sources), calibration=self._calibration(member))
            for member in of_group
        )
        try:
            toolchain, borrowed = self._toolchain(variant)
        except ToolchainError as error:
            if variant.required:
                raise
            return Planned(variant=variant, source=source, members=members, skipped=str(error), asked=asked)
        digests = self._option_digests(variant)
        check_inputs = variant.check.inputs if variant.check else None
        return Planned(
            variant=variant,
            source=source,
            members=members,
            identity=self._identity(variant, source, members, toolchain, digests, borrowed=borrowed),
            toolchain=toolchain,
            option_digests=digests,
            calibration=self._calibration(variant),
            check_inputs=self._inputs(check_inputs, place=f"tool.epctx.models.{variant.model}.check.inputs"),
            borrowed=borrowed,
            asked=asked,
        )

    def _identity(
        self,
        variant: Variant,
        source: SourceModel,
        members: tuple[Member, ...],
        toolchain: Toolchain,
        digests: Mapping[str, str],
        *,
        borrowed: bool,
    ) -> Identity:
        def steps(member: Variant) -> Sequence[Mapping[str, Any]]:
            return self._preparation(variant, member, borrowed=borrowed)

        if variant.group is None:
            calibration = self._calibration(variant)
            return identify(variant, source, toolchain, digests, preparation=steps(variant), calibration=calibration)
        documents = [
            document_of(
                member, read.source, toolchain, digests, preparation=steps(member), calibration=read.calibration
            )
            for member, read in zip(variant.group.members, members, strict=True)
        ]
        return identify_group(documents, toolchain)

    def _preparation(self, variant: Variant, member: Variant, *, borrowed: bool) -> Sequence[Mapping[str, Any]]:
        """The steps of model preparation of `variant`, or of a member of its group, with their libraries.

        Where nothing can be compiled, those of the lock.
        """
        locked = borrowed_preparation(self._lock, variant, member) if borrowed else None
        return (
            read_preparation(member.prepare, where=f"tool.epctx.models.{member.model}.prepare")
            if locked is None
            else locked
        )

    def _calibration(self, variant: Variant) -> str | None:
        return self._inputs(variant.calibration, place=f"tool.epctx.models.{variant.model}.calibration")

    def _inputs(self, path: Path | None, *, place: str) -> str | None:
        """Digest of a file of inputs, where one is named."""
        return None if path is None else digest_inputs(path, place=place, digest=self._store.digest)

    def forget_toolchains(self) -> None:
        """Look at every toolchain anew when it is next needed."""
        with self._guard:
            self._toolchains.clear()

    def _remembered(self, variant: Variant, sources: dict[str, SourceModel | EpctxError]) -> SourceModel:
        if variant.model not in sources:
            try:
                sources[variant.model] = self.source(variant)
            except EpctxError as error:
                sources[variant.model] = error
        found = sources[variant.model]
        if isinstance(found, EpctxError):
            raise found
        return found

    def source(self, variant: Variant) -> SourceModel:
        """The variant's source model as it is now, with its libraries of custom operators.

        Raises:
            ModelError: it is missing, unfit, or keeps changing.
            ConfigError: a library is missing or cannot be read.
            ToolchainError: no installed distribution brings a module.
        """
        place = f"tool.epctx.models.{variant.model}"
        source = self.read(variant.source, place=f"{place}.source")
        libraries = read_custom_ops(variant.custom_ops, place=f"{place}.custom-ops", digest=self._store.digest)
        return replace(source, custom_ops=libraries) if libraries else source

    def read(self, source: Path, *, place: str) -> SourceModel:
        """The source model at `source` as it is now; `place` is where the configuration names it.

        Raises:
            ModelError: it is missing, unfit, or keeps changing.
        """

        def scan(path: Path, digest: str) -> ScannedModel:
            with self._store.staging() as staging:
                return compiling.scan(path, digest, staging.path, place=place)

        for _ in range(_READS):
            try:
                return read_source(source, place=place, store=self._store, scan=scan)
            except SourceChangedError:
                continue
        raise ModelError(
            f"{source.name} changed {_READS} times while it was being read",
            where=place,
            remedy="Let it come to rest and build again; nothing was compiled.",
            reason="source-changed",
        )

    def _toolchain(self, variant: Variant) -> tuple[Toolchain, bool]:
        """The toolchain, and whether it is borrowed from the lock because nothing can be compiled here."""
        locked = borrowed_toolchain(self._lock, variant)
        if locked is None:
            return self._discovered(variant), False
        if variant.is_source or not is_installed(variant.provider):
            return locked, not variant.is_source
        try:
            return self._discovered(variant), False
        except ToolchainError as error:
            if error.reason != "no-device":
                raise
        here = discover(variant.provider, variant.device, digest=self._store.digest, probe=None)
        return with_locked_hardware(locked, here), True

    def _discovered(self, variant: Variant) -> Toolchain:
        provider = variant.provider
        key = (provider.key, variant.device, variant.requires, variant.cores, tuple(sorted(variant.env.items())))
        hardware = self._farm.hardware(variant) if self._farm else None
        if hardware and variant.cores is not None:
            raise ToolchainError(
                "a compile on the executor is held to no number of cores",
                where=f"tool.epctx.targets.{variant.base_target}.cores",
                remedy="Remove it, and let EPCTX_REMOTE_PLATFORM choose workers of one kind.",
                reason="executor-cores",
            )
        with self._guard:
            if key not in self._toolchains:
                self._toolchains[key] = discover(
                    provider,
                    variant.device,
                    digest=self._store.digest,
                    probe=hardware.devices if hardware else lambda components: self._probe(variant, components),
                    requires=variant.requires,
                    cores=variant.cores,
                    where=f"tool.epctx.targets.{variant.base_target}",
                    host=hardware.host if hardware else None,
                )
            return self._toolchains[key]

    def _probe(self, variant: Variant, components: str) -> list[ProbedDevice]:
        """Devices of the EP; a CPU's answer is remembered by EP libraries and machine, a driver's never."""
        provider = variant.provider
        facts = [("components", components), ("machine", machine_key()), ("ep", provider.names[0])]
        # OpenVINO tells the range of its streams, which is that of the CPUs that the process may use.
        key = digest_entries([*facts, *([("cores", str(variant.cores))] if variant.cores is not None else [])])
        if variant.device == "cpu" and not variant.env and (known := self._store.recall("probe", key)):
            return list(known["devices"])
        with self._store.staging() as staging:
            place = f"tool.epctx.targets.{variant.base_target}.ep"
            devices = compiling.probe(
                provider, variant.device, staging.path, env=variant.env, cores=variant.cores, place=place
            )
        if variant.device == "cpu" and not variant.env:
            self._store.remember("probe", key, {"devices": devices})
        return devices

    def _option_digests(self, variant: Variant) -> dict[str, str]:
        place = f"tool.epctx.targets.{variant.base_target}"
        tables = (("provider-options", variant.provider_options), ("runtime-options", variant.runtime_options))
        return {
            option.name: digest_option(option, place=f"{place}.{table}.{option.name}", digest=self._store.digest)
            for table, options in tables
            for option in options
            if option.is_path
        }


def _check_dimensions(variant: Variant, source: SourceModel) -> None:
    """Refuse free dimensions and input shapes that the source cannot have, unless preparing it may give it others.

    Raises:
        ModelError: with the names and sizes that it has.
    """
    if variant.is_source or variant.prepare:
        return
    fault = dimension_fault(source.scan, variant.free_dimensions, variant.free_dimension_denotations)
    if fault:
        found, remedy = fault
        place = f"tool.epctx.models.{variant.model}"
        raise ModelError(found, where=place, remedy=remedy, reason="unknown-dimension")
    if unfit := input_shape_fault(source.scan["inputs"], variant.input_shapes):
        reason, found, remedy = unfit
        raise ModelError(found, where=f"tool.epctx.models.{variant.model}.input-shapes", remedy=remedy, reason=reason)
