"""Staging: private folders in which a compile works, and from which its artifacts are taken."""

from __future__ import annotations

import os
import tempfile
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from hatch_epctx.digest import digest_stream
from hatch_epctx.errors import StoreError
from hatch_epctx.files import (
    copy_file,
    fault_point,
    long_path,
    make_dir,
    move,
    open_regular,
    remove_tree,
)
from hatch_epctx.lease import Lease

if TYPE_CHECKING:
    from hatch_epctx.store.layout import Layout
    from hatch_epctx.store.records import Artifact

__all__ = ["Staging"]


class Staging:
    """A private folder, removed when it is closed, found and removed by others when its process is dead.

    Made by `Store.staging`. Within the folder lie ``work`` (`path`, for the user of this object), ``out`` (artifacts
    on their way to a generation) and temporary files of the publish.
    """

    def __init__(self, folder: Path, claims: ExitStack, *, temporary: bool) -> None:
        self.folder = folder
        """The whole private folder."""
        self.path = folder / "work"
        """Where to work: an empty folder."""
        self.out = folder / "out"
        """Artifacts that were taken."""
        self.temporary = temporary
        """Not in the store: in the system's folder for temporary files."""
        self._claims = claims
        make_dir(self.path, durable=False)

    @classmethod
    def in_store(cls, layout: Layout) -> Staging:
        """Make one in the store, claimed before it is there.

        Raises:
            OSError: it cannot be made; nothing is left.
        """
        folder = layout.staging / uuid.uuid4().hex
        with ExitStack() as claims:
            claims.enter_context(Lease.acquire(layout.leases, folder.name))
            claims.callback(_remove, folder)
            staging = cls(folder, claims, temporary=False)
            fault_point("staging-made")
            staging._claims = claims.pop_all()
        return staging

    @classmethod
    def elsewhere(cls) -> Staging:
        """Make one in the system's folder for temporary files. A killed process leaves it there.

        Raises:
            OSError: that cannot be done either.
        """
        folder = Path(tempfile.mkdtemp(prefix="epctx-"))
        with ExitStack() as claims:
            claims.callback(_remove, folder)
            staging = cls(folder, claims, temporary=True)
            staging._claims = claims.pop_all()
        return staging

    def close(self) -> None:
        """Remove the folder and give up the claim, unless both were handed over."""
        self._claims.close()

    def hand_over(self) -> ExitStack:
        """Give folder and claim away: closing what is returned removes the one and gives up the other."""
        return self._claims.pop_all()

    def keep(self, folder: Path) -> Path | None:
        """Move what the user of this object made out of the claimed folder; return where it is now.

        Args:
            folder: where it goes to, made when it is not there. A temporary staging folder goes to a temporary one.

        Returns:
            None where it cannot be kept.
        """
        try:
            if self.temporary:
                folder = Path(tempfile.mkdtemp(prefix="epctx-kept-"))
            make_dir(folder, durable=False)
            kept = folder / self.folder.name
            move(self.path, kept)
        except OSError:
            return None
        return kept

    def take(self, artifacts: tuple[Artifact, ...], source: Path) -> Path:
        """Move exactly `artifacts` from the folder `source` to `out`, verified; return `out`.

        A file that has a second name (a hard link) is copied, so that nobody can write to the artifact through it.

        Raises:
            StoreError: an artifact is missing, no regular file, or not what its record says.
            OSError: the disk failed.
        """
        make_dir(self.out, durable=False)
        for artifact in artifacts:
            path = source / artifact.path
            if _verified_links(path, artifact) == 1:
                move(path, self.out / artifact.path)
            else:
                copy_file(path, self.out / artifact.path)
            fault_point("artifact-taken")
        return self.out


def _verified_links(path: Path, artifact: Artifact) -> int:
    """Number of names of the file at `path`, whose bytes are those of `artifact`."""
    try:
        with open_regular(path) as stream:
            status = os.fstat(stream.fileno())
            found = digest_stream(stream)
    except FileNotFoundError as error:
        raise StoreError(
            f"{artifact.path} is not there, which the compile wrote",
            where=str(path.parent),
            remedy="Something removed it after the compile ended: build again.",
            reason="missing-artifact",
        ) from error
    if found != (artifact.digest, artifact.size):
        raise StoreError(
            f"{artifact.path} has {found[1]} bytes with digest {found[0][:16]}",
            where=str(path.parent),
            expected=f"{artifact.size} bytes with digest {artifact.digest[:16]}, as the compile said",
            remedy="Something changed the file after the compile ended: build again.",
            reason="modified-artifact",
        )
    return status.st_nlink


def _remove(folder: Path) -> None:
    """Remove as much as can be; what stays is found again when this process is dead."""
    try:
        remove_tree(long_path(folder))
    except OSError:
        return
