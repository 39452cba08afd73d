"""The toolchain: closures of the installed EPs, devices, instruction set and cores."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import rfc8785
from support import REPOSITORY, save, small_model

from hatch_epctx.digest import digest_file
from hatch_epctx.errors import ToolchainError
from hatch_epctx.providers import Provider, find_provider
from hatch_epctx.toolchain import Toolchain, closure_digest, closure_files, discover, machine, machine_key
from hatch_epctx.toolchain.discovery import ONNXRUNTIME

if TYPE_CHECKING:
    from collections.abc import Callable

OPENVINO = find_provider("openvino")
QNN = find_provider("qnn")
WHERE = "tool.epctx.targets.laptop"
TWO_CPUS = pytest.mark.skipif(
    len(machine.visible_cpus()) < 2 or not hasattr(os, "sched_setaffinity"),
    reason="needs two CPUs and an affinity mask",
)


@cache
def _digest(real: str, size: int, modified: int) -> str:
    return digest_file(Path(real))


def digest(path: Path) -> str:
    """A digest that hashes each file once per run, as the stat cache does."""
    stat = path.stat()
    return _digest(os.path.realpath(path), stat.st_size, stat.st_mtime_ns)


def openvino_devices(_: str = "") -> list[Any]:
    """What a probe gives for OpenVINO on a CPU."""
    metadata = {"FULL_DEVICE_NAME": "A CPU", "version": "1.8.1"}
    return [
        {"ep": "CPUExecutionProvider", "type": "cpu", "vendor": "V", "vendor_id": 1, "device_id": 0, "metadata": {}},
        {"ep": OPENVINO.names[0], "type": "cpu", "vendor": "V", "vendor_id": 1, "device_id": 2, "metadata": metadata},
    ]


def no_probe(_: str) -> list[Any]:
    raise AssertionError("probed")


def find(provider: Provider, device: str | None = None, **more: Any) -> Toolchain:
    more.setdefault("probe", openvino_devices)
    return discover(provider, device or provider.devices[0], digest=digest, where=WHERE, **more)


class Site:
    """A folder on the import path that holds the OpenVINO EP as links to the installed files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / OPENVINO.module
        installed = distribution(OPENVINO.distributions[0])
        root = Path(str(installed.locate_file("")))
        for path in (root / OPENVINO.module).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                copy = folder / path.relative_to(root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.symlink_to(path)
        (info,) = root.glob("onnxruntime_ep_openvino-*.dist-info")
        shutil.copytree(info, folder / info.name)
        self.info = folder / info.name

    @property
    def distribution(self) -> Distribution:
        return Distribution.at(self.info)

    def real(self, name: str) -> Path:
        """Put a copy in place of a link, so that the test may change it."""
        path = self.package / name
        source = path.resolve()
        path.unlink()
        shutil.copyfile(source, path)
        return path

    def digest(self) -> str:
        return closure_digest(closure_files(self.distribution), digest)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def flip(path: Path, offset: int = 4096) -> None:
    """Change one byte."""
    with path.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte[0] ^ 1]))


# ---- closures


def test_the_closure_holds_every_library_of_the_installed_eps() -> None:
    names = [name for name, _ in closure_files(distribution("onnxruntime-ep-openvino"))]
    assert "onnxruntime_ep_openvino/libopenvino_intel_cpu_plugin.so" in names
    assert any("tbb" in name for name in names)
    qnn = [name for name, _ in closure_files(distribution("onnxruntime-qnn"), "onnxruntime_qnn")]
    assert {"onnxruntime_qnn/libQnnHtp.so", "onnxruntime_qnn/libHtpPrepare.so"} <= set(qnn)
    assert any(name.startswith("onnxruntime_qnn.libs/") for name in qnn)
    runtime = [name for name, _ in closure_files(distribution(ONNXRUNTIME))]
    assert any(name.startswith("onnxruntime/capi/libonnxruntime") for name in runtime)
    for name in (*names, *qnn, *runtime):
        assert not name.endswith((".py", ".pyc"))
        assert "__pycache__" not in name
        assert not name.startswith(("/", ".."))
    assert names == sorted(names)


