"""Differences of identity documents in words: what a user changed, not which field of a document.

    weights file detector.data changed
    EP library changed: onnxruntime-ep-openvino 1.8.0 -> 1.8.1
    provider option load_config, CPU.INFERENCE_PRECISION_HINT: f32 -> bf16

`identity.diff` gives the fields; here related fields become one line. A field without words of its own is named as the
document names it, so that nothing is left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import rfc8785

from hatch_epctx.digest import is_digest
from hatch_epctx.files import parse_json
from hatch_epctx.identity import Change, diff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["in_words", "miss_in_words"]

_LONGEST: Final = 120
"""Characters of a value that are shown."""
_MISSES: Final = {
    "absent": "not in the store",
    "unreadable-marker": "its marker in the store cannot be read",
    "malformed-marker": "its marker in the store is damaged",
    "missing-generation": "its files are gone from the store",
    "missing-artifact": "a file of it is gone from the store",
    "modified-artifact": "a file of it was changed in the store",
    "unreadable-artifact": "a file of it in the store cannot be read",
    "unexpected-file": "a foreign file lies among its files in the store",
}


def miss_in_words(reason: str) -> str:
    """A store's reason for a miss as a clause; a reason that is no such word, as it is."""
    return _MISSES.get(reason, reason)


def in_words(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs between two identity documents, one line each, the model first. Empty: nothing."""
    changes = [change for change in diff(old, new) if not _is_container(change)]
    lines: list[str] = []
    taken: set[str] = set()
    for prefix, title in _COMPONENTS:
        found = [change for change in changes if change.field == prefix or change.field.startswith(f"{prefix}.")]
        if found:
            taken |= {change.field for change in found}
            lines.append(f"{title} changed: {_component(_at(old, prefix), _at(new, prefix))}")
    rest = [line for change in changes if change.field not in taken for line in _line(change)]
    # The model first, then what the user declares, then what the machine brought; stable within each.
    rest.sort(
        key=lambda line: next((place for place, start in enumerate(_MODEL) if line.startswith(start)), len(_MODEL))
    )
    return (*rest, *lines)


def _is_container(change: Change) -> bool:
    """An empty table or list that got members, or lost them all: its members say so."""
    return (change.old is None and change.new in _EMPTY) or (change.new is None and change.old in _EMPTY)


_EMPTY: Final[tuple[Any, ...]] = ({}, [])
_DIGITS: Final = 12
"""Of a digest that is shown."""
_MODEL: Final = ("the model", "weights file")
_MEMBER: Final = re.compile(r"members\[(\d+)\]\.(.*)")
_COMPONENTS: Final = (("toolchain.ep", "EP library"), ("toolchain.onnxruntime", "ONNX Runtime"))


def _at(document: Mapping[str, Any], dotted: str) -> Any:
    node: Any = document
    for key in dotted.split("."):
        node = node.get(key) if isinstance(node, dict) else None
    return node


def _component(old: Any, new: Any) -> str:
    """A distribution with its version; where both are equal, its files differ."""
    before, after = _distribution(old), _distribution(new)
    if before != after:
        if isinstance(old, dict) and isinstance(new, dict) and old.get("distribution") == new.get("distribution"):
            after = str(new.get("version"))
        return f"{before} -> {after}"
    return f"files of {before} differ ({_digest(old)} -> {_digest(new)})"


def _distribution(value: Any) -> str:
    return f"{value.get('distribution')} {value.get('version')}" if isinstance(value, dict) else "(none)"


def _digest(value: Any) -> str:
    return str(value.get("digest", ""))[:_DIGITS] if isinstance(value, dict) else "(none)"


def _line(change: Change) -> Iterator[str]:
    if match := _MEMBER.fullmatch(change.field):
        inner = Change(field=match[2], old=change.old, new=change.new)
        yield from (f"member {int(match[1]) + 1} of the group: {line}" for line in _line(inner))
        return
    for pattern, words in _RULES:
        if match := re.fullmatch(pattern, change.field):
            yield from words(change, *match.groups())
            return
    yield _moved(change.field, change.old, change.new)


def _plain(title: str) -> Callable[..., Iterator[str]]:
    def words(change: Change, *names: str) -> Iterator[str]:
        yield _moved(title.format(*names), change.old, change.new)

    return words


def _moved(title: str, old: Any, new: Any) -> str:
    return f"{title}: {_shown(old)} -> {_shown(new)}"


def _shown(value: Any) -> str:
    if value is None:
        return "(none)"
    text = value if isinstance(value, str) else rfc8785.dumps(value).decode()
    if is_digest(text):
        return text[:_DIGITS]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _onnx(_change: Change) -> Iterator[str]:
    yield "the model's ONNX file changed"


def _samples(change: Change) -> Iterator[str]:
    verb = "are new" if change.old is None else "are gone" if change.new is None else "changed"
    yield f"the samples for quantising {verb}"


def _weights(change: Change, name: str) -> Iterator[str]:
    verb = "is new" if change.old is None else "is gone" if change.new is None else "changed"
    yield f"weights file {name} {verb}"


def _option(title: str) -> Callable[..., Iterator[str]]:
    """An option of the EP; JSON is looked into, and of a file or folder only its content counts."""

    def words(change: Change, name: str) -> Iterator[str]:
        if isinstance(change.old, dict) or isinstance(change.new, dict) or name.endswith(".content"):
            yield f"the file of {title} {name.removesuffix('.content')} changed"
            return
        before, after = _json(change.old), _json(change.new)
        if before is None or after is None:
            yield _moved(f"{title} {name}", change.old, change.new)
            return
        for inner in diff(before, after):
            yield _moved(f"{title} {name}, {inner.field}", inner.old, inner.new)

    return words


def _json(value: Any) -> dict[str, Any] | None:
    """The object in an option's JSON text."""
    if not isinstance(value, str) or not value.startswith("{"):
        return None
    try:
        parsed = parse_json(value.encode())
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _features(change: Change) -> Iterator[str]:
    if not all(value is None or isinstance(value, list) for value in (change.old, change.new)):  # a damaged document
        yield _moved("CPU features", change.old, change.new)
        return
    before, after = ({str(name) for name in value or ()} for value in (change.old, change.new))
    parts = [f"without {', '.join(sorted(before - after))}" if before - after else ""]
    parts += [f"with {', '.join(sorted(after - before))}" if after - before else ""]
    yield f"CPU features changed: now {' and '.join(part for part in parts if part)}"


_RULES: Final[tuple[tuple[str, Callable[..., Iterator[str]]], ...]] = (
    (r"format", _plain("form of the identity document")),
    (r"model\.onnx", _onnx),
    (r"model\.external-data\[(.*)\]\.digest", _weights),
    (r"compile\.free-dimensions\.(.*)", _plain("free dimension {0}")),
    (r"compile\.free-dimension-denotations\.(.*)", _plain("free dimension of denotation {0}")),
    (r"compile\.input-shapes\.(.*)", _plain("shape of input {0}")),
    (r"compile\.prepare", _plain("preparation of the model")),
    (r"compile\.calibration", _samples),
    (r"compile\.optimization", _plain("optimisation level")),
    (r"compile\.context-io", _plain("way of the context data")),
    (r"compile\.embed", _plain("embedding of the context binary")),
    (r"compile\.session-options\.(.*)", _plain("session option {0}")),
    (r"target\.load-session-options\.(.*)", _plain("session option of loading {0}")),
    (r"target\.ep", _plain("EP")),
    (r"target\.device", _plain("device")),
    (r"target\.env\.(.*)", _plain("environment variable {0}")),
    (r"target\.load-check", _plain("load check")),
    (r"target\.provider-options\.(.*)", _option("provider option")),
    (r"target\.runtime-options\.(.*)", _option("run-time option")),
    (r"toolchain\.onnx", _plain("the onnx package")),
    (r"toolchain\.sdk\.(.*)", _plain("SDK {0}")),
    (r"toolchain\.device\.(?:metadata\.)?(.*)", _plain("device, {0}")),
    (r"toolchain\.isa", _features),
    (r"toolchain\.cores", _plain("CPUs that may be used")),
    (r"toolchain\.topology\.(.*)", _plain("CPU topology, {0}")),
    (r"toolchain\.os", _plain("operating system")),
    (r"toolchain\.architecture", _plain("architecture")),
    (r"worker\.format", _plain("compile procedure of hatch-epctx")),
)
