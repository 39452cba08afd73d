"""Content-addressed names for everything an ONNX file refers to, and the source's metadata put back.

A context binary is named by its content, so that models which share one ship one, and a name that stayed means bytes
that stayed. References stand in EPContext nodes (``ep_cache_context`` with ``embed_mode`` 0) and in tensors with
external data; both may hide in subgraphs and function bodies. An EP may write the reference on one node of several
(QNN: where ``main_context`` is 1), and several nodes may share one file.
"""

from __future__ import annotations

import stat
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from hatch_epctx.digest import content_name, digest_file
from hatch_epctx.files import check_location, copy_file, move, remove_file
from hatch_epctx.worker import graphs
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.protocol import Artifact, Role
from hatch_epctx.worker.wording import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from onnx import ModelProto, NodeProto, TensorProto

__all__ = ["ContentNames", "normalise_locations", "rename_references", "restore_metadata"]

_MODEL_FIELDS = ("producer_name", "producer_version", "domain", "doc_string")


class ContentNames:
    """Gives the files of a job's folder their content-addressed names, each file once.

    Args:
        folder: the job's folder.
        keep: locations to copy from, because others still need the file under its old name.
        what: who refers to the files, for messages.
    """

    def __init__(self, folder: Path, *, keep: Collection[str] = (), what: str = "the compiled model") -> None:
        self._folder = folder
        self._what = what
        self._keep = frozenset(keep)
        self._artifacts: dict[str, Artifact] = {}

    def name(self, reference: str, role: Role) -> Artifact:
        """The file that `reference` means, under its content-addressed name.

        Raises:
            TaskError: invalid-output: the reference is no contained relative path, or the file is missing, empty
                or not regular.
        """
        if PurePosixPath(reference).is_absolute() or PureWindowsPath(reference).is_absolute():
            name = PureWindowsPath(reference).name  # splits at both separators; the rest is this machine's
            raise TaskError("invalid-output", f"{self._what} refers to {name!r} by an absolute path")
        try:
            location = check_location(reference).as_posix()
        except ValueError as error:
            raise TaskError("invalid-output", f"{self._what} refers to a file that it may not: {error}") from error
        if location not in self._artifacts:
            self._artifacts[location] = self._rename(location, role)
        return self._artifacts[location]

    def _rename(self, location: str, role: Role) -> Artifact:
        path = self._folder / location
        try:
            status = path.lstat()
        except OSError as error:
            raise TaskError("invalid-output", f"{self._what} refers to {location!r}, which is not there") from error
        if not stat.S_ISREG(status.st_mode):
            raise TaskError("invalid-output", f"{self._what} refers to {location!r}, which is no regular file")
        if status.st_size == 0:
            raise TaskError("invalid-output", f"{self._what} refers to {location!r}, which is empty")
        digest = digest_file(path)
        final = self._folder / content_name(digest)
        if location in self._keep:
            copy_file(path, final)
        elif final.exists():
            remove_file(path)
        else:
            move(path, final)
        return Artifact(role=role, path=final.name, size=status.st_size, digest=digest)


def rename_references(model: ModelProto, names: ContentNames) -> list[Artifact]:
    """Point every reference in `model` to a content-addressed name.

    Returns:
        The files that it refers to, by name; files of equal content once.

    Raises:
        TaskError: invalid-output, as `ContentNames.name`.
    """
    found: dict[str, Artifact] = {}

    def renamed(reference: str, role: Role) -> str:
        artifact = names.name(reference, role)
        return found.setdefault(artifact["path"], artifact)["path"]

    for node in graphs.context_nodes(model):
        if graphs.attribute_number(node, "embed_mode", 1) == 0:
            _rename_context(node, renamed)
    for tensor in graphs.model_tensors(model):
        if graphs.external_entries(tensor) is None:
            continue
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = renamed(entry.value, "weights")
    return [found[name] for name in sorted(found)]


def _rename_context(node: NodeProto, renamed: Callable[[str, Role], str]) -> None:
    for attribute in node.attribute:
        if attribute.name == "ep_cache_context" and attribute.s:
            attribute.s = renamed(attribute.s.decode("utf-8", "replace"), "context").encode()


def normalise_locations(model: ModelProto, folder: Path | None = None) -> bool:
    """Bring every reference to external data into normal form; return whether one was not.

    ONNX Runtime refuses ``..`` even where ``a/../b`` stays inside, and opens what is left as the disk has it. ONNX lets
    a length be left out where a tensor goes on to its file's end; QNN then reads nothing (2.7.0): with the `folder`
    that holds the data, lengths are written down.
    """
    changed = False
    for tensor in graphs.model_tensors(model):
        if graphs.external_entries(tensor) is None:
            continue
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value != (normal := check_location(entry.value).as_posix()):
                entry.value = normal
                changed = True
        changed |= folder is not None and _add_length(tensor, folder)
    return changed


def _add_length(tensor: TensorProto, folder: Path) -> bool:
    """Write down how long the data of a tensor is, up to its file's end; return whether that was missing."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if "length" in entries or "location" not in entries:
        return False
    path = folder / entries["location"]
    if not path.is_file():
        return False
    offset = entries.get("offset", "")
    size = path.stat().st_size - (int(offset) if offset.isdecimal() else 0)
    tensor.external_data.add(key="length", value=str(max(size, 0)))
    return True


def restore_metadata(source: ModelProto, compiled: ModelProto) -> list[str]:
    """Put back what the compile dropped of the source's metadata; return the names of what cannot be put back.

    ONNX Runtime 1.32 keeps the model's custom metadata and drops its description, version, domain and producer and
    the documentation of inputs and outputs; applications read them from the session. Text that is no UTF-8 is lost:
    protobuf reads it and refuses to set it.
    """
    lost: list[str] = []
    for name in _MODEL_FIELDS:
        lost += _restore_text(source, compiled, name, name)
    if source.model_version and not compiled.model_version:
        compiled.model_version = source.model_version
    lost += _restore_entries(source.metadata_props, compiled.metadata_props, "metadata_props")
    lost += _restore_text(source.graph, compiled.graph, "doc_string", "graph.doc_string")
    lost += _restore_entries(source.graph.metadata_props, compiled.graph.metadata_props, "graph.metadata_props")
    for before, after, what in (
        (source.graph.input, compiled.graph.input, "inputs"),
        (source.graph.output, compiled.graph.output, "outputs"),
    ):
        by_name = {value.name: value for value in after}
        for value in before:
            kept = by_name.get(value.name)
            if kept is None:
                continue  # an initialiser of an old model: no input to a caller
            lost += _restore_text(value, kept, "doc_string", f"{what}.{value.name}.doc_string")
            lost += _restore_entries(value.metadata_props, kept.metadata_props, f"{what}.{value.name}.metadata_props")
    return lost


def _restore_text(before: Any, after: Any, name: str, place: str) -> list[str]:
    text = getattr(before, name)
    if not text or getattr(after, name):
        return []
    if not isinstance(text, str):
        return [place]
    setattr(after, name, text)
    return []


def _restore_entries(before: Any, after: Any, place: str) -> list[str]:
    present = {entry.key: entry.value for entry in after}
    lost: list[str] = []
    for entry in before:
        key, value = entry.key, entry.value
        if not isinstance(key, str) or not isinstance(value, str):
            lost.append(f"{place}.{shown(key)}")
        elif key not in present:
            after.add(key=key, value=value)
        elif present[key] != value:
            lost.append(f"{place}.{key}")
    return lost
