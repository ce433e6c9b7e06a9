"""The transactional APIs: what reaches the coordinator, and in which code its refusals come back."""

from __future__ import annotations

import time

import pytest
import trio
from kafka.protocol.admin import DescribeProducersRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest

from coordinator.answers import Effect, Refusal
from fairlog.kafka.api import Client
from fairlog.kafka.errors import COORDINATOR_REFUSALS, EffectUnknown, ErrorCode, code_of_refusal
from fairlog.kafka.handlers import (
    ALL,
    api_10_find_coordinator,
    api_18_api_versions,
    api_22_init_producer_id,
    api_24_add_partitions_to_txn,
    api_26_end_txn,
    api_65_describe_transactions,
    api_66_list_transactions,
)
from fairlog.kafka.handlers.api_65_describe_transactions import PLACEMENTS_TAG, PlacedRecords, PlacedTransaction
from fairlog.kafka.must_abort import must_abort_code
from fairlog.kafka.wire import Reader
from fairlog_types import Offset, ProducerEpoch, ProducerId, StorageFailure
from partition.answers import ActiveProducer

FIND, VERSIONS, INIT, ADD, END = 10, 18, 22, 24, 26
DESCRIBE_PRODUCERS, DESCRIBE, LIST = 61, 65, 66


def versions(api):
    return pytest.mark.parametrize("version", range(api.SERVED.min, api.SERVED.max + 1))


# --- FindCoordinator and ApiVersions ---------------------------------------------------------------


@versions(api_10_find_coordinator)
@pytest.mark.parametrize("key_type", [0, 1])
async def test_coordinator_is_this_node(ask, version, key_type):
    """For groups and for transactional ids, for one key or many."""
    fields = {"key": "k", "key_type": key_type, "coordinator_keys": ["k", "l"]}
    answer = await ask(FIND, version, **fields)
    told = answer.coordinators if version >= 4 else [answer]
    assert {(t.error_code, t.node_id, t.host, t.port) for t in told} == {(0, 7, "broker.example", 9092)}
    if version >= 4:
        assert [t.key for t in told] == ["k", "l"]


@pytest.mark.parametrize("version", [1, 4, 6])
async def test_coordinator_of_an_unknown_key_type_is_refused(ask, version):
    """Share groups, for instance, are not served."""
    answer = await ask(FIND, version, key="k", key_type=2, coordinator_keys=["k"])
    told = answer.coordinators[0] if version >= 4 else answer
    assert (told.error_code, told.node_id) == (ErrorCode.INVALID_REQUEST, -1)


@versions(api_18_api_versions)
async def test_versions_served_are_listed(ask, version):
    """Exactly what the router serves, and what software asks is remembered from version 3 on."""
    answer = await ask(VERSIONS, version, client_software_name="librdkafka", client_software_version="2.16.1")
    listed = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert listed[0] == (3, 13)
    assert listed == {api.key: (api.served.min, api.served.max) for api in ALL if api.advertised}
    assert ask.client.software_name == ("librdkafka" if version >= 3 else "")


async def test_names_of_a_client_are_cut(ask):
    """They stand in log lines, and in memory as long as the connection."""
    await ask(VERSIONS, 3, client_software_name="n" * 32_767, client_software_version="v" * 32_767)
    assert (len(ask.client.software_name), len(ask.client.software_version)) == (255, 255)


# --- InitProducerId, AddPartitionsToTxn, EndTxn ----------------------------------------------------


def init(transactional_id="tx", producer_id=-1, epoch=-1):
    return {
        "transactional_id": transactional_id,
        "transaction_timeout_ms": 60_000,
        "producer_id": producer_id,
        "producer_epoch": epoch,
    }


def add(*partitions):
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=list(partitions))
    transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id="tx", producer_id=41, producer_epoch=2, verify_only=False, topics=[topic]
    )
    return {
        "transactions": [transaction],
        "v3_and_below_transactional_id": "tx",
        "v3_and_below_producer_id": 41,
        "v3_and_below_producer_epoch": 2,
        "v3_and_below_topics": [topic],
    }


def end(committed=True):
    return {"transactional_id": "tx", "producer_id": 41, "producer_epoch": 2, "committed": committed}


def added(answer):
    """Of the one transaction, in whichever version."""
    topics = answer.results_by_topic_v3_and_below
    for result in answer.results_by_transaction or ():
        topics = result.topic_results
    return {
        (topic.name, partition.partition_index): partition.partition_error_code
        for topic in topics
        for partition in topic.results_by_partition
    }


