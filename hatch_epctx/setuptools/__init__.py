"""The setuptools plugin: a project with `[tool.epctx]` compiles its models in `build` and ships them in its wheel.

`finalize` is called for every setuptools build in an environment that has this distribution. It looks for the table in
pyproject.toml and does nothing else for projects without one. See `commands` for what is added, and `build_meta` for
the build backend that brings dynamic requirements and ``-C`` settings, too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from setuptools import Distribution

__all__ = ["finalize"]

_MARK = b"tool.epctx"


def finalize(dist: Distribution) -> None:
    """`setuptools.finalize_distribution_options`: extend the commands of a project that declares models."""
    pyproject = Path(dist.src_root or os.curdir, "pyproject.toml")
    try:
        text = pyproject.read_bytes()
    except OSError:
        return
    # What is there but is no table, such as a comment, is found harmless when the table is read.
    if _MARK in text:
        from hatch_epctx.setuptools.commands import extend

        extend(dist)
