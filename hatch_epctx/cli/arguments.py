"""What each command takes. Importing this module imports nothing heavy."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser

__all__ = [
    "build",
    "cache_clear",
    "cache_collect",
    "cache_verify",
    "common",
    "compile_one",
    "doctor",
    "explain",
    "inspect",
    "limits",
    "lock",
    "nothing",
    "pins",
    "plan",
    "project",
    "report",
    "reproduce",
    "selection",
    "verify",
]


def nothing(parser: ArgumentParser) -> None:
    """No argument of its own."""


def common(parser: ArgumentParser) -> None:
    """Options of every command."""
    parser.add_argument("--json", action="store_true", help="print one JSON document for programs")
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("-q", "--quiet", action="store_true", help="results, warnings and errors only")
    loudness.add_argument("-v", "--verbose", action="store_true", help="say more")


def project(parser: ArgumentParser) -> None:
    """The project of a command that reads pyproject.toml."""
    parser.add_argument(
        "-C",
        "--project",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="the folder with pyproject.toml (default: the current one)",
    )


def selection(parser: ArgumentParser) -> None:
    """Which variants of the project."""
    parser.add_argument("--targets", metavar="GLOBS", help="only these targets (as EPCTX_TARGETS)")
    parser.add_argument("--models", metavar="GLOBS", help="only these models (as EPCTX_MODELS)")


def jobs(parser: ArgumentParser) -> None:
    """How many compiles run side by side."""
    parser.add_argument("-j", "--jobs", metavar="N", help="compiles at a time (as EPCTX_JOBS; default: usable cores)")


def plan(parser: ArgumentParser) -> None:
    """Arguments of `epctx plan`."""
    project(parser)
    selection(parser)


def build(parser: ArgumentParser) -> None:
    """Arguments of `epctx build`."""
    text = "write the package folder here, an earlier one is replaced; with --split or --companions, wheels"
    parser.add_argument("--out", type=Path, metavar="DIR", help=text)
    parser.add_argument(
        "--split",
        nargs="?",
        const="platform",
        choices=("platform", "target"),
        help="build a wheel for each platform (the default) or each target into --out",
    )
    parser.add_argument("--companions", action="store_true", help="build the data packages of targets into --out")
    parser.add_argument("--locked", action="store_true", help="fail when anything differs from epctx.lock")
    project(parser)
    selection(parser)
    jobs(parser)


def explain(parser: ArgumentParser) -> None:
    """Arguments of `epctx explain`."""
    parser.add_argument("variant", metavar="VARIANT", help="a variant's name, MODEL.TARGET")
    parser.add_argument(
        "--against",
        default="nearest",
        metavar="IDENTITY",
        help="an identity in the store, 'last' (that of the last build), or 'nearest' (the most alike; the default)",
    )
    project(parser)


def lock(parser: ArgumentParser) -> None:
    """Arguments of `epctx lock`."""
    parser.add_argument("--check", action="store_true", help="write nothing; fail when anything differs from the lock")
    parser.add_argument(
        "--upgrade",
        action="append",
        default=[],
        metavar="VARIANT",
        help="lock this variant alone (a name or glob), anew even where nothing changed; may be repeated",
    )
    project(parser)
    selection(parser)
    jobs(parser)


def compile_one(parser: ArgumentParser) -> None:
    """Arguments of `epctx compile`."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="the ONNX file")
    parser.add_argument("--ep", required=True, metavar="EP", help="execution provider, short or full name")
    parser.add_argument("--device", metavar="D", help="one of cpu, gpu and npu (default: the EP's first)")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="DIR", help="folder for the results")
    pairs = (
        ("--option", "a provider option; JSON for options that take it"),
        ("--session-option", "a session option of the compile"),
        ("--free-dimension", "the size of a symbolic dimension"),
        ("--input-shape", "the sizes of an input by axis, with commas, -1 where the model's own stays"),
        ("--env", "an environment variable for the compile"),
    )
    for flag, text in pairs:
        parser.add_argument(flag, action="append", default=[], metavar="K=V", help=f"{text}; may be repeated")
    parser.add_argument(
        "--allow-unknown-option",
        action="append",
        default=[],
        metavar="K",
        help="pass this provider option although the EP's table does not know it; may be repeated",
    )
    parser.add_argument(
        "--custom-ops",
        action="append",
        default=[],
        metavar="LIBRARY",
        help="a library of custom operators: a path, or the import name of a module that brings it; may be repeated",
    )
    parser.add_argument("--cores", type=int, metavar="N", help="physical cores that the compile sees (default: all)")
    parser.add_argument(
        "--optimization",
        choices=("disable-all", "basic", "extended", "all"),
        help="graph optimisation level of the compile (default: the EP's tested one)",
    )
    parser.add_argument("--embed", action="store_true", help="put the context binary into the ONNX file")
    parser.add_argument("--no-load-check", action="store_true", help="do not open the result in a second process")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="limit of one compile")
    parser.add_argument("--stable-alias", action="store_true", help="also write the context binary under a plain name")


