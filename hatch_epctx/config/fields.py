"""Walking the models: which field a dotted key means, and every field there is."""

from __future__ import annotations

from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard, Union, get_args, get_origin

from hatch_epctx.config.base import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic.fields import FieldInfo

__all__ = ["key_of", "known_keys", "summary", "walk"]


def key_of(name: str, field: FieldInfo) -> str:
    """The TOML key of a field."""
    return field.alias or name


def walk(table: type[Table], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Every field below `table` that holds a value itself, with its key path; "*" stands for a name or a position.

    A field that holds tables gives way to their fields.
    """
    for name, field in table.model_fields.items():
        key = (*path, key_of(name, field))
        inner, steps = _inner(field.annotation)
        if inner is None:
            yield key, field
        else:
            yield from walk(inner, (*key, *("*",) * steps))


def known_keys(root: type[Table], keys: Sequence[str | int]) -> tuple[tuple[str, ...], FieldInfo | None]:
    """The keys of the table at `keys` below `root` (none where no table stands there), and the field at `keys`."""
    annotation: Any = root
    field: FieldInfo | None = None
    for key in keys:
        annotation = _plain(annotation)
        if _is_table(annotation):
            field = next((field for name, field in annotation.model_fields.items() if key_of(name, field) == key), None)
            annotation = None if field is None else field.annotation
        else:
            annotation, field = _item(annotation), None
    annotation = _plain(annotation)
    if _is_table(annotation):
        return tuple(key_of(name, field) for name, field in annotation.model_fields.items()), field
    return (), field


def summary(field: FieldInfo | None) -> str:
    """The first clause of a field's docstring, to read after "expected"."""
    text = " ".join((field.description or "").split()) if field is not None else ""
    for end in (". ", "; ", ": ", ", such as"):
        text = text.split(end)[0]
    text = text.rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _is_table(annotation: Any) -> TypeGuard[type[Table]]:
    # On Python 3.10 dict[str, int] is an instance of type too.
    return get_origin(annotation) is None and isinstance(annotation, type) and issubclass(annotation, Table)


def _inner(annotation: Any) -> tuple[type[Table] | None, int]:
    """The table that an annotation holds, and how many names or positions stand before it."""
    annotation, steps = _plain(annotation), 0
    while annotation is not None:
        if _is_table(annotation):
            return annotation, steps
        annotation, steps = _plain(_item(annotation)), steps + 1
    return None, 0


def _item(annotation: Any) -> Any:
    """What a dictionary or a tuple holds, None for anything else."""
    if get_origin(annotation) is dict:
        return get_args(annotation)[1]
    if get_origin(annotation) is tuple:
        return get_args(annotation)[0]
    return None


def _plain(annotation: Any) -> Any:
    """The annotation without Annotated and without "or None"."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, UnionType) and len(_not_none(annotation)) == 1:
            annotation = _not_none(annotation)[0]
        else:
            return annotation


def _not_none(annotation: Any) -> list[Any]:
    return [argument for argument in get_args(annotation) if argument is not type(None)]
