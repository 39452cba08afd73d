"""The last identity of each variant, so that `explain` can say what changed since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.collect import LAST
from hatch_epctx.digest import digest_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hatch_epctx.config import Variant
    from hatch_epctx.identity import Identity
    from hatch_epctx.store import Store

__all__ = ["History", "last_key"]

_KIND: Final = LAST


class History:
    """What the store remembers of one project's variants: by project and variant name, not by folder."""

    def __init__(self, store: Store, project: str) -> None:
        self._store = store
        self._project = project

    def remember(self, variant: Variant, identity: Identity) -> None:
        """Keep `identity` as the variant's last one."""
        value = {"identity": identity.digest, "document": dict(identity.document)}
        self._store.remember(_KIND, self._key(variant), value)

    def last(self, variant: Variant) -> tuple[str, Mapping[str, Any]] | None:
        """(identity, document) of the variant's last build on this machine."""
        value = self._store.recall(_KIND, self._key(variant))
        if value is None or not isinstance(value.get("document"), dict):
            return None
        return str(value.get("identity", "")), value["document"]

    def _key(self, variant: Variant) -> str:
        return last_key(self._project, variant.name)


def last_key(project: str, variant: str) -> str:
    """Key of the fact (its kind is `collect.LAST`) that holds a variant's last identity; what pins follow."""
    return digest_bytes(f"{project}/{variant}".encode())
