"""One compile: a fresh worker process in a private folder, and a second one that loads what came out.

The folder holds the snapshot of the source under canonical names when the compile starts. When it is done, only the
artifacts are left in it, and the load check opens them there with exactly the options that the wheel will carry: a
compiled model that secretly needs its source fails here and not at the user's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hatch_epctx.compile.caching import cache_status, cached_job, fill_cache, put_back, unused_cache
from hatch_epctx.compile.facts import KEPT
from hatch_epctx.compile.jobs import compile_job, group_job, load_job, prepare_job
from hatch_epctx.compile.outcomes import result_of, run
from hatch_epctx.errors import CompileError
from hatch_epctx.files import check_name, fault_point, move, remove_tree
from hatch_epctx.source import snapshot, snapshot_custom_ops, snapshot_inputs, snapshot_option, snapshot_packages
from hatch_epctx.store import Artifact
from hatch_epctx.worker.protocol import CALIBRATION_NAME, member_folder, member_prepared

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hatch_epctx.compile.outcomes import Run
    from hatch_epctx.config import SharedGroup, Variant
    from hatch_epctx.process import Outcome
    from hatch_epctx.source import SourceModel
    from hatch_epctx.worker.protocol import Result

__all__ = ["Compiled", "compile_group", "compile_variant", "load_check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What a compile left in its folder."""

    artifacts: tuple[Artifact, ...]
    facts: dict[str, Any]


def compile_variant(
    variant: Variant,
    source: SourceModel,
    folder: Path,
    *,
    option_digests: Mapping[str, str],
    calibration: str | None = None,
    runner: Run = run,
) -> Compiled:
    """Compile `variant` in the empty, private `folder` and check that the result loads.

    Args:
        variant: the declaration, expanded and validated.
        source: what stands in the identity, of the model.
        folder: where to work; the artifacts alone are left in it.
        option_digests: what stands in the identity, of each file or folder option by its name.
        calibration: what stands in the identity, of the file of samples that model preparation reads.
        runner: runs the workers that need the EP; those that prepare the model run here.

    Raises:
        CompileError: the worker failed, died or overran its time; the result is not valid; it does not load.
        ModelError: the model and the target do not go together (dynamic shapes, unknown dimensions), or a step of its
            preparation cannot be done.
        ToolchainError: the EP or its device is not there.
        SourceChangedError: the source, or what is behind an option, is not what its digest says.
    """
    snapshot(source, folder)
    _snapshot_options(variant, folder, option_digests)
    snapshot_custom_ops(source.custom_ops, folder)
    kept, prepared = _prepare(variant, folder, calibration=calibration) if variant.prepare else ((), {})
    outcome = runner(
        compile_job(variant), folder, timeout=variant.timeout, env=variant.env, memory=variant.memory_limit
    )
    result = result_of(outcome, place=variant.name, what="the compile", fallback=CompileError, hint=_hint(variant))
    fault_point("compiled")
    made = _artifacts(result)
    names = {artifact.path for artifact in (*made, *kept)}
    _keep_only(folder, names)
    facts = _facts(result) | prepared
    facts["seconds"] = {"compile": round(outcome.seconds, 3)}
    if variant.ep_cache is not None:
        snapshot_custom_ops(source.custom_ops, folder)
        made += fill_cache(variant, folder, facts, hint=_hint(variant))
        names |= {artifact.path for artifact in made}
        _keep_only(folder, names)
    facts["startup"] = _startup(result, "compile")
    if variant.load_check:
        _load_check(variant, source, folder, facts, runner, option_digests)
        _keep_only(folder, names)
    fault_point("loaded")
    return Compiled(artifacts=_unique(made, kept), facts=facts)


