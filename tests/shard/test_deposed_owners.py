"""Two shards on a model of a replicated log, and owners that are deposed and do not know it.

A deposed owner is cut off from the log, and from nothing else: other shards hear it, and it hears them, until its
appends time out. So what it says must not rest on what it believes (decision 61).
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from coordinator.answers import Granted, Refusal
from datalog.batch import parse_batch_header_untrusted
from datalog.interface import ReadRequest, ReadResult
from fairlog_types import LogId, Offset, ProducerEpoch, ProducerId, ShardNumber
from partition.answers import Appended
from shard.commands import ApplyAll
from shard.conversation import Command, Message
from shard.cut_messages import Cuts, NoCut
from shard.directory import shard_directory
from shard.ends import AskedEnds, EndRefusal
from shard.owned import Epoch, OwnedShard, open_owned
from shard.partitions import Partitions
from shard.progress import CopyProgress
from shard.replica import StreamTimes, follow, open_replica
from shard.shard import Neighbours, Shard, open_storage
from stream.election import Election
from tests.clients.raw_client import batch, records_of
from tests.shard.asked_owner import AskedOwner
from tests.shard.neighbours import OVER_BOTH, SETTINGS, ProducerIds, log_of, shard_of
from tests.stream.members import NobodyWatches
from tests.stream.model_engine import Faults, ModelCluster, open_model

COORDINATOR, PARTICIPANT = ShardNumber(0), ShardNumber(1)
LOG = log_of(PARTICIPANT)
TIMES = StreamTimes(failover_s=0.05, heartbeat_s=0.02, mark_every_s=10.0)
APPEND_TIMEOUT_S = 30.0
WAIT_S = 60.0


@dataclass
class Way:
    """Carries messages to the one that each shard is taken for; some kinds of commands are lost."""

    nursery: trio.Nursery
    to: dict[ShardNumber, Shard] = field(default_factory=dict[ShardNumber, Shard])
    lost: Collection[type] = ()

    def from_(self, sender: ShardNumber) -> _From:
        return _From(self, sender)

    async def deliver(self, sender: ShardNumber, to: ShardNumber, message: Message) -> None:
        await trio.sleep(0.001)
        if to in self.to:
            self.to[to].receive(sender, message)


@dataclass
class _From:
    way: Way
    sender: ShardNumber

    def send(self, shard: ShardNumber, message: Message) -> None:
        if isinstance(message, Command) and isinstance(message.body, tuple(self.way.lost)):
            return
        self.way.nursery.start_soon(self.way.deliver, self.sender, shard, message)


@dataclass
class Owner:
    """A node that owns a shard, and serves it once it has recovered."""

    owned: OwnedShard
    nursery: trio.Nursery

    @property
    def shard(self) -> Shard:
        return self.owned.shard

    async def recover(self) -> None:
        await self.shard.recover()
        self.nursery.start_soon(self.shard.partitions.run)
        await self.shard.drain()
        await self.nursery.start(self.shard.coordinator.run)

    def kill(self) -> None:
        self.nursery.cancel_scope.cancel()


@dataclass
class Nodes:
    """What all nodes share."""

    directory: Path
    cluster: ModelCluster
    way: Way
    ids: ProducerIds = field(default_factory=ProducerIds)

    async def own(self, shard: ShardNumber, node: str) -> Owner:
        """Let the node become the owner of the shard, and hear the others."""
        owner: Owner = await self.way.nursery.start(self._own, shard, node)
        self.way.to[shard] = owner.shard
        return owner

    async def both(self, participant: str, coordinator: str) -> tuple[Owner, Owner]:
        """Owners of both shards, on these nodes, that have recovered."""
        owners = await self.own(PARTICIPANT, participant), await self.own(COORDINATOR, coordinator)
        for owner in owners:
            self.way.nursery.start_soon(owner.recover)
        await _until(lambda: all(owner.shard.has_recovered for owner in owners))
        return owners

    async def _own(self, number: ShardNumber, node: str, *, task_status: trio.TaskStatus[Owner]) -> None:
        directory = shard_directory(self.directory / node, number)
        logs = [log_of(number)]
        stream = await self.cluster.engine(node).open_stream(f"shard-{number}")

        async def adopt(_partitions: Partitions, _log: LogId) -> bool:
            return False

        async with open_storage(directory, map_bytes=2**28, watcher=NobodyWatches()) as storage:
            opening = open_replica(
                directory, storage, SETTINGS, stream, group_journals=[number], adopt=adopt, now_ms=lambda: 1_000_000
            )
            async with opening as replica:
                await replica.partitions.lead(logs)
                election = Election(node, 0, TIMES.failover_s, replica.fold.state, trio.current_time())
                await follow(replica, stream, election, node)
            neighbours = Neighbours(
                OVER_BOTH,
                lambda log: None if shard_of(log) == number else shard_of(log),
                trio.lowlevel.checkpoint,
                self.way.from_(number),
            )
            sizes = {kind: each.segment_bytes_max for kind, each in SETTINGS.of_journals().items()}
            epoch = Epoch(stream, replica.fold, storage.flusher, sizes, TIMES)
            async with trio.open_nursery() as appending:
                appending.start_soon(epoch.writer.run)
                async with (
                    open_owned(
                        directory,
                        storage,
                        SETTINGS,
                        epoch,
                        mark_every_s=TIMES.mark_every_s,
                        progress=CopyProgress(),
                        producer_ids=self.ids,
                        offsets_decided=lambda _log, _txid, _offset: None,
                        now_ms=lambda: 1_000_000,
                        neighbours=neighbours,
                    ) as owned,
                    trio.open_nursery() as nursery,
                ):
                    await owned.shard.lead(logs)
                    await nursery.start(owned.shard.run_links)
                    task_status.started(Owner(owned, nursery))
                    await trio.sleep_forever()
                appending.cancel_scope.cancel()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncGenerator[Nodes, None]:
    faults = Faults(append_timeout_s=APPEND_TIMEOUT_S)
    async with open_model(random.Random(1), faults) as cluster, trio.open_nursery() as nursery:
        with trio.fail_after(WAIT_S):
            yield Nodes(tmp_path, cluster, Way(nursery))
        nursery.cancel_scope.cancel()


async def _write(coordinator: Owner, participant: Owner) -> Granted:
    """One record, in a transaction that is open."""
    service = coordinator.shard.coordinator
    granted = await service.init_producer_id("t", 60_000, ProducerId(-1), ProducerEpoch(-1), 0)
    assert isinstance(granted, Granted)
    assert await service.add_logs("t", granted.producer_id, granted.epoch, [LOG], 0) == {LOG: None}
    data = batch([b"v"], producer_id=granted.producer_id, epoch=granted.epoch, sequence=0, transactional=True)
    partitions = participant.shard.partitions
    answer = await partitions.by_log[LOG].append(
        data, parse_batch_header_untrusted(data), partitions.open_transaction_of(granted.producer_id)
    )
    assert isinstance(answer, Appended)
    assert answer.durable_at is not None
    await partitions.by_log[LOG].durable(answer.durable_at)
    return granted


async def _written_behind_a_deposed_one(nodes: Nodes) -> tuple[Owner, Owner, Owner, Granted]:
    """A deposed participant, the coordinator, and the present participant, with a record in an open transaction."""
    deposed, first = await nodes.both("deposed", "first")
    nodes.cluster.cut("deposed")
    present = await nodes.own(PARTICIPANT, "present")
    await present.recover()
    return deposed, first, present, await _write(first, present)


async def _values(owner: Owner) -> list[bytes]:
    await owner.shard.drain()
    (read,) = owner.shard.data_logs.read([ReadRequest(LOG, Offset(0), 1 << 20)], bytes_max=1 << 20)
    assert isinstance(read, ReadResult)
    return [value for each in read.batches for _, value in records_of(each) if value is not None]


async def test_deposed_participant_does_not_say_that_it_shows_what_it_has_never_heard_of(nodes: Nodes) -> None:
    """Else the coordinator takes the commit for done, and the present owner aborts what it has PREPARED."""
    deposed, first, present, granted = await _written_behind_a_deposed_one(nodes)
    nodes.way.lost = [ApplyAll]
    assert await first.shard.coordinator.end("t", granted.producer_id, granted.epoch, True, 0) is None
    first.kill()
    nodes.way.lost = []

    nodes.way.to[PARTICIPANT] = deposed.shard
    second = await nodes.own(COORDINATOR, "second")
    nodes.way.nursery.start_soon(second.recover)
    with trio.move_on_after(1):
        await _until(lambda: second.shard.has_recovered and not second.shard.coordinator.undecided())
    assert not deposed.owned.over.is_set(), "the test takes too long: it does not try what it is to try"
    nodes.way.to[PARTICIPANT] = present.shard
    await _until(lambda: second.shard.has_recovered and not second.shard.coordinator.undecided())
    await trio.sleep(0.2)
    assert await _values(present) == [b"v"]
    assert not present.shard.partitions.by_log[LOG].state.open_transactions


async def test_deposed_coordinator_does_not_say_what_goes_on(nodes: Nodes) -> None:
    """Else a participant that starts, and has heard of no other coordinator, aborts what it has PREPARED."""
    one, deposed = await nodes.both("one", "deposed")
    nodes.cluster.cut("deposed")
    present = await nodes.own(COORDINATOR, "present")
    await present.recover()
    granted = await _write(present, one)
    nodes.way.lost = [ApplyAll]
    assert await present.shard.coordinator.end("t", granted.producer_id, granted.epoch, True, 0) is None
    one.kill()
    nodes.way.lost = []

    nodes.way.to[COORDINATOR] = deposed.shard
    two = await nodes.own(PARTICIPANT, "two")
    nodes.way.nursery.start_soon(two.recover)
    with trio.move_on_after(1):
        await _until(lambda: two.shard.has_recovered)
    assert not deposed.owned.over.is_set(), "the test takes too long: it does not try what it is to try"
    nodes.way.to[COORDINATOR] = present.shard
    await _until(lambda: two.shard.has_recovered and not present.shard.coordinator.undecided())
    assert await _values(two) == [b"v"]


async def test_batch_of_a_transaction_is_answered_when_it_is_accepted(nodes: Nodes) -> None:
    """A deposed owner may have an earlier transaction of the producer open: the present one would commit without it."""
    one, first = await nodes.both("one", "first")
    granted = await _write(first, one)
    nodes.cluster.cut("one")
    data = batch([b"w"], producer_id=granted.producer_id, epoch=granted.epoch, sequence=1, transactional=True)
    partitions = one.shard.partitions
    answer = await partitions.by_log[LOG].append(
        data, parse_batch_header_untrusted(data), partitions.open_transaction_of(granted.producer_id)
    )
    assert isinstance(answer, Appended)
    assert answer.durable_at is not None
    with trio.move_on_after(0.3) as waiting:
        await partitions.by_log[LOG].durable(answer.durable_at)
    assert waiting.cancelled_caught


async def test_copier_that_waits_for_what_nobody_accepts_is_no_failed_disk(nodes: Nodes) -> None:
    """The node goes on as a replica: with a failed disk it would have to end."""
    one = await nodes.own(COORDINATOR, "one")
    await one.recover()
    nodes.cluster.cut("one")
    data = batch([b"plain"])
    log = log_of(COORDINATOR)
    answer = await one.shard.partitions.by_log[log].append(data, parse_batch_header_untrusted(data), None)
    assert isinstance(answer, Appended)
    await nodes.own(COORDINATOR, "two")
    nodes.cluster.join("one")
    await one.owned.over.wait()
    await _until(lambda: one.shard.partitions.failed_copy is not None)
    assert one.owned.failed_disk is None


async def test_deposed_taker_of_cuts_takes_none(nodes: Nodes) -> None:
    """Its own shard may have committed meanwhile what the others show."""
    _, taker = await nodes.both("one", "taker")
    assert taker.shard.cutting is not None
    assert isinstance(await taker.shard.cutting.cut([LOG]), Cuts)
    nodes.cluster.cut("taker")
    cuts: Cuts | NoCut | None = None
    with trio.move_on_after(1):
        cuts = await taker.shard.cutting.cut([LOG])
    assert not taker.owned.over.is_set(), "the test takes too long: it does not try what it is to try"
    assert not isinstance(cuts, Cuts)


async def _end_told_by(owner: Owner, log: LogId, *, appends_wait: bool = False) -> Offset | EndRefusal:
    """The end of the log, as who asks for it is told it."""
    shard = owner.shard
    leads = AskedOwner(shard.partitions, shard.coordinator, owner.owned.confirm, lambda: appends_wait)
    asked = await AskedEnds.ask(leads, [log])
    assert not asked.can_be_read
    return await asked.reached(log) or shard.partitions.by_log[log].visibility.high_watermark


async def _append(owner: Owner, log: LogId) -> None:
    """One record, until it is accepted."""
    data = batch([b"plain"])
    partition = owner.shard.partitions.by_log[log]
    answer = await partition.append(data, parse_batch_header_untrusted(data), None)
    assert isinstance(answer, Appended)
    assert answer.durable_at is not None
    await partition.durable(answer.durable_at)


async def test_deposed_owner_tells_no_end(nodes: Nodes) -> None:
    """It does not know what the present one has answered; when it hears of that one, it says so."""
    log = log_of(COORDINATOR)
    deposed = await nodes.own(COORDINATOR, "deposed")
    await deposed.recover()
    await _append(deposed, log)
    assert await _end_told_by(deposed, log) == 1
    nodes.cluster.cut("deposed")
    present = await nodes.own(COORDINATOR, "present")
    await present.recover()
    await _append(present, log)
    assert await _end_told_by(present, log) == 2

    answers = _asked(nodes, _end_told_by, deposed, log)
    await trio.sleep(0.3)
    assert not deposed.owned.over.is_set(), "the test takes too long: it does not try what it is to try"
    assert answers == []
    nodes.cluster.join("deposed")
    await _until(lambda: answers)
    assert answers == [EndRefusal.DEPOSED]


async def test_end_is_told_by_who_owned_the_shard_when_it_was_asked(nodes: Nodes) -> None:
    """What was appended before the question says nothing: another one may own the shard since then."""
    log = log_of(COORDINATOR)
    owner = await nodes.own(COORDINATOR, "owner")
    await owner.recover()
    nodes.cluster.cut("owner")
    _asked(nodes, _append, owner, log)
    await _until(lambda: owner.owned.writer.unaccepted_bytes)
    appended = owner.owned.writer.appended
    answers = _asked(nodes, _end_told_by, owner, log)
    await trio.sleep(0.1)
    nodes.cluster.join("owner")
    await _until(lambda: answers)
    assert answers == [1]
    assert owner.owned.writer.state.sequence > appended


async def test_question_for_an_end_is_refused_at_once_while_nothing_is_accepted(nodes: Nodes) -> None:
    """Whoever asks again may find another owner by then."""
    owner = await nodes.own(COORDINATOR, "owner")
    await owner.recover()
    nodes.cluster.cut("owner")
    with trio.fail_after(1):
        assert await _end_told_by(owner, log_of(COORDINATOR), appends_wait=True) is EndRefusal.NOT_YET


async def test_open_transaction_goes_on_when_its_owners_are_killed(nodes: Nodes) -> None:
    """What was answered of it is accepted, so the next owners commit it with all its records."""
    one, first = await nodes.both("one", "first")
    granted = await _write(first, one)
    one.kill()
    first.kill()
    two, second = await nodes.both("two", "second")
    assert await second.shard.coordinator.end("t", granted.producer_id, granted.epoch, True, 0) is None
    await _shown(two)
    assert await _values(two) == [b"v"]


async def test_deposed_coordinator_discards_nothing(nodes: Nodes) -> None:
    """Nor does it say that it has: the next owner goes on with the transaction, and commits its records."""
    one, first = await nodes.both("one", "first")
    granted = await _write(first, one)
    nodes.cluster.cut("first")
    answers = _asked(nodes, first.shard.coordinator.end, "t", granted.producer_id, granted.epoch, False, 0)
    await trio.sleep(0.3)
    assert answers == []
    assert one.shard.partitions.by_log[LOG].state.open_transactions
    second = await nodes.own(COORDINATOR, "second")
    await second.recover()
    assert await second.shard.coordinator.end("t", granted.producer_id, granted.epoch, True, 0) is None
    await _shown(one)
    assert await _values(one) == [b"v"]


async def test_begin_is_answered_when_it_is_accepted(nodes: Nodes) -> None:
    """Else the next owner cannot tell the commit that the client asks for from a repetition of its last one."""
    one = await nodes.own(COORDINATOR, "one")
    await one.recover()
    granted = await one.shard.coordinator.init_producer_id("t", 60_000, ProducerId(-1), ProducerEpoch(-1), 0)
    assert isinstance(granted, Granted)
    nodes.cluster.cut("one")
    logs = [log_of(COORDINATOR)]
    answers = _asked(nodes, one.shard.coordinator.add_logs, "t", granted.producer_id, granted.epoch, logs, 0)
    await trio.sleep(0.3)
    assert answers == []


async def test_deposed_participant_begins_nothing(nodes: Nodes) -> None:
    """The present owner may have the producer's last transaction open, and would take the batches for that one."""
    _, first = await nodes.both("deposed", "first")
    granted = await first.shard.coordinator.init_producer_id("t", 60_000, ProducerId(-1), ProducerEpoch(-1), 0)
    assert isinstance(granted, Granted)
    nodes.cluster.cut("deposed")
    logs, add_logs = [LOG], first.shard.coordinator.add_logs
    answers = _asked(nodes, add_logs, "t", granted.producer_id, granted.epoch, logs, 0)
    await trio.sleep(0.3)
    assert answers == []
    present = await nodes.own(PARTICIPANT, "present")
    await present.recover()
    nodes.cluster.join("deposed")
    await _until(lambda: answers)
    assert answers == [{LOG: None}]
    assert present.shard.partitions.open_transaction_of(granted.producer_id) is not None


