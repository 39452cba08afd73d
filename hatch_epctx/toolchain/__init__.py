"""The toolchain: everything undeclared that changes a compile's output, named without paths and times.

ONNX Runtime and the EP with every file of theirs, SDK versions, what the EP reports of its device, and, where the EP
bakes them into the context binary, the instruction set and the cores of the machine that compiles; the libraries that
prepare models. Nothing is imported from ONNX Runtime or the EP, and no process is started: devices come from a `probe`
that the caller brings. `program` and `elsewhere` are for compiles on another machine.
"""

from __future__ import annotations

from hatch_epctx.toolchain.closure import closure_digest, closure_files, import_folders
from hatch_epctx.toolchain.discovery import BUILDS, discover, ep_closure, is_installed
from hatch_epctx.toolchain.elsewhere import PROCEDURE, demands_of, python_version
from hatch_epctx.toolchain.machine import Host, machine_key, pick_cpus
from hatch_epctx.toolchain.preparation import read_preparation
from hatch_epctx.toolchain.program import program_files
from hatch_epctx.toolchain.records import Component, Probe, Toolchain

__all__ = [
    "BUILDS",
    "PROCEDURE",
    "Component",
    "Host",
    "Probe",
    "Toolchain",
    "closure_digest",
    "closure_files",
    "demands_of",
    "discover",
    "ep_closure",
    "import_folders",
    "is_installed",
    "machine_key",
    "pick_cpus",
    "program_files",
    "python_version",
    "read_preparation",
]
