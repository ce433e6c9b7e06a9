"""The supervisor: starts the processes, keeps them alive, and stops them, as `fairlog.supervisor.machine` says.

    wait for processes of a killed supervisor ─▶ reserve all ports ─▶ prepare what they share ─▶ start them
    ─▶ tell each which shards to serve ─▶ when all are ready, what they say of it is passed on, in order of the shards

The supervisor itself serves nothing, and opens no data but a backup, which it takes over before. Its processes write
their log lines to the stderr that they inherit. They are in process groups of their own: a terminal's interrupt is for
the supervisor alone, which tells them. Meanwhile it answers `fairlog shard` (`fairlog.supervisor.control`).
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, aclosing
from typing import Any

import structlog
import trio

from datalog.lmdb_pages import DamagedPage
from fairlog import trail
from fairlog.cluster.opening import StoreMismatch
from fairlog.config import ConfigError, Settings
from fairlog.config_values import Address, ListenerAddresses
from fairlog.data_directory import MANIFEST, RESTORING, read_cluster_store_in_use
from fairlog.directory import DirectoryUnusable, wait_for_shards
from fairlog.stop_requests import stop_requests
from fairlog.supervisor import allotment, assignment, changes
from fairlog.supervisor.addresses import settings_of_all, settings_of_shard
from fairlog.supervisor.assignment import Assignment, environment_of, from_line, to_line
from fairlog.supervisor.control import control_socket, serve_control
from fairlog.supervisor.machine import (
    Add,
    Announce,
    Answer,
    ChangeAsked,
    Effect,
    Ended,
    Event,
    Failure,
    Finish,
    GiveTime,
    GiveTimeToHalt,
    GiveTimeToServe,
    GraceOver,
    Halt,
    Halted,
    HaltTimeOver,
    Kill,
    Move,
    Pause,
    PauseOver,
    Ready,
    Report,
    Serve,
    ServeTimeOver,
    Start,
    State,
    StopAsked,
    Terminate,
    Write,
    Written,
    begin,
    step,
)
from fairlog.supervisor.reserved_ports import reserved
from fairlog.trail import Action, Actor
from fairlog_types import CorruptStorage, StorageFailure

log = structlog.get_logger()

_MARGIN_S = 5.0
"""Beyond `stop_grace_ms`, which each shard keeps itself, but for a thread that waits for the disk."""
_CANNOT_START = 127
"""The exit code of a process that the system did not start: as a shell has it."""

_OWNER = Actor("", "", "directory")
"""Whoever may use the socket in the data directory: the node's own user."""


class NotStarted(Exception):
    """One of the processes could not start. The message is one sentence."""


def shards_of(settings: Settings) -> int:
    """How many shards the data directory has; after its first start, if it was not used yet.

    What cannot be read counts as not used: who opens it says what is wrong.
    """
    try:
        return read_cluster_store_in_use(settings.data_dir).shards
    except (OSError, CorruptStorage, StorageFailure, DamagedPage):
        return settings.processes


def supervise(
    settings: Settings, command: Sequence[str], prepare: Callable[[Settings], None], environment: Mapping[str, str]
) -> bool:
    """Run the processes until told to stop; True if all ended in good order. Blocks.

    `command` starts one, in `environment` and what says which one it is. `prepare` makes what all shards share, or
    checks it, while none is served. The caller holds the data directory (`fairlog.directory`). Raises ConfigError,
    DirectoryInUse, DirectoryUnusable, CorruptStorage, StorageFailure, NotStarted, and what `prepare` raises.
    """
    shards = shards_of(settings)
    all_of_them = settings_of_all(settings, shards)
    processes = allotment.load(settings.data_dir, shards)
    _require_processes(settings, processes)
    wait_for_shards(settings.data_dir)
    with ExitStack() as stack:
        addresses = Addresses(stack)
        for each in all_of_them:
            addresses.reserve(each)
        prepare(all_of_them[0])
        return trio.run(_Supervisor(settings, addresses, prepare, command, environment).run, processes)


