"""A node of several processes, of which a test kills one at a named point: `python -m tests.crash.armed serve …`.

FAIRLOG_FAILPOINT arms each process of a node, and again at each of its starts. Here one process is armed, once, and
from a moment on that the test chooses: it writes what to arm into a file, and sends SIGUSR1 to the process. That arms
itself, and removes the file to say so.

Points around a flush are only passed by flushes in threads, and a process decides at its start where it flushes. So all
are armed at such a point, for a pass that never comes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from journal import failpoints

PROGRAM = ("-m", "tests.crash.armed")
"""To be run in place of `-m fairlog.cli`."""
VARIABLE = "ARM_WITH"
"""The file's path."""
ARMED_S = 10.0
POLL_S = 0.005
_NUMBER = b"FAIRLOG_PROCESS="


def environment(order: Path) -> Mapping[str, str]:
    """What the node's environment needs. `order` is the file."""
    return {VARIABLE: str(order), "FAIRLOG_FAILPOINT": f"journal.flush.before:kill:{10**9}"}


def arm(process: int, specification: str, order: Path) -> None:
    """Arm the process with this id; it is armed when this returns."""
    draft = order.with_suffix(".new")
    draft.write_text(specification)
    draft.replace(order)
    os.kill(process, signal.SIGUSR1)
    deadline = time.monotonic() + ARMED_S
    while order.exists():
        assert time.monotonic() < deadline, f"process {process} has not armed itself"
        time.sleep(POLL_S)


def number_of(process: int) -> int | None:
    """Which of a node's processes this is, as its supervisor has told it; None if it has gone, or is none yet."""
    try:
        variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((int(each.removeprefix(_NUMBER)) for each in variables if each.startswith(_NUMBER)), None)


def main() -> None:
    order = Path(os.environ[VARIABLE])

    def arm_myself(_signal: int, _frame: object) -> None:
        failpoints.arm({"FAIRLOG_FAILPOINT": order.read_text()})
        order.unlink()

    signal.signal(signal.SIGUSR1, arm_myself)
    from fairlog.cli import main as node

    node()


if __name__ == "__main__":
    main()
