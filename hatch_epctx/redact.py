"""Cutting secrets out of text that is shown or kept: values of variables with telling names, and known forms of tokens.

A worker sees only the variables that its target declares; native code prints what it likes. What is cut is a net with
holes: a secret of an unknown form, under a plain name, stays.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CUT", "looks_secret", "redact", "secrets_of"]

CUT: Final = "[cut]"
"""What stands where a secret was."""
_SHORTEST: Final = 4
"""Characters of a value that is cut: "1" or "on" would take half the text with it."""

_NAME = re.compile(
    r"(?i)token|secret|passw|passphrase|credential|cookie|api_?key|access_?key|private_?key|(?:^|_)(?:auth|key)(?:$|_)|_pwd(?:$|_)"
)
_FORMS: Final = (
    r"gh[pousr]_[A-Za-z0-9]{20,}",  # GitHub
    r"github_pat_\w{20,}",
    r"glpat-[\w-]{20,}",  # GitLab
    r"hf_[A-Za-z0-9]{20,}",  # Hugging Face
    r"pypi-[\w-]{20,}",
    r"sk-[\w-]{20,}",
    r"xox[abeprs]-[\w-]{10,}",  # Slack
    r"(?:AKIA|ASIA)[0-9A-Z]{16}",  # AWS
    r"AIza[\w-]{35}",  # Google
    r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}",  # JSON web token
)
_TOKEN = re.compile(rf"(?<![\w-])(?:{'|'.join(_FORMS)})")
_HEADER = re.compile(r"(?i)\b(authorization\s*[:=]\s*|bearer\s+)(?:(?:basic|bearer|token)\s+)?[^\s,;\"']+")
# Not "token" by itself: language models have tokens too.
_ASSIGNED = re.compile(
    r"(?i)\b([\w-]*(?:secret|passw(?:or)?d|passphrase|(?:api|access|private)[_-]?key|(?:access|auth|api)[_-]?token)"
    r"[\w-]*[\"']?\s*[:=]\s*[\"']?)[^\s,;\"'}]+"
)
# A token often stands alone: https://TOKEN@host, https://TOKEN:@host.
_USERINFO = re.compile(r"(://)[^/\s@?#]+(?=@)")
_PEM = re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)


def looks_secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret: API_TOKEN, PASSWORD, SIGNING_KEY; not KEYBOARD."""
    return _NAME.search(name) is not None


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Values to cut: of the variables whose names look secret, the longest first; each line of one of several lines."""
    values = {
        part
        for name, value in environment.items()
        if looks_secret(name)
        for part in (value, *value.splitlines())
        if len(part) >= _SHORTEST
    }
    return tuple(sorted(values, key=lambda value: (-len(value), value)))


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without `secrets`, tokens of known forms, credentials in URLs and headers, and private keys."""
    for value in secrets:
        text = text.replace(value, CUT)
    text = _PEM.sub(rf"\1 {CUT}", text)
    text = _USERINFO.sub(rf"\1{CUT}", text)
    text = _HEADER.sub(rf"\1{CUT}", text)
    text = _ASSIGNED.sub(rf"\1{CUT}", text)
    return _TOKEN.sub(CUT, text)
