"""Locked builds: identities held against epctx.lock before anything compiles, and bytes by the digests in it.

A build is locked as a whole: every selected variant stands in the lock with exactly the identity document that it has
now, and its artifacts have exactly the locked digests, wherever they come from. What cannot be looked at on this
machine is taken from the lock and not compared:

- the toolchain of an EP that is not installed here: nothing can be compiled then, so the artifacts come by digest;
- of an EP that is installed without its device: device, instruction set, cores, operating system and architecture;
- the toolchain of a shipped source: nothing is compiled, and what is packed must have the locked digests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.errors import ToolchainError, VerificationError
from hatch_epctx.lockfile import FACTS, LOCK_NAME, Lock, describe, drifts, read_lock
from hatch_epctx.store import Miss, Record
from hatch_epctx.toolchain import Toolchain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hatch_epctx.config import Project, SharedGroup, Variant
    from hatch_epctx.lockfile import Drift, LockedVariant
    from hatch_epctx.pipeline.preparing import Preparer
    from hatch_epctx.pipeline.records import Planned, Status
    from hatch_epctx.pipeline.remoting import RemoteCache
    from hatch_epctx.store import Generation, Store

__all__ = [
    "LockedBytes",
    "borrowed_preparation",
    "borrowed_toolchain",
    "compare",
    "prepare_locked",
    "required_lock",
    "with_locked_hardware",
]

_SOFTWARE: Final = ("ep", "onnx", "onnxruntime", "sdk")
"""Fields of the toolchain section that an installed EP shows without its device."""


def required_lock(root: Path) -> Lock:
    """The lock of the project in `root`.

    Raises:
        VerificationError: there is none, or it is damaged.
    """
    lock = read_lock(root / LOCK_NAME)
    if lock is None:
        raise VerificationError(
            "the file does not exist, and the build is locked",
            where=str(root / LOCK_NAME),
            remedy="Run 'epctx lock' and commit the file; a source distribution has to hold it too.",
            reason="no-lock",
        )
    return lock


def borrowed_toolchain(lock: Lock | None, variant: Variant) -> Toolchain | None:
    """The toolchain that `variant` was locked with; None where that is not known."""
    locked = lock.find(variant.name) if lock else None
    return _toolchain(locked.document.get("toolchain")) if locked else None


def borrowed_preparation(lock: Lock | None, variant: Variant, member: Variant) -> list[dict[str, Any]] | None:
    """The steps of model preparation that `variant`, or a member of its group, was locked with.

    None where it has others now.
    """
    locked = lock.find(variant.name) if lock else None
    try:
        section: Any = locked.document if locked else {"compile": {"prepare": []}}
        if variant.group is not None and locked is not None:
            section = section["members"][variant.group.position(member)]
        steps = section["compile"]["prepare"]
        return steps if [step["step"] for step in steps] == list(member.prepare) else None
    except (KeyError, TypeError, IndexError):
        return None


def with_locked_hardware(locked: Toolchain, here: Toolchain) -> Toolchain:
    """What is installed here, on the machine of the lock."""
    software = here.document()
    document = {**locked.document(), **{name: software[name] for name in _SOFTWARE}}
    return replace(Toolchain.from_document(document), uncertain=())


def _toolchain(section: Any) -> Toolchain | None:
    try:
        return Toolchain.from_document(section)
    except (KeyError, TypeError):  # of another version of the document, which the comparison will say
        return None


def compare(preparer: Preparer, project: Project, lock: Lock) -> tuple[tuple[Planned, ...], tuple[Drift, ...]]:
    """The selected variants with their identities, and in what they differ from `lock`.

    A variant that is not locked is not looked at, so that the message is about the lock and not about an EP.

    Raises:
        EpctxError: sources, options or toolchains are unfit.
    """
    planned = preparer.prepare_all(variant for variant in project.variants if lock.find(variant.name))
    documents: dict[str, Mapping[str, Any]] = {variant.name: {} for variant in project.variants}
    for item in planned:
        if item.identity is None:  # skipped: there is nothing that could differ
            del documents[item.variant.name]
        else:
            documents[item.variant.name] = item.identity.document
    declared = {*lock.variants, *lock.damaged} if project.settings.conditional else set(project.declared)
    return planned, drifts(lock, documents, declared=declared)


def prepare_locked(preparer: Preparer, project: Project, lock: Lock) -> tuple[Planned, ...]:
    """As `Preparer.prepare_all`, of a project that has to be as it was locked.

    Raises:
        VerificationError: it is not; every difference is listed.
    """
    planned, found = compare(preparer, project, lock)
    if found:
        raise describe(found, where=str(project.root / LOCK_NAME))
    return planned


class LockedBytes:
    """The artifacts that a lock demands. Any thread may use it.

    Args:
        lock: what was locked.
        store: where generations live.
        remote: where artifacts may be had by digest.
    """

    def __init__(self, lock: Lock, store: Store, remote: RemoteCache) -> None:
        self._lock = lock
        self._store = store
        self._remote = remote

    def obtain(self, unit: Sequence[Planned], found: Generation | Miss) -> tuple[Generation | Miss, Status]:
        """The locked artifacts of a variant or of a group: those that were `found`, else those of the remote cache.

        A miss: they have to be made here, and `check` has to follow.

        Raises:
            VerificationError: other bytes are in the store, and the locked ones cannot be had.
            ToolchainError: there are none, and they cannot be made here.
        """
        planned, locked = unit[0], self._locked(unit)
        if not isinstance(found, Miss):
            if _same(locked, found):
                return _told(locked, found), "hit"
            found.close()
        fetched = self._fetch(planned, locked)
        if fetched is not None:
            return fetched, "fetched"
        if not isinstance(found, Miss):
            raise self._other(planned.variant, locked, found, "the store holds")
        if planned.borrowed:
            raise ToolchainError(
                f"its artifacts are in neither the store nor a remote cache, and {planned.variant.provider.title}, "
                "which could make them, is not here",
                where=planned.variant.name,
                remedy="Build once where the EP is, with a remote cache that both machines use, or bring that "
                "machine's store here (EPCTX_CACHE_DIR).",
                reason="missing-ep",
            )
        return found, "miss"

    def check(self, unit: Sequence[Planned], made: Generation) -> Generation:
        """`made`, which has to have the locked artifacts.

        Raises:
            VerificationError: the compile gave other bytes.
        """
        planned, locked = unit[0], self._locked(unit)
        if _same(locked, made):
            return _told(locked, made)
        made.close()
        raise self._other(planned.variant, locked, made, "the compile gave")

    def _locked(self, unit: Sequence[Planned]) -> LockedVariant:
        """What is locked of a unit: of a group, each selected member's own facts with what they have in common."""
        every = []
        for planned in unit:
            locked = self._lock.find(planned.variant.name)
            if locked is None or planned.identity is None or locked.identity != planned.identity.digest:
                raise VerificationError("is not as locked", where=planned.variant.name, reason="drift")
            every.append(locked)
        group = unit[0].variant.group
        return every[0] if group is None else _together(unit, every, group)

    def _fetch(self, planned: Planned, locked: LockedVariant) -> Generation | None:
        with self._store.staging() as staging:
            if not self._remote.fetch_locked(planned.variant, locked, staging):
                return None
            record = Record(
                identity=locked.identity, document=locked.document, artifacts=locked.artifacts, result=locked.facts
            )
            absent = isinstance(self._store.find(locked.identity, verify=False), Miss)
            certain = planned.identity is not None and not planned.identity.uncertain
            return self._store.publish(staging, record, select=absent and certain)

    def _other(self, variant: Variant, locked: LockedVariant, made: Generation, who: str) -> VerificationError:
        made_by_path = {item.path: item for item in made.record.artifacts}
        lines = [
            f"  {item.path}: locked {item.digest[:16]} ({item.size} bytes), found {_shown(made_by_path.get(item.path))}"
            for item in locked.artifacts
            if made_by_path.get(item.path) != item
        ]
        known = {item.path for item in locked.artifacts}
        lines += [f"  {item.path}: not locked" for item in made.record.artifacts if item.path not in known]
        return VerificationError(
            f"{who} other bytes than were locked, for the same identity",
            where=variant.name,
            remedy=f"The compile does not give the same bytes each time: 'epctx reproduce {variant.name}' shows it. "
            f"Take the locked ones from a remote cache, or run 'epctx lock --upgrade {variant.name}'.",
            reason="other-bytes",
            detail="\n".join(lines),
        )


