"""Facts: small JSON values remembered by kind and key. Losing one costs time, never correctness."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.digest import digest_bytes
from hatch_epctx.files import atomic_write, long_path, make_dir, parse_json, read_bounded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Facts"]

_FORMAT: Final = "epctx-fact/1"
_LIMIT: Final = 8 << 20
"""Bytes of a fact: the external-data list of a model can be long."""
_KIND = re.compile(r"[a-z][a-z-]{0,31}\Z")


class Facts:
    """Values under a folder, one file each, for any number of threads and processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recall(self, kind: str, key: str) -> dict[str, Any] | None:
        """The value last remembered; None when there is none, or it cannot be read."""
        try:
            value = parse_json(read_bounded(self.path(kind, key), _LIMIT))
        except (OSError, ValueError):
            return None
        if not isinstance(value, dict) or value.keys() != {"format", "kind", "key", "value"}:
            return None
        head = (value["format"], value["kind"], value["key"])
        return value["value"] if head == (_FORMAT, kind, key) and isinstance(value["value"], dict) else None

    def remember(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keep `value`. Where the disk is full or may not be written, or the value is too large, nothing happens.

        Raises:
            ValueError, TypeError: `value` is no JSON object, or `kind` is not lower-case words joined by dashes.
        """
        record = {"format": _FORMAT, "kind": kind, "key": key, "value": dict(value)}
        data = json.dumps(record, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()
        path = self.path(kind, key)
        if len(data) > _LIMIT:
            return
        with suppress(OSError):
            make_dir(path.parent.parent, durable=False)  # no link: the next line would follow one
            make_dir(path.parent, durable=False)
            atomic_write(long_path(path), data, durable=False, shared=True)

    def path(self, kind: str, key: str) -> Path:
        """Where the fact lies, or would.

        Raises:
            ValueError: `kind` is not lower-case words joined by dashes.
        """
        if not _KIND.match(kind):
            raise ValueError(f"unfit kind of fact {kind!r}")
        name = digest_bytes(key.encode())[:32]
        return self._folder / kind / name[:2] / f"{name}.json"
