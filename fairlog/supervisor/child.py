"""What a process does about its supervisor: it ends with it.

Each process inherits the reading end of a pipe into which nobody writes. The writing end is the supervisor's alone, so
the pipe ends when the supervisor does, however that comes. Then the process ends as if it was killed: nobody would
start it again, and the next supervisor waits for it. A thread waits, because it must not depend on the event loop.
"""

from __future__ import annotations

import os
import threading


def end_with_supervisor(pipe: int) -> None:
    """End this process as soon as the other end of `pipe`, a descriptor, is closed."""
    os.set_inheritable(pipe, False)
    threading.Thread(target=_wait, args=(pipe,), name="supervisor", daemon=True).start()


def _wait(pipe: int) -> None:
    try:
        os.read(pipe, 1)
    finally:
        os._exit(1)
