"""Metadata, ListOffsets, CreateTopics, DeleteTopics: what clients see of topics, and how they change them."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio
from kafka.protocol.admin import CreateTopicsRequest, DeleteTopicsRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from fairlog.kafka.api import Deferred, EncodedAnswers
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import api_02_list_offsets, api_03_metadata, api_19_create_topics, api_20_delete_topics
from fairlog.topic_configs import transactions
from fairlog_types import Offset, StorageFailure

LIST_OFFSETS, METADATA, CREATE, DELETE = 2, 3, 19, 20


def versions(api):
    return pytest.mark.parametrize("version", range(api.SERVED.min, api.SERVED.max + 1))


# --- Metadata --------------------------------------------------------------------------------------


def wanted(*names, may_create=True):
    topics = [MetadataRequest.MetadataRequestTopic(name=name, topic_id=None) for name in names]
    return {"topics": topics, "allow_auto_topic_creation": may_create}


@versions(api_03_metadata)
async def test_metadata_tells_the_node_and_the_topics(ask, memory, version):
    """One broker, which leads everything; each topic with its partitions, in every version."""
    topic = memory.topics.create_now("t", partitions=3)
    answer = await ask(METADATA, version, **wanted("t"))
    (broker,) = answer.brokers
    assert (broker.node_id, broker.host, broker.port) == (7, "broker.example", 9092)
    (told,) = answer.topics
    assert (told.error_code, told.name) == (0, "t")
    assert [p.partition_index for p in told.partitions] == [0, 1, 2]
    assert {(p.leader_id, tuple(p.replica_nodes), tuple(p.isr_nodes)) for p in told.partitions} == {(7, (7,), (7,))}
    if version >= 1:
        assert answer.controller_id == 7
    if version >= 2:
        assert answer.cluster_id == "fairlog-memory-cluster"
    if version >= 7:
        assert told.partitions[0].leader_epoch == 3
    if version >= 10:
        assert told.topic_id == topic.topic_id


@versions(api_03_metadata)
async def test_metadata_of_all_topics_or_of_none(ask, memory, version):
    """Null means all; an empty list means none, but all in version 0."""
    memory.topics.create_now("b")
    memory.topics.create_now("a")
    all_topics = {"topics": [] if version == 0 else None, "allow_auto_topic_creation": True}
    assert [topic.name for topic in (await ask(METADATA, version, **all_topics)).topics] == ["a", "b"]
    if version >= 1:
        assert (await ask(METADATA, version, **wanted())).topics == []


@pytest.mark.parametrize(
    ("version", "may_create", "configured", "error"),
    [
        (9, True, True, 0),
        (3, False, True, 0),
        (9, False, True, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (9, True, False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
    ids=["allowed", "before clients could forbid it", "forbidden by the client", "forbidden by the operator"],
)
async def test_topic_missing_is_made_if_both_sides_allow_it(ask, memory, version, may_create, configured, error):
    """Auto-creation needs the client's and the operator's consent, and takes the node's defaults."""
    memory.configure(auto_create=configured, partitions_default=4, transactions="markers")
    (told,) = (await ask(METADATA, version, **wanted("new", may_create=may_create))).topics
    assert (told.error_code, len(told.partitions)) == (error, 0 if error else 4)
    made = memory.cluster.topic("new")
    assert (made and dict(made.configs)) == (None if error else {"fairlog.transactions": "markers"})


@pytest.mark.parametrize(
    ("failure", "error"),
    [(None, ErrorCode.INVALID_TOPIC_EXCEPTION), (StorageFailure("full"), ErrorCode.KAFKA_STORAGE_ERROR)],
)
async def test_topic_that_cannot_be_made_says_why(ask, memory, failure, error):
    """A bad name is the client's fault, a full disk is not."""
    memory.topics.failure = failure
    (told,) = (await ask(METADATA, 9, **wanted("no spaces please"))).topics
    assert told.error_code == error


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("name", [None, ""])
async def test_metadata_by_topic_id(ask, memory, version, name):
    """A client that knows only the id gets the name; an id that is gone has an error of its own."""
    topic = memory.topics.create_now("t")
    gone = UUID(int=99)
    topics = [MetadataRequest.MetadataRequestTopic(name=name, topic_id=i) for i in (topic.topic_id, gone)]
    answer = await ask(METADATA, version, topics=topics, allow_auto_topic_creation=True)
    told = [(t.error_code, t.name, t.topic_id) for t in answer.topics]
    assert told == [(0, "t", topic.topic_id), (ErrorCode.UNKNOWN_TOPIC_ID, None, gone)]


