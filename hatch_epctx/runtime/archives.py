"""Package folders inside archives: zip applications (zipapp, zipimport) and wheels that were never installed.

ONNX Runtime and the EPs open files on disk, so the files of the chosen variant are streamed once into a private cache
and verified on the way; nothing else is unpacked, and nothing is held in memory whole (`keeping` says how long it
stays). Whoever may write the user's own cache folder can put other bytes there, so what was unpacked earlier is
verified like an installed file.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from hatch_epctx.digest import digest_entries, digest_stream
from hatch_epctx.errors import LookupFailure, VerificationError
from hatch_epctx.files import publish_dir
from hatch_epctx.manifest import FOLDER_NAME, MANIFEST_NAME
from hatch_epctx.runtime.keeping import KEPT, Hold, collect, discard, fill, private_base
from hatch_epctx.runtime.locate import is_file
from hatch_epctx.runtime.verify import verify_files

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hatch_epctx.manifest import Artifact
    from hatch_epctx.runtime.verify import Verify

__all__ = ["KEPT", "Archive", "Hold", "archive_at", "archives_in", "unpack"]

_DAMAGED: Final = (
    *(zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, OverflowError, struct.error, zlib.error),
)
"""What reading a damaged, encrypted or vanished archive raises (zipfile, and what it hands on)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A package folder inside a zip file."""

    file: Path
    """The zip file, absolute."""
    folder: str
    """The package folder's name inside, with a slash at its end."""

    @property
    def path(self) -> Path:
        """What messages call the folder."""
        return self.file / self.folder.rstrip("/")

    def read(self, name: str, limit: int) -> bytes:
        """Content of one small file.

        Raises:
            VerificationError: reason unreadable or too-large.
        """
        with self._opened() as zipped, self._member(zipped, name) as stream:
            try:
                data = stream.read(limit + 1)
            except _DAMAGED as error:
                raise _unreadable(self.path / name, error) from error
        if len(data) > limit:
            raise VerificationError("is too large", where=str(self.path / name), reason="too-large")
        return data

    def extract(self, artifacts: Iterable[Artifact], target: Path, *, name: str = "") -> None:
        """Stream files into the folder `target`, each checked on the way, under `name` where one is given.

        Raises:
            VerificationError: a file is missing, of another size or digest, or cannot be read.
            OSError: `target` cannot be written.
        """
        with self._opened() as zipped:
            for artifact in artifacts:
                self._extract_one(zipped, artifact, target / (name or artifact.path))

    def _extract_one(self, zipped: zipfile.ZipFile, artifact: Artifact, target: Path) -> None:
        where = self.path / artifact.path
        with self._member(zipped, artifact.path, artifact.size) as stream, target.open("xb") as copy:
            try:
                digest, _ = digest_stream(stream, copy_to=copy)
            except _DAMAGED as error:
                if isinstance(error, OSError) and error.filename is None and error.errno is not None:
                    raise  # of the disk that is written
                raise _unreadable(where, error) from error
        if digest != artifact.digest:
            raise VerificationError(
                f"SHA-256 {digest}",
                where=str(where),
                expected=f"{artifact.digest} as the manifest records",
                remedy="The archive is damaged or was changed: get it anew.",
                reason="modified-file",
            )

    def _opened(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.file)
        except _DAMAGED as error:
            raise _unreadable(self.file, error) from error

    def _member(self, zipped: zipfile.ZipFile, name: str, size: int | None = None) -> IO[bytes]:
        where = self.path / name
        try:
            info = zipped.getinfo(self.folder + name)
        except KeyError:
            raise VerificationError("the file is missing", where=str(where), reason="missing-file") from None
        if size is not None and info.file_size != size:  # zipfile gives no more bytes than this
            expected = f"{size} bytes as the manifest records"
            raise VerificationError(
                f"{info.file_size} bytes", where=str(where), expected=expected, reason="modified-file"
            )
        try:
            return zipped.open(info)
        except _DAMAGED as error:
            raise _unreadable(where, error) from error