def compile_group(
    group: SharedGroup,
    sources: Sequence[SourceModel],
    folder: Path,
    *,
    option_digests: Mapping[str, str],
    calibrations: Sequence[str | None],
    runner: Run = run,
) -> Compiled:
    """Compile the members of a weight-sharing group in one worker, in order, and check that each result loads.

    Args:
        group: its members are of one target.
        sources: what stands in the identity, of each member's model.
        folder: where to work; the artifacts alone are left in it.
        option_digests: as for `compile_variant`.
        calibrations: as `compile_variant` has one, by member.
        runner: as for `compile_variant`.

    Returns:
        The artifacts of all members, those that several refer to once. `facts["members"]` holds, by member, its facts
        and the names of its artifacts; `facts["shared"]` says whether they have a context binary in common.

    Raises:
        As `compile_variant`; a member's own fault is said at its name.
    """
    members = [replace(member, group=group) for member in group.members]
    first = members[0]
    _snapshot_options(first, folder, option_digests)
    prepared = [
        _member_source(member, source, folder, calibration=calibration)
        for member, source, calibration in zip(members, sources, calibrations, strict=True)
    ]
    timeout = sum(member.timeout for member in members)
    outcome = runner(group_job(members), folder, timeout=timeout, env=first.env, memory=first.memory_limit)
    place = _blamed(outcome, members)
    result = result_of(outcome, place=place, what="the group's compile", fallback=CompileError, hint=_hint(first))
    made = [_artifacts(item) for item in result["members"]]
    parts = [_unique(own, kept) for own, (kept, _) in zip(made, prepared, strict=True)]
    artifacts = _unique(*parts)
    names = {artifact.path for artifact in artifacts}
    _keep_only(folder, names)
    contexts = [{item.path for item in own if item.role == "context"} for own in made]
    shared = bool(set.intersection(*contexts))
    facts = [
        {**_facts(item), **more, "artifacts": [artifact.path for artifact in part], "shared": shared, "seconds": {}}
        for item, (_, more), part in zip(result["members"], prepared, parts, strict=True)
    ]
    for member, source, own in zip(members, sources, facts, strict=True):
        if member.load_check:
            _load_check(member, source, folder, own, runner, option_digests)
            _keep_only(folder, names)
    common = {**_facts(result), "shared": shared, "seconds": {"compile": round(outcome.seconds, 3)}}
    return Compiled(artifacts=artifacts, facts={**common, "members": facts})


def _member_source(
    member: Variant, source: SourceModel, folder: Path, *, calibration: str | None
) -> tuple[tuple[Artifact, ...], dict[str, Any]]:
    """Put a member's source into its own folder below `folder`, prepared; return what is kept of that, and facts."""
    position = member.group.position(member) if member.group else 0
    own = folder / member_folder(position)
    own.mkdir()
    snapshot(source, own)
    snapshot_custom_ops(source.custom_ops, folder)
    if not member.prepare:
        return (), {}
    kept, facts = _prepare(member, own, calibration=calibration)
    moved = []
    for artifact in kept:
        name = member_prepared(position) if artifact.role == "prepared" else artifact.path
        move(own / artifact.path, folder / name)  # a name by content means the same bytes
        moved.append(replace(artifact, path=name))
    return tuple(moved), facts


def _unique(*parts: Sequence[Artifact]) -> tuple[Artifact, ...]:
    """Artifacts of several parts, each name once: one name has one content, and its first role counts."""
    by_name: dict[str, Artifact] = {}
    for artifact in (artifact for part in parts for artifact in part):
        by_name.setdefault(artifact.path, artifact)
    return tuple(by_name.values())


def _hint(variant: Variant) -> str:
    """Where the configuration declares what the compile depends on."""
    return f"tool.epctx.models.{variant.model}" if variant.is_source else f"tool.epctx.targets.{variant.base_target}"


def _blamed(outcome: Outcome, members: Sequence[Variant]) -> str:
    """The member that a failed compile is about; all of them, where it is about none or the worker died."""
    position = ((outcome.result or {}).get("extra") or {}).get("member")
    if isinstance(position, int) and 0 <= position < len(members):
        return members[position].name
    return " + ".join(member.name for member in members)


