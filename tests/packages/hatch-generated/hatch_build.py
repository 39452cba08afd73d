"""Makes the model of the origin: a file that git ignores."""

import shutil
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version, build_data):
        made = Path(self.root, "generated")
        made.mkdir(exist_ok=True)
        shutil.copyfile(Path(self.root, "origin", "detector.onnx"), made / "detector.onnx")
