"""Copy Magika's model from its installed distribution: as a build hook, or by ``python hatch_build.py``.

The model is third-party work, so it is not committed: `build-system.requires` names the distribution that carries
it, at one version, and every build takes it from there.
"""

from __future__ import annotations

import json
import shutil
import sys
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DISTRIBUTION = "magika"
MODEL = "magika/models/standard_v3_3/model.onnx"
SETTINGS = "magika/models/standard_v3_3/config.min.json"
KINDS = "magika/config/content_types_kb.min.json"


class MagikaHook(BuildHookInterface):
    """Puts the model where pyproject.toml names it and its labels into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  # hatchling's signature
        if self.target_name != "wheel":
            return
        labels = copy_model(Path(self.root) / "models")
        build_data["force_include"][str(labels)] = "filekind/labels.json"


def copy_model(folder: Path) -> Path:
    """Write magika.onnx and labels.json into `folder`; return the path of the latter."""
    origin = distribution(DISTRIBUTION)
    folder.mkdir(exist_ok=True)
    shutil.copyfile(locate(origin, MODEL), folder / "magika.onnx")
    settings = json.loads(locate(origin, SETTINGS).read_text(encoding="utf-8"))
    kinds = json.loads(locate(origin, KINDS).read_text(encoding="utf-8"))
    labels = [[label, kinds[label]["description"]] for label in settings["target_labels_space"]]
    path = folder / "labels.json"
    path.write_text(json.dumps(labels, indent=0) + "\n", encoding="utf-8")
    return path


def locate(origin: Distribution, name: str) -> Path:
    """Path of one file of an installed distribution, found by its record and without importing it."""
    for entry in origin.files or ():
        if entry.as_posix() == name:
            return Path(str(entry.locate()))
    raise FileNotFoundError(f"{origin.metadata['Name']} {origin.version} has no file {name}; expected magika 1.0.3")


if __name__ == "__main__":
    print(copy_model(Path(__file__).resolve().parent / "models").parent)
    sys.exit(0)
