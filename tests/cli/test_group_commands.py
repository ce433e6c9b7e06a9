"""`fairlog group …` against a broker that is not Fairlog: what is asked, and what is shown."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.describe_groups.v5.response import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.response import Coordinator, FindCoordinatorResponse
from kio.schema.list_groups.v4.response import ListedGroup, ListGroupsResponse
from kio.schema.list_offsets.v5.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.metadata.v9.response import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.offset_commit.v8.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from kio.schema.offset_fetch.v7.response import (
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.static.primitive import i32, i32Timedelta, i64

LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, DESCRIBE_GROUPS, LIST_GROUPS = (
    2,
    3,
    8,
    9,
    10,
    15,
    16,
)
NO_THROTTLE = i32Timedelta.parse(timedelta(0))
TIME_MS = 1_763_640_000_000

Fairlog = Callable[..., tuple[int, str, str]]
StartBroker = Callable[..., Any]


def assignment(**partitions: list[int]) -> bytes:
    """What a group's leader gives a member, in version 1 of the consumers' protocol."""
    out = struct.pack(">hi", 1, len(partitions))
    for topic, indexes in partitions.items():
        out += (
            struct.pack(">h", len(topic)) + topic.encode() + struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)
        )
    return out + struct.pack(">i", -1)


def member(number: int, **partitions: list[int]) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=f"member-{number}",
        client_id=f"client-{number}",
        client_host=f"/10.0.0.{number}",
        member_metadata=b"",
        member_assignment=assignment(**partitions),
    )


def described(
    state: str = "Stable", *members: DescribedGroupMember, error: ErrorCode = ErrorCode.none, kind: str = "consumer"
) -> Callable[[Any], DescribeGroupsResponse]:
    return lambda request: DescribeGroupsResponse(
        throttle_time=NO_THROTTLE,
        groups=(
            DescribedGroup(
                error_code=error,
                group_id=request.groups[0],
                group_state=state,
                protocol_type=kind if members else "",
                protocol_data="range" if members else "",
                members=members,
            ),
        ),
    )


def committed(offsets: Mapping[str, Mapping[int, int]]) -> Callable[[Any], OffsetFetchResponse]:
    return lambda _request: OffsetFetchResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            OffsetFetchResponseTopic(
                name=TopicName(topic),
                partitions=tuple(
                    OffsetFetchResponsePartition(
                        partition_index=i32(partition),
                        committed_offset=i64(offset),
                        metadata="note",
                        error_code=ErrorCode.none,
                    )
                    for partition, offset in of_topic.items()
                ),
            )
            for topic, of_topic in offsets.items()
        ),
    )


def metadata(request: Any) -> MetadataResponse:
    """The topic `orders` has three partitions; there is no other."""
    (asked,) = request.topics
    known = asked.name == "orders"
    return MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=(),
        topics=(
            MetadataResponseTopic(
                error_code=ErrorCode.none if known else ErrorCode.unknown_topic_or_partition,
                name=asked.name,
                partitions=tuple(
                    MetadataResponsePartition(
                        error_code=ErrorCode.none,
                        partition_index=i32(index),
                        leader_id=BrokerId(1),
                        leader_epoch=i32(1),
                    )
                    for index in range(3 if known else 0)
                ),
            ),
        ),
    )


def list_offsets(request: Any) -> ListOffsetsResponse:
    """Every partition goes from 5 to 105; the first record since `TIME_MS` is at 50, but partition 2 has none."""
    (topic,) = request.topics

    def offset(partition: int, timestamp: int) -> int:
        if timestamp < 0:
            return 5 if timestamp == -2 else 105
        assert timestamp == TIME_MS
        return -1 if partition == 2 else 50

    return ListOffsetsResponse(
        throttle_time=NO_THROTTLE,
        topics=(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    ListOffsetsPartitionResponse(
                        partition_index=each.partition_index,
                        error_code=ErrorCode.none,
                        offset=i64(offset(each.partition_index, each.timestamp)),
                    )
                    for each in topic.partitions
                ),
            ),
        ),
    )


def commit(error: ErrorCode = ErrorCode.none) -> Callable[[Any], OffsetCommitResponse]:
    return lambda request: OffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )


@pytest.fixture
def broker(fake_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Starts a broker that coordinates every group itself, with these answers."""

    def start(**answers: Any) -> Any:
        def coordinator(request: Any) -> FindCoordinatorResponse:
            assert request.key_type == 0
            (key,) = request.coordinator_keys
            found = Coordinator(
                key=key,
                node_id=BrokerId(1),
                host=started.host,
                port=i32(started.port),
                error_code=ErrorCode.none,
                error_message=None,
            )
            return FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=(found,))

        started = fake_broker(
            {
                FIND_COORDINATOR: coordinator,
                METADATA: metadata,
                LIST_OFFSETS: list_offsets,
                DESCRIBE_GROUPS: answers.get("describe", described("Empty")),
                OFFSET_FETCH: committed(answers.get("committed", {})),
                OFFSET_COMMIT: answers.get("commit", commit()),
            }
        )
        monkeypatch.setenv("FAIRLOG_BOOTSTRAP", started.address)
        return started

    return start


