"""A stub EP that fails in every way an EP can. It compiles nothing; nothing here says anything about real EPs.

The folder above holds this package and its dist-info, so that it counts as an installed distribution as soon as the
folder is on the import path: `PYTHONPATH=tests/stub_ep`, or pytest's `pythonpath`.

The provider option `mode` says what happens (see `procedure.MODES`); it is of phase "both", so a load sees it too.
`driver.txt` beside this file is the driver version that a probe reports; a test that changes it works on a copy of
the folder. `libepctx_stub.so` is no library: it stands for the files of an EP's closure.
"""