def archive_at(path: Path) -> Archive | None:
    """The package folder at `path`, which leads into a zip file; None when it does not, or holds none there.

    The zip file itself stands for the one package folder in it.

    Raises:
        LookupFailure: reason several-packages.
        VerificationError: the zip file is damaged.
    """
    file = next((parent for parent in (path, *path.parents) if is_file(parent)), None)
    if file is None or not zipfile.is_zipfile(file):
        return None
    inner = path.relative_to(file).as_posix()
    manifests = [name for name in _names(file) if name.endswith(f"{FOLDER_NAME}/{MANIFEST_NAME}")]
    folders = [name.removesuffix(MANIFEST_NAME) for name in manifests]
    if inner != ".":
        wanted = (f"{inner}/", f"{inner}/{FOLDER_NAME}/", inner.removesuffix(MANIFEST_NAME))
        folders = [folder for folder in folders if folder in wanted]
    if len(folders) > 1:
        raise LookupFailure(
            f"the archive holds {len(folders)} package folders",
            where=str(file),
            expected=f"one of {', '.join(str(file / folder.rstrip('/')) for folder in folders)}",
            reason="several-packages",
        )
    return Archive(file=file, folder=folders[0]) if folders else None


def archives_in(file: Path) -> list[tuple[str, Archive]]:
    """Package folders of top-level packages in a zip file, by import name; empty for any other file.

    A damaged zip file counts as another file: the import system passes it over, too.
    """
    if not zipfile.is_zipfile(file):
        return []
    parts: list[list[str]] = []
    with suppress(VerificationError):
        parts = [name.split("/") for name in _names(file)]
    names = [part[0] for part in parts if part[1:] == [FOLDER_NAME, MANIFEST_NAME]]
    return [(name, Archive(file=file, folder=f"{name}/{FOLDER_NAME}/")) for name in names]


def _names(file: Path) -> list[str]:
    """Names of the members of a zip file.

    Raises:
        VerificationError: it is damaged.
    """
    try:
        with zipfile.ZipFile(file) as zipped:
            return zipped.namelist()
    except _DAMAGED as error:
        raise _unreadable(file, error) from error


def unpack(archive: Archive, artifacts: tuple[Artifact, ...], mode: Verify) -> tuple[Path, Hold]:
    """A private folder that holds `artifacts`, verified: unpacked by an earlier start, or now.

    Raises:
        VerificationError: what the archive holds is not what the manifest says.
        LookupFailure: reason unwritable: there is no place for the files.
    """
    key = digest_entries((artifact.path, artifact.digest) for artifact in artifacts)[:32]
    try:
        base = private_base("unpacked")
        hold = Hold(base / f"{key}.lock")
        target = base / key
        if not _is_good(target, artifacts, mode):
            fill(base, target, lambda staging: archive.extract(artifacts, staging), publish_dir)
            collect(base)
    except OSError as error:
        raise _unwritable(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error
    return target, hold


def _is_good(target: Path, artifacts: tuple[Artifact, ...], mode: Verify) -> bool:
    """Whether an earlier start left the files; what is damaged is put out of the way, since the archive has it all."""
    if not target.is_dir():
        return False
    try:
        verify_files(target, artifacts, mode)
    except VerificationError:
        discard(target)
        return False
    return True


def _unreadable(where: Path, error: BaseException) -> VerificationError:
    return VerificationError(
        f"cannot be read: {error}",
        where=str(where),
        remedy="The archive is damaged or encrypted: get it anew, or install the wheel unpacked.",
        reason="unreadable",
    )


def _unwritable(found: str) -> LookupFailure:
    return LookupFailure(
        f"the files of a package inside an archive have to be unpacked, and cannot be: {found}",
        remedy="Set XDG_CACHE_HOME (Windows: LOCALAPPDATA) to a folder of this user's own, or install the wheel.",
        reason="unwritable",
    )
