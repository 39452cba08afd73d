"""`epctx cache pin` and `unpin`: durable claims on what the store holds."""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from hatch_epctx import collect as collecting
from hatch_epctx.cli.cache import identities_of, is_hexadecimal, open_store
from hatch_epctx.cli.output import emit_json, say
from hatch_epctx.collect import Root
from hatch_epctx.config import load_project
from hatch_epctx.errors import ConfigError
from hatch_epctx.pipeline import last_key

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable

    from hatch_epctx.store import Store

__all__ = ["pin", "unpin"]


def pin(options: Namespace) -> int:
    """Keep what the names mean, whatever the limits say."""
    store = open_store()
    roots = [root for name in options.names for root in _named(store, options, name)]
    for root in roots:
        collecting.pin(store, root)
    _tell_roots(options, "pinned", [root.name for root in roots])
    return 0


def unpin(options: Namespace) -> int:
    """Give pins up."""
    store = open_store()
    known = {root.name for root in collecting.read_roots(store)}
    names: list[str] = []
    for name in options.names:
        found = sorted(known & {name, *(root.name for root in _named(store, options, name, known=known))})
        if not found:
            raise ConfigError(
                f"nothing is pinned as {name!r}",
                where="epctx cache unpin",
                expected=f"one of {', '.join(sorted(known))}" if known else "",
                remedy="'epctx cache list' shows what is pinned.",
                reason="not-pinned",
            )
        names += found
    for name in names:
        collecting.unpin(store, name)
    _tell_roots(options, "unpinned", names)
    return 0


def _tell_roots(options: Namespace, word: str, names: list[str]) -> None:
    if options.json:
        emit_json(options, {word: names})
        return
    for name in names:
        say(f"{word} {name}")


def _named(store: Store, options: Namespace, name: str, *, known: Iterable[str] = ()) -> list[Root]:
    """Roots that `name` means: an identity or its first digits, else variants of the project, by name or glob."""
    if is_hexadecimal(name):
        matches = [identity for identity in known if identity.startswith(name)]
        return [Root(name=identity, identity=identity) for identity in matches or identities_of(store, [name])]
    project = load_project(options.project, environ=os.environ, state="wheel")
    variants = [variant for variant in project.variants if fnmatchcase(variant.name, name)]
    if not variants and name not in known:
        raise ConfigError(
            f"no variant of {project.name} is called {name!r}",
            where="epctx cache",
            expected=f"an identity, or one of {', '.join(variant.name for variant in project.variants)}",
            reason="unknown-variant",
        )
    return [
        Root(name=f"{project.name}/{variant.name}", follows=last_key(project.name, variant.name))
        for variant in variants
    ]
