"""ACLs and authorized operations, as clients see them of a broker without an authorizer, and of one that has it."""

from __future__ import annotations

import pytest
from kafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest
from kafka.protocol.metadata import MetadataRequest

from fairlog import live_access
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import (
    api_03_metadata,
    api_15_describe_groups,
    api_29_describe_acls,
    api_30_create_acls,
    api_31_delete_acls,
    api_60_describe_cluster,
)
from fairlog.security.acls import Operation, ResourceType
from fairlog.security.principal import ANONYMOUS, Principal
from fairlog_types import StorageFailure
from tests.kafka.denying import ADMIN, AskerAs, allow, enforce

METADATA, DESCRIBE_GROUPS, DESCRIBE, CREATE, DELETE, CLUSTER = 3, 15, 29, 30, 31, 60

FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
ACL = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:alice",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}

OF_TOPIC = {3, 4, 5, 6, 7, 8, 10, 11}
OF_GROUP = {3, 6, 8, 10, 11}
OF_CLUSTER = {5, 7, 8, 9, 10, 11, 12}
"""Kafka's numbers, from AclEntry.supportedOperations."""

NOT_ASKED = -(2**31)


def versions(api, least=0):
    return pytest.mark.parametrize("version", range(max(least, api.SERVED.min), api.SERVED.max + 1))


def operations(field):
    """kafka-python shows what was not asked for as None, and else a set of numbers, or the bits."""
    if field is None or field == NOT_ASKED:
        return None
    return set(field) if not isinstance(field, int) else {bit for bit in range(32) if field >> bit & 1}


def metadata(of_topics, of_cluster):
    return {
        "topics": [MetadataRequest.MetadataRequestTopic(name="t", topic_id=None)],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": of_cluster,
        "include_topic_authorized_operations": of_topics,
    }


@versions(api_29_describe_acls)
async def test_acls_are_described_as_disabled(ask, version):
    """Tools take this code for a cluster that does not use ACLs."""
    answer = await ask(DESCRIBE, version, **FILTER)
    assert (answer.error_code, answer.resources) == (ErrorCode.SECURITY_DISABLED, [])
    assert answer.error_message == "no authorizer is configured on this broker"


@versions(api_30_create_acls)
async def test_acl_is_not_created(ask, version):
    """One refusal for each that was asked for."""
    creation = CreateAclsRequest.AclCreation(**ACL)
    answer = await ask(CREATE, version, creations=[creation, creation])
    assert [result.error_code for result in answer.results] == [ErrorCode.SECURITY_DISABLED] * 2


@versions(api_31_delete_acls)
async def test_acl_is_not_deleted(ask, version):
    """One refusal for each filter, which matches nothing."""
    acl_filter = DeleteAclsRequest.DeleteAclsFilter(**FILTER)
    answer = await ask(DELETE, version, filters=[acl_filter, acl_filter])
    told = [(result.error_code, result.matching_acls) for result in answer.filter_results]
    assert told == [(ErrorCode.SECURITY_DISABLED, [])] * 2


@versions(api_03_metadata, least=8)
@pytest.mark.parametrize("of_topics", [False, True])
@pytest.mark.parametrize("of_cluster", [False, True])
async def test_metadata_allows_everything_if_asked(ask, memory, version, of_topics, of_cluster):
    """Without an authorizer everything is allowed; not asked, the field says so."""
    memory.topics.create_now("t")
    answer = await ask(METADATA, version, **metadata(of_topics, of_cluster))
    (topic,) = answer.topics
    assert operations(topic.authorized_operations) == (OF_TOPIC if of_topics else None)
    if version <= 10:
        assert operations(answer.authorized_operations) == (OF_CLUSTER if of_cluster else None)


async def test_metadata_kept_is_that_of_who_asks_the_same(ask, memory):
    """Encoded answers are shared; not between those who ask for operations and those who do not."""
    memory.topics.create_now("t")
    router, told = ask.router, []
    for of_topics, of_cluster in [(False, False), (True, False), (False, True), (False, False)]:
        request = MetadataRequest(version=9, **metadata(of_topics, of_cluster))
        request.with_header(correlation_id=5, client_id="asker")
        started = await router.start(bytes(request.encode(version=9, header=True)), ask.client)
        answer = ask.parse(METADATA, 9, b"".join(started.answer))
        told.append((operations(answer.topics[0].authorized_operations), operations(answer.authorized_operations)))
    assert told == [(None, None), (OF_TOPIC, None), (None, OF_CLUSTER), (None, None)]


