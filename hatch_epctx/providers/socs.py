"""Chips with a Hexagon tensor processor (HTP): the values of the QNN EP's `soc_model` and what people call them.

Chip, architecture, VTCM and floating point are measured, not copied: a small model was compiled for every number from
1 to 140 with onnxruntime-qnn 2.7.0 (QNN SDK 2.51.0), and the context binary tells its `soc_type`, `min_arch` and
`vtcm_size`. Numbers that no HTP answers to are left out; the EP takes them too and compiles for the oldest
architecture. Marketing names are Qualcomm's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SOCS", "SOC_ALIASES", "Soc"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Soc:
    """One system on a chip."""

    model: int
    """Value of `soc_model`."""
    chip: str
    """Qualcomm's part name, such as "SC8380XP"."""
    htp_arch: int
    """Version of its HTP, such as 73; the EP writes it v73."""
    vtcm_mb: int
    """Tightly coupled memory of the HTP, in MiB."""
    floating_point: bool
    """Whether the compiler takes a float32 model for it (it computes in fp16); else the model must be quantised."""
    names: tuple[str, ...] = ()
    """Marketing names in the form of a configuration value."""


def _soc(model: int, chip: str, htp_arch: int, vtcm_mb: int, float_or_not: str, *names: str) -> Soc:
    return Soc(
        model=model, chip=chip, htp_arch=htp_arch, vtcm_mb=vtcm_mb, floating_point=float_or_not == "fp", names=names
    )


_TABLE = (
    _soc(30, "SM8350", 68, 4, "fp", "snapdragon-888"),
    _soc(32, "SM7350", 68, 2, "int"),
    _soc(34, "SM8325", 68, 4, "int"),
    _soc(35, "SM7325", 68, 2, "int", "snapdragon-778g"),
    _soc(36, "SM8450", 69, 8, "fp", "snapdragon-8-gen-1"),
    _soc(37, "SC8280X", 68, 4, "int", "snapdragon-8cx-gen-3"),
    _soc(38, "SM7315", 68, 2, "int"),
    _soc(39, "SA8295", 68, 8, "fp"),
    _soc(41, "SM7450", 69, 2, "fp", "snapdragon-7-gen-1"),
    _soc(42, "SM8475", 69, 8, "fp", "snapdragon-8-plus-gen-1"),
    _soc(43, "SM8550", 73, 8, "fp", "snapdragon-8-gen-2"),
    _soc(45, "SXR1230P", 73, 2, "int"),
    _soc(46, "SSG2115P", 73, 2, "int"),
    _soc(50, "SM6450", 73, 2, "int", "snapdragon-6-gen-1"),
    _soc(52, "SA8255", 73, 8, "fp"),
    _soc(53, "SXR2230P", 69, 8, "fp", "snapdragon-xr2-gen-2"),
    _soc(54, "SM7475", 69, 4, "int", "snapdragon-7-plus-gen-2"),
    _soc(57, "SM8650", 75, 8, "fp", "snapdragon-8-gen-3"),
    _soc(58, "SSG2125P", 73, 2, "int"),
    _soc(60, "SC8380XP", 73, 8, "fp", "snapdragon-x-elite"),
    _soc(61, "SM7435", 73, 2, "int", "snapdragon-7s-gen-2"),
    _soc(62, "SA8540", 68, 8, "fp"),
    _soc(63, "AIC100", 68, 8, "fp"),
    _soc(64, "SM7550", 73, 2, "int", "snapdragon-7-gen-3"),
    _soc(66, "QCS8550", 73, 8, "fp"),
    _soc(67, "SA8620P", 75, 8, "fp"),
    _soc(68, "SM8635", 73, 4, "int", "snapdragon-8s-gen-3"),
    _soc(69, "SM8750", 79, 8, "fp", "snapdragon-8-elite"),
    _soc(70, "SM7675", 73, 4, "int", "snapdragon-7-plus-gen-3"),
    _soc(72, "SA8797", 81, 16, "fp"),
    _soc(73, "SM7635", 73, 2, "int", "snapdragon-7s-gen-3"),
    _soc(74, "SM6650", 73, 2, "int"),
    _soc(75, "SXR2330P", 79, 8, "fp"),
    _soc(76, "SM6475", 73, 2, "int"),
    _soc(77, "QCS9100", 73, 8, "fp"),
    _soc(78, "QCM6690", 73, 2, "int"),
    _soc(82, "QCS8300", 75, 8, "fp"),
    _soc(85, "SM8735", 73, 8, "int", "snapdragon-8s-gen-4"),
    _soc(86, "SM7750", 73, 4, "int", "snapdragon-7-gen-4"),
    _soc(87, "SM8850", 81, 8, "fp", "snapdragon-8-elite-gen-5"),
    _soc(88, "SC8480XP", 81, 8, "fp", "snapdragon-x2-elite"),
    _soc(89, "QCM8538", 73, 8, "fp"),
    _soc(90, "QCS8625", 75, 8, "fp"),
    _soc(91, "SM7775", 73, 4, "int"),
    _soc(92, "SM8850L", 81, 8, "fp"),
    _soc(93, "QCS6490", 68, 2, "int"),
    _soc(94, "SC8440XP", 81, 8, "fp"),
    _soc(95, "SAR2230P", 81, 4, "int"),
    _soc(96, "SW6100", 81, 4, "int"),
    _soc(97, "SM8845", 81, 8, "fp", "snapdragon-8-gen-5"),
    _soc(99, "QCM8838", 81, 8, "fp"),
    _soc(100, "SAR1165P", 73, 2, "int"),
    _soc(101, "SAR1180P", 73, 2, "int"),
    _soc(102, "CQ7790M", 73, 4, "int"),
    _soc(103, "SM8975", 85, 12, "fp"),
    _soc(104, "CQ8725S", 79, 8, "fp"),
    _soc(105, "CQ8750S", 79, 8, "fp"),
    _soc(109, "QCS8845", 81, 8, "fp"),
    _soc(110, "XRV7200", 81, 4, "int"),
    _soc(111, "XRV7205", 81, 4, "int"),
    _soc(112, "SM8975L", 85, 8, "fp"),
    _soc(113, "SM8950", 85, 8, "fp"),
    _soc(114, "SA8787", 85, 16, "fp"),
    _soc(115, "QMX115", 81, 2, "fp"),
    _soc(117, "IPQ9650", 81, 2, "fp"),
    _soc(119, "IQX5121", 73, 8, "fp"),
    _soc(120, "SC8340XP", 73, 8, "fp", "snapdragon-x-plus-8-core"),
    _soc(123, "SM7950", 81, 4, "fp"),
)

SOCS: Mapping[str, Soc] = MappingProxyType({str(soc.model): soc for soc in _TABLE})
"""Chips by the text of `soc_model`."""

SOC_ALIASES: Mapping[str, str] = MappingProxyType(
    {name: str(soc.model) for soc in _TABLE for name in (soc.chip.lower(), *soc.names)}
)
"""Part and marketing names in lower case, each with its `soc_model`. The EP itself knows 13 part names and takes any
other one for the oldest chip, so that a name never reaches it: it receives the number."""
