"""The actions that pack: package folder and wheel from compiles, through the same packer as every front end.

The compiles' manifests are turned back into the build that they are parts of, so that folder, manifest and bill of
materials are made by the very code that the hatch plugin runs. Every artifact is read and held against its digest.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from hatch_epctx.bazel.compiling import scratch_beside
from hatch_epctx.bazel.settings import ActionInputs, project_of, table_of
from hatch_epctx.errors import ConfigError, VerificationError
from hatch_epctx.files import copy_file
from hatch_epctx.identity import Identity
from hatch_epctx.pipeline import Build, Entry, Planned
from hatch_epctx.pipeline.records import facts_of
from hatch_epctx.source import SourceModel
from hatch_epctx.store import Generation
from hatch_epctx.store.generation import verify_artifact
from hatch_epctx.wheel import write_package

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hatch_epctx.bazel.records import CompiledContext, Source
    from hatch_epctx.config import Project, Variant
    from hatch_epctx.worker.protocol import ScannedModel

__all__ = ["Packed", "build_of", "opened", "package_action"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What a package folder is made for."""

    package: str
    """Import name."""
    name: str
    """Of the distribution."""
    version: str
    licence: str = ""
    compression: str = "stored"


@dataclass(slots=True, kw_only=True)
class _Tables:
    """The configuration that several compiles are parts of."""

    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    targets: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)


def package_action(contexts: Sequence[CompiledContext], packed: Packed, out: Path) -> None:
    """Write the package folder of `contexts` into `out`, which is empty or not there yet.

    Raises:
        EpctxError: compiles contradict each other, or an artifact is not what its manifest says.
    """
    with scratch_beside(out) as scratch:
        write_package(build_of(contexts, packed, scratch), out, version=packed.version)


def build_of(contexts: Sequence[CompiledContext], packed: Packed, scratch: Path) -> Build:
    """The build that `contexts` are the results of. Variants come in the order of the hatch plugin.

    Args:
        contexts: in the order of preference of their targets.
        packed: what the build is for.
        scratch: a private folder; files may be copied into it.

    Raises:
        ConfigError: two compiles declare one model or target in two ways, or one variant stands twice.
        VerificationError: an artifact is not what its manifest says.
    """
    project, places = _project(contexts, packed, scratch)
    generations: dict[int, Generation] = {}
    entries = []
    for variant in project.variants:
        place = places[variant.model, "" if variant.is_source else variant.target]
        if place not in generations:
            generations[place] = opened(contexts[place], scratch / f"artifacts-{place}")
        entries.append(_entry(variant, contexts[place], generations[place]))
    return Build(project=project, entries=tuple(entries))


def _project(
    contexts: Sequence[CompiledContext], packed: Packed, scratch: Path
) -> tuple[Project, dict[tuple[str, str], int]]:
    """The project of all compiles, and by model and target ("": the source) which of them it is."""
    tables = _Tables()
    places: dict[tuple[str, str], int] = {}
    for number, context in enumerate(contexts):
        table = table_of(context.config, _stand_ins(context, scratch / f"inputs-{number}"), scratch / f"own-{number}")
        target = context.config["target"]
        for name, settings in table["models"].items():
            variant = (name, target["name"] if target else "")
            if variant in places:
                raise ConfigError(
                    "the variant stands twice", where=".".join(filter(None, variant)), remedy="Name each compile once."
                )
            places[variant] = number
            _add_model(tables, name, settings)
        for name, settings in table.get("targets", {}).items():
            _add_target(tables, name, settings)
        for name, settings in table.get("groups", {}).items():
            group = tables.groups.setdefault(name, {**settings, "targets": []})
            group["targets"] += settings["targets"]
    table = {
        "package": packed.package,
        "models": tables.models,
        "targets": tables.targets,
        "groups": tables.groups,
        "wheel": {"compression": packed.compression},
    }
    return project_of(table, scratch, name=packed.name, version=packed.version, licence=packed.licence), places


def _add_model(tables: _Tables, name: str, settings: Mapping[str, Any]) -> None:
    own = {**settings, "source": f"models/{name}/model.onnx"}
    known = tables.models.setdefault(name, {**own, "targets": [], "ship-source": False})
    varying = {"targets", "ship-source"}
    if {k: v for k, v in known.items() if k not in varying} != {k: v for k, v in own.items() if k not in varying}:
        raise ConfigError(
            "is declared in two ways",
            where=f"epctx_model {name}",
            remedy="Give one of the models another model_name.",
            reason="bad-value",
        )
    known["targets"] += settings["targets"]
    known["ship-source"] |= settings["ship-source"]


def _add_target(tables: _Tables, name: str, settings: Mapping[str, Any]) -> None:
    if tables.targets.setdefault(name, dict(settings)) != settings:
        raise ConfigError(
            "is declared in two ways",
            where=f"epctx_ep {name}",
            remedy="Give one of the EPs another target_name.",
            reason="bad-value",
        )


def _stand_ins(context: CompiledContext, folder: Path) -> ActionInputs:
    """Files in the place of inputs, whose bytes no packing reads."""
    folder.mkdir(parents=True)
    empty = folder / "empty"
    empty.write_bytes(b"")
    (folder / "folder").mkdir()
    models = [item["name"] for item in context.config["models"]]
    return ActionInputs(
        models=dict.fromkeys(models, empty),
        calibrations=dict.fromkeys(context.calibrated, empty),
        custom_ops={
            model: [
                _stand_in(folder / "custom-ops" / f"{model}-{number}" / name)
                for number, name in enumerate(context.custom_ops.get(model, ()))
            ]
            for model in models
        },
        options={name: folder / "folder" if kind == "folder" else empty for name, kind in context.options.items()},
    )


def _stand_in(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    return path


def opened(context: CompiledContext, scratch: Path) -> Generation:
    """The artifacts of a compile as a generation, every byte of them verified.

    In a sandbox they are links to what was declared: what these lead to is taken, copied together where it lies apart.

    Raises:
        VerificationError: an artifact is missing or is not what the manifest says.
    """
    real = {artifact.path: (context.folder / artifact.path).resolve() for artifact in context.record.artifacts}
    folders = {path.parent for path in real.values()}
    folder = folders.pop()
    if folders or any(path.name != name for name, path in real.items()):
        folder = scratch
        folder.mkdir(parents=True)
        for name, path in real.items():
            if path.is_file():
                copy_file(path, folder / name)
    for artifact in context.record.artifacts:
        miss = verify_artifact(folder, artifact, content=True)
        if miss is not None:
            raise VerificationError(
                f"is not what its manifest says: {miss}",
                where=str(context.folder),
                remedy="A cache or a copy damaged it: remove it there and build again.",
                reason=miss.reason,
            )
    return Generation(name="0" * 32, path=folder, record=context.record, selected=True, claims=ExitStack())


def _entry(variant: Variant, context: CompiledContext, generation: Generation) -> Entry:
    record = context.record
    source: Source | None = next((item for item in context.sources if item.model == variant.model), None)
    if source is None:
        raise VerificationError("has no source in its manifest", where=variant.name, reason="malformed-manifest")
    planned = Planned(
        variant=variant,
        source=SourceModel(
            path=variant.source,
            digest=source.digest,
            size=source.size,
            external=source.external,
            scan=cast("ScannedModel", {}),  # no packing asks for it
        ),
        identity=Identity(digest=record.identity, document=record.document),
    )
    return Entry(planned=planned, status="hit", generation=generation, facts=facts_of(variant, record))
