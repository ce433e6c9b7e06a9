"""ACLs and authorized operations, as clients see them of a broker without an authorizer."""

from __future__ import annotations

import pytest
from kafka.protocol.admin import CreateAclsRequest, DeleteAclsRequest
from kafka.protocol.metadata import MetadataRequest

from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import (
    api_03_metadata,
    api_15_describe_groups,
    api_29_describe_acls,
    api_30_create_acls,
    api_31_delete_acls,
    api_60_describe_cluster,
)

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
