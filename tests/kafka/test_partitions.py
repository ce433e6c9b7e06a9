"""CreatePartitions, DeleteRecords, OffsetForLeaderEpoch, WriteTxnMarkers, DescribeCluster."""

from __future__ import annotations

import pytest
import trio
from kafka.protocol.admin import CreatePartitionsRequest, DeleteRecordsRequest
from kafka.protocol.consumer import FetchRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import WriteTxnMarkersRequest

from coordinator.answers import Refusal
from datalog.batch import patch
from fairlog.cluster.interface import InvalidPartitions
from fairlog.kafka.api import Deferred
from fairlog.kafka.errors import ABORT_REFUSALS, ErrorCode
from fairlog.kafka.handlers import (
    api_21_delete_records,
    api_23_offset_for_leader_epoch,
    api_27_write_txn_markers,
    api_37_create_partitions,
    api_60_describe_cluster,
)
from fairlog_types import LeaderEpoch, Offset, ProducerEpoch, ProducerId, StorageFailure, TxId
from partition.answers import AbortRefusal, ActiveProducer
from shard.ends import OWN_WAIT_S

FETCH, METADATA, DELETE_RECORDS, EPOCHS, MARKERS, CREATE_PARTITIONS, CLUSTER = 1, 3, 21, 23, 27, 37, 60


def versions(api):
    return pytest.mark.parametrize("version", range(api.SERVED.min, api.SERVED.max + 1))


# --- CreatePartitions ------------------------------------------------------------------------------


def grow(*topics, validate_only=False):
    """`topics`: (name, total) or (name, total, brokers of each new partition)."""
    topic = CreatePartitionsRequest.CreatePartitionsTopic
    assignment = topic.CreatePartitionsAssignment
    asked = [
        topic(name=name, count=total, assignments=[assignment(broker_ids=ids) for ids in more[0]] if more else None)
        for name, total, *more in topics
    ]
    return {"topics": asked, "timeout_ms": 1000, "validate_only": validate_only}


def grown(answer):
    return [(line.name, line.error_code, line.error_message) for line in answer.results]


@versions(api_37_create_partitions)
async def test_partitions_are_added_and_told_at_once(ask, memory, batch, version):
    """Metadata that was kept is not answered any more; the new partitions can be written to and fetched from."""
    memory.topics.create_now("t")
    wanted = {"topics": [MetadataRequest.MetadataRequestTopic(name="t", topic_id=None)]}

    async def partitions():
        (topic,) = (await ask(METADATA, 9, **wanted, allow_auto_topic_creation=False)).topics
        return [partition.partition_index for partition in topic.partitions]

    assert await partitions() == [0]
    assert grown(await ask(CREATE_PARTITIONS, version, **grow(("t", 3)))) == [("t", 0, None)]
    assert await partitions() == [0, 1, 2]
    memory.leaders.logs[memory.log("t", 2)].append(bytes(batch()))
    fetched = await ask(FETCH, 11, **fetch("t", 2, 0))
    assert (fetched.responses[0].partitions[0].error_code, fetched.responses[0].partitions[0].high_watermark) == (0, 1)


def fetch(topic, partition, offset, wait_ms=0):
    asked = FetchRequest.FetchTopic
    line = asked.FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    return {
        "max_wait_ms": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "topics": [asked(topic=topic, partitions=[line])],
    }


