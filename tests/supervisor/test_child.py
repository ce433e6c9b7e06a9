"""A process of a node, in the test's own process: what it makes of a command and a signal."""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Callable
from pathlib import Path

import trio
from trio.testing import wait_all_tasks_blocked

from fairlog.config import Settings
from fairlog.config_values import Address
from fairlog.supervisor.assignment import Assignment, Serve
from fairlog.supervisor.child import _Process

ROUNDS = 30
"""Which of two tasks of one turn of the loop goes first, trio draws."""


async def serve_for_ever(settings: Settings, tell: Callable[[str], None]) -> None:
    await trio.sleep_forever()


async def test_shard_that_is_given_to_a_process_in_the_turn_of_its_end_does_not_keep_it_up(tmp_path: Path) -> None:
    """The command counts or not, whichever was first: the process ends."""
    command = Serve(Assignment(0, 1, Address("127.0.0.1", 9092), ()))
    for _ in range(ROUNDS):
        process = _Process(Settings(data_dir=tmp_path), serve_for_ever, lambda _: contextlib.nullcontext())
        told, commands = trio.open_memory_channel[Serve](math.inf)
        signalled, signals = trio.open_memory_channel[int](math.inf)
        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(process._obey, commands, nursery)
                nursery.start_soon(process._stop_at_first, signals)
                await wait_all_tasks_blocked()
                told.send_nowait(command)
                signalled.send_nowait(signal.SIGTERM)
