"""Commands of setuptools for a project with `[tool.epctx]`.

| command | what it does more |
|---|---|
| `build_epctx` | compiles; writes the package folder into the build folder; names the sources for sdists |
| `build` | has `build_epctx` as its last sub-command, so that what others generate is there |
| `bdist_wheel` | adds the package folder to the finished wheel in one streaming pass, with its bill; tags |
| `editable_wheel` | adds the pointer to a package folder in the cache, in every mode (see `frontend.editable`) |
| `sdist` | leaves out what lies in the package's ``_epctx`` in the source tree |

The commands are derived from whatever the project itself has for them, in setup.py, setup.cfg or pyproject.toml.
"""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from packaging.version import Version
from setuptools import Command

from hatch_epctx.console import missing_extra, printable
from hatch_epctx.errors import EpctxError
from hatch_epctx.files import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from setuptools import Distribution

    from hatch_epctx.config import Project
    from hatch_epctx.config.scalars import State
    from hatch_epctx.pipeline import Build

__all__ = ["build_epctx", "extend", "plain_errors"]


def extend(dist: Distribution) -> None:
    """Derive the commands above from the project's own.

    On the way to a command and not in `cmdclass`, since setuptools replaces that when it reads pyproject.toml. An
    entry point of `distutils.commands` would be loaded by every setuptools build, of other projects too.
    """
    plain = dist.get_command_class
    derived: dict[type[Command], type[Command]] = {}

    def get_command_class(command: str) -> type[Command]:
        if command == "build_epctx":
            return build_epctx
        base = plain(command)
        mixin = _MIXINS.get(command)
        if mixin is None or issubclass(base, mixin):
            return base
        if base not in derived:
            derived[base] = type(base.__name__, (mixin, base), {"__doc__": base.__doc__})
        return derived[base]

    dist.get_command_class = get_command_class  # type: ignore[assignment,method-assign]  # of this object alone


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn a user's error into a message on standard error and its exit code; leave everything else alone."""
    try:
        yield
    except (EpctxError, ModuleNotFoundError) as error:
        told = missing_extra(error) if isinstance(error, ModuleNotFoundError) else error
        if told is None:
            raise
        # Not by the log, which a front end may have turned down.
        os.write(2, printable(f"epctx: error: {told}\n").encode("utf-8", "backslashreplace"))
        raise SystemExit(told.exit_code) from None


class build_epctx(Command):  # noqa: N801  # setuptools names commands so
    """Compile the ONNX models of `[tool.epctx]`."""

    description = "compile the ONNX models of [tool.epctx]"
    user_options: ClassVar[Any] = [("build-lib=", "d", "folder that the package folder goes into")]

    editable_mode = False
    into_wheel = False
    """The wheel gets the package folder later, streamed from the store: nothing is written here."""

    def initialize_options(self) -> None:
        """As setuptools wants it. What was built stays: options may be read anew within one run."""
        self.build_lib: str | None = None
        if not hasattr(self, "built"):
            self.built: Build | None = None
            """None before the command ran, and where EPCTX_SKIP is set."""

    def finalize_options(self) -> None:
        """As setuptools wants it."""
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    @property
    def root(self) -> Path:
        """The project's folder."""
        return Path(self.distribution.src_root or os.curdir).absolute()

    @property
    def version(self) -> str:
        """Of the distribution, in normal form."""
        return str(Version(self.distribution.get_version()))

    def run(self) -> None:
        """Compile what changed.

        Raises:
            SystemExit: after a message, so that no front end shows a traceback.
        """
        from hatch_epctx.config import read_environment
        from hatch_epctx.frontend import build_project
        from hatch_epctx.wheel import write_package

        with plain_errors():
            self._clear()
            if read_environment(os.environ).skip:
                self.warn_user("EPCTX_SKIP is set: there will be no compiled models")
                return
            project = self.project("editable" if self.editable_mode else "wheel", warn=True)
            self._require_package(project)
            self.built = build_project(project, lambda line: self.announce(line, logging.INFO))
            if not self.editable_mode and not self.into_wheel:
                write_package(self.built, self._folder(), version=self.version)

    def project(self, state: State, *, warn: bool = False) -> Project:
        """The project with the variants that its wheel holds; an editable install has all of them."""
        from hatch_epctx.config import load_project
        from hatch_epctx.frontend import missing_extras, without_companions

        project = load_project(self.root, environ=os.environ, state=state)
        if state == "editable":
            return project
        for warning in missing_extras(project, self.version) if warn else ():
            self.warn_user(warning)
        return without_companions(project)

    def platform(self) -> str:
        """Platform tag that the configuration gives the wheel."""
        from hatch_epctx.config import read_environment
        from hatch_epctx.wheel import ANY, platform_of

        if read_environment(os.environ).skip:
            return ANY
        project = self.project("wheel")
        return platform_of(project.settings, project.variants)

    def package(self) -> str:
        """Import name of the package; empty where the configuration gives none."""
        from hatch_epctx.config import read_project

        return str(read_project(self.root).get("package", ""))

    def get_source_files(self) -> list[str]:
        """What a wheel is built from, for the sdist; relative to the project's folder.

        setuptools asks for its list of sources whenever it makes metadata, too: models are opened for an sdist alone.
        """
        from hatch_epctx.config import read_environment
        from hatch_epctx.frontend import source_files

        with plain_errors():
            if read_environment(os.environ).skip:
                return []
            opened = "sdist" in self.distribution.commands
            return [file.name for file in source_files(self.root, environ=os.environ, opened=opened)]

    def warn_of_absent_models(self) -> None:
        """Tell which models an sdist goes without."""
        from hatch_epctx.config import read_environment
        from hatch_epctx.frontend import absent_models

        with plain_errors():
            if not read_environment(os.environ).skip:
                for warning in absent_models(self.root, environ=os.environ):
                    self.warn_user(warning)

    def get_outputs(self) -> list[str]:
        """The files of the package folder in the build folder, as far as it was written there.

        Their names are those of their contents, which are not known before the command ran.
        """
        folder = self._folder()
        return sorted(str(path) for path in folder.iterdir()) if folder.is_dir() else []

    def get_output_mapping(self) -> dict[str, str]:
        """Nothing: no file of the package folder is a source."""
        return {}

    def warn_user(self, text: str) -> None:
        """A warning in this project's manner."""
        self.announce(printable(f"epctx: warning: {text}"), logging.WARNING)

    def _folder(self) -> Path:
        from hatch_epctx.wheel import folder_in_wheel

        return Path(self.build_lib or os.curdir, folder_in_wheel(self.package()))

    def _require_package(self, project: Project) -> None:
        """Refuse a wheel whose models would lie in a package that it does not have.

        Everything else that `build` makes is in the build folder by now; where that is empty (an editable install,
        this command by itself) nothing is certain.
        """
        from hatch_epctx.wheel import orphan

        base = Path(self.build_lib or os.curdir)
        if self.editable_mode or not project.variants or not base.is_dir():
            return
        names = [path.relative_to(base).as_posix() for path in base.rglob("*") if not path.is_dir()]
        if error := orphan(names, project.settings):
            raise error

    def _clear(self) -> None:
        """Remove what an earlier build left in the build folder, which setuptools keeps: a target may be gone."""
        if self.package() and self._folder().is_dir():
            remove_tree(self._folder())


