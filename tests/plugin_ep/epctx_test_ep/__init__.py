"""A plugin EP for tests, built from ../src: the one EP here that supports EPContext data callbacks.

`plugin_support.build` copies this folder and builds the library into the copy, which then counts as an installed
distribution as soon as it is on the import path.
"""

from __future__ import annotations

from pathlib import Path

NAME = "EpctxTestExecutionProvider"


def get_ep_name() -> str:
    return NAME


def get_library_path() -> str:
    return str(Path(__file__).parent / "libepctx_test_ep.so")