@versions(api_37_create_partitions)
async def test_partitions_that_cannot_be_are_refused_with_the_reason(ask, memory, version):
    """Fewer, as many, too many, an unknown topic, one that is named twice; a good one beside them is made."""
    for name in ("good", "fewer", "same", "many", "twice"):
        memory.topics.create_now(name, partitions=2)
    answer = await ask(
        CREATE_PARTITIONS,
        version,
        **grow(
            ("fewer", 1),
            ("same", 2),
            ("many", 100_001),
            ("none", 3),
            ("twice", 3),
            ("good", 3),
            ("twice", 4),
            ("below", -1),
        ),
    )
    assert grown(answer) == [
        (
            "fewer",
            ErrorCode.INVALID_PARTITIONS,
            "topic fewer has 2 partitions already; partitions can only be added, and 1 is no more",
        ),
        (
            "same",
            ErrorCode.INVALID_PARTITIONS,
            "topic same has 2 partitions already; partitions can only be added, and 2 is no more",
        ),
        ("many", ErrorCode.INVALID_PARTITIONS, "a topic has 1 to 100000 partitions, not 100001"),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic none"),
        ("twice", ErrorCode.INVALID_REQUEST, "the request names this topic more than once"),
        ("good", 0, None),
        ("below", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic below"),
    ]
    counts = {name: topic.partitions for name, topic in memory.cluster.by_name.items()}
    assert counts == {"good": 3, "fewer": 2, "same": 2, "many": 2, "twice": 2}


@versions(api_37_create_partitions)
async def test_partitions_validated_only_are_not_made(ask, memory, version):
    """The answer is what it would be."""
    memory.topics.create_now("t", partitions=2)
    answer = await ask(CREATE_PARTITIONS, version, **grow(("t", 3), ("u", 3), validate_only=True))
    assert [code for _, code, _ in grown(answer)] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    answer = await ask(CREATE_PARTITIONS, version, **grow(("t", 2), validate_only=True))
    assert [code for _, code, _ in grown(answer)] == [ErrorCode.INVALID_PARTITIONS]
    assert memory.cluster.by_name["t"].partitions == 2


@pytest.mark.parametrize(
    ("assignments", "policy", "error"),
    [
        ([[7], [7]], "refuse", ErrorCode.NONE),
        ([[7]], "clamp", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[7], []], "clamp", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([], "clamp", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[1, 2, 3], [1]], "clamp", ErrorCode.NONE),
        ([[1, 2, 3], [1]], "refuse", ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_partitions_assigned_by_hand_need_one_assignment_each(ask, memory, assignments, policy, error):
    """More brokers than there are is what `topics.replication_factor_policy` is about."""
    memory.configure(replication_factor_policy=policy)
    memory.topics.create_now("t")
    answer = await ask(CREATE_PARTITIONS, 3, **grow(("t", 3, assignments)))
    assert [code for _, code, _ in grown(answer)] == [error]
    assert memory.cluster.by_name["t"].partitions == (3 if error == 0 else 1)


async def test_partitions_on_a_failed_disk_or_a_full_node_are_refused(ask, memory):
    """With what the node says of it."""
    memory.topics.create_now("t")
    for failure, code in (
        (StorageFailure("no space left on device"), ErrorCode.KAFKA_STORAGE_ERROR),
        (InvalidPartitions("a node leads 5"), ErrorCode.INVALID_PARTITIONS),
    ):
        memory.topics.failure = failure
        assert grown(await ask(CREATE_PARTITIONS, 3, **grow(("t", 2)))) == [("t", code, str(failure))]


# --- DeleteRecords ---------------------------------------------------------------------------------


def delete(topics, timeout_ms=1000):
    """`topics`: {name: {partition: offset}}."""
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    partition = topic.DeleteRecordsPartition
    asked = [
        topic(name=name, partitions=[partition(partition_index=i, offset=offset) for i, offset in offsets.items()])
        for name, offsets in topics.items()
    ]
    return {"topics": asked, "timeout_ms": timeout_ms}


def deleted(answer):
    return {
        (topic.name, line.partition_index): (line.low_watermark, line.error_code)
        for topic in answer.topics
        for line in topic.partitions
    }


@pytest.fixture
def filled(memory, batch):
    """A topic with three partitions of four records each."""
    memory.topics.create_now("t", partitions=3)
    for log in memory.cluster.by_name["t"].logs():
        for base_offset in (0, 2):
            data = bytearray(batch(records=2))
            patch(data, Offset(base_offset), LeaderEpoch(base_offset))
            memory.leaders.logs[log].append(bytes(data))


@versions(api_21_delete_records)
async def test_records_before_an_offset_are_deleted(ask, memory, version, filled):
    """To an offset, to the end with -1, and not at all behind it; readers below the start are told so."""
    answer = await ask(DELETE_RECORDS, version, **delete({"t": {0: 3, 1: -1, 2: 5}}))
    out_of_range = -1, ErrorCode.OFFSET_OUT_OF_RANGE
    assert deleted(answer) == {("t", 0): (3, 0), ("t", 1): (4, 0), ("t", 2): out_of_range}
    assert [memory.leaders.log_start(memory.log("t", partition)) for partition in range(3)] == [3, 4, 0]
    below, at = [await ask(FETCH, 11, **fetch("t", 0, offset)) for offset in (2, 3)]
    assert below.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (at.responses[0].partitions[0].error_code, at.responses[0].partitions[0].log_start_offset) == (0, 3)


@versions(api_21_delete_records)
async def test_records_deleted_before_are_not_deleted_again(ask, memory, version, filled):
    """The low watermark never goes back; nothing below -1 is an offset."""
    await ask(DELETE_RECORDS, version, **delete({"t": {0: 3}}))
    answer = await ask(DELETE_RECORDS, version, **delete({"t": {0: 1, 1: 0, 2: -2, 3: 0}, "u": {0: 0}}))
    unknown = -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert deleted(answer) == {
        ("t", 0): (3, 0),
        ("t", 1): (0, 0),
        ("t", 2): (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
        ("t", 3): unknown,
        ("u", 0): unknown,
    }


@pytest.mark.parametrize(("policy", "error"), [("compact", 44), ("compact,delete", 0), ("delete", 0)])
async def test_records_of_a_topic_that_is_only_compacted_are_not_deleted(ask, memory, batch, policy, error):
    """POLICY_VIOLATION, as in Kafka."""
    memory.topics.create_now("t", configs={"cleanup.policy": policy})
    memory.leaders.logs[memory.log("t")].append(bytes(batch()))
    assert deleted(await ask(DELETE_RECORDS, 2, **delete({"t": {0: 1}}))) == {("t", 0): (-1 if error else 1, error)}


async def test_records_that_the_disk_does_not_delete_are_a_storage_error(ask, memory, filled):
    """They can still be read."""
    memory.leaders.failure = StorageFailure("Input/output error")
    answer = await ask(DELETE_RECORDS, 2, **delete({"t": {0: 1}}))
    assert deleted(answer) == {("t", 0): (-1, ErrorCode.KAFKA_STORAGE_ERROR)}


@pytest.mark.parametrize(("timeout_ms", "waits_s"), [(0, OWN_WAIT_S), (300, OWN_WAIT_S), (60_000, 60)])
async def test_records_not_deleted_within_the_time_out_are_told_as_that(
    ask, memory, filled, autojump_clock, timeout_ms, waits_s
):
    """The effect is unknown, and the next partition of the request fares no better. A short time-out is for others."""
    memory.leaders.full = True
    began = trio.current_time()
    answer = await ask(DELETE_RECORDS, 2, **delete({"t": {0: 1, 1: 1}}, timeout_ms=timeout_ms))
    timed_out = -1, ErrorCode.REQUEST_TIMED_OUT
    assert deleted(answer) == {("t", 0): timed_out, ("t", 1): timed_out}
    assert trio.current_time() - began == pytest.approx(waits_s)


# --- OffsetForLeaderEpoch --------------------------------------------------------------------------


def epochs(queries, topic="t"):
    """`queries`: (partition, current leader epoch, leader epoch)."""
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    line = asked.OffsetForLeaderPartition
    lines = [line(partition=i, current_leader_epoch=current, leader_epoch=epoch) for i, current, epoch in queries]
    return {"replica_id": -1, "topics": [asked(topic=topic, partitions=lines)]}


@versions(api_23_offset_for_leader_epoch)
async def test_leader_epoch_ends_where_the_next_begins(ask, version, filled):
    """The current one (3) at the high watermark; one without records as the one before it; a future one nowhere."""
    wanted = {-1: (-1, -1), 0: (0, 2), 1: (0, 2), 2: (2, 4), 3: (3, 4), 4: (-1, -1)}
    answer = await ask(EPOCHS, version, **epochs([(0, -1, epoch) for epoch in wanted]))
    lines = answer.topics[0].partitions
    assert [line.error_code for line in lines] == [0] * len(wanted)
    assert [(line.leader_epoch, line.end_offset) for line in lines] == list(wanted.values())


@versions(api_23_offset_for_leader_epoch)
async def test_leader_epoch_is_asked_of_the_current_leader_only(ask, memory, version, filled):
    """A client whose metadata are older or newer than ours is told so; so is one that asks for what is not there."""
    answer = await ask(EPOCHS, version, **epochs([(0, 2, 0), (0, 4, 0), (0, 3, 0), (9, 3, 0)]))
    assert [(line.partition, line.error_code) for line in answer.topics[0].partitions] == [
        (0, ErrorCode.FENCED_LEADER_EPOCH),
        (0, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (0, ErrorCode.NONE),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    answer = await ask(EPOCHS, version, **epochs([(0, -1, 0)], topic="u"))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_leader_epoch_of_an_empty_partition_ends_where_it_begins(ask, memory):
    """The epoch itself is the answer if no record has one up to it."""
    memory.topics.create_now("t")
    answer = await ask(EPOCHS, 2, **epochs([(0, 3, 1), (0, 3, 3)]))
    assert [(line.leader_epoch, line.end_offset) for line in answer.topics[0].partitions] == [(1, 0), (3, 0)]


async def test_epochs_and_deletions_are_deferred(ask, memory, filled):
    """They take threads and time: whoever hangs up meanwhile is noticed."""
    for key, fields in ((EPOCHS, epochs([(0, -1, 0)])), (DELETE_RECORDS, delete({"t": {0: 1}}))):
        started = await ask.start(key, 2, **fields)
        assert isinstance(started.answer, Deferred)
    assert memory.leaders.log_start(memory.log("t")) == 0


# --- WriteTxnMarkers -------------------------------------------------------------------------------


def markers(*entries):
    """`entries`: (producer id, epoch, commit, {topic: partitions}). They are of coordinator epoch 3."""
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    topic = marker.WritableTxnMarkerTopic
    return {
        "markers": [
            marker(
                producer_id=producer_id,
                producer_epoch=epoch,
                transaction_result=commit,
                topics=[topic(name=name, partition_indexes=indexes) for name, indexes in topics.items()],
                coordinator_epoch=3,
            )
            for producer_id, epoch, commit, topics in entries
        ]
    }


@versions(api_27_write_txn_markers)
async def test_marker_decides_nothing_in_journal_mode_and_is_told_what_is_so(ask, memory, version):
    """Nothing open: an abort is done already. What is open is its coordinator's, and a commit always is."""
    memory.topics.create_now("t", partitions=2)
    known = [
        ActiveProducer(ProducerId(5), ProducerEpoch(2), 9, 1_000, in_transaction=True),
        ActiveProducer(ProducerId(6), ProducerEpoch(2), 9, 1_000, in_transaction=False),
    ]
    memory.leaders.producers[memory.log("t", 1)] = known
    answer = await ask(
        MARKERS,
        version,
        **markers(
            (5, 2, False, {"t": [0, 1, 2], "u": [0]}),
            (5, 1, False, {"t": [1]}),
            (6, 2, False, {"t": [1]}),
            (6, 2, True, {"t": [1]}),
            (7, 0, False, {"t": [1]}),
        ),
    )
    told = [
        (marker.producer_id, topic.name, line.partition_index, line.error_code)
        for marker in answer.markers
        for topic in marker.topics
        for line in topic.partitions
    ]
    assert told == [
        (5, "t", 0, ErrorCode.NONE),
        (5, "t", 1, ErrorCode.INVALID_TXN_STATE),
        (5, "t", 2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (5, "u", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (5, "t", 1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (6, "t", 1, ErrorCode.NONE),
        (6, "t", 1, ErrorCode.INVALID_TXN_STATE),
        (7, "t", 1, ErrorCode.NONE),
    ]
    assert memory.coordinator.calls == []
    assert memory.leaders.producers[memory.log("t", 1)] == known


@versions(api_27_write_txn_markers)
async def test_abort_marker_in_marker_mode_aborts_the_transaction_by_its_coordinator(ask, memory, version):
    """The partition is asked with all that the marker says; what it finds open is aborted as a whole."""
    memory.topics.create_now("t", partitions=2)
    memory.leaders.open_for = txid = TxId(ProducerId(5), ProducerEpoch(2), 7)
    answer = await ask(MARKERS, version, **markers((5, 2, False, {"t": [1]})))
    assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
    assert memory.leaders.aborts == [(memory.log("t", 1), 5, 2, 3)]
    assert memory.coordinator.calls == [("abort by marker", txid)]


async def test_abort_marker_in_marker_mode_where_nothing_is_open_changes_nothing(ask, memory):
    """What it wants is so already."""
    memory.topics.create_now("t")
    memory.leaders.open_for = None
    answer = await ask(MARKERS, 1, **markers((5, 2, False, {"t": [0]})))
    assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
    assert memory.coordinator.calls == []


@pytest.mark.parametrize("refusal", [each for each in AbortRefusal if each is not AbortRefusal.NO_MARKERS])
async def test_abort_marker_refused_by_the_partition_is_told_why(ask, memory, refusal):
    """Every refusal has a code of its own."""
    memory.topics.create_now("t")
    memory.leaders.open_for = refusal
    answer = await ask(MARKERS, 1, **markers((5, 2, False, {"t": [0]})))
    assert answer.markers[0].topics[0].partitions[0].error_code == ABORT_REFUSALS[refusal] != ErrorCode.NONE


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (Refusal.CONCURRENT, ErrorCode.CONCURRENT_TRANSACTIONS),
        (Refusal.STORAGE, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
async def test_abort_marker_refused_by_the_coordinator_is_told_why(ask, memory, refusal, error):
    """It is just being committed, or the disk has failed."""
    memory.topics.create_now("t")
    memory.leaders.open_for = TxId(ProducerId(5), ProducerEpoch(2), 7)
    memory.coordinator.refusal = refusal
    answer = await ask(MARKERS, 1, **markers((5, 2, False, {"t": [0]})))
    assert answer.markers[0].topics[0].partitions[0].error_code == error


async def test_commit_marker_is_refused_in_marker_mode_too(ask, memory):
    """A transaction is committed by its coordinator, or not at all; nothing reaches the partition."""
    memory.topics.create_now("t")
    memory.leaders.open_for = TxId(ProducerId(5), ProducerEpoch(2), 7)
    answer = await ask(MARKERS, 1, **markers((5, 2, True, {"t": [0]})))
    assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.INVALID_TXN_STATE
    assert memory.coordinator.calls == []


# --- DescribeCluster -------------------------------------------------------------------------------


@versions(api_60_describe_cluster)
async def test_cluster_is_its_one_broker(ask, version):
    """With its id and address; it is its own controller."""
    answer = await ask(CLUSTER, version, include_cluster_authorized_operations=True)
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, "fairlog-memory-cluster", 7)
    assert [(b.broker_id, b.host, b.port, b.rack) for b in answer.brokers] == [(7, "broker.example", 9092, None)]
    assert [bool(b.is_fenced) for b in answer.brokers] == [False]


@pytest.mark.parametrize(
    ("endpoint_type", "error"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_cluster_asked_for_controllers_says_that_it_is_a_broker(ask, endpoint_type, error):
    """A tool that was given the wrong address is told so."""
    answer = await ask(CLUSTER, 1, include_cluster_authorized_operations=False, endpoint_type=endpoint_type)
    assert (answer.error_code, answer.brokers) == (error, [])
