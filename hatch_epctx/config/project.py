"""A project: pyproject.toml, the settings of this run, the selected variants."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from hatch_epctx.config.errors import toml_type
from hatch_epctx.config.expand import expand, single_variant
from hatch_epctx.config.load import HOOK_PLACE, TABLE_PLACE, load_settings
from hatch_epctx.errors import ConfigError, suggest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from pathlib import Path

    from hatch_epctx.config.environment import Environment
    from hatch_epctx.config.models import Settings
    from hatch_epctx.config.scalars import State
    from hatch_epctx.config.variant import Variant

__all__ = ["BuildSystem", "Project", "build_system", "load_project", "read_project", "single_project"]

_PYPROJECT = "pyproject.toml"
_HATCH = "hatch.toml"
_LICENCE_LIMIT = 200
_SELECTION = frozenset({"EPCTX_TARGETS", "EPCTX_MODELS"})
_TARGET_HOOK_PLACE = "tool.hatch.build.targets.wheel.hooks.epctx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """One project in one run."""

    root: Path
    """Absolute folder of pyproject.toml."""
    name: str
    """The distribution's name as declared; the package's where pyproject.toml gives none."""
    version: str
    """The version as declared; "0" where pyproject.toml leaves it to the build back end."""
    licence: str = ""
    """The project's licence as declared: an SPDX expression or free text; empty where pyproject.toml gives none."""
    extras: Mapping[str, tuple[str, ...]] | None = None
    """Requirements by extra as declared; None where pyproject.toml leaves them to the build back end."""
    settings: Settings
    variants: tuple[Variant, ...]
    """Selected variants: models in the order of their declaration, of each its targets in theirs, its source last."""
    declared: tuple[str, ...] = ()
    """Names of all variants, selected by EPCTX_TARGETS and EPCTX_MODELS or not."""

    @property
    def environment(self) -> Environment:
        """What the EPCTX_* variables of this run say."""
        return self.settings.environment


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSystem:
    """What builds the project."""

    requires: tuple[str, ...]
    backend: str
    """Object reference, such as "hatchling.build"."""
    backend_path: tuple[str, ...]


def load_project(
    root: Path, *, hook: Mapping[str, Any] | None = None, environ: Mapping[str, str], state: State
) -> Project:
    """Read the project in `root`.

    Args:
        root: the folder with pyproject.toml.
        hook: the hook's own table as hatch passes it; read from pyproject.toml or hatch.toml when left out, so that
            the command line and the hook see the same settings.
        environ: environment variables.
        state: what is being built.

    Raises:
        ConfigError: pyproject.toml cannot be read, or the configuration is wrong; all that is wrong with the
            settings, or else all that is wrong with models and targets.
    """
    root = root.absolute()
    document = _read_toml(root / _PYPROJECT)
    place, table = _hook_table(root, document)
    load = partial(
        load_settings,
        _epctx_table(root, document),
        hook=table if hook is None else hook,
        hook_place=place,
        state=state,
    )
    settings = load(environ=environ)
    name = _project_name(document) or settings.package
    version = _table(document, "project").get("version", "0")
    variants = every = expand(settings, root)
    if settings.environment.targets or settings.environment.models:
        every = expand(load(environ={name: text for name, text in environ.items() if name not in _SELECTION}), root)
    return Project(
        root=root,
        name=name,
        version=version if isinstance(version, str) else "0",
        licence=_licence(document),
        extras=_extras(document),
        settings=settings,
        variants=variants,
        declared=tuple(variant.name for variant in every),
    )


def single_project(
    source: Path,
    target: Mapping[str, Any],
    *,
    model: Mapping[str, Any],
    environ: Mapping[str, str],
    custom_ops: Sequence[str] = (),
) -> Project:
    """A project of one variant for one model file, without pyproject.toml; see `expand.single_variant`.

    Raises:
        ConfigError: the tables or EPCTX_* variables are wrong.
    """
    # A lock is a project's: it says nothing about one model by itself.
    environ = {name: text for name, text in environ.items() if name != "EPCTX_LOCKED"}
    settings = load_settings({"package": "single"}, environ=environ, state="wheel")
    variant = single_variant(source, target, model=model, custom_ops=custom_ops)
    root = variant.source.parent
    return Project(
        root=root,
        name=variant.model,
        version="0",
        settings=settings,
        variants=(variant,),
        declared=(variant.name,),
    )


