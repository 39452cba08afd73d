"""Model folders of onnxruntime-genai whose parts are variants of a package.

    model = package.genai("acme_vision/llm")       # a folder with genai_config.json, tokenizer files, perhaps models
    generator = onnxruntime_genai.Model(model.config())

A part is an object of genai_config.json that names an ONNX file: ``model.decoder``, ``model.encoder``, a stage of
``model.decoder.pipeline``. The part's model in the package is the one called like its file (``filename`` without
``.onnx``), unless `parts` says otherwise. Each is looked up as `Package.lookup` does, and the chosen variant's file
name, session and provider options go into the part's place; whatever else the folder holds stays as it is.

onnxruntime-genai joins file names to the folder as text and refuses "..", so that everything has to lie in one folder:
a private one of links to what is installed, or with `out` a folder of its own that is whole (seen with 0.18.0).
"""

from __future__ import annotations

import json
import os
import stat
import threading
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hatch_epctx.digest import digest_entries
from hatch_epctx.errors import LookupFailure
from hatch_epctx.files import check_name, copy_file, make_dir, move
from hatch_epctx.runtime import plugins
from hatch_epctx.runtime.genaiconfig import CONFIG, part_options, parts_of, read_config
from hatch_epctx.runtime.keeping import Hold, collect, discard, fill, private_base

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hatch_epctx.runtime.choice import Choice

    Lookup = Callable[[str], Choice]

__all__ = ["GenaiModel", "make_folder"]

_registered: set[tuple[str, str]] = set()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenaiModel:
    """A folder that onnxruntime-genai opens. Keep it for as long as the model is in use."""

    path: Path
    choices: Mapping[str, Choice]
    """What was chosen, by dotted name of the part below "model", such as "decoder" or "decoder.pipeline.context"."""
    hold: object = field(repr=False, compare=False, default=None)

    def config(self) -> Any:
        """`onnxruntime_genai.Config` of the folder, the plugin EPs that its parts need registered with it.

        Raises:
            LookupFailure: onnxruntime-genai is not installed (missing-genai), or an EP does not load in it.
        """
        try:
            genai = import_module("onnxruntime_genai")
        except ImportError as error:
            raise LookupFailure(
                f"onnxruntime-genai cannot be imported: {error}",
                remedy="Install it: pip install onnxruntime-genai.",
                reason="missing-genai",
            ) from error
        for choice in self.choices.values():
            _register(genai, choice.ep)
        return genai.Config(str(self.path))


def _register(genai: Any, ep: str) -> None:
    """Register a plugin with onnxruntime-genai, which brings an environment of its own; once for the process."""
    module = plugins.known(ep).module
    if not module:
        return
    library = str(import_module(module).get_library_path())
    with _lock:
        if (ep, library) in _registered:
            return
        try:
            genai.register_execution_provider_library(ep, library)
        except Exception as error:
            text = f"{ep} does not load in onnxruntime-genai: {error}"
            raise LookupFailure(text, reason="ep-not-loadable") from error
        _registered.add((ep, library))


def make_folder(
    source: Path, lookup: Lookup, models: tuple[str, ...], parts: Mapping[str, str], out: Path | None
) -> GenaiModel:
    """See `Package.genai`.

    Args:
        source: the folder with genai_config.json.
        lookup: gives the choice for a model.
        models: what the package has.
        parts: models by part.
        out: a new or empty folder for a whole copy; None for a private folder of links.

    Raises:
        LookupFailure: there is no such folder, part or model, nothing of it is in the package, or `lookup` raises it.
    """
    document, chosen = _chosen(source, lookup if out is None else _without_cache(lookup), models, parts)
    data = (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    files = _files(source, document, chosen)
    try:
        if out is not None:
            _make_whole(out, data, files)
            return GenaiModel(path=out.absolute(), choices=chosen)
        base = private_base("genai")
        target = base / _key(data, files)
        hold = Hold(target.with_suffix(".lock"))
        if not _is_whole(target, files):
            _make_private(base, target, data, files)
            collect(base)
    except OSError as error:
        raise _unwritable(out or source, error) from error
    return GenaiModel(path=target, choices=chosen, hold=hold)


def _without_cache(lookup: Lookup) -> Lookup:
    """As `lookup`, but no choice keeps an EP's cache in this user's own folder: a whole folder serves elsewhere."""

    def plain(model: str) -> Choice:
        choice = lookup(model)
        if choice.ep_cache is None:
            return choice
        return replace(choice, provider_options=choice.ep_cache.plain_options, ep_cache=None)

    return plain


def _chosen(
    source: Path, lookup: Lookup, models: tuple[str, ...], parts: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Choice]]:
    """The configuration with the choices in it, and the choices by part."""
    document = deepcopy(read_config(source / CONFIG))
    found = dict(parts_of(document["model"], ""))
    for name in parts:
        if name not in found:
            expected = f"one of {', '.join(found) or '(none)'}"
            raise LookupFailure(f"there is no part {name!r}", where=str(source / CONFIG), expected=expected)
    chosen: dict[str, Choice] = {}
    for name, part in found.items():
        model = parts.get(name) or part["filename"].removesuffix(".onnx")
        if name in parts or model in models:
            chosen[name] = choice = lookup(model)
            if choice.supply is not None:
                found_text = (
                    f"{model}.{choice.variant} is opened through callbacks, which onnxruntime-genai has none of"
                )
                raise LookupFailure(found_text, where=name, reason="callbacks-unsupported")
            if choice.custom_ops:
                found_text = (
                    f"{model}.{choice.variant} needs custom operators, which are not passed to onnxruntime-genai"
                )
                remedy = "Open the model with Package.session instead."
                raise LookupFailure(found_text, where=name, remedy=remedy, reason="not-available")
            part["filename"] = choice.path.name
            part["session_options"] = part_options(part.get("session_options"), choice)
    if not chosen:
        named = ", ".join(f"{name}: {part['filename']}" for name, part in found.items())
        raise LookupFailure(
            f"none of its parts is a model of the package ({named or 'it has none'})",
            where=str(source / CONFIG),
            expected=f"a file called like one of {', '.join(models)}",
            remedy="Name the models by part: parts={'decoder': ...}.",
            reason="unknown-model",
        )
    return document, chosen


