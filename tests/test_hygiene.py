"""Process hygiene: memory limits, secrets and paths cut from what is shown, folders of failed compiles kept."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import Factory, epctx, small_model
from worker_support import OPENVINO, put, stub
from worker_support import run as run_job

from hatch_epctx.compile.outcomes import result_of
from hatch_epctx.errors import CompileError
from hatch_epctx.process import can_measure, run_worker
from hatch_epctx.process.memory import memory_in_use
from hatch_epctx.redact import CUT, looks_secret, redact, secrets_of

linux = pytest.mark.skipif(sys.platform != "linux", reason="memory of other processes is told on Linux")


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "SECRET",
        "MY_PASSWORD",
        "passwd",
        "API_KEY",
        "APIKEY",
        "AWS_ACCESS_KEY_ID",
        "KEY",
        "GIT_AUTH",
        "MYSQL_PWD",
    ],
)
def test_names_that_tell_of_a_secret(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name", ["PATH", "KEYBOARD", "AUTHOR", "ONEDNN_MAX_CPU_ISA", "CPWD_DIR", "HOME", "PWD", "OLDPWD"]
)
def test_names_that_do_not(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cloning https://joe:s3cr3t@host/x", f"cloning https://{CUT}@host/x"),
        (
            "cloning https://s3cr3t@host/x and https://s3cr3t:@host",
            f"cloning https://{CUT}@host/x and https://{CUT}@host",
        ),
        ("Authorization: Bearer abc.def", f"Authorization: {CUT}"),
        ("uses bearer 0123456789", f"uses bearer {CUT}"),
        ("password=hunter2, user=joe", f"password={CUT}, user=joe"),
        ('{"api_key": "abc123", "n": 1}', f'{{"api_key": "{CUT}", "n": 1}}'),
        ("ghp_0123456789abcdefghij0123456789 found", f"{CUT} found"),
        ("key AKIAIOSFODNN7EXAMPLE!", f"key {CUT}!"),
        ("jwt eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM", f"jwt {CUT}"),
        (
            "-----BEGIN PRIVATE KEY-----\nMIIE\nzzz\n-----END PRIVATE KEY-----\nend",
            f"-----BEGIN PRIVATE KEY----- {CUT}\nend",
        ),
    ],
)
def test_known_forms_are_cut(text: str, shown: str) -> None:
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "input token_type_ids: [1, 128]",
        "tokens=512, next token: 7",
        "node /encoder/layer.0/attention/self/key/MatMul: Key=3",
        "https://example.org/a?b=c",
        "https://example.org/@scope and https://example.org?mail=a@b",
        "sk-learn is no key",
    ],
)
def test_what_models_say_is_left_alone(text: str) -> None:
    assert redact(text) == text


@given(
    st.text(min_size=8, max_size=40).filter(lambda text: text.strip() == text and CUT not in text and "[" not in text)
)
def test_a_declared_value_never_survives(value: str) -> None:
    secrets = secrets_of({"MY_TOKEN": value, "PLAIN": "plain"})
    assert value in secrets
    assert value not in redact(f"before {value} after {value}", secrets)


def test_short_values_are_not_cut() -> None:
    assert secrets_of({"TOKEN": "1", "SECRET": "on"}) == ()


def program(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "program.py"
    path.write_text(body, encoding="utf-8")
    return path


def run_program(tmp_path: Path, body: str, **options: Any) -> Any:
    folder = tmp_path / "job"
    folder.mkdir()
    options = {"timeout": 60.0, "env": {}, **options}
    return run_worker({"task": "scan"}, folder, program=program(tmp_path, body), **options)


def test_the_tail_shows_no_secret_and_no_folder_of_this_machine(tmp_path: Path) -> None:
    body = (
        "import os, sys\n"
        "print('token is', os.environ['MY_TOKEN'])\n"
        "print('cut in half \\x1b[31m' + os.environ['MY_TOKEN'][:5] + '\\x1b[0m' + os.environ['MY_TOKEN'][5:])\n"
        "print('from', sys.prefix + '/lib/x.so', 'and', os.getcwd() + '/model.onnx')\n"
        "print('x' * 390 + os.environ['MY_TOKEN'])\n"
        "sys.stdout.flush(); os._exit(3)\n"
    )
    tail = run_program(tmp_path, body, env={"MY_TOKEN": "abcdefghijkl"}).log_tail
    assert "token is [cut]" in tail
    assert "abcde" not in tail
    assert str(tmp_path) not in tail
    assert f"{sys.prefix}/" not in tail
    assert "from lib/x.so and model.onnx" in tail


def test_an_error_that_the_worker_reports_shows_no_secret(tmp_path: Path) -> None:
    body = (
        "import json, os\n"
        "error = 'no access with ' + os.environ['MY_TOKEN']\n"
        "result = {'format': 1, 'ok': False, 'reason': 'ep-error', 'error': error}\n"
        "open('result.json', 'w').write(json.dumps(result)); os._exit(0)\n"
    )
    outcome = run_program(tmp_path, body, env={"MY_TOKEN": "abcdefghijkl"})
    assert outcome.result["error"] == "no access with [cut]"


def test_a_secret_stands_in_no_document(factory: Factory) -> None:
    target = '[tool.epctx.targets.stub]\nep = "stub"\nenv = { MY_TOKEN = "abcdefghijkl", LEVEL = "3" }\n'
    tree = factory.project(target)
    epctx("build", "--out", tree.root / "out", cwd=tree.root)
    epctx("lock", cwd=tree.root)
    shown = epctx("explain", "detector.stub", "--json", cwd=tree.root)
    document = shown.json["document"]
    assert document["target"]["env"]["LEVEL"] == "3"
    assert document["target"]["env"]["MY_TOKEN"].startswith("sha256:")
    store = Path(os.environ["EPCTX_CACHE_DIR"])
    kept = [
        *store.rglob("*.json"),
        *store.rglob("facts/**/*"),
        *(tree.root / "out").iterdir(),
        tree.root / "epctx.lock",
    ]
    assert not [path for path in kept if path.is_file() and b"abcdefghijkl" in path.read_bytes()]
    tree.write(
        tree.root.joinpath("pyproject.toml")
        .read_text()
        .split("[tool.epctx]\n")[1]
        .replace("jkl", "xyz")
        .removeprefix('package = "acme_vision"\n')
    )
    assert epctx("plan", cwd=tree.root).out.count("miss") == 1


@linux
class TestMemory:
    def test_a_worker_that_uses_too_much_is_killed(self, tmp_path: Path) -> None:
        body = "import time\nheld = []\nwhile True:\n    held.append(bytearray(1 << 20)); time.sleep(0.001)\n"
        start = time.monotonic()
        outcome = run_program(tmp_path, body, memory=100 << 20)
        assert outcome.cause == "memory-limit"
        assert outcome.result is None
        assert outcome.death.startswith("used more than its memory limit of 100 MiB and was killed after")
        assert time.monotonic() - start < 30

    def test_descendants_count(self, tmp_path: Path) -> None:
        body = (
            "import subprocess, sys, time\n"
            "code = 'import time; held = bytearray(150 << 20); time.sleep(60)'\n"
            "subprocess.Popen([sys.executable, '-c', code]); time.sleep(60)\n"
        )
        assert run_program(tmp_path, body, memory=100 << 20).cause == "memory-limit"

    def test_mapped_files_and_address_space_do_not_count(self, tmp_path: Path) -> None:
        big = tmp_path / "big"
        with big.open("wb") as stream:
            stream.truncate(400 << 20)
        body = (
            "import json, mmap, os\n"
            f"file = open({str(big)!r}, 'rb')\n"
            "mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
            "sum(mapped[i] for i in range(0, len(mapped), 4096))\n"
            "reserved = mmap.mmap(-1, 2 << 30)\n"
            "import time; time.sleep(0.3)\n"
            "os._exit(3)\n"
        )
        assert run_program(tmp_path, body, memory=100 << 20).cause == "exit"

    def test_one_that_is_gone_uses_nothing(self) -> None:
        assert can_measure()
        assert memory_in_use(os.getpid()) > 1 << 20
        assert memory_in_use(2**22 + 1) == 0

    @pytest.mark.ep_openvino
    def test_a_real_compile_is_killed_and_says_what_to_do(self, factory: Factory) -> None:
        target = '[tool.epctx.targets.cpu]\nep = "openvino"\nmemory-limit = "20MiB"\n'
        run = epctx("build", cwd=factory.project(target).root, check=False)
        assert run.code == 5
        assert "the compile failed: the worker used more than its memory limit of 20 MiB and was killed" in run.err
        assert "Raise 'memory-limit' of tool.epctx.targets.cpu, or leave the model out of it." in run.err

    @pytest.mark.ep_openvino
    def test_enough_memory_is_enough(self, tmp_path: Path) -> None:
        folder = put(small_model(), tmp_path / "job")
        outcome = run_worker(
            {"task": "compile", "optimization": "basic", **OPENVINO}, folder, timeout=120, env={}, memory=1 << 30
        )
        assert outcome.result is not None
        assert outcome.result["ok"]


def test_the_memory_limit_is_no_part_of_the_identity(factory: Factory) -> None:
    target = '[tool.epctx.targets.stub]\nep = "stub"\n'
    tree = factory.project(target)
    first = epctx("plan", "--json", cwd=tree.root).json["variants"][0]["identity"]
    limited = factory.project(f'{target}memory-limit = "1GiB"\n', name="limited")
    assert epctx("plan", "--json", cwd=limited.root).json["variants"][0]["identity"] == first


@pytest.mark.parametrize("mode", ["fail", "crash-after", "load-fail"])
def test_the_folder_of_a_failed_compile_is_kept_when_asked(factory: Factory, tmp_path: Path, mode: str) -> None:
    target = f'[tool.epctx.targets.stub]\nep = "stub"\nprovider-options = {{ mode = "{mode}" }}\n'
    tree = factory.project(target)
    run = epctx("build", cwd=tree.root, env={"EPCTX_KEEP_STAGING": "1"}, check=False)
    assert run.code == 5
    (line,) = [line for line in run.err.splitlines() if "kept to look inside: " in line]
    kept = Path(line.partition(": ")[2])
    assert (kept / "job.json").is_file()
    assert (kept / "worker.log").is_file()
    assert kept.stat().st_mode & 0o077 == 0
    again = epctx("build", cwd=tree.root, check=False)
    assert "kept to look inside" not in again.err
    assert kept.is_dir(), "a later build leaves it alone"
    store = Path(os.environ["EPCTX_CACHE_DIR"]) / "v1"
    assert not list((store / "staging").iterdir())
    assert not list((store / "generations").iterdir())


def test_what_succeeded_is_not_kept(factory: Factory) -> None:
    tree = factory.project('[tool.epctx.targets.stub]\nep = "stub"\n')
    epctx("build", cwd=tree.root, env={"EPCTX_KEEP_STAGING": "1"})
    assert not (Path(os.environ["EPCTX_CACHE_DIR"]) / "kept").exists()


def test_a_crash_in_one_target_loses_no_other(factory: Factory) -> None:
    """Faults of every kind beside targets that work: these finish, and nothing of the failed ones is published."""
    modes = {"crash": "crash-before", "kill": "kill", "hang": "hang", "old": "old-output", "fine": "ok", "slow": "slow"}
    table = "".join(
        f'[tool.epctx.targets.{name}]\nep = "stub"\nprovider-options = {{ mode = "{mode}" }}\n'
        + ("timeout = 3\n" if mode == "hang" else "")
        for name, mode in modes.items()
    )
    tree = factory.project(table)
    run = epctx("build", "--json", cwd=tree.root, check=False)
    assert run.code == 5
    status = {item["target"]: (item["status"], item.get("error", {}).get("reason")) for item in run.json["variants"]}
    assert status == {
        "crash": ("failed", "exit"),
        "kill": ("failed", "signal"),
        "hang": ("failed", "timeout"),
        "old": ("failed", "invalid-output"),
        "fine": ("compiled", None),
        "slow": ("compiled", None),
    }
    assert len(list((Path(os.environ["EPCTX_CACHE_DIR"]) / "v1" / "generations").iterdir())) == 2


def test_a_killed_workers_message_names_the_cause(tmp_path: Path) -> None:
    outcome = run_job(stub("kill"), put(small_model(), tmp_path / "job"))
    with pytest.raises(CompileError) as caught:
        result_of(outcome, place="m.t", what="the compile", fallback=CompileError, hint="tool.epctx.targets.t")
    assert "was killed by SIGKILL (often the system, out of memory)" in str(caught.value)
