"""Compile at first use: one variant of an installed package, made on this machine into the user's own store.

It is the pipeline of a build over a project of one variant: the same identity (so that a machine which built the
wheel, or compiled it before, compiles nothing), the same lock (a second process waits, and gets the result), the
same worker, validation, load check and limits of the store. The lease that it returns keeps the generation for as
long as it is open.

The look-up imports this module by name when it is asked to compile (`runtime.compiling`): the one step upwards in the
order of floors, so that an application without the build extra never sees it.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.config import single_project
from hatch_epctx.errors import CompileError
from hatch_epctx.pipeline import Pipeline
from hatch_epctx.providers import find_provider
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hatch_epctx.config import Variant
    from hatch_epctx.pipeline import Build

__all__ = ["Made", "compile_now"]

_PAUSE: Final = 0.05
"""Seconds between two looks at the time and at the caller's wish to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A generation of this machine's store, leased."""

    model: Path
    """The ONNX file; its context binaries lie beside it."""
    beside: tuple[str, ...]
    """Names of the files beside the model that it needs."""
    provider_options: Mapping[str, str]
    session_options: Mapping[str, str]
    identity: str
    status: str
    """compiled; hit when it was there already; fetched when it came from a remote cache."""
    lease: Build
    """Close it when the files are no longer used."""


def compile_now(
    source: Path,
    *,
    target: Mapping[str, Any],
    model: Mapping[str, Any],
    progress: Callable[[str], None],
    timeout: float | None,
    cancel: threading.Event | None,
) -> Made:
    """Bring one variant into the store.

    Args:
        source: the source model on disk, with its external data.
        target: a target's table, with TOML's keys.
        model: further keys of the model's table.
        progress: called with one line of progress, from any thread.
        timeout: seconds for everything, waiting for another process included; None: the target's own limit for the
            compile and for the load check.
        cancel: ends it when it is set.

    Raises:
        EpctxError: as a build does; CompileError with the reason "timeout" or "cancelled" when it was ended.
    """
    unknown = [name for name in target.get("provider-options", {}) if name not in find_provider(target["ep"]).options]
    table = {**target, "allow-unknown-options": unknown}
    if timeout is not None:
        table["timeout"] = timeout
    project = single_project(source, table, model=model, environ=os.environ)
    store = Store(project.environment.cache_dir)
    pipeline = Pipeline(project, store, report=lambda _variant, text: progress(text))
    built = _Run(pipeline, timeout, cancel).result()
    try:
        built.raise_for_failures()
        return _made(built, project.variants[0])
    except BaseException:
        built.close()
        raise


def _made(built: Build, variant: Variant) -> Made:
    entry = built.entries[0]
    generation, identity = entry.generation, entry.planned.identity
    if generation is None or identity is None:
        raise CompileError(entry.reason or "nothing was compiled", where=variant.name, reason="skipped")
    model = next(artifact for artifact in generation.record.artifacts if artifact.role == "model")
    return Made(
        model=generation.file(model),
        beside=tuple(item.path for item in generation.record.artifacts if item.role in ("context", "weights")),
        provider_options={option.name: option.text for option in variant.load_options},
        session_options=dict(variant.load_session_options),
        identity=identity.digest,
        status=entry.status,
        lease=built,
    )


class _Run:
    """A build in a thread of its own, watched by the caller's."""

    def __init__(self, pipeline: Pipeline, timeout: float | None, cancel: threading.Event | None) -> None:
        self._pipeline = pipeline
        self._timeout = timeout
        self._cancel = cancel
        self._built: Build | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="epctx-first-use", daemon=True)

    def _work(self) -> None:
        try:
            self._built = self._pipeline.build()
        except BaseException as error:  # noqa: BLE001  # raised in the caller's thread
            self._error = error

    def result(self) -> Build:
        """Wait for the build; when it has to end early, end its workers and wait for that.

        Raises:
            EpctxError: see `compile_now`.
        """
        end = None if self._timeout is None else time.monotonic() + self._timeout
        self._thread.start()
        why = ""
        try:
            while self._thread.is_alive() and not why:
                self._thread.join(_PAUSE)
                if self._cancel is not None and self._cancel.is_set():
                    why = "cancelled"
                elif end is not None and time.monotonic() >= end:
                    why = "timeout"
        finally:
            self._end()
        if why and (self._built is None or self._built.entries[0].generation is None):
            self._close()
            raise self._ended(why)
        if self._error is not None:
            raise self._error
        assert self._built is not None  # noqa: S101  # one of the two, by `_work`
        return self._built

    def _end(self) -> None:
        """Nothing of it goes on once this returns."""
        while self._thread.is_alive():
            self._pipeline.stop()
            self._thread.join(_PAUSE)

    def _close(self) -> None:
        if self._built is not None:
            self._built.close()

    def _ended(self, why: str) -> CompileError:
        name = self._pipeline.project.variants[0].name
        if why == "cancelled":
            return CompileError("the compile was cancelled", where=name, reason="cancelled")
        found = f"the compile was ended after {self._timeout:.0f} s"
        return CompileError(found, where=name, remedy="Allow it more time, or fall back otherwise.", reason="timeout")
