"""The executor of one build: where compiles, load checks and checks run, here or on a remote-execution service.

On a service (``executor = "reapi"``) the worker, ONNX Runtime and the EP go along as inputs of the action: the EP's
files must be importable on this machine, none of its code runs here. An EP that bakes facts of the compiling machine
into its output is asked about them there, once for each kind of worker that the platform properties name; the answer
is remembered, so that a build of hits asks nothing. A worker on a machine of another kind refuses, and the next
build asks anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast, final

from hatch_epctx import compile as compiling
from hatch_epctx.digest import digest_bytes
from hatch_epctx.errors import CompileError, ConfigError, ToolchainError
from hatch_epctx.identity import canonical
from hatch_epctx.remote import open_workers, read_endpoint
from hatch_epctx.toolchain import Host, demands_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hatch_epctx.compile import Run
    from hatch_epctx.config import Project, Variant
    from hatch_epctx.pipeline.records import Planned
    from hatch_epctx.process import Outcome
    from hatch_epctx.remote.workers import RemoteWorkers
    from hatch_epctx.store import Store
    from hatch_epctx.worker.protocol import Job, ProbedDevice

__all__ = ["Farm", "remote_url"]

_KIND: Final = "farm"
_OTHER: Final = "other-machine"


def remote_url(project: Project) -> tuple[str, str]:
    """The remote cache's URL, empty where there is none, and the dotted place or variable that it stands in."""
    own = project.environment.remote_cache
    if own is not None:
        return own, "EPCTX_REMOTE_CACHE"
    return project.settings.cache.remote or "", project.settings.place("cache", "remote")


@final
class Farm:
    """The executor of one pipeline. Any thread may use it.

    Args:
        project: says where compiles run.
        store: remembers what the service's machines are.

    Raises:
        ConfigError: compiles are to run on a service, and none is named, or its URL or environment is wrong.
    """

    def __init__(self, project: Project, store: Store) -> None:
        self._store = store
        self._workers: RemoteWorkers | None = None
        self._offline = project.environment.offline
        if project.settings.executor != "reapi":
            return
        url, where = remote_url(project)
        endpoint = read_endpoint(url, project.environment.remote, where=where) if url else None
        if endpoint is None or not endpoint.scheme.startswith("grpc"):
            raise ConfigError(
                f"found {'reapi' if endpoint is None else f'reapi, and {endpoint.name} in {where}'}",
                where=project.settings.place("executor"),
                expected="a grpc:// or grpcs:// URL in tool.epctx.cache.remote or EPCTX_REMOTE_CACHE: the service that "
                "keeps results executes too",
                reason="no-executor",
            )
        for variant in project.variants:
            if variant.ep_cache is not None:
                raise ConfigError(
                    "the EP's cache is filled where the build runs, and compiles are to run on an executor",
                    where=f"tool.epctx.targets.{variant.base_target}.ep-cache",
                    remedy='Remove it, or build this target with executor = "local".',
                    reason="executor-cache",
                )
        self._workers = open_workers(endpoint, project.environment.remote, digest=store.digest, where=where)

    @property
    def name(self) -> str:
        """The service in messages; empty where compiles run here."""
        return self._workers.name if self._workers else ""

    @property
    def round_trips(self) -> Mapping[str, int]:
        """Requests of the workers that run now, by method."""
        return self._workers.round_trips if self._workers else {}

    def runner(self, planned: Planned, *, fresh: bool = False) -> Run:
        """What runs the workers that need the variant's EP; `fresh`: even where the service has a result."""
        workers, toolchain = self._workers, planned.toolchain
        if workers is None or toolchain is None or planned.variant.is_source:
            return compiling.run
        variant, demands = planned.variant, demands_of(toolchain)

        def run(
            job: Job,
            folder: Path,
            *,
            timeout: float,
            env: Mapping[str, str],
            memory: int | None = None,  # noqa: ARG001  # a limit of local processes
        ) -> Outcome:
            outcome = workers.run(
                job, folder, timeout=timeout, env=env, provider=variant.provider, machine=demands, fresh=fresh
            )
            if (outcome.result or {}).get("reason") == _OTHER:
                self._forget(variant)
            return outcome

        return run

    def hardware(self, variant: Variant) -> Hardware | None:
        """Asks the service's machines what an identity holds of them; None where this machine compiles."""
        return Hardware(self._store, self._workers, variant, offline=self._offline) if self._workers else None

    def close(self) -> None:
        """End what is under way."""
        if self._workers is not None:
            self._workers.close()

    def _forget(self, variant: Variant) -> None:
        if self._workers is not None:
            self._store.remember(_KIND, _key(self._workers, variant), {})


