"""What an sdist must hold so that a wheel can be built from it: models, their external data, and further inputs.

A front end's own rules may leave them out (generated and ignored by git, outside of what is selected), and a link in
an sdist leads nowhere on another machine: links are followed here. A model that does not exist yet is left out: a
hook may make it when the wheel is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.config import further_inputs, load_settings, read_project
from hatch_epctx.files import check_location
from hatch_epctx.lockfile import LOCK_NAME
from hatch_epctx.pipeline import Preparer
from hatch_epctx.source import walk_folder
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hatch_epctx.config import Settings

__all__ = ["SourceFile", "absent_models", "source_files"]

_SELECTIONS: Final = ("EPCTX_TARGETS", "EPCTX_MODELS")
"""Variables that choose what a wheel holds; an sdist holds everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file."""

    name: str
    """Path below the project's folder, with forward slashes."""
    path: Path
    """The regular file, absolute; of a link, what it leads to."""
    linked: bool
    """Whether the file itself, or a folder above it inside the project, is a link."""


def source_files(
    root: Path, *, hook: Mapping[str, Any] | None = None, environ: Mapping[str, str], opened: bool = True
) -> tuple[SourceFile, ...]:
    """Files below `root` that building a wheel reads, sorted by name. What lies outside is not among them.

    Args:
        root: the project's folder.
        hook: the hook's own table; none when left out.
        environ: environment variables.
        opened: with the external data of models; a worker reads the ONNX file of one that was never read before.

    Raises:
        ConfigError: the configuration is wrong.
        ModelError: a model is there and is unfit: a Git-LFS pointer, no ONNX file, external data that is missing.
    """
    root = root.absolute()
    settings = _everything(root, hook, environ)
    models = _of_models(settings, root) if opened else (root / model.source for model in settings.models.values())
    found = dict.fromkeys([*models, *_further(settings, root), root / LOCK_NAME])
    files = [_source_file(path, root) for path in found if path.is_file()]
    return tuple(sorted((file for file in files if file is not None), key=lambda file: file.name))


def absent_models(root: Path, *, hook: Mapping[str, Any] | None = None, environ: Mapping[str, str]) -> tuple[str, ...]:
    """A warning for each model that an sdist goes without, since it does not exist.

    The build of the wheel meets a misspelt path in a temporary folder, where its message helps less.

    Raises:
        ConfigError: the configuration is wrong.
    """
    models = _everything(root, hook, environ).models
    return tuple(
        f"tool.epctx.models.{name}.source: {model.source} does not exist: the sdist goes without it, and the build of "
        "the wheel must make it"
        for name, model in models.items()
        if not (root / model.source).is_file()
    )


def _everything(root: Path, hook: Mapping[str, Any] | None, environ: Mapping[str, str]) -> Settings:
    environ = {name: value for name, value in environ.items() if name not in _SELECTIONS}
    return load_settings(read_project(root), hook=hook, environ=environ, state="wheel")


def _of_models(settings: Settings, root: Path) -> Iterator[Path]:
    preparer = Preparer(Store(settings.environment.cache_dir))
    for name, model in settings.models.items():
        path = root / model.source
        if path.is_file():
            source = preparer.read(path, place=f"tool.epctx.models.{name}.source")
            yield path
            yield from (path.parent / check_location(location) for location, _ in source.external)


def _further(settings: Settings, root: Path) -> Iterator[Path]:
    for path in further_inputs(settings, root):
        if path.is_dir():
            yield from (found for _, found in walk_folder(path))
        else:
            yield path


def _source_file(path: Path, root: Path) -> SourceFile | None:
    try:
        name = path.relative_to(root).as_posix()
    except ValueError:
        return None
    if ".." in path.parts:
        return None
    real = path.resolve()
    return SourceFile(name=name, path=real, linked=real != root.resolve() / name)
