"""`python -m hatch_epctx.bazel`: what the actions and tests of the rule set run, and `machine` for people.

Exit codes are those of `epctx`. All arguments, or all behind the command, may stand in a file, one a line: ``@FILE``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hatch_epctx.bazel.arguments import add_option, number, path, shielded, whole
from hatch_epctx.bazel.checking import check_action
from hatch_epctx.bazel.compiling import compile_action
from hatch_epctx.bazel.machine import describe_machine
from hatch_epctx.bazel.packing import Packed, package_action
from hatch_epctx.bazel.records import read_manifest
from hatch_epctx.bazel.settings import ActionInputs, in_rules_words
from hatch_epctx.bazel.wheels import wheel_action
from hatch_epctx.config import CheckPlan
from hatch_epctx.console import missing_extra, printable
from hatch_epctx.errors import ConfigError, EpctxError
from hatch_epctx.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hatch_epctx.bazel.records import CompiledContext

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        options = _parser().parse_args(shielded(_expanded(sys.argv[1:] if arguments is None else arguments)))
        options.run(options)
    except EpctxError as error:
        return _failed(error)
    except ModuleNotFoundError as error:
        missing = missing_extra(error)
        if missing is None:
            raise
        return _failed(missing)
    return 0


def _expanded(arguments: Sequence[str]) -> list[str]:
    """The arguments, those of a file in its place. No other one is looked into: files may be called @types/x.js.

    Raises:
        ConfigError: the file cannot be read.
    """
    *before, last = arguments or [""]
    if len(before) > 1 or not last.startswith("@"):
        return list(arguments)
    try:
        return [*before, *Path(last[1:]).read_text(encoding="utf-8").split("\n")[:-1]]
    except (OSError, ValueError) as error:
        raise ConfigError(f"the arguments cannot be read: {error}", where=last[1:], reason="unreadable") from error


def _failed(error: EpctxError) -> int:
    _say(f"error: {in_rules_words(error)}")
    return error.exit_code


def _say(text: str) -> None:
    sys.stderr.write(printable(f"epctx: {text}") + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hatch_epctx.bazel", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    compiles = commands.add_parser("compile", help="compile what a configuration declares", allow_abbrev=False)
    compiles.set_defaults(run=_compile)
    add_option(compiles, "--config", type=path, required=True)
    _add_inputs(compiles)
    add_option(compiles, "--machine", type=path)
    add_option(compiles, "--out", type=path, required=True)
    add_option(compiles, "--manifest", type=path, required=True)
    package = commands.add_parser("package", help="make a package folder of compiles", allow_abbrev=False)
    package.set_defaults(run=_package)
    _add_contexts(package)
    add_option(package, "--package", required=True)
    add_option(package, "--version", required=True)
    add_option(package, "--out", type=path, required=True)
    wheel = commands.add_parser("wheel", help="make a wheel of Python files and compiles", allow_abbrev=False)
    wheel.set_defaults(run=_wheel)
    add_option(wheel, "--config", type=path, required=True)
    _add_contexts(wheel)
    add_option(wheel, "--file", metavar=("NAME", "PATH"))
    add_option(wheel, "--description", type=path)
    add_option(wheel, "--out", type=path, required=True)
    test = commands.add_parser("test", help="run a compile against the CPU EP", allow_abbrev=False)
    test.set_defaults(run=_test)
    _add_contexts(test)
    _add_inputs(test)
    add_option(test, "--inputs", type=path)
    add_option(test, "--rtol", type=number, required=True)
    add_option(test, "--atol", type=number, required=True)
    add_option(test, "--cosine", type=number)
    add_option(test, "--seed", type=whole, default=0)
    test.add_argument("--allow-not-run", action="store_true")
    machine = commands.add_parser("machine", help="describe this machine for epctx_ep(machine = ...)")
    machine.set_defaults(run=_machine)
    add_option(machine, "--ep", required=True)
    add_option(machine, "--device", default="")
    return parser


def _add_contexts(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--context", metavar=("MANIFEST", "FOLDER"))


def _contexts(options: argparse.Namespace) -> list[CompiledContext]:
    return [read_manifest(Path(manifest), Path(folder)) for manifest, folder in options.context]


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--model", metavar=("NAME", "PATH"))
    add_option(parser, "--data", metavar=("NAME", "LOCATION", "PATH"))
    add_option(parser, "--custom-ops", metavar=("NAME", "PATH"))
    add_option(parser, "--calibration", metavar=("NAME", "PATH"))
    add_option(parser, "--option", metavar=("NAME", "PATH"))


def _inputs(options: argparse.Namespace) -> ActionInputs:
    libraries: dict[str, list[Path]] = {}
    for name, library in options.custom_ops:
        libraries.setdefault(name, []).append(Path(library))
    return ActionInputs(
        models={name: Path(place) for name, place in options.model},
        data={(name, location): Path(place) for name, location, place in options.data},
        calibrations={name: Path(place) for name, place in options.calibration},
        custom_ops=libraries,
        options={name: Path(place) for name, place in options.option},
    )


def _compile(options: argparse.Namespace) -> None:
    compile_action(
        options.config,
        _inputs(options),
        machine_file=options.machine,
        out=options.out,
        manifest=options.manifest,
        write=_say,
    )


def _package(options: argparse.Namespace) -> None:
    packed = Packed(package=options.package, name=options.package, version=options.version)
    package_action(_contexts(options), packed, options.out)


def _wheel(options: argparse.Namespace) -> None:
    files = [(name, Path(place)) for name, place in options.file]
    wheel_action(options.config, _contexts(options), files=files, description=options.description, out=options.out)


def _test(options: argparse.Namespace) -> None:
    plan = CheckPlan(
        inputs=options.inputs, rtol=options.rtol, atol=options.atol, cosine=options.cosine, seed=options.seed
    )
    (context,) = _contexts(options)
    with TemporaryDirectory(prefix="epctx-test-", dir=os.environ.get("TEST_TMPDIR")) as folder:
        check_action(
            context,
            _inputs(options),
            plan,
            allow_not_run=options.allow_not_run,
            scratch=Path(folder),
            write=_say,
        )


def _machine(options: argparse.Namespace) -> None:
    with TemporaryDirectory(prefix="epctx-machine-") as folder:
        found = describe_machine(options.ep, options.device, Store(Path(folder)))
    sys.stdout.write(json.dumps(found, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