def test_a_linked_tree_elsewhere_has_the_digest_of_the_installed_one(site: Site) -> None:
    installed = closure_files(distribution(OPENVINO.distributions[0]))
    assert site.digest() == closure_digest(installed, digest)


def test_times_do_not_count(site: Site) -> None:
    path = site.real("libtbb.so.12")
    before = site.digest()
    os.utime(path, (1, 1))
    assert site.digest() == before


@pytest.mark.parametrize("name", ["libtbb.so.12", "libhwloc.so.15", "libopenvino_hetero_plugin.so"])
def test_one_byte_of_a_library_beside_the_plugin_counts(site: Site, name: str) -> None:
    path = site.real(name)
    before = site.digest()
    time = path.stat()
    flip(path)
    os.utime(path, ns=(time.st_atime_ns, time.st_mtime_ns + 1))
    assert site.digest() != before
    flip(path)
    os.utime(path, ns=(time.st_atime_ns, time.st_mtime_ns + 2))
    assert site.digest() == before


def test_a_file_that_no_record_lists_counts(site: Site) -> None:
    before = site.digest()
    (site.package / "libextra.so").write_bytes(b"\x7fELF")
    added = site.digest()
    assert added != before
    (site.package / "libextra.so").rename(site.package / "libother.so")
    assert site.digest() not in (added, before)
    (site.package / "libother.so").unlink()
    assert site.digest() == before
    (site.package / "deep/er").mkdir(parents=True)
    (site.package / "deep/er/data").write_bytes(b"")
    assert site.digest() != before


def test_a_folder_of_bundled_libraries_counts(site: Site) -> None:
    before = site.digest()
    libs = site.folder / "onnxruntime_ep_openvino.libs"
    libs.mkdir()
    (libs / "libbundled.so").write_bytes(b"\x7fELF")
    assert site.digest() != before


def test_python_code_does_not_count(site: Site) -> None:
    before = site.digest()
    (site.package / "further.py").write_text("", encoding="utf-8")
    (site.package / "__pycache__").mkdir()
    (site.package / "__pycache__/x.cpython-311.pyc.139").write_bytes(b"half written")
    (site.package / "old.pyc").write_bytes(b"")
    assert site.digest() == before


def test_links_in_a_circle_end(site: Site) -> None:
    (site.package / "again").symlink_to(site.package, target_is_directory=True)
    (site.package / "nowhere.so").symlink_to(site.package / "missing")
    assert site.digest()


def test_a_linked_folder_counts_by_its_content(site: Site, tmp_path: Path) -> None:
    before = site.digest()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "lib.so").write_bytes(b"1")
    (site.package / "plugins").symlink_to(outside, target_is_directory=True)
    linked = site.digest()
    assert linked != before
    (outside / "lib.so").write_bytes(b"22")
    assert site.digest() != linked


def test_a_library_that_goes_away_is_an_error(site: Site) -> None:
    files = closure_files(site.distribution)
    (site.package / "libtbb.so.12").unlink()
    with pytest.raises(ToolchainError, match="a library cannot be read") as caught:
        closure_digest(files, digest)
    assert caught.value.reason == "unreadable-library"
    assert caught.value.remedy


def test_a_distribution_without_a_record_counts_by_its_top_level(site: Site) -> None:
    before = site.digest()
    (site.info / "RECORD").unlink()
    assert site.digest() == before


# ---- discovery


def test_qnn_needs_no_probe_and_bakes_nothing_in() -> None:
    toolchain = find(QNN, probe=no_probe)
    assert toolchain.ep is not None
    assert (toolchain.ep.distribution, toolchain.ep.version) == (
        "onnxruntime-qnn",
        distribution("onnxruntime-qnn").version,
    )
    assert (toolchain.device, toolchain.isa, toolchain.cores, toolchain.topology) == ({}, (), None, {})
    assert toolchain.uncertain == ()
    package = Path(str(distribution("onnxruntime-qnn").locate_file("onnxruntime_qnn/build_and_package_info.py")))
    assert f"qnn_version = '{toolchain.sdk['qnn']}'" in package.read_text(encoding="utf-8")


