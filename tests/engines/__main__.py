"""All that is tried with engines and clients in other languages:
`.venv/bin/python -m tests.engines [pytest arguments]`.

First it downloads what is needed, from Maven and the Go module proxy; `--obtain` does no more. Then it runs all tests
of this folder, those that CI leaves out too, and ends with a table: what was tried, how it went, how long it took.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent.parent
sys.path.insert(0, str(_ROOT / "scripts"))

from peers import kafka_artifacts  # noqa: E402  (after the path was set)

from tests.engines import franz, full  # noqa: E402
from tests.engines.jvm import ENGINES  # noqa: E402

OBTAIN = "--obtain"


def main() -> int:
    """Pytest's exit status."""
    for engine in ENGINES:
        try:
            engine.obtain()
        except kafka_artifacts.Unavailable as error:
            sys.exit(str(error))
    try:
        franz.obtain()
    except franz.ModulesMissing as error:
        sys.exit(str(error))
    if OBTAIN in sys.argv:
        return 0
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        command = [sys.executable, "-m", "pytest", str(_HERE), "-n", "0", f"--junitxml={report}", *sys.argv[1:]]
        done = subprocess.run(command, cwd=_ROOT, env=os.environ | {full.VARIABLE: "1"}, check=False)
        if report.exists():
            sys.stdout.write("\n" + "".join(_table(report)))
    return done.returncode


def _table(report: Path) -> Iterator[str]:
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        found = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "ok")
        module = case.get("classname", "").rpartition(".")[2].removeprefix("test_")
        name = case.get("name", "").removeprefix("test_")
        yield f"{found:<8}{float(case.get('time', 0)):6.1f} s  {module:<12} {name}\n"


if __name__ == "__main__":
    sys.exit(main())
