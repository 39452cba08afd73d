"""Arguments of every command. Importing this module imports nothing heavy; commands import what they need."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hatch_epctx
from hatch_epctx.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["make_parser"]

_LATER = {
    "verify": "re-hash a wheel, folder or ONNX file and check every reference",
    "lock": "write epctx.lock",
    "reproduce": "compile twice and compare bit for bit",
    "cache": "look after the store",
    "report": "write the HTML report",
}


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line; each command's namespace has `run`."""
    parser = argparse.ArgumentParser(
        prog="epctx",
        description="Precompile ONNX models for NPUs, GPUs and CPUs and ship the result in a wheel.",
        epilog="Exit codes: 0 done, 1 a bug, 2 configuration, 3 model, 4 toolchain, 5 compile, 6 store, 7 look-up, "
        "8 verification.",
    )
    parser.add_argument("--version", action="version", version=f"hatch-epctx {hatch_epctx.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_project_commands(commands)
    _add_compile(commands)
    _add_looking_commands(commands)
    for name, text in _LATER.items():
        later = commands.add_parser(name, help=f"{text} (not available in this version)")
        later.add_argument("rest", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
        later.set_defaults(run=_refuse(name))
    return parser


def _add_project_commands(commands: Any) -> None:
    plan = _command(commands, "plan", "projects.plan", "every variant: identity, hit or miss, and why")
    build = _command(commands, "build", "projects.build", "compile what changed; with --out, write the package folder")
    build.add_argument("--out", type=Path, metavar="DIR", help="write the package folder here")
    explain = _command(commands, "explain", "projects.explain", "field by field, what changed for one variant")
    explain.add_argument("variant", help="a variant's name, MODEL.TARGET")
    explain.add_argument(
        "--against", default="last", metavar="IDENTITY", help="an identity in the store, or 'last' (the default)"
    )
    for parser in (plan, build, explain):
        parser.add_argument(
            "-C", "--project", type=Path, default=Path(), metavar="DIR", help="the folder with pyproject.toml"
        )
    for parser in (plan, build):
        parser.add_argument("--targets", metavar="GLOBS", help="only these targets (as EPCTX_TARGETS)")
        parser.add_argument("--models", metavar="GLOBS", help="only these models (as EPCTX_MODELS)")
    build.add_argument("-j", "--jobs", metavar="N", help="compiles at a time (as EPCTX_JOBS; default: cores)")


def _add_compile(commands: Any) -> None:
    parser = _command(commands, "compile", "single.compile_one", "compile one model, without a project")
    parser.add_argument("model", type=Path, help="the ONNX file")
    parser.add_argument("--ep", required=True, help="execution provider, short or full name")
    parser.add_argument("--device", help="cpu, gpu or npu; the EP's first when left out")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    pairs: tuple[tuple[str, str], ...] = (
        ("--option", "a provider option; JSON for options that take it"),
        ("--session-option", "a session option of the compile"),
        ("--free-dimension", "size of a symbolic dimension"),
        ("--env", "an environment variable for the compile"),
    )
    for flag, text in pairs:
        parser.add_argument(flag, action="append", default=[], metavar="K=V", help=f"{text}; may be repeated")
    parser.add_argument("--allow-unknown-option", action="append", default=[], metavar="K", help="pass this option on")
    parser.add_argument("--optimization", choices=("disable-all", "basic", "extended", "all"), help="of the compile")
    parser.add_argument("--embed", action="store_true", help="put the context binary into the ONNX file")
    parser.add_argument("--no-load-check", action="store_true", help="do not open the result in a second process")
    parser.add_argument("--timeout", type=int, default=600, metavar="SECONDS", help="limit of one compile")
    parser.add_argument("--stable-alias", action="store_true", help="also write the binary under a plain name")


def _add_looking_commands(commands: Any) -> None:
    inspect = _command(commands, "inspect", "looking.inspect", "what a wheel, folder or ONNX file holds")
    inspect.add_argument("path", type=Path)
    _command(commands, "doctor", "doctor.doctor", "EPs, devices and versions, and what is missing")
    _command(commands, "schema", "looking.schema", "JSON Schema of [tool.epctx]")


def _command(commands: Any, name: str, target: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("-q", "--quiet", action="store_true", help="results and errors only")
    loudness.add_argument("-v", "--verbose", action="store_true", help="say more")
    module, function = target.split(".")

    def run(options: argparse.Namespace) -> int:
        command = getattr(import_module(f"hatch_epctx.cli.{module}"), function)
        return int(command(options))

    parser.set_defaults(run=run)
    return parser


def _refuse(name: str) -> Callable[[argparse.Namespace], int]:
    def run(_options: argparse.Namespace) -> int:
        raise ConfigError("not available in this version", where=f"epctx {name}", reason="not-available")

    return run
