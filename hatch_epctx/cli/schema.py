"""`epctx schema`: the JSON Schema of [tool.epctx]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_epctx.cli.output import emit_json
from hatch_epctx.config import schema as make_schema

if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["schema"]


def schema(options: Namespace) -> int:
    """Print the schema; with or without --json it is JSON."""
    emit_json(options, make_schema())
    return 0
