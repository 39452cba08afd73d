"""Libraries of custom operators that a variant needs: where they are here, and whether they are the right ones.

A package's manifest cannot have native code loaded: it names what is needed. A module is imported only where an
installed distribution of the recorded name brings it; a file is one that the application itself names in
`custom_ops=`, and on the platform of the build it must have the recorded digest.
"""

from __future__ import annotations

import importlib
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.digest import digest_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hatch_epctx.manifest import Variant

__all__ = ["Missing", "check_packages", "libraries"]

_MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_DISTRIBUTION: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?\Z")
_MACHINES: Final = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


class Missing(Exception):  # a finding; the look-up goes on to the next variant
    """A library that the variant needs is not to be had here."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        """missing-custom-ops or wrong-custom-ops."""
        self.text = text


def libraries(variant: Variant, given: Sequence[Path]) -> tuple[tuple[Path, ...], str]:
    """(libraries to register, in order; a note about versions that differ) for a session of `variant`.

    Args:
        variant: its manifest says what is needed.
        given: what the application names; all of them are registered.

    Raises:
        Missing: something is not there, or not what the manifest records.
    """
    needs: Any = variant.facts.runtime.get("custom_ops", ()) if variant.facts is not None else ()
    if not isinstance(needs, list | tuple) or not all(isinstance(need, Mapping) for need in needs):
        raise Missing("wrong-custom-ops", "the manifest's list of custom operators is malformed")
    found: list[Path] = []
    notes: list[str] = []
    left = list(given)
    for need in needs:
        if "module" in need:
            path, note = _installed(need)
            notes.append(note)
        else:
            path = _named(need, left)
            left.remove(path)
        found.append(path)
    return (*found, *left), "; ".join(filter(None, notes))


def check_packages(variant: Variant, options: Mapping[str, str]) -> None:
    """Refuse a variant whose EP needs op packages (QNN) that the application does not name in its provider options.

    Raises:
        Missing: which operators they have to bring.
    """
    needs: Any = variant.facts.runtime.get("op_packages", ()) if variant.facts is not None else ()
    if needs and not options.get("op_packages"):
        operators = ", ".join(sorted({str(need.get("operator")) for need in needs if isinstance(need, Mapping)}))
        text = (
            f"needs the EP's op packages for {operators}; pass their libraries for this device as "
            "provider_options={'op_packages': 'OPERATOR:LIBRARY:INTERFACE:TARGET'}"
        )
        raise Missing("missing-custom-ops", text)


def _installed(need: Mapping[str, Any]) -> tuple[Path, str]:
    """The library of an installed distribution's module, and what is to be said of its version."""
    module, name, version = (str(need.get(key, "")) for key in ("module", "distribution", "version"))
    # A module such as x.__main__ is a program, which its import runs.
    if not _MODULE.match(module) or "__main__" in module.split(".") or not _DISTRIBUTION.match(name):
        raise Missing("wrong-custom-ops", f"the manifest names no module of a distribution: {module!r} of {name!r}")
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        text = f"needs the custom operators of {name} {version}, which is not installed; pip install {name}"
        raise Missing("missing-custom-ops", text) from None
    if not _brings(distribution.files or (), module.partition(".")[0]):
        raise Missing("wrong-custom-ops", f"needs the module {module} of {name}, and {name} does not bring it")
    try:
        path = Path(str(importlib.import_module(module).get_library_path()))
    except (Exception, SystemExit) as error:  # whatever a foreign module may raise
        raise Missing("missing-custom-ops", f"{module} gives no library of custom operators: {error}") from error
    note = f"{name} {version} recorded, {distribution.version} found" if distribution.version != version else ""
    return path, note


def _brings(files: Iterable[metadata.PackagePath], top: str) -> bool:
    return any(path.parts[0] in (top, f"{top}.py") for path in files)


def _named(need: Mapping[str, Any], given: Sequence[Path]) -> Path:
    """Which of the application's libraries is the needed one: by digest on the build's platform, else by name."""
    name, digest = str(need.get("file", "")), str(need.get("digest", ""))
    if not given:
        text = f"needs the library of custom operators {name!r}; pass its path as custom_ops=[...]"
        raise Missing("missing-custom-ops", text)
    here = (platform.system().lower(), _machine())
    if (need.get("os"), need.get("architecture")) != here:
        return next((path for path in given if path.stem == Path(name).stem), given[0])
    for path in given:
        try:
            if digest_file(path) == digest:
                return path
        except OSError as error:
            raise Missing("missing-custom-ops", f"{path} cannot be read: {error.strerror or error}") from error
    listed = ", ".join(str(path) for path in given)
    text = f"needs the library of custom operators {name!r} with the SHA-256 {digest}; none of {listed} is that one"
    raise Missing("wrong-custom-ops", text)


def _machine() -> str:
    machine = platform.machine().lower()
    return _MACHINES.get(machine, machine)
