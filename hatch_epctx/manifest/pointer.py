"""How an editable install names its package folder: a file beside the install, and the folder's current generation.

    site-packages/__editable__.acme_vision.epctx.json     the pointer, which the editable wheel brings
        {"format": "epctx-editable/1", "package": "acme_vision", "project": "/home/me/acme", "folder": "<cache>/..."}
    <cache>/editable/<key>/current.json                   replaced by every build
        {"format": "epctx-editable/1", "generation": "<name>", "package": ..., "project": ..., "version": "1.2.3"}
    <cache>/editable/<key>/<name>/manifest.json           the package folder

The pointer's name is no import name, so that nothing about it can hide the source package.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hatch_epctx.manifest.place import Place

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CURRENT_NAME", "POINTER_LIMIT", "Current", "Pointer", "pointer_name"]

CURRENT_NAME: Final = "current.json"
POINTER_LIMIT: Final = 64 << 10
"""Bytes of either file that are read."""
_FORMAT: Final = "epctx-editable/1"
"""Raised when an old reader would misunderstand it; new keys alone do not raise it."""


def pointer_name(package: str) -> str:
    """File name of the pointer of the package with this import name."""
    return f"__editable__.{package}.epctx.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """What the editable wheel brings."""

    package: str
    """Import name."""
    project: str
    """Absolute folder of the project."""
    folder: str
    """Absolute folder that holds `CURRENT_NAME`."""

    def to_bytes(self) -> bytes:
        """The file's content."""
        return _bytes({"package": self.package, "project": self.project, "folder": self.folder})

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Pointer:
        """Read a pointer.

        Raises:
            VerificationError: it is malformed, or of a newer format.
        """
        fields = _fields(data, where, ("package", "project", "folder"))
        return cls(package=fields["package"], project=fields["project"], folder=fields["folder"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """Which generation of the package folder counts now."""

    generation: str
    """Name of a folder beside the file."""
    package: str
    project: str
    version: str
    """Of the distribution, as it was installed."""

    def to_bytes(self) -> bytes:
        """The file's content."""
        return _bytes(
            {
                "generation": self.generation,
                "package": self.package,
                "project": self.project,
                "version": self.version,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, where: str) -> Current:
        """Read the file.

        Raises:
            VerificationError: it is malformed, of a newer format, or names a folder elsewhere.
        """
        fields = _fields(data, where, ("generation", "package", "project", "version"))
        Place(fields["generation"], where, ("generation",)).flat()
        return cls(
            generation=fields["generation"],
            package=fields["package"],
            project=fields["project"],
            version=fields["version"],
        )


def _bytes(fields: Mapping[str, str]) -> bytes:
    return (json.dumps({"format": _FORMAT, **fields}, indent=2, sort_keys=True) + "\n").encode()


def _fields(data: bytes, where: str, names: tuple[str, ...]) -> dict[str, str]:
    fields = Place.parse(data, where).members(("format", *names))
    fields["format"].one_of((_FORMAT,))
    return {name: fields[name].text() for name in names}
