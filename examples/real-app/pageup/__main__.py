"""``python -m pageup PAGE...``: one line for each picture of a page, and last the variant that answered."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import onnxruntime

from pageup import Detector, open_page, upright

WORDS = {0: "upright", 90: "turned right", 180: "upside down", 270: "turned left"}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="pageup", description="Tell which way up each PAGE is.")
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE", help="a picture of a page: PNG, JPEG, TIFF, ...")
    parser.add_argument("--ep", help="openvino, qnn or cpu; by default what the look-up chooses for this machine")
    parser.add_argument("--to", type=Path, metavar="DIR", help="write the pages upright into this folder")
    options = parser.parse_args(arguments)
    onnxruntime.set_default_logger_severity(3)  # errors only: QNN warns at every start of what this machine lacks
    detector = Detector(options.ep)
    for path in options.pages:
        try:
            page = open_page(path)
        except OSError as error:
            print(f"pageup: {path}: {error}", file=sys.stderr)
            return 1
        answer = detector(page)
        print(f"{path}: {WORDS[answer.turn]} ({answer.turn} degrees, {answer.probability:.0%})")
        if options.to is not None:
            options.to.mkdir(parents=True, exist_ok=True)
            upright(page, answer).save(options.to / path.name)
    print(f"variant {detector.choice.variant}, {detector.choice.ep}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
