"""Where the remote cache is and how to speak to it: the URL and the environment.

URL: ``grpc://host:port/instance``, ``grpcs://host[:port]/instance`` (Remote Execution API v2; the path is the instance
name, often empty), ``http://host[:port]/prefix``, ``https://host[:port]/prefix`` (Bazel's HTTP cache). Secrets are
taken from the environment alone, for a URL stands in pyproject.toml:

- ``EPCTX_REMOTE_HEADER_<NAME>``: a header, or gRPC metadata entry, of every call; ``_`` in the name becomes ``-``:
  ``EPCTX_REMOTE_HEADER_AUTHORIZATION="Bearer ..."``, ``EPCTX_REMOTE_HEADER_X_API_KEY=...``
- ``EPCTX_REMOTE_TLS_CA``: PEM file of the authorities to trust instead of the system's
- ``EPCTX_REMOTE_TLS_CERT`` and ``EPCTX_REMOTE_TLS_KEY``: PEM files of the client's certificate and its key
- ``EPCTX_REMOTE_TIMEOUT``: seconds of one call, 30 by default; a transfer gets one second more for every MiB
- ``EPCTX_REMOTE_RETRIES``: further attempts of a call that met passing trouble, 3 by default
- ``EPCTX_REMOTE_CONNECTIONS``: calls at one time, 8 by default
- ``EPCTX_REMOTE_MAX_SIZE``: bytes of one entry, 16 GiB by default; a bigger one is a miss

Headers go out over ``grpc://`` and ``http://`` too, readable for the network: that is for loopback and tunnels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast
from urllib.parse import SplitResult, unquote, urlsplit

from hatch_epctx.errors import ConfigError, suggest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Endpoint", "Scheme", "read_endpoint"]

Scheme = Literal["grpc", "grpcs", "http", "https"]

SCHEMES: Final = ("grpc", "grpcs", "http", "https")
MIN_RATE: Final = 1 << 20
"""Bytes per second: a transfer that is slower on the whole is given up."""

_PORTS: Final = {"grpcs": 443, "http": 80, "https": 443}
_HEADER_PREFIX: Final = "EPCTX_REMOTE_HEADER_"
_HEADER: Final = re.compile(r"[a-z0-9][a-z0-9-]*")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")
_EXAMPLE: Final = "a URL such as grpc://cache.example:8980/instance or https://cache.example/prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One remote cache, checked, with no secret in its `name`."""

    scheme: Scheme
    host: str
    port: int
    path: str
    """Instance name, or prefix of all paths; no slash at either end."""
    headers: tuple[tuple[str, str], ...] = ()
    """Lower-case names, sorted."""
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    timeout: float = 30.0
    """Seconds of one call."""
    retries: int = 3
    """Further attempts after the first."""
    connections: int = 8
    max_size: int = 16 << 30
    """Bytes of one entry."""

    @property
    def authority(self) -> str:
        """``host:port``, an IPv6 address in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def name(self) -> str:
        """The cache in messages: its URL, without anything secret."""
        return f"{self.scheme}://{self.authority}" + (f"/{self.path}" if self.path else "")

    def transfer_time(self, size: int) -> float:
        """Seconds that a transfer of `size` bytes may take."""
        return self.timeout + size / MIN_RATE


def read_endpoint(url: str, environ: Mapping[str, str], *, where: str) -> Endpoint:
    """Parse the URL and the environment of the remote cache. Nothing is contacted.

    Args:
        url: see the module.
        environ: the process's environment.
        where: dotted place of the URL, for messages.

    Raises:
        ConfigError: what is wrong, in either; a header's value is never shown.
    """
    parts = _split(url, where)
    secure = parts.scheme in ("grpcs", "https")
    tls = {name: _tls_file(environ, name, secure=secure) for name in ("CA", "CERT", "KEY")}
    if (tls["CERT"] is None) != (tls["KEY"] is None):
        raise ConfigError(
            "one of EPCTX_REMOTE_TLS_CERT and EPCTX_REMOTE_TLS_KEY is set without the other",
            where=where,
            expected="both or neither",
            reason="remote-tls",
        )
    return Endpoint(
        scheme=cast("Scheme", parts.scheme),
        host=parts.hostname or "",
        port=parts.port or _PORTS[parts.scheme],
        path=unquote(parts.path).strip("/"),
        headers=_headers(environ),
        tls_ca=tls["CA"],
        tls_cert=tls["CERT"],
        tls_key=tls["KEY"],
        timeout=_number(environ, "EPCTX_REMOTE_TIMEOUT", default=30.0, low=0.1, high=3600.0),
        retries=int(_number(environ, "EPCTX_REMOTE_RETRIES", default=3, low=0, high=20)),
        connections=int(_number(environ, "EPCTX_REMOTE_CONNECTIONS", default=8, low=1, high=64)),
        max_size=int(_number(environ, "EPCTX_REMOTE_MAX_SIZE", default=16 << 30, low=1, high=1 << 50)),
    )


def _split(url: str, where: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"no URL: {error}", where=where, expected=_EXAMPLE, reason="remote-url") from error
    if parts.scheme not in SCHEMES:
        raise ConfigError(
            f"unknown scheme {parts.scheme!r}",
            where=where,
            expected=f"one of {', '.join(SCHEMES)}",
            remedy=suggest(parts.scheme, SCHEMES),
            reason="remote-url",
        )
    fault = ""
    if parts.username is not None or parts.password is not None:
        fault = "holds credentials"
    elif not parts.hostname:
        fault = "names no host"
    elif not port and parts.scheme not in _PORTS:
        fault = "names no port"
    elif parts.query or parts.fragment:
        fault = "has a query or a fragment"
    elif not _VALUE.fullmatch(url):
        fault = "holds characters beyond printable ASCII"
    if fault:
        remedy = "Give headers by EPCTX_REMOTE_HEADER_AUTHORIZATION." if fault == "holds credentials" else ""
        raise ConfigError(f"the URL {fault}", where=where, expected=_EXAMPLE, remedy=remedy, reason="remote-url")
    return parts


def _tls_file(environ: Mapping[str, str], name: str, *, secure: bool) -> Path | None:
    variable = f"EPCTX_REMOTE_TLS_{name}"
    text = environ.get(variable, "")
    if not text or not secure:
        return None
    path = Path(text)
    if not path.is_file():
        raise ConfigError(f"there is no file {text}", where=variable, expected="a PEM file", reason="remote-tls")
    return path


def _headers(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    headers: dict[str, str] = {}
    for variable in sorted(environ):
        if not variable.startswith(_HEADER_PREFIX):
            continue
        name = variable[len(_HEADER_PREFIX) :].lower().replace("_", "-")
        value = environ[variable].strip()
        if not _HEADER.fullmatch(name) or name.endswith("-bin") or not _VALUE.fullmatch(value):
            raise ConfigError(
                "is no header",
                where=variable,
                expected="letters, digits, underscores (not _BIN at the end) as its name, printable ASCII as its value",
                reason="remote-header",
            )
        headers[name] = value
    return tuple(sorted(headers.items()))


def _number(environ: Mapping[str, str], variable: str, *, default: float, low: float, high: float) -> float:
    text = environ.get(variable, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise ConfigError(
            f"{text!r} is out of range",
            where=variable,
            expected=f"a number from {low:g} to {high:g}",
            reason="remote-limit",
        )
    return value
