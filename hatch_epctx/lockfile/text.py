"""epctx.lock as text: TOML in which every line stands for itself.

    format = "epctx-lock/1"

    [variants]

    # detector.intel-cpu
    detector.intel-cpu.artifacts."model_ctx.onnx" = { role = "model", sha256 = "...", size = 1234 }
    detector.intel-cpu.document.compile.embed = false
    detector.intel-cpu.document.model."external-data[detector.data]".digest = "..."
    detector.intel-cpu.document.toolchain.cores = { json = "null" }
    detector.intel-cpu.identity = "..."

Variants and the keys of each are sorted, each line names variant and field, and a comment that never changes stands
between two variants: a change shows as the fields that changed, and versions of the file in which different variants
changed merge without a conflict. A variant that is not locked yet has its comment alone, which keeps its place.

A value that TOML cannot write (null) or that would need several lines is JSON text in a table. A list of tables that
have a `location` each becomes one line for each.

A lock is read as untrusted input: the document of each variant has to have the identity as its digest, so that a hand
edit or an unlucky merge is found, and its facts have to be of the types that a compile writes: wheels repeat them.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.compile import check_facts
from hatch_epctx.digest import digest_bytes, is_digest
from hatch_epctx.errors import VerificationError
from hatch_epctx.files import check_name, parse_json, read_bounded
from hatch_epctx.identity import canonical
from hatch_epctx.lockfile.records import FACTS, LOCK_NAME, Lock, LockedVariant
from hatch_epctx.store import Artifact

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["FORMAT", "parse_lock", "read_lock", "write_lock"]

FORMAT: Final = "epctx-lock/1"
_LIMIT: Final = 64 << 20
"""Bytes of a lock that is read."""
_HEAD: Final = f"""# {LOCK_NAME}: what the wheel is built from. 'epctx lock' writes it; commit it and do not edit it.
format = "{FORMAT}"

[variants]
"""
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")
_LISTED = re.compile(r"([A-Za-z0-9_-]+)\[(.*)\]\Z", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\.[A-Za-z0-9][A-Za-z0-9_-]*\Z")
_COMMENT = re.compile(r"# ([A-Za-z0-9][A-Za-z0-9_-]*\.[A-Za-z0-9][A-Za-z0-9_-]*)\s*\Z")
_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9_-]*)\.([A-Za-z0-9][A-Za-z0-9_-]*)\.\S")
_CONFLICT = ("<<<<<<< ", ">>>>>>> ")
_AGAIN: Final = "Run 'epctx lock': it keeps every variant that is whole and locks the rest anew."


def write_lock(lock: Lock) -> bytes:
    """The text of `lock`: equal locks give equal bytes.

    Raises:
        VerificationError, ValueError: it cannot be written, or is such as `parse_lock` refuses.
    """
    parts = [_HEAD]
    for name in sorted({*lock.variants, *lock.unlocked}):
        parts.append(f"\n# {name}\n")
        variant = lock.variants.get(name)
        parts += [f"{line}\n" for line in sorted(_lines(variant))] if variant else []
    data = "".join(parts).encode()
    if parse_lock(data, where="the lock to be written").variants != lock.variants:
        raise ValueError("the lock would not be read as it was written")
    return data


def _lines(variant: LockedVariant) -> Iterator[str]:
    """Lines of one variant, in any order. Its name needs no quotes (see `config.scalars.check_name`)."""
    yield f'{variant.name}.identity = "{variant.identity}"'
    for artifact in variant.artifacts:
        value = f'{{ role = "{artifact.role}", sha256 = "{artifact.digest}", size = {artifact.size} }}'
        yield f"{variant.name}.artifacts.{_key(artifact.path)} = {value}"
    yield from _flat(f"{variant.name}.document", variant.document)
    yield from _flat(f"{variant.name}.facts", variant.facts)


def _flat(place: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value and value.keys() != {"json"} and not any(map(_LISTED.match, value)):
        for key, inner in value.items():
            if _is_listing(inner) and _BARE.match(key):
                for item in inner:
                    rest = {name: item[name] for name in item if name != "location"}
                    listed = _key(f"{key}[{item['location']}]")
                    yield from _flat(f"{place}.{listed}", rest)
            else:
                yield from _flat(f"{place}.{_key(key)}", inner)
    else:
        yield f"{place} = {_value(value)}"


def _is_listing(value: Any) -> bool:
    """Whether `value` is a list of tables that their locations, sorted and each once, tell apart."""
    if not isinstance(value, list) or not value:
        return False
    if not all(isinstance(item, dict) and len(item) > 1 and isinstance(item.get("location"), str) for item in value):
        return False
    locations = [item["location"] for item in value]
    return locations == sorted(set(locations))


def _key(text: str) -> str:
    return text if _BARE.match(text) else _string(text)


def _value(value: Any) -> str:
    """A TOML value in one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int | float) or value == {}:
        return json.dumps(value, allow_nan=False)
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return f"[{', '.join(map(_value, value))}]"
    return f"{{ json = {_string(json.dumps(value, sort_keys=True, allow_nan=False))} }}"


