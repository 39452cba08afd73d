"""`epctx variant`: the wheel variant of a wheel. Experimental, as the standard is a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hatch_epctx.cli.output import emit_json, say
from hatch_epctx.errors import ConfigError, VerificationError
from hatch_epctx.wheelvariant import WheelVariant, derived_properties, make_wheel_variant

if TYPE_CHECKING:
    from argparse import Namespace

__all__ = ["variant"]


def variant(options: Namespace) -> int:
    """Write the wheel variant of ``WHEEL`` beside it, or into ``--out``."""
    try:
        properties = (*derived_properties(options.wheel), *options.property)
    except OSError as error:
        found = f"cannot be read: {error.strerror or error}"
        raise VerificationError(
            found,
            where=str(options.wheel),
            expected="a wheel",
            remedy="Build one first, or correct the path.",
            reason="unreadable",
        ) from error
    if not properties:
        raise ConfigError(
            "none of its compiled models depends on a CPU, and no property is given",
            where=str(options.wheel),
            remedy="Say what a machine must have: --property 'x86_64 :: level :: v3'.",
            reason="no-properties",
        )
    providers = dict(_pair(text) for text in options.provider)
    made = WheelVariant(properties, label=options.label or "", providers=providers)
    wheel, index = make_wheel_variant(options.wheel, options.out or options.wheel.parent, made)
    if options.json:
        facts = {"wheel": str(wheel), "index": str(index), "label": made.label, "properties": list(properties)}
        emit_json(options, {**facts, "experimental": True})
    else:
        say(f"wrote {wheel}")
        say(f"wrote {index}")
        say(f"experimental: {', '.join(properties)}")
    return 0


def _pair(text: str) -> tuple[str, str]:
    namespace, equals, requirement = text.partition("=")
    if not equals or not namespace or not requirement:
        raise ConfigError(
            f"found {text!r}", where="--provider", expected="NAMESPACE=REQUIREMENT", reason="bad-provider"
        )
    return namespace, requirement
