"""Time and memory of adding incompressible files to a wheel, against a build backend that deflates them.

Run: python tests/benchmarks/bench_wheelfile.py [--size MIB] [--rounds N] [--folder DIR]

Both ways make a wheel with the same content in a process of their own, one after the other, so that the peak memory
the system reports for a process belongs to one way alone. "backend" is hatchling's own WheelArchive, file and RECORD
included; "ours" is hatchling's WheelArchive without the large file, followed by `add_files`. Both include the fsync of
the result, since ours makes it. Prints a table and the ratios of the medians and of
the least times, which other work on the machine disturbs least. On a busy or slow disk both ways wait for the fsync of
1 GiB, which says nothing about either: `--folder` on a file system in memory leaves the disk out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAME = "bench-1.0-py3-none-any.whl"


def backend_wheel(folder: Path, blob: Path | None) -> Path:
    """A small wheel as hatchling writes it, with `blob` inside when given."""
    from hatchling.builders.plugin.interface import IncludedFile
    from hatchling.builders.wheel import RecordFile, WheelArchive

    wheel = folder / NAME
    with WheelArchive("bench-1.0", reproducible=True) as archive, RecordFile() as records:
        records.write(archive.write_file("bench/__init__.py", b"x = 1\n"))
        if blob is not None:
            records.write(archive.add_file(IncludedFile(str(blob), "", "bench/_epctx/blob.bin")))
        records.write(archive.write_metadata("METADATA", "Metadata-Version: 2.4\nName: bench\nVersion: 1.0\n"))
        text = "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        records.write(archive.write_metadata("WHEEL", text))
        records.write((f"{archive.metadata_directory}/RECORD", "", ""))
        archive.write_metadata("RECORD", records.construct())
    shutil.move(archive.path, wheel)
    return wheel


def run(way: str, folder: Path, blob: Path) -> dict[str, float]:
    """One measurement, in this process."""
    import hatchling.builders.wheel  # noqa: F401  # importing is no part of either way

    from hatch_epctx.wheelfile import Entry, add_files

    (folder / NAME).unlink(missing_ok=True)  # freeing a gigabyte takes its time too
    started, worked = time.perf_counter(), time.process_time()
    if way == "ours":
        wheel = backend_wheel(folder, None)
        add_files(wheel, [Entry(name="bench/_epctx/blob.bin", source=blob)])
    else:
        wheel = backend_wheel(folder, blob)
        with wheel.open("rb") as stream:
            os.fsync(stream.fileno())
    seconds, worked = time.perf_counter() - started, time.process_time() - worked
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    return {"seconds": seconds, "cpu": worked, "peak_mib": peak, "wheel_mib": wheel.stat().st_size / 2**20}


def measure(way: str, folder: Path, blob: Path) -> dict[str, float]:
    """One measurement, in a fresh process."""
    command = [sys.executable, __file__, "--way", way, "--folder", str(folder), "--blob", str(blob)]
    # The archive is made in TMPDIR and moved: keep both on one file system, or a copy is measured as well.
    environ = {**os.environ, "TMPDIR": str(folder)}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environ).stdout
    result: dict[str, float] = json.loads(output)
    return result


def summary(measured: list[dict[str, float]]) -> dict[str, float]:
    """What is reported of one way."""
    times = [one["seconds"] for one in measured]
    return {
        "median": statistics.median(times),
        "least": min(times),
        "most": max(times),
        "cpu": min(one["cpu"] for one in measured),
        "peak_mib": max(one["peak_mib"] for one in measured),
        "wheel_mib": measured[-1]["wheel_mib"],
    }


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=1024, help="MiB of random bytes (default 1024)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each way (default 3)")
    parser.add_argument("--folder", type=Path, help="where to write (default: a temporary folder)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--way", choices=["backend", "ours"], help=argparse.SUPPRESS)
    parser.add_argument("--blob", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(run(options.way, options.folder, options.blob)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        blob = folder / "blob.bin"
        source = random.Random(0)  # noqa: S311  # incompressible, not secret
        with blob.open("wb") as stream:
            for _ in range(options.size):
                stream.write(source.randbytes(2**20))
        results: dict[str, list[dict[str, float]]] = {"backend": [], "ours": []}
        for _ in range(options.rounds):
            for way, measured in results.items():
                measured.append(measure(way, folder, blob))
    report = {way: summary(measured) for way, measured in results.items()}
    ratios = {kind: report["backend"][kind] / report["ours"][kind] for kind in ("median", "least")}
    if options.json:
        print(json.dumps({**report, "ratios": ratios}))
        return
    print(f"{options.size} MiB of random bytes, {options.rounds} rounds, Python {sys.version.split()[0]}")
    for way, one in report.items():
        print(
            f"{way:8} median {one['median']:6.2f} s  (least {one['least']:.2f}, most {one['most']:.2f})"
            f"  CPU {one['cpu']:5.2f} s  peak memory {one['peak_mib']:5.0f} MiB  wheel {one['wheel_mib']:.1f} MiB"
        )
    print(
        f"ratio    {ratios['median']:.1f} times less wall time by the medians, {ratios['least']:.1f} by the least times"
    )


if __name__ == "__main__":
    main()