def build_system(root: Path) -> BuildSystem:
    """`[build-system]` as written, with the defaults of PEP 517 and 518.

    Raises:
        ConfigError: pyproject.toml is missing or no TOML.
    """
    table = _table(_read_toml(root / _PYPROJECT), "build-system")
    backend = table.get("build-backend", "")
    return BuildSystem(
        requires=_texts(table.get("requires", ["setuptools"])),
        backend=backend if backend and isinstance(backend, str) else "setuptools.build_meta:__legacy__",
        backend_path=_texts(table.get("backend-path")),
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(text for text in value if isinstance(text, str)) if isinstance(value, list) else ()


def read_project(root: Path) -> Mapping[str, Any]:
    """`[tool.epctx]` of the project in `root`, empty where there is none.

    A `package` that was left out is filled in from the project's name, when a package of that name lies in `root` or
    in ``src``: for "acme-vision" `acme_vision`, for "acme.vision" first the nested `acme.vision`.

    Raises:
        ConfigError: pyproject.toml is missing, is no TOML, or `tool.epctx` is no table.
    """
    return _epctx_table(root, _read_toml(root / _PYPROJECT))


def _epctx_table(root: Path, document: Mapping[str, Any]) -> Mapping[str, Any]:
    table = _table(document, TABLE_PLACE)
    if not table:
        _check_spelling(document)
    if "package" not in table and (package := _default_package(root, _project_name(document))):
        return {"package": package, **table}
    return table


def _check_spelling(document: Mapping[str, Any]) -> None:
    """Refuse a table that is ours by what it holds, under another name: without this it would count for nothing."""
    for name, other in _table(document, "tool").items():
        ours = isinstance(other, Mapping) and {"models", "targets"} & other.keys()
        if ours and (hint := suggest("epctx", [name])):
            raise ConfigError(
                "unknown table",
                where=f"tool.{name}",
                expected=TABLE_PLACE,
                remedy=hint.replace(repr(name), repr(TABLE_PLACE)),
                reason="unknown-table",
            )


def _default_package(root: Path, name: str) -> str:
    """The import name of a package in `root` that goes by the project's name, empty where there is none."""
    flat = name.replace("-", "_")
    for candidate in dict.fromkeys([flat, flat.lower(), flat.replace(".", "_"), flat.replace(".", "_").lower()]):
        for base in (root, root / "src"):
            if candidate and base.joinpath(*candidate.split(".")).is_dir():
                return candidate
    return ""


def _project_name(document: Mapping[str, Any]) -> str:
    name = _table(document, "project").get("name", "")
    return name if isinstance(name, str) else ""


def _extras(document: Mapping[str, Any]) -> Mapping[str, tuple[str, ...]] | None:
    project = _table(document, "project")
    if not project or "optional-dependencies" in _texts(project.get("dynamic")):
        return None
    found = _table(document, "project.optional-dependencies")
    return {name: _texts(requirements) for name, requirements in found.items()}


def _licence(document: Mapping[str, Any]) -> str:
    """`project.license`: an SPDX expression (PEP 639), or the text of the older table."""
    found = _table(document, "project").get("license", "")
    text = found.get("text", "") if isinstance(found, Mapping) else found
    # Whole licence texts are no name of a licence.
    return text if isinstance(text, str) and len(text) <= _LICENCE_LIMIT and "\n" not in text else ""


def _hook_table(root: Path, document: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The hook's table and its place: the wheel target's stands in for the general one, hatch.toml for [tool.hatch]."""
    if (root / _HATCH).is_file():
        own = _read_toml(root / _HATCH)
        document = {"tool": {"hatch": {**_table(document, "tool.hatch"), **own}}}
    for place in (_TARGET_HOOK_PLACE, HOOK_PLACE):
        if _has(document, place):
            return place, _table(document, place)
    return HOOK_PLACE, {}


def _has(document: Mapping[str, Any], place: str) -> bool:
    parent, key = place.rsplit(".", 1)
    return key in _table(document, parent)


def _table(document: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """The table at a dotted place, empty where nothing stands.

    Raises:
        ConfigError: something else stands there.
    """
    node: Any = document
    so_far: list[str] = []
    for key in place.split("."):
        so_far.append(key)
        node = node.get(key, {})
        if not isinstance(node, Mapping):
            raise ConfigError(
                f"found {toml_type(node)}", where=".".join(so_far), expected="a table", reason="bad-value"
            )
    return cast("Mapping[str, Any]", node)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as stream:
            if stream.read(3) == b"\xef\xbb\xbf":
                remedy = "Save it as UTF-8 without the mark; no front end reads it so."
                raise ConfigError("begins with a byte-order mark", where=str(path), remedy=remedy, reason="bad-toml")
            stream.seek(0)
            return tomllib.load(stream)
    except FileNotFoundError as error:
        remedy = "Run in the project's folder, or name that with -C."
        raise ConfigError("the file does not exist", where=str(path), remedy=remedy, reason="no-project") from error
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path), reason="no-project") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, numbers beyond Python's limit and deep nesting, too
        raise ConfigError(f"is not valid TOML: {error}", where=str(path), reason="bad-toml") from error
