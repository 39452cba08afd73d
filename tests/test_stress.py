"""Bounded runs of the campaigns in tests/stress, and proof that they can fail."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from stress import kills, load, scale

from hatch_epctx.collect import removing
from hatch_epctx.store import Store

STRESS = Path(__file__).parent / "stress"


@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_random_kills_lose_and_mix_nothing(tmp_path: Path, count: int) -> None:
    commands = count // 12
    tally = kills.campaign(tmp_path / "cache", count, seed=1, commands=commands)
    assert tally["kills"] == count
    assert tally["commands killed"] + tally["commands that were faster"] == commands
    assert tally["generations checked"] > count / 4


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_mixed_load_of_eight_processes_sees_no_wrong_read(tmp_path: Path, seconds: int) -> None:
    tally = load.campaign(tmp_path / "cache", seconds, seed=1)
    assert tally["reads"] > 5
    assert tally["builds"] > 5
    assert tally["collections"] > 0


@pytest.mark.slow
def test_without_leases_the_mixed_load_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A campaign that cannot fail proves nothing: here a collector does not look at leases."""
    monkeypatch.setattr(removing, "unleased", lambda *_: nullcontext(()))
    monkeypatch.setattr(removing, "is_leased", lambda *_: False)
    with pytest.raises(AssertionError, match="failed: "):
        load.campaign(tmp_path / "cache", 20, seed=1)


def _mounts() -> bool:
    script = "mount -t tmpfs none /mnt && truncate -s 1M /mnt/disk && mkfs.ext4 -q /mnt/disk && mkdir /mnt/on"
    probe = ["unshare", "-m", "sh", "-c", f"{script} && mount -o loop /mnt/disk /mnt/on && umount /mnt/on"]
    try:
        return sys.platform == "linux" and subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


needs_mounts = pytest.mark.skipif(not _mounts(), reason="needs root, loop devices and mkfs.ext4")


def _cut(cuts: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(STRESS / "powercut.py"), "--cuts", str(cuts), "--seed", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@needs_mounts
@pytest.mark.parametrize("cuts", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_after_a_power_cut_every_marker_selects_a_whole_generation(cuts: int) -> None:
    done = _cut(cuts)
    assert done.returncode == 0, done.stderr
    assert f"power cuts: {cuts}\n" in done.stdout


@needs_mounts
def test_without_flushing_a_power_cut_would_be_seen() -> None:
    done = _cut(40, "--careless")
    assert done.returncode == 1
    assert "after a power cut: " in done.stderr


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.slow)])
def test_a_hit_is_constant_and_a_survey_linear(tmp_path: Path, count: int) -> None:
    small, large = (scale.measure(tmp_path / str(size), size) for size in (count // 10, count))
    assert small["files opened by a hit"] == large["files opened by a hit"] < 20
    for what in ("survey, s", "check, s"):
        assert large[what] < 40 * small[what] + 0.5, what
    assert large["after a build, over the limit, s"] < 10
    assert Store(tmp_path / str(count)).find(scale.support.identity_of("m0")) is not None


def test_a_plan_over_many_variants_finds_them_all(tmp_path: Path) -> None:
    assert scale.variants(tmp_path / "project", 2, 5)["variants"] == 10
