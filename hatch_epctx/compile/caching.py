"""An EP's own cache, filled in one fresh process and tried in a second one.

In the private folder of a compile the cache is `FOLDER`. What the EP left there becomes artifacts under names by
content; the EP's own names for the files stand in the facts, since it looks for these. The load check gets the files
back under them, and must leave them alone: an EP that writes again did not take up what it found.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.compile.jobs import load_job
from hatch_epctx.compile.outcomes import result_of, run
from hatch_epctx.digest import content_name, digest_file
from hatch_epctx.epcache import clash, with_folder
from hatch_epctx.errors import CompileError
from hatch_epctx.files import check_name, copy_file, move, remove_file, remove_tree
from hatch_epctx.store import Artifact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hatch_epctx.config import Variant
    from hatch_epctx.worker.protocol import Job

__all__ = ["cache_status", "cached_job", "fill_cache", "put_back", "unused_cache"]

FOLDER: Final = "ep-cache"
FILES: Final = 1024
"""Files that a cache may hold."""
_DEPTH: Final = 8


def cached_job(variant: Variant, job: Job) -> Job:
    """`job` with the cache's folder among the provider options, where the variant has a cache."""
    if variant.ep_cache is None:
        return job
    options = with_folder(variant.ep_cache, variant.device, job["provider_options"], FOLDER)
    return {**job, "provider_options": options}


def fill_cache(variant: Variant, folder: Path, facts: dict[str, Any], *, hint: str) -> tuple[Artifact, ...]:
    """Let the EP fill its cache by opening what lies in `folder`; return what it left, under names by content.

    Adds to `facts`: `ep_cache` with the EP's own names of the files, and for a cached variant its coverage.

    Raises:
        CompileError: it does not open; the EP takes no node (no-node); it wrote nothing (cache-empty), or what cannot
            be shipped (cache-unfit).
    """
    remove_tree(folder / FOLDER)
    (folder / FOLDER).mkdir()
    job = cached_job(variant, load_job(variant))
    cached = variant.kind == "cached"
    # Which EP has which node cannot be asked of a session that opens a compiled model.
    recording = {"session.record_ep_graph_assignment_info": "1"} if cached else {}
    job |= {"task": "warm", "want_coverage": cached, "session_options": {**job["session_options"], **recording}}
    outcome = run(job, folder, timeout=variant.timeout, env=variant.env, memory=variant.memory_limit)
    result = result_of(outcome, place=variant.name, what="filling the EP's cache", fallback=CompileError, hint=hint)
    facts |= {name: result[name] for name in ("coverage", "left", "ep_version", "onnxruntime") if name in result}
    facts["seconds"]["warm"] = round(outcome.seconds, 3)
    files = {name: _taken(folder, path) for name, path in sorted(_written(variant, folder / FOLDER).items())}
    remove_tree(folder / FOLDER)
    if not files:
        raise CompileError(
            f"{variant.provider.title} wrote nothing into its cache while it opened the model",
            where=variant.name,
            remedy="Remove 'ep-cache': it gains nothing here.",
            reason="cache-empty",
        )
    facts["ep_cache"] = {"files": {name: artifact.path for name, artifact in files.items()}}
    return tuple({artifact.path: artifact for artifact in files.values()}.values())


def _written(variant: Variant, folder: Path) -> dict[str, Path]:
    """Files of the cache by their names below it, empty ones apart.

    Raises:
        CompileError: reason cache-unfit.
    """
    found: dict[str, Path] = {}
    for path in _walk(folder, _DEPTH):
        name = path.relative_to(folder).as_posix()
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise _unfit(variant, f"{name!r} is no regular file")
        try:
            for part in name.split("/"):
                check_name(part)
        except ValueError as error:
            raise _unfit(variant, str(error)) from error
        if status.st_size:
            found[name] = path
    if clash(found):
        raise _unfit(variant, "two names are one where case does not count")
    if len(found) > FILES:
        raise _unfit(variant, f"{len(found)} files, more than {FILES}")
    return found


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """What is in the folder, no link followed; folders that are nested too deeply count as what they are."""
    for path in sorted(folder.iterdir()):
        if depth and path.is_dir() and not path.is_symlink():
            yield from _walk(path, depth - 1)
        else:
            yield path


def _unfit(variant: Variant, found: str) -> CompileError:
    return CompileError(
        f"the cache of {variant.provider.title} cannot be shipped: {found}",
        where=variant.name,
        remedy="Remove 'ep-cache'.",
        reason="cache-unfit",
    )


def _taken(folder: Path, path: Path) -> Artifact:
    digest, size = digest_file(path), path.stat().st_size
    final = folder / content_name(digest)
    if final.exists():
        remove_file(path)
    else:
        move(path, final)
    return Artifact(role="ep-cache", path=final.name, size=size, digest=digest)


def put_back(folder: Path, files: Mapping[str, str]) -> None:
    """Give the EP its files back under its own names, as the look-up does."""
    remove_tree(folder / FOLDER)
    (folder / FOLDER).mkdir()
    for name, artifact in files.items():
        target = folder / FOLDER / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_file(folder / artifact, target)


def cache_status(folder: Path) -> dict[str, tuple[int, ...]]:
    """By which a file that was written again is told from one that was left alone."""
    if not (folder / FOLDER).is_dir():
        return {}
    paths = _walk(folder / FOLDER, _DEPTH)
    statuses = {path.relative_to(folder).as_posix(): path.lstat() for path in paths}
    return {name: (found.st_ino, found.st_size, found.st_mtime_ns) for name, found in statuses.items()}


def unused_cache(variant: Variant) -> CompileError:
    """The error for an EP that wrote again what it had been given."""
    return CompileError(
        f"{variant.provider.title} does not take up, in a second process, the cache that it wrote in a first one",
        where=variant.name,
        remedy="Remove 'ep-cache': it gains nothing here.",
        reason="cache-unused",
    )
