"""An outsider's walk: a node whose client may read one topic and nothing else, and everything else that it serves.

The outsider is who has not signed in, at 127.0.0.1; the operator is the same at 127.0.0.2. The table of what the
outsider is answered is `tests/kafka/denials.py`, API by API; here real bytes of each version come in by a socket.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import warnings
from collections.abc import Iterator
from typing import Any

import cbor2
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import TopicAuthorizationFailedError as AioDenied
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from fairlog.kafka.handlers import ALL
from fairlog.native.protocol import OPS
from fairlog.security.acls import Operation, PatternType, Permission, ResourceType
from scripts.node_process import NodeProcess
from tests.clients.raw_client import batch
from tests.kafka.asking import REQUESTS
from tests.kafka.denials import NONE, TOPIC, UNKNOWN_TOPIC_ID, codes_in, expected
from tests.kafka.example_requests import example_fields
from tests.native.test_authorization import LISTS
from tests.native.test_authorization import REQUESTS as NATIVE_REQUESTS

with warnings.catch_warnings():
    # It reads its schemas with importlib.resources.read_text.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

OUTSIDER, OPERATOR = "127.0.0.1", "127.0.0.2"
PUBLIC, HIDDEN = "public", "t"
"""The latter is what example requests name."""
SECRETS = (b"hidden-", b"User:", b"\x01t\x00")
EVERYTHING = [(api.key, version) for api in ALL for version in range(api.served.min, api.served.max + 1)]
METADATA, FETCH, DELETE_TOPICS, CREATE_ACLS, DESCRIBE_ACLS = 3, 1, 20, 30, 29


class Peer:
    """A connection from an address, for requests of kafka-python's and kio's codecs, and for the native protocol."""

    def __init__(self, node: NodeProcess, source: str) -> None:
        host, port = node.address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), 15, source_address=(source, 0))

    def close(self) -> None:
        self._socket.close()

    def ask_body(self, key: int, version: int, /, **fields: Any) -> bytes:
        request = REQUESTS[key][0](version=version, **fields)
        request.with_header(correlation_id=7, client_id="walk")
        frame = bytes(request.encode(version=version, header=True))
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        answer = self._frame()
        header = 5 if REQUESTS[key][0].flexible_version_q(version) and key != 18 else 4
        assert answer[:4] == struct.pack(">i", 7)
        return answer[header:]

    def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        return REQUESTS[key][1].decode(self.ask_body(key, version, **fields), version=version)

    def greet(self) -> None:
        self._socket.sendall(b"FLG1")
        assert self._receive(4) == b"FLG1"

    def ask_natively(self, op: str, /, **arguments: Any) -> list[Any]:
        body = cbor2.dumps([1, op, arguments])
        self._socket.sendall(struct.pack(">I", len(body)) + body)
        return cbor2.loads(self._frame())

    def _frame(self) -> bytes:
        return self._receive(struct.unpack(">i", self._receive(4))[0])

    def _receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            assert more, "the node closed the connection"
            data += more
        return data


def acl(operation: Operation, of: ResourceType, name: str, host: str, principal: str = "User:ANONYMOUS") -> Any:
    return REQUESTS[CREATE_ACLS][0].AclCreation(
        resource_type=int(of),
        resource_name=name,
        resource_pattern_type=int(PatternType.LITERAL),
        principal=principal,
        host=host,
        operation=int(operation),
        permission_type=int(Permission.ALLOW),
    )


def grant(operator: Peer, *acls: Any) -> None:
    answer = operator.ask(CREATE_ACLS, 3, creations=list(acls))
    assert [each.error_code for each in answer.results] == [NONE] * len(acls), answer


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Until it has ACLs everyone may do everything: so the operator adds them, all at once."""
    environment = {
        "FAIRLOG_AUTHORIZER_ENABLE": "true",
        "FAIRLOG_AUTHORIZER_ALLOW_EVERYONE_IF_NO_ACL_FOUND": "true",
        "FAIRLOG_TRANSACTIONS_CHECK_INTERVAL_MS": "86400000",
    }
    node = NodeProcess(tmp_path_factory.mktemp("locked") / "data", environment)
    node.start()
    operator = Peer(node, OPERATOR)
    types = [each for each in ResourceType if each in range(2, 6)]
    everything = [
        acl(Operation.ALL, of, "kafka-cluster" if of is ResourceType.CLUSTER else "*", OPERATOR) for of in types
    ]
    grant(
        operator,
        *everything,
        acl(Operation.READ, ResourceType.TOPIC, PUBLIC, OUTSIDER),
        acl(Operation.READ, ResourceType.TOPIC, "hidden-other", "*", "User:hidden-user"),
    )
    for topic in (PUBLIC, HIDDEN, "hidden-topic"):
        make_topic(operator, topic)
        produce(operator, topic, b"of " + topic.encode())
    for transactional_id in ("tx", "hidden-id"):
        operator.ask(22, 4, **example_fields(22) | {"transactional_id": transactional_id})
    operator.ask(8, 7, **example_fields(8) | {"group_id": "hidden-group"})
    operator.ask(8, 7, **example_fields(8))
    native = Peer(node, OPERATOR)
    native.greet()
    assert native.ask_natively("join", **NATIVE_REQUESTS["join"][0] | {"sink": "hidden-sink"})[1] == "ok"
    native.close()
    operator.close()
    yield node
    assert node.running, node.log_tail()
    assert node.stop() == 0, node.log_tail()


