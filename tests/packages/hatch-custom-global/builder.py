"""A build target of the project's own: a text file with the version."""

from pathlib import Path

from hatchling.builders.plugin.interface import BuilderInterface


class TextBuilder(BuilderInterface):
    PLUGIN_NAME = "custom"

    def get_version_api(self):
        return {"standard": self.build_standard}

    def build_standard(self, directory, **build_data):
        path = Path(directory, "version.txt")
        path.write_text(self.metadata.version)
        return str(path)
