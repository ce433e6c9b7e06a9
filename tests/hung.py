"""Ends a test that hangs, and tells where it stood: `watch(name)`.

A test that waits for ever would hold up the whole run until somebody ends it from outside, and nobody would know which
test it was. After LIMIT_S the stacks of all threads and of all trio tasks are written to a file, and a signal raises
`Hung` in the main thread: the test fails, and the others go on. scripts/test.py prints the file after the failures. The
limit is far above what the slowest test takes beside other load, so it finds tests that hang, and never one that is
slow.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import trio

LIMIT_S = 900.0
"""Seconds, of preparation, test and end."""


class Hung(BaseException):
    """The test hangs. Nothing that a test does on errors catches it."""


@contextmanager
def watch(name: str, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Raises Hung if the block, the test of this name, is not left within `limit_s` seconds. For the main thread."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Hung(f"{name} hangs: it has not ended in {limit_s:g} s")

    def tell() -> None:
        path = Path(tempfile.gettempdir()) / f"hung-{os.getpid()}.txt"
        path.write_text(f"{name} hangs\n{stacks()}", encoding="utf-8")
        os.kill(os.getpid(), signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, interrupt)
    timer = threading.Timer(limit_s, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        signal.signal(signal.SIGALRM, before)


def stacks() -> str:
    """Where every thread and every trio task of this process stands, the innermost call last."""
    told = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for identity, frame in sys._current_frames().items():
        told.write(f"thread {names.get(identity, identity)}\n")
        told.writelines(traceback.format_stack(frame))
    for task in [each for each in gc.get_objects() if isinstance(each, trio.lowlevel.Task)]:
        told.write(f"task {task.name}\n")
        told.writelines(traceback.StackSummary.extract(task.iter_await_frames()).format())
    return told.getvalue()