def _require_processes(settings: Settings, processes: Sequence[int]) -> None:
    for shard, process in enumerate(processes):
        if process >= settings.processes:
            is_backup = any((settings.data_dir / name).exists() for name in (MANIFEST, RESTORING))
            move = f", or give the shard to another process first (fairlog shard move {shard} --to 0)"
            raise DirectoryUnusable(
                f"shard {shard} in {settings.data_dir} is served by process {process}, but processes is "
                f"{settings.processes}: start the node with --processes {max(processes) + 1}{'' if is_backup else move}"
            )


_CHOOSE_ADMIN = "; choose another HOST:PORT, or off, with admin.listen (--admin)"


class Addresses:
    """Where each shard's broker and admin listener are: ports that are kept for them, whichever process serves them."""

    def __init__(self, stack: ExitStack) -> None:
        """The ports are kept until `stack` is left."""
        self._stack = stack
        self.brokers: list[ListenerAddresses] = []
        self.admins: list[Address] = []

    def reserve(self, settings: Settings) -> None:
        """Keep those of the next shard. Raises ConfigError."""
        shard, listen, admin = settings.shard, settings.listen, settings.admin.listen
        with ExitStack() as kept:
            broker = {
                name: kept.enter_context(reserved(address, f" for shard {shard}"))
                for name, address in listen.one_each().items()
            }
            if admin is not None:
                what = f" for the admin listener of shard {shard}"
                self.admins.append(kept.enter_context(reserved(admin, what, _CHOOSE_ADMIN)))
            self.brokers.append(ListenerAddresses.of(broker))
            self._stack.push(kept.pop_all())


async def say(process: trio.Process, said: assignment.Serve | assignment.Halt) -> None:
    """Write a line to the standard input of a process, unless it has ended: who watches it tells that."""
    assert process.stdin is not None
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await process.stdin.send_all(to_line(said))