@versions(api_22_init_producer_id)
async def test_producer_id_is_granted(ask, memory, version):
    """With what the client says it had, from version 3 on, and the ordinal of its connection."""
    answer = await ask(INIT, version, **init(producer_id=41, epoch=2))
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 41, 0)
    had = (41, 2) if version >= 3 else (-1, -1)
    assert memory.coordinator.calls == [("init", "tx", 60_000, *had, 11)]


@pytest.mark.parametrize("asked", [init(""), init(producer_id=4), init(epoch=4)])
async def test_producer_id_on_contradictory_terms_is_refused(ask, memory, asked):
    """An empty transactional id, or one of id and epoch without the other, does not reach the coordinator."""
    answer = await ask(INIT, 4, **asked)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.INVALID_REQUEST, -1, -1)
    assert memory.coordinator.calls == []


async def test_producer_id_is_granted_to_end_what_is_kept(ask, memory, description):
    """Version 6 (KIP-939) names the epoch under which the open transaction was written; -1 if there is none."""
    asked = ("init", "tx", 60_000, -1, -1, 11)
    answer = await ask(INIT, 6, **init(), enable2_pc=True, keep_prepared_txn=False)
    assert (answer.producer_id, answer.producer_epoch) == (41, 0)
    assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (-1, -1)
    assert memory.coordinator.calls == [(*asked, "two phases")]
    memory.coordinator.descriptions["tx"] = description()
    answer = await ask(INIT, 6, **init(), enable2_pc=False, keep_prepared_txn=True)
    assert memory.coordinator.calls[1:] == [asked]
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (0, 42, 0)
    assert (answer.ongoing_txn_producer_id, answer.ongoing_txn_producer_epoch) == (41, 2)


@pytest.mark.parametrize("flag", ["enable2_pc", "keep_prepared_txn"])
async def test_two_phase_commit_without_a_transactional_id_is_refused(ask, memory, flag):
    """There is nothing that could be kept."""
    answer = await ask(INIT, 6, **init(None), **{flag: True})
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.INVALID_REQUEST, -1, -1)
    assert memory.coordinator.calls == []


@versions(api_24_add_partitions_to_txn)
async def test_partitions_are_added(ask, memory, version):
    """All logs of one request go to the coordinator together."""
    memory.topics.create_now("t", partitions=3)
    assert added(await ask(ADD, version, **add(2, 0))) == {("t", 2): 0, ("t", 0): 0}
    logs = (memory.log("t", 2), memory.log("t", 0))
    assert memory.coordinator.calls == [("add", "tx", 41, 2, logs, 11 if version < 4 else None)]


async def test_partitions_of_several_transactions_are_added_or_looked_at(ask, memory):
    """What Kafka's brokers ask a coordinator, from version 4 on."""
    memory.topics.create_now("t", partitions=3)
    memory.coordinator.added.add(("ty", 42, 0, memory.log("t", 1)))
    (first,) = add(2)["transactions"]
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="t", partitions=[0, 1, 7])
    second = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
        transactional_id="ty", producer_id=42, producer_epoch=0, verify_only=True, topics=[topic]
    )
    answer = await ask(ADD, 5, transactions=[first, second])
    told = {
        (result.transactional_id, partition.partition_index): partition.partition_error_code
        for result in answer.results_by_transaction
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }
    not_there = ErrorCode.TRANSACTION_ABORTABLE
    assert told == {("tx", 2): 0, ("ty", 0): not_there, ("ty", 1): 0, ("ty", 7): not_there}
    assert [call[:2] for call in memory.coordinator.calls] == [("add", "tx")]


async def test_partitions_are_added_all_or_none(ask, memory):
    """One that does not exist keeps the others out, and nothing has begun; but the coordinator has heard of it."""
    memory.topics.create_now("t", partitions=1)
    errors = added(await ask(ADD, 3, **add(0, 5)))
    assert errors == {("t", 0): ErrorCode.OPERATION_NOT_ATTEMPTED, ("t", 5): ErrorCode.TRANSACTION_ABORTABLE}
    assert memory.coordinator.calls == [("add", "tx", 41, 2, (), 11)]


def code_for(refusal, key):
    """For a client that gives no name."""
    return must_abort_code(key, Client(1, "p")) if refusal is Refusal.MUST_ABORT else COORDINATOR_REFUSALS[refusal]


@pytest.mark.parametrize("refusal", [Refusal.FENCED, Refusal.UNKNOWN_PRODUCER_ID_MAPPING, Refusal.MUST_ABORT])
async def test_partition_unknown_does_not_hide_what_the_coordinator_refuses(ask, memory, refusal):
    """Clients ask again for an unknown partition until their time is up; who is fenced has to learn that."""
    memory.topics.create_now("t", partitions=1)
    memory.coordinator.refusal = refusal
    code = code_for(refusal, ADD)
    assert added(await ask(ADD, 3, **add(0, 5))) == {("t", 0): code, ("t", 5): code}


