"""The action that compiles: a fresh pipeline over a private store, and its outputs as flat files."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hatch_epctx.bazel.machine import read_machine, verify_machine
from hatch_epctx.bazel.records import reproducible, write_manifest
from hatch_epctx.bazel.settings import project_of, read_config, read_object, table_of
from hatch_epctx.console import Lines
from hatch_epctx.errors import CompileError, StoreError
from hatch_epctx.files import copy_file, remove_tree
from hatch_epctx.pipeline import Pipeline
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hatch_epctx.bazel.settings import ActionInputs
    from hatch_epctx.pipeline import Build, Planned
    from hatch_epctx.store import Record

__all__ = ["compile_action", "scratch_beside"]

_MODE = 0o644


@contextmanager
def scratch_beside(output: Path) -> Iterator[Path]:
    """A folder for the time of the action, on the disk of its output. What a killed action left there goes first.

    Raises:
        StoreError: it cannot be made or written.
    """
    folder = output.absolute().with_name(f"{output.name}.scratch")
    try:
        remove_tree(folder)
        folder.mkdir(parents=True)
        yield folder
    except OSError as error:
        raise StoreError(
            f"cannot be written: {error.strerror or error}", where=str(error.filename or folder), reason="unwritable"
        ) from error
    finally:
        remove_tree(folder)


def compile_action(
    config_file: Path,
    inputs: ActionInputs,
    *,
    machine_file: Path | None,
    out: Path,
    manifest: Path,
    write: Callable[[str], None],
) -> None:
    """Compile what `config_file` declares; artifacts go into the folder `out`, facts into `manifest`.

    Args:
        config_file: see `settings`.
        inputs: where models and option files lie.
        machine_file: see `machine`.
        out: an empty folder, or one that is not there yet.
        manifest: a file that is written last.
        write: prints a line that somebody should act on.

    Raises:
        EpctxError: anything that a user can cause; nothing is left in `out` then but what Bazel throws away.
    """
    config = read_config(read_object(config_file, "configuration"), str(config_file))
    declared = None
    if machine_file is not None:
        declared = read_machine(read_object(machine_file, "description of a machine"), str(machine_file))
    with scratch_beside(out) as scratch:
        project = project_of(table_of(config, inputs, scratch / "inputs"), scratch / "inputs")
        pipeline = Pipeline(project, Store(scratch / "store"), report=Lines(write, level="warning"))
        planned = pipeline.prepare()
        for item in planned:
            if item.identity is None:  # a target is required unless it says otherwise, and the rules never do
                raise CompileError(item.skipped, where=item.variant.name, reason="skipped")
            verify_machine(item, declared, cacheable=config["cacheable"])
        with pipeline.obtain(planned) as built:
            built.raise_for_failures()
            record = _write_artifacts(built, out)
        manifest.write_bytes(
            write_manifest(
                config,
                calibrated=inputs.calibrations,
                custom_ops={model: [path.name for path in paths] for model, paths in inputs.custom_ops.items()},
                options=_option_kinds(planned[0]),
                sources=_sources(planned),
                record=record,
            )
        )


def _write_artifacts(built: Build, out: Path) -> Record:
    """Copy the one generation of `built` into `out`; return its record as the manifest holds it."""
    generation = built.entries[0].generation
    if generation is None or any(entry.generation is None for entry in built.entries):
        raise CompileError("nothing was compiled", where=built.entries[0].variant.name, reason="not-built")
    record = reproducible(generation.record)
    out.mkdir(parents=True, exist_ok=True)
    for artifact in record.artifacts:
        copy_file(generation.file(artifact), out / artifact.path)
        (out / artifact.path).chmod(_MODE)
    return record


def _option_kinds(planned: Planned) -> dict[str, str]:
    return {
        option.name: "file" if option.file is not None else "folder"
        for option in planned.variant.provider_options
        if option.is_path
    }


def _sources(planned: tuple[Planned, ...]) -> dict[str, Any]:
    return {item.variant.model: item.source for item in planned}
