"""What Qualcomm's QNN leaves open: whether a compiled model fits this SoC and this SDK.

The compatibility string (onnxruntime-qnn, cache_compatibility/): version 2 is
``v2:<backend id>:<SDK>:<backend API>:<HTP archs>:<SoC models>:<VTCM MB>:<user driver>``, version 1 is
``<backend id>:<SDK>:<backend API>:<context blob>:<HTP arch>:<user driver>``. 0 stands for "not told"; a compile
that names the SoC alone leaves the architecture 0. The EP's own comparison is not used (see `plugins.Plugin.asked`).
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Recorded", "Soc", "compare_sdk", "compare_soc", "exact", "installed_sdk", "machine_soc", "parse"]


@dataclass(frozen=True, slots=True)
class Soc:
    """One system on a chip: QNN's `soc_model`, its part number, the architecture of its HTP."""

    model: int
    name: str
    arch: int

    def __str__(self) -> str:
        return f"SoC {self.model} ({self.name}, HTP v{self.arch})"


_TABLE = """
    30:SM8350:68 32:SM7350:68 34:SM8325:68 35:SM7325:68 36:SM8450:69 37:SC8280X:68 38:SM7315:68 39:SA8295:68
    41:SM7450:69 42:SM8475:69 43:SM8550:73 45:SXR1230P:73 46:SSG2115P:73 50:SM6450:73 52:SA8255:73 53:SXR2230P:69
    54:SM7475:69 57:SM8650:75 58:SSG2125P:73 60:SC8380XP:73 61:SM7435:73 62:SA8540:68 63:AIC100:68 64:SM7550:73
    66:QCS8550:73 67:SA8620P:75 68:SM8635:73 69:SM8750:79 70:SM7675:73 72:SA8797:81 73:SM7635:73 74:SM6650:73
    75:SXR2330P:79 76:SM6475:73 77:QCS9100:73 78:QCM6690:73 82:QCS8300:75 85:SM8735:73 86:SM7750:73 87:SM8850:81
    88:SC8480XP:81 89:QCM8538:73 90:QCS8625:75 91:SM7775:73 92:SM8850L:81 93:QCS6490:68 94:SC8440XP:81
    95:SAR2230P:81 96:SW6100:81 97:SM8845:81 99:QCM8838:81 100:SAR1165P:73 101:SAR1180P:73 102:CQ7790M:73
    103:SM8975:85 104:CQ8725S:79 105:CQ8750S:79 109:QCS8845:81 110:XRV7200:81 111:XRV7205:81 112:SM8975L:85
    113:SM8950:85 114:SA8787:85 115:QMX115:81 117:IPQ9650:81 119:IQX5121:73 120:SC8340XP:73 123:SM7950:81
"""
SOCS: tuple[Soc, ...] = tuple(
    Soc(int(model), name, int(arch)) for model, name, arch in (entry.split(":") for entry in _TABLE.split())
)
"""What the build's table says (`providers.socs`, which tells how it was measured; a test holds the two together)."""

_WINDOWS_PARTS = (("X1E", 60), ("X1P64", 60), ("X1P66", 60), ("X1P42", 120), ("X1P46", 120))
"""Parts of Windows' processor names whose SoC is beyond doubt."""

_BREAK = 73
"""HTP architectures below it and from it on do not load each other's binaries (onnxruntime-qnn)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a compatibility string says; zeros are left out."""

    sdk: tuple[int, ...]
    archs: tuple[int, ...] = ()
    socs: tuple[int, ...] = ()


def parse(text: str) -> Recorded | None:
    """Read a compatibility string; None for one of another form."""
    fields = text.split(":")
    try:
        if fields[0] == "v2" and len(fields) == 8:
            return Recorded(sdk=_version(fields[2]), archs=_numbers(fields[4]), socs=_numbers(fields[5]))
        if fields[0].isdigit() and len(fields) == 6:
            return Recorded(sdk=_version(fields[1]), archs=_numbers(fields[4]))
    except ValueError:
        pass
    return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(number for part in text.split(",") if (number := int(part)))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def machine_soc(soc0: Path = Path("/sys/devices/soc0")) -> Soc | None:
    """The SoC of this machine, or None where it is none of `SOCS` or cannot be told.

    Linux names it in `machine` below /sys/devices/soc0, Windows in the processor's name. Not run on such a machine
    by this project's own tests.
    """
    if os.name == "nt":  # pragma: no cover
        processor = platform.processor() + " " + _windows_processor()
        model = next((model for part, model in _WINDOWS_PARTS if part in processor.upper()), 0)
        return next((soc for soc in SOCS if soc.model == model), None)
    try:
        name = (soc0 / "machine").read_text(encoding="ascii", errors="replace").strip().upper()
    except OSError:
        return None
    return next((soc for soc in SOCS if soc.name == name), None)


def _windows_processor() -> str:  # pragma: no cover
    import winreg

    key = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as handle:  # type: ignore[attr-defined,unused-ignore]
            return str(winreg.QueryValueEx(handle, "ProcessorNameString")[0])  # type: ignore[attr-defined,unused-ignore]
    except OSError:
        return ""


def installed_sdk() -> tuple[int, ...] | None:
    """Version of the QAIRT SDK inside the installed onnxruntime-qnn; None where it does not say."""
    try:
        from onnxruntime_qnn.build_and_package_info import qnn_version
    except ImportError:
        return None
    match = re.match(r"\d+(\.\d+)*", str(qnn_version))
    return _version(match.group()) if match else None


def compare_sdk(recorded: Recorded, installed: tuple[int, ...] | None) -> str:
    """Why the installed SDK cannot load the model; empty when it can or cannot be told.

    An SDK loads context binaries of its own and of older versions (major and minor count).
    """
    if installed is None or recorded.sdk[:2] <= installed[:2]:
        return ""
    return f"compiled with QNN SDK {_dotted(recorded.sdk)}, found {_dotted(installed)}, which is older"


def compare_soc(recorded: Recorded, found: Soc) -> str:
    """Why the model does not fit the SoC; empty when it fits.

    A model compiled for a SoC fits that SoC alone. One compiled for an architecture fits it and newer ones of the
    same family, as the EP itself has it.
    """
    if recorded.socs:
        if found.model in recorded.socs:
            return ""
        return f"compiled for {' or '.join(_name(model) for model in recorded.socs)}, found {found}"
    if recorded.archs and not any(_loads(arch, found.arch) for arch in recorded.archs):
        return f"compiled for HTP v{' or v'.join(map(str, recorded.archs))}, found {found}"
    return ""


def exact(recorded: Recorded, found: Soc) -> bool:
    """Whether the model was compiled for this very SoC or architecture; a newer one would rather have its own."""
    return found.model in recorded.socs or (not recorded.socs and found.arch in recorded.archs)


def _loads(recorded: int, found: int) -> bool:
    return recorded <= found and (recorded >= _BREAK or found < _BREAK)


def _name(model: int) -> str:
    return next((str(soc) for soc in SOCS if soc.model == model), f"SoC {model}")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
