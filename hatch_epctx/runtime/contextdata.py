"""Context data through ONNX Runtime's named-buffer callbacks in place of files that the EP opens itself.

    package.session("detector", data="callbacks")     # from the package folder: the EP gets the bytes that were hashed
    package.session("detector", data=storage)         # from the application's own storage, an encrypted one for example

An application's storage is any object with ``read(name, digest, size)`` that returns the bytes. Whatever it gives is
checked against the manifest: its size, then its SHA-256. The EP may ask for the variant's own context binaries and for
nothing else, at most of the largest one's size, from any thread and at any time of the session's life. Nothing is
ever read from the file system in its place: an EP that does not support the callbacks is refused by ONNX Runtime, and
one that makes a session without having asked is refused here.

ONNX Runtime has the callbacks since 1.31 (`SessionOptions.set_ep_context_data_read_func`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from hatch_epctx.digest import digest_bytes
from hatch_epctx.errors import VerificationError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from hatch_epctx.manifest import Artifact

    Bytes: TypeAlias = bytes | bytearray | memoryview

__all__ = ["ContextData", "Data", "Supply", "is_storage", "supports_callbacks"]

_SLICE: Final = 16 << 20
"""Bytes handed over at a time, so that other threads get their turn."""


class ContextData(Protocol):
    """An application's own storage of context binaries. Safe to call from several threads at once."""

    def read(self, name: str, digest: str, size: int) -> Bytes:
        """The content of one context binary.

        Args:
            name: its name in the package folder, such as "sha256-0f1e2d3c4b5a69788796a5b4c3d2e1f0.bin".
            digest: SHA-256 of the content that is expected, in hexadecimal digits.
            size: its size in bytes.
        """
        ...  # pragma: no cover


Data = Literal["files", "callbacks"]


def is_storage(data: object) -> bool:
    """Whether this is an application's storage."""
    return callable(getattr(data, "read", None))


def supports_callbacks(ort: Any) -> bool:
    """Whether this ONNX Runtime has the callbacks at all."""
    return hasattr(ort.SessionOptions, "set_ep_context_data_read_func")


class Supply:
    """The callback of one session.

    Attributes:
        served: names of the binaries that were asked for and given.
        failure: the first thing that went wrong; None while nothing did. ONNX Runtime turns an exception of a
            callback into an error of its own, with the text alone.
    """

    def __init__(self, artifacts: Iterable[Artifact], storage: ContextData) -> None:
        self._artifacts = {artifact.path: artifact for artifact in artifacts if artifact.role == "context"}
        self._storage = storage
        self._guard = threading.Lock()
        self.served: set[str] = set()
        self.failure: BaseException | None = None

    @property
    def names(self) -> frozenset[str]:
        """What may be asked for."""
        return frozenset(self._artifacts)

    @property
    def limit(self) -> int:
        """Bytes of the largest binary."""
        return max((artifact.size for artifact in self._artifacts.values()), default=0)

    def __call__(self, name: str, target: Any) -> None:
        """Fill `target` (an OrtEpContextDataBuffer) with the binary called `name`."""
        try:
            view = self._checked(name)
            target.allocate(view.nbytes)  # lives until this function returns, as does `view`
            for start in range(0, view.nbytes, _SLICE):
                target.write(view[start : start + _SLICE], start)
        except BaseException as error:
            with self._guard:
                self.failure = self.failure or error
            raise
        with self._guard:
            self.served.add(name)

    def _checked(self, name: str) -> memoryview:
        artifact = self._artifacts.get(name)
        if artifact is None:
            raise VerificationError(
                f"the EP asks for context data {name!r}",
                expected=f"one of the variant's own: {', '.join(sorted(self._artifacts)) or 'none'}",
                remedy="The ONNX file is not the one that was compiled: reinstall the package.",
                reason="escape",
            )
        view = memoryview(self._storage.read(name, artifact.digest, artifact.size)).cast("B")
        found = f"{view.nbytes} bytes" if view.nbytes != artifact.size else f"SHA-256 {digest_bytes(view)}"
        expected = f"{artifact.size} bytes" if view.nbytes != artifact.size else f"SHA-256 {artifact.digest}"
        if found != expected:
            raise VerificationError(
                found,
                where=name,
                expected=f"{expected} as the manifest records",
                remedy="The storage gave other context data than was compiled.",
                reason="modified-file",
            )
        return view
