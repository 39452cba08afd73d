"""Which variants of a package this machine can run, asked in a process of its own: a procedure for the worker.

Tools ask here and not in their own process, since EPs are native code. A look-up asks for itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatch_epctx.runtime.folders import Folder, Held
from hatch_epctx.runtime.plugins import present
from hatch_epctx.runtime.selection import Wish, candidates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hatch_epctx.manifest import Variant

__all__ = ["run"]


def run(job: Mapping[str, Any]) -> dict[str, Any]:
    """Task judge: a verdict on every variant in the manifest that the job names; no other file is looked at."""
    from hatch_epctx.manifest import read_manifest

    manifest = read_manifest(Path(job["model"]).read_bytes(), where=job["model"])
    folder = Folder(path=Path.cwd(), manifest=manifest)
    verdicts = [
        {"variant": f"{component.name}.{variant.name}", **_verdict(variant, folder)}
        for component in manifest.components
        for variant in component.variants
    ]
    return {"format": job["format"], "ok": True, "extra": {"verdicts": verdicts, "eps": list(present())}}


def _verdict(variant: Variant, folder: Folder) -> dict[str, Any]:
    wish = Wish(variant=variant.name, unverified=True)
    fitting, rejected = candidates([Held(variant=variant, folder=folder)], wish)
    if not fitting:
        return {"fits": False, "reason": rejected[0].reason, "text": rejected[0].text}
    text = "; ".join(part for part in (fitting[0].fit.note, fitting[0].differences) if part)
    return {"fits": True, "reason": "", "text": text, "device": fitting[0].device}
