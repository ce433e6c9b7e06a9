"""Runs slices, some side by side, until enough is done, something is found, or the time is over.

Each slice is a process with a directory of its own; what it says goes into `log` there. The directory of a slice that
found nothing is deleted; any other is kept, and named. At the first broken promise the others are interrupted, and have
time to end what they have started.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from tests.proof.amounts import Kind, Progress

ROOT = Path(__file__).resolve().parent.parent.parent
ENDING_S = 90.0
"""An interrupted slice has clients and a node to end."""
LOG, COUNTS = "log", "counts.json"
FOUND_NOTHING, BROKEN, NO_VERDICT = 0, 1, 3
"""A slice's exit status. Any other is no verdict, either."""


def command_of(kind: Kind, seed: str, directory: Path) -> Sequence[str]:
    """A slice, as tests/proof/slices.py runs it."""
    return sys.executable, "-m", "tests.proof.slices", kind.name, "--seed", seed, "--directory", str(directory)


@dataclass(slots=True)
class Course:
    """One proof. `command` says what runs a slice."""

    progress: Progress
    directory: Path
    jobs: int
    say: Callable[[str], None]
    command: Callable[[Kind, str, Path], Sequence[str]] = command_of

    async def run(self, seconds: float) -> None:
        """Begins no slice when the time is over, and waits for those that run. SIGINT and SIGTERM end it at once."""
        deadline = trio.current_time() + seconds
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                    async for _number in signals:
                        self.say("interrupted: the slices under way are ended")
                        nursery.cancel_scope.cancel()

            async def work() -> None:
                while trio.current_time() < deadline and (begun := self.progress.begin()):
                    if await self._slice(*begun) == BROKEN:
                        nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            async with trio.open_nursery() as workers:
                for _ in range(self.jobs):
                    workers.start_soon(work)
            nursery.cancel_scope.cancel()

    async def _slice(self, kind: Kind, seed: str) -> int:
        """Its exit status."""
        place = self.directory / seed
        place.mkdir(parents=True)
        started = trio.current_time()
        has_ended = False
        try:
            with (place / LOG).open("wb") as log:
                done = await trio.run_process(
                    self.command(kind, seed, place),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    check=False,
                    deliver_cancel=_interrupt,
                    cwd=ROOT,
                    env={**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": str(place)},
                    start_new_session=True,
                )
            has_ended = True
        finally:
            if not has_ended:
                # Interrupted: it has found nothing yet. What it could not end in time may still write there.
                shutil.rmtree(place, ignore_errors=True)
        seconds = trio.current_time() - started
        if done.returncode == FOUND_NOTHING:
            counts = json.loads((place / COUNTS).read_text(encoding="utf-8"))
            self.progress.end(kind, seconds, counts)
            shutil.rmtree(place)
            done_now = self.progress.counts[kind.serves.value]
            self.say(f"{seed}: {seconds:.0f} s; {done_now:,} of {kind.wanted:,} {kind.serves.value}")
        else:
            self.progress.end(kind, seconds, {})
            broken = done.returncode == BROKEN
            (self.progress.broken if broken else self.progress.undecided).append(seed)
            what = "A PROMISE IS BROKEN" if broken else f"no verdict (exit status {done.returncode})"
            self.say(f"{seed}: {seconds:.0f} s; {what}; kept in {place}")
        return done.returncode


async def _interrupt(process: trio.Process) -> None:
    process.send_signal(signal.SIGINT)
    await trio.sleep(ENDING_S)
    process.kill()
