"""What configuration knows of the stub: two EPs, one without and one with a device and a driver that count."""

from __future__ import annotations

from dataclasses import replace

from epctx_stub.modes import MODES
from hatch_epctx.epcache import EpCache
from hatch_epctx.providers import Option, Provider, table

OPTIONS = table(
    Option(name="mode", kind="enum", doc="What happens.", phase="both", values=tuple(MODES)),
    Option(name="seconds", kind="float", doc="How long slow modes take.", minimum=0),
    Option(name="level", kind="int", doc="A number that only changes the bytes.", minimum=0, maximum=9),
    Option(name="table", kind="json", doc="A table that only changes the bytes."),
    Option(name="settings", kind="json-or-file", doc="A table or a JSON file that only changes the bytes."),
    Option(name="data", kind="file", doc="A file whose content changes the bytes."),
    Option(name="tree", kind="folder", doc="A folder whose content changes the bytes."),
    Option(name="threads", kind="int", doc="A number that only loading reads.", phase="run", minimum=1),
)

STUB = Provider(
    key="stub",
    names=("StubExecutionProvider",),
    title="the stub EP",
    distributions=("epctx-stub",),
    devices=("cpu", "npu"),
    run_here=True,
    options=OPTIONS,
    cache=EpCache(option="cache_dir", filled_by="compiled", holds="what it is told"),
    procedure="epctx_stub.procedure",
)

STUB_NPU = replace(
    STUB,
    key="stub-npu",
    names=("StubNpuExecutionProvider",),
    title="the stub EP with a driver",
    devices=("npu",),
    system_toolchain=True,
)
