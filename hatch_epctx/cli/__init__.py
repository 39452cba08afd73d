"""The command line: `epctx`, also installed as `hatch-epctx`.

`parser` lists the commands and `arguments` what each takes; both import nothing heavy. Each command is a function of
its own module here: it takes the parsed options, prints, and returns its exit code. Only `main` turns errors into
messages and exit codes: 0 done, 1 a bug, 2 configuration, 3 model, 4 toolchain, 5 compile, 6 store, 7 look-up,
8 verification.
"""

from __future__ import annotations

import traceback
from contextlib import suppress
from typing import TYPE_CHECKING

from hatch_epctx.cli.output import UnwritableError, complain, emit_json, flush, prepare_streams
from hatch_epctx.cli.parser import parse
from hatch_epctx.console import missing_extra
from hatch_epctx.errors import EpctxError, StoreError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    prepare_streams()
    try:
        return _run(parse(arguments))
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except UnwritableError as error:
        complain(f"error: {error}")
        return StoreError.exit_code
    except Exception:  # noqa: BLE001  # the last resort: a bug shows as one
        with suppress(OSError):
            traceback.print_exc()
        complain("this is a bug in hatch-epctx; please report it with the lines above")
        return 1


def _run(options: Namespace) -> int:
    try:
        code = int(options.run(options))
    except EpctxError as error:
        return _failed(options, error)
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        return _failed(options, missing)
    flush()
    return code


def _failed(options: Namespace, error: EpctxError) -> int:
    """Say it on standard error; with --json, a command that gave no answer gives the error as one."""
    complain(f"error: {error}")
    if getattr(options, "json", False) and not getattr(options, "answered", False):
        described = {
            "message": str(error),
            "where": error.where,
            "found": error.found,
            "expected": error.expected,
            "remedy": error.remedy,
            "reason": error.reason,
            "detail": error.detail,
            "exit_code": error.exit_code,
        }
        emit_json(options, {"error": described})
        flush()
    return error.exit_code