@final
class Hardware:
    """What the machines of a service are, for one target.

    Args:
        store: remembers.
        workers: run there.
        variant: of the target.
        offline: only what is remembered counts.
    """

    def __init__(self, store: Store, workers: RemoteWorkers, variant: Variant, *, offline: bool) -> None:
        self._store = store
        self._workers = workers
        self._variant = variant
        self._offline = offline
        self._known: dict[str, Any] = {}

    def host(self, components: str) -> Host:
        """The machine.

        Raises:
            CompileError, ToolchainError: it cannot be asked.
        """
        return Host.from_document(self._facts(components)["host"])

    def devices(self, components: str) -> Sequence[ProbedDevice]:
        """Devices that the EP shows there.

        Raises:
            CompileError, ToolchainError: it cannot be asked.
        """
        return cast("list[ProbedDevice]", self._facts(components)["devices"])

    def _facts(self, components: str) -> dict[str, Any]:
        if self._known:
            return self._known
        variant, key = self._variant, _key(self._workers, self._variant)
        known = self._store.recall(_KIND, key) or {}
        # A driver changes without anything else changing; a CPU does not.
        if known.get("components") != components or variant.device != "cpu" or not _is_whole(known):
            known = self._ask(components)
            self._store.remember(_KIND, key, known)
        self._known = known
        return known

    def _ask(self, components: str) -> dict[str, Any]:
        variant = self._variant
        place = f"tool.epctx.targets.{variant.base_target}.ep"
        if self._offline:
            raise ToolchainError(
                f"the machines of {self._workers.name} are not known here, and EPCTX_OFFLINE is set",
                where=place,
                remedy="Build once without EPCTX_OFFLINE.",
                reason="offline",
            )
        with self._store.staging() as staging:
            devices, extra = compiling.probe_with(
                self._run, variant.provider, variant.device, staging.path, env=variant.env, place=place
            )
        try:
            host = Host.from_document(extra.get("machine"))
        except ValueError as error:
            raise CompileError(f"the executor {self._workers.name}: {error}", where=place, reason="executor") from error
        return {"components": components, "host": host.document(), "devices": devices}

    def _run(
        self,
        job: Job,
        folder: Path,
        *,
        timeout: float,
        env: Mapping[str, str],
        memory: int | None = None,  # noqa: ARG002  # a limit of local processes
    ) -> Outcome:
        # Fresh: a service that answers from its cache may speak of a machine that it has no longer.
        provider = self._variant.provider
        return self._workers.run(job, folder, timeout=timeout, env=env, provider=provider, machine={}, fresh=True)


def _is_whole(known: Mapping[str, Any]) -> bool:
    try:
        Host.from_document(known.get("host"))
    except ValueError:
        return False
    return isinstance(known.get("devices"), list)


def _key(workers: RemoteWorkers, variant: Variant) -> str:
    document = {
        "service": workers.name,
        "platform": workers.platform,
        "python": workers.python,
        "ep": variant.provider.names[0],
        "device": variant.device,
        "env": dict(variant.env),
    }
    return digest_bytes(canonical(document))