@pytest.mark.parametrize(
    ("transactional_id", "error"),
    [
        ("", ErrorCode.INVALID_REQUEST),
        ("x" * 1024, 0),
        ("x" * 1025, ErrorCode.INVALID_REQUEST),
        ("\u00e9" * 512, 0),
        ("\u00e9" * 513, ErrorCode.INVALID_REQUEST),
        ("x" * 32_767, ErrorCode.INVALID_REQUEST),
    ],
    ids=["empty", "1024", "1025", "512 of two bytes", "513 of two bytes", "32,767"],
)
async def test_transactional_id_is_bounded_in_bytes(ask, memory, transactional_id, error):
    """It has to fit a frame of the group journal; one that does not never reaches the coordinator."""
    memory.topics.create_now("t")
    assert (await ask(INIT, 4, **init(transactional_id))).error_code == error
    asked = add(0) | {"v3_and_below_transactional_id": transactional_id}
    assert added(await ask(ADD, 3, **asked)) == {("t", 0): error}
    assert (await ask(END, 3, **(end() | {"transactional_id": transactional_id}))).error_code == error
    assert len(memory.coordinator.calls) == (0 if error else 3)


@versions(api_26_end_txn)
@pytest.mark.parametrize("committed", [True, False])
async def test_transaction_is_ended(ask, memory, version, committed):
    """Commit or abort, with the ordinal of the connection; from 5 on with the epoch of the next transaction."""
    answer = await ask(END, version, **end(committed))
    assert answer.error_code == 0
    if version < 5:
        assert memory.coordinator.calls == [("end", "tx", 41, 2, committed, 11)]
    else:
        assert (answer.producer_id, answer.producer_epoch) == (41, 3)
        assert memory.coordinator.calls == [("end epoch", "tx", 41, 2, committed)]


async def test_transaction_that_is_not_ended_grants_nothing(ask, memory):
    """The error comes without an epoch."""
    memory.coordinator.refusal = Refusal.FENCED
    answer = await ask(END, 5, **end())
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.PRODUCER_FENCED, -1, -1)


@pytest.mark.parametrize("refusal", COORDINATOR_REFUSALS)
async def test_refusal_of_the_coordinator_has_its_code(ask, memory, refusal):
    """The same in all three APIs, but for who must abort."""
    memory.topics.create_now("t")
    memory.coordinator.refusal = refusal
    assert (await ask(INIT, 4, **init())).error_code == COORDINATOR_REFUSALS[refusal]
    assert added(await ask(ADD, 3, **add(0))) == {("t", 0): code_for(refusal, ADD)}
    assert (await ask(END, 3, **end())).error_code == code_for(refusal, END)


@pytest.mark.parametrize(("name", "version"), [("librdkafka", "2.16.0"), ("apache-kafka-java", "3.7.2"), ("kgo", "v1")])
async def test_client_that_must_abort_gets_the_code_that_it_takes_so(ask, memory, name, version):
    """Which one that is depends on the client; test_must_abort has the whole table."""
    memory.topics.create_now("t")
    memory.coordinator.refusal = Refusal.MUST_ABORT
    ask.client.software_name, ask.client.software_version = name, version
    assert added(await ask(ADD, 3, **add(0))) == {("t", 0): must_abort_code(ADD, ask.client)}
    assert (await ask(END, 3, **end())).error_code == must_abort_code(END, ask.client)


@pytest.mark.parametrize(("key", "since"), [(INIT, 4), (ADD, 2), (END, 2)])
async def test_fenced_producer_is_told_in_the_words_of_its_version(ask, memory, key, since):
    """PRODUCER_FENCED since KIP-588; the same was INVALID_PRODUCER_EPOCH before."""
    memory.topics.create_now("t")
    memory.coordinator.refusal = Refusal.FENCED
    fields = {INIT: init(), ADD: add(0), END: end()}[key]
    for version, code in ((since - 1, ErrorCode.INVALID_PRODUCER_EPOCH), (since, ErrorCode.PRODUCER_FENCED)):
        answer = await ask(key, version, **fields)
        assert (added(answer)["t", 0] if key == ADD else answer.error_code) == code


@pytest.mark.parametrize("refusal", [r for r in Refusal if r not in COORDINATOR_REFUSALS])
async def test_effect_unknown_closes_the_connection(ask, memory, refusal):
    """No code says "perhaps" to every client; a closed connection does (invariant 5)."""
    assert refusal.effect is Effect.UNKNOWN
    memory.coordinator.refusal = refusal
    with pytest.raises(EffectUnknown):
        await ask.start(END, 3, **end())


