"""The look-up imports its modules, and the installed EPs' packages, by name and when they are needed."""

from importlib.util import find_spec

from PyInstaller.utils.hooks import collect_submodules

from hatch_epctx.runtime.plugins import PLUGINS

hiddenimports = collect_submodules("hatch_epctx.runtime")
hiddenimports += [plugin.module for plugin in PLUGINS if plugin.module and find_spec(plugin.module) is not None]
