"""Entries for the remote-cache tests: records and artifacts of any size, and a client that collects its warnings."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import rfc8785

from hatch_epctx.digest import digest_bytes
from hatch_epctx.remote import open_remote

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hatch_epctx.remote.client import Fetched, Remote

KIB, MIB = 1 << 10, 1 << 20

HASTY = {"EPCTX_REMOTE_RETRIES": "1"}
"""An environment for tests in which trouble lasts: it shows after a tenth of a second as well as after two."""


@dataclass
class Entry:
    """An identity with its record and its artifacts on disk."""

    identity: str
    record: bytes = field(repr=False)
    artifacts: list[tuple[str, Path, str, int]]
    data: dict[str, bytes] = field(repr=False)

    def same(self, fetched: Fetched | None) -> bool:
        """Whether `fetched` is this entry, byte for byte."""
        if fetched is None or fetched.record != self.record or fetched.identity != self.identity:
            return False
        return {item.name: item.path.read_bytes() for item in fetched.artifacts} == self.data


def make_entry(folder: Path, sizes: Mapping[str, int], *, seed: int = 1, squeezable: bool = False) -> Entry:
    """An entry with artifacts of these sizes in bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    noise = random.Random(f"{seed}{sorted(sizes.items())}")  # noqa: S311  # the same bytes in every run
    document = {"format": "epctx/1", "model": {"onnx": f"{seed:064x}"}, "target": {"ep": "stub", "options": {"a": 1.5}}}
    identity = digest_bytes(rfc8785.dumps(document))
    data, artifacts = {}, []
    for name, size in sizes.items():
        content = (b"abcd" * (size // 4 + 1))[:size] if squeezable else noise.randbytes(size)
        (folder / name).write_bytes(content)
        data[name] = content
        artifacts.append((name, folder / name, digest_bytes(content), size))
    listed = [{"role": "context", "path": n, "size": s, "digest": d} for n, _, d, s in artifacts]
    value: dict[str, Any] = {
        "identity": identity,
        "document": document,
        "artifacts": listed,
        "result": {"seconds": 1.25},
    }
    return Entry(identity, json.dumps(value, sort_keys=True).encode(), artifacts, data)


TYPICAL = {"detector.intel_ctx.onnx": 40 * KIB, f"sha256-{'0' * 32}.bin": 6 * MIB}
"""A small ONNX file and a context binary that is too big for a batch."""


@final
@dataclass
class Machine:
    """One machine of a fleet: its client, its warnings, its folder for fetched files."""

    url: str
    folder: Path
    mode: Any = "read-write"
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.warnings: list[str] = []
        self.folder.mkdir(parents=True, exist_ok=True)
        self.remote: Remote = open_remote(self.url, mode=self.mode, environ=self.environ, warn=self.warnings.append)
        self._count = 0

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remote.close()

    def push(self, entry: Entry) -> None:
        self.remote.push(entry.identity, entry.record, entry.artifacts)

    def fetch(self, entry: Entry) -> Fetched | None:
        """Fetch into a new folder; after a miss nothing may be left there."""
        self._count += 1
        folder = self.folder / f"fetch-{self._count}"
        folder.mkdir()
        fetched = self.remote.fetch(entry.identity, folder)
        if fetched is None:
            assert list(folder.iterdir()) == []
        return fetched

    def trips(self, entry: Entry) -> dict[str, int]:
        """Round trips of one hit."""
        before = Counter(self.remote.round_trips)
        assert entry.same(self.fetch(entry)), self.warnings
        return dict(Counter(self.remote.round_trips) - before)
