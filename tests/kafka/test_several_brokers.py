"""One broker of three: which brokers it names, and what it refuses because it is another one's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import trio
from kafka.protocol.admin import DescribeQuorumRequest
from kafka.protocol.producer import AddPartitionsToTxnRequest

from coordinator.answers import Refusal
from coordinator.transaction_groups import journal_of
from fairlog.groups.offset_values import TransactionalProducer
from fairlog.kafka.errors import EffectUnknown, ErrorCode
from fairlog.kafka.handlers import ALL
from fairlog.kafka.must_abort import PRODUCE, must_abort_code
from fairlog_types import LogId, ProducerEpoch, ProducerId, TxId
from partition.answers import RefusedAppend
from shard.ends import OWN_WAIT_S
from shard.placement import Placement
from tests.kafka.asking import REQUESTS
from tests.kafka.example_requests import build_batch, example_fields
from tests.kafka.in_memory import Memory

SHARDS = 3
OVER_THREE = Placement(SHARDS)
T = UUID(int=1)
"""The id of the first topic of a double."""
SERVED = {api.key: api.served for api in ALL}
NOT_LEADER, UNKNOWN = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
ELSEWHERE = ErrorCode.NOT_COORDINATOR
TRANSACTIONAL = 16
"""The bit of a batch that is in a transaction."""


def leader_of(partition: int, *, together: bool = False) -> int:
    return OVER_THREE.shard_of(LogId.of_topic(T, partition), together=together)


def coordinator_of(transactional_id: str) -> int:
    return journal_of(transactional_id, 16) % SHARDS


def id_of(shard: int) -> str:
    """A transactional id that this shard's broker coordinates."""
    return next(f"tx-{number}" for number in range(100) if coordinator_of(f"tx-{number}") == shard)


GROUP_OF = {0: "ggg", 1: "g", 2: "gg"}
"""By shard: a group whose offsets log it leads, in the double by the length of the name."""


@pytest.fixture
def memory(memory: Memory) -> Memory:
    """The broker of shard 1."""
    memory.spread(SHARDS, 1)
    return memory


def each_version(*keys: int) -> Any:
    asked = [(key, version) for key in keys for version in {SERVED[key].min, SERVED[key].max}]
    return pytest.mark.parametrize(("key", "version"), asked)


# --- who there is ----------------------------------------------------------------------------------


def told_brokers(answer: Any) -> list[tuple[int, str, int]]:
    return [
        (each.node_id if hasattr(each, "node_id") else each.broker_id, each.host, each.port) for each in answer.brokers
    ]


ALL_THREE = [(7, "broker-0.example", 9092), (8, "broker-1.example", 9093), (9, "broker-2.example", 9094)]


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("version", range(SERVED[3].max + 1))
async def test_metadata_names_all_brokers_and_each_partitions_leader(ask, memory, version, shard):
    """The same from every broker; the first shard's is the controller, and a leader is its partition's only replica."""
    memory.spread(SHARDS, shard)
    memory.topics.create_now("t", partitions=6)
    answer = await ask(3, version, **example_fields(3))
    assert told_brokers(answer) == ALL_THREE
    assert version == 0 or answer.controller_id == 7
    (topic,) = answer.topics
    expected = [(index, 0, 7 + leader_of(index), [7 + leader_of(index)]) for index in range(6)]
    assert [(p.partition_index, p.error_code, p.leader_id, p.replica_nodes) for p in topic.partitions] == expected
    assert [p.isr_nodes for p in topic.partitions] == [p.replica_nodes for p in topic.partitions]


@each_version(3, 24)
async def test_request_knows_the_topic_that_another_broker_has_just_made(ask, memory, key, version):
    """The client may have it from there: to it they are one cluster."""
    topic = memory.topics.create_now("t", partitions=2)
    memory.cluster.unnoticed.append(memory.cluster.by_name.pop("t"))
    if key == 3:
        assert [each.name for each in (await ask(key, version, **example_fields(key))).topics] == ["t"]
    else:
        assert ID_ERROR[key](await ask(key, version, **id_fields(key, id_of(1))), version) == 0
    assert memory.cluster.by_name["t"] == topic


