"""The offset APIs: what reaches the committed offsets, line by line, and how their refusals come back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from kafka.protocol.consumer import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from kafka.protocol.producer import TxnOffsetCommitRequest

from coordinator.answers import Refusal
from datalog.offset_entries import CommittedOffset
from fairlog.groups.interface import GroupRefusal
from fairlog.groups.offset_values import NewOffset, OffsetRefusal, Sender, TransactionalProducer
from fairlog.kafka.answer_budget import AnswerBudget, AnswerRoom
from fairlog.kafka.api import Context
from fairlog.kafka.errors import COORDINATOR_REFUSALS, GROUP_REFUSALS, ErrorCode
from fairlog.kafka.handlers import (
    api_08_offset_commit,
    api_09_offset_fetch,
    api_25_add_offsets_to_txn,
    api_28_txn_offset_commit,
)
from fairlog.kafka.must_abort import must_abort_code
from fairlog.kafka.wire import Reader, Writer
from fairlog_types import LogId, Offset, StorageFailure
from partition.answers import RefusedAppend

COMMIT, FETCH, ADD, TXN_COMMIT, DELETE = 8, 9, 25, 28, 47


NAMES_TOPICS_MAX = 9
"""OffsetCommit and OffsetFetch name topics by id from the next version on (`test_consumer_groups.py`)."""


def versions(api):
    return pytest.mark.parametrize("version", range(api.SERVED.min, min(api.SERVED.max, NAMES_TOPICS_MAX) + 1))


def lines(request_topic, *entries):
    """Topics of OffsetCommit or TxnOffsetCommit; an entry is (topic, partition, offset, leader epoch, metadata)."""
    partition_class = next(getattr(request_topic, name) for name in dir(request_topic) if name.endswith("Partition"))
    topics = {}
    for name, partition, offset, leader_epoch, metadata in entries:
        topics.setdefault(name, []).append(
            partition_class(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                committed_metadata=metadata,
            )
        )
    return [request_topic(name=name, partitions=partitions) for name, partitions in topics.items()]


def commit(*entries, group="g", member_id="m", generation=3, instance_id=None):
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "retention_time_ms": 5,
        "topics": lines(OffsetCommitRequest.OffsetCommitRequestTopic, *entries),
    }


def txn_commit(*entries, transactional_id="tx", group="g"):
    return {
        "transactional_id": transactional_id,
        "group_id": group,
        "producer_id": 41,
        "producer_epoch": 2,
        "generation_id": 3,
        "member_id": "m",
        "group_instance_id": "i",
        "topics": lines(TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic, *entries),
    }


def errors(answer):
    return {(t.name, p.partition_index): p.error_code for t in answer.topics for p in t.partitions}


def fetch(version, *, group="g", topics=(("t", (0, 1)),), require_stable=False):
    if version >= 8:
        topic = OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics
        asked = None if topics is None else [topic(name=n, partition_indexes=list(ps)) for n, ps in topics]
        groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=asked)]
        return {"groups": groups, "require_stable": require_stable}
    topic = OffsetFetchRequest.OffsetFetchRequestTopic
    asked = None if topics is None else [topic(name=n, partition_indexes=list(ps)) for n, ps in topics]
    return {"group_id": group, "topics": asked, "require_stable": require_stable}


def told(answer, version):
    """Per (topic, partition): offset, leader epoch, metadata, error; and the error of the whole."""
    whole = answer.groups[0] if version >= 8 else answer
    found = {
        (t.name, p.partition_index): (
            p.committed_offset,
            p.committed_leader_epoch if version >= 5 else -1,
            p.metadata,
            p.error_code,
        )
        for t in whole.topics
        for p in t.partitions
    }
    return found, whole.error_code if version >= 2 else 0


def keep(memory, offset=7, partition=0, topic="t", group="g", leader_epoch=4, metadata="m"):
    place = (memory.cluster.by_name[topic].topic_id.hex, partition)
    value = CommittedOffset(Offset(offset), leader_epoch, metadata, 1_000)
    memory.offsets.groups.setdefault(group, {})[place] = value
    return place


@pytest.fixture
def topic(memory):
    memory.topics.create_now("t", partitions=2)
    return memory.cluster.by_name["t"].topic_id.hex


# --- OffsetCommit ----------------------------------------------------------------------------------


@versions(api_08_offset_commit)
async def test_commit_reaches_the_group_with_its_sender(ask, memory, topic, version):
    """Offset, metadata, leader epoch and who sends it, as far as the version has them; null metadata is none."""
    entries = (("t", 0, 11, 4, "meta"), ("t", 1, 12, -1, None))
    answer = await ask(COMMIT, version, **commit(*entries, instance_id="i" if version >= 7 else None))
    assert errors(answer) == {("t", 0): 0, ("t", 1): 0}
    assert memory.offsets.calls == [("commit", "g", Sender("m", "i" if version >= 7 else None, 3))]
    epoch = 4 if version >= 6 else -1
    assert memory.offsets.groups["g"] == {
        (topic, 0): CommittedOffset(Offset(11), epoch, "meta", 1_000),
        (topic, 1): CommittedOffset(Offset(12), -1, "", 1_000),
    }


async def test_commit_of_partitions_that_are_not_there_is_refused_for_them_alone(ask, memory, topic):
    """An unknown topic, a partition behind the last, a negative one; the others are committed."""
    answer = await ask(
        COMMIT, 8, **commit(("t", 0, 1, -1, ""), ("t", 2, 1, -1, ""), ("t", -1, 1, -1, ""), ("u", 0, 1, -1, ""))
    )
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors(answer) == {("t", 0): 0, ("t", 2): unknown, ("t", -1): unknown, ("u", 0): unknown}
    assert list(memory.offsets.groups["g"]) == [(topic, 0)]


async def test_commit_with_too_long_a_metadata_string_is_refused_for_its_partition_alone(ask, memory, topic):
    """`offsets.metadata_bytes_max` counts bytes of UTF-8; exactly so many are taken."""
    memory.settings = replace(memory.settings, offsets=replace(memory.settings.offsets, metadata_bytes_max=6))
    answer = await ask(COMMIT, 8, **commit(("t", 0, 1, -1, "\u00e9" * 3), ("t", 1, 1, -1, "\u00e9\u00e9\u00e9x")))
    assert errors(answer) == {("t", 0): 0, ("t", 1): ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert list(memory.offsets.groups["g"]) == [(topic, 0)]


async def test_commit_of_nothing_that_could_be_taken_does_not_reach_the_group(ask, memory, topic):
    """As in Kafka: the partitions' errors come first."""
    answer = await ask(COMMIT, 8, **commit(("u", 0, 1, -1, "")))
    assert errors(answer) == {("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert errors(await ask(COMMIT, 8, **commit())) == {}
    assert memory.offsets.calls == []


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        *GROUP_REFUSALS.items(),
        (OffsetRefusal.TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        (OffsetRefusal.TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (RefusedAppend.STORAGE, ErrorCode.NOT_COORDINATOR),
        (RefusedAppend.UNKNOWN_LOG, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_commit_refused_is_told_for_each_partition(ask, memory, topic, refusal, code):
    """A refusal concerns all partitions that exist, also one with too long a metadata string, as in Kafka."""
    memory.offsets.refusal = refusal
    entries = ("t", 0, 1, -1, ""), ("t", 1, 1, -1, "m" * 5_000), ("u", 0, 1, -1, "")
    answer = await ask(COMMIT, 8, **commit(*entries))
    assert errors(answer) == {("t", 0): code, ("t", 1): code, ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_commit_that_does_not_settle_is_to_be_repeated(ask, memory, topic):
    """The disk failed, or is slow: every client asks again on COORDINATOR_NOT_AVAILABLE."""
    memory.offsets.settles = False
    assert errors(await ask(COMMIT, 8, **commit(("t", 0, 1, -1, "")))) == {("t", 0): 15}


@pytest.mark.parametrize("group", ["", "x" * 1025])
async def test_commit_for_a_group_that_cannot_be_called_so_is_refused(ask, memory, topic, group):
    """An empty name, or one that is too long to stand in every offset, reaches nobody."""
    answer = await ask(COMMIT, 8, **commit(("t", 0, 1, -1, ""), group=group))
    assert errors(answer) == {("t", 0): ErrorCode.INVALID_GROUP_ID}
    assert errors(await ask(TXN_COMMIT, 3, **txn_commit(("t", 0, 1, -1, ""), group=group))) == {
        ("t", 0): ErrorCode.INVALID_GROUP_ID
    }
    assert memory.offsets.calls == []


# --- OffsetFetch -----------------------------------------------------------------------------------


@versions(api_09_offset_fetch)
async def test_fetch_answers_what_was_committed(ask, memory, topic, version):
    """Offset, leader epoch and metadata; -1 without an error where there is none, in known and unknown topics."""
    keep(memory)
    answer = await ask(FETCH, version, **fetch(version, topics=(("t", (1, 0, 9)), ("u", (0,)))))
    none = (-1, -1, "", 0)
    kept = (7, 4 if version >= 5 else -1, "m", 0)
    assert told(answer, version) == ({("t", 1): none, ("t", 0): kept, ("t", 9): none, ("u", 0): none}, 0)


@pytest.mark.parametrize("version", range(2, 9))
async def test_fetch_of_all_answers_each_partition_with_an_offset(ask, memory, topic, version):
    """By topic name; what was committed to a topic that is gone is not shown, nor to one made anew."""
    memory.topics.create_now("gone")
    keep(memory, topic="gone")
    del memory.cluster.by_name["gone"]
    memory.topics.create_now("gone")
    keep(memory, 8, 1)
    keep(memory, 7, 0)
    kept = {("t", 0): 7, ("t", 1): 8}
    found, error = told(await ask(FETCH, version, **fetch(version, topics=None)), version)
    assert ({asked: line[0] for asked, line in found.items()}, error) == (kept, 0)
    assert told(await ask(FETCH, version, **fetch(version, topics=None, group="unknown")), version) == ({}, 0)


@pytest.mark.parametrize("version", [7, 8])
async def test_fetch_of_pending_offsets_is_unstable_for_who_asked(ask, memory, topic, version):
    """Only with require_stable, and only those partitions; their old offset is not told."""
    memory.offsets.pending.add(keep(memory))
    stable, _ = told(await ask(FETCH, version, **fetch(version, require_stable=True)), version)
    assert stable == {("t", 0): (-1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT), ("t", 1): (-1, -1, "", 0)}
    plain, _ = told(await ask(FETCH, version, **fetch(version)), version)
    assert plain["t", 0] == (7, 4, "m", 0)


@versions(api_09_offset_fetch)
@pytest.mark.parametrize("failure", [None, StorageFailure("EIO")])
async def test_fetch_that_cannot_read_is_to_be_repeated(ask, memory, topic, version, failure):
    """An offset that is decided and cannot be read must not look like an older one."""
    memory.offsets.readable, memory.offsets.failure = False, failure
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    answer = told(await ask(FETCH, version, **fetch(version, topics=(("t", (0,)),))), version)
    lines = {} if version >= 8 else {("t", 0): (-1, -1, "", code)}
    assert answer == (lines, code if version >= 2 else 0)


async def test_fetch_of_several_groups_answers_each(ask, memory, topic):
    """Version 8 asks for many at once, each with its own partitions."""
    keep(memory, 1, group="a")
    keep(memory, 2, group="b")
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    some = [group.OffsetFetchRequestTopics(name="t", partition_indexes=[1])]
    groups = [group(group_id="a", topics=None), group(group_id="b", topics=some)]
    answer = await ask(FETCH, 8, groups=groups, require_stable=False)
    found = {
        g.group_id: [(p.partition_index, p.committed_offset) for t in g.topics for p in t.partitions]
        for g in answer.groups
    }
    assert found == {"a": [(0, 1)], "b": [(1, -1)]}


async def test_fetch_answers_are_bounded_while_nobody_reads_them(ask, memory, topic):
    """An answer is counted until it is sent; with the room spent, clients are asked to come back."""
    keep(memory)
    budget = AnswerBudget(1000)
    context = Context(memory.broker, ask.client, 8, True, {}, answers=budget)
    request = api_09_offset_fetch.OffsetFetchRequest((api_09_offset_fetch.GroupRequest("g", None),), False)
    held = await api_09_offset_fetch.handle(context, request)
    size = sum(map(len, await held.finish()))
    assert budget.free == 1000 - size
    budget.free = 0
    refused = await api_09_offset_fetch.handle(context, request)
    assert len(b"".join(await refused.finish())) < size
    held.room.release()
    refused.room.release()
    assert budget.free == size


async def test_fetch_that_is_refused_for_want_of_room_gets_it_soon(ask, memory, topic, autojump_clock):
    """Groups that start ask for nothing else: were nobody cut off for their sake, they would ask for ever."""
    keep(memory)
    deaf = AnswerRoom(budget := AnswerBudget(1000))
    deaf.keep(1000)
    deaf.sending(deaf.release)
    await trio.sleep(3600)
    context = Context(memory.broker, ask.client, 8, True, {}, answers=budget)
    request = api_09_offset_fetch.OffsetFetchRequest((api_09_offset_fetch.GroupRequest("g", None),), False)
    answers: list[bytes] = []
    for _ in range(2):
        reply = await api_09_offset_fetch.handle(context, request)
        answers.append(b"".join(await reply.finish()))
        reply.room.release()
    assert len(answers[0]) < len(answers[1])


async def test_fetch_answers_what_is_named_twice_once(ask, memory, topic):
    """A partition whose metadata has 4 KiB may be named in 4 bytes, and its group in 3."""
    keep(memory)
    context = Context(memory.broker, ask.client, 8, True, {})
    writer = Writer(flexible=True)
    groups = [("g", [("t", [0, 0]), ("t", [0, 1])])] * 3 + [("h", [("t", [0])]), ("h", None)]
    writer.array_length(len(groups))
    for group, topics in groups:
        writer.string(group)
        if topics is None:
            writer.null_array()
        else:
            writer.array_length(len(topics))
            for name, indexes in topics:
                writer.string(name)
                writer.int32_array(indexes)
                writer.end_of_fields()
        writer.end_of_fields()
    writer.boolean(False)
    writer.end_of_fields()
    asked = api_09_offset_fetch.GroupRequest("g", (("t", (0, 1)),)), api_09_offset_fetch.GroupRequest("h", None)
    decoded = api_09_offset_fetch.decode(Reader(b"".join(writer.parts()), flexible=True), context.version)
    assert decoded == api_09_offset_fetch.OffsetFetchRequest(asked, False)


async def test_fetch_of_many_groups_ends_with_the_room_for_answers(ask, memory, topic):
    """The groups behind are to be asked for again; what the answer holds is what there was room for."""
    keep(memory)
    kept = memory.broker.offsets.groups["g"]
    memory.broker.offsets.groups |= {f"g{number}": kept for number in range(50)}
    budget = AnswerBudget(500)
    context = Context(memory.broker, ask.client, 8, True, {}, answers=budget)
    groups = tuple(api_09_offset_fetch.GroupRequest(f"g{number}", None) for number in range(50))
    reply = await api_09_offset_fetch.handle(context, api_09_offset_fetch.OffsetFetchRequest(groups, False))
    answer = b"".join(await reply.finish())
    assert 500 < len(answer) < 1500
    assert context.errors[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] > 30


# --- AddOffsetsToTxn and TxnOffsetCommit -----------------------------------------------------------


def add(transactional_id="tx", group="groups"):
    return {"transactional_id": transactional_id, "producer_id": 41, "producer_epoch": 2, "group_id": group}


@versions(api_25_add_offsets_to_txn)
async def test_offsets_log_of_the_group_is_added_to_the_transaction(ask, memory, version):
    """Like a partition, on this connection."""
    assert (await ask(ADD, version, **add())).error_code == 0
    assert memory.coordinator.calls == [("add", "tx", 41, 2, (LogId.of_offsets(2),), 11)]


@pytest.mark.parametrize("refusal", COORDINATOR_REFUSALS)
async def test_offsets_log_refused_by_the_coordinator_has_its_code(ask, memory, refusal):
    """The same as for partitions; before KIP-588 a fenced one is told in the older word."""
    memory.coordinator.refusal = refusal
    code = COORDINATOR_REFUSALS[refusal] if refusal is not Refusal.MUST_ABORT else must_abort_code(ADD, ask.client)
    assert (await ask(ADD, 3, **add())).error_code == code
    if refusal is Refusal.FENCED:
        assert (await ask(ADD, 1, **add())).error_code == ErrorCode.INVALID_PRODUCER_EPOCH


async def test_offsets_log_whose_shard_has_a_failed_disk_is_refused_as_abortable(ask, memory):
    """Java's client would give up its producer for KAFKA_STORAGE_ERROR, and other groups can be added."""
    memory.coordinator.failed_logs.add(memory.offsets.log_of("groups"))
    assert (await ask(ADD, 3, **add())).error_code == ErrorCode.TRANSACTION_ABORTABLE


async def test_offsets_log_of_impossible_names_is_not_added(ask, memory):
    """Neither reaches the coordinator; a failed disk is told as one."""
    assert (await ask(ADD, 3, **add(group=""))).error_code == ErrorCode.INVALID_GROUP_ID
    assert (await ask(ADD, 3, **add(""))).error_code == ErrorCode.INVALID_REQUEST
    assert memory.coordinator.calls == []
    memory.coordinator.failure = StorageFailure("EIO")
    assert (await ask(ADD, 3, **add())).error_code == ErrorCode.KAFKA_STORAGE_ERROR


@versions(api_28_txn_offset_commit)
async def test_txn_commit_reaches_the_group_with_producer_and_sender(ask, memory, topic, version):
    """Who it is in the group is known from version 3 on, the leader epoch from 2 on."""
    answer = await ask(TXN_COMMIT, version, **txn_commit(("t", 1, 12, 4, "meta"), ("u", 0, 1, -1, None)))
    assert errors(answer) == {("t", 1): 0, ("u", 0): ErrorCode.TRANSACTION_ABORTABLE}
    sender = Sender("m", "i", 3) if version >= 3 else Sender()
    new = NewOffset((topic, 1), 12, 4 if version >= 2 else -1, "meta")
    producer = TransactionalProducer("tx", 41, 2, 11)
    assert memory.offsets.calls == [("commit in", "g", sender, producer, (new,))]
    added = [("add", "tx", 41, 2, (memory.offsets.log_of("g"),), None)]
    assert memory.coordinator.calls == ([] if version < 5 else added), "from 5 on the group is added on the way"


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (RefusedAppend.NOT_IN_TRANSACTION, ErrorCode.INVALID_TXN_STATE),
        (RefusedAppend.FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (RefusedAppend.STORAGE, ErrorCode.NOT_COORDINATOR),
        (Refusal.FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (Refusal.UNKNOWN_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (Refusal.MUST_ABORT, ErrorCode.TRANSACTION_ABORTABLE),
        (Refusal.LATE, ErrorCode.INVALID_TXN_STATE),
        (GroupRefusal.ILLEGAL_GENERATION, ErrorCode.ILLEGAL_GENERATION),
        (GroupRefusal.UNKNOWN_MEMBER, ErrorCode.UNKNOWN_MEMBER_ID),
        (GroupRefusal.FENCED_INSTANCE, ErrorCode.FENCED_INSTANCE_ID),
    ],
)
async def test_txn_commit_refused_is_told_in_kafkas_words(ask, memory, topic, refusal, code):
    """The codes that clients take as "fenced", "abort" or "ask again"."""
    memory.offsets.refusal = refusal
    entries = ("t", 0, 1, -1, ""), ("t", 1, 1, -1, "m" * 5_000)
    assert errors(await ask(TXN_COMMIT, 3, **txn_commit(*entries))) == {("t", 0): code, ("t", 1): code}


async def test_txn_commit_without_a_transactional_id_is_refused(ask, memory, topic):
    """It names no transaction."""
    answer = await ask(TXN_COMMIT, 3, **txn_commit(("t", 0, 1, -1, ""), transactional_id=""))
    assert errors(answer) == {("t", 0): ErrorCode.INVALID_REQUEST}


# --- OffsetDelete ----------------------------------------------------------------------------------


def delete(*topics, group="g"):
    topic = OffsetDeleteRequest.OffsetDeleteRequestTopic
    partition = topic.OffsetDeleteRequestPartition
    return {
        "group_id": group,
        "topics": [topic(name=n, partitions=[partition(partition_index=p) for p in ps]) for n, ps in topics],
    }


async def test_delete_answers_partition_by_partition(ask, memory, topic):
    """Deleted, still consumed, or not there."""
    memory.topics.create_now("consumed")
    memory.offsets.subscribed.add("consumed")
    answer = await ask(DELETE, 0, **delete(("t", (0, 5)), ("consumed", (0,)), ("u", (0,))))
    assert answer.error_code == 0
    assert errors(answer) == {
        ("t", 0): 0,
        ("t", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("consumed", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("u", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


async def test_delete_refused_as_a_whole_has_no_lines(ask, memory, topic):
    """An unknown group, one that is in use, an impossible name, a failed disk."""
    for refusal in (GroupRefusal.UNKNOWN_GROUP, GroupRefusal.NON_EMPTY_GROUP):
        memory.offsets.deletion = refusal
        answer = await ask(DELETE, 0, **delete(("t", (0,))))
        assert (answer.error_code, errors(answer)) == (GROUP_REFUSALS[refusal], {})
    assert (await ask(DELETE, 0, **delete(group=""))).error_code == ErrorCode.INVALID_GROUP_ID
    memory.offsets.failure = StorageFailure("EIO")
    assert (await ask(DELETE, 0, **delete(("t", (0,))))).error_code == ErrorCode.NOT_COORDINATOR
