"""What every table of the configuration is made of: the base model, identity markers and the validators' error.

Validators raise `bad(...)`, which carries finding, expectation and remedy apart, so that `errors` can say them the
way every message of this project is said.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

__all__ = ["InIdentity", "Presentation", "Table", "bad", "kebab"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InIdentity:
    """Marks a field whose effective value stands in the identity document."""

    at: str
    """Section and key of the document, such as "compile.embed"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Presentation:
    """Marks a field that never changes the bytes of an artifact, so that it stays out of the identity."""

    why: str


def kebab(name: str) -> str:
    """The TOML key of a Python name."""
    return name.rstrip("_").replace("_", "-")


class Table(BaseModel):
    """A TOML table: kebab-case keys, no unknown ones, TOML's own types, immutable."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        alias_generator=kebab,
        hide_input_in_errors=True,
    )


def bad(found: str, *, expected: str = "", remedy: str = "") -> PydanticCustomError:
    """The error of a validator: finding, expectation and remedy as `EpctxError` has them."""
    return PydanticCustomError("epctx", "{found}", {"found": found, "expected": expected, "remedy": remedy})
