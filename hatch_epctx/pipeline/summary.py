"""What became of a build, as plain data: the report of a build that pages, tables and programs show.

A summary is JSON of the form ``epctx-report/1``. It is remembered in the store, by project, so that `epctx report`
shows the last build whatever front end started it; the one before gives what changed since. It is presentation: it
holds times, and nothing in a wheel is made of it.
"""

from __future__ import annotations

import platform
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import hatch_epctx
from hatch_epctx.digest import content_name, digest_bytes
from hatch_epctx.findings import share
from hatch_epctx.manifest import ROLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hatch_epctx.pipeline.records import Build, Entry
    from hatch_epctx.store import Artifact, Store

__all__ = ["FORMAT", "recall_summary", "remember_summary", "summary"]

FORMAT: Final = "epctx-report/1"
_KIND: Final = "report"
_TAIL: Final = 20_000
"""Characters of an error's detail that are kept."""
_KEPT: Final = ("identity", "status", "size", "coverage", "seconds", "startup")
"""What is kept of a variant of the build before."""
_TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(("project", "made_with", "counts"), dict),
    **dict.fromkeys(("models", "targets", "variants"), list),
    **dict.fromkeys(("jobs", "size"), int),
    **dict.fromkeys(("locked", "offline"), bool),
    "made": str,
    "seconds": float,
}
"""What a summary holds at least."""
_OF_VARIANT: Final = frozenset(
    [
        "artifacts",
        "changed",
        "check",
        "compatibility",
        "coverage",
        "device",
        "ep",
        "error",
        "first",
        "group",
        "identity",
        "load_check",
        "metadata_lost",
        "model",
        "name",
        "reason",
        "seconds",
        "size",
        "source",
        "started",
        "startup",
        "status",
        "target",
        "times",
        "title",
        "uncertain",
        "worker",
    ]
)
"""What it holds at least of a variant."""