async def test_deposed_participant_resumes_nothing(nodes: Nodes) -> None:
    """It knows nothing of a transaction that its next owner has begun: the coordinator would abort it."""
    deposed, first, present, granted = await _written_behind_a_deposed_one(nodes)
    first.kill()

    nodes.way.to[PARTICIPANT] = deposed.shard
    second = await nodes.own(COORDINATOR, "second")
    nodes.way.nursery.start_soon(second.recover)
    await trio.sleep(0.3)
    nodes.way.to[PARTICIPANT] = present.shard
    await _until(lambda: second.shard.has_recovered)
    assert await second.shard.coordinator.end("t", granted.producer_id, granted.epoch, True, 0) is None
    await _shown(present)
    assert await _values(present) == [b"v"]


@pytest.mark.parametrize("commits", [True, False])
async def test_deposed_coordinator_refuses_nothing_from_memory(nodes: Nodes, commits: bool) -> None:
    """The next owner may have granted the epoch, or know the id: a client that is told that it is fenced gives up."""
    one, first = await nodes.both("one", "first")
    granted = await _write(first, one)
    nodes.cluster.cut("first")
    later = ProducerEpoch(granted.epoch + 1)
    service = first.shard.coordinator
    answers = [
        _asked(nodes, service.end, "t", granted.producer_id, later, commits, 0),
        _asked(nodes, service.end_epoch, "other", granted.producer_id, granted.epoch, commits),
    ]
    await trio.sleep(0.3)
    assert answers == [[], []]
    nodes.cluster.join("first")
    await _until(lambda: all(answers))
    assert answers == [[Refusal.FENCED], [Refusal.UNKNOWN_PRODUCER_ID_MAPPING]]


