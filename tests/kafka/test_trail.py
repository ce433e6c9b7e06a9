"""The audit trail's lines about what clients of Kafka's protocol do, also if their requests are cut short."""

from __future__ import annotations

import dataclasses

import pytest
import structlog.testing
import trio
from kafka.protocol.admin import AlterClientQuotasRequest, CreateTopicsRequest

from coordinator.answers import Description
from fairlog import trail
from fairlog.kafka.errors import ErrorCode
from fairlog.security.acls import Operation, ResourceType
from fairlog.security.principal import ANONYMOUS
from fairlog.trail import ITEMS_MAX, TEXT_CHARACTERS_MAX
from fairlog_types import ProducerEpoch, ProducerId, StorageFailure, TxId
from tests.kafka.denying import AskerAs, allow, enforce
from tests.kafka.example_requests import example_fields

COMMIT, LEAVE, CREATE, DELETE, INIT, CREATE_ACLS, DELETE_OFFSETS, QUOTAS, USERS = 8, 13, 19, 20, 22, 30, 47, 49, 51


@pytest.fixture
def lines():
    """What the trail has, in the node's log: action, on, outcome, and the rest."""
    trail.set_up(None)  # else the lines of other tests would count for the limit of this one's
    with structlog.testing.capture_logs() as logged:

        def noted():
            return [(it["action"], it["on"], it["outcome"]) for it in logged if it["event"] == "trail"]

        noted.whole = logged
        yield noted


def fields(key, **changes):
    return {**example_fields(key), **changes}


async def test_offsets_of_who_is_no_member_are_noted_whatever_it_calls_itself(ask, memory, lines):
    """A group without members takes a commit of anybody."""
    memory.topics.create_now("t")
    await ask(COMMIT, 8, **fields(COMMIT, member_id="somebody"))
    assert lines() == [("reset offsets", "g", "done")]


async def test_commit_whose_client_has_gone_is_noted(ask, memory, lines):
    """It has had its effect when the request was started."""
    memory.topics.create_now("t")
    await ask.start(COMMIT, 8, **fields(COMMIT))
    assert lines() == [("reset offsets", "g", "done")]


async def test_commit_of_nothing_that_is_allowed_is_noted_as_refused(memory, lines):
    memory.topics.create_now("t")
    enforce(memory, allow(Operation.READ, ResourceType.GROUP, "g"))
    await AskerAs(memory, ANONYMOUS)(COMMIT, 8, **fields(COMMIT))
    assert lines() == [("reset offsets", "g", "TOPIC_AUTHORIZATION_FAILED")]


async def test_offsets_that_may_not_be_deleted_are_noted_as_refused(memory, lines):
    """With the name of the group alone: a client may ask for a hundred thousand topics."""
    memory.topics.create_now("t")
    enforce(memory, allow(Operation.DELETE, ResourceType.GROUP, "g"))
    await AskerAs(memory, ANONYMOUS)(DELETE_OFFSETS, 0, **fields(DELETE_OFFSETS))
    assert lines() == [("delete offsets", "g", "TOPIC_AUTHORIZATION_FAILED")]
    assert "t" not in str(lines.whole[-1].get("partitions", ""))


async def test_request_that_is_cut_short_has_lines_of_what_it_did(ask, memory, lines, monkeypatch):
    """Its user was deleted, for example: then it is wanted to know what came before."""
    create = memory.topics.create

    async def create_some(name, **more):
        if name == "c":
            await trio.sleep_forever()
        return await create(name, **more)

    monkeypatch.setattr(memory.topics, "create", create_some)
    topic = CreateTopicsRequest.CreatableTopic
    asked = [topic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]) for name in "abcd"]
    with trio.move_on_after(0.1):
        await ask(CREATE, 5, **fields(CREATE, topics=asked))
    assert lines() == [("create topic", "a", "done"), ("create topic", "b", "done"), ("create topic", "c", "unknown")]


async def test_change_that_the_disk_has_refused_may_have_been_made(ask, memory, lines):
    memory.topics.create_now("t")
    memory.topics.failure = StorageFailure("the disk is gone")
    await ask(DELETE, 5, **fields(DELETE))
    assert lines() == [("delete topic", "t", "unknown")]
    assert lines.whole[-1]["reason"] == "KAFKA_STORAGE_ERROR"


async def test_quotas_are_noted_with_what_they_become(ask, lines):
    entry = AlterClientQuotasRequest.EntryData
    ops = [
        entry.OpData(key="producer_byte_rate", value=1000.0, remove=False),
        entry.OpData(key="consumer_byte_rate", value=0.0, remove=True),
    ]
    names = [("user", "alice"), ("client-id", None)]
    entity = [entry.EntityData(entity_type=of_type, entity_name=name) for of_type, name in names]
    alteration = {"entries": [entry(entity=entity, ops=ops), entry(entity=[], ops=[])]}
    await ask(QUOTAS, 1, **alteration, validate_only=True)
    await ask(QUOTAS, 1, **alteration, validate_only=False)
    assert lines() == [
        ("alter quotas", "user alice, client-id <default>", "done"),
        ("alter quotas", "", "INVALID_REQUEST"),
    ]
    assert next(it["quotas"] for it in lines.whole if it["event"] == "trail") == [
        "producer_byte_rate=1000",
        "consumer_byte_rate",
    ]


async def test_what_is_only_asked_about_has_no_line(ask, memory, lines):
    memory.topics.create_now("t")
    await ask(CREATE, 5, **fields(CREATE, validate_only=True))
    assert lines() == []


async def test_new_instance_that_ends_a_transaction_is_noted(ask, memory, lines):
    """`fairlog txn abort` ends a hung transaction so."""
    known = Description(
        transactional_id="tx",
        producer_id=ProducerId(1),
        epoch=ProducerEpoch(0),
        timeout_ms=1000,
        state="OPEN",
        txid=TxId(ProducerId(1), ProducerEpoch(0), 4),
        started_ms=1,
        logs=(),
        being_copied=(),
        committed=(),
    )
    await ask(INIT, 4, **fields(INIT))
    assert lines() == []
    memory.coordinator.descriptions["tx"] = known
    await ask(INIT, 4, **fields(INIT))
    assert lines() == [("abort transaction", "tx", "done")]
    memory.coordinator.descriptions["tx"] = dataclasses.replace(known, state="EMPTY", txid=None)
    await ask(INIT, 4, **fields(INIT))
    assert len(lines()) == 1


async def test_refusals_are_as_long_as_a_line_and_no_longer(memory, lines):
    """However long the names are that a client may choose."""
    enforce(memory)
    creation = fields(CREATE_ACLS)["creations"][0]
    creation.resource_name = "x" * 30_000
    await AskerAs(memory, ANONYMOUS)(CREATE_ACLS, 2, creations=[creation])
    assert lines()[0][2] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED.name
    line = lines.whole[-1]
    assert len(str(line["on"])) < TEXT_CHARACTERS_MAX + 50
    assert max(map(len, line["acl"])) < TEXT_CHARACTERS_MAX + 50
    assert len(line["acl"]) <= ITEMS_MAX
