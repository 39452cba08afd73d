"""`epctx reproduce`: compile again and again in fresh folders and compare bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hatch_epctx.cli.output import emit_json, say
from hatch_epctx.cli.projects import find_variant, open_pipeline
from hatch_epctx.errors import VerificationError
from hatch_epctx.pipeline import raise_all

if TYPE_CHECKING:
    from argparse import Namespace

    from hatch_epctx.pipeline import Pipeline, Planned, Reproduced

__all__ = ["reproduce_variants"]


def reproduce_variants(options: Namespace) -> int:
    """Compile the named variants, or all selected ones, twice or more; say where two compiles differ first."""
    pipeline = open_pipeline(options)
    found = []
    for item in pipeline.reproduce(_chosen(pipeline, options.variant), runs=options.runs):
        found.append(item)
        if not options.json:
            _print(item)
    if options.json:
        emit_json(options, {"runs": options.runs, "units": [_described(item) for item in found]})
    different = [name for item in found if item.differences for name in item.variants]
    if different:
        raise VerificationError(
            f"{len(different)} of {sum(len(item.variants) for item in found)} variants are not reproducible",
            remedy="The store keeps what was compiled once; commit epctx.lock ('epctx lock') and share a remote cache "
            "to get the same bytes elsewhere.",
            reason="not-reproducible",
            detail="\n".join(f"  {name}" for name in different),
        )
    raise_all([item.error for item in found if item.error is not None], f"of {len(found)} compiles")
    return 0


def _chosen(pipeline: Pipeline, names: list[str]) -> list[Planned]:
    wanted = {find_variant(pipeline, name, where="epctx reproduce").name for name in names}
    return [item for item in pipeline.prepare() if not wanted or item.variant.name in wanted]


def _print(item: Reproduced) -> None:
    for name in item.variants:
        if item.identity is None:
            say(f"{name}: skipped: {item.skipped}")
        elif item.error is not None:
            say(f"{name}: failed")
        elif item.differences:
            say(f"{name}: differs: {item.differences[0]}")
        else:
            say(f"{name}: reproduced{_STORED[item.stored]}")


_STORED = {"same": "; the store holds the same", "different": "; the store holds other bytes", "": ""}


def _described(item: Reproduced) -> dict[str, Any]:
    return {
        "variants": list(item.variants),
        "identity": item.identity.digest if item.identity else None,
        "result": "skipped"
        if item.identity is None
        else "failed"
        if item.error
        else "differs"
        if item.differences
        else "reproduced",
        "differences": [
            {
                "role": found.role,
                "number": found.number,
                "sizes": [found.first, found.other],
                "offset": found.offset,
                "count": found.count,
            }
            for found in item.differences
        ],
        "stored": item.stored or None,
        "error": str(item.error) if item.error else None,
    }
