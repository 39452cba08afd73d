"""Facts of this machine that an EP can bake into a context binary, and a key for what an EP said on it.

OpenVINO's CPU blobs were measured (1.8.1, Linux): they depend on the instruction set, whose class the EP writes into
the model's compatibility string, and on the number of physical cores among the CPUs that the process may use. They
do not depend on the number of hardware threads as such: two threads of one core gave the bytes of one CPU.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_epctx.digest import digest_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Cpu", "Host", "architecture", "machine_key", "pick_cpus", "read_cpu", "system", "visible_cpus"]

PROC = Path("/proc")
SYS = Path("/sys/devices/system")

# Vector and matrix extensions: what code generators of EPs ask for. Other flags (virtualisation, mitigations) differ
# between equal CPUs under different kernels and do not change code.
_X86 = re.compile(r"(ss?se\d?|sse4_[12]|avx\w*|fma|f16c|amx_\w+|vaes|vpclmulqdq|gfni|bmi[12])\Z|sse4a\Z")
_ARM = re.compile(r"(fp|fphp|asimd\w*|sve\w*|sme\w*|bf16|i8mm|f32mm|f64mm|fcma|neon|vfpv\d|dotprod)\Z")
_MACHINES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The CPUs that this process may use."""

    isa: tuple[str, ...]
    """Vector extensions that all of them have, sorted. Empty: they cannot be read here."""
    cores: int
    """Number of these CPUs (hardware threads)."""
    topology: Mapping[str, int]
    """physical-cores, packages, numa-nodes, efficiency-cores of these CPUs. Empty: it cannot be read here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What of a machine may stand in an identity, beside its devices."""

    os: str
    architecture: str
    cpu: Cpu

    @classmethod
    def here(cls) -> Host:
        """The machine that this runs on."""
        return cls(os=system(), architecture=architecture(), cpu=read_cpu())

    @classmethod
    def from_document(cls, value: Any) -> Host:
        """What `document` gave on another machine; read as untrusted input.

        Raises:
            ValueError: it is of another form.
        """
        try:
            isa, cores, topology = value["isa"], value["cores"], value["topology"]
            counts = [cores, *topology.values()]
            texts = [value["os"], value["architecture"], *isa, *topology]
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError("no description of a machine") from error
        if not all(type(count) is int for count in counts) or not all(isinstance(text, str) for text in texts):
            raise ValueError("no description of a machine")
        cpu = Cpu(isa=tuple(isa), cores=cores, topology=dict(topology))
        return cls(os=value["os"], architecture=value["architecture"], cpu=cpu)

    def document(self) -> dict[str, Any]:
        """Plain JSON, with the names of an identity document's section `toolchain`."""
        return {
            "os": self.os,
            "architecture": self.architecture,
            "isa": list(self.cpu.isa),
            "cores": self.cpu.cores,
            "topology": dict(self.cpu.topology),
        }


def system() -> str:
    """The operating system: linux, windows, darwin, ..."""
    return platform.system().lower()


def architecture() -> str:
    """The architecture, one name on every system: x86_64, aarch64, ..."""
    machine = platform.machine().lower()
    return _MACHINES.get(machine, machine)


def visible_cpus() -> frozenset[int]:
    """Numbers of the CPUs that this process may use: the affinity mask, not the machine's size."""
    affinity = getattr(os, "sched_getaffinity", None)
    if affinity is not None:
        return frozenset(affinity(0))
    count = getattr(os, "process_cpu_count", os.cpu_count)()
    return frozenset(range(count or 1))


def pick_cpus(count: int) -> frozenset[int]:
    """`count` of the visible CPUs, each on a physical core of its own; empty where there are not so many.

    All of one kind, package and memory node if one has enough, full cores before efficiency cores: on unlike machines
    the choice then has the same topology. Empty too where CPUs cannot be chosen, or /sys does not tell their cores.
    """
    cpus = visible_cpus()
    if not hasattr(os, "sched_setaffinity") or not _topology(cpus):
        return frozenset()
    efficient = _cpu_list(_text(SYS.parent / "cpu_atom/cpus"))
    nodes = {cpu: node.name for node in _nodes() for cpu in _cpu_list(_text(node / "cpulist"))}
    groups: dict[tuple[bool, str, str], dict[str, int]] = {}
    for cpu in sorted(cpus):
        package, core = _core(cpu)
        groups.setdefault((cpu in efficient, package, nodes.get(cpu, "")), {}).setdefault(core, cpu)
    ordered = [list(found.values()) for _, found in sorted(groups.items())]
    whole = next((found for found in ordered if len(found) >= count), [cpu for found in ordered for cpu in found])
    return frozenset(whole[:count]) if len(whole) >= count else frozenset()


