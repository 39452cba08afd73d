"""A project that makes its model in a build_py of its own."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class MakeModel(build_py):
    def run(self):
        super().run()
        Path("generated").mkdir(exist_ok=True)
        shutil.copyfile("origin/detector.onnx", "generated/detector.onnx")


setup(cmdclass={"build_py": MakeModel})