@versions(api_15_describe_groups, least=3)
@pytest.mark.parametrize("asked_for", [False, True])
async def test_group_allows_everything_if_asked(ask, version, asked_for):
    """Also a group that no one knows, as in Kafka."""
    answer = await ask(DESCRIBE_GROUPS, version, groups=["g"], include_authorized_operations=asked_for)
    assert [operations(group.authorized_operations) for group in answer.groups] == [OF_GROUP if asked_for else None]


@versions(api_60_describe_cluster)
@pytest.mark.parametrize("asked_for", [False, True])
async def test_cluster_allows_everything_if_asked(ask, version, asked_for):
    """The cluster itself, beyond its topics and groups."""
    answer = await ask(CLUSTER, version, include_cluster_authorized_operations=asked_for, endpoint_type=1)
    assert operations(answer.authorized_operations) == (OF_CLUSTER if asked_for else None)


# --- with an authorizer -----------------------------------------------------------------------------


@pytest.fixture
def admin(memory):
    enforce(memory)
    return AskerAs(memory, ADMIN)


def told(answer):
    """What DescribeAcls shows, by resource."""
    return {
        (each.resource_type, each.resource_name, each.pattern_type): [
            (acl.principal, acl.host, acl.operation, acl.permission_type) for acl in each.acls
        ]
        for each in answer.resources
    }


@versions(api_30_create_acls)
async def test_acls_are_created_shown_and_deleted(admin, memory, version):
    """In each version; what exists already is created again without an error."""
    make = CreateAclsRequest.AclCreation
    more = {**ACL, "principal": "User:bob", "resource_pattern_type": 4, "permission_type": 2}
    for _ in range(2):
        answer = await admin(CREATE, version, creations=[make(**ACL), make(**more), make(**ACL)])
        assert [result.error_code for result in answer.results] == [ErrorCode.NONE] * 3
    shown = await admin(DESCRIBE, version, **FILTER)
    assert shown.error_code == ErrorCode.NONE
    assert told(shown) == {(2, "t", 3): [("User:alice", "*", 3, 3)], (2, "t", 4): [("User:bob", "*", 3, 2)]}
    of_bob = DeleteAclsRequest.DeleteAclsFilter(**{**FILTER, "principal_filter": "User:bob"})
    of_all = DeleteAclsRequest.DeleteAclsFilter(**FILTER)
    deleted = await admin(DELETE, version, filters=[of_bob, of_all])
    found = [[acl.principal for acl in each.matching_acls] for each in deleted.filter_results]
    assert found == [["User:bob"], ["User:alice", "User:bob"]]
    assert [each.error_code for each in deleted.filter_results] == [ErrorCode.NONE] * 2
    assert told(await admin(DESCRIBE, version, **FILTER)) == {}


async def test_impossible_acls_are_refused_and_the_others_created(admin, memory):
    make = CreateAclsRequest.AclCreation
    bad = [{"resource_type": 1}, {"operation": 0}, {"resource_name": ""}, {"resource_type": 4}, {"principal": "alice"}]
    answer = await admin(CREATE, 3, creations=[make(**ACL | each) for each in [*bad, {}]])
    codes = [result.error_code for result in answer.results]
    assert codes == [ErrorCode.INVALID_REQUEST] * len(bad) + [ErrorCode.NONE]
    assert all(result.error_message for result in answer.results[:-1])
    assert len(memory.cluster.tables["acl"]) == 1


@pytest.mark.parametrize("field", ["resource_type", "pattern_type"])
async def test_unknown_filters_are_refused(admin, field):
    wrong = {**FILTER, f"{field}_filter": 0}
    assert (await admin(DESCRIBE, 3, **wrong)).error_code == ErrorCode.INVALID_REQUEST
    right, filters = FILTER, DeleteAclsRequest.DeleteAclsFilter
    answer = await admin(DELETE, 3, filters=[filters(**wrong), filters(**right)])
    assert [each.error_code for each in answer.filter_results] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]


