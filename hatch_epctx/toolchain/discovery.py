"""Finding the toolchain of one target: distributions, their closures, the device."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement

from hatch_epctx.digest import digest_entries
from hatch_epctx.errors import ToolchainError
from hatch_epctx.toolchain.closure import closure_digest, closure_files, import_folders, site_folder
from hatch_epctx.toolchain.elsewhere import device_facts
from hatch_epctx.toolchain.machine import architecture, pick_cpus, read_cpu, system
from hatch_epctx.toolchain.records import Component, Toolchain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from importlib.metadata import Distribution
    from pathlib import Path

    from hatch_epctx.providers import Provider, SdkVersion
    from hatch_epctx.toolchain.closure import Entry
    from hatch_epctx.toolchain.machine import Host
    from hatch_epctx.toolchain.records import Probe
    from hatch_epctx.worker.protocol import ProbedDevice

__all__ = ["BUILDS", "ONNXRUNTIME", "brings", "discover", "ep_closure", "find_distribution", "is_installed"]

ONNXRUNTIME = "onnxruntime"
BUILDS = (
    ONNXRUNTIME,
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-migraphx",
    "onnxruntime-rocm",
    "onnxruntime-vitisai",
    "onnxruntime-webgpu",
    "onnxruntime-cann",
    "onnxruntime-windowsml",
    "ort-nightly",
    "ort-nightly-gpu",
)
"""Distributions that bring the module onnxruntime."""

SDK_LIMIT = 1 << 28
"""Bytes of a library that are searched for an SDK's version."""


def discover(
    provider: Provider,
    device: str,
    *,
    digest: Callable[[Path], str],
    probe: Probe | None,
    requires: Iterable[str] = (),
    cores: int | None = None,
    where: str = "",
    host: Callable[[str], Host] | None = None,
) -> Toolchain:
    """The toolchain that compiles for `provider` on `device`.

    Args:
        provider: the EP.
        device: cpu, gpu or npu.
        digest: content digest of a file; a stat cache makes a warm call cheap.
        probe: asks the EP about its devices; not called for an EP that compiles offline or for the CPU EP.
        requires: requirements that must be met (PEP 508).
        cores: physical cores that the compile is to see, of an EP that bakes their number in; all when None.
        where: dotted place of the target, for messages.
        host: tells what the machine is that compiles, where it is another one; `probe` answers for it too. Not called
            where `probe` is not.

    Raises:
        ToolchainError: a distribution is missing or unfit, a library cannot be read, the EP shows no such device.
    """
    _check_requirements(requires, where)
    onnxruntime = _onnxruntime(digest)
    uncertain: list[str] = []
    ep, sdk = _ep(provider, digest, where, uncertain)
    facts, compiling = {}, None
    if not provider.offline and provider.epcontext:
        components = [("onnxruntime", onnxruntime.digest), *([("ep", ep.digest)] if ep else [])]
        compiling = host(digest_entries(components)) if host else None
        facts = _hardware(provider, device, probe, digest_entries(components), where, uncertain, compiling)
        if cores is not None and "cores" in facts:
            facts |= _pinned(cores, where)
    return Toolchain(
        onnxruntime=onnxruntime,
        onnx_version=_version_of("onnx"),
        ep=ep,
        sdk=sdk,
        os=compiling.os if compiling else system(),
        architecture=compiling.architecture if compiling else architecture(),
        uncertain=tuple(uncertain),
        **facts,
    )


def is_installed(provider: Provider) -> bool:
    """Whether a distribution or module that brings the EP is there, fit or not; ONNX Runtime's own EPs always are."""
    if provider.distributions:
        return any(find_distribution(name) is not None for name in provider.distributions)
    return not provider.module or bool(import_folders(provider.module))


