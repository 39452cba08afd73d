"""The EP's own cache at run time: shipped files in a private, writable folder, whose place the EP is told.

A cache only ever saves time. What is shipped is restored once, verified on the way, into a folder of this user's that
is named by the variant's identity and the files' content; whatever the EP writes there later is its own. A shipped
file that was damaged since is restored anew. A cache that does not fit (another machine, another version) is a miss:
the EP compiles and writes its own. What cannot be restored is one warning in the log, and the session is made without
a cache; no other folder is ever tried.

ONNX Runtime may hand an EP's cache to the application instead (a proposal, PR 34013; not in 1.32). `offer` registers
the same folder as storage where `SessionOptions` has such a method.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from hatch_epctx.digest import digest_entries
from hatch_epctx.epcache import cache_of, names_a_place, with_folder
from hatch_epctx.errors import EpctxError
from hatch_epctx.files import atomic_write, check_name, make_dir, read_bounded, touch
from hatch_epctx.runtime.keeping import Hold, collect, discard, fill, private_base
from hatch_epctx.runtime.verify import verify_files

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hatch_epctx.manifest import Artifact, Facts, Variant
    from hatch_epctx.runtime.folders import Folder

__all__ = ["CALLBACKS", "ENTRY_LIMIT", "UsedCache", "forget", "offer", "use_cache", "warn_once"]

CALLBACKS: Final = "set_ep_cache_data_funcs"
"""Method of SessionOptions that takes a read and a write function and the largest entry's size, as the proposal has
it."""
ENTRY_LIMIT: Final = 1 << 31
"""Bytes of one entry that a callback reads or writes."""
_SHIPPED: Final = 315532800.0
"""Modification time of restored files, 1980-01-01: one that the EP wrote itself has another."""

_WARNINGS: Final = 16
"""Warnings of one process."""

_said: set[str] = set()
_guard = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedCache:
    """The folder that an EP is told to keep its cache in."""

    path: Path
    provider_options: Mapping[str, str]
    """With the folder among them."""
    plain_options: Mapping[str, str]
    """Without it."""
    restored: bool
    """The shipped files were put there now, and not by an earlier start."""
    hold: object = field(repr=False)

    def read(self, key: str) -> bytes | None:
        """One entry by the EP's name for it; None, a miss, where there is none or it cannot be read."""
        try:
            return read_bounded(self.path / check_name(key), ENTRY_LIMIT)
        except (OSError, ValueError):
            return None

    def write(self, key: str, data: bytes) -> bool:
        """Keep one entry; whether it was. A failure is one warning in the log and nothing else."""
        try:
            if len(data) > ENTRY_LIMIT:
                raise ValueError(f"{len(data)} bytes, more than {ENTRY_LIMIT}")  # noqa: TRY301  # said below like the others
            atomic_write(self.path / check_name(key), data, durable=False)
        except (OSError, ValueError) as error:
            warn_once("write", f"an EP's cache entry cannot be kept: {error}")
            return False
        return True


def use_cache(folder: Folder, variant: Variant, device: str, options: Mapping[str, str]) -> UsedCache | None:
    """The cache of a variant, ready for its EP.

    None where it has none, where the caller's options name a place for one, and where it cannot be had, which is one
    warning in the log.

    Args:
        folder: holds the variant.
        variant: the variant.
        device: cpu, gpu or npu: that will run it.
        options: provider options, the caller's merged over the manifest's.
    """
    facts, cache = variant.facts, cache_of(variant.ep)
    if facts is None or not facts.ep_cache or cache is None or names_a_place(cache, device, options):
        return None
    try:
        base = private_base("ep-caches")
        str(base).encode()  # EPs take paths in UTF-8 alone
        target = base / _key(facts)
        hold = Hold(target.with_suffix(".lock"))
        restored = not _is_good(target, facts)
        if restored:
            _restore(folder, facts, base, target)
            collect(base)
    except (OSError, EpctxError, UnicodeEncodeError) as error:
        warn_once(
            f"restore {folder.path} {variant.name}",
            f"{variant.name}: the EP's cache cannot be restored, and is not used: {error}",
        )
        return None
    return UsedCache(
        path=target,
        provider_options=MappingProxyType(with_folder(cache, device, options, str(target))),
        plain_options=MappingProxyType(dict(options)),
        restored=restored,
        hold=hold,
    )


def _files(facts: Facts) -> dict[str, Artifact]:
    """Shipped files by the EP's own names."""
    by_path = {artifact.path: artifact for artifact in facts.artifacts}
    return {name: by_path[path] for name, path in facts.ep_cache["files"].items()}


def _key(facts: Facts) -> str:
    content = digest_entries((name, artifact.digest) for name, artifact in sorted(_files(facts).items()))
    return f"{(facts.identity or content)[:16]}{content[:16]}"


def _is_good(target: Path, facts: Facts) -> bool:
    """Whether an earlier start left the folder; one with a damaged shipped file is put out of the way."""
    if not target.is_dir():
        return False
    for name, artifact in _files(facts).items():
        path = target / name
        try:
            if path.lstat().st_mtime == _SHIPPED:
                verify_files(path.parent, [_named(artifact, path.name)], "once")
        except FileNotFoundError:
            continue  # the EP removes what does not fit
        except EpctxError:
            discard(target)
            return False
    return True


def _named(artifact: Artifact, name: str) -> Artifact:
    from dataclasses import replace

    return replace(artifact, path=name)


def _restore(folder: Folder, facts: Facts, base: Path, target: Path) -> None:
    def write(staging: Path) -> None:
        for name, artifact in _files(facts).items():
            path = staging / name
            make_dir(path.parent, durable=False)
            folder.copy(artifact, path)
            path.chmod(0o600)  # the EP may want to replace it
            touch(path, _SHIPPED)

    fill(base, target, write)


def offer(options: Any, used: UsedCache) -> bool:
    """Register the folder as storage of the EP's cache, where this ONNX Runtime has callbacks for it.

    Returns:
        Whether it was registered. An EP that supports them then leaves the folder's path alone.
    """
    register = getattr(options, CALLBACKS, None)
    if register is None:
        return False
    register(used.read, used.write, ENTRY_LIMIT)
    return True


def forget(used: UsedCache, why: str) -> None:
    """Put a cache out of the way with which no session can be made; the next start restores it."""
    warn_once(f"forget {used.path}", f"a session is made without the EP's cache, with which it fails: {why}")
    with suppress(OSError):
        discard(used.path)


def warn_once(about: str, text: str) -> None:
    """Log a warning about a cache: once for the process about one thing, and not about endlessly many."""
    import logging

    with _guard:
        if about in _said or len(_said) >= _WARNINGS:
            return
        _said.add(about)
    logging.getLogger("hatch_epctx").warning("%s", text)