def read_cpu(cpus: frozenset[int] | None = None) -> Cpu:
    """Facts of `cpus`, the visible ones when None, as far as this system tells them.

    Linux: /proc and /sys; elsewhere only `cores`.
    """
    cpus = visible_cpus() if cpus is None else cpus
    flags = [set(fields.get("flags", fields.get("features", "")).split()) for fields in _cpuinfo(cpus)]
    common = set.intersection(*flags) if flags else set()
    known = _ARM if architecture() == "aarch64" else _X86
    isa = tuple(sorted(flag for flag in common if known.match(flag)))
    return Cpu(isa=isa, cores=len(cpus), topology=_topology(cpus))


def machine_key() -> str:
    """A digest that changes with this machine's CPU, its visible cores, its kernel and its boot.

    An EP's answer about a CPU device may be remembered under it. Drivers of GPUs and NPUs change without any of this
    changing, so that theirs may not.
    """
    cpus = visible_cpus()
    fields = [
        "\n".join(f"{name}={text}" for name, text in sorted(fields.items()) if name in _CPU_FIELDS)
        for fields in _cpuinfo(cpus)
    ]
    facts = [
        "epctx-machine/1",
        system(),
        architecture(),
        platform.release(),
        platform.version(),
        _text(PROC / "sys/kernel/random/boot_id"),
        os.environ.get("PROCESSOR_IDENTIFIER", ""),
        ",".join(map(str, sorted(cpus))),
        repr(sorted(_topology(cpus).items())),
        *fields,
    ]
    return digest_bytes("\n\n".join(facts).encode("utf-8", "surrogateescape"))


_CPU_FIELDS = frozenset(
    {
        "vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags",
        "features", "cpu implementer", "cpu architecture", "cpu variant", "cpu part", "cpu revision",
    }
)  # fmt: skip


def _cpuinfo(cpus: Iterable[int]) -> list[dict[str, str]]:
    """Fields of /proc/cpuinfo in lower case, of each of `cpus`; empty where there is no such file."""
    wanted = set(cpus)
    found = []
    for block in _text(PROC / "cpuinfo").split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        fields = {name.strip().lower(): text.strip() for name, _, text in pairs}
        number = fields.get("processor", "")
        if number.isdecimal() and int(number) in wanted:
            found.append(fields)
    return found


def _topology(cpus: frozenset[int]) -> dict[str, int]:
    """How `cpus` share cores, packages and memory; empty where /sys does not tell."""
    cores, packages = set(), set()
    for cpu in cpus:
        package, siblings = _core(cpu)
        if not siblings or not package:
            return {}
        cores.add((package, siblings))
        packages.add(package)
    nodes = {node.name for node in _nodes() if cpus & _cpu_list(_text(node / "cpulist"))}
    efficient = cpus & _cpu_list(_text(SYS.parent / "cpu_atom/cpus"))
    return {
        "efficiency-cores": len(efficient),
        "numa-nodes": max(1, len(nodes)),
        "packages": len(packages),
        "physical-cores": len(cores),
    }


def _core(cpu: int) -> tuple[str, str]:
    """(package, CPUs that share its core) of a CPU; empty texts where /sys does not tell."""
    folder = SYS / f"cpu/cpu{cpu}/topology"
    siblings = _text(folder / "core_cpus_list") or _text(folder / "thread_siblings_list")
    return _text(folder / "physical_package_id"), siblings


def _nodes() -> Iterator[Path]:
    folder = SYS / "node"
    return folder.glob("node[0-9]*") if folder.is_dir() else iter(())


def _cpu_list(text: str) -> frozenset[int]:
    """Numbers of a kernel list such as "0-3,8"."""
    numbers: set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdecimal():
            numbers.update(range(int(low), int(high if high.isdecimal() else low) + 1))
    return frozenset(numbers)


def _text(path: Path) -> str:
    """Content of a kernel file, empty where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return ""
