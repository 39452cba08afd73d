"""Make a repository out of an installed environment: links to its packages, and a BUILD file on standard output.

    python -I -B local_runtime.py REPOSITORY [--machine=EP:DEVICE ...]

Run by the environment's own interpreter. Distributions that are installed in editable form are linked where they lie.
"""

import os
import re
import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec

from packaging.requirements import Requirement

ROOT = ("hatch-epctx", ("build",))
PLUGIN = re.compile(r"onnxruntime[-_.](ep[-_.].*|qnn)$")
"""Distributions that bring an EP by itself."""
EXCLUDED = [
    "site-packages/**/__pycache__/**",
    "site-packages/**/*.pyc",
    "site-packages/onnx/backend/test/**",
    "site-packages/numpy/**/tests/**",
]
"""What no import needs."""


def main() -> None:
    repository, *rest = sys.argv[1:]
    found = {normal(item.metadata["Name"]): item for item in metadata.distributions()}
    if ROOT[0] not in found:
        sys.exit(f"hatch-epctx is not installed for {sys.executable}: install hatch-epctx[build] there\n")
    os.mkdir(os.path.join(repository, "site-packages"))
    runtime = closure(found, *ROOT)
    print(filegroup("runtime", linked(repository, found, runtime)))
    for name in sorted(found):
        if PLUGIN.match(name):
            print(filegroup(name, linked(repository, found, closure(found, name, ()) - runtime)))
    for argument in rest:
        ep, _, device = argument[len("--machine=") :].partition(":")
        print(described(repository, ep, device))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(found: dict, name: str, extras: tuple) -> set:
    """Installed distributions that `name` with `extras` needs on this machine, itself among them."""
    seen: set = set()
    ways = [(normal(name), tuple(extras))]
    while ways:
        way = ways.pop()
        if way in seen or way[0] not in found:
            continue
        seen.add(way)
        for text in found[way[0]].requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*way[1], "")):
                ways.append((normal(requirement.name), tuple(sorted(requirement.extras))))
    return {name for name, _ in seen}


def linked(repository: str, found: dict, names: set) -> list:
    """Link what the distributions install into the repository's tree; return the entries' names."""
    entries = {entry: path for name in sorted(names) for entry, path in installed(found[name]).items()}
    for entry, path in entries.items():
        link = os.path.join(repository, "site-packages", entry)
        if not os.path.lexists(link):
            os.symlink(os.path.realpath(path), link)
    return sorted(entries)


def installed(distribution: metadata.Distribution) -> dict:
    """Name beside each other in site-packages, and path, of what the distribution installs."""
    firsts = {path.parts[0] for path in distribution.files or ()} - {"..", "__pycache__"}
    kept = {first: str(distribution.locate_file(first)) for first in firsts if not first.endswith(".pth")}
    if all(first.endswith(".dist-info") or first.startswith("__editable__") for first in kept):
        package = normal(distribution.metadata["Name"]).replace("-", "_")
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or ():
            kept[package] = folder
    return {entry: path for entry, path in kept.items() if os.path.exists(path)}


def filegroup(name: str, entries: list) -> str:
    lines = [f"{entry}{rest}" for entry in entries for rest in ("", "/**")]
    patterns = "".join(f'            "site-packages/{line}",\n' for line in lines)
    excluded = "".join(f'            "{pattern}",\n' for pattern in EXCLUDED)
    return (
        f'\nfilegroup(\n    name = "{name}",\n    srcs = glob(\n        [\n{patterns}        ],\n'
        f"        exclude = [\n{excluded}        ],\n    ),\n)"
    )


def described(repository: str, ep: str, device: str) -> str:
    """Write the description of this machine; return the line that makes it visible."""
    command = [sys.executable, "-I", "-B", "-m", "hatch_epctx.bazel", "machine", "--ep", ep]
    command += ["--device", device] if device else []
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"describing this machine for {ep}:{device} failed: {done.stderr}")
    name = f"{ep}-{device}.json" if device else f"{ep}.json"
    with open(os.path.join(repository, name), "w", encoding="utf-8") as stream:
        stream.write(done.stdout)
    return f'\nexports_files(["{name}"])'


main()
