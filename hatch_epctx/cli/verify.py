"""`epctx verify`: re-hash a wheel, an installed package, a folder or an ONNX file, and check every reference."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hatch_epctx.cli.output import cut, emit_json, say, size, table
from hatch_epctx.config import read_environment
from hatch_epctx.errors import ModelError, VerificationError
from hatch_epctx.store import Store
from hatch_epctx.verification import verify as verify_path

if TYPE_CHECKING:
    from argparse import Namespace

    from hatch_epctx.verification import Report, VariantReport

__all__ = ["verify"]


def verify(options: Namespace) -> int:
    """Exit code 0 when everything is as recorded, 8 with a list when it is not.

    With ``--runs-here``, also 8 when a model has no compiled variant that this machine's EPs can run.
    """
    store = Store(read_environment(os.environ).cache_dir)
    fit = not options.no_compatibility or options.runs_here
    try:
        report = verify_path(options.path, store, fit=fit)
    except OSError as error:
        raise ModelError(
            f"cannot be read: {error.strerror or error}", where=str(options.path), reason="unreadable"
        ) from error
    lacking = _lacking(report) if options.runs_here else []
    if options.json:
        emit_json(options, _described(report, lacking))
    else:
        _print(report, verbose=options.verbose)
    if not report.problems and not lacking:
        return 0
    if not options.json:
        raise _failure(report, lacking)
    return VerificationError.exit_code


def _lacking(report: Report) -> list[str]:
    """Models without a compiled variant that this machine can run."""
    models: dict[str, bool] = {}
    for package in report.packages:
        for variant in package.variants:
            model = variant.name.partition(".")[0]
            models[model] = models.get(model, False) or (bool(variant.fits) and variant.ep != "CPUExecutionProvider")
    return [model for model, fits in models.items() if not fits]


def _described(report: Report, lacking: list[str]) -> dict[str, Any]:
    return {"ok": not report.problems and not lacking, **asdict(report), "without_a_variant_that_runs_here": lacking}


def _print(report: Report, *, verbose: bool) -> None:
    for package in report.packages:
        name = " ".join(part for part in (package.name, package.version) if part) or "(no name)"
        say(f"{package.place}: {name}")
        head = ("VARIANT", "EP", "DEVICE", "IDENTITY", "FILES", "SIZE", "ON THIS MACHINE")
        table(head, [_row(variant, verbose=verbose) for variant in package.variants])
    for note in report.notes:
        say(f"note: {note}")
    if not report.problems or verbose:
        for text in report.checked:
            say(f"checked: {text}")
    if not report.problems:
        say(f"{report.path}: everything is as recorded")


def _row(variant: VariantReport, *, verbose: bool) -> tuple[str, ...]:
    said = variant.verdict
    runs = "runs" if not said else said if said.startswith("runs") else f"runs ({said})"
    here = {True: runs, False: f"does not run: {said}", None: "not asked"}[variant.fits]
    return (
        variant.name,
        variant.ep.removesuffix("ExecutionProvider"),
        variant.device or "-",
        (variant.identity or "-")[: None if verbose else 12],
        str(variant.files),
        size(variant.size),
        here if verbose else cut(here, 70),
    )


def _failure(report: Report, lacking: list[str]) -> VerificationError:
    lines = [f"  {problem}" for problem in report.problems]
    lines += [f"  {model}: no compiled variant runs on this machine" for model in lacking]
    count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    reasons = {problem.reason for problem in report.problems} or {"does-not-run"}
    return VerificationError(
        count,
        where=report.path,
        remedy="Build or install it again, from a place that you trust." if report.problems else "",
        reason=reasons.pop() if len(reasons) == 1 else "several",
        detail="\n".join(lines),
    )