def summary(built: Build, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The summary of `built`; `before` is that of the build before, of whichever variants."""
    project = built.project
    variants = [_variant(entry) for entry in built.entries]
    return {
        "format": FORMAT,
        "project": {"name": project.name, "version": project.version, "package": project.settings.package},
        "made": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(built.seconds, 3),
        "jobs": project.environment.jobs,
        "locked": project.environment.locked,
        "offline": project.environment.offline,
        "made_with": {
            "hatch-epctx": hatch_epctx.__version__,
            "python": platform.python_version(),
            "platform": f"{platform.system()} {platform.machine()}",
            "command": "" if sys.argv[0] == "-c" else sys.argv[0].replace("\\", "/").rpartition("/")[2],
        },
        "counts": _counts(variants),
        "size": sum(item["size"] for item in _unique(variants)),
        "models": list(dict.fromkeys(item["model"] for item in variants)),
        "targets": list(dict.fromkeys(item["target"] for item in variants)),
        "variants": variants,
        "before": _before(before),
    }


def recall_summary(store: Store, name: str, package: str) -> dict[str, Any] | None:
    """The summary of the last build on this machine of the project `name` with `package`; None where there is none.

    One that another version of this program wrote with less in it counts as none.
    """
    found = store.recall(_KIND, _key(name, package))
    return found if found is not None and _is_whole(found) else None


def _is_whole(found: Mapping[str, Any]) -> bool:
    """Whether a remembered summary has the form that `summary` gives it."""
    if found.get("format") != FORMAT or any(not isinstance(found.get(name), kind) for name, kind in _TYPES.items()):
        return False
    before = found.get("before")
    if before is not None and not (
        isinstance(before, dict) and before.keys() >= {"made", "seconds", "size", "variants"}
    ):
        return False
    earlier = before["variants"] if before else {}
    return (
        all(isinstance(item, dict) and item.keys() >= _OF_VARIANT for item in found["variants"])
        and isinstance(earlier, dict)
        and all(isinstance(item, dict) for item in earlier.values())
    )


def remember_summary(store: Store, built: Build) -> None:
    """Keep the summary of `built` as that of the project's last build."""
    name, package = built.project.name, built.project.settings.package
    store.remember(_KIND, _key(name, package), summary(built, recall_summary(store, name, package)))


def _key(name: str, package: str) -> str:
    return digest_bytes(f"{name}/{package}".encode())


def _counts(variants: list[dict[str, Any]]) -> dict[str, int]:
    statuses = ("hit", "compiled", "fetched", "skipped", "failed")
    return {status: sum(item["status"] == status for item in variants) for status in statuses}


def _unique(variants: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Artifacts of all variants, each content once."""
    return list({item["sha256"]: item for variant in variants for item in variant["artifacts"]}.values())


def _before(summary: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What is kept of the build before: one level deep, so that a summary does not grow from build to build."""
    if summary is None:
        return None
    variants = {item["name"]: {key: item.get(key) for key in _KEPT} for item in summary["variants"]}
    return {"made": summary["made"], "seconds": summary["seconds"], "size": summary["size"], "variants": variants}


def _variant(entry: Entry) -> dict[str, Any]:
    variant, identity, facts = entry.variant, entry.planned.identity, entry.facts
    artifacts = [_artifact(entry, item) for item in entry.artifacts if item.role in ROLES]
    return {
        "name": variant.name,
        "model": variant.model,
        "target": variant.target,
        "ep": variant.provider.names[0],
        "title": variant.provider.title,
        "device": variant.device,
        "source": variant.is_source,
        "group": variant.group.name if variant.group else None,
        "status": entry.status,
        "reason": entry.reason,
        "identity": identity.digest if identity else None,
        "changed": list(entry.changed),
        "first": entry.first,
        "uncertain": list(entry.uncertain),
        "started": round(entry.started, 3),
        "seconds": round(entry.seconds, 3),
        "worker": entry.worker,
        "times": _times(entry),
        "startup": dict(facts.get("startup") or {}),
        "coverage": _coverage(entry),
        "check": _check(entry),
        "load_check": facts.get("load_check"),
        "metadata_lost": list(facts.get("metadata_lost") or ()),
        "compatibility": str(facts.get("compatibility") or ""),
        "artifacts": artifacts,
        "size": sum(item["size"] for item in artifacts),
        "error": _error(entry),
    }


def _times(entry: Entry) -> dict[str, float]:
    """Seconds that the result took to make, whenever that was: compile, load, check."""
    common = entry.generation.record.result.get("seconds") if entry.generation else None
    check = (entry.check or {}).get("seconds")
    own = {**(common or {}), **(entry.facts.get("seconds") or {})}
    return {**own, **({"check": check} if isinstance(check, int | float) else {})}


def _coverage(entry: Entry) -> dict[str, Any] | None:
    """Nodes of the source and of the result; None for a shipped source, and where there is no result."""
    facts = entry.facts
    if entry.variant.is_source or "context_nodes" not in facts:
        return None
    found = share(facts, entry.variant.provider.names[0])
    return {
        "taken": found[0] if found else None,
        "total": found[1] if found else None,
        "context_nodes": facts["context_nodes"],
        "nodes_left": facts.get("nodes_left"),
        "left": [dict(item) for item in facts.get("left") or ()],
    }


def _check(entry: Entry) -> dict[str, Any] | None:
    """Figures of a check, of one that failed too."""
    found = entry.check or (entry.error and entry.error.facts.get("check"))
    return dict(found) if found else None


def _artifact(entry: Entry, artifact: Artifact) -> dict[str, Any]:
    variant = entry.variant
    own = f"{variant.model}.onnx" if variant.is_source else f"{variant.name}_ctx.onnx"
    name = own if artifact.role == "model" else content_name(artifact.digest)
    return {"role": artifact.role, "name": name, "size": artifact.size, "sha256": artifact.digest}


def _error(entry: Entry) -> dict[str, Any] | None:
    error = entry.error
    if error is None:
        return None
    return {
        "where": error.where,
        "found": error.found,
        "expected": error.expected,
        "remedy": error.remedy,
        "reason": error.reason,
        "exit_code": error.exit_code,
        "detail": error.detail[-_TAIL:],
    }
