"""The command line: `epctx`, also installed as `hatch-epctx`.

Each command lives in a module of this package and returns its exit code; only `main` turns errors into messages and
exit codes: 0 done, 1 a bug, 2 configuration, 3 model, 4 toolchain, 5 compile, 6 store, 7 look-up, 8 verification.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING

from hatch_epctx.cli.parser import make_parser
from hatch_epctx.errors import EpctxError, ToolchainError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_BUILD_MODULES = frozenset({"filelock", "hatchling", "packaging", "platformdirs", "pydantic", "rfc8785", "tomli"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        options = make_parser().parse_args(arguments)
        return _run(options)
    except EpctxError as error:
        print(f"epctx: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("epctx: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (head, a pager) went away: that is its right. Keep the interpreter from flushing to it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:  # noqa: BLE001  # the last resort: a bug shows as one
        traceback.print_exc()
        print("epctx: this is a bug in hatch-epctx; please report it with the lines above", file=sys.stderr)
        return 1


def _run(options: object) -> int:
    try:
        return int(options.run(options))  # type: ignore[attr-defined]  # set by each sub-parser
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in _BUILD_MODULES:
            raise
        raise ToolchainError(
            f"the module {error.name!r} is not installed",
            remedy="Building needs the build extra: pip install 'hatch-epctx[build]'.",
            reason="missing-extra",
        ) from error
