"""One compile, and everything else for which a fresh worker process is started.

| module | what it holds |
|---|---|
| `jobs` | what a worker is told |
| `outcomes` | starting a worker; its success, or the error that its failure is |
| `looking` | facts of ONNX files, devices of EPs, new names for a model's files |
| `checking` | the comparison of a result with the CPU EP on its source |
| `making` | the compile of a variant or a group, and the load check of what came out |
| `facts` | what `making` found, as another machine wrote it down |
"""

from hatch_epctx.compile.checking import check_variant
from hatch_epctx.compile.facts import check_facts
from hatch_epctx.compile.looking import describe, judge, probe, probe_with, rename_references, scan
from hatch_epctx.compile.making import Compiled, compile_group, compile_variant, load_check
from hatch_epctx.compile.outcomes import Run, run

__all__ = [
    "Compiled",
    "Run",
    "check_facts",
    "check_variant",
    "compile_group",
    "compile_variant",
    "describe",
    "judge",
    "load_check",
    "probe",
    "probe_with",
    "rename_references",
    "run",
    "scan",
]