async def test_disk_failing_under_a_commit_closes_the_connection(ask, memory):
    """Whether PREPARE_COMMIT is on the disk cannot be told, so nothing is claimed."""
    memory.coordinator.failure = StorageFailure("fdatasync failed")
    with pytest.raises(EffectUnknown):
        await ask.start(END, 3, **end())


async def test_disk_failing_before_a_transaction_is_told(ask, memory):
    """Beginning has no effect that could be seen, so the error is told as such."""
    memory.topics.create_now("t")
    memory.coordinator.failure = StorageFailure("no space left on device")
    assert (await ask(INIT, 4, **init())).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert added(await ask(ADD, 3, **add(0))) == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR}


def test_outcome_lost_is_fatal_to_clients():
    """An abortable code would make the client produce again what may be committed."""
    assert code_of_refusal(Refusal.OUTCOME_LOST, knows_producer_fenced=True) is ErrorCode.INVALID_TXN_STATE


# --- the describing ones ---------------------------------------------------------------------------


async def test_producers_of_a_partition_are_described(ask, memory):
    """With where its open transaction begins, or else the smallest offset that its records can get."""
    memory.topics.create_now("t")
    idle = ActiveProducer(ProducerId(1), ProducerEpoch(0), 9, 5000, in_transaction=False)
    writing = ActiveProducer(ProducerId(2), ProducerEpoch(3), -1, -1, in_transaction=True)
    marked = ActiveProducer(
        ProducerId(3), ProducerEpoch(1), 4, 6000, in_transaction=True, first_offset=Offset(17), coordinator_epoch=2
    )
    memory.leaders.producers[memory.log("t")] = [idle, writing, marked]
    topic = DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0, 1])
    answer = await ask(DESCRIBE_PRODUCERS, 0, topics=[topic])
    known, unknown = answer.topics[0].partitions
    told = [
        (
            p.producer_id,
            p.producer_epoch,
            p.last_sequence,
            p.last_timestamp,
            p.coordinator_epoch,
            p.current_txn_start_offset,
        )
        for p in known.active_producers
    ]
    assert told == [(1, 0, 9, 5000, -1, -1), (2, 3, -1, -1, -1, 0), (3, 1, 4, 6000, 2, 17)]
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_what_is_named_again_and_again_is_described_once(ask, memory, description):
    """A short request must not have a long answer: each partition, each transactional id once, in order."""
    memory.topics.create_now("t")
    asked = [("t", [1, 0, 1]), ("u", [0]), ("t", [0, 2])]
    topics = [DescribeProducersRequest.TopicRequest(name=name, partition_indexes=indexes) for name, indexes in asked]
    answer = await ask(DESCRIBE_PRODUCERS, 0, topics=topics)
    told = [(topic.name, [p.partition_index for p in topic.partitions]) for topic in answer.topics]
    assert told == [("t", [1, 0, 2]), ("u", [0])]
    memory.coordinator.descriptions["tx"] = description()
    answer = await ask(DESCRIBE, 0, transactional_ids=["tx", "none", "tx", "none"])
    assert [state.transactional_id for state in answer.transaction_states] == ["tx", "none"]


@pytest.mark.parametrize("changes", [{}, {"committed": ()}])
async def test_transaction_is_described(ask, memory, description, changes):
    """State, times, producer and partitions, with and without placements; an unknown id has its error."""
    memory.topics.create_now("t")
    memory.coordinator.descriptions["tx"] = description(**changes)
    answer = await ask(DESCRIBE, 0, transactional_ids=["tx", "none"])
    known, unknown = answer.transaction_states
    assert (known.error_code, known.transactional_id, known.transaction_state) == (0, "tx", "Ongoing")
    assert (known.transaction_timeout_ms, known.transaction_start_time_ms) == (60_000, 1_000)
    assert (known.producer_id, known.producer_epoch) == (41, 2)
    assert [(topic.topic, topic.partitions) for topic in known.topics] == [("t", [0])]
    assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_placements_travel_in_a_tagged_field(ask, memory, description):
    """`fairlog txn show` finds out where the records of committed transactions are; other clients skip it."""
    memory.topics.create_now("t")
    memory.coordinator.descriptions["tx"] = description(logs=())
    started = await ask.start(DESCRIBE, 0, transactional_ids=["tx"])
    reader = Reader(await ask.finish(started), flexible=True)
    reader.int32()
    reader.end_of_fields()  # header
    reader.int32()  # throttle time

    def state():
        reader.int16(), reader.string(), reader.string(), reader.int32(), reader.int64(), reader.int64(), reader.int16()
        reader.array(reader.string)
        return dict(reader.tagged_fields())

    (tags,) = reader.array(state)
    placed = api_65_describe_transactions.decode_placements(tags[PLACEMENTS_TAG])
    assert placed == (PlacedTransaction(41, 2, 4, (PlacedRecords("t", 0, 17, 3),)),)