def ep_closure(provider: Provider) -> list[Entry]:
    """(name, path) of every file that the EP's digest covers; empty where ONNX Runtime or the system brings it."""
    if not provider.distributions and not provider.module:
        return []
    distribution = next((found for found in map(find_distribution, provider.distributions) if found is not None), None)
    return closure_files(distribution, provider.module)


def _onnxruntime(digest: Callable[[Path], str]) -> Component:
    builds = [build for build in map(find_distribution, BUILDS) if build is not None and brings(build, ONNXRUNTIME)]
    if not builds:
        builds = [metadata.distribution(name) for name in metadata.packages_distributions().get(ONNXRUNTIME, ())]
    if not builds or not import_folders(ONNXRUNTIME):
        raise ToolchainError(
            "ONNX Runtime is not installed", remedy=_install("hatch-epctx[build]"), reason="missing-distribution"
        )
    entries = {entry for build in builds for entry in closure_files(build, ONNXRUNTIME)}
    return Component(
        # Two builds in one environment overwrite each other's files: the digest tells what is there now.
        distribution="+".join(_name(build) for build in builds),
        version="+".join(build.version for build in builds),
        digest=closure_digest(entries, digest),
    )


def brings(distribution: Distribution, package: str) -> bool:
    """Whether the distribution installs the package."""
    files = distribution.files
    return files is None or any(path.parts[0] == package for path in files)


def _version_of(name: str) -> str:
    found = find_distribution(name)
    if found is None:
        raise ToolchainError(
            f"the distribution {name} is not installed",
            remedy=_install("hatch-epctx[build]"),
            reason="missing-distribution",
        )
    return found.version


def _ep(
    provider: Provider, digest: Callable[[Path], str], where: str, uncertain: list[str]
) -> tuple[Component | None, dict[str, str]]:
    """The EP's component and SDK versions; no component where ONNX Runtime or the system brings it."""
    if not provider.distributions and not provider.module:
        return None, {}
    distribution = next((found for found in map(find_distribution, provider.distributions) if found is not None), None)
    if distribution is None and provider.distributions:
        raise ToolchainError(
            f"the distribution {provider.distributions[0]}, which brings {provider.title}, is not installed",
            where=f"{where}.ep" if where else "",
            remedy=_install(f"hatch-epctx[{provider.extra}]" if provider.extra else provider.distributions[0]),
            reason="missing-ep",
        )
    name = _name(distribution) if distribution else provider.module
    folders = import_folders(provider.module)
    if provider.module and not folders:
        version = f" {distribution.version}" if distribution else ""
        raise ToolchainError(
            f"{name}{version} has no module {provider.module}, which {provider.title} needs",
            where=f"{where}.ep" if where else "",
            remedy=f"Install another version, as with pip install --upgrade {name}.",
            reason="missing-ep",
        )
    site = site_folder(distribution).resolve() if distribution else None
    if site and any(folder.resolve().parent != site for folder in folders):
        uncertain.append(f"the module {provider.module} is imported from outside its distribution {name}")
    files = closure_files(distribution, provider.module)
    if not files:
        uncertain.append(f"{name} has no library that could be named")
    component = Component(
        distribution=name,
        version=distribution.version if distribution else "",
        digest=closure_digest(files, digest),
    )
    sdk = {item.name: text for item in provider.sdk if (text := _sdk(item, distribution, digest))}
    return component, sdk


def _sdk(item: SdkVersion, distribution: Distribution | None, digest: Callable[[Path], str]) -> str:
    """A version that stands in a file of the distribution; empty where it cannot be found. Nothing is imported."""
    if distribution is None:
        return ""
    for path in sorted(site_folder(distribution).glob(item.files)):
        if path.is_file() and (text := _search(path, item.pattern, digest(path))):
            return text
    return ""


@lru_cache(maxsize=64)
def _search(path: Path, pattern: str, content: str) -> str:  # noqa: ARG001  # the digest is the cache's key
    """Group 1 of `pattern` in the file; a library is searched once per content and process."""
    if path.stat().st_size > SDK_LIMIT:
        return ""
    match = re.search(pattern.encode("latin-1"), path.read_bytes())
    return match[1].decode("latin-1") if match else ""


