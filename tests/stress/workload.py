"""What the processes of a campaign do: build, read, replace, collect, pin and clear, at random, and check all they see.

The bytes of a generation are a function of its identity, so that whoever reads one knows whether it is right.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).parent.parent))

import store_support as support

from hatch_epctx import collect as collecting
from hatch_epctx.collect import Limits, Root
from hatch_epctx.digest import digest_bytes
from hatch_epctx.errors import StoreError
from hatch_epctx.files import copy_file, remove_tree
from hatch_epctx.store import Generation, Miss, Store

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MIXED", "NAMES", "Actor", "everything_is_right", "fork", "next_builds_are_right"]

NAMES: Final = tuple(f"model-{number}" for number in range(16))
IDENTITIES: Final = frozenset(support.identity_of(name) for name in NAMES)
SIZE: Final = sum(len(data) for data in support.outputs(support.identity_of(NAMES[0])).values())
_MISSES: Final = ("absent", "missing-generation", "missing-artifact")
"""What a reader may see while others collect. Anything else would be damage."""


class Actor:
    """One process's part in a campaign."""

    def __init__(self, root: Path, seed: int, *, scratch: Path | None = None) -> None:
        self.store = Store(root)
        self.random = random.Random(seed)
        self.tally: Counter[str] = Counter()
        self._scratch = scratch

    def build(self) -> None:
        """What a pipeline does; the generation is right whether it is a hit or not."""
        identity = support.identity_of(self.random.choice(NAMES))
        with support.build(self.store, identity, on_compile=lambda: self._note("compiled")) as generation:
            support.check(generation, identity)
        self._note("builds")

    def replace(self) -> None:
        """Compile anew, as after damage: the marker moves on, the old generation is superseded."""
        identity = support.identity_of(self.random.choice(NAMES))
        with self.store.lock(identity):
            support.compile_into(self.store, identity).close()
        self._note("replaced")

    def once(self) -> None:
        """A variant that is not cacheable: a generation that nobody else sees."""
        identity = support.identity_of(self.random.choice(NAMES))
        with support.compile_into(self.store, identity, select=False, salt="once") as generation:
            support.check(generation, identity, salt="once")
        self._note("once")

    def read(self) -> None:
        """Copy a generation out as a wheel does, slowly, and compare every byte with what it must be."""
        identity = support.identity_of(self.random.choice(NAMES))
        found = self.store.find(identity)
        if isinstance(found, Miss):
            assert found.reason in _MISSES, found
            self._note("misses")
            return
        with found:
            expected = {name: digest_bytes(data) for name, data in support.outputs(identity).items()}
            for artifact in found.record.artifacts:
                time.sleep(self.random.random() * 0.002)
                assert self._copied(found, artifact.path) == artifact.digest == expected[artifact.path]
            assert {path.name for path in found.path.iterdir()} == expected.keys()
        self._note("reads")

    def _copied(self, generation: Generation, name: str) -> str:
        if self._scratch is None:
            return digest_bytes((generation.path / name).read_bytes())
        copy = self._scratch / f"{self.random.getrandbits(64):x}"
        copy_file(generation.path / name, copy)
        try:
            return digest_bytes(copy.read_bytes())
        finally:
            remove_tree(copy)

    def collect(self) -> None:
        """Bring the store down to a few generations, or only clean up."""
        size = SIZE * self.random.choice((0, 3, 6, 10, 1 << 40))
        seconds = self.random.choice((None, 0.02, 2.0))
        try:
            done = collecting.collect(self.store, Limits(max_size=size), seconds=seconds)
        except StoreError as error:
            if error.reason != "lock-timeout":
                raise
            return
        assert not done.failed, done.failed
        self._note("collections")
        self.tally["collected"] += len(done.removed)

    def sweep(self) -> None:
        """What the first staging folder of each process does."""
        swept = self.store.sweep_dead(limit=64, seconds=0.25)
        self.tally["swept"] += swept.staging + swept.generations

    def clear(self) -> None:
        """Remove some, or everything."""
        some = [support.identity_of(name) for name in self.random.sample(NAMES, 3)]
        done = collecting.clear(self.store, some if self.random.random() < 0.7 else None)
        assert not done.failed, done.failed
        self._note("clears")

    def pin(self) -> None:
        """Pin what is there, see that it stays, unpin."""
        identity = support.identity_of(self.random.choice(NAMES))
        name = f"{identity} {self.random.getrandbits(32)}"
        with suppress(StoreError):  # not there, or collected just now: nothing was pinned then
            collecting.pin(self.store, Root(name=name, identity=identity))
            time.sleep(self.random.random() * 0.05)
            found = self.store.find(identity)
            assert isinstance(found, Generation), f"a pinned generation went: {found}"
            found.close()
            self._note("pins")
        collecting.unpin(self.store, name)

    def verify(self) -> None:
        """`epctx cache verify`: no damage, whatever goes on."""
        for found in collecting.check(self.store):
            assert found.miss is None or found.miss.reason in _MISSES, found
            self._note("verified")

    def facts(self) -> None:
        """Remember and recall."""
        key = str(self.random.randrange(8))
        self.store.remember("scan", key, {"value": [key] * 100})
        value = self.store.recall("scan", key)
        assert value is None or value == {"value": [key] * 100}
        self._note("facts")

    def work(self, actions: dict[Callable[[Actor], None], int], until: Callable[[], bool]) -> None:
        """Do `actions`, chosen by their weights, until it is over."""
        choices, weights = zip(*actions.items(), strict=True)
        while not until():
            self.random.choices(choices, weights)[0](self)

    def _note(self, what: str) -> None:
        self.tally[what] += 1


