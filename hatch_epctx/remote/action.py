"""A command as a remote action: its inputs as a tree of folders, its key.

The layout of a worker run as a remote action, which `RemoteCommand` is made for:

- The folder ``job`` holds ``job.json`` and the source under its canonical names, as a local worker finds them in its
  working directory. The command starts in the input root, so its first step is to go there.
- The program and its libraries are further inputs beside it (``epctx/...``, a name that no worker mounts over: this
  package's worker, ONNX Runtime, onnx, the EP's distribution), so that the toolchain digests of the identity hold on
  every machine of the farm. They are sent once and stay in the CAS. The interpreter is the farm's own; name it by the
  platform properties.
- The outputs are the flat files of ``job``. What comes back as it went in is not downloaded.
- What a farm must add for EPs that bake it in (OpenVINO: ISA, visible cores) are platform properties as well: the
  identity names them, and the worker has to refuse where it finds others.

An action's own key is the server's business: it holds inputs that our identity leaves out on purpose. A result that is
to be found by identity is pushed under the identity's key (`entry`) afterwards, wherever it was compiled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hatch_epctx.files import check_location
from hatch_epctx.remote.blobs import EMPTY, Blob, Source, blob_of
from hatch_epctx.remote.entry import digest_message, serialize
from hatch_epctx.remote.proto import reapi_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from google.protobuf.message import Message

__all__ = ["Input", "RemoteCommand", "action_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One file of the input root: a file on disk, or bytes."""

    location: str
    """Relative POSIX path."""
    blob: Blob
    path: Path | None = None
    data: bytes = b""
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCommand:
    """What is to run. Equal commands over equal inputs have one action key, so the server may answer from its cache."""

    arguments: tuple[str, ...]
    inputs: tuple[Input, ...]
    folder: str
    """Folder below the input root, in which the command starts; the flat files of this folder are the outputs."""
    environment: Mapping[str, str]
    platform: Mapping[str, str]
    """Properties of the worker, as the farm names them."""
    timeout: float
    """Seconds that the command may run."""


def action_of(command: RemoteCommand) -> tuple[Blob, list[Source]]:
    """The command's action and all blobs that a server needs to run it."""
    blobs: dict[Blob, Source] = {}

    def keep(name: str, message: Message) -> Blob:
        data = serialize(message)
        blob = blob_of(data)
        blobs[blob] = Source(name=name, blob=blob, data=data)
        return blob

    folders: dict[tuple[str, ...], dict[str, Input]] = {}

    def open_folder(parts: tuple[str, ...]) -> dict[str, Input]:
        for depth in range(len(parts)):
            folders.setdefault(parts[:depth], {})
        return folders.setdefault(parts, {})

    open_folder(check_location(command.folder).parts)
    for item in command.inputs:
        *parents, name = check_location(item.location).parts
        open_folder(tuple(parents))[name] = item
        blobs[item.blob] = Source(name=item.location, blob=item.blob, data=item.data, path=item.path)
    made: dict[tuple[str, ...], Blob] = {}
    for parts in sorted(folders, key=lambda parts: (-len(parts), parts)):  # the innermost first
        files = [
            pb.FileNode(name=name, digest=digest_message(item.blob), is_executable=item.executable)
            for name, item in sorted(folders[parts].items())
        ]
        below = sorted(inner for inner in made if inner[:-1] == parts)
        nodes = [pb.DirectoryNode(name=inner[-1], digest=digest_message(made[inner])) for inner in below]
        made[parts] = keep("/".join(parts) or "input root", pb.Directory(files=files, directories=nodes))
    platform = pb.Platform(
        properties=[pb.Platform.Property(name=name, value=value) for name, value in sorted(command.platform.items())]
    )
    variables = [
        pb.Command.EnvironmentVariable(name=name, value=value) for name, value in sorted(command.environment.items())
    ]
    order = keep(
        "command",
        pb.Command(
            arguments=command.arguments,
            environment_variables=variables,
            output_directories=[command.folder],  # for servers of version 2.0; the others look at output_paths
            output_paths=[command.folder],
            platform=platform,
        ),
    )
    action = keep(
        "action",
        pb.Action(
            command_digest=digest_message(order),
            input_root_digest=digest_message(made[()]),
            timeout=pb.Duration(seconds=max(1, math.ceil(command.timeout))),
            platform=platform,
        ),
    )
    return action, [source for source in blobs.values() if source.blob != EMPTY]
