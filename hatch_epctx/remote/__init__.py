"""The remote cache: entries by identity, over the Remote Execution API v2 or Bazel's HTTP cache.

    with open_remote("grpc://cache.example:8980/main", mode="read-write", environ=os.environ, warn=print) as remote:
        fetched = remote.fetch(identity, folder)       # None: compile, and then
        remote.push(identity, record, artifacts)

`endpoint` reads URL and environment, `entry` says what stands in the cache, `client` holds the rules of a build,
`reapi` (with `wire`, `bytestream`, `zstd`) and `web` speak the two protocols, `runner` bounds calls at one time,
`executor` (with `action`) runs a command on the same servers and `workers` a worker. Importing this package imports
neither protobuf nor grpcio; grpcio is needed for ``grpc://`` and ``grpcs://`` alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hatch_epctx.errors import ToolchainError
from hatch_epctx.remote.endpoint import read_endpoint
from hatch_epctx.remote.transport import RoundTrips

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hatch_epctx.remote.client import Mode, Remote
    from hatch_epctx.remote.endpoint import Endpoint
    from hatch_epctx.remote.transport import Transport
    from hatch_epctx.remote.workers import RemoteWorkers

__all__ = ["examine_remote", "open_remote", "open_workers", "read_endpoint"]


def open_remote(
    url: str,
    *,
    mode: Mode,
    environ: Mapping[str, str],
    warn: Callable[[str], None],
    where: str = "tool.epctx.cache.remote",
) -> Remote:
    """A client for the cache at `url`. Nothing is contacted yet.

    Args:
        url: ``grpc://``, ``grpcs://``, ``http://`` or ``https://``; see `endpoint`.
        mode: "read-write", or "read-only": look-ups alone.
        environ: the process's environment: headers, TLS files, limits; see `endpoint`.
        warn: takes one line for the user, from any thread.
        where: dotted place of the URL, for messages.

    Raises:
        ConfigError: URL or environment are wrong.
        ToolchainError: a library for this protocol is not installed.
    """
    endpoint = read_endpoint(url, environ, where=where)
    round_trips = RoundTrips()
    transport = _transport(endpoint, round_trips, where)
    client = import_module("hatch_epctx.remote.client")
    remote: Remote = client.Remote(endpoint, transport, round_trips, mode=mode, warn=warn)
    return remote


def examine_remote(url: str, *, environ: Mapping[str, str], where: str) -> dict[str, Any]:
    """Ask the cache at `url` once what it does; see `looking.look_at`.

    Raises:
        ConfigError, ToolchainError: as `open_remote`.
    """
    endpoint = read_endpoint(url, environ, where=where)
    look: Callable[..., dict[str, Any]] = import_module("hatch_epctx.remote.looking").look_at
    return look(endpoint, lambda found, trips: _transport(found, trips, where))


def open_workers(
    endpoint: Endpoint, environ: Mapping[str, str], *, digest: Callable[[Path], str], where: str
) -> RemoteWorkers:
    """Workers on the service at `endpoint`; see `workers.RemoteWorkers`. Nothing is contacted yet.

    Raises:
        ConfigError: the environment is wrong.
        ToolchainError: grpcio is not installed.
    """
    try:
        kind = import_module("hatch_epctx.remote.workers").RemoteWorkers
    except ImportError as error:
        raise _missing(endpoint, error, where) from error
    workers: RemoteWorkers = kind(endpoint, environ, digest=digest)
    return workers


def _transport(endpoint: Endpoint, round_trips: RoundTrips, where: str) -> Transport:
    module, name = ("reapi", "Reapi") if endpoint.scheme.startswith("grpc") else ("web", "Web")
    try:
        kind = getattr(import_module(f"hatch_epctx.remote.{module}"), name)
    except ImportError as error:
        raise _missing(endpoint, error, where) from error
    transport: Transport = kind(endpoint, round_trips)
    return transport


def _missing(endpoint: Endpoint, error: ImportError, where: str) -> ToolchainError:
    return ToolchainError(
        f"{endpoint.name} needs {error.name or 'a library'}, which is not installed",
        where=where,
        remedy='Install it with: pip install "hatch-epctx[reapi]"',
        reason="missing-library",
    )
