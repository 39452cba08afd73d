"""Compiling again and again in fresh folders, and comparing bit for bit what comes out.

An EP whose compile depends on addresses, on the order of threads or on chance gives other bytes for the same identity.
The store and epctx.lock keep what was compiled once; this finds out who needs them. That a variant is not reproducible
is remembered under its identity for good, and its manifest says so from then on; that it was reproducible is no proof
and is said nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from hatch_epctx.digest import CHUNK
from hatch_epctx.errors import EpctxError, ModelError
from hatch_epctx.files import open_regular
from hatch_epctx.pipeline.progress import signs_of_life
from hatch_epctx.pipeline.publishing import compile_unit
from hatch_epctx.pipeline.records import units_of
from hatch_epctx.pipeline.unstable import remember_unstable
from hatch_epctx.source import SourceChangedError
from hatch_epctx.store import Miss

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from hatch_epctx.identity import Identity
    from hatch_epctx.pipeline.farming import Farm
    from hatch_epctx.pipeline.progress import Report
    from hatch_epctx.pipeline.records import Planned
    from hatch_epctx.store import Artifact, Store

__all__ = ["Difference", "Reproduced", "reproduce"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two files that should be one. Sizes are bytes; None where one compile wrote no such file."""

    role: str
    """model, context, weights and so on."""
    number: int
    """Which one of its role, from 1."""
    first: int | None
    other: int | None
    offset: int
    """Of the first byte that differs."""
    count: int
    """Bytes that differ; of files of different sizes, those beyond the shorter one too."""

    def __str__(self) -> str:
        if self.first is None or self.other is None:
            return f"{self.role} {self.number}: only one compile wrote it"
        sizes = f"{self.first:,} bytes" if self.first == self.other else f"{self.first:,} and {self.other:,} bytes"
        return f"{self.role} {self.number} ({sizes}) differs from byte {self.offset:,} on, in {self.count:,} bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduced:
    """What several compiles of one unit gave."""

    variants: tuple[str, ...]
    """One variant, or the members of a group."""
    identity: Identity | None
    differences: tuple[Difference, ...] = ()
    """Of the first compile that differs from the first one, the first file foremost."""
    stored: str = ""
    """same, different: the generation in the store, against the first compile; empty where there is none."""
    skipped: str = ""
    error: EpctxError | None = None


def reproduce(
    planned: Iterable[Planned], store: Store, *, report: Report, farm: Farm, runs: int = 2
) -> Iterator[Reproduced]:
    """Compile each unit `runs` times and compare; nothing is published, and no result is opened.

    Raises:
        StoreError: no folder to compile in can be made.
    """
    for unit in units_of(tuple(planned)):
        yield _reproduced(unit, store, report=report, farm=farm, runs=runs)


def _reproduced(unit: Sequence[Planned], store: Store, *, report: Report, farm: Farm, runs: int) -> Reproduced:
    planned = unit[0]
    names, identity = tuple(item.variant.name for item in unit), planned.identity
    if identity is None:
        return Reproduced(variants=names, identity=None, skipped=planned.skipped)
    try:
        with store.staging() as first:
            report(planned.variant, f"compiling {identity.short}, 1 of {runs}")
            artifacts = _compile(planned, first.path, report, farm)
            stored = _against_store(store, identity, artifacts)
            for number in range(2, runs + 1):
                with store.staging() as other:
                    report(planned.variant, f"compiling {identity.short}, {number} of {runs}")
                    again = _compile(planned, other.path, report, farm)
                    found = tuple(_compare(first.path, artifacts, other.path, again))
                if found:
                    remember_unstable(store, identity.digest)
                    return Reproduced(variants=names, identity=identity, differences=found, stored=stored)
    except SourceChangedError as error:
        changed = ModelError(str(error), where=planned.variant.name, reason="source-changed")
        return Reproduced(variants=names, identity=identity, error=changed)
    except EpctxError as error:
        return Reproduced(variants=names, identity=identity, error=error)
    return Reproduced(variants=names, identity=identity, stored=stored)


def _compile(planned: Planned, folder: Path, report: Report, farm: Farm) -> tuple[Artifact, ...]:
    variant, group = replace(planned.variant, load_check=False), planned.variant.group
    if group is not None:
        members = tuple(replace(member, load_check=False) for member in group.members)
        variant = replace(variant, group=replace(group, members=members))
    with signs_of_life(report, variant):
        return compile_unit(replace(planned, variant=variant), folder, farm.runner(planned, fresh=True)).artifacts


def _against_store(store: Store, identity: Identity, artifacts: tuple[Artifact, ...]) -> str:
    found = store.find(identity.digest)
    if isinstance(found, Miss):
        return ""
    with found:
        return "same" if set(found.record.artifacts) == set(artifacts) else "different"


def _compare(
    folder: Path, artifacts: Sequence[Artifact], other_folder: Path, others: Sequence[Artifact]
) -> Iterator[Difference]:
    """Differences by role: names of files are made of their content, so that the order in which they stand counts.

    Context binaries first: an ONNX file that refers to another one differs for that reason alone.
    """
    roles = sorted({item.role for item in (*artifacts, *others)}, key=lambda role: (role == "model", role))
    for role in roles:
        pairs = zip_longest(*([item for item in found if item.role == role] for found in (artifacts, others)))
        for number, (one, two) in enumerate(pairs, start=1):
            if one is None or two is None:
                sizes = (one.size if one else None, two.size if two else None)
                count = max(size or 0 for size in sizes)
                yield Difference(role=role, number=number, first=sizes[0], other=sizes[1], offset=0, count=count)
            elif one.digest != two.digest:
                offset, count = _first_difference(folder / one.path, other_folder / two.path)
                yield Difference(role=role, number=number, first=one.size, other=two.size, offset=offset, count=count)


def _first_difference(one: Path, two: Path) -> tuple[int, int]:
    """(offset of the first byte that differs, number of bytes that differ)."""
    offset, count, position = -1, 0, 0
    with open_regular(one) as first, open_regular(two) as second:
        while True:
            parts = first.read(CHUNK), second.read(CHUNK)
            longest = max(map(len, parts))
            if not longest:
                return offset, count
            if parts[0] != parts[1]:
                unlike = [index for index, (a, b) in enumerate(zip(*parts, strict=False)) if a != b]
                beyond = longest - min(map(len, parts))
                if offset < 0:
                    offset = position + (unlike[0] if unlike else min(map(len, parts)))
                count += len(unlike) + beyond
            position += longest