def test_openvino_on_a_cpu_names_device_instruction_set_and_cores() -> None:
    asked: list[str] = []

    def probe(components: str) -> list[Any]:
        asked.append(components)
        return openvino_devices()

    toolchain = find(OPENVINO, probe=probe)
    assert toolchain.device == {
        "device-id": 2,
        "metadata": {"FULL_DEVICE_NAME": "A CPU", "version": "1.8.1"},
        "type": "cpu",
        "vendor": "V",
        "vendor-id": 1,
    }
    assert toolchain.cores == len(machine.visible_cpus())
    assert toolchain.sdk["openvino"].startswith("20")
    assert len(asked) == 1
    assert len(asked[0]) == 64
    if sys.platform == "linux":
        assert toolchain.uncertain == ()
        assert toolchain.topology["physical-cores"] <= toolchain.cores
        assert toolchain.isa == tuple(sorted(toolchain.isa))
        assert toolchain.isa


def test_the_cpu_ep_of_source_models_needs_onnxruntime_alone() -> None:
    toolchain = find(find_provider("cpu"), probe=no_probe)
    assert toolchain.ep is None
    assert (toolchain.device, toolchain.isa, toolchain.cores, toolchain.uncertain) == ({}, (), None, ())


@pytest.mark.parametrize("provider", [OPENVINO, QNN], ids=lambda provider: provider.key)
def test_the_document_is_plain_json_without_paths(provider: Provider) -> None:
    document = find(provider).document()
    assert json.loads(rfc8785.dumps(document)) == document
    text = json.dumps(document)
    for path in (sys.prefix, str(Path.home()), str(REPOSITORY), "site-packages", os.uname().nodename + "."):
        assert path not in text
    assert set(document) == {
        "architecture", "cores", "device", "ep", "isa", "onnx", "onnxruntime", "os", "sdk", "topology",
    }  # fmt: skip
    assert set(document["ep"]) == {"digest", "distribution", "version"}


def test_two_discoveries_agree_and_the_second_hashes_nothing_new() -> None:
    first = find(OPENVINO)
    hashed = _digest.cache_info().misses
    assert find(OPENVINO) == first
    assert _digest.cache_info().misses == hashed


def test_a_changed_library_changes_the_toolchain(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    before = find(OPENVINO)
    monkeypatch.syspath_prepend(str(site.folder))
    assert find(OPENVINO).document() == before.document()
    flip(site.real("libtbbmalloc.so.2"))
    after = find(OPENVINO)
    assert after.ep is not None
    assert before.ep is not None
    assert after.ep.digest != before.ep.digest
    assert after.onnxruntime == before.onnxruntime


def test_a_module_from_outside_its_distribution_is_uncertain_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = find(QNN)
    shadow = tmp_path / "shadow" / QNN.module
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("", encoding="utf-8")
    (shadow / "libonnxruntime_providers_qnn.so").write_bytes(b"another plugin")
    monkeypatch.syspath_prepend(str(shadow.parent))
    toolchain = find(QNN)
    assert toolchain.uncertain == (
        "the module onnxruntime_qnn is imported from outside its distribution onnxruntime-qnn",
    )
    assert toolchain.ep is not None
    assert before.ep is not None
    assert toolchain.ep.digest != before.ep.digest


def test_two_builds_of_onnxruntime_are_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "site/onnxruntime_gpu-1.30.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.30.0\n", encoding="utf-8")
    (info / "RECORD").write_text("onnxruntime/__init__.py,,\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(info.parent))
    toolchain = find(QNN)
    assert toolchain.onnxruntime.distribution == "onnxruntime+onnxruntime-gpu"
    assert toolchain.onnxruntime.version.endswith("+1.30.0")


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        (
            replace(OPENVINO, distributions=("onnxruntime-ep-absent",)),
            (
                "the distribution onnxruntime-ep-absent, which brings Intel OpenVINO, is not installed. Install it with"
                ' pip install "hatch-epctx[openvino]", and name it in [build-system] requires for isolated builds.'
            ),
        ),
        (
            replace(OPENVINO, module="no_such_module"),
            (
                "has no module no_such_module, which Intel OpenVINO needs. Install another version, as with pip install"
                " --upgrade onnxruntime-ep-openvino."
            ),
        ),
        (find_provider("tensorrt"), 'Install it with pip install "onnxruntime-gpu"'),
    ],
    ids=["distribution", "module", "built-in"],
)
def test_a_missing_ep_says_what_to_install(provider: Provider, message: str) -> None:
    with pytest.raises(ToolchainError) as caught:
        find(provider)
    assert str(caught.value).startswith(f"{WHERE}.ep: ")
    assert message in str(caught.value)
    assert (caught.value.reason, caught.value.exit_code) == ("missing-ep", 4)


