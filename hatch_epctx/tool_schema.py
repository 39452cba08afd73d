"""The JSON Schema of `[tool.epctx]` for validate-pyproject, by its entry point `validate_pyproject.tool_schema`.

The schema is a file made of the configuration's models (`python docs/generate.py`), so that validate-pyproject works
in an environment that has the look-up alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

__all__ = ["get_schema"]

_FILE: Final = Path(__file__).with_name("epctx.schema.json")


def get_schema(tool_name: str = "epctx") -> dict[str, Any]:
    """The schema (draft 7) of the table `tool.<tool_name>`; there is one for "epctx".

    Raises:
        ValueError: another table is asked for.
    """
    if tool_name != "epctx":
        raise ValueError(f"no schema of tool.{tool_name}")
    schema: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return schema