def report(parser: ArgumentParser) -> None:
    """Arguments of `epctx report`."""
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="write the page here (default: a place in the store, printed)"
    )
    project(parser)


def doctor(parser: ArgumentParser) -> None:
    """Arguments of `epctx doctor`."""
    parser.add_argument("--no-trial", action="store_true", help="do not let the EPs compile and run one node")


def verify(parser: ArgumentParser) -> None:
    """Arguments of `epctx verify`."""
    parser.add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="a wheel, a package folder, an ONNX file, or the import name of an installed package",
    )
    parser.add_argument("--no-compatibility", action="store_true", help="do not ask this machine's EPs")
    parser.add_argument(
        "--runs-here", action="store_true", help="fail too when a model has no compiled variant that runs here"
    )


def inspect(parser: ArgumentParser) -> None:
    """Arguments of `epctx inspect`."""
    parser.add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="a wheel, a package folder, an ONNX file, or the import name of an installed package",
    )


def limits(parser: ArgumentParser) -> None:
    """How much the store may hold: flags over a project's [tool.epctx.cache] over the defaults."""
    parser.add_argument("--max-size", metavar="SIZE", help="such as 20GiB, which is the default")
    parser.add_argument("--max-age", metavar="AGE", help="time without use, such as 90d (default: no limit)")
    parser.add_argument(
        "-C",
        "--project",
        type=Path,
        metavar="DIR",
        help="take what the flags leave open from [tool.epctx.cache] of the project in this folder",
    )


def _alone(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--alone",
        action="store_true",
        help="no other host uses a store on a network file system at the moment: remove things there",
    )


def cache_collect(parser: ArgumentParser) -> None:
    """Arguments of `epctx cache collect`."""
    limits(parser)
    parser.add_argument("--dry-run", action="store_true", help="only tell what would go")
    _alone(parser)


def _some_identities(parser: ArgumentParser) -> None:
    parser.add_argument(
        "identities", nargs="*", metavar="IDENTITY", help="an identity or its first digits, at least 8 (default: all)"
    )


def cache_verify(parser: ArgumentParser) -> None:
    """Arguments of `epctx cache verify`."""
    _some_identities(parser)
    parser.add_argument("--remove", action="store_true", help="remove what is damaged")
    _alone(parser)


def cache_clear(parser: ArgumentParser) -> None:
    """Arguments of `epctx cache clear`."""
    _some_identities(parser)
    parser.add_argument("--pinned", action="store_true", help="pinned ones too; what is in use stays all the same")
    _alone(parser)


def pins(parser: ArgumentParser) -> None:
    """Arguments of `epctx cache pin` and `unpin`."""
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="an identity or its first digits, or variants of the project by name or glob (MODEL.TARGET)",
    )
    project(parser)


def provenance(parser: ArgumentParser) -> None:
    """Arguments of `epctx provenance`."""
    parser.add_argument("wheel", type=Path, metavar="WHEEL", help="a wheel with compiled models")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write it here (default: standard output)")
    parser.add_argument("--builder-id", metavar="URI", help="the platform that built the wheel")
    parser.add_argument(
        "--predicate-only", action="store_true", help="the predicate alone, for tools that make the statement"
    )


def variant(parser: ArgumentParser) -> None:
    """Arguments of `epctx variant`."""
    parser.add_argument("wheel", type=Path, metavar="WHEEL", help="a wheel with compiled models")
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="write it here (default: beside the wheel)")
    parser.add_argument(
        "--property",
        action="append",
        default=[],
        metavar="P",
        help="what a machine must have, 'namespace :: feature :: value'; may be repeated",
    )
    parser.add_argument("--label", metavar="L", help="stands in the file name (default: made of the properties)")
    parser.add_argument(
        "--provider",
        action="append",
        default=[],
        metavar="NS=R",
        help="the requirement that provides a namespace; may be repeated",
    )


def reproduce(parser: ArgumentParser) -> None:
    """Arguments of `epctx reproduce`."""
    parser.add_argument(
        "variant", nargs="*", metavar="VARIANT", help="names of variants, MODEL.TARGET (default: all selected ones)"
    )
    parser.add_argument(
        "--runs", type=_runs, default=2, metavar="N", help="compiles to compare with the first one, it included"
    )
    project(parser)
    selection(parser)


def _runs(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= 1000:
        raise ArgumentTypeError(f"{text!r} is no number from 2 to 1000")
    return int(text)
