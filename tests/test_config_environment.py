"""The EPCTX_* variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from hatch_epctx.config import VARIABLES, Environment, read_environment
from hatch_epctx.config.environment import available_cores
from hatch_epctx.errors import ConfigError


def test_nothing_set() -> None:
    environment = read_environment({"PATH": "/bin", "EPCTX_JOBS": "", "EPCTX_TARGETS": "  "})
    assert environment == Environment()
    assert environment.jobs == available_cores() >= 1
    assert (environment.cache_dir, environment.log, environment.targets) == (None, "info", ())


def test_everything_set(tmp_path: Path) -> None:
    environment = read_environment(
        {
            "EPCTX_CACHE_DIR": str(tmp_path),
            "EPCTX_JOBS": " 3 ",
            "EPCTX_TARGETS": "intel-cpu, snapdragon-*",
            "EPCTX_MODELS": "a b,,c",
            "EPCTX_PLATFORM": "win_arm64",
            "EPCTX_SKIP": "1",
            "EPCTX_OFFLINE": "true",
            "EPCTX_LOCKED": "yes",
            "EPCTX_LOG": "DEBUG",
            "EPCTX_TRACE_WORKERS": "anything",
            "EPCTX_REMOTE_HEADER_AUTHORIZATION": "Bearer x",
            "EPCTX_REMOTE_TIMEOUT": "3",
            "EPCTX_TEST": "1",
            "EPCTX_TEST_FAULT": "staged:kill",
        }
    )
    assert environment == Environment(
        cache_dir=tmp_path,
        jobs=3,
        targets=("intel-cpu", "snapdragon-*"),
        models=("a", "b", "c"),
        remote={"EPCTX_REMOTE_HEADER_AUTHORIZATION": "Bearer x", "EPCTX_REMOTE_TIMEOUT": "3"},
        platform="win_arm64",
        skip=True,
        offline=True,
        locked=True,
        log="debug",
    )


def test_the_home_folder_is_understood() -> None:
    assert read_environment({"EPCTX_CACHE_DIR": "~/epctx"}).cache_dir == Path.home() / "epctx"


@pytest.mark.parametrize("word", ["0", "false", "No", "off"])
def test_words_for_no(word: str) -> None:
    environment = read_environment({"EPCTX_SKIP": word, "EPCTX_OFFLINE": word, "EPCTX_LOCKED": word})
    assert (environment.skip, environment.offline, environment.locked) == (False, False, False)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(
            ("EPCTX_JOBS", value, f"EPCTX_JOBS: found {value!r}; expected a number from 1 to 1024")
            for value in ("abc", "0", "-1", "1.5", "1025", "٣", "1_0")
        ),
        ("EPCTX_SKIP", "maybe", "EPCTX_SKIP: found 'maybe'; expected 1 or 0"),
        ("EPCTX_OFFLINE", "2", "EPCTX_OFFLINE: found '2'; expected 1 or 0"),
        (
            "EPCTX_LOG",
            "debugg",
            "EPCTX_LOG: found 'debugg'; expected one of debug, info, warning. Did you mean 'debug'?",
        ),
        (
            "EPCTX_CACHE_DIR",
            "cache",
            (
                "EPCTX_CACHE_DIR: found 'cache'; expected an absolute path. Front ends build in folders of their own, "
                "so that a relative one would be another each time."
            ),
        ),
        ("EPCTX_MODELS", ", ,", "EPCTX_MODELS: found ', ,'; expected names or globs, by commas or spaces"),
        (
            "EPCTX_TARGET",
            "x",
            f"EPCTX_TARGET: no such variable; expected one of {', '.join(VARIABLES)}. Did you mean 'EPCTX_TARGETS'?",
        ),
    ],
)
def test_bad_values(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_environment({name: value})
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


def test_all_bad_values_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        read_environment({"EPCTX_JOBS": "x", "EPCTX_LOG": "y", "EPCTX_LOCKED": "2"})
    assert str(caught.value).splitlines()[0] == "3 errors in the configuration"


def test_every_variable_is_read() -> None:
    read = {f"EPCTX_{name.upper()}" for name in Environment.__dataclass_fields__} - {"EPCTX_REMOTE"}
    remote = {name for name in VARIABLES if name.startswith("EPCTX_REMOTE_")}
    assert read | remote | {"EPCTX_TRACE_WORKERS", "EPCTX_PREFER"} == set(VARIABLES)


def test_what_the_remote_cache_is_told() -> None:
    said = {"EPCTX_REMOTE_HEADER_AUTHORIZATION": "Bearer secret", "EPCTX_REMOTE_RETRIES": "0"}
    environment = read_environment({"EPCTX_REMOTE_CACHE": " grpc://cache.example:1 ", **said, "OTHER": "x"})
    assert environment.remote_cache == "grpc://cache.example:1"
    assert environment.remote == {"EPCTX_REMOTE_CACHE": "grpc://cache.example:1", **said}
    assert "secret" not in repr(environment)
    assert read_environment({}).remote_cache is None
    assert read_environment({"EPCTX_REMOTE_CACHE": "off"}).remote_cache == ""
