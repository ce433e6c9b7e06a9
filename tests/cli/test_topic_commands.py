"""`fairlog topic …` against a broker that is not Fairlog: what is asked, and what is shown."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse
from kio.schema.create_topics.v5.response import CreatableTopicResult, CreateTopicsResponse
from kio.schema.delete_topics.v4.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v5.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.metadata.v9.response import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i16, i32, i32Timedelta, i64

LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS = 2, 3, 18, 19, 20
NO_THROTTLE = i32Timedelta.parse(timedelta(0))

Fairlog = Callable[..., tuple[int, str, str]]
StartBroker = Callable[..., Any]


def metadata(error: ErrorCode = ErrorCode.none, **topics: int) -> Callable[[Any], MetadataResponse]:
    """Answers these topics, with so many partitions."""
    return lambda _request: MetadataResponse(
        throttle_time=NO_THROTTLE,
        brokers=(),
        topics=tuple(
            MetadataResponseTopic(
                error_code=error,
                name=TopicName(name),
                partitions=tuple(
                    MetadataResponsePartition(
                        error_code=ErrorCode.none,
                        partition_index=i32(index),
                        leader_id=BrokerId(1),
                        leader_epoch=i32(4),
                    )
                    for index in reversed(range(partitions))
                ),
            )
            for name, partitions in topics.items()
        ),
    )


def created(error: ErrorCode, message: str | None, partitions: int) -> Callable[[Any], CreateTopicsResponse]:
    return lambda request: CreateTopicsResponse(
        throttle_time=NO_THROTTLE,
        topics=(
            CreatableTopicResult(
                name=request.topics[0].name,
                error_code=error,
                error_message=message,
                num_partitions=i32(partitions),
                replication_factor=i16(1),
                configs=(),
            ),
        ),
    )


def offsets(request: Any) -> ListOffsetsResponse:
    """Every partition begins at 5 and ends at 105 plus its number."""
    (topic,) = request.topics
    return ListOffsetsResponse(
        throttle_time=NO_THROTTLE,
        topics=(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    ListOffsetsPartitionResponse(
                        partition_index=each.partition_index,
                        error_code=ErrorCode.none,
                        offset=i64(5 if each.timestamp == -2 else 105 + each.partition_index),
                    )
                    for each in topic.partitions
                ),
            ),
        ),
    )


def test_topic_list_shows_topics_by_name(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """All topics with their partitions, sorted, as a table and as JSON; none is made by asking."""
    broker = fake_broker({METADATA: metadata(orders=3, billing=1)})
    assert fairlog("topic", "list", "--bootstrap", broker.address, "--json") == (
        0,
        '[{"topic": "billing", "partitions": 1}, {"topic": "orders", "partitions": 3}]\n',
        "",
    )
    code, out, _ = fairlog("topic", "list", "--bootstrap", broker.address)
    assert (code, [line.split() for line in out.splitlines()]) == (
        0,
        [["topic", "partitions"], ["billing", "1"], ["orders", "3"]],
    )
    assert not any(getattr(request, "allow_auto_topic_creation", False) for request in broker.requests)


def test_topic_list_without_topics_says_so(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """An empty broker is a sentence for people and an empty list for programs."""
    broker = fake_broker({METADATA: metadata()})
    assert fairlog("topic", "list", "--bootstrap", broker.address)[1] == "there are no topics\n"
    assert fairlog("topic", "list", "--bootstrap", broker.address, "--json")[1] == "[]\n"


def test_topic_create_sends_partitions_and_configs(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """What is asked for on the command line is what the broker is asked for."""
    broker = fake_broker({CREATE_TOPICS: created(ErrorCode.none, None, 3)})
    code, out, _ = fairlog(
        "topic", "create", "orders", "--partitions", "3", "--config", "a=b=c", "--bootstrap", broker.address
    )
    assert (code, out) == (0, "created topic orders with 3 partitions\n")
    (topic,) = broker.requests[-1].topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("orders", 3, -1)
    assert [(config.name, config.value) for config in topic.configs] == [("a", "b=c")]


def test_topic_create_without_partitions_leaves_the_number_to_the_broker(
    fake_broker: StartBroker, fairlog: Fairlog
) -> None:
    """The broker's default counts, and its answer is what is shown."""
    broker = fake_broker({CREATE_TOPICS: created(ErrorCode.none, None, 1)})
    assert fairlog("topic", "create", "orders", "--json", "--bootstrap", broker.address)[1] == (
        '{"topic": "orders", "partitions": 1}\n'
    )
    assert broker.requests[-1].topics[0].num_partitions == -1