def make_topic(operator: Peer, topic: str) -> None:
    new = REQUESTS[19][0].CreatableTopic(name=topic, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    answer = operator.ask(19, 5, topics=[new], timeout_ms=1000, validate_only=False)
    assert answer.topics[0].error_code == NONE, answer


def produce(peer: Peer, topic: str, value: bytes) -> None:
    fields = example_fields(0)
    (of_topic,) = fields["topic_data"]
    of_topic.name, of_topic.partition_data[0].records = topic, batch([value])
    answer = peer.ask(0, 7, **fields)
    assert answer.responses[0].partition_responses[0].error_code == NONE, answer


@pytest.fixture
def outsider(node: NodeProcess) -> Iterator[Peer]:
    peer = Peer(node, OUTSIDER)
    yield peer
    peer.close()


@pytest.fixture
def operator(node: NodeProcess) -> Iterator[Peer]:
    peer = Peer(node, OPERATOR)
    yield peer
    peer.close()


def state(operator: Peer) -> tuple[object, ...]:
    """What nobody but the operator may change: topics with their configs and offsets, groups, ids, ACLs."""
    topics = operator.ask(METADATA, 9, topics=None, allow_auto_topic_creation=False)
    configs = operator.ask_body(32, 1, **example_fields(32))
    offsets = operator.ask_body(2, 5, **example_fields(2))
    acls = operator.ask_body(DESCRIBE_ACLS, 3, **ANY_ACL)
    committed = operator.ask_body(9, 7, **example_fields(9))
    ids = operator.ask(66, 1, state_filters=[], producer_id_filters=[], duration_filter=-1)
    states = sorted((each.transactional_id, each.producer_id) for each in ids.transaction_states)
    return sorted(topic.name for topic in topics.topics), configs, offsets, acls, committed, states


ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def test_everything_else_is_refused(outsider: Peer, operator: Peer) -> None:
    """Each API and version. Nothing has changed after it, and nothing was told of what may not be seen."""
    before = state(operator)
    told: dict[tuple[int, int], frozenset[int]] = {}
    for key, version in EVERYTHING:
        body = outsider.ask_body(key, version, **example_fields(key))
        told[key, version] = codes_in(key, version, body)
        assert not any(secret in body for secret in SECRETS[:2]), (key, version, body)
    ids_of_nobody = {(FETCH, version): frozenset((UNKNOWN_TOPIC_ID,)) for version in range(13, 19)}
    assert told == {each: expected(*each) for each in EVERYTHING} | ids_of_nobody
    assert state(operator) == before


def test_lists_have_the_one_topic(outsider: Peer) -> None:
    """All topics, all groups, all transactional ids: what is left is what may be read."""
    for version in (0, 1, 9, 12):
        everything = outsider.ask(METADATA, version, topics=[] if version == 0 else None)
        assert [topic.name for topic in everything.topics] == [PUBLIC]
    paged = outsider.ask(75, 0, topics=[], response_partition_limit=1, cursor=None)
    assert ([topic.name for topic in paged.topics], paged.next_cursor) == ([PUBLIC], None)
    assert outsider.ask(16, 3, states_filter=[]).groups == []
    assert outsider.ask(66, 1, state_filters=[], producer_id_filters=[], duration_filter=-1).transaction_states == []


def test_ids_of_topics_open_nothing(outsider: Peer, operator: Peer) -> None:
    """Who has heard of an id has neither the name nor the records."""
    topics = operator.ask(METADATA, 12, topics=None).topics
    (topic_id,) = (topic.topic_id for topic in topics if topic.name == HIDDEN)
    wanted = REQUESTS[METADATA][0].MetadataRequestTopic(name=None, topic_id=topic_id)
    (line,) = outsider.ask(METADATA, 12, topics=[wanted], allow_auto_topic_creation=True).topics
    assert (line.error_code, line.name, line.partitions) == (TOPIC, None, [])
    fetch = example_fields(FETCH)
    fetch["topics"][0].topic_id, fetch["topics"][0].partitions[0].partition = topic_id, 0
    body = outsider.ask_body(FETCH, 13, **fetch)
    assert codes_in(FETCH, 13, body) == {TOPIC}
    assert b"of t" not in body
    by_id = REQUESTS[DELETE_TOPICS][0].DeleteTopicState(name=None, topic_id=topic_id)
    (line,) = outsider.ask(DELETE_TOPICS, 6, topics=[by_id], timeout_ms=1000).responses
    assert (line.error_code, line.name) == (TOPIC, None)


def test_native_protocol_is_closed_as_well(node: NodeProcess) -> None:
    peer = Peer(node, OUTSIDER)
    peer.greet()
    for op in OPS:
        for arguments in NATIVE_REQUESTS[op]:
            answer = peer.ask_natively(op, **arguments)
            if op in LISTS:
                assert answer[1] == "ok"
                assert "hidden" not in str(answer)
            else:
                assert answer[1] == "not-authorized", (op, answer)
    assert peer.ask_natively("topics")[2] == {"topics": [[PUBLIC, 1]]}
    assert peer.ask_natively("cut", topics=[PUBLIC])[2]["partitions"] == [[PUBLIC, 0, 0, 1, 1]]
    peer.close()


# --- stock clients: allowed for one topic, denied for the other ---------------------------------------


@pytest.fixture
def grants(operator: Peer) -> Iterator[None]:
    """For the time of a test, the outsider may write the topic, and use one group and one transactional id."""
    more = [
        acl(Operation.WRITE, ResourceType.TOPIC, PUBLIC, OUTSIDER),
        acl(Operation.READ, ResourceType.GROUP, "readers", OUTSIDER),
        acl(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, "writer", OUTSIDER),
    ]
    grant(operator, *more)
    yield
    for each in more:
        only = REQUESTS[31][0].DeleteAclsFilter(
            resource_type_filter=each.resource_type,
            resource_name_filter=each.resource_name,
            pattern_type_filter=each.resource_pattern_type,
            principal_filter=each.principal,
            host_filter=each.host,
            operation=each.operation,
            permission_type=each.permission_type,
        )
        (result,) = operator.ask(31, 3, filters=[only]).filter_results
        assert len(result.matching_acls) == 1


def librdkafka(node: NodeProcess, **more: object) -> dict[str, Any]:
    return {"bootstrap.servers": node.address, "log_level": 0, **more}


def test_librdkafka_reads_and_writes_what_it_may(node: NodeProcess, grants: None) -> None:
    errors: dict[str, KafkaError | None] = {}
    producer = Producer(librdkafka(node, **{"enable.idempotence": True}))
    for topic in (PUBLIC, HIDDEN):
        producer.produce(topic, b"rd", on_delivery=lambda error, _, topic=topic: errors.setdefault(topic, error))
    assert producer.flush(15) == 0
    assert errors[PUBLIC] is None
    assert errors[HIDDEN].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    transactional = Producer(librdkafka(node, **{"transactional.id": "writer"}))
    transactional.init_transactions(15)
    transactional.begin_transaction()
    transactional.produce(PUBLIC, b"rd in a transaction")
    transactional.commit_transaction(15)
    other = Producer(librdkafka(node, **{"transactional.id": "tx"}))
    with pytest.raises(KafkaException) as refused:
        other.init_transactions(15)
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    consumer = Consumer(
        librdkafka(node, **{"group.id": "readers", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    )
    consumer.subscribe([PUBLIC])
    assert _first(consumer).value() == b"of public"
    consumer.subscribe([HIDDEN])
    assert _first(consumer).error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()
    stranger = Consumer(librdkafka(node, **{"group.id": "g"}))
    stranger.subscribe([PUBLIC])
    assert _first(stranger).error().code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    stranger.close()


def _first(consumer: Consumer) -> Any:
    message = consumer.poll(15)
    assert message is not None
    return message


def test_kafka_python_reads_and_writes_what_it_may(node: NodeProcess, grants: None) -> None:
    producer = KafkaProducer(bootstrap_servers=node.address)
    producer.send(PUBLIC, b"kp").get(15)
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send(HIDDEN, b"kp").get(15)
    producer.close()
    consumer = KafkaConsumer(
        PUBLIC,
        bootstrap_servers=node.address,
        group_id="readers",
        auto_offset_reset="earliest",
        consumer_timeout_ms=15_000,
    )
    assert next(consumer).value == b"of public"
    consumer.close()
    consumer = KafkaConsumer(HIDDEN, bootstrap_servers=node.address, group_id="readers")
    assert consumer.poll(500) == {}  # it says in its log that the topic is not authorized, and waits
    consumer.close()
    stranger = KafkaConsumer(PUBLIC, bootstrap_servers=node.address, group_id="g")
    with pytest.raises(GroupAuthorizationFailedError):
        stranger.poll(15_000)
    stranger.close(autocommit=False)


def test_aiokafka_reads_and_writes_what_it_may(node: NodeProcess, grants: None) -> None:
    async def talk() -> None:
        async with AIOKafkaProducer(bootstrap_servers=node.address) as producer:
            await producer.send_and_wait(PUBLIC, b"ak")
            with pytest.raises(AioDenied):
                await producer.send_and_wait(HIDDEN, b"ak")
        async with AIOKafkaConsumer(
            PUBLIC, bootstrap_servers=node.address, group_id=None, auto_offset_reset="earliest"
        ) as consumer:
            record = await asyncio.wait_for(consumer.getone(), 15)
            assert record.value == b"of public"

    asyncio.run(talk())


def test_denials_are_logged_with_who_and_what(node: NodeProcess) -> None:
    """Last of all: many were denied before, and no fault among them."""
    log = node.log_path.read_text(encoding="utf-8")
    lines = [line for line in log.splitlines() if "access denied" in line]
    assert 0 < len(lines) <= 40
    assert "User:ANONYMOUS" in lines[0]
    assert OUTSIDER in lines[0]
    assert "Traceback" not in log
    assert "fault of the node" not in log
