"""Ends a test that hangs, and tells where it stood: `watch(item)`.

A test that waits for ever would hold up the whole run until somebody ends it from outside, and nobody would know which
test it was. After LIMIT_S the stacks of all threads and of all trio tasks are written to a file, and the test's process
ends itself: pytest-xdist counts the test as failed and gives the rest of its file to another process. scripts/test.py
prints the file behind the failures. The limit is far above what the slowest test takes beside other load, so it finds
tests that hang, and never one that is slow.
"""

from __future__ import annotations

import gc
import io
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

LIMIT_S = 900.0
"""Seconds, of preparation, test and end."""


@contextmanager
def watch(name: str, limit_s: float = LIMIT_S) -> Iterator[None]:
    """Ends this process if the block, the test of this name, is not left within `limit_s` seconds."""
    timer = threading.Timer(limit_s, _end, (name,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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


def _end(name: str) -> None:
    path = Path(tempfile.gettempdir()) / f"hung-{os.getpid()}.txt"
    path.write_text(f"{name} hangs\n{stacks()}", encoding="utf-8")
    os._exit(1)