@pytest.mark.parametrize(
    ("state", "changes", "name"),
    [
        ("OPEN", {}, "Ongoing"),
        ("PREPARING", {}, "PrepareCommit"),
        ("MUST_ABORT", {}, "CompleteAbort"),
        ("EMPTY", {}, "CompleteCommit"),
        ("EMPTY", {"committed": ()}, "Empty"),
    ],
)
async def test_states_have_kafkas_names(ask, memory, description, state, changes, name):
    """Tools made for Kafka know what to show."""
    memory.coordinator.descriptions["tx"] = description(state=state, **changes)
    (told,) = (await ask(LIST, 0, state_filters=[], producer_id_filters=[])).transaction_states
    assert told.transaction_state == name


async def test_transactional_ids_in_a_long_list_let_others_run(ask, memory, description, autojump_clock):
    """Ten thousand ids are looked through, and written, in several turns of the loop."""
    memory.coordinator.descriptions = {f"id-{number}": description(f"id-{number}") for number in range(10_000)}
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await ask.start(LIST, 0, state_filters=[], producer_id_filters=[])
        nursery.cancel_scope.cancel()
    assert turns >= 20


@versions(api_66_list_transactions)
async def test_transactions_are_listed_by_filter(ask, memory, description, version):
    """By state, by producer id, by how long they have been open."""
    now_ms = time.time_ns() // 1_000_000
    memory.coordinator.descriptions = {
        "old": description("old", producer_id=1, started_ms=now_ms - 60_000),
        "young": description("young", producer_id=2, started_ms=now_ms),
        "idle": description("idle", state="EMPTY", producer_id=3, started_ms=None),
    }

    async def listed(states=(), producer_ids=(), duration=-1):
        answer = await ask(
            LIST,
            version,
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=duration,
        )
        return {state.transactional_id for state in answer.transaction_states}, answer.unknown_state_filters

    assert await listed() == ({"old", "young", "idle"}, [])
    assert await listed(["Ongoing", "Hanging"]) == ({"old", "young"}, ["Hanging"])
    assert await listed(producer_ids=[2, 3]) == ({"young", "idle"}, [])
    if version >= 1:
        assert await listed(duration=30_000) == ({"old"}, [])


@pytest.mark.parametrize(
    ("pattern", "listed"),
    [
        (None, ["a-1", "a-2", "b-1"]),
        ("", ["a-1", "a-2", "b-1"]),
        ("a-.*", ["a-1", "a-2"]),
        ("^.-1$", ["a-1", "b-1"]),
        ("a", []),
        ("(a|b)-(2|3)+", ["a-2"]),
    ],
)
async def test_transactions_are_listed_by_pattern(ask, memory, description, pattern, listed):
    """Of the whole id, beside the other filters."""
    memory.coordinator.descriptions = {name: description(name) for name in ("a-1", "a-2", "b-1")}
    fields = {"producer_id_filters": [], "duration_filter": -1, "transactional_id_pattern": pattern}
    answer = await ask(LIST, 2, state_filters=["Ongoing"], **fields)
    assert (answer.error_code, [state.transactional_id for state in answer.transaction_states]) == (0, listed)
    assert (await ask(LIST, 2, state_filters=["Empty"], **fields)).transaction_states == []


@pytest.mark.parametrize("pattern", ["(", r"\1", "(a{1000}){1000}", "((a{100}){100}){100}"])
async def test_transactions_by_a_pattern_that_is_none_are_refused(ask, memory, description, pattern):
    """Or that takes too much: before the first id, or at some later one."""
    names = [f"{number * 7919:0200b}".replace("0", "a").replace("1", "b") for number in range(1000)]
    memory.coordinator.descriptions = {name: description(name) for name in names}
    answer = await ask(
        LIST,
        2,
        state_filters=["Hanging"] if pattern == "(" else [],
        producer_id_filters=[],
        duration_filter=-1,
        transactional_id_pattern=pattern,
    )
    told = (answer.error_code, answer.unknown_state_filters, answer.transaction_states)
    assert told == (ErrorCode.INVALID_REGULAR_EXPRESSION, [], [])
