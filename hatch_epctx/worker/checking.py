"""Task check: the compiled model against the CPU EP on the source, on the same inputs, in a fresh process.

In the job's folder lie the compiled model's artifacts, the source below `SOURCE_FOLDER`, and perhaps `INPUTS_NAME`.
The compiled model is opened with exactly the options that are shipped. The source runs twice on the first sample: an
output that differs is random, and only its shape can be compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.worker.comparing import Tolerance, compare, merged, same
from hatch_epctx.worker.failure import TaskError
from hatch_epctx.worker.feeds import UNKNOWN_SIZES
from hatch_epctx.worker.loading import open_model
from hatch_epctx.worker.protocol import INPUTS_NAME, MODEL_NAME, PASSING, SOURCE_FOLDER, Checked, CheckedOutput, Result
from hatch_epctx.worker.samples import Input, generated, inputs_of, read_samples
from hatch_epctx.worker.session import Ep, is_simulated, kind, level, open_ep, register_custom_ops
from hatch_epctx.worker.wording import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hatch_epctx.worker.protocol import CheckJob, Job

__all__ = ["check"]

HALF_LIMITS: Final = (65504.0, 131008.0)


def check(job: Job) -> Result:
    """Run both models and compare.

    Raises:
        TaskError: missing-ep, no-device, not-simulated, load-failed, fallback, run-failed; bad-inputs; check-failed,
            with the figures among its facts, where an output differs beyond the tolerance.
    """
    plan = job["check"]
    ep = open_ep(job)
    if (reason := job.get("not_simulated", "")) and is_simulated(job, ep):
        raise TaskError("not-simulated", reason)
    reference = _reference(job, ep, plan)
    session = open_model(job, ep)
    inputs = _known_dims(inputs_of(reference.get_inputs(), "the source"), session)
    names = [value.name for value in session.get_outputs()]
    tolerance = Tolerance(rtol=plan["rtol"], atol=plan["atol"], cosine=plan["cosine"])
    samples, expected = _first_samples(plan, reference, inputs, names)
    again = _run(reference, names, samples[0])
    random = [not same(first, second) for first, second in zip(expected, again, strict=True)]
    found: list[list[CheckedOutput]] = [[] for _ in names]
    for index, sample in enumerate(samples):
        wanted = expected if index == 0 else _run(reference, names, sample)
        outputs = _run_compiled(job, session, names, sample)
        for position, name in enumerate(names):
            found[position].append(
                compare(name, outputs[position], wanted[position], tolerance, random=random[position])
            )
    checked = Checked(
        samples=len(samples),
        generated=not plan["inputs"],
        device=kind(ep.device) if ep.device is not None else job.get("device", "cpu"),
        outputs=[merged(name, items) for name, items in zip(names, found, strict=True)],
    )
    result: Result = {"ok": True, "check": checked, "onnxruntime": str(ep.runtime.__version__)}
    if bad := [output for output in checked["outputs"] if output["verdict"] not in PASSING]:
        raise _fault(bad, tolerance, generated_inputs=checked["generated"], facts=result)
    return result


def _reference(job: Job, ep: Ep, plan: CheckJob) -> Any:
    """The source on the CPU EP, at the level at which a shipped source is loaded."""
    runtime = ep.runtime
    options = runtime.SessionOptions()
    options.graph_optimization_level = level(runtime, plan["reference_optimization"])
    register_custom_ops(job, options)
    path = Path(SOURCE_FOLDER) / MODEL_NAME
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has an exception class per status
        raise TaskError(
            "check-failed",
            f"the CPU EP cannot open the source, so that there is nothing to compare with: {describe(error)}",
            remedy="Leave the check out of this model.",
        ) from error


def _known_dims(inputs: Sequence[Input], session: Any) -> list[Input]:
    """The source's inputs with the sizes that the compiled model gives them.

    An input that the compiled model lost is fed to the source alone.
    """
    compiled = {value.name: value.shape for value in inputs_of(session.get_inputs(), "the compiled model")}
    return [Input(name=value.name, dtype=value.dtype, shape=compiled.get(value.name, value.shape)) for value in inputs]


def _first_samples(
    plan: CheckJob, reference: Any, inputs: Sequence[Input], names: Sequence[str]
) -> tuple[list[dict[str, Any]], list[Any]]:
    """The samples, and what the source says to the first of them.

    Where dims stayed open, the first size at which the source runs is taken.
    """
    if plan["inputs"]:
        samples = read_samples(Path(INPUTS_NAME), inputs)
        return samples, _run(reference, names, samples[0])
    is_open = any(value.shape is None or None in value.shape for value in inputs)
    sizes = UNKNOWN_SIZES if is_open else UNKNOWN_SIZES[:1]
    for size in sizes[:-1]:
        sample = generated(inputs, seed=plan["seed"], ranges=plan["ranges"], unknown=size)
        try:
            return [sample], _run(reference, names, sample)
        except TaskError:
            continue
    sample = generated(inputs, seed=plan["seed"], ranges=plan["ranges"], unknown=sizes[-1])
    return [sample], _run(reference, names, sample)


def _run(reference: Any, names: Sequence[str], sample: dict[str, Any]) -> list[Any]:
    try:
        return list(reference.run(names, sample))
    except Exception as error:  # as above
        raise TaskError(
            "check-failed",
            f"the source itself fails on these inputs, on the CPU EP: {describe(error)}",
            remedy="Give inputs that the model takes: an .npz file as check.inputs, or check.ranges.",
        ) from error


def _run_compiled(job: Job, session: Any, names: Sequence[str], sample: dict[str, Any]) -> list[Any]:
    wanted = {value.name for value in session.get_inputs()}
    try:
        return list(session.run(names, {name: array for name, array in sample.items() if name in wanted}))
    except Exception as error:  # as above
        raise TaskError(
            "run-failed",
            f"{job['ep']} opens the model and fails on the check's inputs: {describe(error)}",
            remedy="Try another 'optimization' or other provider-options for the target, or leave the model out of it.",
        ) from error


def _fault(bad: list[CheckedOutput], tolerance: Tolerance, *, generated_inputs: bool, facts: Result) -> TaskError:
    said = "; ".join(_words(output, tolerance) for output in bad[:4])
    more = f"; and {len(bad) - 4} more outputs" if len(bad) > 4 else ""
    remedy = (
        "Set options that compute more precisely, widen check.rtol or check.atol where the difference is acceptable, "
        "or leave the model out of this target."
    )
    if any(_overflowed(output) for output in bad):
        remedy = (
            "The largest difference is the limit of 16-bit floats: inner values overflow on these inputs, and may on "
            "others. Compute in a wider type where the EP has one, rescale the model, or leave it out of this target."
        )
    if generated_inputs:
        remedy += " Generated inputs may be nothing that the model knows: real ones as check.inputs say more."
    if all(output["verdict"] == "reference-not-finite" for output in bad):
        remedy = "Give other inputs: an .npz file as check.inputs, or check.ranges."
    return TaskError(
        "check-failed", f"the compiled model differs from its source: {said}{more}", remedy=remedy, facts=facts
    )


def _overflowed(output: CheckedOutput) -> bool:
    """Whether the largest difference is what a 16-bit float ends at: 65504, or twice that on the HTP (QNN 2.7.0)."""
    return any(abs((output["max_abs"] or 0.0) - limit) < limit / 100 for limit in HALF_LIMITS)


def _words(output: CheckedOutput, tolerance: Tolerance) -> str:
    name, values, beyond = f"output {output['name']!r}", output["values"], output["beyond"]
    if output["verdict"] == "shape":
        return f"{name} has another shape or type"
    if output["verdict"] == "reference-not-finite":
        return f"{name} cannot be compared: the source itself gives no finite value for these inputs"
    if output["verdict"] == "not-finite":
        return f"{name} is not finite in {beyond} of {values} values where the source is"
    figures = [
        f"max abs {output['max_abs']:.3g}" if output["max_abs"] is not None else "",
        f"max rel {output['max_rel']:.3g}" if output["max_rel"] is not None else "",
        f"cosine {output['cosine']:.6f}" if output["cosine"] is not None else "",
    ]
    limits = "equal values" if output["exact"] else f"rtol {tolerance.rtol:g} and atol {tolerance.atol:g}"
    if tolerance.cosine is not None and not output["exact"]:
        limits += f", cosine {tolerance.cosine:g}"
    return f"{name}: {beyond} of {values} values beyond {limits} ({', '.join(filter(None, figures))})"
