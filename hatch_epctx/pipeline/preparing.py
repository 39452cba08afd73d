"""Giving variants their identities: sources, toolchains and option files are read, nothing is compiled.

A variant's identity is asked for twice, before its compile and after it, so that what changed meanwhile is never
published under a stale identity.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from hatch_epctx import compile as compiling
from hatch_epctx.digest import digest_entries
from hatch_epctx.errors import EpctxError, ModelError, ToolchainError
from hatch_epctx.identity import identify
from hatch_epctx.pipeline.records import Planned, raise_all
from hatch_epctx.source import SourceModel, read_source
from hatch_epctx.toolchain import Toolchain, discover, machine_key

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hatch_epctx.config import Variant
    from hatch_epctx.providers import OptionValue
    from hatch_epctx.store import Store
    from hatch_epctx.worker.protocol import ProbedDevice, ScannedModel

__all__ = ["Preparer"]


class Preparer:
    """Reads what identities are made of, through the store's memory of digests and facts. Any thread may use it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._toolchains: dict[tuple[Any, ...], Toolchain] = {}
        self._guard = threading.Lock()

    def prepare_all(self, variants: Iterable[Variant]) -> tuple[Planned, ...]:
        """Identities of `variants`.

        Raises:
            EpctxError: what is wrong with sources and toolchains, all of it at once.
        """
        planned: list[Planned] = []
        errors: list[EpctxError] = []
        broken: set[Path] = set()
        for variant in variants:
            try:
                planned.append(self.prepare(variant))
            except EpctxError as error:
                if isinstance(error, ModelError) and variant.source in broken:
                    continue  # said once already
                broken.add(variant.source)
                errors.append(error)
        raise_all(errors, "before anything was compiled")
        return tuple(planned)

    def prepare(self, variant: Variant) -> Planned:
        """Identity of `variant` as things are now, but for toolchains that are known since `forget_toolchains`.

        Raises:
            EpctxError: its source is unfit, or its toolchain is and the target is required.
        """
        source = self._source(variant)
        try:
            toolchain = self._toolchain(variant)
        except ToolchainError as error:
            if variant.required:
                raise
            return Planned(variant=variant, source=source, skipped=str(error))
        identity = identify(variant, source, toolchain, self._option_digests(variant))
        return Planned(variant=variant, source=source, identity=identity, toolchain=toolchain)

    def forget_toolchains(self) -> None:
        """Look at every toolchain anew when it is next needed."""
        with self._guard:
            self._toolchains.clear()

    def _source(self, variant: Variant) -> SourceModel:
        place = f"tool.epctx.models.{variant.model}.source"

        def scan(path: Path) -> ScannedModel:
            with self._store.staging() as staging:
                return compiling.scan(path, staging.path, place=place)

        return read_source(variant.source, place=place, store=self._store, scan=scan)

    def _toolchain(self, variant: Variant) -> Toolchain:
        provider = variant.provider
        key = (provider.key, variant.device, variant.requires, tuple(sorted(variant.env.items())))
        with self._guard:
            if key not in self._toolchains:
                self._toolchains[key] = discover(
                    provider,
                    variant.device,
                    digest=self._store.digest,
                    probe=lambda components: self._probe(variant, components),
                    requires=variant.requires,
                    where=f"tool.epctx.targets.{variant.base_target}",
                )
            return self._toolchains[key]

    def _probe(self, variant: Variant, components: str) -> list[ProbedDevice]:
        """Devices of the EP; a CPU's answer is remembered by EP libraries and machine, a driver's never."""
        provider = variant.provider
        key = digest_entries([("components", components), ("machine", machine_key()), ("ep", provider.names[0])])
        if variant.device == "cpu" and not variant.env and (known := self._store.recall("probe", key)):
            return list(known["devices"])
        with self._store.staging() as staging:
            place = f"tool.epctx.targets.{variant.base_target}.ep"
            devices = compiling.probe(provider, variant.device, staging.path, env=variant.env, place=place)
        if variant.device == "cpu" and not variant.env:
            self._store.remember("probe", key, {"devices": devices})
        return devices

    def _option_digests(self, variant: Variant) -> dict[str, str]:
        options: Iterable[OptionValue] = (*variant.provider_options, *variant.runtime_options)
        return {option.name: self._option_digest(option) for option in options if option.is_path}

    def _option_digest(self, option: OptionValue) -> str:
        if option.file is not None:
            return self._store.digest(option.file)
        folder = option.folder
        if folder is None:
            raise ModelError(f"option {option.name} names no file", reason="missing-option-file")
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return digest_entries((path.relative_to(folder).as_posix(), self._store.digest(path)) for path in files)
