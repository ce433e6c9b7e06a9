"""What many loans at a time take of memory, each of which is a read transaction."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts.node_process import ROOT

AT_A_TIME = 20

_SCRIPT = """
import re, sys
from pathlib import Path
from datalog.environment import LmdbDataLogs
from tests.datalog.test_loans import LARGE_BYTES, ORDERS, lend, put

def resident_bytes():
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"RssAnon:\\s+(\\d+)", status)[1]) << 10

logs = LmdbDataLogs.open(Path(sys.argv[1]), map_bytes=1 << 24)
with logs.write() as writer:
    writer.create(ORDERS)
put(logs, 0, bytes(LARGE_BYTES))
before = resident_bytes()
for _ in range(3):
    loans = [lend(logs) for _ in range(int(sys.argv[2]))]
    grown = resident_bytes() - before
    assert not any(loan.is_over for loan in loans)
    for loan in loans:
        loan.end()
print(grown)
"""


def test_many_loans_take_little_memory(tmp_path: Path):
    """Each is a transaction with room for 65,536 databases, 3.2 MB. In the heap it would be filled with zeros."""
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path), str(AT_A_TIME)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < AT_A_TIME * 64 << 10
