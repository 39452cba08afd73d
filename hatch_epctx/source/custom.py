"""Libraries of custom operators that a model needs: what stands in the identity of them, and private copies.

A library is a file of the project, or comes from an installed distribution whose module has `get_library_path()`. Of a
file the content counts; of a distribution its version and every library in it. Nothing is imported here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from hatch_epctx.errors import ConfigError, ToolchainError
from hatch_epctx.source.inputs import snapshot_inputs
from hatch_epctx.toolchain import closure_digest, closure_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from hatch_epctx.config import CustomOps

__all__ = ["CustomOpsLibrary", "needs_of", "read_custom_ops", "snapshot_custom_ops"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomOpsLibrary:
    """One library as it was when it was read."""

    ops: CustomOps
    digest: str
    """Of the file; of a distribution, of all its libraries."""
    distribution: str = ""
    version: str = ""

    def document(self) -> dict[str, str]:
        """What stands in the identity; no path and no file name."""
        if self.ops.file is not None:
            return {"content": self.digest}
        return {
            "module": self.ops.module,
            "distribution": self.distribution,
            "version": self.version,
            "digest": self.digest,
        }


def read_custom_ops(
    declared: Iterable[CustomOps], *, place: str, digest: Callable[[Path], str]
) -> tuple[CustomOpsLibrary, ...]:
    """The libraries in order.

    Args:
        declared: as configured.
        place: where the configuration names them, for messages.
        digest: content digest of a file; a stat cache makes a warm call cheap.

    Raises:
        ConfigError: a file is missing or cannot be read.
        ToolchainError: no installed distribution brings the module.
    """
    return tuple(_read(ops, place, digest) for ops in declared)


def _read(ops: CustomOps, place: str, digest: Callable[[Path], str]) -> CustomOpsLibrary:
    if ops.file is None:
        return _installed(ops, place, digest)
    try:
        return CustomOpsLibrary(ops=ops, digest=digest(ops.file))
    except OSError as error:
        raise ConfigError(
            f"the library of custom operators cannot be read: {error.strerror or error}: {ops.file}",
            where=place,
            expected="a shared library with the function RegisterCustomOps, relative to the project root",
            remedy="Check the path, or build the library before the models are compiled.",
            reason="missing-custom-ops",
        ) from error


def _installed(ops: CustomOps, place: str, digest: Callable[[Path], str]) -> CustomOpsLibrary:
    top = ops.module.partition(".")[0]
    names = sorted(set(metadata.packages_distributions().get(top, ())))
    if not names:
        raise ToolchainError(
            f"no installed distribution brings the module {ops.module!r}",
            where=place,
            expected="an import name whose module has get_library_path(), or the path of a library in the project",
            remedy="Install what brings it, and name it in [build-system] requires for isolated builds.",
            reason="missing-custom-ops",
        )
    distribution = metadata.distribution(names[0])
    return CustomOpsLibrary(
        ops=ops,
        digest=closure_digest(closure_files(distribution, top), digest),
        distribution=re.sub(r"[-_.]+", "-", names[0]).lower(),
        version=distribution.version,
    )


def snapshot_custom_ops(libraries: Iterable[CustomOpsLibrary], folder: Path) -> None:
    """Copy the libraries that are files into `folder`, under the names that jobs give them (`CustomOps.copy_name`).

    Raises:
        SourceChangedError: the bytes copied are not those that were read, or went away.
        OSError: the copy cannot be written.
    """
    for library in libraries:
        copy = folder / library.ops.copy_name
        if library.ops.file is not None and not copy.exists():
            snapshot_inputs(library.ops.file, copy, library.digest)


def needs_of(section: Mapping[str, Any], declared: Iterable[CustomOps]) -> list[dict[str, str]]:
    """What running the model needs, as the manifest has it.

    Args:
        section: `model` of the identity document.
        declared: the libraries, in the same order.
    """
    return [
        {"file": ops.file.name, "digest": entry["content"]}
        if ops.file is not None
        else {name: entry[name] for name in ("module", "distribution", "version")}
        for ops, entry in zip(declared, section.get("custom-ops", ()), strict=True)
    ]
