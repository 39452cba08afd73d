"""`epctx provenance`: an in-toto statement about a wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_epctx import provenance as statements
from hatch_epctx.cli.output import say
from hatch_epctx.errors import StoreError, VerificationError

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

__all__ = ["provenance"]


def provenance(options: Namespace) -> int:
    """Write the statement about ``WHEEL``; it is JSON, with and without ``--json``."""
    wheel: Path = options.wheel
    try:
        statement = statements.provenance(wheel, builder=options.builder_id or statements.LOCAL_BUILDER)
    except OSError as error:
        where = str(wheel)
        raise VerificationError(
            f"cannot be read: {error.strerror or error}",
            where=where,
            expected="a wheel",
            remedy="Build one first, or correct the path.",
            reason="unreadable",
        ) from error
    text = statements.as_text(statement["predicate"] if options.predicate_only else statement)
    options.answered = True
    if options.out is None:
        say(text.rstrip("\n"))
        return 0
    try:
        options.out.write_text(text, encoding="utf-8")
    except OSError as error:
        where = str(options.out)
        raise StoreError(f"cannot be written: {error.strerror or error}", where=where, reason="unwritable") from error
    if not options.json:
        say(f"wrote {options.out}")
    return 0