async def test_metadata_of_a_topic_named_again_and_again_is_told_once(ask, memory):
    """By id if there is one, else by name, and in the order of asking: a short request must not have a long answer."""
    one, two = memory.topics.create_now("one", partitions=50), memory.topics.create_now("two")
    asked = [("two", None), ("one", None), ("one", one.topic_id), ("two", one.topic_id), (None, two.topic_id)]
    topics = [MetadataRequest.MetadataRequestTopic(name=name, topic_id=i) for name, i in [*asked, asked[-1]]]
    answer = await ask(METADATA, 12, topics=topics, allow_auto_topic_creation=True)
    assert [topic.name for topic in answer.topics] == ["two", "one", "one", "two"]


async def test_metadata_is_encoded_once_per_generation(ask, memory):
    """The same question gets the very same buffers, until something changes."""
    memory.topics.create_now("t")
    router = ask.router
    request = MetadataRequest(version=9, **wanted("t"))
    request.with_header(correlation_id=5, client_id="asker")
    frame = bytes(request.encode(version=9, header=True))
    first, second = [(await router.start(frame, ask.client)).answer for _ in range(2)]
    assert first[-1] is second[-1]
    memory.topics.create_now("u")
    assert (await router.start(frame, ask.client)).answer[-1] is not first[-1]


async def test_metadata_of_all_topics_asked_at_once_is_encoded_once(ask, memory, nursery):
    """Encoding ten thousand partitions gives way to others now and then; who asks meanwhile waits for it."""
    for number in range(30):
        memory.topics.create_now(f"t{number}")
    router = ask.router
    request = MetadataRequest(version=9, topics=None, allow_auto_topic_creation=False)
    request.with_header(correlation_id=5, client_id="asker")
    frame, answers = bytes(request.encode(version=9, header=True)), []

    async def start():
        answers.append((await router.start(frame, ask.client)).answer)

    async with trio.open_nursery() as askers:
        for _ in range(5):
            askers.start_soon(start)
    assert len({id(answer[-1]) for answer in answers}) == 1


async def test_metadata_with_an_error_is_not_kept(ask, memory):
    """There is no end of names that do not exist."""
    router = ask.router
    request = MetadataRequest(version=9, **wanted("none", may_create=False))
    request.with_header(correlation_id=5, client_id="asker")
    frame = bytes(request.encode(version=9, header=True))
    first, second = [(await router.start(frame, ask.client)).answer for _ in range(2)]
    assert first[-1] is not second[-1]


