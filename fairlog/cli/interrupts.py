"""Ctrl-C and SIGTERM, for commands that go on until they are told to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def told_to_stop() -> Generator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; a second one interrupts whatever is being done."""
    stop = threading.Event()

    def set_once(_number: int, _frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    with _handled_by(set_once):
        yield stop


@contextmanager
def interrupted_by_signals() -> Generator[None]:
    """SIGTERM raises KeyboardInterrupt, as SIGINT does."""
    with _handled_by(signal.default_int_handler):
        yield


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], object]) -> Generator[None]:
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