def _snapshot_options(variant: Variant, folder: Path, option_digests: Mapping[str, str]) -> None:
    for option in variant.provider_options:
        if option.is_path:
            snapshot_option(option, folder, option_digests[option.name])


def _prepare(variant: Variant, folder: Path, *, calibration: str | None) -> tuple[tuple[Artifact, ...], dict[str, Any]]:
    """Run the steps of model preparation in a process of their own; return what is kept of them, and facts."""
    hint = f"tool.epctx.models.{variant.model}.prepare"
    if variant.calibration is not None:
        snapshot_inputs(variant.calibration, folder / CALIBRATION_NAME, calibration or "")
    outcome = run(prepare_job(variant), folder, timeout=variant.timeout, env={}, memory=variant.memory_limit)
    result = result_of(outcome, place=variant.name, what="model preparation", fallback=CompileError, hint=hint)
    remove_tree(folder / CALIBRATION_NAME)
    facts = {"steps": result.get("extra", {}).get("steps", []), "metadata_lost": result.get("metadata_lost", [])}
    return _artifacts(result), {"prepared": facts}


def load_check(
    variant: Variant,
    folder: Path,
    *,
    shared: bool = False,
    cache: Mapping[str, str] | None = None,
    runner: Run = run,
) -> dict[str, Any]:
    """Open the artifacts that lie in `folder` in a second fresh process, with the shipped options, and run once.

    Args:
        variant: what was compiled, perhaps as a member of its group.
        folder: as `compile_variant` leaves it.
        shared: whether its context binary is shared with other members.
        cache: files of the EP's cache by its own names, where the variant has one: artifacts in `folder`.
        runner: runs the worker.

    Returns:
        `load_check`: "passed", or that it could not run here and why; `seconds` of the process; `startup`: seconds of
        opening the model and of one run.

    Raises:
        CompileError, ToolchainError: it cannot be opened or run; the EP does not take up its cache (cache-unused).
    """
    job = load_job(variant, shared=shared)
    if cache:
        job = cached_job(variant, job)
        put_back(folder, cache)
    before = cache_status(folder)
    outcome = runner(job, folder, timeout=variant.timeout, env=variant.env, memory=variant.memory_limit)
    result = result_of(outcome, place=variant.name, what="the load check", fallback=CompileError, hint=_hint(variant))
    if cache_status(folder) != before:
        raise unused_cache(variant)
    reason = (result.get("extra") or {}).get("not_run")
    return {
        "load_check": f"not run here: {reason}" if reason else "passed",
        "seconds": round(outcome.seconds, 3),
        "startup": _startup(result, "session", "run"),
    }


def _load_check(
    variant: Variant,
    source: SourceModel,
    folder: Path,
    facts: dict[str, Any],
    runner: Run,
    option_digests: Mapping[str, str],
) -> None:
    """The load check; add to `facts` what became of it.

    Beside the artifacts lies what an application brings: libraries of custom operators, ONNX Runtime's and the EP's.
    """
    snapshot_custom_ops(source.custom_ops, folder)
    snapshot_packages(variant, folder, option_digests)
    cache = (facts.get("ep_cache") or {}).get("files")
    found = load_check(variant, folder, shared=bool(facts.get("shared")), cache=cache, runner=runner)
    facts["load_check"] = found["load_check"]
    facts["seconds"]["load"] = found["seconds"]
    facts["startup"] = {**facts.get("startup", {}), **found["startup"]}


def _startup(result: Result, *steps: str) -> dict[str, float]:
    """Seconds of steps of a worker, without the start of its process: what an application would wait for."""
    return {step: round(result["seconds"][step], 4) for step in steps if step in result.get("seconds", {})}


def _facts(result: Result) -> dict[str, Any]:
    return {name: result[name] for name in KEPT if name in result}


def _artifacts(result: Result) -> tuple[Artifact, ...]:
    return tuple(
        Artifact(role=item["role"], path=check_name(item["path"]), size=item["size"], digest=item["digest"])
        for item in result["artifacts"]
    )


def _keep_only(folder: Path, names: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in names:
            remove_tree(path)