def test_topic_create_that_is_refused_shows_the_brokers_reason(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """A refusal is one sentence on stderr with the broker's code and words, and exit code 1."""
    broker = fake_broker({CREATE_TOPICS: created(ErrorCode.topic_already_exists, "it is there", -1)})
    assert fairlog("topic", "create", "orders", "--bootstrap", broker.address) == (
        1,
        "",
        "fairlog: creating topic orders: TOPIC_ALREADY_EXISTS (it is there)\n",
    )


def test_topic_create_with_a_config_that_is_no_pair_is_refused_unasked(fairlog: Fairlog) -> None:
    """A slip on the command line never reaches a broker."""
    code, _, err = fairlog("topic", "create", "orders", "--config", "retention", "--bootstrap", "127.0.0.1:1")
    assert code == 2
    assert "'retention' is not KEY=VALUE" in err


def test_topic_describe_shows_leader_and_offsets_of_each_partition(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """Partitions come in order, with start, end and number of records."""
    broker = fake_broker({METADATA: metadata(orders=2), LIST_OFFSETS: offsets})
    code, out, _ = fairlog("topic", "describe", "orders", "--bootstrap", broker.address, "--json")
    assert code == 0
    assert json.loads(out)["partitions"] == [
        {"partition": 0, "leader": 1, "leader_epoch": 4, "start": 5, "end": 105},
        {"partition": 1, "leader": 1, "leader_epoch": 4, "start": 5, "end": 106},
    ]
    assert fairlog("topic", "describe", "orders", "--bootstrap", broker.address)[1].splitlines()[2].split() == (
        ["1", "1", "4", "5", "106", "101"]
    )


def test_topic_describe_of_an_unknown_topic_is_refused(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """An unknown topic is an error, not an empty table."""
    broker = fake_broker({METADATA: metadata(ErrorCode.unknown_topic_or_partition, orders=0)})
    code, out, err = fairlog("topic", "describe", "orders", "--bootstrap", broker.address)
    assert (code, out, err) == (1, "", "fairlog: describing topic orders: UNKNOWN_TOPIC_OR_PARTITION\n")


def test_topic_delete_asks_for_this_topic_only(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """One name goes to the broker."""
    broker = fake_broker(
        {
            DELETE_TOPICS: lambda request: DeleteTopicsResponse(
                throttle_time=NO_THROTTLE,
                responses=(DeletableTopicResult(name=request.topic_names[0], error_code=ErrorCode.none),),
            )
        }
    )
    assert fairlog("topic", "delete", "orders", "--bootstrap", broker.address)[:2] == (0, "deleted topic orders\n")
    assert broker.requests[-1].topic_names == ("orders",)


def test_client_of_an_older_broker_names_the_missing_version(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """A broker that does not serve a request's version is never sent it."""
    broker = fake_broker({METADATA: metadata()}, served={METADATA: (0, 5)})
    code, _, err = fairlog("topic", "list", "--bootstrap", broker.address)
    assert (code, err) == (
        1,
        f"fairlog: metadata version 9 is needed, but the broker at {broker.address} serves 0 to 5\n",
    )
    assert len(broker.requests) == 1


def test_client_of_a_broker_that_knows_old_api_versions_only_goes_on(
    fake_broker: StartBroker, fairlog: Fairlog
) -> None:
    """UNSUPPORTED_VERSION to ApiVersions comes in version 0's form, with all ranges in it (KIP-511)."""
    old = ApiVersionsResponse(
        error_code=ErrorCode.unsupported_version,
        api_keys=(ApiVersion(api_key=i16(METADATA), min_version=i16(0), max_version=i16(9)),),
    )
    broker = fake_broker({API_VERSIONS: lambda _request: old, METADATA: metadata(orders=1)})
    assert fairlog("topic", "list", "--bootstrap", broker.address)[0] == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak Kafka's protocol"),
        (struct.pack(">ii", 4, 77), "answered another request"),
        (struct.pack(">iih", 6, 1, 0), "is not a ApiVersionsResponse"),
    ],
)
def test_client_of_something_that_is_no_broker_says_so(
    fake_broker: StartBroker, fairlog: Fairlog, answer: bytes, words: str
) -> None:
    """Whatever answers on the port, the command ends with one sentence."""
    broker = fake_broker({API_VERSIONS: lambda _request: answer})
    code, out, err = fairlog("topic", "list", "--bootstrap", broker.address)
    assert (code, out) == (1, "")
    assert words in err
    assert err.count("\n") == 1


def test_client_of_nobody_says_whom_it_cannot_reach(fairlog: Fairlog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address comes from FAIRLOG_BOOTSTRAP without a flag, and stands in the sentence."""
    monkeypatch.setenv("FAIRLOG_BOOTSTRAP", "127.0.0.1:1")
    code, _, err = fairlog("topic", "list")
    assert (code, err) == (1, "fairlog: cannot reach a broker at 127.0.0.1:1: Connection refused\n")