def _together(unit: Sequence[Planned], every: Sequence[LockedVariant], group: SharedGroup) -> LockedVariant:
    """The entries of a group's selected members as one: their common artifacts, and the facts of each."""
    first, remedy = every[0], f"Run 'epctx lock' for all members of the group {group.name}."
    if any(set(locked.artifacts) != set(first.artifacts) for locked in every):
        names = ", ".join(locked.name for locked in every)
        raise VerificationError(
            f"{names} are locked with different bytes", where=LOCK_NAME, remedy=remedy, reason="drift"
        )
    members: list[Any] = [{} for _ in group.members]
    for planned, locked in zip(unit, every, strict=True):
        of_group = locked.facts.get("members")
        if not isinstance(of_group, list) or len(of_group) != len(members):
            where = f"{LOCK_NAME}: {locked.name}"
            raise VerificationError("the facts of the group's members are damaged", where=where, remedy=remedy)
        position = group.position(planned.variant)
        members = [
            own if index == position else kept or own
            for index, (own, kept) in enumerate(zip(of_group, members, strict=True))
        ]
    return replace(first, facts={**first.facts, "members": members})


def _same(locked: LockedVariant, found: Generation) -> bool:
    return set(locked.artifacts) == set(found.record.artifacts)


def _told(locked: LockedVariant, found: Generation) -> Generation:
    """The generation with the facts of the lock, so that the wheel is the same wherever the bytes come from."""
    rest = {name: fact for name, fact in found.record.result.items() if name not in FACTS}
    return replace(found, record=replace(found.record, result={**rest, **locked.facts}))


def _shown(artifact: Any) -> str:
    return f"{artifact.digest[:16]} ({artifact.size} bytes)" if artifact else "nothing"