def committed_to(broker: Any) -> dict[tuple[str, int], int] | None:
    """What the last OffsetCommit asked for; None if there was none."""
    requests = [request for request in broker.requests if request.__api_key__ == OFFSET_COMMIT]
    if not requests:
        return None
    (request,) = requests
    assert (request.member_id, request.generation_id_or_member_epoch) == ("", -1)
    return {(t.name, p.partition_index): p.committed_offset for t in request.topics for p in t.partitions}


def test_group_list_shows_groups_by_name(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """All groups with their states; a filter is the broker's to apply."""
    groups = tuple(
        ListedGroup(group_id=GroupId(name), protocol_type="consumer", group_state=state)
        for name, state in (("b", "Empty"), ("a", "Stable"))
    )
    broker = fake_broker(
        {
            LIST_GROUPS: lambda _request: ListGroupsResponse(
                throttle_time=NO_THROTTLE, error_code=ErrorCode.none, groups=groups
            )
        }
    )
    code, out, _ = fairlog(
        "group", "list", "--state", "Stable", "--state", "Empty", "--bootstrap", broker.address, "--json"
    )
    assert (code, json.loads(out)) == (
        0,
        [
            {"group": "a", "state": "Stable", "protocol_type": "consumer"},
            {"group": "b", "state": "Empty", "protocol_type": "consumer"},
        ],
    )
    assert broker.requests[-1].states_filter == ("Stable", "Empty")
    _, out, _ = fairlog("group", "list", "--bootstrap", broker.address)
    assert [line.split() for line in out.splitlines()][1:] == [["a", "Stable", "consumer"], ["b", "Empty", "consumer"]]


def test_group_describe_shows_lag_and_owner_of_each_partition(broker: Any, fairlog: Fairlog) -> None:
    """Committed and assigned partitions, whether or not they are both; topics that are gone have no end."""
    broker(
        describe=described("Stable", member(1, orders=[0, 2]), member(2)),
        committed={"orders": {1: 100, 0: 7}, "gone": {0: 3}},
    )
    code, out, _ = fairlog("group", "describe", "billing", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["group"], found["state"], found["protocol"]) == ("billing", "Stable", "range")
    assert found["members"][0] == {
        "member_id": "member-1",
        "instance_id": None,
        "client_id": "client-1",
        "host": "/10.0.0.1",
        "partitions": [{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 2}],
    }
    names = ("topic", "partition", "committed", "end", "lag", "client_id", "metadata")
    assert [tuple(each[name] for name in names) for each in found["partitions"]] == [
        ("gone", 0, 3, None, None, None, "note"),
        ("orders", 0, 7, 105, 98, "client-1", "note"),
        ("orders", 1, 100, 105, 5, None, "note"),
        ("orders", 2, None, 105, None, "client-1", None),
    ]
    _, out, _ = fairlog("group", "describe", "billing")
    lines = [line.split() for line in out.splitlines()]
    assert re.search(r"lag +103, without 1 of 4 partitions, which have no committed offset\n", out)
    assert ["orders", "0", "7", "105", "98", "client-1", "member-1"] in lines


@pytest.mark.parametrize("describe", [described("Dead"), described("", error=ErrorCode.group_id_not_found)])
def test_group_describe_of_an_unknown_group_is_refused(broker: Any, fairlog: Fairlog, describe: Any) -> None:
    """Brokers describe what they do not know as dead, or refuse (version 6): both are an error here."""
    broker(describe=describe)
    assert fairlog("group", "describe", "nobody") == (1, "", "fairlog: there is no group nobody\n")


def test_group_describe_of_another_protocol_shows_members_only(broker: Any, fairlog: Fairlog) -> None:
    """What Kafka Connect's workers are assigned is not to be read as partitions."""
    broker(describe=described("Stable", member(1, orders=[0]), kind="connect"))
    assert json.loads(fairlog("group", "describe", "workers", "--json")[1])["partitions"] == []


@pytest.mark.parametrize(
    ("option", "new"),
    [
        (["--to-earliest"], [5, 5, 5]),
        (["--to-latest"], [105, 105, 105]),
        (["--to-offset", "40"], [40, 40, 40]),
        (["--to-offset", "1"], [5, 5, 5]),
        (["--to-offset", "1000"], [105, 105, 105]),
        (["--to-timestamp", str(TIME_MS)], [50, 50, 105]),
        (["--to-timestamp", "2025-11-20T12:00:00Z"], [50, 50, 105]),
        (["--to-timestamp", "2025-11-20T13:00:00+01:00"], [50, 50, 105]),
        (["--to-timestamp", "2025-11-20 12:00:00"], [50, 50, 105]),
    ],
)
def test_group_reset_shows_what_it_would_do_and_does_it_when_told(
    broker: Any, fairlog: Fairlog, option: list[str], new: list[int]
) -> None:
    """Without --execute nothing is changed. Offsets outside a partition become its nearest."""
    started = broker(committed={"orders": {0: 10, 1: 20, 2: 30}})
    code, out, _ = fairlog("group", "reset", "billing", *option, "--json")
    assert (code, json.loads(out)) == (
        0,
        {
            "group": "billing",
            "executed": False,
            "partitions": [
                {"topic": "orders", "partition": index, "committed": 10 * (index + 1), "new": new[index]}
                for index in range(3)
            ],
        },
    )
    assert committed_to(started) is None
    code, out, _ = fairlog("group", "reset", "billing", *option, "--execute")
    assert (code, out.splitlines()[-1]) == (0, "group billing continues at these offsets")
    assert committed_to(started) == {("orders", index): new[index] for index in range(3)}


def test_group_reset_of_named_topics_sets_these_alone(broker: Any, fairlog: Fairlog) -> None:
    """Partitions by name, also those that the group has never read."""
    started = broker(committed={"orders": {0: 10}, "gone": {0: 3}})
    code, out, _ = fairlog("group", "reset", "billing", "--topic", "orders:1,2", "--to-latest", "--execute")
    assert code == 0
    assert [line.split() for line in out.splitlines()][1:3] == [
        ["orders", "1", "-", "105"],
        ["orders", "2", "-", "105"],
    ]
    assert committed_to(started) == {("orders", 1): 105, ("orders", 2): 105}


def test_group_reset_leaves_topics_that_are_gone_alone(broker: Any, fairlog: Fairlog) -> None:
    """An offset for a deleted topic is nobody's business any more."""
    started = broker(committed={"orders": {0: 10}, "gone": {0: 3}})
    assert fairlog("group", "reset", "billing", "--to-latest", "--execute")[0] == 0
    assert committed_to(started) == {("orders", 0): 105}


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        ([], 2, "exactly one of --to-earliest"),
        (["--to-latest", "--to-earliest"], 2, "exactly one of --to-earliest"),
        (["--to-timestamp", "tomorrow"], 2, "is neither a time like"),
        (["--to-latest", "--topic", "nowhere"], 1, "there is no topic nowhere"),
        (["--to-latest", "--topic", "orders:3"], 1, "topic orders has no partition 3; it has 3, from 0"),
        (["--to-latest", "--topic", "orders:a"], 2, "is not TOPIC or TOPIC:NUMBER,NUMBER"),
        (["--to-latest"], 1, "group billing has no committed offsets; name the topic with --topic"),
    ],
)
def test_group_reset_of_what_cannot_be_is_refused(
    broker: Any, fairlog: Fairlog, options: list[str], code: int, sentence: str
) -> None:
    """A slip is told, and nothing is set."""
    started = broker()
    found = fairlog("group", "reset", "billing", *options, "--execute")
    assert found[:2] == (code, "")
    assert sentence in found[2]
    assert committed_to(started) is None


def test_group_reset_of_a_group_with_members_is_refused(broker: Any, fairlog: Fairlog) -> None:
    """Its members would go on from where they are and overwrite what was set; also a dry run says so."""
    started = broker(describe=described("Stable", member(1, orders=[0]), member(2)), committed={"orders": {0: 10}})
    for more in ([], ["--execute"]):
        assert fairlog("group", "reset", "billing", "--to-latest", *more) == (
            1,
            "",
            "fairlog: group billing is Stable with 2 members (client-1, client-2); stop them, then reset it\n",
        )
    assert committed_to(started) is None


def test_group_reset_that_a_member_forestalls_is_refused(broker: Any, fairlog: Fairlog) -> None:
    """A member that joins between the look and the commit: the broker refuses, and that is told as what it is."""
    broker(committed={"orders": {0: 10}}, commit=commit(ErrorCode.unknown_member_id))
    code, _, err = fairlog("group", "reset", "billing", "--to-latest", "--execute")
    assert (code, err) == (
        1,
        "fairlog: setting the offset of group billing in orders-0: the group now has members; stop them, then reset "
        "it\n",
    )
