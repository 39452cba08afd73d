"""Context binaries that lie encrypted on the user's disk and never in the clear.

    python encrypted_context.py seal PACKAGE_FOLDER OUT KEY_FILE     # at release time
    python encrypted_context.py run OUT MODEL KEY_FILE               # in the application

`seal` copies a package folder (what `epctx build --out` writes) without its context binaries and puts them beside it
encrypted. `run` makes a session: ONNX Runtime asks for the data by name, the look-up asks `Sealed`, checks what it
gets against the manifest's SHA-256 and hands it to the EP. It needs an EP and an onnxruntime (1.31 or later) that
support EPContext data callbacks, and `pip install cryptography`.

What this does not do: the ONNX file with the nodes that stay with the CPU, and the manifest with sizes and digests,
stay readable; whoever has the key, or reads the memory of the process, has the data. Where the key comes from is the
application's affair.

Form of a sealed file: 8 random bytes, then for each part of 64 MiB its AES-256-GCM ciphertext with the tag of 16 bytes.
The nonce is the random bytes and the part's number; authenticated with it are the digest that the manifest records
and whether it is the last part, so that no part can be moved, left out or taken from another file.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from hatch_epctx import runtime

PART = 64 << 20
HEAD, TAG = 8, 16


class Sealed:
    """Storage for `Package.session(data=...)`. Any number of threads may read."""

    def __init__(self, folder: Path, key: bytes) -> None:
        self._folder = folder
        self._cipher = AESGCM(key)

    def read(self, name: str, digest: str, size: int) -> bytearray:
        """The binary in the clear; ONNX Runtime copies it, and it is gone when the session is made."""
        clear = bytearray()
        with (self._folder / f"{name}.sealed").open("rb") as stream:
            head = stream.read(HEAD)
            number = 0
            while len(clear) < size or number == 0:
                part = stream.read(PART + TAG)
                last = len(clear) + len(part) - TAG >= size
                clear += self._cipher.decrypt(nonce(head, number), part, about(digest, last=last))
                number += 1
        return clear

    def write(self, name: str, digest: str, data: bytes) -> None:
        """Seal one binary. Never twice under one key and head: the head is random."""
        head = AESGCM.generate_key(128)[:HEAD]
        starts = range(0, max(len(data), 1), PART)
        with (self._folder / f"{name}.sealed").open("xb") as stream:
            stream.write(head)
            for number, start in enumerate(starts):
                last = number == len(starts) - 1
                clear = data[start : start + PART]
                stream.write(self._cipher.encrypt(nonce(head, number), clear, about(digest, last=last)))


def nonce(head: bytes, number: int) -> bytes:
    """12 bytes that no other part under this key has."""
    return head + number.to_bytes(4, "big")


def about(digest: str, *, last: bool) -> bytes:
    """What is authenticated beside the data."""
    return f"{digest} {'last' if last else 'more'}".encode()


def seal(folder: Path, out: Path, key: bytes) -> None:
    """Copy a package folder with its context binaries encrypted."""
    out.mkdir(parents=True)
    storage = Sealed(out, key)
    binaries = {a.path: a for a in runtime.open(folder).manifest.artifacts() if a.role == "context"}
    for path in sorted(folder.iterdir()):
        if path.name in binaries:
            storage.write(path.name, binaries[path.name].digest, path.read_bytes())
        else:
            shutil.copy(path, out)


def main(command: str, folder: str, argument: str, key_file: str) -> None:
    """Seal a folder, or open one model of a sealed one."""
    key = Path(key_file).read_bytes()
    if command == "seal":
        seal(Path(folder), Path(argument), key)
        return
    session = runtime.open(Path(folder)).session(argument, data=Sealed(Path(folder), key), fallback="error")
    print(session.get_providers()[0], [value.name for value in session.get_inputs()])


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[1] not in ("seal", "run"):
        sys.exit("usage: encrypted_context.py seal PACKAGE_FOLDER OUT KEY_FILE | run OUT MODEL KEY_FILE")
    main(*sys.argv[1:])
