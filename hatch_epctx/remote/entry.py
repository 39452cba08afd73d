"""What stands for a variant in a remote cache: the key made from its identity, and the result kept under the key.

The mapping, ``epctx-remote/1``:

- **Key**: the digest of an ``Action`` message. Its command has the arguments ``epctx``, ``epctx-remote/1`` and the
  identity; its input root holds one file, ``identity``: the identity and a newline. The salt is ``epctx-remote/1``
  again. All of it follows from the identity alone, so that a look-up needs nothing but the identity, and every entry
  says of itself what it is. The action is an address: it is never executed.
- **Result**: an ``ActionResult`` with exit code 0 and one output file per artifact, under its flat name, and
  ``epctx-record.json``: the store's record with identity, identity document, artifacts and compile facts. No folders,
  no links, no streams, no times, no host names.

A result is believed only as far as it can be checked: names are flat, sizes bounded, every blob has the digest that
the result states, and the record names the same artifacts, carries the asked identity and a document whose digest
*is* that identity. What cannot be checked is whether the artifacts come from a compile of that document: whoever may
write to a cache is trusted by all who read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import rfc8785

from hatch_epctx.digest import digest_bytes, is_digest
from hatch_epctx.files import check_name, parse_json
from hatch_epctx.remote.blobs import Blob, blob_of
from hatch_epctx.remote.faults import RemoteError
from hatch_epctx.remote.proto import reapi_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from google.protobuf.message import Message

__all__ = [
    "FILE_LIMIT",
    "FORMAT",
    "RECORD_LIMIT",
    "RECORD_NAME",
    "RESULT_LIMIT",
    "Artifact",
    "Key",
    "Outputs",
    "check_record",
    "digest_message",
    "key_of",
    "outputs_of",
    "result_of",
    "serialize",
]

FORMAT: Final = "epctx-remote/1"
RECORD_NAME: Final = "epctx-record.json"
RECORD_LIMIT: Final = 4 << 20
"""Bytes of a record, as of a marker in the store."""
RESULT_LIMIT: Final = 4 << 20
"""Bytes of a serialised result; gRPC servers send no bigger message unless told to."""
FILE_LIMIT: Final = 4096
"""Artifacts of one entry."""


class Artifact(NamedTuple):
    """One file of an entry: flat name, where it is on this disk, digest, size in bytes."""

    name: str
    path: Path
    digest: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The key of an identity, and the blobs that explain it."""

    action: Blob
    blobs: tuple[tuple[str, bytes], ...]
    """(name in messages, bytes) of the action and of all it refers to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What a result lists, checked."""

    record: Blob
    inline: bytes | None
    """The record's bytes, where the server sent them along; not checked yet."""
    artifacts: tuple[tuple[str, Blob], ...]
    """(flat name, blob), sorted by name."""


def serialize(message: Message) -> bytes:
    """The message's bytes: fields in the order of their numbers, as every implementation writes these messages."""
    return message.SerializeToString(deterministic=True)


def digest_message(blob: Blob) -> pb.Digest:
    """`blob` as the protocol spells it."""
    return pb.Digest(hash=blob.digest, size_bytes=blob.size)


def key_of(identity: str) -> Key:
    """The key under which the result of `identity` is kept.

    Raises:
        ValueError: `identity` is no digest.
    """
    if not is_digest(identity):
        raise ValueError("an identity is 64 lower-case hexadecimal digits")
    note = f"{identity}\n".encode()
    command = serialize(pb.Command(arguments=["epctx", FORMAT, identity], output_paths=[RECORD_NAME]))
    root = serialize(pb.Directory(files=[pb.FileNode(name="identity", digest=digest_message(blob_of(note)))]))
    action = serialize(
        pb.Action(
            command_digest=digest_message(blob_of(command)),
            input_root_digest=digest_message(blob_of(root)),
            salt=FORMAT.encode(),
        )
    )
    blobs = (("action", action), ("command", command), ("input root", root), ("identity", note))
    return Key(action=blob_of(action), blobs=blobs)