class _Supervisor:
    """Runs the machine's effects, and tells it what happens."""

    def __init__(
        self,
        settings: Settings,
        addresses: Addresses,
        prepare: Callable[[Settings], None],
        command: Sequence[str],
        environment: Mapping[str, str],
    ) -> None:
        self._settings = settings
        self._addresses = addresses
        self._prepare = prepare
        self._command = command
        self._environment = environment
        self._time_s = settings.stop_grace_ms / 1000 + _MARGIN_S
        """For the stop of all; for the shards of a change to be halted; and for them to be ready again."""
        self._state = State((), ())
        self._processes: dict[int, trio.Process] = {}
        self._announcements: dict[int, str] = {}
        """What each shard's process has said when it was ready."""
        self._answers: dict[int, _Answer] = {}
        """By asker: who waits for a change."""
        self._askers = 0
        self._events, self._happened = trio.open_memory_channel[Event](0)

    async def run(self, processes: Sequence[int]) -> bool:
        """`processes` are those of the shards, by number."""
        self._state, effects = begin(self._settings.processes, processes, trio.current_time())
        idle = self._settings.processes - len({*processes})
        if idle:
            log.warning(
                "processes without a shard are not started",
                processes=idle,
                shards=len(processes),
                action="give them shards: fairlog shard add, or fairlog shard move",
            )
        try:
            with (
                trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals,
                control_socket(self._settings.data_dir) as listening,
            ):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._hear_signals, signals)
                    if listening is not None:
                        nursery.start_soon(serve_control, listening, self._answer)
                    finish = await self._run_machine(effects, nursery)
                    nursery.cancel_scope.cancel()
        finally:
            for process in self._processes.values():
                process.kill()  # none is left, unless we are here by a mistake of ours
        if finish.failure is not None:
            raise NotStarted(_refusal(finish.failure))
        return finish.well

    async def _run_machine(self, effects: Sequence[Effect], nursery: trio.Nursery) -> Finish:
        while True:
            for effect in effects:
                if isinstance(effect, Finish):
                    return effect
                await self._perform(effect, nursery)
            event = await self._happened.receive()
            self._state, effects = step(self._state, event, trio.current_time())

    async def _perform(self, effect: Effect, nursery: trio.Nursery) -> None:
        match effect:
            case Start(number):
                await self._start(number, nursery)
            case Serve(process, shard):
                brokers, admins = self._addresses.brokers, tuple(self._addresses.admins)
                it = Assignment(shard, len(self._state.shards), brokers[shard], admins[: len(self._state.shards)])
                await self._say(process, assignment.Serve(it))
            case Halt(process, shard):
                await self._say(process, assignment.Halt(shard))
            case Write(processes):
                nursery.start_soon(self._write, processes)
            case Announce(shards):
                for shard in shards:
                    sys.stdout.write(self._announcements[shard])
                sys.stdout.flush()
                log.info("all shards are ready", shards=len(self._state.shards), processes=len(self._processes))
            case Answer(asker, refused):
                self._answers.pop(asker).set(refused)
            case Report(number, code, pause_s):
                _report(self._state, number, code, pause_s)
            case Pause(number, seconds):
                nursery.start_soon(self._tell_later, seconds, PauseOver(number))
            case Terminate(number):
                self._signal(number, signal.SIGTERM)
            case Kill(number):
                log.warning("a process has not halted its shards yet, and is killed", process=number)
                self._signal(number, signal.SIGKILL)
            case GiveTime():
                nursery.start_soon(self._tell_later, self._time_s, GraceOver())
            case GiveTimeToHalt(asker):
                nursery.start_soon(self._tell_later, self._time_s, HaltTimeOver(asker))
            case GiveTimeToServe(asker):
                nursery.start_soon(self._tell_later, self._time_s, ServeTimeOver(asker))
            case Finish():
                raise AssertionError("the caller ends with it")

    async def _start(self, number: int, nursery: trio.Nursery) -> None:
        try:
            process = await trio.lowlevel.open_process(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**self._environment, **environment_of(number)},
                process_group=0,
            )
        except OSError as error:
            log.warning("a process cannot be started", process=number, reason=str(error))
            nursery.start_soon(self._tell, Ended(number, _CANNOT_START))
            return
        self._processes[number] = process
        nursery.start_soon(self._watch, number, process)

    async def _say(self, number: int, said: assignment.Serve | assignment.Halt) -> None:
        process = self._processes.get(number)
        if process is not None:  # else the system did not start it, as for `_signal`
            await say(process, said)

    def _signal(self, number: int, signal_number: signal.Signals) -> None:
        process = self._processes.get(number)
        if process is not None:  # else the system did not start it, and that it is no more is about to be told
            process.send_signal(signal_number)

    async def _watch(self, number: int, process: trio.Process) -> None:
        """Hear what a process says, and when it ends."""
        assert process.stdin is not None
        assert process.stdout is not None
        received = b""
        async for part in process.stdout:
            *lines, received = (received + part).split(b"\n")
            for line in lines:
                await self._hear(number, line)
        code = await process.wait()
        await process.stdin.aclose()
        await process.stdout.aclose()
        del self._processes[number]
        await self._tell(Ended(number, code))

    async def _hear(self, number: int, line: bytes) -> None:
        try:
            said = from_line(line)
        except ValueError:
            # A library that the process uses may print something.
            log.warning("a process writes to its standard output", process=number, line=line[:200].decode("latin-1"))
            return
        match said:
            case assignment.Ready(shard, announcement):
                self._announcements[shard] = announcement
                await self._tell(Ready(shard))
            case assignment.Halted(shard):
                await self._tell(Halted(shard))
            case _:
                raise AssertionError(said)

    async def _write(self, processes: tuple[int, ...]) -> None:
        refused, shards = None, len(self._state.shards)
        try:
            await trio.to_thread.run_sync(changes.write, self._settings, processes, shards)
        except (StoreMismatch, CorruptStorage, StorageFailure) as error:
            refused = str(error)
        if refused is None and len(processes) > shards:
            # Of what it raises the node ends: the next start finds the shard, and prepares again.
            await trio.to_thread.run_sync(self._prepare, settings_of_shard(self._settings, 0, len(processes)))
        await self._tell(Written(refused))

    async def _answer(self, question: Mapping[str, Any]) -> Mapping[str, object]:
        """What `fairlog shard` asks (`fairlog.supervisor.control`), maybe that of another version."""
        match question:
            case {"ask": "list"}:
                return {"shards": [self._shown(number) for number in range(len(self._state.shards))]}
            case {"ask": "move", "shard": int(shard), "process": int(process)} if bool not in map(
                type, (shard, process)
            ):
                refused = await self._change(Move(shard, process))
                trail.note(_OWNER, Action.MOVE_SHARD, str(shard), refused, to=process)
                return _answered(refused)
            case {"ask": "add", "process": int() | None as process} if not isinstance(process, bool):
                shards = len(self._state.shards)
                if len(self._addresses.brokers) == shards:
                    try:
                        self._addresses.reserve(settings_of_all(self._settings, shards + 1)[shards])
                    except ConfigError as error:
                        trail.note(_OWNER, Action.ADD_SHARD, str(shards), str(error))
                        return _answered(str(error))
                refused = await self._change(Add(process))
                trail.note(_OWNER, Action.ADD_SHARD, str(shards), refused)
                return _answered(refused)
            case _:
                return _answered("this node does not know the question: use the command of its version")

    def _shown(self, number: int) -> Mapping[str, object]:
        shard = self._state.shards[number]
        process = self._processes.get(shard.process)
        return {
            "shard": number,
            "broker": self._settings.node_id + number,
            "listen": str(self._addresses.brokers[number]),
            "process": shard.process,
            "pid": None if process is None else process.pid,
            "state": shard.service.name.lower(),
        }

    async def _change(self, change: Move | Add) -> str | None:
        self._askers += 1
        answer = self._answers[self._askers] = _Answer()
        await self._tell(ChangeAsked(change, self._askers))
        return await answer.wait()

    async def _tell_later(self, seconds: float, event: Event) -> None:
        await trio.sleep(seconds)
        await self._tell(event)

    async def _hear_signals(self, signals: AsyncIterator[int]) -> None:
        async with aclosing(stop_requests(signals)) as requests:
            async for _ in requests:
                if self._state.stopping:
                    log.warning("asked again to stop: nothing more is waited for")
                await self._tell(StopAsked())

    async def _tell(self, event: Event) -> None:
        await self._events.send(event)


class _Answer:
    """What is told once to who waits for a change."""

    def __init__(self) -> None:
        self._told = trio.Event()
        self._refused: str | None = None

    def set(self, refused: str | None) -> None:
        self._refused = refused
        self._told.set()

    async def wait(self) -> str | None:
        await self._told.wait()
        return self._refused


def _answered(refused: str | None) -> Mapping[str, object]:
    return {} if refused is None else {"refused": refused}


def _report(state: State, number: int, code: int, pause_s: float | None) -> None:
    how = {"exit_code": code} if code >= 0 else {"signal": _signal_name(-code)}
    shards = [shard for shard, each in enumerate(state.shards) if each.process == number]
    if pause_s is None:
        log.warning("a process ended", process=number, shards=shards, **how)
    else:
        log.warning("a process ended, and is started again", process=number, shards=shards, pause_s=pause_s, **how)


def _refusal(failure: Failure) -> str:
    how = f"with exit code {failure.code}" if failure.code >= 0 else f"by {_signal_name(-failure.code)}"
    return f"process {failure.process} ended {how} before all shards were ready, and the others were stopped"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