def test_the_first_installed_distribution_brings_the_ep() -> None:
    provider = replace(QNN, distributions=("onnxruntime-ep-absent", *QNN.distributions))
    assert find(provider).ep == find(QNN).ep


def test_an_ep_of_no_distribution_counts_by_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site/acme_plugin"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    monkeypatch.syspath_prepend(str(package.parent))
    provider = Provider(key="acme", names=("AcmeExecutionProvider",), title="Acme", module="acme_plugin")
    assert find(provider).uncertain == ("acme_plugin has no library that could be named",)
    (package / "libacme.so").write_bytes(b"\x7fELF")
    toolchain = find(provider)
    assert toolchain.uncertain == ()
    assert toolchain.ep is not None
    assert (toolchain.ep.distribution, toolchain.ep.version) == ("acme_plugin", "")


# ---- requirements


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        (
            "onnxruntime-qnn>=99",
            (
                f"onnxruntime-qnn {distribution('onnxruntime-qnn').version} is installed; expected onnxruntime-qnn>=99."
                ' Install it with pip install "onnxruntime-qnn>=99"'
            ),
        ),
        ("no-such-distribution", "no-such-distribution is not installed; expected no-such-distribution. "),
        ("not a requirement", "'not a requirement' is not a requirement"),
    ],
)
def test_an_unmet_requirement_says_what_to_install(requirement: str, message: str) -> None:
    with pytest.raises(ToolchainError) as caught:
        find(QNN, requires=["onnxruntime>=1", requirement])
    assert str(caught.value).startswith(f"{WHERE}.requires: {message}")


@pytest.mark.parametrize(
    "requirement", ["onnxruntime", "onnxruntime>1,<99", 'absent; sys_platform == "nowhere"', "ONNX"]
)
def test_a_met_requirement_passes(requirement: str) -> None:
    assert find(QNN, requires=[requirement]) == find(QNN)


# ---- devices


def test_a_device_that_the_ep_does_not_show_is_named() -> None:
    with pytest.raises(ToolchainError) as caught:
        find(OPENVINO, "npu")
    assert str(caught.value) == (
        f"{WHERE}.device: Intel OpenVINO shows no device 'npu' on this machine; expected one of cpu. See 'epctx doctor'"
        " for what it shows; a driver may be missing."
    )
    assert caught.value.reason == "no-device"
    with pytest.raises(ToolchainError, match="shows no device 'cpu'"):
        find(OPENVINO, probe=lambda _: [])


def gpu(metadata: dict[str, str]) -> Callable[[str], list[Any]]:
    device = {
        "ep": OPENVINO.names[0],
        "type": "gpu",
        "vendor": "V",
        "vendor_id": 1,
        "device_id": 7,
        "metadata": metadata,
    }
    return lambda _: [*openvino_devices(), device]


