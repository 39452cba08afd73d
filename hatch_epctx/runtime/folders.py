"""Package folders that are open: the package's own, and those of its companion data packages.

A wheel has a size limit, and not every user has every device: variants may come in distributions of their own. The
rule: distribution ``<dist>-epctx-<target>`` brings one top-level import package whose name has ``_epctx_`` in it
(``acme_vision_epctx_snapdragon``), with a package folder whose manifest names the package that it is for. Installing
it is all that a user does. Its version must be the package's, since models and code belong together.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hatch_epctx.errors import LookupFailure, VerificationError
from hatch_epctx.files import read_bounded
from hatch_epctx.manifest import FOLDER_NAME, MANIFEST_NAME, MAX_BYTES, Component, Manifest, Variant, read_manifest
from hatch_epctx.runtime.locate import is_import_name, locate

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Folder", "Held", "open_folder", "open_package", "variants_of"]

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

    @property
    def package(self) -> str:
        """What messages call it."""
        return self.companion or self.manifest.package_name or str(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A variant and the folder that holds it."""

    variant: Variant
    folder: Folder


def open_folder(path: Path) -> Folder:
    """Read the manifest of the package folder at `path`.

    Raises:
        VerificationError: it cannot be read, is malformed, or of a newer format.
    """
    file = path / MANIFEST_NAME
    try:
        data = read_bounded(file, MAX_BYTES)
    except OSError as error:
        raise VerificationError(
            f"cannot be read: {error.strerror or error}", where=str(file), reason="unreadable"
        ) from error
    return Folder(path=path, manifest=read_manifest(data, where=str(file)))


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
    seen: dict[str, Path] = {}
    for entry in sys.path:
        for name in _marked(Path(entry)):
            seen.setdefault(name, Path(entry, name, FOLDER_NAME).absolute())
    head = package.replace(".", "_") + _MARK
    for name in sorted(seen):
        if not (seen[name] / MANIFEST_NAME).is_file():
            continue
        try:
            folder = open_folder(seen[name])
        except VerificationError:
            if name.startswith(head):
                raise
            continue  # some other package's, which will say so when it is opened
        if folder.manifest.package_name == package:
            yield replace(folder, companion=name)


def _marked(entry: Path) -> list[str]:
    try:
        with os.scandir(entry) as items:
            return [item.name for item in items if _MARK in item.name and item.name.isidentifier()]
    except OSError:  # an archive, or nothing there
        return []


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
