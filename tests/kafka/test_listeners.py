"""Clients are told the addresses of the listener that they have come in by."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlog.cluster.interface import BrokerAddress
from fairlog.config_values import Address
from fairlog.kafka.api import Client
from fairlog.kafka.errors import ErrorCode
from fairlog.security.listeners import Listener, SecurityProtocol
from tests.kafka.asking import Asker
from tests.kafka.in_memory import Memory
from tests.kafka.test_one_node import quorum

FIND_COORDINATOR, METADATA, DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS = 10, 3, 60, 75
DESCRIBE_QUORUM, LIST_CONFIG_RESOURCES = 55, 74
CLIENTS = Listener("CLIENTS", SecurityProtocol.SSL)
OUTSIDE = [(7, "a.outside", 1), (9, "c.outside", 3)]


@pytest.fixture
def outside(memory: Memory) -> Asker:
    """Who has come in by a listener that brokers 7 and 9 have, of 7, 8 and 9."""
    memory.spread(3, 0)
    memory.cluster.other_listeners = {"CLIENTS": {each[0]: BrokerAddress(*each) for each in OUTSIDE}}
    memory.topics.create_now("t", partitions=3)
    asker = Asker(memory)
    asker.client = Client(connection=1, peer="10.0.0.1:5000", listener=CLIENTS)
    return asker


@pytest.mark.parametrize(("version", "missing"), [(5, 5), (12, 72)])
async def test_metadata_list_the_brokers_that_have_the_listener(
    outside: Asker, ask: Asker, monkeypatch: pytest.MonkeyPatch, version: int, missing: int
) -> None:
    """What another one leads is LISTENER_NOT_FOUND, before version 6 LEADER_NOT_AVAILABLE. Other listeners differ."""
    monkeypatch.setattr(Asker, "router", outside.router)  # one for both, with the answers that it keeps
    wanted = {"topics": None, "allow_auto_topic_creation": False}
    for _ in range(2):  # the second answer is one that was kept
        answer = await outside(METADATA, version, **wanted)
        assert [(each.node_id, each.host, each.port) for each in answer.brokers] == OUTSIDE
        (topic,) = answer.topics
        found = {each.leader_id: each.error_code for each in topic.partitions}
        assert found == {7: 0, -1: missing, 9: 0}
        assert answer.controller_id == 7
        inside = await ask(METADATA, version, **wanted)
        assert [each.host for each in inside.brokers] == [f"broker-{number}.example" for number in range(3)]
        assert {each.error_code for each in inside.topics[0].partitions} == {0}


async def test_coordinator_is_told_at_the_listener_or_not_at_all(outside: Asker) -> None:
    """As in Kafka, one without it is not available."""
    found = {}
    for number in range(20):
        answer = await outside(FIND_COORDINATOR, 3, key=f"id-{number}", key_type=1)
        found[answer.node_id] = (answer.error_code, answer.host, answer.port)
    assert found == {
        7: (ErrorCode.NONE, "a.outside", 1),
        9: (ErrorCode.NONE, "c.outside", 3),
        -1: (ErrorCode.COORDINATOR_NOT_AVAILABLE, "", -1),
    }


async def test_cluster_is_described_by_the_listener(outside: Asker) -> None:
    """The brokers that it shows can be connected to."""
    answer = await outside(DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False)
    assert [(each.broker_id, each.host, each.port) for each in answer.brokers] == OUTSIDE


async def test_partitions_are_described_by_the_listener(outside: Asker) -> None:
    """As in Metadata."""
    answer = await outside(DESCRIBE_TOPIC_PARTITIONS, 0, topics=[], response_partition_limit=10, cursor=None)
    found = {each.leader_id: each.error_code for each in answer.topics[0].partitions}
    assert found == {7: 0, -1: ErrorCode.LISTENER_NOT_FOUND, 9: 0}


async def test_lone_broker_tells_the_address_of_each_listener(memory: Memory) -> None:
    """And none of a listener that it does not advertise."""
    advertised = {"PLAINTEXT": Address("inside", 1), "CLIENTS": Address("outside", 2)}
    broker = replace(memory.broker, advertised=advertised)
    assert broker.brokers("PLAINTEXT") == (BrokerAddress(7, "inside", 1),)
    assert broker.brokers("CLIENTS") == (BrokerAddress(7, "outside", 2),)
    assert broker.brokers("OTHER") == ()
    assert list(broker.started) == [7]
    assert broker.is_at(BrokerAddress(7, "outside", 2))
    assert not broker.is_at(BrokerAddress(7, "outside", 1))


async def test_brokers_are_counted_whatever_their_listeners_are(outside: Asker) -> None:
    """Ids are the same for all."""
    answer = await outside(LIST_CONFIG_RESOURCES, 1, resource_types=[4])
    assert [each.resource_name for each in answer.config_resources] == ["7", "8", "9"]
    answer = await outside(DESCRIBE_QUORUM, 0, **quorum(("__cluster_metadata", 0)))
    (partition,) = answer.topics[0].partitions
    assert [each.replica_id for each in partition.observers] == [8, 9]