MIXED: Final[dict[Callable[[Actor], None], int]] = {
    Actor.build: 30,
    Actor.read: 20,
    Actor.replace: 10,
    Actor.once: 5,
    Actor.collect: 10,
    Actor.sweep: 5,
    Actor.clear: 3,
    Actor.pin: 5,
    Actor.facts: 5,
    Actor.verify: 2,
}
"""Everything, mostly builds."""


def everything_is_right(root: Path, *, alone: bool = False) -> int:
    """Check the whole store; return how many generations it holds.

    Args:
        root: of the store.
        alone: nobody else is at work: then nothing may be left over once it was collected, either.
    """
    store = Store(root)
    for found in collecting.check(store):
        if found.miss is not None:
            assert not alone, f"after everybody died: {found}"
            assert found.miss.reason in _MISSES, found
    if alone:
        for root_ in collecting.read_roots(store):
            collecting.unpin(store, root_.name)
        done = collecting.collect(store, Limits(max_size=1 << 60))
        assert not done.failed, done.failed
        assert not done.dangling, "a marker named nothing"
        left = support.left_over(store)
        items = collecting.look(store).items
        assert sorted(left.pop("generations")) == sorted(item.generation for item in items)
        assert all(item.identities for item in items)
        assert not any(left.values()), left
        for item in items:
            for identity in item.identities:
                found_ = store.find(identity)
                assert isinstance(found_, Generation)
                with found_:  # verified, every byte
                    if identity in IDENTITIES:
                        support.check(found_, identity)
    return len(collecting.look(store).items)


def fork(root: Path, seed: int) -> int:
    """Begin another process that does everything at random until it is killed; return its number."""
    pid = os.fork()
    if pid == 0:
        try:
            Actor(root, seed).work(MIXED, until=lambda: False)
        except BaseException:  # noqa: BLE001  # the parent sees the exit code, the reader the traceback
            sys.excepthook(*sys.exc_info())
        os._exit(1)
    return pid


def next_builds_are_right(root: Path, chance: random.Random) -> None:
    """Build two of the identities and check what they give."""
    store = Store(root)
    for name in chance.sample(NAMES, 2):
        with support.build(store, support.identity_of(name)) as generation:
            support.check(generation, support.identity_of(name))
            assert generation.selected
