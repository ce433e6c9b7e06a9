"""Lint, format, types and import contracts: `python3 scripts/check.py`. All checks run; if one fails, the result is a
failure.

    ruff check         mistakes, naming, order of imports
    ruff format        one format (`.venv/bin/ruff format` fixes it)
    flake8-async       blocking calls inside async functions: more rules than ruff has; not on the tests
    pyright            types: strict on the packages, basic on the scripts; not on the tests
    import contracts   imports run downwards only; pure modules stay pure (pyproject.toml, [tool.importlinter])
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import environment

PACKAGES = ["stream", "journal", "datalog", "partition", "coordinator", "copier", "shard", "fairlog"]

FLAKE8_ASYNC = [
    # 9xx: checkpoints on every path, which a broker's hot path avoids on purpose. 124: async without an await, which
    # is what a handler or a double looks like that keeps a protocol's signature. 114, 128: functions to be started in
    # a nursery that pass their task_status on, or are protocols.
    "--disable=ASYNC9,ASYNC124,ASYNC114,ASYNC128",
    # The event loop never blocks on a disk.
    "--async200-blocking-calls="
    + ",".join(f"{call}->a worker thread" for call in ("os.fsync", "os.fdatasync", "lmdb.*", "*.sync")),
]


def _async_sources() -> list[str]:
    """The files that flake8-async, the slowest check, has to read."""
    root = environment.ROOT
    found = (path for folder in PACKAGES for path in (root / folder).rglob("*.py"))
    return sorted(str(path.relative_to(root)) for path in found if "async" in path.read_text(encoding="utf-8"))


def _run(command: Sequence[object]) -> tuple[int, str, float]:
    """Exit status, output, and seconds."""
    started = time.monotonic()
    done = subprocess.run(
        [str(word) for word in command],
        cwd=environment.ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, time.monotonic() - started


def main() -> int:
    python = environment.ensure("test")
    # The longest first, two at a time; the slowest of all, which uses one core, in two halves.
    async_sources, flake8_async = _async_sources(), [environment.script("flake8-async"), *FLAKE8_ASYNC]
    steps: dict[str, Sequence[object]] = {
        "flake8-async, 1/2": [*flake8_async, *async_sources[0::2]],
        "flake8-async, 2/2": [*flake8_async, *async_sources[1::2]],
        "pyright": [python, "-m", "pyright", "--pythonpath", python],
        "ruff check": [environment.script("ruff"), "check", "."],
        "ruff format": [environment.script("ruff"), "format", "--check", "."],
        "import contracts": [environment.script("lint-imports"), "--no-cache"],
    }
    red: list[str] = []
    with ThreadPoolExecutor(2) as pool:
        for name, (status, output, seconds) in zip(steps, pool.map(_run, steps.values()), strict=True):
            print(f"{name:<17} {'RED' if status else 'ok':<3} {seconds:6.1f} s", flush=True)
            if status:
                print(output, flush=True)
                red.append(name)
    if red:
        print(f"red: {', '.join(red)}", flush=True)
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main())
