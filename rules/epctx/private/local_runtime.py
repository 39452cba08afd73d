"""Make a repository out of an installed environment: links to its packages, and a BUILD file on standard output.

python -I -B local_runtime.py REPOSITORY SITE_PACKAGES [--machine=EP:DEVICE ...]
"""

import os
import re
import subprocess
import sys
import sysconfig
from importlib import metadata

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
    repository, given, *rest = sys.argv[1:]
    site = given or sysconfig.get_path("purelib")
    machines = [argument[len("--machine=") :] for argument in rest]
    found = {normal(item.metadata["Name"]): item for item in metadata.distributions(path=[site])}
    if ROOT[0] not in found:
        sys.exit(f"hatch-epctx is not installed in {site}: install hatch-epctx[build] there\n")
    runtime = sorted(closure(found, *ROOT))
    link(repository, site, {entry for name in found for entry in top_level(found[name])})
    print(filegroup("runtime", [entry for name in runtime for entry in top_level(found[name])]))
    for name in sorted(found):
        if PLUGIN.match(name):
            needed = sorted(closure(found, name, ()) - set(runtime))
            print(filegroup(name, [entry for item in needed for entry in top_level(found[item])]))
    for machine in machines:
        print(describe(repository, site, *machine.split(":", 1)))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def closure(found: dict, name: str, extras: tuple) -> set:
    """Installed distributions that `name` with `extras` needs on this machine, itself among them."""
    sys.path.insert(0, next(iter(found.values())).locate_file("").__fspath__())
    from packaging.requirements import Requirement

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


def top_level(distribution: metadata.Distribution) -> list:
    """Names beside each other in site-packages that the distribution installs."""
    firsts = {path.parts[0] for path in distribution.files or ()}
    return sorted(first for first in firsts if first not in ("..", "__pycache__") and not first.endswith(".pth"))


def link(repository: str, site: str, entries: set) -> None:
    os.mkdir(os.path.join(repository, "site-packages"))
    for entry in sorted(entries):
        source = os.path.join(site, entry)
        if os.path.exists(source):
            os.symlink(os.path.realpath(source), os.path.join(repository, "site-packages", entry))


def filegroup(name: str, entries: list) -> str:
    lines = [f"{entry}{rest}" for entry in sorted(set(entries)) for rest in ("", "/**")]
    patterns = "".join(f'            "site-packages/{line}",\n' for line in lines)
    excluded = "".join(f"            {pattern!r},\n" for pattern in EXCLUDED)
    return (
        f'\nfilegroup(\n    name = "{name}",\n    srcs = glob(\n        [\n{patterns}        ],\n'
        f"        exclude = [\n{excluded}        ],\n    ),\n)"
    )


def describe(repository: str, site: str, ep: str, device: str = "") -> str:
    """Write the description of this machine; return the line that makes it visible."""
    driver = os.path.join(os.path.dirname(os.path.realpath(__file__)), "driver.py")
    command = [sys.executable, "-I", "-S", "-B", driver, f"--site={site}", "--", "machine", "--ep", ep]
    command += ["--device", device] if device else []
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"describing this machine for {ep}:{device} failed: {done.stderr}")
    name = f"{ep}-{device}.json" if device else f"{ep}.json"
    with open(os.path.join(repository, name), "w", encoding="utf-8") as stream:
        stream.write(done.stdout)
    return f'\nexports_files(["{name}"])'


main()
