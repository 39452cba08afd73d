"""What configuration knows of the test EP."""

from __future__ import annotations

from epctx_test_ep import NAME
from hatch_epctx.providers import Option, Provider, table

PROVIDER = Provider(
    key="test-ep",
    names=(NAME,),
    title="the test EP",
    distributions=("epctx-test-ep",),
    module="epctx_test_ep",
    devices=("cpu",),
    run_here=True,
    options=table(
        Option(name="payload", kind="int", doc="Bytes of each node's context data.", minimum=0),
        Option(name="reads", kind="int", doc="Threads that read each node's data at once.", phase="run", minimum=1),
        Option(name="support", kind="int", doc="1 reads, 2 writes, 3 both.", phase="both", minimum=0, maximum=3),
    ),
)
