"""The last identity of each variant, so that `explain` can say what changed since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.collect import LAST
from hatch_epctx.digest import digest_bytes
from hatch_epctx.pipeline.earlier import Earlier, seconds_of

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

    def remember(self, variant: Variant, identity: Identity, result: Mapping[str, Any]) -> None:
        """Keep `identity` as the variant's last one, with the time that its result took to make."""
        value = {
            "identity": identity.digest,
            "document": dict(identity.document),
            "seconds": seconds_of(result),
        }
        self._store.remember(_KIND, self._key(variant), value)

    def last(self, variant: Variant) -> Earlier | None:
        """The variant's last result on this machine, whether or not it is still in the store."""
        value = self._store.recall(_KIND, self._key(variant))
        if value is None or not isinstance(value.get("document"), dict):
            return None
        seconds = value.get("seconds")
        return Earlier(
            identity=str(value.get("identity", "")),
            document=value["document"],
            seconds=seconds if isinstance(seconds, int | float) else None,
            own=True,
        )

    def _key(self, variant: Variant) -> str:
        return last_key(self._project, variant.name)


def last_key(project: str, variant: str) -> str:
    """Key of the fact (its kind is `collect.LAST`) that holds a variant's last identity; what pins follow."""
    return digest_bytes(f"{project}/{variant}".encode())