class _Build:
    """Mixin of `build`."""

    @property
    def sub_commands(self) -> list[tuple[str, Any]]:
        return [*super().sub_commands, ("build_epctx", None)]  # type: ignore[misc]  # of the class derived from both


class _BdistWheel:
    """Mixin of `bdist_wheel`."""

    epctx_editable = False
    """An editable install is for this machine, whatever the targets are for."""

    def run(self: Any) -> None:
        command = self.get_finalized_command("build_epctx")
        command.into_wheel = True
        super().run()  # type: ignore[misc]
        name = f"{self.wheel_dist_name}-{'-'.join(self.get_tag())}.whl"
        with plain_errors():
            _complete(command, Path(self.dist_dir, name), self.distribution.get_name())

    def get_tag(self: Any) -> tuple[str, str, str]:
        python, abi, platform = super().get_tag()  # type: ignore[misc]
        return python, abi, self._declared_platform() or platform

    def write_wheelfile(self: Any, base: Any, *args: Any, **kwargs: Any) -> None:
        """A wheel of one platform is installed among platform-bound ones, however pure its modules are."""
        super().write_wheelfile(base, *args, **kwargs)  # type: ignore[misc]
        if self._declared_platform():
            file = Path(base, "WHEEL")
            text = file.read_text(encoding="utf-8")
            file.write_text(text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false"), encoding="utf-8")

    def _declared_platform(self: Any) -> str:
        if self.epctx_editable:
            return ""
        with plain_errors():
            platform = str(self.get_finalized_command("build_epctx").platform())
        return "" if platform == "any" else platform


class _EditableWheel:
    """Mixin of `editable_wheel`."""

    def run(self: Any) -> None:
        self.get_finalized_command("bdist_wheel").epctx_editable = True
        command = self.get_finalized_command("build_epctx")
        super().run()  # type: ignore[misc]
        wheel = max(Path(self.dist_dir).glob("*.whl"), key=lambda path: path.stat().st_mtime_ns)
        with plain_errors():
            _point(command, wheel)


class _Sdist:
    """Mixin of `sdist`."""

    def make_distribution(self: Any) -> None:
        from hatch_epctx.wheel import folder_in_wheel

        command = self.get_finalized_command("build_epctx")
        command.warn_of_absent_models()
        package = command.package()
        if package:
            folder = f"/{folder_in_wheel(package)}"
            names = self.filelist.files
            names[:] = [name for name in names if folder not in f"/{name.replace(os.sep, '/')}"]
        super().make_distribution()  # type: ignore[misc]


_MIXINS: dict[str, Any] = {
    "build": _Build,
    "bdist_wheel": _BdistWheel,
    "editable_wheel": _EditableWheel,
    "sdist": _Sdist,
}


def _complete(command: build_epctx, wheel: Path, name: str) -> None:
    """Add the package folder to the finished wheel and hold it against the limits."""
    from hatch_epctx.wheel import add_package, folder_in_wheel, judge_wheel, why_empty
    from hatch_epctx.wheelfile import add_files

    built = command.built
    if built is None:
        # What lies in the source tree is no source, skipped build or not.
        if package := command.package():
            add_files(wheel, (), owned=folder_in_wheel(package).rstrip("/"))
        return
    with built:
        if add_package(built, wheel, version=command.version, name=name) is None:
            command.warn_user(f"{why_empty(built)}: the wheel holds no compiled models")
        for warning in judge_wheel(wheel, built.project.settings):
            command.warn_user(warning)


def _point(command: build_epctx, wheel: Path) -> None:
    """Add the pointer to the finished editable wheel."""
    from hatch_epctx.frontend import add_pointer
    from hatch_epctx.wheel import why_empty

    built = command.built
    if built is None:
        return
    with built:
        if add_pointer(built, wheel, version=command.version, environ=os.environ) is None:
            command.warn_user(f"{why_empty(built)}: the look-up will find no compiled models")
