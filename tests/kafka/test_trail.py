"""The audit trail's lines about what clients of Kafka's protocol do, also if their requests are cut short."""

from __future__ import annotations

import dataclasses

import pytest
import structlog.testing
import trio
from kafka.protocol.admin import AlterClientQuotasRequest, CreateTopicsRequest, UpdateFeaturesRequest
from kafka.protocol.consumer import LeaveGroupRequest

from coordinator.answers import Description
from fairlog import trail
from fairlog.kafka.api import Client
from fairlog.kafka.errors import ErrorCode
from fairlog.security.acls import Operation, ResourceType
from fairlog.security.principal import ANONYMOUS
from fairlog.trail import ITEMS_MAX, TEXT_CHARACTERS_MAX, Trail
from fairlog_types import ProducerEpoch, ProducerId, StorageFailure, TxId
from tests.kafka.asking import Asker
from tests.kafka.denying import AskerAs, allow, enforce
from tests.kafka.example_requests import example_fields
from tests.kafka.test_groups import join_twice

COMMIT, LEAVE, CREATE, DELETE, INIT, CREATE_ACLS, DELETE_OFFSETS, QUOTAS, USERS = 8, 13, 19, 20, 22, 30, 47, 49, 51
MARKERS, DELETE_ACLS, DELETE_GROUPS, FEATURES = 27, 31, 42, 57


@pytest.fixture
def lines(monkeypatch):
    """What the trail has, in the node's log: action, on, outcome, and the rest. No other test has spent lines of it."""
    monkeypatch.setattr(trail, "_trail", Trail())
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


def leaving(member_id="", instance=None):
    return LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=instance, reason=None)


async def test_member_that_an_operator_removes_is_noted_and_one_that_leaves_is_not(ask, memory, lines):
    """A static one by its instance, and others by another client than themselves; each with its own outcome."""
    static = await join_twice(ask, 5, instance="i")
    assert static.error_code == 0
    operator = Asker(memory)
    operator.client = Client(connection=12, peer="10.0.0.9:1")
    removed = [leaving(instance="i"), leaving(instance="stranger"), leaving("stranger")]
    await operator(LEAVE, 5, **fields(LEAVE, members=removed))
    assert lines() == [("remove member", "g", "done"), ("remove member", "g", "UNKNOWN_MEMBER_ID")]
    assert [line["instance"] for line in lines.whole if "instance" in line] == ["i", "stranger"]
    for leaver, noted in ((ask, []), (operator, [("remove member", "g", "done")])):
        del lines.whole[:]
        member_id = (await join_twice(ask, 5)).member_id
        await leaver(LEAVE, 5, **fields(LEAVE, members=[leaving(member_id)]))
        assert lines() == noted
    assert lines.whole[-1]["member"] == member_id
    assert lines.whole[-1]["peer"] == "10.0.0.9:1"


async def test_operator_that_may_not_remove_members_is_noted_as_refused(memory, lines):
    enforce(memory)
    await AskerAs(memory, ANONYMOUS)(LEAVE, 5, **fields(LEAVE))
    assert lines() == [("remove member", "g", "GROUP_AUTHORIZATION_FAILED")]


async def test_groups_and_offsets_that_are_deleted_are_noted(ask, memory, lines):
    """Offsets with their partitions."""
    memory.topics.create_now("t")
    await ask(COMMIT, 8, **fields(COMMIT))
    await ask(DELETE_OFFSETS, 0, **fields(DELETE_OFFSETS))
    memory.offsets.index.load({"other": 1_000})
    for group in ("other", "g"):
        await ask(DELETE_GROUPS, 2, **fields(DELETE_GROUPS, groups_names=[group]))
    assert [line for line in lines() if line[0] != "reset offsets"] == [
        ("delete offsets", "g", "done"),
        ("delete group", "other", "done"),
        ("delete group", "g", "GROUP_ID_NOT_FOUND"),
    ]
    assert [line["partitions"] for line in lines.whole if "partitions" in line] == [["t-0"]]


async def test_transaction_that_markers_abort_is_noted(ask, memory, lines):
    """`kafka-transactions abort` sends them. One that is not open has no line: nothing was done."""
    memory.topics.create_now("t")
    await ask(MARKERS, 1, **fields(MARKERS))
    assert lines() == []
    memory.leaders.open_for = TxId(ProducerId(1), ProducerEpoch(0), 4)
    await ask(MARKERS, 1, **fields(MARKERS))
    assert lines() == [("abort transaction", "t-0", "done")]
    assert (lines.whole[-1]["producer_id"], lines.whole[-1]["producer_epoch"]) == (1, 0)


async def test_feature_that_is_switched_is_noted(ask, lines):
    """With its level."""
    key = UpdateFeaturesRequest.FeatureUpdateKey
    for name in ("transaction.version", "f"):
        update = key(feature=name, max_version_level=1, allow_downgrade=True, upgrade_type=2)
        await ask(FEATURES, 1, **fields(FEATURES, feature_updates=[update]))
    assert lines() == [
        ("update features", "transaction.version", "done"),
        ("update features", "f", "INVALID_UPDATE_VERSION"),
    ]
    assert [line["level"] for line in lines.whole if "level" in line] == [1, 1]


async def test_acl_that_is_deleted_is_noted(memory, lines):
    """The filter with the number of those that it has met, or why none was looked for."""
    enforce(memory, allow(Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster"))
    asker = AskerAs(memory, ANONYMOUS)
    await asker(CREATE_ACLS, 2, **fields(CREATE_ACLS))
    await asker(DELETE_ACLS, 2, **fields(DELETE_ACLS))
    assert [line[0::2] for line in lines()] == [("create acl", "done"), ("delete acl", "done")]
    assert len(lines.whole[-1]["deleted"]) == 1


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
