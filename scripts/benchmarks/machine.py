"""The environment of the figures: the machine, its disk, and the versions of the software."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import confluent_kafka
from node_process import ROOT

import fairlog

PACKAGES = ("confluent-kafka", "lmdb", "trio")
FLUSHES = 200


def machine(directory: Path) -> dict[str, str | int | float]:
    """The machine and the disk of `directory`, without anything that varies from minute to minute."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": platform.platform(),
        "file_system": _file_system(directory),
    }


def versions() -> dict[str, str]:
    packages = {name: importlib.metadata.version(name) for name in PACKAGES}
    own = {"fairlog": fairlog.__version__, "python": platform.python_version()}
    return {**own, **packages, "librdkafka": confluent_kafka.libversion()[0]}


def commit() -> str:
    """The measured source, as `git describe` names it; "unknown" outside a repository."""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def flush_us(directory: Path) -> float:
    """Median microseconds of an fdatasync of one changed page: no durable commit can be faster."""
    with tempfile.TemporaryFile(dir=directory) as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, bytes(FLUSHES * 4096), 0)
        os.fsync(descriptor)
        taken: list[float] = []
        for number in range(FLUSHES):
            os.pwrite(descriptor, b"changed", number * 4096)
            started = time.perf_counter()
            os.fdatasync(descriptor)
            taken.append((time.perf_counter() - started) * 1e6)
    return statistics.median(taken)


def load() -> float:
    """How many processes wanted to run, on average over the last minute."""
    return os.getloadavg()[0]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _file_system(directory: Path) -> str:
    """The type of the file system of `directory`, from the longest mount point above it."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    place = directory.resolve()
    above = [(len(point), kind) for point, kind in mounts if place.is_relative_to(point)]
    return max(above)[1] if above else "unknown"
