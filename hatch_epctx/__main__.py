"""`python -m hatch_epctx` is `epctx`."""

import sys

from hatch_epctx.cli import main

sys.exit(main())
