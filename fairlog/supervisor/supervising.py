"""The supervisor: starts the processes, keeps them alive, and stops them, as `fairlog.supervisor.machine` says.

    wait for processes of a killed supervisor ─▶ reserve all ports ─▶ prepare what they share ─▶ start them
    ─▶ each says on its stdout that it is ready ─▶ when all are, their lines are passed on, in order of their numbers

The supervisor itself serves nothing, and opens no data but a backup, which it takes over before. Its processes write
their log lines to the stderr that they inherit. They are in process groups of their own: a terminal's interrupt is for
the supervisor alone, which tells them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import structlog
import trio

from fairlog.config import Settings
from fairlog.directory import wait_for_shards
from fairlog.supervisor.addresses import settings_of_all
from fairlog.supervisor.assignment import Assignment
from fairlog.supervisor.machine import (
    Announce,
    Effect,
    Ended,
    Event,
    Failure,
    Finish,
    GiveTime,
    GraceOver,
    Kill,
    Pause,
    PauseOver,
    Ready,
    Report,
    Start,
    StopAsked,
    Terminate,
    begin,
    step,
)
from fairlog.supervisor.reserved_ports import reserved

log = structlog.get_logger()

_MARGIN_S = 5.0
"""Beyond `stop_grace_ms`, which each process keeps itself, but for a thread that waits for the disk."""
_CANNOT_START = 127
"""The exit code of a process that the system did not start: as a shell has it."""


class NotStarted(Exception):
    """One of the processes could not start. The message is one sentence."""


def supervise(
    settings: Settings, command: Sequence[str], prepare: Callable[[Settings], None], environment: Mapping[str, str]
) -> bool:
    """Run the processes until told to stop; True if all ended in good order. Blocks.

    `command` starts one, and `environment` is what it gets beside its `Assignment`. `prepare` makes what they share,
    before any is started. The caller holds the data directory (`fairlog.directory`). Raises ConfigError,
    DirectoryInUse, NotStarted, and what `prepare` raises.
    """
    all_of_them = settings_of_all(settings)
    wait_for_shards(settings.data_dir)
    with ExitStack() as stack:
        addresses = [
            (
                stack.enter_context(reserved(each.listen, f" for process {each.process}")),
                None
                if each.admin.listen is None
                else stack.enter_context(
                    reserved(each.admin.listen, f" for the admin listener of process {each.process}")
                ),
            )
            for each in all_of_them
        ]
        prepare(settings)
        pipe = stack.enter_context(_pipe())
        admins = tuple(admin for _, admin in addresses if admin is not None)
        assignments = [Assignment(number, listen, admins, pipe) for number, (listen, _) in enumerate(addresses)]
        grace_s = settings.stop_grace_ms / 1000 + _MARGIN_S
        return trio.run(_Supervisor(assignments, command, environment, grace_s).run)


@contextmanager
def _pipe() -> Generator[int]:
    """The reading end of a pipe whose writing end is in this process only."""
    reading, writing = os.pipe()
    try:
        yield reading
    finally:
        os.close(reading)
        os.close(writing)


class _Supervisor:
    """Runs the machine's effects, and tells it what happens."""

    def __init__(
        self,
        assignments: Sequence[Assignment],
        command: Sequence[str],
        environment: Mapping[str, str],
        grace_s: float,
    ) -> None:
        self._assignments = assignments
        self._command = command
        self._environment = environment
        self._grace_s = grace_s
        self._processes: dict[int, trio.Process] = {}
        self._lines: dict[int, bytes] = {}
        """What each process has said when it was ready."""
        self._events, self._happened = trio.open_memory_channel[Event](0)

    async def run(self) -> bool:
        try:
            with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._hear_signals, signals)
                    finish = await self._run_machine(nursery)
                    nursery.cancel_scope.cancel()
        finally:
            for process in self._processes.values():
                process.kill()  # none is left, unless we are here by a mistake of ours
        if finish.failure is not None:
            raise NotStarted(_refusal(finish.failure))
        return finish.well

    async def _run_machine(self, nursery: trio.Nursery) -> Finish:
        state, effects = begin(len(self._assignments), trio.current_time())
        while True:
            for effect in effects:
                if isinstance(effect, Finish):
                    return effect
                await self._perform(effect, nursery)
            state, effects = step(state, await self._happened.receive())

    async def _perform(self, effect: Effect, nursery: trio.Nursery) -> None:
        match effect:
            case Start(number):
                await self._start(number, nursery)
            case Announce():
                for number in range(len(self._assignments)):
                    sys.stdout.buffer.write(self._lines[number])
                sys.stdout.flush()
                log.info("all processes are ready", processes=len(self._assignments))
            case Report(number, code, pause_s):
                _report(number, code, pause_s)
            case Pause(number, seconds):
                nursery.start_soon(self._pause, number, seconds)
            case Terminate(number):
                self._signal(number, signal.SIGTERM)
            case Kill(number):
                self._signal(number, signal.SIGKILL)
            case GiveTime():
                nursery.start_soon(self._give_time)
            case Finish():
                raise AssertionError("the caller ends with it")

    async def _start(self, number: int, nursery: trio.Nursery) -> None:
        assignment = self._assignments[number]
        try:
            process = await trio.lowlevel.open_process(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env={**self._environment, **assignment.to_environment()},
                pass_fds=(assignment.supervisor,),
                process_group=0,
            )
        except OSError as error:
            log.warning("a process cannot be started", shard=number, reason=str(error))
            nursery.start_soon(self._tell, Ended(number, _CANNOT_START, trio.current_time()))
            return
        self._processes[number] = process
        nursery.start_soon(self._watch, number, process)

    def _signal(self, number: int, signal_number: signal.Signals) -> None:
        process = self._processes.get(number)
        if process is not None:  # else the system did not start it, and that it is no more is about to be told
            process.send_signal(signal_number)

    async def _watch(self, number: int, process: trio.Process) -> None:
        """Hear what a process says, and when it ends."""
        assert process.stdout is not None
        needed = 1 if self._assignments[number].admin is None else 2
        said = b""
        async for part in process.stdout:
            if said.count(b"\n") >= needed:
                continue
            said += part
            if said.count(b"\n") >= needed:
                self._lines[number] = said
                await self._tell(Ready(number))
        code = await process.wait()
        await process.stdout.aclose()
        await self._tell(Ended(number, code, trio.current_time()))

    async def _pause(self, number: int, seconds: float) -> None:
        await trio.sleep(seconds)
        await self._tell(PauseOver(number, trio.current_time()))

    async def _give_time(self) -> None:
        await trio.sleep(self._grace_s)
        await self._tell(GraceOver())

    async def _hear_signals(self, signals: AsyncIterator[int]) -> None:
        async for _ in signals:
            await self._tell(StopAsked())

    async def _tell(self, event: Event) -> None:
        await self._events.send(event)


def _report(number: int, code: int, pause_s: float | None) -> None:
    how = {"exit_code": code} if code >= 0 else {"signal": _signal_name(-code)}
    if pause_s is None:
        log.warning("a process ended", shard=number, **how)
    else:
        log.warning("a process ended, and is started again", shard=number, pause_s=pause_s, **how)


def _refusal(failure: Failure) -> str:
    how = f"with exit code {failure.code}" if failure.code >= 0 else f"by {_signal_name(-failure.code)}"
    return f"the process of shard {failure.process} ended {how} before all were ready, and the others were stopped"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
