"""A worker inside a Windows job object, which ends with the process that holds it.

Written from Microsoft's documentation of job objects; not run here. A process that the worker starts in the few
milliseconds before it is assigned would stay outside; the interpreter needs longer than that to start.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":  # pragma: no cover
    import ctypes
    import subprocess  # noqa: TID251  # this package is their owner
    from ctypes import wintypes
    from typing import IO, TYPE_CHECKING, Any

    if TYPE_CHECKING:
        from collections.abc import Mapping, Sequence
        from pathlib import Path

    __all__ = ["JobObject", "start_in_job"]

    _EXTENDED_LIMIT_INFORMATION = 9
    _KILL_ON_JOB_CLOSE = 0x2000
    _DIE_ON_UNHANDLED_EXCEPTION = 0x400

    class _BasicLimits(ctypes.Structure):
        _fields_ = (
            ("PerProcessUserTimeLimit", ctypes.c_int64),
            ("PerJobUserTimeLimit", ctypes.c_int64),
            ("LimitFlags", wintypes.DWORD),
            ("MinimumWorkingSetSize", ctypes.c_size_t),
            ("MaximumWorkingSetSize", ctypes.c_size_t),
            ("ActiveProcessLimit", wintypes.DWORD),
            ("Affinity", ctypes.c_size_t),
            ("PriorityClass", wintypes.DWORD),
            ("SchedulingClass", wintypes.DWORD),
        )

    class _ExtendedLimits(ctypes.Structure):
        _fields_ = (
            ("BasicLimitInformation", _BasicLimits),
            ("IoInfo", ctypes.c_uint64 * 6),
            ("ProcessMemoryLimit", ctypes.c_size_t),
            ("JobMemoryLimit", ctypes.c_size_t),
            ("PeakProcessMemoryUsed", ctypes.c_size_t),
            ("PeakJobMemoryUsed", ctypes.c_size_t),
        )

    class JobObject:
        """A job object whose processes die when its last handle is closed, which is when this process ends."""

        def __init__(self) -> None:
            kernel = self._kernel = ctypes.WinDLL("kernel32", use_last_error=True)
            kernel.CreateJobObjectW.restype = wintypes.HANDLE
            kernel.AssignProcessToJobObject.argtypes = (wintypes.HANDLE, wintypes.HANDLE)
            kernel.TerminateJobObject.argtypes = (wintypes.HANDLE, wintypes.UINT)
            kernel.SetInformationJobObject.argtypes = (
                wintypes.HANDLE,
                ctypes.c_int,
                wintypes.LPVOID,
                wintypes.DWORD,
            )
            self._handle = kernel.CreateJobObjectW(None, None)
            limits = _ExtendedLimits()
            limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE | _DIE_ON_UNHANDLED_EXCEPTION
            if not self._handle or not kernel.SetInformationJobObject(
                self._handle, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
            ):
                raise ctypes.WinError(ctypes.get_last_error())

        def add(self, process_handle: int) -> None:
            """Put a process, and all that it will start, into the job."""
            if not self._kernel.AssignProcessToJobObject(self._handle, process_handle):
                raise ctypes.WinError(ctypes.get_last_error())

        def kill(self) -> None:
            """End every process of the job."""
            self._kernel.TerminateJobObject(self._handle, 1)

    def start_in_job(
        command: Sequence[str], folder: Path, environment: Mapping[str, str], log: IO[bytes]
    ) -> tuple[subprocess.Popen[bytes], JobObject]:
        """Start `command` in `folder` within a new job object."""
        job = JobObject()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            creationflags=subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW,
        )
        try:
            handle: Any = process._handle  # type: ignore[attr-defined]  # Popen keeps it to itself
            job.add(int(handle))
        except BaseException:
            process.kill()
            raise
        return process, job
