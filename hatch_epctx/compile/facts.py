"""Facts of a compile as another machine wrote them down: read as untrusted input.

`making` writes them into a record. A record that comes over the network holds them as they were pushed; everything
that builds, wheels and reports read of them has the type that `making` gives it, or the record is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

from hatch_epctx.epcache import clash
from hatch_epctx.files import check_name
from hatch_epctx.process import check_fields
from hatch_epctx.worker.protocol import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from hatch_epctx.store import Artifact

__all__ = ["KEPT", "check_facts"]

_OWED: Final = ("inputs", "outputs", "compatibility", "context_nodes", "nodes_left")
KEPT: Final = (*_OWED, "coverage", "left", "metadata_lost", "unreferenced", "ep_version", "onnxruntime")
"""What a generation's record keeps of the worker's result."""
_OF_WORKER: Final = (*KEPT, "seconds")
_CHECKED: Final = ("samples", "generated", "device", "outputs")
_ROLES: Final = get_args(Role)


def check_facts(facts: Mapping[str, Any], artifacts: Sequence[Artifact], *, members: int) -> None:
    """Check the facts of a record.

    Args:
        facts: `Record.result`.
        artifacts: of the same record.
        members: of the weight-sharing group that was compiled; 0 for a variant by itself.

    Raises:
        ValueError: they are not what a compile writes; the message names the field.
    """
    for artifact in artifacts:
        if artifact.role not in _ROLES:
            raise ValueError(f"{artifact.path} has the unknown role {artifact.role}")
    if not members:
        _check_one(facts, "result")
        _check_model(artifacts, "result")
        _check_cache(facts.get("ep_cache"), {item.path for item in artifacts if item.role == "ep-cache"})
        return
    check_fields(facts, "result", _OF_WORKER)
    _typed(facts, "result", {"shared": bool})
    every = facts.get("members")
    if not isinstance(every, list) or len(every) != members:
        raise ValueError(f"result.members is no list of {members}")
    for index, member in enumerate(every):
        place = f"result.members[{index}]"
        _check_one(member, place)
        names = member.get("artifacts")
        _texts(names, f"{place}.artifacts")
        own = [artifact for artifact in artifacts if artifact.path in names]
        if len(own) != len(names):
            raise ValueError(f"{place}.artifacts names what the record does not list")
        _check_model(own, place)


def _check_one(facts: Any, place: str) -> None:
    """The facts of one variant."""
    check_fields(facts, place, _OF_WORKER, owed=_OWED)
    check_fields({"seconds": facts.get("startup", {})}, f"{place}.startup", ("seconds",))
    _typed(facts, place, {"load_check": str, "shared": bool, "reproducible": bool, "prepared": dict, "check": dict})
    prepared = facts.get("prepared", {})
    if not isinstance(prepared.get("steps", []), list):
        raise ValueError(f"{place}.prepared.steps is no list")  # noqa: TRY004  # one error for whatever is wrong
    _texts(prepared.get("metadata_lost", []), f"{place}.prepared.metadata_lost")
    if "check" in facts:
        _check_check(facts["check"], f"{place}.check")


def _check_check(check: Mapping[str, Any], place: str) -> None:
    """The facts of a comparison with the CPU EP: one that passed, or one that could not run."""
    _typed(check, place, {"outcome": str, "why": str, "key": str, "simulated": bool})
    check_fields({"seconds": {"check": check.get("seconds", 0.0)}}, place, ("seconds",))
    if check.get("outcome") == "passed":
        check_fields({"check": {name: check.get(name) for name in _CHECKED}}, place, ("check",))
        if "simulated" not in check:
            raise ValueError(f"{place}.simulated is missing")
    elif check.get("outcome") != "not-run" or any(name in check for name in _CHECKED):
        raise ValueError(f"{place}.outcome is neither passed nor not-run")


def _check_cache(cache: Any, paths: Collection[str]) -> None:
    """The EP's own names of its cache's files, which the look-up gives back to it: such as a manifest may hold."""
    if cache is None:
        return
    files = cache.get("files") if isinstance(cache, dict) else None
    if not isinstance(files, dict):
        raise ValueError("result.ep_cache.files is no object")  # noqa: TRY004
    for name, path in files.items():
        for part in name.split("/"):
            check_name(part)
        if not isinstance(path, str) or path not in paths:
            raise ValueError(f"result.ep_cache.files names {path!r}, which the record does not list")
    if clash(files):
        raise ValueError("result.ep_cache.files has two names that are one, or one inside another")


def _check_model(artifacts: Collection[Artifact], place: str) -> None:
    if [artifact.role for artifact in artifacts].count("model") != 1:
        raise ValueError(f"{place} has not exactly one model")


def _typed(facts: Mapping[str, Any], place: str, types: Mapping[str, type]) -> None:
    for name, kind in types.items():
        if name in facts and not isinstance(facts[name], kind):
            raise ValueError(f"{place}.{name} is no {_WORDS[kind]}")


_WORDS: Final[Mapping[Callable[..., Any], str]] = {bool: "boolean", dict: "object", str: "text"}


def _texts(value: Any, place: str) -> None:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{place} is no list of texts")
