"""Write requirements.lock and the other lock files (-bench, -spark, -test, -fuzz) from pyproject.toml, with pins and
hashes.

    python3 scripts/write_lock.py            newest versions that pyproject.toml allows
    python3 scripts/write_lock.py --keep     only packages that are new in pyproject.toml

Needs `uv` on the path (`pip install uv`), whose universal resolution makes one lock for all Python versions from 3.11;
nothing else in the project needs it. See docs/decisions/0002-dependencies.md.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_PROJECT = ("pyproject.toml", "--group", "build")

LOCKS = {
    "requirements.lock": (*_PROJECT, "--extra", "quickstart"),
    # Each constrained by the one before, so that all put the same versions into one environment.
    "requirements-bench.lock": (*_PROJECT, "--extra", "bench", "--constraint", "requirements.lock"),
    "requirements-spark.lock": (
        *(*_PROJECT, "--extra", "bench", "--extra", "spark"),
        *("--constraint", "requirements-bench.lock"),
    ),
    "requirements-test.lock": (
        *(*_PROJECT, "--extra", "bench", "--extra", "spark", "--extra", "test"),
        *("--constraint", "requirements-spark.lock"),
    ),
    # The packages that only guided fuzzing (tests/fuzz) needs besides these.
    "requirements-fuzz.lock": ("--group", "pyproject.toml:fuzz"),
}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--keep"]):
        print(__doc__)
        return 2
    uv = shutil.which("uv")
    if uv is None:
        print("uv is not on the path: pip install uv", file=sys.stderr)
        return 1
    for name, selection in LOCKS.items():
        command = [uv, "pip", "compile", *selection]
        command += ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-annotate", "--quiet"]
        command += ["--custom-compile-command", "python3 scripts/write_lock.py", "--output-file", name]
        if not arguments:
            command.append("--upgrade")
        print(f"writing {name} …", flush=True)
        subprocess.run(command, cwd=ROOT, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
