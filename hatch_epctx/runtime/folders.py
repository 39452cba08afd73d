"""Package folders that are open: the package's own, and those of its companion data packages.

A wheel has a size limit, and not every user has every device: variants may come in distributions of their own. The
rule: distribution ``<dist>-epctx-<target>`` brings one top-level import package whose name has ``_epctx_`` in it
(``acme_vision_epctx_snapdragon``), with a package folder whose manifest names the package that it is for. Installing
it is all that a user does. Its version must be the package's, since models and code belong together.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hatch_epctx.digest import digest_bytes
from hatch_epctx.errors import LookupFailure, VerificationError
from hatch_epctx.files import copy_and_digest, read_bounded
from hatch_epctx.manifest import FOLDER_NAME, MANIFEST_NAME, MAX_BYTES, Component, Manifest, Variant, read_manifest
from hatch_epctx.runtime.locate import import_path, is_file, is_import_name, locate
from hatch_epctx.runtime.verify import verify_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hatch_epctx.manifest import Artifact
    from hatch_epctx.runtime.archives import Archive
    from hatch_epctx.runtime.verify import Verify

__all__ = ["Folder", "Held", "open_folder", "open_package", "variants_of"]

_CONTENT_LIMIT: Final = 1 << 31
"""Bytes of an ONNX file: protobuf takes no more."""
_MARK: Final = "_epctx_"
"""Part of every companion's import name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """One package folder and its manifest."""

    path: Path
    """Absolute."""
    manifest: Manifest
    companion: str = ""
    """Import name of the companion that brings it; empty for a package that was asked for."""
    fault: str = ""
    """Why none of its variants may be used; empty when they may."""
    archive: Archive | None = None
    """The archive that it lies in; `path` then leads into that."""

    @property
    def package(self) -> str:
        """What messages call it."""
        return self.companion or self.manifest.package_name or str(self.path)

    def ready(self, artifacts: Sequence[Artifact], mode: Verify, *, everything: bool) -> tuple[Path, object]:
        """A folder on disk with these files, verified, and what has to live as long as they are used.

        Args:
            artifacts: the files that ORT or the EP will open.
            mode: when to check digests.
            everything: these are all of them; False where the manifest records no files.

        Raises:
            VerificationError: a file is missing or not what the manifest says.
            LookupFailure: it has to be unpacked and cannot be.
        """
        if self.archive is None:
            verify_files(self.path, artifacts, mode)
            return self.path, None
        if not everything:
            raise LookupFailure(
                "records no files (made by another tool), and ONNX Runtime opens nothing inside an archive",
                where=str(self.path),
                remedy="Install it unpacked.",
                reason="unverifiable",
            )
        if not artifacts:
            return self.path, None
        from hatch_epctx.runtime.archives import unpack

        return unpack(self.archive, tuple(artifacts), mode)

    def read(self, name: str, artifact: Artifact | None) -> bytes:
        """Content of one file, checked against its record where there is one.

        Raises:
            VerificationError: it is missing, cannot be read, or is not what the manifest says.
        """
        limit = artifact.size if artifact is not None else _CONTENT_LIMIT
        if self.archive is not None:
            data = self.archive.read(name, limit)
        else:
            try:
                data = read_bounded(self.path / name, limit)
            except OSError as error:
                found = f"cannot be read: {error.strerror or error}"
                raise VerificationError(found, where=str(self.path / name), reason="unreadable") from error
        if artifact is not None and digest_bytes(data) != artifact.digest:
            expected = f"SHA-256 {artifact.digest} as the manifest records"
            raise VerificationError(
                "other bytes", where=str(self.path / name), expected=expected, reason="modified-file"
            )
        return data

    def copy(self, artifact: Artifact, target: Path) -> None:
        """Copy one file to the new file `target`, checked on the way.

        Raises:
            VerificationError: it is missing, cannot be read, or is not what the manifest says.
            OSError: `target` cannot be written.
        """
        if self.archive is not None:
            self.archive.extract([artifact], target.parent, name=target.name)
            return
        verify_files(self.path, [artifact], "never")
        digest, _ = copy_and_digest(self.path / artifact.path, target)
        if digest != artifact.digest:
            where, expected = str(self.path / artifact.path), f"{artifact.digest} as the manifest records"
            raise VerificationError(f"SHA-256 {digest}", where=where, expected=expected, reason="modified-file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A variant and the folder that holds it."""

    variant: Variant
    folder: Folder


def open_folder(place: Path | Archive) -> Folder:
    """Read the manifest of the package folder at `place`.

    Raises:
        VerificationError: it cannot be read, is malformed, or of a newer format.
    """
    if not isinstance(place, Path):
        data = place.read(MANIFEST_NAME, MAX_BYTES)
        where = str(place.path / MANIFEST_NAME)
        return Folder(path=place.path, manifest=read_manifest(data, where=where), archive=place)
    file = place / MANIFEST_NAME
    try:
        data = read_bounded(file, MAX_BYTES)
    except OSError as error:
        raise VerificationError(
            f"cannot be read: {error.strerror or error}", where=str(file), reason="unreadable"
        ) from error
    return Folder(path=place, manifest=read_manifest(data, where=str(file)))


def open_package(name_or_path: str | os.PathLike[str]) -> tuple[Folder, ...]:
    """The folder of a package and those of its companions, which are looked for where it is given by import name.

    A package may have no folder of its own when it has companions.

    Raises:
        LookupFailure: there is none at all.
        VerificationError: as `open_folder`.
    """
    if not is_import_name(name_or_path):
        return (open_folder(locate(name_or_path)),)
    name = str(name_or_path)
    try:
        own = (open_folder(locate(name)),)
    except LookupFailure as failure:
        companions = tuple(_companions(name))
        if failure.reason != "no-manifest" or not companions:
            raise
        return _same_version(companions)
    if own[0].manifest.package_name != name:  # a folder in the cwd, or an older name: companions name the package
        return own
    return _same_version((*own, *_companions(name)))


def variants_of(folders: tuple[Folder, ...], model: str) -> tuple[Held, ...]:
    """The variants of `model` in every folder, in order; empty when no folder has the model."""
    return tuple(
        Held(variant=variant, folder=folder)
        for folder in folders
        for component in _components(folder, model)
        for variant in component.variants
    )


def _components(folder: Folder, model: str) -> tuple[Component, ...]:
    return tuple(component for component in folder.manifest.components if component.name == model)


def _companions(package: str) -> Iterator[Folder]:
    """Folders of the companions on the import path, by name; the first of each name counts, as in an import."""
    places: dict[str, Path | Archive] = {}
    for entry in import_path():
        for name, place in _marked(entry):
            places.setdefault(name, place)
    head = package.replace(".", "_") + _MARK
    for name in sorted(places):
        try:
            folder = open_folder(places[name])
        except VerificationError:
            if name.startswith(head):
                raise
            continue  # some other package's, which will say so when it is opened
        if folder.manifest.package_name == package:
            yield replace(folder, companion=name)


def _marked(entry: Path) -> Iterator[tuple[str, Path | Archive]]:
    """Import names that may be companions', with their package folders, in one entry of the import path."""
    try:
        with os.scandir(entry) as items:
            names = [item.name for item in items if _MARK in item.name and item.name.isidentifier()]
    except NotADirectoryError:
        from hatch_epctx.runtime.archives import archives_in

        yield from ((name, archive) for name, archive in archives_in(entry) if _MARK in name)
        return
    except OSError:  # nothing there
        return
    for name in names:
        if is_file(entry / name / FOLDER_NAME / MANIFEST_NAME):
            yield name, entry / name / FOLDER_NAME


def _same_version(folders: tuple[Folder, ...]) -> tuple[Folder, ...]:
    """`folders`, with those marked whose version is not the first one's."""
    wanted = folders[0].manifest.package_version
    return tuple(
        folder
        if folder.manifest.package_version == wanted
        else replace(
            folder,
            fault=f"belongs to version {folder.manifest.package_version or 'unknown'} of "
            f"{folder.manifest.package_name}, and {folders[0].package} is of version {wanted or 'unknown'}",
        )
        for folder in folders
    )
