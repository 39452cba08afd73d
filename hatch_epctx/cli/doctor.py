"""`epctx doctor`: EPs, devices and versions on this machine, whether they work, and what is missing.

"ready" says that the EP's library registers with ONNX Runtime, shows a device or compiles without one, and compiles
one node. It does not say that a certain model compiles.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

import hatch_epctx
from hatch_epctx.cli.output import cut, duration, emit_json, say, size, table
from hatch_epctx.console import missing_extra

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping, Sequence

__all__ = ["doctor"]

_DISTRIBUTIONS: Final = ("onnxruntime", "onnx", "hatchling", "pydantic", "filelock")
_WIDTH: Final = 44
"""Columns for the devices of one EP."""


def doctor(options: Namespace) -> int:
    """Look at this machine. Exit code 0 when at least one EP can compile here, 4 when none can, 6 without a store."""
    facts: dict[str, Any] = {
        "hatch-epctx": hatch_epctx.__version__,
        "python": platform.python_version(),
        "distributions": {name: _version(name) for name in _DISTRIBUTIONS},
        "message": "",
    }
    try:
        facts |= _machine(trial=not options.no_trial)
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        facts |= {"store": None, "providers": [], "message": str(missing)}
    if options.json:
        emit_json(options, facts)
    else:
        _print(facts, verbose=options.verbose)
    if not any(item["state"] == "ready" for item in facts["providers"]):
        return 4
    return 0 if facts["store"]["usable"] else 6


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _machine(*, trial: bool) -> dict[str, Any]:
    """What needs the build extra to find out."""
    from hatch_epctx.config import read_environment
    from hatch_epctx.doctor import examine_at, system

    return {**system(), **examine_at(read_environment(os.environ).cache_dir, trial=trial)}


def _print(facts: Mapping[str, Any], *, verbose: bool) -> None:
    system = facts.get("platform") or f"{platform.system()} {platform.machine()}"
    libc = f" ({facts['libc']})" if facts.get("libc") else ""
    say(f"hatch-epctx {facts['hatch-epctx']}, Python {facts['python']}, {system}{libc}")
    if versions := [f"{name} {version}" for name, version in facts["distributions"].items() if version]:
        say(", ".join(versions))
    if facts["message"]:
        say(facts["message"])
        return
    from hatch_epctx.doctor import SECTIONS

    for section in SECTIONS:
        for line in section.lines(facts[section.name]):
            say(line)
    here = [item for item in facts["providers"] if item["state"] in ("ready", "broken")]
    if here:
        say()
        rows = [(item["ep"], item["state"], _installed(item), _devices(item), _trials(item)) for item in here]
        table(("EP", "STATE", "INSTALLED", "DEVICES", "ONE NODE"), rows, optional=("ONE NODE",))
        for item in here:
            _say_problems(item, verbose=verbose)
    if verbose:
        _print_details(facts, here)
    _print_others(facts["providers"], verbose=verbose)


def _print_others(providers: Sequence[Mapping[str, Any]], *, verbose: bool) -> None:
    """What is not here, with what to install, and what cannot compile ahead anywhere."""
    if missing := [item for item in providers if item["state"] == "missing"]:
        say()
        table(("NOT HERE", "INSTALL"), [(item["ep"], _remedy(item, verbose=verbose)) for item in missing])
    if others := [item for item in providers if item["state"] == "no-epcontext"]:
        say()
        if verbose:
            table(("WRITES NO EPCONTEXT MODELS", "WHY"), [(item["ep"], item["message"]) for item in others])
        else:
            say(f"{len(others)} other EPs write no EPContext models ('epctx doctor -v' names them)")


def _installed(item: Mapping[str, Any]) -> str:
    version = f"{item['distribution']} {item['version']}" if item["version"] else "-"
    return version if item["tested"] else f"{version} (not run here)".removeprefix("- ")


def _devices(item: Mapping[str, Any]) -> str:
    if item["state"] == "ready" and item["offline"]:
        return "compiles for devices that need not be here"
    names = [
        " ".join(
            part for part in (device["type"], device["metadata"].get("FULL_DEVICE_NAME", device["vendor"])) if part
        )
        for device in item["devices"]
    ]
    return cut(", ".join(names), _WIDTH) or "-"


def _trials(item: Mapping[str, Any]) -> str:
    """What became of the trials: "compiles (0.4 s), runs", of several devices each with its kind."""
    several = len(item["trials"]) > 1
    return "; ".join(f"{trial['device']} " * several + _outcome(trial) for trial in item["trials"]) or "-"


def _outcome(trial: Mapping[str, Any]) -> str:
    if not trial["compiles"]:
        return "does not compile"
    runs = {True: "runs", False: "does not run", None: "not run"}[trial["runs"]]
    place = " in the simulator" if trial["simulated"] and trial["runs"] is not None else ""
    seconds = trial["seconds"].get("compile")
    return f"compiles{f' ({duration(seconds)})' if seconds else ''}, {runs}{place}"


def _say_problems(item: Mapping[str, Any], *, verbose: bool) -> None:
    messages = [trial["message"] for trial in item["trials"] if trial["message"]] or [item["message"]]
    for message in filter(None, dict.fromkeys(messages)):
        say(f"{item['ep']}: {message if verbose else message.partition(chr(10))[0]}")


def _remedy(item: Mapping[str, Any], *, verbose: bool) -> str:
    """What to install, in one line; with -v the whole message."""
    if verbose:
        return str(item["message"])
    if item["version"]:
        return f"nothing: {item['distribution']} {item['version']} is here and shows no device"
    if item["install"]:
        return f'pip install "{item["install"]}"' if "[" in item["install"] else f"pip install {item['install']}"
    return "an onnxruntime build or a system that brings it"


def _print_details(facts: Mapping[str, Any], here: list[dict[str, Any]]) -> None:
    """Digests, closures, SDKs and devices, as identities hold them."""
    say()
    if runtime := facts["onnxruntime"]:
        say(f"{runtime['distribution']} {runtime['version']}: digest {runtime['digest']}")
    for item in here:
        if item["digest"]:
            closure = item["closure"]
            covers = f"{closure['files']} files, {size(closure['size'])}"
            say(f"{item['distribution']} {item['version']}: digest {item['digest']} of {covers}")
        for name, version in item["sdk"].items():
            say(f"  SDK {name} {version}")
        for device in item["devices"]:
            known = ", ".join(f"{name}={text}" for name, text in device["metadata"].items())
            driver = "" if device["type"] == "cpu" else f", driver {device['driver'] or 'not reported'}"
            say(f"  {device['type']} {device['vendor']}{driver}{f': {cut(known, 160)}' if known else ''}")