def _hardware(
    provider: Provider,
    device: str,
    probe: Probe | None,
    components: str,
    where: str,
    uncertain: list[str],
    host: Host | None,
) -> dict[str, Any]:
    """Device, instruction set and cores, as fields of `Toolchain`."""
    facts: dict[str, Any] = {}
    if provider.system_toolchain:
        if probe is None:
            uncertain.append(f"the device {device} of {provider.title} was not asked")
        else:
            facts["device"] = _device(provider, device, probe(components), where, uncertain)
        if not provider.run_here:
            uncertain.append(f"drivers and libraries that {provider.title} takes from the system")
    if device == "cpu" and (provider.bakes_isa or provider.bakes_cores):
        cpu = host.cpu if host else read_cpu()
        if provider.bakes_isa:
            facts["isa"] = cpu.isa
            if not cpu.isa:
                uncertain.append(f"the instruction set of this CPU, which {system()} does not tell")
        if provider.bakes_cores:
            facts |= {"cores": cpu.cores, "topology": cpu.topology}
            if not cpu.topology:
                uncertain.append(f"the physical cores of this CPU, which {system()} does not tell")
    return facts


def _pinned(cores: int, where: str) -> dict[str, Any]:
    """Number and topology of the cores that a compile is held to."""
    cpus = pick_cpus(cores)
    if not cpus:
        raise ToolchainError(
            f"the compile cannot be held to {cores} physical cores here: this process may use {read_cpu().cores} CPUs",
            where=f"{where}.cores" if where else "",
            remedy="Name a smaller number, or build on Linux where there are as many.",
            reason="too-few-cores",
        )
    return {"cores": cores, "topology": read_cpu(cpus).topology}


def _device(
    provider: Provider, device: str, devices: Iterable[ProbedDevice], where: str, uncertain: list[str]
) -> dict[str, Any]:
    """What the EP reports of the first device of the asked kind."""
    seen = list(devices)
    found = next((item for item in seen if item["type"] == device and item["ep"] == provider.names[0]), None)
    if found is None:
        kinds = sorted({item["type"] for item in seen if item["ep"] == provider.names[0]})
        raise ToolchainError(
            f"{provider.title} shows no device {device!r} on this machine",
            where=f"{where}.device" if where else "",
            expected=f"one of {', '.join(kinds)}" if kinds else "",
            remedy="See 'epctx doctor' for what it shows; a driver may be missing.",
            reason="no-device",
        )
    if device != "cpu" and not any("driver" in name.lower() for name in found["metadata"]):
        uncertain.append(f"the driver of device {device}, which {provider.title} does not report")
    return device_facts(found)


def _check_requirements(requires: Iterable[str], where: str) -> None:
    place = f"{where}.requires" if where else ""
    for text in requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            raise ToolchainError(
                f"{text!r} is not a requirement: {error}", where=place, reason="bad-requirement"
            ) from error
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        found = find_distribution(requirement.name)
        if found is None:
            state = f"{requirement.name} is not installed"
        elif not requirement.specifier.contains(found.version, prereleases=True):
            state = f"{requirement.name} {found.version} is installed"
        else:
            continue
        raise ToolchainError(
            state,
            where=place,
            expected=f"{requirement.name}{requirement.specifier}",
            remedy=_install(str(requirement)),
            reason="unmet-requirement",
        )


def find_distribution(name: str) -> Distribution | None:
    """The installed distribution of this name."""
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _name(distribution: Distribution) -> str:
    """The distribution's name in its normalised form."""
    return re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()


def _install(requirement: str) -> str:
    quoted = f'"{requirement}"'
    return f"Install it with pip install {quoted}, and name it in [build-system] requires for isolated builds."
