"""The remote cache in a build: asked between the store and a compile, given what was compiled here.

It is opened at the first miss, so that a build of hits touches no network and imports no gRPC. What comes from it is
published like a compile's result, after every digest and every fact of its record were checked. A shipped source is
neither asked for nor given: it is made of the model that is here anyway, without a compile.
"""

from __future__ import annotations

import threading
from collections import Counter
from random import SystemRandom
from typing import TYPE_CHECKING, Final, final

from hatch_epctx.compile import check_facts
from hatch_epctx.pipeline.farming import remote_url
from hatch_epctx.pipeline.progress import signs_of_life
from hatch_epctx.remote import open_remote, read_endpoint
from hatch_epctx.store import Marker, Record, marker_bytes, parse_marker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hatch_epctx.config import Project, Variant
    from hatch_epctx.identity import Identity
    from hatch_epctx.lockfile import LockedVariant
    from hatch_epctx.pipeline.progress import Report
    from hatch_epctx.pipeline.records import Planned
    from hatch_epctx.remote.client import Remote
    from hatch_epctx.store import Generation, Staging, Store

__all__ = ["RemoteCache"]

_RANDOM: Final = SystemRandom()
_NOWHERE: Final = "0" * 32
"""The generation in a pushed record: which one holds the artifacts is every store's own business."""
_RECORD_LIMIT: Final = 4 << 20
"""Bytes of a record; what is bigger would be refused by whoever fetches it."""


@final
class RemoteCache:
    """The remote cache of one pipeline. Any thread may use it.

    Args:
        project: names the cache, or none.
        store: where fetched generations go.
        report: told what goes on; trouble with the cache is a warning.
        client: an open client in place of the one that the project names; whoever opened it closes it,
            unless the build is stopped.

    Raises:
        ConfigError: the URL or the environment of the cache is wrong.
    """

    def __init__(self, project: Project, store: Store, *, report: Report, client: Remote | None = None) -> None:
        environment, declared = project.environment, project.settings.cache
        self._store = store
        self._report = report
        self._given = client
        self._environ = environment.remote
        self._mode = declared.remote_mode
        self._url, self._where = remote_url(project)
        if environment.offline and client is None:
            self._url = ""
        elif self._url:
            read_endpoint(self._url, self._environ, where=self._where)  # what is wrong with it is said at once
        self._client: Remote | None = None
        self._stopped = False
        self._guard = threading.Lock()
        self._trips: Counter[str] = Counter()

    @property
    def round_trips(self) -> dict[str, int]:
        """Requests so far by method; empty where the network was not touched."""
        with self._guard:
            client = self._client or self._given
            return dict(sorted((self._trips + Counter(client.round_trips if client else {})).items()))

    def in_turn(self, units: Sequence[tuple[Planned, ...]]) -> Sequence[tuple[Planned, ...]]:
        """The units in the order in which they are best begun.

        By chance where this build fills a cache that others fill too: machines that begin at once with the same unit
        would each compile everything (docs/scale.md).
        """
        if not self._url or self._mode != "read-write":
            return units
        return _RANDOM.sample(units, len(units))

    def fetch(self, unit: Sequence[Planned], identity: Identity) -> Generation | None:
        """The entry of `identity`, published and leased; None where it is not to be had.

        The caller holds the identity's lock.

        Raises:
            StoreError: the store cannot take it.
            ToolchainError: a library that this cache needs is not installed.
        """
        variant = unit[0].variant
        if identity.uncertain or variant.is_source or (client := self._open()) is None or not client.active:
            return None
        with self._store.staging() as staging:
            with signs_of_life(self._report, variant, f"still asking {client.name}"):
                fetched = client.fetch(identity.digest, staging.path)
            if fetched is None:
                return None
            try:
                record = parse_marker(fetched.record, identity.digest).record
                members = len(variant.group.members) if variant.group else 0
                check_facts(record.result, record.artifacts, members=members)
            except (ValueError, RecursionError) as error:
                self._warn(f"{client.name}: entry {identity.short}: {error}; taken as a miss")
                return None
            return self._store.publish(staging, record)

    def fetch_locked(self, variant: Variant, locked: LockedVariant, staging: Staging) -> bool:
        """Bring the artifacts that a lock names into `staging`, by their digests alone.

        Raises:
            ToolchainError: as `fetch`.
        """
        if variant.is_source or (client := self._open()) is None or not client.active:
            return False
        wanted = [(item.path, item.digest, item.size) for item in locked.artifacts]
        with signs_of_life(self._report, variant, f"still asking {client.name}"):
            return client.fetch_artifacts(wanted, staging.path) is not None

    def push(self, unit: Sequence[Planned], identity: Identity, record: Record, generation: Generation) -> None:
        """Keep what was compiled here in the cache, where its mode allows that. Trouble is a warning."""
        variant = unit[0].variant
        if identity.uncertain or variant.is_source or (client := self._open()) is None or not client.writes:
            return
        data = marker_bytes(Marker(generation=_NOWHERE, record=record))
        if len(data) > _RECORD_LIMIT:
            self._warn(f"{client.name}: entry {identity.short}: its record has {len(data):,} bytes; not pushed")
            return
        artifacts = [(item.path, generation.file(item), item.digest, item.size) for item in record.artifacts]
        with signs_of_life(self._report, variant, f"still pushing to {client.name}"):
            pushed = client.push(identity.digest, data, artifacts)
        if pushed:
            self._report(variant, f"pushed {identity.short} to {client.name}")

    def stop(self) -> None:
        """End all that is under way, and ask no more."""
        with self._guard:
            self._stopped = True
        self.close()

    def close(self) -> None:
        """Close the connections, which ends what is under way; a later question opens them again."""
        with self._guard:
            client, self._client = self._client, None
        if client is not None:
            client.close()
            with self._guard:
                self._trips += Counter(client.round_trips)
        if self._given is not None and self._stopped:
            self._given.close()

    def _open(self) -> Remote | None:
        with self._guard:
            if self._stopped:
                return None
            if self._given is None and self._client is None and self._url:
                self._client = open_remote(
                    self._url, mode=self._mode, environ=self._environ, warn=self._warn, where=self._where
                )
            return self._given or self._client

    def _warn(self, text: str) -> None:
        self._report(None, f"warning: {text}")
