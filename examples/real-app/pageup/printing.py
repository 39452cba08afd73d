"""``python -m pageup.printing TEXT PICTURE [--turn 90]``: print a text file onto a page, as a scanner would see it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT = 850, 1100
MARGIN = 60
LINE = 22


def print_page(text: str) -> Image.Image:
    """The first page of `text`, black on white, letter size at 100 dots per inch."""
    page = Image.new("L", (WIDTH, HEIGHT), 255)
    draw = ImageDraw.Draw(page)
    font = ImageFont.load_default(size=18)
    for index, line in enumerate(text.splitlines()[: (HEIGHT - 2 * MARGIN) // LINE]):
        draw.text((MARGIN, MARGIN + LINE * index), line[:75], fill=0, font=font)
    return page


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pageup.printing", description="Print a text file onto a page.")
    parser.add_argument("text", type=Path)
    parser.add_argument("picture", type=Path, help="the file to write; its suffix names the format")
    parser.add_argument("--turn", type=int, choices=(0, 90, 180, 270), default=0, help="degrees, clockwise")
    options = parser.parse_args(arguments)
    page = print_page(options.text.read_text(encoding="utf-8"))
    page.rotate(-options.turn, expand=True).save(options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
