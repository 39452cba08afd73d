"""Hooks for PyInstaller, which finds this folder by the entry point `pyinstaller40` and reads it while it freezes.

Without them the look-up would be frozen without the modules that it imports late and without the EPs' packages, and
EPs that look for files beside their libraries would not find them. The application's own package folder is data of the
application: `--collect-data acme_vision`.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["hook_dirs"]


def hook_dirs() -> list[str]:
    """Folders of hooks."""
    return [str(Path(__file__).parent)]