@pytest.mark.parametrize("ends", [True, False])
async def test_deposed_coordinator_answers_nothing_from_memory(nodes: Nodes, ends: bool) -> None:
    """It may be a transaction behind: an end that it takes for a repetition is meant for the one that is open now."""
    one, first = await nodes.both("one", "first")
    granted = await _write(first, one)
    service, who = first.shard.coordinator, ("t", granted.producer_id, granted.epoch)
    if ends:
        assert await service.end(*who, True, 0) is None
    nodes.cluster.cut("first")
    answers = _asked(nodes, service.end, *who, True, 0) if ends else _asked(nodes, service.add_logs, *who, [LOG], 0)
    await trio.sleep(0.3)
    assert answers == []


async def test_repetition_is_answered_by_the_owner(nodes: Nodes) -> None:
    """Once an entry that was appended afterwards is accepted."""
    one, first = await nodes.both("one", "first")
    granted = await _write(first, one)
    for _ in range(2):
        assert await first.shard.coordinator.end("t", granted.producer_id, granted.epoch, True, 0) is None


async def test_kept_cuts_of_two_owners_have_no_number_in_common(nodes: Nodes) -> None:
    """The next owner may not have the copy in which those of the last one are: its numbers go on behind them."""
    _, first = await nodes.both("one", "first")
    assert first.shard.cutting is not None
    while await first.shard.cutting.keep() is not None:  # noqa: ASYNC110 - commits may be under way
        await trio.sleep(0.05)
    assert first.shard.data_logs.newest_cut >> 32 == first.shard.leader_epoch
    nodes.cluster.cut("first")
    second = await nodes.own(COORDINATOR, "second")
    await second.recover()
    assert second.shard.cutting is not None
    while await second.shard.cutting.keep() is not None:  # noqa: ASYNC110
        await trio.sleep(0.05)
    assert second.shard.data_logs.newest_cut >> 32 == second.shard.leader_epoch > first.shard.leader_epoch


def _asked(nodes: Nodes, request, *arguments) -> list[object]:
    """What is answered, once it is: an owner waits for the log also if nobody waits for the owner."""
    answers: list[object] = []

    async def ask() -> None:
        answers.append(await request(*arguments))

    nodes.way.nursery.start_soon(ask)
    return answers


async def _shown(owner: Owner) -> None:
    """Return when the owner shows something."""
    while not await _values(owner):  # noqa: ASYNC110
        await trio.sleep(0.01)


async def _until(condition) -> None:
    while not condition():  # noqa: ASYNC110
        await trio.sleep(0.01)
