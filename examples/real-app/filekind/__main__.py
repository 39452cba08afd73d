"""``python -m filekind FILE...``: one line for each file, and last the variant that answered."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from filekind import Detector


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="filekind", description="Say what kind of file each FILE is.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--ep", help="openvino, qnn or cpu; by default what the look-up chooses for this machine")
    options = parser.parse_args(arguments)
    detector = Detector(options.ep)
    for path in options.files:
        try:
            answer = detector(path)
        except OSError as error:
            print(f"{path}: {error.strerror}", file=sys.stderr)
            return 1
        print(f"{path}: {answer.description} ({answer.label}, {answer.probability:.1%})")
    print(f"variant {detector.choice.variant}, {detector.choice.ep}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
