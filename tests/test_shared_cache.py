"""What hosts and builds that share a cache owe each other: no crossover, patience with an end, losses in words."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import store_support as support
from remote_entries import make_entry
from store_support import identity_of
from support import STUB_TARGET, epctx

from hatch_epctx.config import load_project
from hatch_epctx.errors import EpctxError, StoreError
from hatch_epctx.pipeline import Pipeline, obtaining
from hatch_epctx.remote.blobs import Blob
from hatch_epctx.remote.entry import check_record
from hatch_epctx.remote.faults import RemoteError
from hatch_epctx.statcache import StatCache
from hatch_epctx.store import Store
from hatch_epctx.wheel import write_package

if TYPE_CHECKING:
    from support import Factory, Tree

STUB_EP = Path(__file__).parent / "stub_ep"
NPU_TARGET = '[tool.epctx.targets.npu]\nep = "stub-npu"\n'


def host(folder: Path, driver: str) -> dict[str, str]:
    """The environment of a host whose NPU has this driver."""
    shutil.copytree(STUB_EP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "epctx_stub" / "driver.txt").write_text(driver)
    return {"PYTHONPATH": str(folder)}


def test_case_27_two_hosts_with_different_drivers_share_a_cache_and_no_result(factory: Factory, tmp_path: Path) -> None:
    tree = factory.project(NPU_TARGET)
    old, new = host(tmp_path / "old", "1.0"), host(tmp_path / "new", "2.0")
    seen = []
    for environ in (old, new, old, new):
        (entry,) = epctx("build", "--json", cwd=tree.root, env=environ).json["variants"]
        seen.append((entry["identity"], entry["status"]))
    assert [status for _, status in seen] == ["compiled", "compiled", "hit", "hit"]
    assert seen[0][0] == seen[2][0] != seen[1][0] == seen[3][0]


def test_case_27_an_entry_that_a_cache_gives_for_another_identity_is_refused(tmp_path: Path) -> None:
    entry = make_entry(tmp_path / "a", {"model_ctx.onnx": 10})
    listed = [(name, Blob(digest, size)) for name, _, digest, size in entry.artifacts]
    check_record(entry.record, entry.identity, listed)
    with pytest.raises(RemoteError, match="another identity"):
        check_record(entry.record, identity_of("that of the other host"), listed)


def _pipeline(tree: Tree, root: Path) -> Pipeline:
    project = load_project(tree.root, environ={}, state="wheel")
    return Pipeline(project, Store(root))


def test_a_builder_does_not_wait_for_ever(factory: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is stopped, not dead: its lock stays. Whoever waits says for whom, and gives up."""
    tree = factory.project(f"{STUB_TARGET}timeout = 0.1\n")
    pipe = _pipeline(tree, tmp_path / "cache")
    monkeypatch.setattr(obtaining, "MARGIN", 0.2)
    (planned,) = pipe.prepare()
    assert planned.identity is not None
    with support.Child("lock", pipe.store.layout.lock(planned.identity.digest)) as other, pipe.build() as built:
        (entry,) = built.entries
        assert entry.status == "failed"
        assert isinstance(entry.error, StoreError)
        assert entry.error.reason == "lock-timeout"
        assert f"process {other.said}" in str(entry.error)


def _flip(path: Path) -> None:
    """Change the last bit; size and times stay."""
    status = path.stat()
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    path.chmod(status.st_mode)


def test_no_remembered_digest_vouches_for_an_artifact(
    factory: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stat cache knows sources and libraries. Artifacts are read whenever they are used, and never asked of it."""
    tree = factory.project(STUB_TARGET)
    asked: list[Path] = []
    digest = StatCache.digest

    def spy(self: StatCache, path: Path, *arguments: object, **named: object) -> str:
        asked.append(path)
        return digest(self, path, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(StatCache, "digest", spy)
    for status in ("compiled", "hit", "compiled"):
        with _pipeline(tree, tmp_path / "cache").build() as built:
            (entry,) = built.entries
            assert entry.status == status
            write_package(built, tmp_path / f"out-{len(asked)}", version="1.0")
            assert entry.generation is not None
            if status == "hit":
                _flip(next(entry.generation.path.glob("*.bin")))
    assert asked
    assert not [path for path in asked if (tmp_path / "cache" / "v1" / "generations") in Path(path).parents]


@pytest.mark.parametrize("loss", ["generation", "file", "flipped"])
def test_case_22_a_loss_between_the_hit_and_the_wheel_is_an_error_in_words(
    factory: Factory, tmp_path: Path, loss: str
) -> None:
    """As on a network file system, where another host may collect what this one has leased."""
    tree = factory.project(STUB_TARGET)
    with _pipeline(tree, tmp_path / "cache").build() as built:
        (entry,) = built.entries
        assert entry.generation is not None
        if loss == "generation":
            shutil.rmtree(entry.generation.path)
        elif loss == "file":
            next(entry.generation.path.glob("*.onnx")).unlink()
        else:
            _flip(next(entry.generation.path.glob("*.bin")))
        with pytest.raises(EpctxError) as caught:
            write_package(built, tmp_path / "out", version="1.0")
        assert str(caught.value)
    with _pipeline(tree, tmp_path / "cache").build() as again:
        assert again.entries[0].status == "compiled"
        write_package(again, tmp_path / "out2", version="1.0")