async def test_metadata_of_a_topic_that_is_together_names_one_leader(ask, memory):
    """It is where its first partition is."""
    memory.topics.create_now("t", partitions=4, configs={"fairlog.placement": "together"})
    (topic,) = (await ask(3, 12, **example_fields(3))).topics
    assert {p.leader_id for p in topic.partitions} == {7 + leader_of(0)}


@pytest.mark.parametrize("missing", [7, 9])
async def test_partition_whose_broker_has_not_started_has_no_leader_yet(ask, memory, missing):
    """Clients ask again; the other partitions are served, and an unknown controller is none."""
    del memory.cluster.addresses[missing]
    memory.topics.create_now("t", partitions=6)
    answer = await ask(3, 12, **example_fields(3))
    paged = await ask(75, 0, **(example_fields(75)))
    assert missing not in [node_id for node_id, _, _ in told_brokers(answer)]
    assert answer.controller_id == (-1 if missing == 7 else 7)
    gone = (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    expected = [gone if 7 + leader_of(i) == missing else (0, 7 + leader_of(i)) for i in range(6)]
    for topic in (*answer.topics, *paged.topics):
        assert [(p.error_code, p.leader_id) for p in topic.partitions] == expected


@pytest.mark.parametrize("version", range(SERVED[60].max + 1))
async def test_cluster_is_described_with_all_brokers(ask, memory, version):
    """And the first shard's as its controller."""
    answer = await ask(60, version, **example_fields(60))
    assert (told_brokers(answer), answer.controller_id) == (ALL_THREE, 7)


async def test_topic_partitions_name_each_partitions_leader(ask, memory):
    """As Metadata does."""
    memory.topics.create_now("t", partitions=6)
    (topic,) = (await ask(75, 0, **example_fields(75))).topics
    assert [(p.leader_id, p.replica_nodes) for p in topic.partitions] == [
        (7 + leader_of(i), [7 + leader_of(i)]) for i in range(6)
    ]


@pytest.mark.parametrize("version", range(SERVED[55].max + 1))
async def test_quorum_is_the_controller_and_the_others_observe(ask, memory, version):
    """So tools see every broker, and one that leads."""
    topic = DescribeQuorumRequest.TopicData
    asked = topic(topic_name="__cluster_metadata", partitions=[topic.PartitionData(partition_index=0)])
    answer = await ask(55, version, topics=[asked])
    (told,) = answer.topics[0].partitions
    assert (told.error_code, told.leader_id) == (0, 7)
    assert [voter.replica_id for voter in told.current_voters] == [7]
    assert [observer.replica_id for observer in told.observers] == [8, 9]


async def test_config_resources_name_every_broker(ask, memory):
    """Tools ask each of them for its configs."""
    answer = await ask(74, 1, resource_types=[4])
    assert [each.resource_name for each in answer.config_resources] == ["7", "8", "9"]


async def test_partition_may_be_reassigned_to_its_own_broker_only(ask, memory):
    """Which need not be the one that is asked."""
    memory.topics.create_now("t", partitions=3)
    answer = await ask(45, 0, **example_fields(45))  # to broker 7
    (line,) = answer.responses[0].partitions
    assert line.error_code == (0 if leader_of(0) == 0 else ErrorCode.INVALID_REPLICA_ASSIGNMENT)


# --- FindCoordinator -------------------------------------------------------------------------------


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("version", [1, 3, 4, 6])
async def test_coordinator_is_the_same_from_every_broker(ask, memory, version, shard):
    """Of a group the leader of its offsets log, of a transactional id the broker that has its group journal."""
    memory.spread(SHARDS, shard)
    ids = {id_of(number): number for number in range(SHARDS)}
    for kind, keys in ((0, {name: number for number, name in GROUP_OF.items()}), (1, ids)):
        for key, number in keys.items():
            answer = await ask(10, version, key=key, key_type=kind, coordinator_keys=[key])
            told = answer.coordinators[0] if version >= 4 else answer
            assert (told.error_code, told.node_id, told.host, told.port) == (0, *ALL_THREE[number])


async def test_coordinators_of_one_answer_may_be_several(ask, memory):
    """Each key has its own."""
    answer = await ask(10, 4, key="", key_type=0, coordinator_keys=list(GROUP_OF.values()))
    assert [told.node_id for told in answer.coordinators] == [7, 8, 9]


async def test_coordinator_of_a_member_is_that_of_its_transactional_group(ask, memory):
    """With a separator, all ids of one group are coordinated by one broker."""
    separate(memory, "::")
    group = id_of(2)
    answer = await ask(10, 4, key="", key_type=1, coordinator_keys=[f"{group}::{member}" for member in range(5)])
    assert {told.node_id for told in answer.coordinators} == {9}


def separate(memory: Memory, separator: str) -> None:
    transactions = replace(memory.settings.transactions, group_separator=separator)
    memory.settings = replace(memory.settings, transactions=transactions)


@pytest.mark.parametrize(("kind", "key"), [(0, GROUP_OF[2]), (1, id_of(2))])
@pytest.mark.parametrize("version", [0, 1, 4])
async def test_coordinator_that_has_not_started_is_not_available(ask, memory, version, kind, key):
    """Clients ask again. Version 0 knows groups only."""
    del memory.cluster.addresses[9]
    if version == 0:
        kind, key = 0, GROUP_OF[2]
    answer = await ask(10, version, key=key, key_type=kind, coordinator_keys=[key])
    told = answer.coordinators[0] if version >= 4 else answer
    assert (told.error_code, told.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


# --- partitions of another broker ------------------------------------------------------------------

PARTITION_OF = {0: 0, 1: 1, 2: 0, 21: 0, 23: 0, 27: 0, 61: 0}
"""The partition that the example of each API names."""

PARTITION_ERROR: dict[int, Callable[[Any], int]] = {
    0: lambda answer: answer.responses[0].partition_responses[0].error_code,
    1: lambda answer: answer.responses[0].partitions[0].error_code,
    2: lambda answer: answer.topics[0].partitions[0].error_code,
    21: lambda answer: answer.topics[0].partitions[0].error_code,
    23: lambda answer: answer.topics[0].partitions[0].error_code,
    27: lambda answer: answer.markers[0].topics[0].partitions[0].error_code,
    61: lambda answer: answer.topics[0].partitions[0].error_code,
}


def partition_fields(key: int) -> dict[str, Any]:
    fields = example_fields(key)
    if key == 0:
        fields["topic_data"][0].topic_id = T
    return fields


@each_version(*PARTITION_OF)
@pytest.mark.parametrize("away", range(SHARDS))
async def test_partition_is_refused_exactly_where_it_is_not_led(ask, memory, key, version, away):
    """NOT_LEADER_OR_FOLLOWER, on which clients ask Metadata; its leader answers."""
    memory.spread(SHARDS, (leader_of(PARTITION_OF[key]) + away) % SHARDS)
    memory.topics.create_now("t", partitions=2)
    answer = await ask(key, version, **partition_fields(key))
    assert PARTITION_ERROR[key](answer) == (NOT_LEADER if away else 0)


@each_version(*PARTITION_OF)
@pytest.mark.parametrize("shard", range(SHARDS))
async def test_partition_that_does_not_exist_is_unknown_everywhere(ask, memory, key, version, shard):
    """That the topic is there is checked first."""
    memory.configure(auto_create=False)
    memory.spread(SHARDS, shard)
    by_id = (key == 0 and version >= 13) or (key == 1 and version >= 13)
    answer = await ask(key, version, **partition_fields(key))
    assert PARTITION_ERROR[key](answer) == (ErrorCode.UNKNOWN_TOPIC_ID if by_id else UNKNOWN)
    if PARTITION_OF[key]:
        memory.topics.create_now("t", partitions=PARTITION_OF[key])
        answer = await ask(key, version, **partition_fields(key))
        assert PARTITION_ERROR[key](answer) == UNKNOWN


@each_version(*PARTITION_OF)
async def test_partition_that_is_about_to_be_led_here_is_refused_alike(ask, memory, key, version):
    """Another process has made the topic, and this one has not come to it yet: it is there for clients that ask on."""
    memory.spread(SHARDS, leader_of(PARTITION_OF[key]))
    memory.topics.create_now("t", partitions=2)
    memory.leaders.logs.clear()
    answer = await ask(key, version, **partition_fields(key))
    assert PARTITION_ERROR[key](answer) == NOT_LEADER


@each_version(*PARTITION_OF)
async def test_partition_that_is_not_led_by_the_only_broker_is_unknown(ask, memory, key, version):
    """There is no other one that clients could find."""
    memory.spread(1, 0)
    memory.topics.create_now("t", partitions=2)
    memory.leaders.logs.clear()
    answer = await ask(key, version, **partition_fields(key))
    assert PARTITION_ERROR[key](answer) == UNKNOWN


async def test_fetch_session_tells_of_a_partition_that_is_led_elsewhere(ask, memory):
    """With those that it reads, in the first answer and in later ones."""
    memory.spread(SHARDS, leader_of(0))
    memory.topics.create_now("t", partitions=3)
    router = ask.router
    fields = example_fields(1) | {"session_epoch": 0, "max_wait_ms": 0}
    fields["topics"] = [fetch_topic(0), fetch_topic(1)]

    async def fetch(**more: Any) -> Any:
        request = asking(1, 12, **(fields | more))
        started = await router.start(request, ask.client)
        return ask.parse(1, 12, await ask.finish(started))

    session = 0
    for number in (0, 1):
        answer = await fetch(session_epoch=number, session_id=session)
        session = answer.session_id
        assert session
        told = {p.partition_index: p.error_code for t in answer.responses for p in t.partitions}
        assert told[1] == NOT_LEADER
        assert told.get(0, 0) == 0


def fetch_topic(partition: int) -> Any:
    (topic,) = example_fields(1)["topics"]
    topic.partitions[0].partition = partition
    return topic


def asking(key: int, version: int, **fields: Any) -> bytes:
    request = REQUESTS[key][0](version=version, **fields)
    request.with_header(correlation_id=5, client_id="asker")
    return bytes(request.encode(version=version, header=True))


@pytest.mark.parametrize("all_of_them", [True, False])
async def test_log_dirs_have_the_partitions_that_are_led_here(ask, memory, all_of_them, tmp_path):
    """Each broker tells of its own."""
    memory.settings = replace(memory.settings, data_dir=tmp_path)
    memory.topics.create_now("t", partitions=6)
    fields = {"topics": None} if all_of_them else example_fields(35)
    if not all_of_them:
        fields["topics"][0].partitions = list(range(6))
    answer = await ask(35, 2, **fields)
    told = [p.partition_index for t in answer.results[0].topics for p in t.partitions]
    assert told == [index for index in range(6) if leader_of(index) == 1]


# --- groups of another broker ----------------------------------------------------------------------

GROUP_ERROR: dict[int, Callable[[Any, int], int]] = {
    8: lambda answer, _: answer.topics[0].partitions[0].error_code,
    9: lambda answer, version: (
        answer.groups[0].error_code
        if version >= 8
        else answer.error_code
        if version >= 2
        else answer.topics[0].partitions[0].error_code
    ),
    11: lambda answer, _: answer.error_code,
    12: lambda answer, _: answer.error_code,
    13: lambda answer, _: answer.error_code,
    14: lambda answer, _: answer.error_code,
    15: lambda answer, _: answer.groups[0].error_code,
    28: lambda answer, _: answer.topics[0].partitions[0].error_code,
    42: lambda answer, _: answer.results[0].error_code,
    47: lambda answer, _: answer.error_code,
    68: lambda answer, _: answer.error_code,
    69: lambda answer, _: answer.groups[0].error_code,
}


def group_fields(key: int, group: str) -> dict[str, Any]:
    fields = example_fields(key)
    for name in fields.keys() & {"group", "group_id"}:
        fields[name] = group
    if key == 8:
        fields["topics"][0].topic_id = T
    if key == 9:
        fields["groups"][0].group_id = group
        fields["groups"][0].topics[0].topic_id = T
    if key in (15, 42, 69):
        name = {15: "groups", 42: "groups_names", 69: "group_ids"}[key]
        fields[name] = (group,) if key == 69 else [group]
    return fields


@each_version(*GROUP_ERROR)
@pytest.mark.parametrize("shard", range(SHARDS))
async def test_group_is_refused_exactly_where_it_is_not_coordinated(ask, memory, key, version, shard):
    """NOT_COORDINATOR, on which clients ask FindCoordinator; its own broker has something to say."""
    memory.topics.create_now("t", partitions=2)
    answer = await ask(key, version, **group_fields(key, GROUP_OF[shard]))
    error = GROUP_ERROR[key](answer, version)
    assert (error == ELSEWHERE) == (shard != 1), ErrorCode(error)


@pytest.mark.parametrize("key", [8, 28])
async def test_commit_for_another_brokers_group_names_unknown_partitions_first(ask, memory, key):
    """As Kafka does, which looks at them before it asks for the group."""
    answer = await ask(key, 2, **group_fields(key, GROUP_OF[0]))
    code = UNKNOWN if key == 8 else ErrorCode.TRANSACTION_ABORTABLE
    assert GROUP_ERROR[key](answer, 2) == code


@pytest.mark.parametrize("key", [11, 12, 14])
async def test_group_id_that_no_group_has_is_refused_for_what_it_is(ask, memory, key):
    """No broker coordinates it."""
    answer = await ask(key, SERVED[key].max, **group_fields(key, ""))
    assert answer.error_code == ErrorCode.INVALID_GROUP_ID


# --- transactional ids of another broker -----------------------------------------------------------

ID_ERROR: dict[int, Callable[[Any, int], int]] = {
    22: lambda answer, _: answer.error_code,
    24: lambda answer, version: (
        (answer.results_by_transaction[0].topic_results[0] if version >= 4 else answer.results_by_topic_v3_and_below[0])
        .results_by_partition[0]
        .partition_error_code
    ),
    25: lambda answer, _: answer.error_code,
    26: lambda answer, _: answer.error_code,
    65: lambda answer, _: answer.transaction_states[0].error_code,
}


def id_fields(key: int, transactional_id: str) -> dict[str, Any]:
    fields = example_fields(key)
    if "transactional_id" in fields:
        fields["transactional_id"] = transactional_id
    if key == 24:
        fields["v3_and_below_transactional_id"] = transactional_id
        fields["transactions"] = [
            AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                transactional_id=transactional_id,
                producer_id=1,
                producer_epoch=0,
                verify_only=False,
                topics=fields["v3_and_below_topics"],
            )
        ]
    if key == 65:
        fields["transactional_ids"] = [transactional_id]
    return fields


@each_version(*ID_ERROR)
@pytest.mark.parametrize("shard", range(SHARDS))
async def test_transactional_id_is_refused_exactly_where_it_is_not_coordinated(
    ask, memory, description, key, version, shard
):
    """NOT_COORDINATOR, and the coordinator here hears nothing; of an own one it does."""
    memory.topics.create_now("t", partitions=2)
    own = id_of(1)
    memory.coordinator.descriptions[own] = description(own)
    answer = await ask(key, version, **id_fields(key, id_of(shard)))
    assert ID_ERROR[key](answer, version) == (0 if shard == 1 else ELSEWHERE)
    assert bool(memory.coordinator.calls) == (shard == 1 and key != 65)


async def test_verification_of_another_brokers_transaction_is_refused(ask, memory):
    """As adding to it."""
    memory.topics.create_now("t", partitions=2)
    fields = id_fields(24, id_of(0))
    fields["transactions"][0].verify_only = True
    assert ID_ERROR[24](await ask(24, 5, **fields), 5) == ELSEWHERE


@each_version(24)
@pytest.mark.parametrize("shards", [1, SHARDS])
async def test_partition_that_another_broker_does_not_lead_yet_can_be_added_soon(ask, memory, key, version, shards):
    """Its broker hears of a new topic a moment later. The only broker has heard of it: there it is being deleted."""
    memory.spread(shards, shards // 2)
    memory.topics.create_now("t", partitions=2)
    memory.coordinator.unknown_logs.add(LogId.of_topic(T, 0))
    code = ErrorCode.TRANSACTION_ABORTABLE if shards == 1 else ErrorCode.CONCURRENT_TRANSACTIONS
    assert ID_ERROR[key](await ask(key, version, **id_fields(key, id_of(1))), version) == code


@each_version(24)
async def test_partition_whose_shard_has_a_failed_disk_is_refused_for_that(ask, memory, key, version):
    """On CONCURRENT_TRANSACTIONS clients would ask again until somebody restarts that shard."""
    memory.spread(SHARDS, SHARDS // 2)
    memory.topics.create_now("t", partitions=2)
    memory.coordinator.failed_logs.add(LogId.of_topic(T, 0))
    assert ID_ERROR[key](await ask(key, version, **id_fields(key, id_of(1))), version) == ErrorCode.KAFKA_STORAGE_ERROR


async def test_producer_without_a_transactional_id_gets_its_id_from_every_broker(ask, memory):
    """The ids are the cluster's."""
    assert (await ask(22, 4, **id_fields(22, id_of(0)) | {"transactional_id": None})).error_code == 0


@pytest.mark.parametrize("key", [22, 25, 26])
async def test_transactional_id_that_nobody_has_is_refused_for_what_it_is(ask, memory, key):
    """No broker coordinates it."""
    assert (await ask(key, 3, **id_fields(key, ""))).error_code == ErrorCode.INVALID_REQUEST


# --- transactions that another broker coordinates, in partitions that are led here -------------------

OPEN = TxId(ProducerId(41), ProducerEpoch(2), 0)


def produce_in_transaction(transactional_id: str, version: int) -> dict[str, Any]:
    fields = partition_fields(0) | {"transactional_id": transactional_id}
    batch = build_batch(producer_id=41, epoch=2, sequence=0, attributes=TRANSACTIONAL)
    fields["topic_data"][0].partition_data[0].records = batch
    return fields


@pytest.fixture
def led(memory: Memory) -> LogId:
    """A partition that is led here."""
    memory.spread(SHARDS, leader_of(0))
    memory.topics.create_now("t")
    return LogId.of_topic(T, 0)


def another(memory: Memory) -> str:
    """A transactional id of another broker."""
    return id_of((memory.cluster.shard + 1) % SHARDS)


@pytest.mark.parametrize("version", range(SERVED[0].min, SERVED[0].max + 1))
async def test_batch_of_another_brokers_transaction_goes_into_what_the_partition_has_open(ask, memory, led, version):
    """The coordinator here does not know the id, and is not asked; the other one adds it, from 12 on."""
    memory.leaders.open[OPEN.producer_id] = OPEN
    answer = await ask(0, version, **produce_in_transaction(another(memory), version))
    assert PARTITION_ERROR[0](answer) == 0
    assert memory.leaders.came_in == [OPEN]
    assert memory.coordinator.calls == []
    adds = (another(memory), OPEN.producer_id, OPEN.epoch, led)
    assert memory.other_coordinators.added == ([adds] if version >= 12 else [])


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (Refusal.FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (Refusal.CONCURRENT, ErrorCode.NOT_ENOUGH_REPLICAS),
        (Refusal.UNKNOWN_LOG, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (Refusal.STORAGE, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
async def test_batch_is_refused_as_the_other_coordinator_says(ask, memory, led, refusal, code):
    """Nothing is written."""
    memory.other_coordinators.refusal = refusal
    assert PARTITION_ERROR[0](await ask(0, 12, **produce_in_transaction(another(memory), 12))) == code
    assert memory.leaders.came_in == []


async def test_batch_whose_coordinator_is_not_waited_for_any_more_has_no_answer(ask, memory, led):
    """This broker stops, and nobody knows whether the log was added. No disk has refused anything."""
    memory.other_coordinators.stops = True
    with pytest.raises(EffectUnknown):
        await ask(0, 12, **produce_in_transaction(another(memory), 12))
    assert memory.leaders.came_in == []


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (41, -1)])
async def test_producer_that_cannot_be_is_refused_without_a_word_to_its_coordinator(ask, memory, producer_id, epoch):
    """Brokers close a connection on which such a number comes."""
    memory.topics.create_now("t")
    fields = group_fields(28, GROUP_OF[1]) | {
        "transactional_id": id_of(0),
        "producer_id": producer_id,
        "producer_epoch": epoch,
    }
    assert GROUP_ERROR[28](await ask(28, 5, **fields), 5) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert memory.other_coordinators.added == []


async def test_batch_waits_until_its_coordinator_has_said_what_goes_on(ask, memory, led, autojump_clock):
    """After a restart nobody here knows whose transactions are open: "you must abort" would end one that goes on."""
    memory.other_coordinators.heard = trio.Event()
    answers: list[Any] = []

    async def produce() -> None:
        answers.append(await ask(0, 11, **produce_in_transaction(another(memory), 11)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        await trio.sleep(OWN_WAIT_S / 2)
        assert (answers, memory.leaders.came_in) == ([], [])
        memory.leaders.open[OPEN.producer_id] = OPEN
        memory.other_coordinators.heard.set()
    assert PARTITION_ERROR[0](answers[0]) == 0
    assert memory.leaders.came_in == [OPEN]


@pytest.mark.parametrize("version", [11, 12])
async def test_batch_whose_coordinator_says_nothing_in_time_is_to_be_sent_again(
    ask, memory, led, autojump_clock, version
):
    """Its process is down: nothing was written, and nothing is decided."""
    memory.other_coordinators.heard = trio.Event()
    fields = produce_in_transaction(another(memory), version) | {"timeout_ms": 30_000}
    before = trio.current_time()
    assert PARTITION_ERROR[0](await ask(0, version, **fields)) == ErrorCode.REQUEST_TIMED_OUT
    assert trio.current_time() - before == pytest.approx(30)
    assert memory.leaders.came_in == []


async def test_batch_of_what_is_open_here_waits_for_no_coordinator(ask, memory, led):
    """It goes on, whatever else that one may say; and what this broker coordinates, it knows itself."""
    memory.other_coordinators.heard = trio.Event()
    memory.leaders.open[OPEN.producer_id] = OPEN
    assert PARTITION_ERROR[0](await ask(0, 11, **produce_in_transaction(another(memory), 11))) == 0
    memory.leaders.open.clear()
    memory.leaders.refusal = RefusedAppend.NOT_IN_TRANSACTION
    own = await ask(0, 11, **produce_in_transaction(id_of(memory.cluster.shard), 11))
    assert PARTITION_ERROR[0](own) == ErrorCode.TRANSACTION_ABORTABLE


@pytest.mark.parametrize("version", [12, 13])
async def test_batch_adds_its_partition_for_its_own_coordinator(ask, memory, led, description, version):
    """No other broker is asked."""
    own = id_of(memory.cluster.shard)
    memory.coordinator.descriptions[own] = description(own)
    memory.leaders.open[OPEN.producer_id] = OPEN
    answer = await ask(0, version, **produce_in_transaction(own, version))
    assert (PARTITION_ERROR[0](answer), memory.leaders.came_in) == (0, [OPEN])
    assert memory.coordinator.calls == [("add", own, OPEN.producer_id, OPEN.epoch, (led,), None)]
    assert memory.other_coordinators.added == []


@pytest.mark.parametrize("name", ["librdkafka", "apache-kafka-java", "kgo", "kafka-python", ""])
@pytest.mark.parametrize("version", [3, 10, 12])
async def test_batch_of_another_brokers_transaction_that_is_not_open_has_its_client_abort(
    ask, memory, led, name, version
):
    """Only the coordinator knows whether it is fenced or was aborted: the client hears it there."""
    ask.client.software_name, ask.client.software_version = name, "4.0"
    memory.leaders.refusal = RefusedAppend.NOT_IN_TRANSACTION
    answer = await ask(0, version, **produce_in_transaction(another(memory), version))
    assert PARTITION_ERROR[0](answer) == must_abort_code(PRODUCE, ask.client)


@pytest.mark.parametrize(
    ("refusal", "code"),
    [(RefusedAppend.FENCED, ErrorCode.INVALID_PRODUCER_EPOCH), (RefusedAppend.OUT_OF_ORDER, 45)],
)
async def test_batch_of_another_brokers_transaction_is_refused_by_what_the_partition_knows(
    ask, memory, led, refusal, code
):
    """Its fences and sequences count."""
    memory.leaders.refusal = refusal
    answer = await ask(0, 11, **produce_in_transaction(another(memory), 11))
    assert PARTITION_ERROR[0](answer) == code


@pytest.mark.parametrize("records", [b"", b"x" * 20, None])
async def test_request_of_another_brokers_transaction_that_has_no_batch_is_refused(ask, memory, led, records):
    """Whose it is cannot be told, and does not matter."""
    fields = produce_in_transaction(another(memory), 11)
    fields["topic_data"][0].partition_data[0].records = records
    assert PARTITION_ERROR[0](await ask(0, 11, **fields)) == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("version", range(SERVED[28].max + 1))
async def test_offsets_in_another_brokers_transaction_reach_the_group(ask, memory, version):
    """Whether the transaction is open there, the group's log knows. From 5 on, the log is added before."""
    memory.topics.create_now("t")
    fields = group_fields(28, GROUP_OF[1]) | {"transactional_id": id_of(0)}
    assert GROUP_ERROR[28](await ask(28, version, **fields), version) == 0
    ((_, group, _, producer, _),) = memory.offsets.calls
    assert (group, producer) == (GROUP_OF[1], TransactionalProducer(id_of(0), 1, 0, 11))
    assert memory.coordinator.calls == []
    added = (id_of(0), 1, 0, memory.offsets.log_of(GROUP_OF[1]))
    assert memory.other_coordinators.added == ([added] if version >= 5 else [])


async def test_offsets_whose_coordinator_says_nothing_in_time_are_to_be_sent_again(ask, memory, autojump_clock):
    """As to any coordinator that is not there yet."""
    memory.topics.create_now("t")
    memory.other_coordinators.heard = trio.Event()
    fields = group_fields(28, GROUP_OF[1]) | {"transactional_id": id_of(0)}
    assert GROUP_ERROR[28](await ask(28, 5, **fields), 5) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert memory.offsets.calls == []


@pytest.mark.parametrize(("shard", "version"), [(0, 2), (0, 5), (1, 2), (1, 5)])
async def test_offsets_outside_of_a_transaction_have_the_client_abort(ask, memory, shard, version):
    """Of another broker's transactional id in every version, for only the coordinator knows why it is not open."""
    memory.topics.create_now("t")
    memory.offsets.refusal = RefusedAppend.NOT_IN_TRANSACTION
    fields = group_fields(28, GROUP_OF[1]) | {"transactional_id": id_of(shard)}
    plain = shard == 1 and version < 4
    code = ErrorCode.INVALID_TXN_STATE if plain else ErrorCode.TRANSACTION_ABORTABLE
    assert GROUP_ERROR[28](await ask(28, version, **fields), version) == code


@pytest.mark.parametrize("own", [True, False])
async def test_abort_marker_ends_only_what_is_coordinated_here(ask, memory, led, own):
    """Another broker's transaction is not reported as ended."""
    memory.leaders.open_for = TxId(ProducerId(1), ProducerEpoch(0), 0)
    if own:
        memory.coordinator.epochs[ProducerId(1)] = ProducerEpoch(0)
    answer = await ask(27, 1, **example_fields(27))
    assert PARTITION_ERROR[27](answer) == (0 if own else ErrorCode.INVALID_TXN_STATE)
    assert bool(memory.coordinator.calls) == own


async def test_transaction_version_is_2(ask, memory):
    """As of one broker: leaders add partitions at the coordinator, which need not be their own."""
    answer = await ask(18, 4, client_software_name="a", client_software_version="1")
    supported = {each.name: (each.min_version, each.max_version) for each in answer.supported_features}
    finalized = {each.name: each.max_version_level for each in answer.finalized_features}
    assert (supported["transaction.version"], finalized["transaction.version"]) == ((0, 2), 2)
