"""Programs of raw requests, carried out on a node that dies and starts again.

`raw_programs` says what is in a program, and `raw_rule` what all of them have to keep.

The node is that of the simulation (`tests.simulation.machine`): the real coordinator, leaders, journals, copier and
committed offsets, on a disk and a clock in memory. A program of 30 steps takes some 20 ms.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, count
from typing import Any
from uuid import UUID

import trio

from coordinator.answers import Granted, GrantedToEnd, Refusal
from coordinator.settings import CoordinatorSettings
from datalog.batch import parse_stored_header
from datalog.control_batch import decode_control_batch
from datalog.environment import LmdbDataLogs
from datalog.interface import ReadRequest, ReadResult
from fairlog.groups.committed import CommittedOffsets, OffsetsSettings, OffsetsStorage
from fairlog.groups.offset_index import OffsetIndex
from fairlog.groups.offset_producers import OffsetProducers
from fairlog.groups.offset_values import NewOffset, Sender, TransactionalProducer
from fairlog_types import LogId, Offset, ProducerEpoch, ProducerId, TxId
from partition.answers import DuplicateOf, RefusedAppend
from partition.modes import MARKERS, TransactionMode
from shard.offsets import OffsetsLogs
from shard.shard import Shard
from tests.clients.raw_client import batch, records_of
from tests.node.raw_programs import (
    CHECK_MS,
    FOREVER_S,
    IDS,
    LOGS,
    LONG_S,
    SHORT_S,
    TIMEOUT_MS,
    AbortByMarker,
    AbortOpen,
    Add,
    AddOffsets,
    CommitOffsets,
    DieLater,
    End,
    Init,
    Produce,
    Reconnect,
    Request,
    Restart,
    Step,
    Together,
    Wait,
    Which,
    Write,
)
from tests.node.raw_rule import BrokenRule, EpochLedger, Item, Ledgers
from tests.shard.runs import read_committed
from tests.simulation.machine import PATIENCE_S, Machine, Node
from tests.simulation.plan import Death, Plan
from tests.simulation.simulation import Scheduler, deterministic
from tests.simulation.world import World

_TOPIC = UUID(int=7).hex
_PLAN = Plan(
    seed="raw",
    logs=len(LOGS),
    transactional=0,
    rivals=0,
    plain=0,
    readers=0,
    deaths=(),
    segment_bytes=12 * 1024,
    group_journals=1,
    ring=False,
    pause_probability=0.0,
    slow_sync_s=0.0005,
    lost_requests=0.0,
    late_requests=0.0,
)


class _Lost(Enum):
    LOST = "no answer came: the node has died"


_LOST = _Lost.LOST


@dataclass
class _Client:
    """One transactional id: what it was granted, and its connections to the run of the node that serves."""

    name: str
    granted: list[Granted] = field(default_factory=list)
    ordinals: dict[int, int] = field(default_factory=dict)
    node: Node | None = None


class _NoMembers:
    """A `Membership` in which nobody is a member, and everybody may commit."""

    def may_commit(self, *_: object, **__: object) -> None:
        return None


class _NoTopics:
    def topic_by_id(self, topic_id: UUID) -> None:
        return None


def carry_out(program: Sequence[Step], *, mode: TransactionMode, fence_on_timeout: bool) -> Mapping[str, int]:
    """Run the program; what was counted. Raises BrokenRule, with all that was said, and whatever the node raises."""
    world = World("raw")
    settings = CoordinatorSettings(
        check_interval_ms=CHECK_MS, min_timeout_ms=TIMEOUT_MS, fence_on_timeout=fence_on_timeout
    )
    machine = Machine(
        world, _PLAN, LOGS, markers=LOGS if mode is MARKERS else (), settings=settings, make_offsets=_make_offsets
    )
    course = _Course(machine, mode)
    with deterministic(world):
        try:
            trio.run(course.run, program, clock=world.clock)
        except BaseExceptionGroup as group:
            broken = group.subgroup(BrokenRule)
            if broken is None:
                raise
            raise BrokenRule("\n".join([str(_first(broken)), *world.transcript])) from None
    if world.violation is not None:
        raise BrokenRule("\n".join([str(world.violation), *world.transcript]))
    return world.counts


def _committed_in(data_logs: LmdbDataLogs, log: LogId, mode: TransactionMode) -> Sequence[int]:
    """What is committed, also where readers of committed records do not get yet, since others are open before it."""
    (answer,) = data_logs.read([ReadRequest(log, Offset(0), 1 << 30)], bytes_max=1 << 30)
    assert isinstance(answer, ReadResult)
    committed: list[int] = []
    undecided: dict[int, list[int]] = {}
    for data in answer.batches:
        header = parse_stored_header(data)
        if header.control:
            ended = undecided.pop(header.producer_id, [])
            committed += ended if decode_control_batch(data).committed else []
        else:
            values = [int(value or b"") for _, value in records_of(data)]
            undecided.setdefault(header.producer_id, []).extend(values)
    return committed if mode is MARKERS else [*chain.from_iterable(undecided.values())]


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def _make_offsets(shard: Shard, index: OffsetIndex) -> CommittedOffsets:
    members: Any = _NoMembers()
    return CommittedOffsets(
        OffsetsStorage(1, [LogId.of_offsets(0)], OffsetsLogs(shard.partitions, shard.coordinator), shard.data_logs),
        index,
        members,
        OffsetProducers(shard.coordinator, now_ms=lambda: 0),
        _NoTopics(),
        OffsetsSettings(commit_bytes_max=10_000, retention_ms=3_600_000, check_interval_ms=3_600_000),
        now_ms=lambda: 0,
    )


class _Course:
    """One program, under way."""

    def __init__(self, machine: Machine, mode: TransactionMode) -> None:
        self._machine = machine
        self._world = machine.world
        self._mode = mode
        self._clients = [_Client(f"id-{number}") for number in range(IDS)]
        self._ledgers = Ledgers()
        self._numbers = count()
        self._has_started = trio.Event()
        self._stop = trio.Event()
        self._next_death = Death("stop", FOREVER_S)
        self._down_s = 0.0

    async def run(self, program: Sequence[Step]) -> None:
        trio.lowlevel.add_instrument(Scheduler(self._machine))
        with self._machine.calls.installed(), self._machine.workers.installed(), self._world.finished:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._live)
                for client in self._clients:
                    await self._init(client, Init(0))
                for step in program:
                    await self._take(step)
                await self._conclude()
                nursery.cancel_scope.cancel()

    async def _live(self) -> None:
        """One run of the node after the other."""
        while True:
            death, self._next_death = self._next_death, Death("stop", FOREVER_S)
            self._stop = trio.Event()
            await self._machine.run_node(death, until=self._stop, after_recovery=self._started)
            await trio.sleep(self._down_s)
            self._down_s = 0.0

    async def _started(self, _node: Node) -> None:
        await trio.lowlevel.checkpoint()
        self._has_started.set()

    async def _conclude(self) -> None:
        """The last transactions are ended by new instances; then, and after a loss of power, all is as it should be."""
        self._machine.arm(Death("stop", FOREVER_S))
        for client in self._clients:
            await self._init(client, Init(0))
        await self._look(nothing_is_open=True)
        await self._restart(Restart("power cut"))
        await self._look(nothing_is_open=True)

    # --- steps ---

    async def _take(self, step: Step) -> None:
        match step:
            case Init():
                await self._init(self._clients[step.id], step, tries=1)
            case Add():
                await self._add(step, [LOGS[log] for log in step.logs])
            case Produce():
                await self._produce(step, step.log, step.which)
            case Write():
                await self._add(step, [LOGS[step.log]])
                await self._produce(step, step.log, Which.NEXT)
            case AddOffsets():
                await self._add(step, [LogId.of_offsets(0)])
            case CommitOffsets():
                await self._commit_offsets(step)
            case End():
                await self._note_end(step, await self._end(step))
            case Together():
                await self._send_together(step)
            case Reconnect():
                self._clients[step.id].ordinals.pop(step.connection, None)
            case AbortOpen():
                name = self._clients[step.id].name
                await self._ask(f"operator aborts {name}", lambda node: node.coordinator.abort_open(name))
            case AbortByMarker():
                await self._abort_by_marker(step)
            case Wait():
                await trio.sleep(LONG_S if step.long else SHORT_S)
            case Restart():
                await self._restart(step)
            case DieLater():
                self._machine.arm(Death(step.kind, FOREVER_S, at_step=step.at_step))
            case _:
                raise AssertionError(step)

    async def _restart(self, step: Restart) -> None:
        await self._machine.came_up.wait()
        self._down_s = LONG_S if step.long else 0.0
        if step.again_at is not None:
            self._next_death = Death(step.kind, FOREVER_S, at_step=step.again_at)
        restarted = self._has_started = trio.Event()
        if step.kind == "stop":
            self._stop.set()
        else:
            self._machine.die(step.kind)
        await restarted.wait()

    async def _init(self, client: _Client, step: Init, tries: int = 20) -> None:
        producer_id, epoch = self._producer(client, step) if step.named else (ProducerId(-1), ProducerEpoch(-1))

        def init(node: Node) -> Awaitable[object]:
            connection = self._ordinal(client, node, step.connection)
            return node.coordinator.init_producer_id(
                client.name, TIMEOUT_MS, producer_id, epoch, connection, keeps=step.keeps
            )

        for _ in range(tries):
            said = f"{client.name} inits {producer_id}/{epoch}" if step.named else f"{client.name} inits"
            answer = await self._ask(said, init)
            if isinstance(answer, GrantedToEnd):
                self._keep(client, answer)
                return
            if isinstance(answer, Granted):
                for granted in client.granted:
                    self._ledgers.of(granted.producer_id, granted.epoch).ends(False)
                self._note_grant(client, answer)
                return
        assert tries == 1, "no new instance is granted the id"

    def _keep(self, client: _Client, answer: GrantedToEnd) -> None:
        kept = self._ledgers.of(answer.kept.producer_id, answer.kept.epoch)
        for granted in client.granted:
            ledger = self._ledgers.of(granted.producer_id, granted.epoch)
            if ledger is not kept:
                ledger.ends(False)
        self._ledgers.goes_on(kept, answer.granted.producer_id, answer.granted.epoch)
        self._note_grant(client, answer.granted)
        self._world.count("kept")

    def _note_grant(self, client: _Client, granted: Granted) -> None:
        if granted not in client.granted:
            client.granted.append(granted)

    async def _add(self, step: Request, logs: Sequence[LogId]) -> None:
        client = self._clients[step.id]
        producer_id, epoch = self._producer(client, step)
        answer = await self._ask(
            f"{client.name} adds {','.join(str(log) for log in logs)} in epoch {epoch}",
            lambda node: node.coordinator.add_logs(
                client.name, producer_id, epoch, logs, self._ordinal(client, node, step.connection)
            ),
        )
        if isinstance(answer, dict):
            self._ledgers.of(producer_id, epoch).added.update(log.partition for log in logs if log in LOGS)

    async def _produce(self, step: Request, log: int, which: Which) -> None:
        client = self._clients[step.id]
        producer_id, epoch = self._producer(client, step)
        ledger = self._ledgers.of(producer_id, epoch)
        item = self._batch(ledger, producer_id, epoch, log, which)
        if item is None:
            return
        answer = await self._ask(
            f"{client.name} produces {item} to {log} in epoch {epoch}, sequence {item.sequence}",
            lambda node: node.produce(client.name, LOGS[log], bytearray(item.data)),
        )
        if answer is _LOST:
            ledger.loses(item)
        elif not isinstance(answer, RefusedAppend):
            ledger.answers(item, again=isinstance(answer, DuplicateOf))
        if answer is _LOST or not isinstance(answer, RefusedAppend):
            ledger.next[log] = max(item.sequence + 1, ledger.next.get(log, 0))

    def _batch(
        self, ledger: EpochLedger, producer_id: ProducerId, epoch: ProducerEpoch, log: int, which: Which
    ) -> Item | None:
        """None if there is no such batch, or if it would be another one with the number of one that is sent already."""
        if which is Which.REPEATED:
            return ledger.last.get(log)
        sequence = ledger.next.get(log, 0) if which is Which.NEXT else ledger.ended.get(log)
        if (
            sequence is None
            or ledger.has_sent(log, sequence)
            or (which is Which.RENUMBERED and log not in ledger.added)
        ):
            return None
        number = next(self._numbers)
        data = batch([b"%d" % number], producer_id=producer_id, epoch=epoch, sequence=sequence, transactional=True)
        item = ledger.last[log] = self._ledgers.new(Item(number, log, bytes(data), sequence))
        return item

    async def _commit_offsets(self, step: CommitOffsets) -> None:
        client = self._clients[step.id]
        producer_id, epoch = self._producer(client, step)
        ledger = self._ledgers.of(producer_id, epoch)
        item = self._ledgers.new(Item(next(self._numbers), None))

        def commit(node: Node) -> Awaitable[object]:
            assert node.offsets is not None
            ordinal = self._ordinal(client, node, step.connection)
            producer = TransactionalProducer(client.name, producer_id, epoch, ordinal)
            offset = NewOffset((_TOPIC, item.number), item.number, -1, "")
            return node.offsets.commit_in_transaction("group", Sender(), producer, [offset])

        answer = await self._ask(f"{client.name} commits {item} in epoch {epoch}", commit)
        if answer is _LOST:
            ledger.loses(item)
        elif answer is None:
            ledger.answers(item)

    async def _send_together(self, step: Together) -> None:
        """What the other request was answered for belongs to the transaction that is ended."""
        answers: list[object] = []

        async def end() -> None:
            answers.append(await self._end(step.end))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end)
            for _ in range(step.steps_later):
                await trio.lowlevel.checkpoint()
            await self._take(step.other)
        await self._note_end(step.end, answers[0])

    async def _end(self, step: End) -> Any:
        client = self._clients[step.id]
        producer_id, epoch = self._producer(client, step)

        def end(node: Node) -> Awaitable[object]:
            if step.grants:
                return node.coordinator.end_epoch(client.name, producer_id, epoch, step.commit)
            ordinal = self._ordinal(client, node, step.connection)
            return node.coordinator.end(client.name, producer_id, epoch, step.commit, ordinal)

        return await self._ask(f"{client.name} {'commits' if step.commit else 'aborts'} in epoch {epoch}", end)

    async def _note_end(self, step: End, answer: object) -> None:
        ledger = self._ledgers.of(*self._producer(self._clients[step.id], step))
        if answer is _LOST:
            ledger.loses_end(step.commit)
        elif answer is None or isinstance(answer, Granted):
            self._world.count("commits" if step.commit else "aborts")
            ledger.ends(step.commit)
            if answer is not None:
                self._note_grant(self._clients[step.id], answer)
            await self._look()

    async def _abort_by_marker(self, step: AbortByMarker) -> None:
        if self._mode is not MARKERS:
            return
        client = self._clients[step.id]
        producer_id, epoch = self._producer(client, Request(step.id))

        async def abort(node: Node) -> None:
            """What the handler of WriteTxnMarkers does."""
            found = node.partition(LOGS[step.log]).open_for_abort(producer_id, epoch, node.number)
            if isinstance(found, TxId):
                await node.coordinator.abort_by_marker(found)

        await self._ask(f"an administrator aborts {client.name} in {step.log}", abort)

    # --- asking ---

    async def _ask(self, what: str, request: Callable[[Node], Awaitable[Any]]) -> Any:
        """The answer, or LOST if the node dies meanwhile. Raises BrokenRule if neither comes."""
        with trio.move_on_after(PATIENCE_S) as patience:
            return await self._answer(what, request)
        assert patience.cancelled_caught
        raise BrokenRule(f"{what}: no answer in {PATIENCE_S:.0f} s")

    async def _answer(self, what: str, request: Callable[[Node], Awaitable[Any]]) -> Any:
        while (node := self._machine.node) is None:
            await self._machine.came_up.wait()
        box: list[object] = []
        came = trio.Event()

        async def serve() -> None:
            try:
                answer = await request(node)
                if node.alive:
                    box.append(answer)
            finally:
                came.set()

        node.serving.start_soon(serve)
        await came.wait()
        answer = box[0] if box else _LOST
        self._world.note("client", f"{what}: {answer.name if isinstance(answer, Enum) else answer}")
        self._world.count("answers" if box else "lost answers")
        if isinstance(answer, Refusal | RefusedAppend):
            self._world.count("refusals")
        return answer

    def _ordinal(self, client: _Client, node: Node, connection: int) -> int:
        """Of the client's connection, which is opened when it is first used."""
        if client.node is not node:
            client.node, client.ordinals = node, {}
        return client.ordinals.setdefault(connection, next(node.connections))

    def _producer(self, client: _Client, step: Request) -> tuple[ProducerId, ProducerEpoch]:
        granted = client.granted[max(0, len(client.granted) - 1 - step.back)]
        return granted.producer_id, granted.epoch

    # --- looking ---

    async def _look(self, *, nothing_is_open: bool = False) -> None:
        """Read everything, and hold it against the rule. If the node dies meanwhile, another look comes."""

        async def read(node: Node) -> set[int]:
            assert node.offsets is not None
            await node.shard.drain()
            found = [number for log in LOGS for number in _committed_in(node.data_logs, log, self._mode)]
            if nothing_is_open:
                readers = [
                    int(value or b"") for rows in read_committed(node.data_logs, LOGS).values() for _, value in rows
                ]
                if sorted(readers) != sorted(found):
                    raise BrokenRule(f"readers of committed records find {readers}, where {found} are committed")
            if len(found) != len(set(found)):
                raise BrokenRule(f"something is visible twice: {sorted(found)}")
            offsets = await node.offsets.fetch("group", None, require_stable=False)
            assert offsets is not None
            return set(found) | {partition for _, partition in offsets}

        seen = await self._ask("all is read", read)
        if seen is not _LOST:
            self._ledgers.judge(seen)
