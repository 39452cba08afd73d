"""Package folders inside archives: zip applications (zipapp, zipimport) and wheels that were never installed.

ONNX Runtime and the EPs open files on disk, so the files of the chosen variant are streamed once into a private cache
and verified on the way; nothing else is unpacked, and nothing is held in memory whole. What a live process uses is
kept by a shared lock of its own; the rest goes once it has not been used for `KEPT` seconds. Whoever may write the
user's own cache folder can put other bytes there, so what was unpacked earlier is verified like an installed file.

Windows (not run there): a folder with open files cannot be renamed, which takes the lock's place.
"""

from __future__ import annotations

import os
import re
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from hatch_epctx.digest import digest_entries, digest_stream
from hatch_epctx.errors import LookupFailure, VerificationError
from hatch_epctx.files import make_private_dir, move, publish_dir, remove_tree
from hatch_epctx.manifest import FOLDER_NAME, MANIFEST_NAME
from hatch_epctx.runtime.places import is_private, private_folder
from hatch_epctx.runtime.verify import verify_files

if os.name != "nt":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from hatch_epctx.manifest import Artifact
    from hatch_epctx.runtime.verify import Verify

__all__ = ["KEPT", "Archive", "Hold", "archive_at", "archives_in", "unpack"]

KEPT: Final = 30 * 86400.0
"""Seconds after its last use for which an unpacked variant stays."""
_ABANDONED: Final = 86400.0
"""Seconds after which a half-unpacked folder belonged to a process that died."""
_STAGING: Final = ".tmp-"
_KEY = re.compile(r"[0-9a-f]{32}\Z")
_DAMAGED: Final = (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError)
"""What reading a damaged, encrypted or vanished archive raises (zipfile)."""


class Hold:
    """Keeps one unpacked folder from being collected for as long as this object lives."""

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        with suppress(OSError):  # without locks (some network file systems) age alone protects it
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
            self._descriptor = os.open(path, flags, 0o600)
            os.utime(self._descriptor if os.utime in os.supports_fd else path)
            if os.name != "nt":
                fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


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
            data = stream.read(limit + 1)
        if len(data) > limit:
            raise VerificationError("is too large", where=str(self.path / name), reason="too-large")
        return data

    def extract(self, artifacts: Iterable[Artifact], target: Path) -> None:
        """Stream files into the folder `target`, each checked on the way.

        Raises:
            VerificationError: a file is missing, of another size or digest, or cannot be read.
            OSError: `target` cannot be written.
        """
        with self._opened() as zipped:
            for artifact in artifacts:
                self._extract_one(zipped, artifact, target / artifact.path)

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
    """
    file = next((parent for parent in (path, *path.parents) if parent.is_file()), None)
    if file is None or not zipfile.is_zipfile(file):
        return None
    inner = path.relative_to(file).as_posix()
    with zipfile.ZipFile(file) as zipped:
        manifests = [name for name in zipped.namelist() if name.endswith(f"{FOLDER_NAME}/{MANIFEST_NAME}")]
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
    """Package folders of top-level packages in a zip file, by import name; empty for any other file."""
    if not zipfile.is_zipfile(file):
        return []
    with zipfile.ZipFile(file) as zipped:
        parts = [name.split("/") for name in zipped.namelist()]
    names = [part[0] for part in parts if part[1:] == [FOLDER_NAME, MANIFEST_NAME]]
    return [(name, Archive(file=file, folder=f"{name}/{FOLDER_NAME}/")) for name in names]


def unpack(archive: Archive, artifacts: tuple[Artifact, ...], mode: Verify) -> tuple[Path, Hold]:
    """A private folder that holds `artifacts`, verified: unpacked by an earlier start, or now.

    Raises:
        VerificationError: what the archive holds is not what the manifest says.
        LookupFailure: reason unwritable: there is no place for the files.
    """
    base = private_folder("unpacked")
    if base is None:
        raise _unwritable("this user has no cache folder")
    key = digest_entries((artifact.path, artifact.digest) for artifact in artifacts)[:32]
    try:
        make_private_dir(base, durable=False)
        if not is_private(base):
            raise _unwritable(f"{base} may be written by others")
        hold = Hold(base / f"{key}.lock")
        target = base / key
        if not _is_good(target, artifacts, mode):
            _unpack_into(archive, artifacts, base, target)
            _collect(base)
    except OSError as error:
        raise _unwritable(f"{error.filename or base}: {error.strerror or error}") from error
    return target, hold


def _is_good(target: Path, artifacts: tuple[Artifact, ...], mode: Verify) -> bool:
    """Whether an earlier start left the files; what is damaged is put out of the way, since the archive has it all."""
    if not target.is_dir():
        return False
    try:
        verify_files(target, artifacts, mode)
    except VerificationError:
        aside = target.parent / f"{_STAGING}{os.urandom(8).hex()}"
        move(target, aside)
        remove_tree(aside)
        return False
    return True


def _unpack_into(archive: Archive, artifacts: tuple[Artifact, ...], base: Path, target: Path) -> None:
    staging = base / f"{_STAGING}{os.urandom(8).hex()}"
    staging.mkdir(0o700)
    try:
        archive.extract(artifacts, staging)
        try:
            publish_dir(staging, target)
        except OSError:
            if not target.is_dir():  # else somebody else was faster, with the same bytes
                raise
    finally:
        with suppress(OSError):
            remove_tree(staging)


def _collect(base: Path) -> None:
    """Remove what nobody uses and nobody has used for long. Best effort: a later start tries again."""
    now = time.time()
    for path in list(base.iterdir()):
        with suppress(OSError):
            if path.name.startswith(_STAGING):
                if now - path.lstat().st_mtime > _ABANDONED:
                    remove_tree(path)
            elif _KEY.match(path.name):
                _remove_unused(path, now)


def _remove_unused(path: Path, now: float) -> None:
    """Remove an unpacked folder unless it was used lately or is in use.

    Raises:
        OSError: it is in use, or cannot be removed.
    """
    lock = path.with_suffix(".lock")
    if now - lock.stat().st_mtime < KEPT:
        return
    descriptor = os.open(lock, os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0))
    try:
        if os.name != "nt":
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        aside = path.parent / f"{_STAGING}{os.urandom(8).hex()}"
        move(path, aside)  # within the lock: who comes now finds nothing and unpacks anew
    finally:
        os.close(descriptor)
    remove_tree(aside)


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
