"""The files of a worker's program, to run it on another machine: Python is there, everything else comes along.

That is this package's worker, ONNX Runtime and onnx, the EP's distribution, and what these require. Their digests are
those of the identity's toolchain section, because they are the very files that it was made of.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from hatch_epctx.toolchain.closure import closure_files
from hatch_epctx.toolchain.discovery import BUILDS, ONNXRUNTIME, brings, find_distribution

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.metadata import Distribution

    from hatch_epctx.providers import Provider

__all__ = ["program_files"]

Entry = tuple[str, Path]

_OWN: Final = ("digest", "errors", "files", "manifest", "providers", "redact", "runtime", "toolchain", "worker")
"""What the worker imports of this package."""
_UNUSED: Final = frozenset({"coloredlogs", "flatbuffers", "humanfriendly", "mpmath", "sympy"})
"""Required by distributions of ONNX Runtime for tools that no worker uses."""
_TESTS: Final = frozenset({"test", "tests"})
"""Folders of libraries that are not needed to run them; onnx keeps thousands of files there."""


def program_files(provider: Provider) -> list[Entry]:
    """(name below the program's folder, path) of every file, sorted by name."""
    builds = [build for build in map(find_distribution, BUILDS) if build is not None and brings(build, ONNXRUNTIME)]
    eps = [found for found in map(find_distribution, provider.distributions) if found is not None][:1]
    entries: dict[str, Path] = dict(_own())
    for found in (*builds, *eps):
        entries |= closure_files(found, code=True)
    entries |= closure_files(None, ONNXRUNTIME, code=True)
    if provider.module:
        entries |= closure_files(None, provider.module, code=True)
    package = provider.procedure.partition(".")[0]
    if package != "hatch_epctx":
        entries |= closure_files(None, package, code=True)
    for library in _required((*builds, *eps)):
        files = closure_files(library, code=True)
        entries |= {name: path for name, path in files if not _TESTS & set(name.split("/")[:-1])}
    return sorted(entries.items())


def _own() -> Iterator[Entry]:
    package = Path(__file__).resolve().parents[1]
    yield "hatch_epctx/__init__.py", package / "__init__.py"
    for part in _OWN:
        path = package / part
        found = sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
        yield from ((f"hatch_epctx/{file.relative_to(package).as_posix()}", file) for file in found)


def _required(roots: tuple[Distribution, ...]) -> list[Distribution]:
    """onnx, and what it and `roots` require, without extras; what is not installed is left out."""
    seen = {canonicalize_name(root.metadata["Name"]) for root in roots} | _UNUSED | set(BUILDS)
    libraries: list[Distribution] = []
    left = [text for root in roots for text in root.requires or ()] + ["onnx"]
    while left:
        try:
            requirement = Requirement(left.pop())
        except InvalidRequirement:
            continue
        name = canonicalize_name(requirement.name)
        if name in seen or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(name)
        if (found := find_distribution(name)) is not None:
            libraries.append(found)
            left += found.requires or ()
    return libraries