def _files(source: Path, document: Mapping[str, Any], chosen: Mapping[str, Choice]) -> dict[str, Path]:
    """What the folder holds beside the configuration, by name: the choices' files, and the source folder's others.

    ONNX files of the source folder that no part names any more stay out, and their weights with them.
    """
    files: dict[str, Path] = {}
    for choice in chosen.values():
        for name in (choice.path.name, *choice.beside):
            path = choice.path.parent / check_name(name)
            if name.casefold() == CONFIG:
                raise LookupFailure("the package has a file of this name", where=name, reason="name-clash")
            if files.setdefault(name, path) != path:
                raise LookupFailure(f"two packages have a file {name!r}", where=str(source), reason="name-clash")
    named = {part["filename"] for _, part in parts_of(dict(document["model"]), "")}
    replaced = [path.name for path in source.glob("*.onnx") if path.name not in named]
    for path in sorted(source.iterdir()):
        if path.name == CONFIG or not path.is_file() or any(path.name.startswith(name) for name in replaced):
            continue
        files.setdefault(path.name, path.absolute())
    return files


def _key(data: bytes, files: Mapping[str, Path]) -> str:
    """Name of the private folder: what it holds, and as which files, since a folder of copies does not follow them."""
    held = []
    for name, path in sorted(files.items()):
        facts = path.stat()
        held.append((name, f"{path} {facts.st_size} {facts.st_mtime_ns}"))
    return digest_entries([("config", digest_entries([("json", data.decode())])), *held])[:32]


def _is_whole(folder: Path, files: Mapping[str, Path]) -> bool:
    """Whether everything is there: links may lead to what has gone."""
    return all((folder / name).exists() for name in (CONFIG, *files))


def _make_private(base: Path, target: Path, data: bytes, files: Mapping[str, Path]) -> None:
    def publish(made: Path, target: Path) -> None:
        try:
            move(made, target)
        except OSError:
            if _is_whole(target, files):
                raise  # somebody else was faster
            discard(target)
            move(made, target)

    fill(base, target, lambda folder: _fill(folder, data, files, _link), publish)


def _make_whole(out: Path, data: bytes, files: Mapping[str, Path]) -> None:
    """The whole copy: made beside `out` and moved there, so that nobody sees half of it."""
    there = out.exists()
    make_dir(out, durable=False)
    if any(out.iterdir()):
        raise LookupFailure("the folder is not empty", where=str(out), reason="not-empty")

    def publish(made: Path, target: Path) -> None:
        made.chmod(stat.S_IMODE(target.stat().st_mode))
        try:
            target.rmdir()
        except OSError as error:
            raise LookupFailure("the folder is not empty any more", where=str(out), reason="not-empty") from error
        move(made, target)

    try:
        fill(out.parent, out, lambda folder: _fill(folder, data, files, copy_file), publish)
    except BaseException:
        if not there:
            with suppress(OSError):
                out.rmdir()
        raise


def _fill(folder: Path, data: bytes, files: Mapping[str, Path], place: Callable[[Path, Path], None]) -> None:
    with (folder / CONFIG).open("xb") as stream:
        stream.write(data)
    for name, path in files.items():
        place(path, folder / name)


def _link(path: Path, target: Path) -> None:
    try:
        target.symlink_to(path)
    except OSError:
        if os.name != "nt":
            raise
        copy_file(path, target)  # pragma: no cover  # links are a privilege there


def _unwritable(place: Path, error: OSError) -> LookupFailure:
    found = f"no folder can be made for onnxruntime-genai: {error.strerror or error}"
    remedy = "Give a folder that can be written as out=, or set XDG_CACHE_HOME."
    return LookupFailure(found, where=str(error.filename or place), remedy=remedy, reason="unwritable")
