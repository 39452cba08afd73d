"""The bill of materials of a wheel: which models, EPs and toolchain its artifacts were made of, with digests.

A CycloneDX 1.6 document (JSON, an ML-BOM: its models are components of type ``machine-learning-model``), meant for
``<name>-<version>.dist-info/sboms/`` (PEP 770). See `records` for what goes in and `document` for what comes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_epctx.errors import ToolchainError
from hatch_epctx.sbom.records import SbomFile, SbomModel, SbomProject, SbomTool, SbomVariant, tools_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FILE_NAME", "SbomFile", "SbomModel", "SbomProject", "SbomTool", "SbomVariant", "sbom", "tools_of"]

FILE_NAME = "hatch-epctx.cdx.json"
"""Name of the document in the wheel's ``.dist-info/sboms/``; the extension is the one CycloneDX recommends."""


def sbom(variants: Sequence[SbomVariant], *, project: SbomProject) -> bytes:
    """The bill of materials of `project`'s wheel with `variants`: UTF-8 JSON that ends with a line feed.

    The same records in any order give the same bytes: there is no time in the document, and its serial number is
    derived from its content.

    Raises:
        ToolchainError: the CycloneDX library is not installed.
        ValueError: two different records of one name: models, variants, or files of one path.
    """
    try:
        # Only builds that write a bill of materials pay for the import.
        from hatch_epctx.sbom.document import write  # noqa: PLC0415
    except ImportError as error:
        raise ToolchainError(
            f"the bill of materials needs cyclonedx-python-lib ({error})",
            remedy="Run: pip install 'hatch-epctx[build]'",
            reason="missing-distribution",
        ) from error
    return write(variants, project)