def test_answers_kept_are_bounded_in_bytes():
    """Neither large answers nor those to long questions are kept; when the room is used up the store begins anew."""
    kept, answer = EncodedAnswers(), [bytes(EncodedAnswers.ANSWER_BYTES_MAX // 2)]
    kept.put("large", 1, [bytes(EncodedAnswers.ANSWER_BYTES_MAX)], key_items=1)
    kept.put("long", 1, answer, key_items=EncodedAnswers.ANSWER_BYTES_MAX // EncodedAnswers.KEY_ITEM_BYTES)
    assert (kept.get("large", 1), kept.get("long", 1)) == (None, None)
    keys = range(EncodedAnswers.BYTES_MAX // len(answer[0]))
    for key in keys:
        kept.put(key, 1, answer, key_items=0)
    held = [key for key in keys if kept.get(key, 1) is not None]
    assert 0 < len(held) < len(keys)
    assert keys[-1] in held


# --- ListOffsets -----------------------------------------------------------------------------------


def query(timestamp, *, topic="t", partition=0, leader_epoch=-1, isolation_level=0):
    asked = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
        partition_index=partition, current_leader_epoch=leader_epoch, timestamp=timestamp
    )
    return {
        "replica_id": -1,
        "isolation_level": isolation_level,
        "topics": [ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])],
    }


@pytest.fixture
def three_batches(memory, batch):
    """Offsets 0 to 5, two records each, with timestamps 1000, 3000 and 2000; the log begins at 2."""
    memory.topics.create_now("t")
    log = memory.log("t")
    for index, timestamp in enumerate((1000, 3000, 2000)):
        data = bytearray(batch(records=2, timestamp=timestamp))
        data[:8] = (2 * index).to_bytes(8, "big")
        memory.leaders.logs[log].append(bytes(data))
    memory.leaders.starts[log] = Offset(2)
    return memory


@versions(api_02_list_offsets)
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize(
    ("timestamp", "found"),
    [(-1, (-1, 6)), (-2, (-1, 2)), (1500, (3000, 2)), (0, (1000, 0)), (9999, (-1, -1))],
    ids=["latest", "earliest", "by time", "from the beginning of time", "after the end"],
)
async def test_offsets_are_listed(ask, three_batches, version, isolation_level, timestamp, found):
    """The same answers at both isolation levels where nothing is open, in every version."""
    answer = await ask(LIST_OFFSETS, version, **query(timestamp, isolation_level=isolation_level))
    ((told,),) = [topic.partitions for topic in answer.topics]
    assert (told.error_code, (told.timestamp, told.offset)) == (0, found)
    if version >= 4:
        assert told.leader_epoch == (3 if told.offset >= 0 else -1)


@versions(api_02_list_offsets)
@pytest.mark.parametrize(
    ("timestamp", "committed", "every"),
    [(-1, (-1, 4), (-1, 6)), (-2, (-1, 2), (-1, 2)), (2500, (3000, 2), (3000, 2)), (1500, (3000, 2), (3000, 2))],
    ids=["latest", "earliest", "by time", "by an earlier time"],
)
async def test_offsets_are_listed_by_isolation_level(ask, three_batches, version, timestamp, committed, every):
    """While a transaction is open from offset 4 on, the end differs; version 1 knows no isolation levels."""
    three_batches.leaders.undecided[three_batches.log("t")] = Offset(4)
    for isolation_level, found in ((0, every), (1, committed if version >= 2 else every)):
        answer = await ask(LIST_OFFSETS, version, **query(timestamp, isolation_level=isolation_level))
        ((told,),) = [topic.partitions for topic in answer.topics]
        assert (told.error_code, (told.timestamp, told.offset)) == (0, found)


async def test_offset_by_time_of_what_cannot_be_read_yet_is_none(ask, three_batches):
    """As in Kafka: a record behind the last stable offset is none for readers of committed records."""
    three_batches.leaders.undecided[three_batches.log("t")] = Offset(2)
    for isolation_level, offset in ((0, 2), (1, -1)):
        answer = await ask(LIST_OFFSETS, 7, **query(1500, isolation_level=isolation_level))
        ((told,),) = [topic.partitions for topic in answer.topics]
        assert (told.error_code, told.offset) == (0, offset)


@pytest.mark.parametrize(
    ("version", "asked", "error"),
    [
        (7, query(-1, topic="none"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (7, query(-1, partition=1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (7, query(-1, partition=-1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (7, query(-1, leader_epoch=2), ErrorCode.FENCED_LEADER_EPOCH),
        (7, query(-1, leader_epoch=4), ErrorCode.UNKNOWN_LEADER_EPOCH),
        (11, query(-7), ErrorCode.UNSUPPORTED_VERSION),
        (10, query(-6), ErrorCode.UNSUPPORTED_VERSION),
        (8, query(-5), ErrorCode.UNSUPPORTED_VERSION),
        (7, query(-4), ErrorCode.UNSUPPORTED_VERSION),
        (6, query(-3), ErrorCode.UNSUPPORTED_VERSION),
        (7, query(-4, topic="none"), ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_offsets_that_cannot_be_listed_have_their_error(ask, three_batches, version, asked, error):
    """Unknown partitions, other leader epochs, and timestamps that mean nothing in the version."""
    answer = await ask(LIST_OFFSETS, version, **asked)
    assert [p.error_code for topic in answer.topics for p in topic.partitions] == [error]


async def test_offsets_of_a_partition_named_twice_are_refused(ask, three_batches, monkeypatch):
    """As in Kafka; so no request asks for more searches than there are partitions."""
    three_batches.topics.create_now("u")
    monkeypatch.setattr(three_batches.data_logs, "offset_for_timestamp", lambda log, timestamp_ms: 1 / 0)
    parts = [query(timestamp)["topics"][0] for timestamp in (1500, 2000)]
    asked = query(-1) | {"topics": [*parts, query(-1, topic="u")["topics"][0]]}
    answer = await ask(LIST_OFFSETS, 7, **asked)
    told = [(topic.name, p.error_code) for topic in answer.topics for p in topic.partitions]
    assert told == [("t", ErrorCode.INVALID_REQUEST), ("t", ErrorCode.INVALID_REQUEST), ("u", 0)]


@pytest.mark.parametrize(
    ("timestamp", "deferred"),
    [(-1, False), (-2, False), (-4, False), (-5, False), (-6, False), (-3, True), (1500, True)],
)
async def test_offsets_that_have_to_be_searched_are_deferred(ask, three_batches, timestamp, deferred):
    """So that the connection is read from meanwhile, and a client that hangs up ends the search."""
    started = await ask.start(LIST_OFFSETS, 11, **query(timestamp))
    assert isinstance(started.answer, Deferred) == deferred


@pytest.mark.parametrize(("version", "timestamp", "found"), [(8, -4, 2), (9, -5, -1), (11, -4, 2), (11, -6, -1)])
async def test_offsets_of_remote_storage_are_those_of_a_log_without(ask, three_batches, version, timestamp, found):
    """All that there is is local, and nothing waits to be uploaded; clients ask for these to learn that."""
    answer = await ask(LIST_OFFSETS, version, **query(timestamp))
    ((told,),) = [topic.partitions for topic in answer.topics]
    assert (told.error_code, told.timestamp, told.offset) == (0, -1, found)
    assert told.leader_epoch == (3 if found >= 0 else -1)


async def test_offset_of_the_largest_timestamp(ask, three_batches):
    """From version 7 on, -3 asks for the record with the largest timestamp."""
    answer = await ask(LIST_OFFSETS, 7, **query(-3))
    ((told,),) = [topic.partitions for topic in answer.topics]
    assert (told.timestamp, told.offset) == (3000, 2)


# --- CreateTopics ----------------------------------------------------------------------------------

New = CreateTopicsRequest.CreatableTopic


def new(name="t", partitions=2, replicas=1, assignments=None, **configs):
    config = New.CreatableTopicConfig
    assignment = New.CreatableReplicaAssignment
    return New(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[assignment(partition_index=i, broker_ids=ids) for i, ids in (assignments or {}).items()],
        configs=[config(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def create(*topics, validate_only=False):
    return {"topics": list(topics), "timeout_ms": 1000, "validate_only": validate_only}


@versions(api_19_create_topics)
async def test_topic_is_created(ask, memory, version):
    """With its partitions and configs, in every version."""
    asked = create(new(retention_ms="1000", max_message_bytes=None))
    (told,) = (await ask(CREATE, version, **asked)).topics
    assert (told.name, told.error_code, told.error_message) == ("t", 0, None)
    made = memory.cluster.by_name["t"]
    configs = {"retention.ms": "1000"}
    assert (made.partitions, dict(made.configs)) == (2, configs)
    if version >= 5:
        assert (told.num_partitions, told.replication_factor) == (2, 1)
        assert [(config.name, config.value) for config in told.configs] == list(configs.items())
    if version >= 7:
        assert told.topic_id == made.topic_id


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (new("no spaces please"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (new("there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (new(partitions=0), ErrorCode.INVALID_PARTITIONS),
        (new(partitions=-2), ErrorCode.INVALID_PARTITIONS),
        (new(replicas=0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new(assignments={0: [7]}), ErrorCode.INVALID_REQUEST),
        (new(partitions=-1, replicas=-1, assignments={1: [7]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new(partitions=-1, replicas=-1, assignments={0: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (new(retention_msec="1"), ErrorCode.INVALID_CONFIG),
        (new(retention_ms="soon"), ErrorCode.INVALID_CONFIG),
        (new(fairlog_transactions="marker"), ErrorCode.INVALID_CONFIG),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
async def test_topic_that_may_not_be_created_is_refused(ask, memory, topic, error, validate_only):
    """Each way of asking for nonsense has its own error and a sentence that says what is wrong, validated or not."""
    memory.topics.create_now("there")
    (told,) = (await ask(CREATE, 7, **create(topic, validate_only=validate_only))).topics
    assert told.error_code == error
    assert told.error_message
    assert list(memory.cluster.by_name) == ["there"]


@pytest.mark.parametrize("asked", ["journal", "markers", None])
@pytest.mark.parametrize("default", ["journal", "markers"])
async def test_topic_is_made_with_the_mode_asked_for_or_the_nodes(ask, memory, asked, default):
    """It stays when the node's setting changes. Journal mode that no one asked for is no config of the topic's own."""
    memory.configure(transactions=default)
    asked_for = {} if asked is None else {"fairlog_transactions": asked}
    (told,) = (await ask(CREATE, 7, **create(new(**asked_for)))).topics
    own = {} if asked is None and default == "journal" else {"fairlog.transactions": asked or default}
    assert {config.name: config.value for config in told.configs} == own
    assert dict(memory.cluster.topic("t").configs) == own
    memory.configure(transactions="journal" if default == "markers" else "markers")
    assert transactions(memory.cluster.topic("t")) == (asked or default)


async def test_topic_with_defaults(ask, memory):
    """-1 partitions and -1 replicas leave it to the node."""
    memory.configure(partitions_default=5)
    await ask(CREATE, 4, **create(new(partitions=-1, replicas=-1)))
    assert memory.cluster.by_name["t"].partitions == 5


async def test_topic_with_assignments(ask, memory):
    """Partitions assigned by hand are as many as the assignments."""
    (told,) = (await ask(CREATE, 7, **create(new(partitions=-1, replicas=-1, assignments={1: [7], 0: [7]})))).topics
    assert (told.error_code, memory.cluster.by_name["t"].partitions) == (0, 2)


@pytest.mark.parametrize("policy", ["clamp", "refuse"])
@pytest.mark.parametrize(
    ("topic", "refused"),
    [
        (new(replicas=3), ErrorCode.INVALID_REPLICATION_FACTOR),
        (new(partitions=-1, replicas=-1, assignments={0: [7, 8, 9]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
async def test_replicas_beyond_the_nodes_are_clamped_or_refused(ask, memory, policy, topic, refused):
    """As the operator has chosen."""
    memory.configure(replication_factor_policy=policy)
    (told,) = (await ask(CREATE, 7, **create(topic))).topics
    if policy == "clamp":
        assert (told.error_code, told.replication_factor) == (0, 1)
    else:
        assert told.error_code == refused


async def test_validate_only_makes_nothing(ask, memory):
    """It says what would have been made, or why it would not."""
    memory.topics.create_now("there")
    answer = await ask(CREATE, 7, **create(new("a"), new("there"), validate_only=True))
    assert [told.error_code for told in answer.topics] == [0, ErrorCode.TOPIC_ALREADY_EXISTS]
    assert list(memory.cluster.by_name) == ["there"]


@pytest.mark.parametrize("topic", [{}, {"partitions": 0}], ids=["validated", "refused"])
async def test_topics_in_a_long_list_let_others_run(ask, memory, autojump_clock, topic):
    """However many a request names, and whatever becomes of each."""
    turns = 0

    async def count():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await ask.start(CREATE, 7, **create(*(new(f"t{number}", **topic) for number in range(500)), validate_only=True))
        nursery.cancel_scope.cancel()
    assert turns >= 490


async def test_topic_named_twice_is_not_made_at_all(ask, memory):
    """Nobody can tell which of the two was meant."""
    answer = await ask(CREATE, 7, **create(new("a", partitions=1), new("b"), new("a", partitions=2)))
    assert {told.name: told.error_code for told in answer.topics} == {"a": ErrorCode.INVALID_REQUEST, "b": 0}
    assert list(memory.cluster.by_name) == ["b"]


async def test_topic_on_a_full_disk_is_not_made(ask, memory):
    """A storage failure is told as such."""
    memory.topics.failure = StorageFailure("no space left on device")
    (told,) = (await ask(CREATE, 7, **create(new()))).topics
    assert (told.error_code, told.error_message) == (ErrorCode.KAFKA_STORAGE_ERROR, "no space left on device")


# --- DeleteTopics ----------------------------------------------------------------------------------


@versions(api_20_delete_topics)
async def test_topic_is_deleted_by_name(ask, memory, version):
    """It is gone when the answer is there; one that was not there has its error."""
    memory.topics.create_now("t")
    fields = {
        "topics": [DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=None) for name in ("t", "none")],
        "topic_names": ["t", "none"],
        "timeout_ms": 1000,
    }
    answer = await ask(DELETE, version, **fields)
    errors = {told.name: told.error_code for told in answer.responses}
    assert errors == {"t": 0, "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert not memory.cluster.by_name


async def test_topic_is_deleted_by_id(ask, memory):
    """From version 6 on an id will do, but not both, and not neither."""
    topic = memory.topics.create_now("t")
    states = [
        DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=UUID(int=99)),
        DeleteTopicsRequest.DeleteTopicState(name="t", topic_id=topic.topic_id),
        DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=None),
        DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=topic.topic_id),
    ]
    answer = await ask(DELETE, 6, topics=states, timeout_ms=1000)
    bad = ErrorCode.INVALID_REQUEST
    assert [told.error_code for told in answer.responses] == [ErrorCode.UNKNOWN_TOPIC_ID, bad, bad, 0]
    assert answer.responses[3].name == "t"


async def test_topic_on_a_failed_disk_is_not_deleted(ask, memory):
    """A storage failure is told as such."""
    memory.topics.create_now("t")
    memory.topics.failure = StorageFailure("read-only file system")
    state = DeleteTopicsRequest.DeleteTopicState(name="t", topic_id=None)
    (told,) = (await ask(DELETE, 6, topics=[state], timeout_ms=1000)).responses
    assert told.error_code == ErrorCode.KAFKA_STORAGE_ERROR