def test_a_driver_that_is_not_reported_makes_results_uncertain() -> None:
    unnamed = find(OPENVINO, "gpu", probe=gpu({}))
    assert unnamed.uncertain == ("the driver of device gpu, which Intel OpenVINO does not report",)
    assert (unnamed.isa, unnamed.cores) == ((), None)
    named = find(OPENVINO, "gpu", probe=gpu({"GPU_DRIVER_VERSION": "31.0"}))
    assert named.uncertain == ()
    assert named.document() != find(OPENVINO, "gpu", probe=gpu({"GPU_DRIVER_VERSION": "32.0"})).document()


def test_a_device_that_nobody_asked_is_uncertain() -> None:
    assert find(OPENVINO, probe=None).uncertain == ("the device cpu of Intel OpenVINO was not asked",)


def test_an_ep_that_does_not_run_here_is_uncertain() -> None:
    foreign = replace(OPENVINO, run_here=False)
    assert "drivers and libraries that Intel OpenVINO takes from the system" in find(foreign).uncertain


def test_uncertainty_is_no_part_of_the_document() -> None:
    assert find(OPENVINO, "gpu", probe=gpu({})).document().keys() == find(OPENVINO).document().keys()


# ---- the machine


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, cpus: list[dict[str, str]], flags: list[str]) -> None:
    """Kernel files of a machine with these CPUs: siblings and package of each, flags of each."""
    for number, cpu in enumerate(cpus):
        topology = folder / f"sys/system/cpu/cpu{number}/topology"
        topology.mkdir(parents=True)
        (topology / "core_cpus_list").write_text(cpu["siblings"] + "\n", encoding="utf-8")
        (topology / "physical_package_id").write_text(cpu.get("package", "0") + "\n", encoding="utf-8")
    for node in {cpu.get("node", "0") for cpu in cpus}:
        members = [str(number) for number, cpu in enumerate(cpus) if cpu.get("node", "0") == node]
        (folder / f"sys/system/node/node{node}").mkdir(parents=True)
        (folder / f"sys/system/node/node{node}/cpulist").write_text(",".join(members), encoding="utf-8")
    blocks = [f"processor\t: {number}\nmodel name\t: A CPU\nflags\t\t: {text}\n" for number, text in enumerate(flags)]
    (folder / "proc").mkdir()
    (folder / "proc/cpuinfo").write_text("\n".join(blocks), encoding="utf-8")
    monkeypatch.setattr(machine, "SYS", folder / "sys/system")
    monkeypatch.setattr(machine, "PROC", folder / "proc")
    monkeypatch.setattr(machine, "visible_cpus", lambda: frozenset(range(len(cpus))))
    monkeypatch.setattr(machine, "architecture", lambda: "x86_64")


def test_two_threads_of_one_core_are_one_physical_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, [{"siblings": "0-1"}, {"siblings": "0-1"}], ["avx2 fma"] * 2)
    cpu = machine.read_cpu()
    assert (cpu.cores, cpu.isa) == (2, ("avx2", "fma"))
    assert cpu.topology == {"efficiency-cores": 0, "numa-nodes": 1, "packages": 1, "physical-cores": 1}


