"""Reading a worker's result as untrusted input: bounded, strict JSON, every field of its declared type.

The worker runs native code on files that may be hostile. Whatever is not exactly a `Result` counts as none; so does
a success that leaves out what its task owes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast, get_args

from hatch_epctx.digest import is_digest
from hatch_epctx.files import check_name, parse_json, read_bounded
from hatch_epctx.worker.protocol import FORMAT, Result, Role, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    Check = Callable[[Any, str], None]

__all__ = ["RESULT_LIMIT", "check_fields", "read_result"]

RESULT_LIMIT: Final = 16 << 20
"""Bytes of ``result.json``. Facts of a model with 50,000 inputs need less."""

_ROLES: Final = get_args(Role)


def read_result(path: Path, task: Task) -> Result:
    """The result at `path` of a worker that did `task`.

    Raises:
        OSError: missing, no regular file, or larger than `RESULT_LIMIT`.
        ValueError: not a `Result`; the message names the field.
    """
    value = parse_json(read_bounded(path, RESULT_LIMIT))
    _record(value, "result", _FIELDS, required=frozenset({"format", "ok"}))
    if value["format"] != FORMAT:
        raise ValueError(f"format is {value['format']}, expected {FORMAT}")
    for name in _OWED[task] if value["ok"] else ("error", "reason"):
        if name not in value:
            raise ValueError(f"{name} is missing")
    return cast("Result", value)


def check_fields(value: Any, place: str, names: Collection[str], *, owed: Collection[str] = ()) -> None:
    """Check the fields called `names` of an object, as far as it has them, as those of a result; others are not seen.

    Args:
        value: what was read.
        place: of it, for messages.
        names: fields of `Result`.
        owed: those that it must have.

    Raises:
        ValueError: it is no object, or a field is missing or of another type.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{place} is no object")  # noqa: TRY004
    for name in owed:
        if name not in value:
            raise ValueError(f"{place} has no {name}")
    for name in names:
        if name in value:
            _FIELDS[name](value[name], f"{place}.{name}")


def _flag(value: Any, place: str) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{place} is no boolean")  # noqa: TRY004  # one error for whatever is wrong


def _text(value: Any, place: str) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{place} is no text")  # noqa: TRY004


def _integer(value: Any, place: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{place} is no integer")  # noqa: TRY004


def _count(value: Any, place: str) -> None:
    _integer(value, place)
    if value < 0:
        raise ValueError(f"{place} is negative")


def _seconds(value: Any, place: str) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{place} is no duration")


def _figure(value: Any, place: str) -> None:
    if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool)):
        raise ValueError(f"{place} is no figure")


def _anything(_value: Any, _place: str) -> None:
    pass


def _dim(value: Any, place: str) -> None:
    if value is not None and not isinstance(value, str):
        _count(value, place)


def _shape(value: Any, place: str) -> None:
    if value is not None:
        _list(_dim)(value, place)


def _digest(value: Any, place: str) -> None:
    if not is_digest(value):
        raise ValueError(f"{place} is no digest")


def _role(value: Any, place: str) -> None:
    if value not in _ROLES:
        raise ValueError(f"{place} is none of {', '.join(_ROLES)}")


def _flat_name(value: Any, place: str) -> None:
    try:
        check_name(value)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _list(check: Check) -> Check:
    def each(value: Any, place: str) -> None:
        if not isinstance(value, list):
            raise ValueError(f"{place} is no list")  # noqa: TRY004
        for index, item in enumerate(value):
            check(item, f"{place}[{index}]")

    return each


def _table(check: Check) -> Check:
    def each(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{place} is no object")  # noqa: TRY004
        for name, item in value.items():
            check(item, f"{place}.{name}")

    return each


def _record(value: Any, place: str, fields: Mapping[str, Check], required: frozenset[str]) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{place} is no object")  # noqa: TRY004
    for name in sorted(required - value.keys()):
        raise ValueError(f"{place} has no {name}")
    for name, item in value.items():
        if name not in fields:
            raise ValueError(f"{place} has an unknown field {name[:40]!r}")
        fields[name](item, f"{place}.{name}")


def _whole(fields: Mapping[str, Check]) -> Check:
    """A record that has all of `fields`."""
    return lambda value, place: _record(value, place, fields, frozenset(fields))


_VALUE = _whole({"name": _text, "type": _text, "shape": _shape})
_SCAN = _whole(
    {
        "inputs": _list(_VALUE),
        "outputs": _list(_VALUE),
        "external_data": _list(_text),
        "nodes": _count,
        "opsets": _table(_integer),
        "denotations": _list(_text),
        "context_sources": _list(_text),
        "embedded_size": _count,
    }
)
_DEVICE = _whole(
    {
        "ep": _text,
        "type": _text,
        "vendor": _text,
        "vendor_id": _count,
        "device_id": _count,
        "metadata": _table(_text),
    }
)
_LEFT = _whole({"operator": _text, "count": _count, "reason": _text})
_OUTPUT = _whole(
    {
        "name": _text,
        "verdict": _text,
        "values": _count,
        "beyond": _count,
        "max_abs": _figure,
        "max_rel": _figure,
        "cosine": _figure,
        "exact": _flag,
    }
)
_CHECKED = _whole({"samples": _count, "generated": _flag, "device": _text, "outputs": _list(_OUTPUT)})
_ARTIFACT = _whole({"role": _role, "path": _flat_name, "size": _count, "digest": _digest})


def _artifacts(value: Any, place: str) -> None:
    _list(_ARTIFACT)(value, place)
    names = [item["path"] for item in value]
    if len(names) != len(set(names)):
        raise ValueError(f"{place} names a file twice")
    role = "prepared" if any(item["role"] == "prepared" for item in value) else "model"
    if [item["role"] for item in value].count(role) != 1:
        raise ValueError(f"{place} holds not exactly one model")


_COMPILED = ("artifacts", "inputs", "outputs", "compatibility", "context_nodes", "nodes_left")


def _members(value: Any, place: str) -> None:
    """A compile's result for each member of a group; members may have artifacts in common."""
    fields = {name: check for name, check in _FIELDS.items() if name != "members"}
    _list(lambda item, inside: _record(item, inside, fields, required=frozenset(_COMPILED)))(value, place)


_FIELDS: Final[Mapping[str, Check]] = {
    "format": _integer,
    "ok": _flag,
    "error": _text,
    "reason": _text,
    "remedy": _text,
    "scan": _SCAN,
    "devices": _list(_DEVICE),
    "chosen": _DEVICE,
    "ep_version": _text,
    "onnxruntime": _text,
    "artifacts": _artifacts,
    "members": _members,
    "inputs": _list(_VALUE),
    "outputs": _list(_VALUE),
    "compatibility": _text,
    "context_nodes": _count,
    "nodes_left": _count,
    "coverage": _table(_count),
    "left": _list(_LEFT),
    "providers": _list(_text),
    "check": _CHECKED,
    "unreferenced": _list(_text),
    "metadata_lost": _list(_text),
    "seconds": _table(_seconds),
    "extra": _table(_anything),
}

_OWED: Final[Mapping[Task, tuple[str, ...]]] = {
    "scan": ("scan",),
    "probe": ("devices",),
    "compile": _COMPILED,
    "share": ("members",),
    "source": _COMPILED,
    "load": ("providers",),
    "check": ("check",),
    "prepare": ("artifacts",),
    "inspect": ("scan", "extra"),
    "rename": ("artifacts",),
    "judge": ("extra",),
    "pack": _COMPILED,
    "warm": ("providers",),
}
"""What a successful result of each task has."""
