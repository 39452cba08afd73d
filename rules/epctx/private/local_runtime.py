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
    "**/__pycache__/**",
    "**/*.pyc",
    "*/site-packages/onnx/backend/test/**",
    "*/site-packages/numpy/**/tests/**",
]
"""What no import needs."""


def main() -> None:
    repository, *rest = sys.argv[1:]
    found: dict = {}
    for item in metadata.distributions():
        found.setdefault(normal(item.metadata["Name"]), item)  # the first on the path is the one that is imported
    if ROOT[0] not in found:
        sys.exit(f"hatch-epctx is not installed for {sys.executable}: install hatch-epctx[build] there\n")
    trees = Trees(repository)
    runtime = closure(found, *ROOT)
    print(filegroup("runtime", trees.entries(found, runtime)))
    for name in sorted(found):
        if PLUGIN.match(name):
            print(filegroup(name, trees.entries(found, closure(found, name, ()) - runtime)))
    for argument in rest:
        ep, _, device = argument[len("--machine=") :].partition(":")
        print(described(repository, ep, device))


class Trees:
    """The trees of the environment as folders `<number>/site-packages` of the repository.

    Each is one link: seen through it, without a sandbox too, a package lies beside its distribution's metadata.
    """

    def __init__(self, repository: str) -> None:
        self._repository = repository
        self._roots: dict = {}

    def entries(self, found: dict, names: set) -> list:
        """Paths below the repository of what these distributions install."""
        paths = [path for name in sorted(names) for path in installed(found[name])]
        return sorted({f"{self._tree(os.path.dirname(path))}/{os.path.basename(path)}" for path in paths})

    def _tree(self, root: str) -> str:
        root = os.path.realpath(root)
        if root not in self._roots:
            self._roots[root] = f"{len(self._roots)}/site-packages"
            link = os.path.join(self._repository, self._roots[root])
            os.makedirs(os.path.dirname(link))
            os.symlink(root, link)
        return str(self._roots[root])


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


def installed(distribution: metadata.Distribution) -> list:
    """Paths, beside each other in their tree, of what the distribution installs; of an editable one its package."""
    firsts = {path.parts[0] for path in distribution.files or ()} - {"..", "__pycache__"}
    paths = [str(distribution.locate_file(first)) for first in sorted(firsts) if not first.endswith(".pth")]
    if all(path.endswith(".dist-info") or "/__editable__" in path for path in paths):
        spec = find_spec(normal(distribution.metadata["Name"]).replace("-", "_"))
        paths += (spec and spec.submodule_search_locations) or ()
    return [path for path in paths if os.path.exists(path)]


def filegroup(name: str, entries: list) -> str:
    patterns = "".join(f'            "{entry}{rest}",\n' for entry in entries for rest in ("", "/**"))
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
