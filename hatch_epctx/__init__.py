"""Precompile ONNX models for NPUs, GPUs and CPUs while the wheel is built, and ship the result inside it.

At run time an application imports `hatch_epctx.runtime`; everything else belongs to the build.
"""

__version__ = "0.1.0"