def test_packages_nodes_and_efficiency_cores_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = [{"siblings": str(n), "package": str(n // 2), "node": str(n // 2)} for n in range(4)]
    fake(tmp_path, monkeypatch, cpus, ["avx2"] * 4)
    (tmp_path / "sys/cpu_atom").mkdir()
    (tmp_path / "sys/cpu_atom/cpus").write_text("2-3,9\n", encoding="utf-8")
    expected = {"efficiency-cores": 2, "numa-nodes": 2, "packages": 2, "physical-cores": 4}
    assert machine.read_cpu().topology == expected


def test_only_extensions_of_every_core_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["fpu vme sse2 ssse3 avx2 avx512f amx_tile md_clear", "fpu sse2 ssse3 avx2 hypervisor"]
    fake(tmp_path, monkeypatch, [{"siblings": "0"}, {"siblings": "1"}], flags)
    assert machine.read_cpu().isa == ("avx2", "sse2", "ssse3")


def test_an_arm_machine_tells_its_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, monkeypatch, [{"siblings": "0"}], [""])
    monkeypatch.setattr(machine, "architecture", lambda: "aarch64")
    text = "processor\t: 0\nBogoMIPS\t: 50\nFeatures\t: fp asimd evtstrm aes sha2 asimddp sve i8mm bf16\n"
    (tmp_path / "proc/cpuinfo").write_text(text, encoding="utf-8")
    assert machine.read_cpu().isa == ("asimd", "asimddp", "bf16", "fp", "i8mm", "sve")


def test_a_machine_that_tells_nothing_is_uncertain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SYS", tmp_path / "sys")
    monkeypatch.setattr(machine, "PROC", tmp_path / "proc")
    toolchain = find(OPENVINO)
    assert [text.partition(",")[0] for text in toolchain.uncertain] == [
        "the instruction set of this CPU",
        "the physical cores of this CPU",
    ]
    assert toolchain.cores == len(machine.visible_cpus())


def test_the_machine_key_is_stable_and_changes_with_cpu_and_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine_key() == machine_key()
    fake(tmp_path, monkeypatch, [{"siblings": "0"}], ["avx2"])
    keys = [machine_key()]
    (tmp_path / "proc/sys/kernel/random").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("one\n", encoding="utf-8")
    keys.append(machine_key())
    (tmp_path / "proc/sys/kernel/random/boot_id").write_text("two\n", encoding="utf-8")
    keys.append(machine_key())
    cpuinfo = tmp_path / "proc/cpuinfo"
    cpuinfo.write_text(cpuinfo.read_text(encoding="utf-8").replace("avx2", "avx2 avx512f"), encoding="utf-8")
    keys.append(machine_key())
    (tmp_path / "sys/cpu_atom").mkdir()
    (tmp_path / "sys/cpu_atom/cpus").write_text("0", encoding="utf-8")
    keys.append(machine_key())
    assert len(set(keys)) == len(keys)
    cpuinfo.write_text(cpuinfo.read_text(encoding="utf-8") + "cpu MHz : 1234.5\n", encoding="utf-8")
    assert machine_key() == keys[-1]


@TWO_CPUS
def test_an_affinity_mask_counts() -> None:
    code = (
        "import os; from hatch_epctx.toolchain import machine\n"
        "print(machine.read_cpu().cores, machine.machine_key())\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "print(machine.read_cpu().cores, machine.machine_key())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    (many, key), (one, other) = (line.split() for line in run.stdout.splitlines())
    assert (int(many), int(one)) == (len(machine.visible_cpus()), 1)
    assert key != other == other.lower()


def test_names_of_system_and_architecture_are_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for spelling, name in (("AMD64", "x86_64"), ("x86_64", "x86_64"), ("ARM64", "aarch64"), ("aarch64", "aarch64")):
        monkeypatch.setattr("platform.machine", lambda spelling=spelling: spelling)
        assert machine.architecture() == name


# ---- without onnxruntime


def test_nothing_of_onnxruntime_is_imported() -> None:
    code = (
        "import sys; from hatch_epctx.digest import digest_bytes; from hatch_epctx.providers import find_provider\n"
        "from hatch_epctx.toolchain import discover\n"
        "discover(find_provider('qnn'), 'npu', digest=lambda path: digest_bytes(b''), probe=None)\n"
        "assert not {'onnxruntime', 'onnxruntime_qnn', 'onnx', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)


def test_a_missing_onnxruntime_says_what_to_install(tmp_path: Path) -> None:
    import packaging

    (tmp_path / "packaging").symlink_to(Path(packaging.__file__).parent)
    code = (
        "import sys; sys.path[:] = [path for path in sys.path if 'site-packages' not in path]\n"
        f"sys.path[:0] = [{str(REPOSITORY)!r}, {str(tmp_path)!r}]\n"
        "from hatch_epctx.errors import ToolchainError; from hatch_epctx.providers import find_provider\n"
        "from hatch_epctx.toolchain import discover\n"
        "try: discover(find_provider('cpu'), 'cpu', digest=str, probe=None)\n"
        "except ToolchainError as error: print(error)\n"
    )
    run = subprocess.run([sys.executable, "-S", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.startswith('ONNX Runtime is not installed. Install it with pip install "hatch-epctx[build]"')


# ---- what the EPs bake in

COMPILE = """
import os, sys
if sys.argv[2] == "one":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import importlib
import onnxruntime as ort
helper = importlib.import_module(sys.argv[1])
ort.register_execution_provider_library(helper.get_ep_name(), helper.get_library_path())
devices = [item for item in ort.get_ep_devices() if item.ep_name == helper.get_ep_name()]
session = ort.SessionOptions()
options = {"backend_type": "htp", "soc_model": "60"} if "qnn" in sys.argv[1] else {}
session.add_provider_for_devices(devices[:1], options)
ort.ModelCompiler(session, "model.onnx").compile_to_file("model_ctx.onnx")
print(max(open(name, "rb").read().hex() for name in os.listdir() if name.endswith(".bin")))
import onnx
props = {item.key: item.value for item in onnx.load("model_ctx.onnx").metadata_props}
print(props["ep_compatibility_info." + helper.get_ep_name()])
"""


def compiled(provider: Provider, folder: Path, cores: str) -> tuple[str, str]:
    """(context binary in hexadecimal, compatibility string) of a small model, with all CPUs or with one."""
    folder.mkdir()
    save(small_model(), folder / "model.onnx")
    command = [sys.executable, "-c", COMPILE, provider.module, cores]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=True)
    *_, binary, compatibility = done.stdout.splitlines()
    return binary, compatibility


@pytest.mark.ep_openvino
@TWO_CPUS
def test_openvino_bakes_in_the_cores_that_the_toolchain_names(tmp_path: Path) -> None:
    assert OPENVINO.bakes_cores
    all_of_them, again = (compiled(OPENVINO, tmp_path / name, "all") for name in ("a", "b"))
    one, _ = compiled(OPENVINO, tmp_path / "c", "one")
    assert all_of_them == again
    physical = machine.read_cpu().topology["physical-cores"]
    assert (one == all_of_them[0]) is (physical == 1)


@pytest.mark.ep_openvino
def test_openvino_names_an_instruction_set_that_the_toolchain_covers(tmp_path: Path) -> None:
    _, compatibility = compiled(OPENVINO, tmp_path / "a", "all")
    text = compatibility.partition("isa=")[2]
    isa = set(machine.read_cpu().isa)
    assert text
    assert ("AMX" in text) is ("amx_tile" in isa)
    assert ("AVX-512" in text or "AVX10" in text or "AVX 10" in text) is ("avx512f" in isa)
    assert "AVX2" not in text or "avx2" in isa


@pytest.mark.ep_qnn
@TWO_CPUS
def test_qnn_bakes_in_no_cores(tmp_path: Path) -> None:
    assert not QNN.bakes_cores
    assert compiled(QNN, tmp_path / "a", "all") == compiled(QNN, tmp_path / "b", "one")


@pytest.mark.ep_openvino
def test_a_real_probe_fills_the_device(tmp_path: Path) -> None:
    code = (
        "import json; from hatch_epctx.worker.probing import probe\n"
        f"job = dict(ep={OPENVINO.names[0]!r}, module={OPENVINO.module!r}, device='cpu', offline=False)\n"
        "print(json.dumps(probe(job)['devices']))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    devices = json.loads(run.stdout.splitlines()[-1])
    toolchain = find(OPENVINO, probe=lambda _: devices)
    assert toolchain.device["type"] == "cpu"
    assert toolchain.device["metadata"]["FULL_DEVICE_NAME"]
    assert "site-packages" not in json.dumps(toolchain.document())
