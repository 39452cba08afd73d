"""Says what kind of file a file is.

The model is Magika's (Apache-2.0, Google); the pre-processing below is its documented one: the first and last 1024
bytes of the content, white space stripped from the outer ends, padded with the number 256.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from hatch_epctx import runtime

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Answer", "Detector", "features"]

BLOCK = 4096
"""Bytes read from either end of the file."""
SIDE = 1024
"""Bytes of either end that the model sees."""
PADDING = 256


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model says of one file."""

    label: str
    """Magika's short name, such as "python"."""
    description: str
    probability: float


def features(path: Path) -> np.ndarray:
    """The model's input for one file: int32 [1, 2048].

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as stream:
        begin = stream.read(BLOCK)
        size = stream.seek(0, 2)
        stream.seek(max(0, size - BLOCK))
        end = stream.read(BLOCK)
    row = np.full(2 * SIDE, PADDING, dtype=np.int32)
    begin = begin.lstrip()[:SIDE]
    end = end.rstrip()[-SIDE:]
    row[: len(begin)] = np.frombuffer(begin, dtype=np.uint8)
    row[2 * SIDE - len(end) :] = np.frombuffer(end, dtype=np.uint8)
    return row[np.newaxis]


class Detector:
    """The model in the variant that fits this machine, or in that of `ep`; `choice` tells which.

    Raises:
        LookupFailure: `ep` is given and has no variant that runs here.
    """

    def __init__(self, ep: str | None = None) -> None:
        package = runtime.open("filekind")
        self._session = package.session("magika", ep=ep, fallback="error" if ep else "source")
        self.choice = runtime.explain(self._session)
        text = resources.files("filekind").joinpath("labels.json").read_text(encoding="utf-8")
        self._labels: list[list[str]] = json.loads(text)

    def probabilities(self, path: Path) -> np.ndarray:
        """Probability of every kind: float32 [214]."""
        (output,) = self._session.run(None, {"bytes": features(path)})
        return output[0]

    def __call__(self, path: Path) -> Answer:
        """The likeliest kind of the file."""
        row = self.probabilities(path)
        best = int(row.argmax())
        return Answer(*self._labels[best], float(row[best]))
