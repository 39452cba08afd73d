"""A build command of the project's own, named in pyproject.toml."""

from setuptools.command.build import build


class Build(build):
    def run(self):
        print("the project's own build command")
        super().run()
