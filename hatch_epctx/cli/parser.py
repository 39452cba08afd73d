"""The commands of the command line, and its parser. Importing this module imports nothing heavy.

To add a command: a `Command` in `COMMANDS`, its arguments in `arguments`, its function in a module of its own; then run
``python docs/generate.py``, which puts it into README.md and docs/commands.md.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import hatch_epctx
from hatch_epctx.cli import arguments
from hatch_epctx.errors import suggest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["COMMANDS", "EXIT_CODES", "Command", "make_parser", "parse"]

EXIT_CODES: Final = (
    "0 done, 1 a bug, 2 configuration, 3 model, 4 toolchain, 5 compile, 6 store, 7 look-up, 8 verification"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command, or a group of them."""

    name: str
    text: str
    """What it does, one clause; help, README.md and docs/commands.md say the same."""
    run: str = ""
    """"module.function" in this package. Empty for a group."""
    arguments: Callable[[argparse.ArgumentParser], None] = arguments.nothing
    """Adds the command's own arguments; --json, --quiet and --verbose are everybody's."""
    commands: tuple[Command, ...] = ()
    """The commands of a group."""


CACHE: Final[tuple[Command, ...]] = (
    Command(
        name="info",
        run="cache.info",
        arguments=arguments.limits,
        text="where the store lies, what it holds and may hold",
    ),
    Command(name="list", run="cache.list_items", text="every generation: identity, size, last use, pins"),
    Command(
        name="verify",
        run="cache.verify",
        arguments=arguments.cache_verify,
        text="read every byte and compare digests",
    ),
    Command(
        name="collect",
        run="cache.collect",
        arguments=arguments.cache_collect,
        text="bring the store down to its limits, least recently used first",
    ),
    Command(
        name="pin",
        run="pins.pin",
        arguments=arguments.pins,
        text="keep an identity, or whatever a variant was last built as",
    ),
    Command(name="unpin", run="pins.unpin", arguments=arguments.pins, text="give a pin up"),
    Command(
        name="clear",
        run="cache.clear",
        arguments=arguments.cache_clear,
        text="remove everything that is neither in use nor pinned, or some identities",
    ),
)
"""The commands of `epctx cache`."""

COMMANDS: Final[tuple[Command, ...]] = (
    Command(
        name="plan",
        run="plan.plan",
        arguments=arguments.plan,
        text="every variant: identity, hit or miss, and why",
    ),
    Command(
        name="build",
        run="build.build",
        arguments=arguments.build,
        text="compile what changed; with --out, write the package folder",
    ),
    Command(
        name="explain",
        run="explain.explain",
        arguments=arguments.explain,
        text="field by field, what changed for one variant",
    ),
    Command(
        name="compile",
        run="compile.compile_one",
        arguments=arguments.compile_one,
        text="compile one model, without a project",
    ),
    Command(
        name="inspect",
        run="inspect.inspect",
        arguments=arguments.inspect,
        text="what a wheel, an installed package, a folder or an ONNX file holds",
    ),
    Command(
        name="doctor",
        run="doctor.doctor",
        arguments=arguments.doctor,
        text="EPs, devices and versions on this machine, whether they work, and what is missing",
    ),
    Command(
        name="schema",
        run="schema.schema",
        text="the JSON Schema of [tool.epctx]",
    ),
    Command(
        name="verify",
        run="verify.verify",
        arguments=arguments.verify,
        text="re-hash a wheel, installed package, folder or ONNX file and check every reference",
    ),
    Command(
        name="provenance",
        run="provenance.provenance",
        arguments=arguments.provenance,
        text="an in-toto statement (SLSA provenance) about a wheel, to be signed",
    ),
    Command(
        name="variant",
        run="variant.variant",
        arguments=arguments.variant,
        text="the wheel variant (PEP 825) of a wheel; experimental",
    ),
    Command(
        name="lock",
        run="lock.lock",
        arguments=arguments.lock,
        text="write epctx.lock: identities and digests of every variant",
    ),
    Command(
        name="reproduce",
        run="reproduce.reproduce_variants",
        arguments=arguments.reproduce,
        text="compile twice in fresh folders and compare bit for bit",
    ),
    Command(name="cache", text="look after the store", commands=CACHE),
    Command(
        name="report",
        run="report.report",
        arguments=arguments.report,
        text="what the last build did: tables, JSON, and an HTML page",
    ),
)
"""In the order in which help shows them."""


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; each command's namespace has `run`."""
    parser = argparse.ArgumentParser(
        prog="epctx",
        description="Precompile ONNX models for NPUs, GPUs and CPUs and ship the result in a wheel.",
        epilog=f"Exit codes: {EXIT_CODES}.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"hatch-epctx {hatch_epctx.__version__}")
    _add_commands(parser, COMMANDS, "")
    return parser


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of one command line; ends the program with exit code 2 and a message where there is a mistake."""
    whole = make_parser()
    _refuse_unknown_command(whole, sys.argv[1:] if arguments is None else arguments)
    options, unknown = whole.parse_known_args(arguments)
    if unknown:
        parser: argparse.ArgumentParser = options.parser
        known = [name for action in parser._actions for name in action.option_strings]  # argparse has no public list
        hint = suggest(unknown[0].partition("=")[0], known)
        parser.error(f"unknown arguments: {' '.join(unknown)}{f'. {hint}' if hint else ''}")
    return options


def _refuse_unknown_command(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """End the program as argparse would, with a suggestion."""
    commands = COMMANDS
    for word in words:
        names = {command.name: command for command in commands}
        if not commands or word.startswith("-"):
            return
        if word not in names:
            hint = suggest(word, names)
            parser.error(f"unknown command {word!r}; expected one of {', '.join(names)}{f'. {hint}' if hint else ''}")
        commands = names[word].commands


def _add_commands(parser: argparse.ArgumentParser, commands: tuple[Command, ...], above: str) -> None:
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in commands:
        _add(group, command, f"{above}{command.name}")


def _add(group: Any, command: Command, name: str) -> None:
    text = command.text
    description = f"{text[0].upper()}{text[1:]}."
    parser = group.add_parser(command.name, help=text, description=description, allow_abbrev=False)
    if command.commands:
        _add_commands(parser, command.commands, f"{name} ")
        return
    command.arguments(parser)
    arguments.common(parser)
    parser.set_defaults(run=_runner(command), parser=parser)


def _runner(command: Command) -> Callable[[argparse.Namespace], int]:
    module, function = command.run.split(".")

    def run(options: argparse.Namespace) -> int:
        return int(getattr(import_module(f"hatch_epctx.cli.{module}"), function)(options))

    return run
