"""What there is on this machine: EPs and whether they work, telemetry, the store; and the remote cache behind it.

| module | what it holds |
|---|---|
| `eps` | one EP: what is installed, what it shows, what to install |
| `trial` | one node, compiled, opened and run by an EP |
| `telemetry` | what ONNX Runtime sends, and where it is off |
| `health` | the store: room, whole markers and generations |
| `remote` | the remote cache: whether it answers, and what it does |

`SECTIONS` are looks at the machine beside EPs: plain data for programs, and the lines that people read. A further one
is a module with these two functions and a line there.
"""

from __future__ import annotations

import platform
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hatch_epctx.doctor import health, remote, telemetry
from hatch_epctx.doctor.eps import STATES, examine_ep
from hatch_epctx.errors import EpctxError, StoreError
from hatch_epctx.providers import all_providers, find_provider
from hatch_epctx.store import Store
from hatch_epctx.toolchain import discover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


__all__ = ["SECTIONS", "STATES", "Section", "examine", "examine_at", "system"]


class Section(NamedTuple):
    """One look at the machine."""

    name: str
    """Key of its facts."""
    look: Callable[[Store], dict[str, Any]]
    """Finds the facts; what is wrong stands among them and is never raised."""
    lines: Callable[[Mapping[str, Any]], Iterator[str]]
    """The facts for people."""


SECTIONS: Final[tuple[Section, ...]] = (
    Section("telemetry", telemetry.look, telemetry.lines),
    Section("store", health.look, health.lines),
    Section("remote", remote.look, remote.lines),
)
"""In the order in which people read them."""


def system() -> dict[str, str]:
    """Operating system and architecture, with the C library where Python knows it."""
    library = " ".join(part for part in platform.libc_ver() if part)
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "release": platform.release(),
        "libc": library,
    }


def examine(store: Store, *, trial: bool) -> dict[str, Any]:
    """Every section, and every EP that is known.

    Args:
        store: holds what the looks need, and is looked at itself.
        trial: let each EP that is installed compile and run one node, each step in a process of its own.
    """
    facts: dict[str, Any] = {"onnxruntime": _onnxruntime(store)}
    facts |= {section.name: section.look(store) for section in SECTIONS}
    facts["providers"] = [examine_ep(provider, store, trial=trial) for provider in all_providers()]
    return facts


def examine_at(cache: Path | None, *, trial: bool) -> dict[str, Any]:
    """`examine` with the store in the folder `cache`; None: the user's own.

    Where that cannot be used, its section says why, and EPs work in a temporary one.
    """
    try:
        store = Store(cache)
        _ = store.read_only  # looks, and makes the folder where it can
    except StoreError as error:
        with TemporaryDirectory(prefix="epctx-doctor-") as folder:
            facts = examine(Store(Path(folder)), trial=trial)
        return {**facts, "store": health.unusable(cache or Path(error.where), error)}
    return examine(store, trial=trial)


def _onnxruntime(store: Store) -> dict[str, str]:
    """Distribution, version and digest of the installed build; empty where there is none."""
    cpu = find_provider("cpu")
    try:
        return discover(cpu, cpu.devices[0], digest=store.digest, probe=None).onnxruntime.document()
    except EpctxError:  # each EP's look says so
        return {}