def _string(text: str) -> str:
    """A TOML string; literal where that saves escapes, as of JSON text."""
    if '"' in text and "'" not in text and text.isprintable():
        return f"'{text}'"
    return '"' + "".join(map(_character, text)) + '"'


def _character(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    return character if character.isprintable() else f"\\U{ord(character):08X}"


def read_lock(path: Path, *, lenient: bool = False) -> Lock | None:
    """The lock at `path`; None where there is none. See `parse_lock`.

    Raises:
        VerificationError: it cannot be read, or is no lock.
    """
    try:
        data = read_bounded(path.resolve(), _LIMIT)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise VerificationError(
            f"cannot be read: {error.strerror or error}", where=str(path), reason="unreadable-lock"
        ) from error
    return parse_lock(data, where=str(path), lenient=lenient)


def parse_lock(data: bytes, *, where: str = LOCK_NAME, lenient: bool = False) -> Lock:
    """Read a lock.

    Args:
        data: the file's content.
        where: what messages call it.
        lenient: leave out variants that are damaged (an edit, a merge conflict) and say so in `Lock.damaged`.

    Raises:
        VerificationError: no lock, one of a newer form, or, unless `lenient`, one with a damaged variant.
    """
    try:
        text = data.decode()
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        if lenient and f'format = "{FORMAT}"' in data.decode("utf-8", "replace"):
            return _line_by_line(data.decode("utf-8", "replace"))
        conflict = any(line.startswith(_CONFLICT) for line in data.decode("utf-8", "replace").split("\n"))
        found = "holds an unresolved merge conflict" if conflict else f"is not valid TOML: {error}"
        raise VerificationError(found, where=where, remedy=_AGAIN, reason="malformed-lock") from error
    if table.get("format") != FORMAT:
        raise VerificationError(
            f"format {table['format']!r}" if "format" in table else "the file names no format",
            where=where,
            expected=repr(FORMAT),
            remedy="Where another version of hatch-epctx wrote it, use that one; else delete it and run 'epctx lock'.",
            reason="unknown-format",
        )
    variants, damaged = _variants(table.get("variants", {}))
    if damaged and not lenient:
        name, problem = next(iter(damaged.items()))
        raise VerificationError(problem, where=f"{where}: {name}", remedy=_AGAIN, reason="malformed-lock")
    named = {match[1] for line in text.split("\n") if (match := _COMMENT.match(line))}
    return Lock(variants=variants, unlocked=frozenset(named - variants.keys() - damaged.keys()), damaged=damaged)


def _line_by_line(text: str) -> Lock:
    """What is whole in a damaged file: each line stands for itself, so that the rest can be read without one."""
    lines: dict[str, set[str]] = {}
    damaged: dict[str, str] = {}
    named: set[str] = set()
    for line in text.split("\n"):
        if match := _COMMENT.match(line):
            named.add(match[1])
        elif match := _LINE.match(line):
            lines.setdefault(f"{match[1]}.{match[2]}", set()).add(line)
    variants: dict[str, LockedVariant] = {}
    for name, own in lines.items():
        try:
            table = tomllib.loads("\n".join(["[variants]", *sorted(own)]))
        except (ValueError, RecursionError) as error:
            damaged[name] = f"is not valid TOML: {error}"
            continue
        whole, broken = _variants(table["variants"])
        variants |= whole
        damaged |= broken
    return Lock(variants=variants, unlocked=frozenset(named - variants.keys() - damaged.keys()), damaged=damaged)


def _variants(table: Any) -> tuple[dict[str, LockedVariant], dict[str, str]]:
    """Whole variants, and what is wrong with the others, by name."""
    variants: dict[str, LockedVariant] = {}
    damaged: dict[str, str] = {}
    for model, targets in table.items() if isinstance(table, dict) else ():
        for target, entry in targets.items() if isinstance(targets, dict) else ():
            name = f"{model}.{target}"
            try:
                variants[name] = _variant(name, entry)
            except (ValueError, RecursionError) as error:
                damaged[name] = str(error)
    return variants, damaged


def _variant(name: str, entry: Any) -> LockedVariant:
    if not _NAME.match(name):
        raise ValueError(f"{name!r} is no variant")
    if not isinstance(entry, dict) or not {"artifacts", "document", "identity"} <= entry.keys():
        raise ValueError("a locked variant has an identity, a document and artifacts")
    document, facts = _unflat(entry["document"]), _unflat(entry.get("facts", {}))
    if not isinstance(document, dict) or not isinstance(facts, dict) or not facts.keys() <= set(FACTS):
        raise ValueError("a document is a table, and so are facts")
    if entry["identity"] != digest_bytes(canonical(document)):
        raise ValueError("the identity is not that of the document: the file was edited, or merged by mistake")
    if not isinstance(entry["artifacts"], dict) or not entry["artifacts"]:
        raise ValueError("a locked variant has artifacts")
    artifacts = [_artifact(path, item) for path, item in sorted(entry["artifacts"].items())]
    canonical(facts)  # TOML has values that no manifest can hold: dates, nan
    members = facts.get("members", ())
    check_facts(facts, artifacts, members=len(members) if isinstance(members, list) else 0)
    return LockedVariant(
        name=name, identity=entry["identity"], document=document, artifacts=tuple(artifacts), facts=facts
    )


def _artifact(path: str, item: Any) -> Artifact:
    if not isinstance(item, dict) or item.keys() != {"role", "sha256", "size"}:
        raise ValueError(f"artifact {path!r}: expected role, sha256 and size")
    role, size, digest = item["role"], item["size"], item["sha256"]
    if not isinstance(role, str) or type(size) is not int or size < 0 or not is_digest(digest):
        raise ValueError(f"artifact {path!r}: expected a word, a number of bytes and a digest")
    return Artifact(role=role, path=check_name(path), size=size, digest=digest)


def _unflat(value: Any) -> Any:
    """The value that `_flat` wrote."""
    if not isinstance(value, dict):
        return value
    if value.keys() == {"json"} and isinstance(value["json"], str):
        return parse_json(value["json"].encode("utf-8", "surrogatepass"))
    result: dict[str, Any] = {}
    listed: dict[str, list[dict[str, Any]]] = {}
    for key, inner in value.items():
        if match := _LISTED.match(key):
            rest = _unflat(inner)
            if not isinstance(rest, dict):
                raise ValueError(f"{key} is no table")
            listed.setdefault(match[1], []).append({**rest, "location": match[2]})
        else:
            result[key] = _unflat(inner)
    for key, items in listed.items():
        if key in result:
            raise ValueError(f"{key} stands twice")
        result[key] = sorted(items, key=lambda item: str(item["location"]))
    return result
