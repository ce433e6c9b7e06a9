"""A process of a node: it serves the shards that its supervisor tells it to, and ends with its supervisor.

The supervisor's lines come on the standard input, and what becomes of a shard goes to the standard output
(`fairlog.supervisor.assignment`). A thread reads the lines, because this must not depend on the event loop: the input
ends when the supervisor does, however that comes. Then the process ends as if it was killed: nobody would start it
again, and the next supervisor waits for it.

The shards of a process have one event loop. If one of them cannot be served, the process ends, and with it the others.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import structlog
import trio

from fairlog.config import Settings
from fairlog.directory import hold_shard
from fairlog.supervisor.assignment import Assignment, Halt, Halted, Ready, Serve, from_line, to_line
from fairlog_types import ShardNumber

ServeShard = Callable[[Settings, Callable[[str], None]], Awaitable[None]]
"""Serves a shard until cancelled, and calls the function with an announcement as soon as clients are accepted."""

Sentences = Callable[[str], contextlib.AbstractContextManager[None]]
"""Gives the text to what is raised inside."""

_STDIN = 0
_READ_BYTES = 1 << 16


def run_process(settings: Settings, serve: ServeShard, sentences: Sentences) -> None:
    """Serve shards until SIGTERM or SIGINT.

    What `serve` and `hold_shard` raise goes through `sentences`, with the shard, and comes out in exception groups.
    """
    trio.run(_Process(settings, serve, sentences).run)


class _Process:
    def __init__(self, settings: Settings, serve: ServeShard, sentences: Sentences) -> None:
        self._settings = settings
        self._serve = serve
        self._sentences = sentences
        self._served: dict[int, trio.CancelScope] = {}
        self._stopping = trio.CancelScope()
        """Cancelled when this process is to end: then no command counts any more."""

    async def run(self) -> None:
        told, commands = trio.open_memory_channel[Serve | Halt](math.inf)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            token = trio.lowlevel.current_trio_token()
            threading.Thread(target=_read_lines, args=(token, told), name="supervisor", daemon=True).start()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._obey, commands, nursery)
                await self._stop_at_first(signals)

    async def _stop_at_first(self, signals: AsyncIterator[int]) -> None:
        """Later ones change nothing: a service manager may tell this process, and the supervisor tells it, too."""
        async for _ in signals:
            self._stopping.cancel()
            for scope in self._served.values():
                scope.cancel()
            return

    async def _obey(self, commands: AsyncIterator[Serve | Halt], serving: trio.Nursery) -> None:
        with self._stopping:
            async for command in commands:
                if self._stopping.cancel_called:
                    return  # the command had come in the same turn of the loop
                match command:
                    case Serve(it):
                        self._served[it.shard] = trio.CancelScope()
                        serving.start_soon(self._serve_shard, it)
                    case Halt(shard):
                        self._served[shard].cancel()

    async def _serve_shard(self, it: Assignment) -> None:
        with structlog.contextvars.bound_contextvars(shard=it.shard), self._sentences(f"shard {it.shard}: "):
            lock = await trio.to_thread.run_sync(hold_shard, self._settings.data_dir, ShardNumber(it.shard))
            try:
                with self._served[it.shard]:
                    await self._serve(it.apply(self._settings), lambda text: _say(Ready(it.shard, text)))
            finally:
                os.close(lock)
        if not self._stopping.cancel_called:
            del self._served[it.shard]
            _say(Halted(it.shard))


def _say(said: Ready | Halted) -> None:
    sys.stdout.buffer.write(to_line(said))
    sys.stdout.buffer.flush()


def _read_lines(token: trio.lowlevel.TrioToken, told: trio.MemorySendChannel[Any]) -> None:
    received = b""
    while more := os.read(_STDIN, _READ_BYTES):
        *lines, received = (received + more).split(b"\n")
        for line in lines:
            with contextlib.suppress(trio.RunFinishedError):  # this process is about to end in good order
                token.run_sync_soon(told.send_nowait, from_line(line))
    os._exit(1)
