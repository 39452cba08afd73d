"""Context data through ONNX Runtime's named-buffer callbacks in place of files that the EP writes and opens itself.

What an EP hands over lands in the job's folder under the name it gave, and goes the way of every context binary from
there: checked, renamed by content, digested. So a compile by callbacks gives store and wheel the same artifacts as
one by files, and the load check hands them back through a callback. An EP that writes a file of its own beside the
callback is refused, and so is one that is asked for callbacks and hands nothing over.

ONNX Runtime has the callbacks since 1.31; it refuses an EP that does not support them itself.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.files import check_name, read_bounded
from hatch_epctx.worker.failure import TaskError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hatch_epctx.worker.protocol import Job

__all__ = ["UNSUPPORTED", "Received", "give_back", "receive", "refusal", "wants_callbacks"]

UNSUPPORTED: Final = "does not support the registered EPContext data"
"""Part of ONNX Runtime's message about an EP without callbacks (1.32, graph_partitioner.cc)."""
_SLICE: Final = 16 << 20
_LIMIT: Final = 1 << 40
"""Bytes of one binary: more is a fault of the EP."""


def wants_callbacks(job: Job) -> bool:
    """Whether context data goes through callbacks."""
    return job.get("context_io") == "callbacks" and not job.get("embed")


class Received:
    """The write callback of one compile. ONNX Runtime may call it from several threads.

    Attributes:
        names: names of the files that it wrote.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._guard = threading.Lock()

    def __call__(self, name: str, data: Any) -> None:
        """Write `data` (an OrtEpContextData) to the new file `name` in the current folder."""
        self._claim(check_name(name), data.size)
        with Path(name).open("xb") as stream:
            for start in range(0, data.size, _SLICE):
                part = data.read(start, min(_SLICE, data.size - start))
                stream.write(part)

    def _claim(self, name: str, size: int) -> None:
        if size > _LIMIT:
            raise ValueError(f"{name!r} has {size:,} bytes")
        with self._guard:
            if name in self.names:
                raise ValueError(f"{name!r} is written twice")
            self.names.add(name)

    def check(self, job: Job, known: Iterable[str]) -> None:
        """Look at what the compile left.

        Args:
            job: the job.
            known: names of the files that lie in the folder for other reasons.

        Raises:
            TaskError: callbacks-unsupported: nothing came, or files lie there that came another way.
        """
        ep = job["ep"]
        others = {path.name for path in Path().iterdir()} - self.names - set(known)
        if not self.names:
            raise _unsupported(f"{ep} compiled the model and handed no context data to the callback")
        if others:
            raise _unsupported(f"{ep} wrote {', '.join(sorted(others))} beside what it handed to the callback")


def receive(job: Job, compiler: Any, runtime: Any) -> Received:
    """Register a write callback.

    Raises:
        TaskError: callbacks-unsupported: this ONNX Runtime has none.
    """
    if not hasattr(compiler, "set_ep_context_data_write_func"):
        raise _no_callbacks(job, runtime)
    received = Received()
    compiler.set_ep_context_data_write_func(received)
    return received


def give_back(job: Job, options: Any, runtime: Any, folder: Path) -> None:
    """Register a read callback that gives the files of `folder`, whole and nothing else.

    Raises:
        TaskError: callbacks-unsupported: this ONNX Runtime has none.
    """
    if not hasattr(options, "set_ep_context_data_read_func"):
        raise _no_callbacks(job, runtime)
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}

    def read(name: str, target: Any) -> None:
        data = memoryview(read_bounded(folder / check_name(name), sizes[name]))
        target.allocate(data.nbytes)
        for start in range(0, data.nbytes, _SLICE):
            target.write(data[start : start + _SLICE], start)

    options.set_ep_context_data_read_func(read, max(sizes.values(), default=1))


def refusal(job: Job, text: str) -> TaskError | None:
    """The error that ONNX Runtime's message `text` about missing support is; None for any other message."""
    return _unsupported(f"{job['ep']}: {text}") if UNSUPPORTED in text else None


def _no_callbacks(job: Job, runtime: Any) -> TaskError:
    version = getattr(runtime, "__version__", "of an unknown version")
    return _unsupported(f"onnxruntime {version} has no EPContext data callbacks for {job['ep']}; 1.31 is the first")


def _unsupported(text: str) -> TaskError:
    remedy = 'Set context-io = "files" for the target, or install an EP and an onnxruntime that support callbacks.'
    return TaskError("callbacks-unsupported", text, remedy=remedy)