def result_of(record: bytes, artifacts: Iterable[Artifact]) -> pb.ActionResult:
    """The result that lists the record and the artifacts, in the order of their names."""
    files = [(RECORD_NAME, blob_of(record)), *((item.name, Blob(item.digest, item.size)) for item in artifacts)]
    outputs = [pb.OutputFile(path=name, digest=digest_message(blob)) for name, blob in sorted(files)]
    return pb.ActionResult(output_files=outputs, exit_code=0)


def outputs_of(result: pb.ActionResult, *, max_size: int) -> Outputs:
    """What `result` lists.

    Raises:
        RemoteError: it is not a result as `result_of` makes it, or is bigger than `max_size` bytes in all.
    """
    if result.exit_code:
        raise _corrupt(f"a result with exit code {result.exit_code}")
    for field in ("output_directories", "output_symlinks", "output_file_symlinks", "output_directory_symlinks"):
        if getattr(result, field):
            raise _corrupt("a result with folders or links")
    if len(result.output_files) > FILE_LIMIT:
        raise _corrupt(f"a result of {len(result.output_files)} files, more than {FILE_LIMIT}")
    files: dict[str, Blob] = {}
    folded: set[str] = set()
    inline: bytes | None = None
    for output in result.output_files:
        name, blob = _name(output.path), _blob(output)
        if name.casefold() in folded:  # one file on Windows and macOS
            raise _corrupt(f"{name} twice in one result")
        folded.add(name.casefold())
        files[name] = blob
        if name == RECORD_NAME and output.contents:
            inline = output.contents
    record = files.pop(RECORD_NAME, None)
    if record is None:
        raise _corrupt("a result without a record")
    total = sum(blob.size for blob in files.values())
    if record.size > RECORD_LIMIT or total > max_size:
        raise _corrupt(f"an oversized entry: {total} bytes and a record of {record.size}")
    return Outputs(record=record, inline=inline, artifacts=tuple(sorted(files.items())))


def check_record(data: bytes, identity: str, artifacts: Sequence[tuple[str, Blob]]) -> None:
    """Check that the record is about this identity and these artifacts.

    Raises:
        RemoteError: it is not, or is no JSON object with ``identity``, ``document`` and ``artifacts`` (objects with
            ``path``, ``digest`` and ``size``).
    """
    try:
        record = parse_json(data)
        if not isinstance(record, dict) or not isinstance(record.get("document"), dict):
            raise _corrupt("a record without an identity document")
        document = digest_bytes(rfc8785.dumps(record["document"]))
    except (ValueError, rfc8785.CanonicalizationError) as error:
        raise _corrupt(f"a record that is no JSON of ours ({error})") from error
    if record.get("identity") != identity or document != identity:
        raise _corrupt(f"a record of another identity ({document[:12]})")
    if _listed(record.get("artifacts")) != sorted(artifacts):
        raise _corrupt("a record of other artifacts than the result lists")


def _listed(entries: Any) -> list[tuple[str, Blob]]:
    try:
        return sorted((str(entry["path"]), Blob(entry["digest"], entry["size"])) for entry in entries)
    except (TypeError, KeyError) as error:
        raise _corrupt("a record without a list of artifacts") from error


def _name(path: str) -> str:
    try:
        return check_name(path)
    except ValueError as error:
        raise _corrupt(f"an unsafe name: {error}") from error


def _blob(output: pb.OutputFile) -> Blob:
    if not is_digest(output.digest.hash) or output.digest.size_bytes < 0:
        raise _corrupt(f"{output.path} without a SHA-256 digest")
    return Blob(output.digest.hash, output.digest.size_bytes)


def _corrupt(found: str) -> RemoteError:
    return RemoteError(found, reason="corrupt")
