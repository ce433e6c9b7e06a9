"""Creates `.venv` in the project, with exactly the packages in the lock file. Standard library only.

`ensure(purpose)`, with a key of LOCKS, returns the path of the environment's Python; `enter(purpose)` lets the script
that runs go on inside it. The first call installs (with progress); later calls compare a stamp and return at once. The
stamp is a hash of the environment's inputs: lock file, pyproject.toml, Python and location. It is written last, so an
interrupted installation is simply continued.

The lock's hashes are checked (`--require-hashes`), and nothing outside the lock file is installed (`--no-deps`,
`--no-build-isolation`), so two machines install the same bytes.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"

# Each lock holds all of those before it, so a stamp of a later one serves the earlier ones too.
LOCKS = {
    "quickstart": "requirements.lock",  # quickstart.py, run_node.py
    "bench": "requirements-bench.lock",  # bench.py
    "spark": "requirements-spark.lock",  # bench.py, for its scenarios of Spark: half a GB that the others do without
    "test": "requirements-test.lock",  # test.py, check.py, screenshots.py
}


def ensure(purpose: str) -> Path:
    """Create or complete `.venv` for `purpose`, a key of LOCKS; returns its Python. Exits with a message on failure."""
    # A user with an older Python gets a message; the linter only knows that the project needs 3.11.
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit(f"Fairlog needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    purposes = list(LOCKS)
    enough = purposes[purposes.index(purpose) :]
    if any(_stamp_path(each).is_file() and _stamp_path(each).read_text() == _stamp(each) for each in enough):
        return _python()
    if not _python().exists():
        _make()
    lock = ROOT / LOCKS[purpose]
    _pip(["--no-deps", "--require-hashes", "--requirement", str(lock)], f"installing {lock.name}", _pins(lock))
    _pip(["--no-deps", "--no-build-isolation", "--editable", str(ROOT)], "installing the project", 1)
    _stamp_path(purpose).write_text(_stamp(purpose))
    return _python()


def enter(purpose: str) -> None:
    """Ensure the environment, and start the running script anew with its Python, unless that is what runs it."""
    python = ensure(purpose)
    if Path(sys.prefix) != ENVIRONMENT:
        sys.stdout.flush()
        os.execv(python, [str(python), str(Path(sys.argv[0]).resolve()), *sys.argv[1:]])


def script(name: str) -> Path:
    """The path of a command that a package installed."""
    return _python().parent / name


def _python() -> Path:
    return ENVIRONMENT / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def _stamp_path(purpose: str) -> Path:
    return ENVIRONMENT / f".fairlog-{purpose}"


def _stamp(purpose: str) -> str:
    parts = [(ROOT / LOCKS[purpose]).read_bytes(), (ROOT / "pyproject.toml").read_bytes(), str(ROOT).encode()]
    configuration = ENVIRONMENT / "pyvenv.cfg"
    parts.append(configuration.read_bytes() if configuration.exists() else b"")
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _pins(lock: Path) -> int:
    return sum("==" in line and not line.startswith((" ", "#")) for line in lock.read_text().splitlines())


def _make() -> None:
    print(f"making {ENVIRONMENT.name} …", flush=True)
    # Some distributions ship Python's venv without ensurepip; then the pip that runs this installs from outside.
    without_pip = [] if importlib.util.find_spec("ensurepip") else ["--without-pip"]
    subprocess.run([sys.executable, "-m", "venv", *without_pip, str(ENVIRONMENT)], check=True)


def _pip(arguments: list[str], what: str, total: int) -> None:
    """Run `pip install`, showing one line of progress; on failure show the end of pip's output and exit."""
    if next(ENVIRONMENT.glob("lib/python*/site-packages/pip"), None) or sys.platform == "win32":
        command = [str(_python()), "-m", "pip"]
    else:
        command = [sys.executable, "-m", "pip", "--python", str(_python())]
    command += ["install", "--disable-pip-version-check", "--no-input", "--progress-bar", "off", *arguments]
    last: deque[str] = deque(maxlen=30)
    seen = 0
    rewrite = sys.stdout.isatty()
    print(f"{what} …", end="" if rewrite else "\n", flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            last.append(line)
            if line.startswith(("Collecting ", "Requirement already satisfied", "Ignoring ")):
                seen += 1
                if rewrite:
                    print(f"\r{what} … {seen}/{total}", end="", flush=True)
                elif seen % 10 == 0:
                    print(f"{what} … {seen}/{total}", flush=True)
    if rewrite:
        print()
    if pip.returncode:
        sys.exit("".join(last) + f"\n{what} failed: see above")