async def test_failed_disk_creates_and_deletes_nothing(admin, memory):
    memory.cluster.failure = StorageFailure("no")
    created = await admin(CREATE, 3, creations=[CreateAclsRequest.AclCreation(**ACL)])
    deleted = await admin(DELETE, 3, filters=[DeleteAclsRequest.DeleteAclsFilter(**FILTER)])
    assert created.results[0].error_code == deleted.filter_results[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_acls_have_a_limit(admin, monkeypatch):
    """In number, and in length."""
    monkeypatch.setattr(live_access, "ACLS_MAX", 1)
    make = CreateAclsRequest.AclCreation
    answer = await admin(CREATE, 3, creations=[make(**ACL | {"resource_name": name}) for name in ("t", "u" * 3000)])
    assert [result.error_code for result in answer.results] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
    answer = await admin(CREATE, 3, creations=[make(**ACL | {"resource_name": "u"})])
    assert answer.results[0].error_code == ErrorCode.INVALID_REQUEST
    assert "1 is the maximum" in answer.results[0].error_message


async def test_new_acl_holds_from_the_next_request_on(admin, memory):
    """On connections that are open already, and the same when it is deleted."""
    memory.topics.create_now("t")
    alice = AskerAs(memory, Principal("User", "alice"))

    async def code():
        (topic,) = (await alice(METADATA, 9, **metadata(False, False))).topics
        return topic.error_code

    assert await code() == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    await admin(CREATE, 3, creations=[CreateAclsRequest.AclCreation(**ACL)])
    assert await code() == ErrorCode.NONE
    await admin(DELETE, 3, filters=[DeleteAclsRequest.DeleteAclsFilter(**FILTER)])
    assert await code() == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_kept_answers_are_of_who_may_have_them(admin, memory):
    """Encoded answers are shared among those with the same rights only."""
    memory.topics.create_now("t")
    outsider = AskerAs(memory, ANONYMOUS)
    outsider._router = admin.router
    everything = {**metadata(False, False), "topics": None}
    for asker, names in [(admin, ["t"]), (outsider, []), (admin, ["t"])]:
        assert [topic.name for topic in (await asker(METADATA, 9, **everything)).topics] == names


async def test_operations_are_those_that_are_allowed(memory):
    """Of what can be described; nobody is told operations on what they may not see."""
    memory.topics.create_now("t")
    enforce(
        memory,
        allow(Operation.READ, ResourceType.TOPIC, "t"),
        allow(Operation.READ, ResourceType.GROUP, "g"),
    )
    outsider = AskerAs(memory, ANONYMOUS)
    answer = await outsider(METADATA, 9, **metadata(True, True))
    assert operations(answer.topics[0].authorized_operations) == {3, 8}
    assert operations(answer.authorized_operations) == set()
    (group,) = (await outsider(DESCRIBE_GROUPS, 5, groups=["g"], include_authorized_operations=True)).groups
    assert operations(group.authorized_operations) == {3, 8}
    answer = await outsider(CLUSTER, 1, include_cluster_authorized_operations=True, endpoint_type=1)
    assert operations(answer.authorized_operations) == set()
    enforce(memory, allow(Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster"))
    answer = await outsider(CLUSTER, 1, include_cluster_authorized_operations=True, endpoint_type=1)
    assert operations(answer.authorized_operations) == {8}
    (topic,) = (await outsider(METADATA, 9, **metadata(True, False))).topics
    assert operations(topic.authorized_operations) is None


async def test_acl_that_another_broker_made_holds_before_the_next_request(memory, monkeypatch):
    """With several brokers on one store, each looks there before it serves a request."""
    memory.spread(2, 0)
    memory.topics.create_now("t")
    enforce(memory)
    outsider = AskerAs(memory, ANONYMOUS)

    async def notice():
        enforce(memory, allow(Operation.READ, ResourceType.TOPIC, "t"))

    monkeypatch.setattr(memory.cluster, "notice", notice)
    (topic,) = (await outsider(METADATA, 9, **metadata(False, False))).topics
    assert topic.error_code == ErrorCode.NONE
