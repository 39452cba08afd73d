"""Every message of a wrong table: place, finding, expectation, remedy."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from hatch_epctx.config import ConfigErrors, load_settings
from hatch_epctx.config.models import Cache
from hatch_epctx.config.project import tomllib
from hatch_epctx.config.session_options import REFUSED
from hatch_epctx.errors import ConfigError

GOLDEN = Path(__file__).parent / "golden" / "config-messages.toml"
CASES = tomllib.loads(GOLDEN.read_text(encoding="utf-8"))["case"]
TARGET = '[targets.t]\nep = "openvino"\n'


def message(text: str, **more: Any) -> str:
    table = {"package": "acme", **tomllib.loads(text)}
    with pytest.raises(ConfigError) as caught:
        load_settings(table, environ={}, state="wheel", **more)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("case", CASES, ids=[f"{n}: {case['message'][:60]}" for n, case in enumerate(CASES)])
def test_message(case: dict[str, str]) -> None:
    assert message(case["toml"]) == case["message"]


@pytest.mark.parametrize(("key", "reason"), REFUSED.items())
def test_refused_session_options(key: str, reason: str) -> None:
    place = f'tool.epctx.targets.t.session-options."{key}"'
    found = f"the session option {key!r} cannot be set: {reason}. Remove it."
    assert message(f"{TARGET}session-options = {{ '{key}' = '1' }}") == f"{place}: {found}"


@pytest.mark.parametrize(
    ("text", "size"),
    [("0B", 0), ("95MiB", 95 << 20), ("20 GiB", 20 << 30), ("1.5KB", 1500), ("1KiB", 1024), ("2TB", 2 * 10**12)],
)
def test_sizes(text: str, size: int) -> None:
    assert Cache.model_validate({"max-size": text}).max_size == size


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300), ("2h", 7200), ("90d", 90 * 86400), ("1w", 604800)])
def test_ages(text: str, seconds: int) -> None:
    assert Cache.model_validate({"max-age": text}).max_age == seconds


@pytest.mark.parametrize("value", ["20 gigs", "20", "-1GiB", "1e3MB", 20, True, ""])
def test_bad_sizes(value: object) -> None:
    with pytest.raises(ValueError, match=f"{value!r} is not a size"):
        Cache.model_validate({"max-size": value})


@pytest.mark.parametrize("value", ["90", "90days", "1.5d", 90, ""])
def test_bad_ages(value: object) -> None:
    with pytest.raises(ValueError, match=f"{value!r} is not an age"):
        Cache.model_validate({"max-age": value})


def test_missing_package_says_what_to_write() -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings({}, environ={}, state="wheel")
    assert str(caught.value) == (
        "tool.epctx.package: missing; expected the import name of the package that gets the _epctx folder"
    )


def test_all_errors_are_told_at_once_one_a_line() -> None:
    text = message("[models.m]\nsorce = 'm.onnx'\n[targets.t]\nep = 1\ntimeout = -1\n")
    lines = text.splitlines()
    assert lines[0] == "4 errors in the configuration"
    assert [line.split(": ")[0] for line in lines[1:]] == [
        "tool.epctx.models.m.source",
        "tool.epctx.models.m",
        "tool.epctx.targets.t.ep",
        "tool.epctx.targets.t.timeout",
    ]


def test_environment_and_table_errors_are_told_together() -> None:
    with pytest.raises(ConfigErrors) as caught:
        load_settings({"package": 1}, environ={"EPCTX_JOBS": "many"}, state="wheel")
    assert [error.where for error in caught.value.errors] == ["EPCTX_JOBS", "tool.epctx.package"]


def test_several_errors_survive_a_process_pool() -> None:
    error = ConfigErrors([ConfigError("a", where="x"), ConfigError("b", where="y")])
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301  # made here
    assert str(copy) == str(error) == "2 errors in the configuration\nx: a\ny: b"
    assert [one.where for one in copy.errors] == ["x", "y"]


def test_long_values_are_cut() -> None:
    assert len(message(f"[models.m]\nsource = ['{'x' * 500}']")) < 200
