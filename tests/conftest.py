"""Fixtures that all tests share: a store of their own, small models, small projects, --slow."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import Factory

STUB = Path(__file__).parent / "stub_ep"

# What tells programs who runs them and how to print. Projects of the tests ask for CI, hatch and rich for the rest.
SURROUNDINGS = {
    "CI", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "LINES", "NO_COLOR", "PY_COLORS", "SOURCE_DATE_EPOCH",
    "TTY_COMPATIBLE", "TTY_INTERACTIVE",
}  # fmt: skip
SETTINGS = ("EPCTX_", "GITHUB_", "GITLAB_", "HATCH_")

# Time says nothing of a test's quality where other work runs beside it.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow tests too")


def pytest_configure() -> None:
    """A shell's background job ignores interrupts, and whatever it starts inherits that; tests send some."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    kept = [item for item in items if "slow" not in item.keywords]
    dropped = [item for item in items if "slow" in item.keywords]
    if dropped:
        # Deselected, not skipped: a run without --slow does not claim to have looked at them.
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.fixture(autouse=True)
def private_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's store or settings, nor where it runs; children see the stub EP."""
    for name in list(os.environ):
        if name in SURROUNDINGS or (name.startswith(SETTINGS) and name != "EPCTX_TEST_VENVS"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "epctx-cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
    monkeypatch.setenv("PYTHONPATH", str(STUB))


@pytest.fixture
def factory(tmp_path: Path) -> Factory:
    """Makes models and projects below the test's own folder."""
    return Factory(tmp_path)
