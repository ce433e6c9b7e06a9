"""Parts of the supervisor in the test's own process."""

from __future__ import annotations

import subprocess

import trio

from fairlog.supervisor.assignment import Halt
from fairlog.supervisor.supervising import say


async def test_process_that_is_just_ending_may_be_spoken_to() -> None:
    """Before its standard input is closed here, and after that."""
    process = await trio.lowlevel.open_process(["true"], stdin=subprocess.PIPE)
    await process.wait()
    await say(process, Halt(1))
    assert process.stdin is not None
    await process.stdin.aclose()
    await say(process, Halt(1))
