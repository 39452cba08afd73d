"""Proving what a wheel, an installed package, a package folder or an ONNX file holds.

Every byte is read and held against every record of it: RECORD, manifest, bill of materials; every reference inside an
ONNX file has to lead to a file that is recorded. Files may come from anywhere: they are read with limits, ONNX files
and EPs in processes of their own.

What this does not say: that a file comes from whom it claims to come from, and that its context binaries are what the
EP would make of the source. `epctx reproduce` compiles again.

| module | what it does |
|---|---|
| `records` | problems and reports |
| `places` | files of a folder on disk or of a wheel, in one form |
| `packages` | a package folder against its manifest |
| `models` | an ONNX file and what it refers to |
| `bill` | the bill of materials against the manifest |
| `installed` | an installed distribution against its RECORD |
| `fitting` | which variants this machine can run |
| `examining` | one package folder by all of the above |
| `wheels` | a wheel |
| `core` | what is at a path |
"""

from __future__ import annotations

from hatch_epctx.verification.core import installed_folder, verify
from hatch_epctx.verification.records import Problem, Report, VariantReport

__all__ = ["Problem", "Report", "VariantReport", "installed_folder", "verify"]
