"""Files of one package folder, on disk or in a wheel, in one form."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from hatch_epctx.digest import digest_stream
from hatch_epctx.files import copy_file, open_regular, read_bounded
from hatch_epctx.wheelfile import extract_members

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["DiskFiles", "Files", "WheelFiles"]


class Files(ABC):
    """The files of one flat folder."""

    place: str
    """What messages call the folder."""

    @property
    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """Bytes of each regular file, by name."""

    @property
    @abstractmethod
    def strange(self) -> Mapping[str, str]:
        """What is there beside regular files, by name: "a link", "a folder"."""

    @abstractmethod
    def digest(self, name: str) -> str:
        """SHA-256 of a file.

        Raises:
            OSError: it cannot be read.
        """

    @abstractmethod
    def bring(self, name: str, target: Path) -> None:
        """Copy a file.

        Raises:
            OSError: it cannot be read.
        """


class DiskFiles(Files):
    """A folder on disk.

    Raises:
        OSError: it cannot be listed.
    """

    def __init__(self, folder: Path) -> None:
        self.place = str(folder)
        self.folder = folder
        self._sizes: dict[str, int] = {}
        self._strange: dict[str, str] = {}
        for entry in sorted(os.scandir(folder), key=lambda item: item.name):
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                self._sizes[entry.name] = status.st_size
            else:
                self._strange[entry.name] = "a link" if entry.is_symlink() else "no regular file"

    @property
    def sizes(self) -> Mapping[str, int]:
        """See `Files`."""
        return self._sizes

    @property
    def strange(self) -> Mapping[str, str]:
        """See `Files`."""
        return self._strange

    def digest(self, name: str) -> str:
        """See `Files`."""
        with open_regular(self.folder / name) as stream:
            return digest_stream(stream)[0]

    def bring(self, name: str, target: Path) -> None:
        """See `Files`."""
        copy_file(self.folder / name, target)

    def read(self, name: str, limit: int) -> bytes:
        """Content of a file.

        Raises:
            OSError: it cannot be read, or is longer than `limit`.
        """
        return read_bounded(self.folder / name, limit)


class WheelFiles(Files):
    """A folder of a wheel whose contents were held against RECORD: digests are those of RECORD.

    Args:
        wheel: the wheel.
        base: path of the folder in it, with a slash at its end.
        sizes: of all files of the wheel, by path.
        digests: SHA-256 by path, as RECORD has them.
    """

    def __init__(self, wheel: Path, base: str, sizes: Mapping[str, int], digests: Mapping[str, str]) -> None:
        self.place = base.rstrip("/")
        self._wheel = wheel
        self._base = base
        self._sizes = {name.removeprefix(base): size for name, size in sizes.items() if name.startswith(base)}
        self._digests = digests

    @property
    def sizes(self) -> Mapping[str, int]:
        """See `Files`."""
        return self._sizes

    @property
    def strange(self) -> Mapping[str, str]:
        """See `Files`; a wheel has regular files alone."""
        return {}

    def digest(self, name: str) -> str:
        """See `Files`; empty where RECORD has no SHA-256 of it, which is a problem of its own."""
        return self._digests.get(self._base + name, "")

    def bring(self, name: str, target: Path) -> None:
        """See `Files`."""
        extract_members(self._wheel, {self._base + name: target})
