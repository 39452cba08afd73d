"""Jobs for workers: what is told of a task, an EP and a variant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hatch_epctx.source import copy_name
from hatch_epctx.toolchain import pick_cpus
from hatch_epctx.worker.protocol import CONTEXT_NAME, FORMAT, MODEL_NAME, SOURCE_NAME, CustomOpsJob, Job, member_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hatch_epctx.config import Variant
    from hatch_epctx.providers import Provider

__all__ = ["base_job", "compile_job", "ep_fields", "group_job", "held_to", "load_job", "prepare_job"]


def base_job(task: Any) -> Job:
    """A task without an EP of its own."""
    return {"format": FORMAT, "task": task, "procedure": "hatch_epctx.worker.procedure"}


def ep_fields(provider: Provider, device: str) -> Job:
    """What every job says of its EP."""
    return {
        "procedure": provider.procedure,
        "ep": provider.names[0],
        "sources": list(provider.names),
        "module": provider.module,
        "device": device,
        "offline": provider.offline,
        "needs_static_shapes": provider.needs_static_shapes,
    }


def held_to(cores: int | None) -> list[int]:
    """CPUs for `Job.cpus`; empty where nothing is asked, or there are fewer cores (`discover` refuses that)."""
    return sorted(pick_cpus(cores)) if cores is not None else []


def compile_job(variant: Variant) -> Job:
    """The compile of a variant, or the packing of a shipped source."""
    return {
        **base_job({"compiled": "compile", "source": "source", "cached": "pack"}[variant.kind]),
        **ep_fields(variant.provider, variant.device),
        "provider_options": {
            option.name: copy_name(option) if option.is_path else option.text for option in variant.provider_options
        },
        "session_options": dict(variant.session_options),
        "free_dimensions": dict(variant.free_dimensions),
        "free_dimension_denotations": dict(variant.free_dimension_denotations),
        "input_shapes": {name: list(sizes) for name, sizes in variant.input_shapes.items()},
        "optimization": variant.optimization,
        "embed": variant.embed,
        "cpus": held_to(variant.cores),
        "context_io": variant.context_io,
        "prepared": bool(variant.prepare),
        "want_coverage": True,
        "left_pattern": variant.provider.left_pattern,
        "model": MODEL_NAME,
        **custom_ops(variant),
    }


def custom_ops(variant: Variant) -> Job:
    """The libraries of the model's custom operators; nothing where it has none."""
    named: list[CustomOpsJob] = [
        {"file": ops.copy_name} if ops.file is not None else {"module": ops.module} for ops in variant.custom_ops
    ]
    return {"custom_ops": named} if named else {}


def prepare_job(variant: Variant) -> Job:
    """The steps of model preparation; no EP has a part in them."""
    return {
        **base_job("prepare"),
        "prepare": list(variant.prepare),
        "free_dimensions": dict(variant.free_dimensions),
        "free_dimension_denotations": dict(variant.free_dimension_denotations),
        "input_shapes": {name: list(sizes) for name, sizes in variant.input_shapes.items()},
    }


def group_job(members: Sequence[Variant]) -> Job:
    """The compile of a weight-sharing group, its members in order."""
    jobs = [compile_job(member) for member in members]
    common = jobs[0]
    differing: list[Any] = [{name: value for name, value in job.items() if common.get(name) != value} for job in jobs]
    return {**common, "task": "share", "members": differing}


def load_job(variant: Variant, *, shared: bool = False) -> Job:
    """Opening what a compile left, with exactly the options that the wheel will carry.

    Args:
        variant: what was compiled, perhaps as a member of its group.
        shared: whether its context binary is shared with other members.
    """
    compiled = member_context(variant.group.position(variant)) if variant.group else CONTEXT_NAME
    return {
        **compile_job(variant),
        "task": "load",
        "model": compiled if variant.kind == "compiled" else SOURCE_NAME,
        "not_simulated": variant.provider.shared_not_simulated if shared else "",
        "provider_options": {
            **{option.name: option.text for option in variant.load_options},
            **{option.name: copy_name(option) for option in variant.provider_options if option.packages},
        },
        "optimization": variant.load_optimization,
        "cpus": [],
        "session_options": dict(variant.load_session_options),
        "free_dimensions": {},
        "free_dimension_denotations": {},
        "input_shapes": {},
    }
