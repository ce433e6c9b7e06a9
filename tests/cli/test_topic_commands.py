"""`fairlog topic …` against a broker that is not Fairlog: what is asked, and what is shown."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.api_versions.v0.response import ApiVersion, ApiVersionsResponse
from kio.schema.create_partitions.v2.response import CreatePartitionsResponse, CreatePartitionsTopicResult
from kio.schema.create_topics.v5.response import CreatableTopicResult, CreateTopicsResponse
from kio.schema.delete_records.v2.request import DeleteRecordsRequest
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kio.schema.delete_topics.v4.response import DeletableTopicResult, DeleteTopicsResponse
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from kio.schema.list_offsets.v5.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.metadata.v9.response import MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i16, i32, i32Timedelta, i64

LIST_OFFSETS, METADATA, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS = 2, 3, 18, 19, 20
DELETE_RECORDS, DESCRIBE_CONFIGS, CREATE_PARTITIONS, INCREMENTAL_ALTER = 21, 32, 37, 44
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


def modes(**values: str | None) -> Callable[[Any], DescribeConfigsResponse]:
    """Answers how transactions reach each topic that is asked for; None: a broker that has no such config."""

    def answer(request: Any) -> DescribeConfigsResponse:
        assert all(resource.configuration_keys == ("fairlog.transactions",) for resource in request.resources)
        results = [(resource, values[resource.resource_name]) for resource in request.resources]
        return DescribeConfigsResponse(
            throttle_time=NO_THROTTLE,
            results=tuple(
                DescribeConfigsResult(
                    error_code=ErrorCode.none,
                    error_message=None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=() if mode is None else (described("fairlog.transactions", mode, 1),),
                )
                for resource, mode in results
            ),
        )

    return answer


def described(name: str, value: str | None, source: int) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=name,
        value=value,
        read_only=False,
        config_source=i8(source),
        is_sensitive=False,
        synonyms=(),
        documentation=None,
    )


def offsets(request: Any) -> ListOffsetsResponse:
    """Every partition begins at 5 and ends at 105 plus its number; committed is all to 100."""
    (topic,) = request.topics
    if request.isolation_level == 1:
        ends = [100 for _ in topic.partitions]
    else:
        ends = [105 + each.partition_index for each in topic.partitions]
    return ListOffsetsResponse(
        throttle_time=NO_THROTTLE,
        topics=(
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=tuple(
                    ListOffsetsPartitionResponse(
                        partition_index=each.partition_index,
                        error_code=ErrorCode.none,
                        offset=i64(5 if each.timestamp == -2 else end),
                    )
                    for each, end in zip(topic.partitions, ends, strict=True)
                ),
            ),
        ),
    )


def test_topic_list_shows_topics_by_name(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """All topics with their partitions and modes, sorted, as a table and as JSON; none is made by asking."""
    broker = fake_broker(
        {METADATA: metadata(orders=3, billing=1), DESCRIBE_CONFIGS: modes(orders="markers", billing=None)}
    )
    assert fairlog("topic", "list", "--bootstrap", broker.address, "--json") == (
        0,
        '[{"topic": "billing", "partitions": 1, "transactions": null},'
        ' {"topic": "orders", "partitions": 3, "transactions": "markers"}]\n',
        "",
    )
    code, out, _ = fairlog("topic", "list", "--bootstrap", broker.address)
    assert (code, [line.split() for line in out.splitlines()]) == (
        0,
        [["topic", "partitions", "transactions"], ["billing", "1", "-"], ["orders", "3", "markers"]],
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


@pytest.mark.parametrize("mode", ["journal", "markers"])
def test_topic_create_asks_for_a_mode(fake_broker: StartBroker, fairlog: Fairlog, mode: str) -> None:
    """`--transactions` is a config like others; a word that is no mode never reaches a broker."""
    broker = fake_broker({CREATE_TOPICS: created(ErrorCode.none, None, 3)})
    arguments = ("topic", "create", "orders", "--bootstrap", broker.address, "--transactions")
    assert fairlog(*arguments, mode)[0] == 0
    (topic,) = broker.requests[-1].topics
    assert [(config.name, config.value) for config in topic.configs] == [("fairlog.transactions", mode)]
    asked = len(broker.requests)
    assert fairlog(*arguments, "marker")[0] == 2
    assert len(broker.requests) == asked


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


@pytest.mark.parametrize("command", ["create", "config"])
def test_topic_command_with_a_config_that_lacks_its_option_is_refused_with_the_option(
    fairlog: Fairlog, command: str
) -> None:
    """`KEY=VALUE` behind the topic says what is meant, so the refusal says how to write it."""
    code, _, err = fairlog("topic", command, "orders", "retention.ms=5", "--bootstrap", "127.0.0.1:1")
    assert code == 2
    assert "unexpected extra argument retention.ms=5; to set it, write --config retention.ms=5" in err
    assert fairlog("topic", command, "orders", "more")[2].endswith("unexpected extra argument more\n")


def test_topic_describe_shows_leader_and_offsets_of_each_partition(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """The topic's mode; partitions in order, with start, last stable offset, end and number of records."""
    broker = fake_broker(
        {METADATA: metadata(orders=2), LIST_OFFSETS: offsets, DESCRIBE_CONFIGS: modes(orders="markers")}
    )
    code, out, _ = fairlog("topic", "describe", "orders", "--bootstrap", broker.address, "--json")
    assert code == 0
    assert json.loads(out) == {
        "topic": "orders",
        "transactions": "markers",
        "partitions": [
            {"partition": 0, "leader": 1, "leader_epoch": 4, "start": 5, "end": 105, "stable": 100},
            {"partition": 1, "leader": 1, "leader_epoch": 4, "start": 5, "end": 106, "stable": 100},
        ],
    }
    lines = fairlog("topic", "describe", "orders", "--bootstrap", broker.address)[1].splitlines()
    assert (lines[0], lines[3].split()) == ("transactions: markers", ["1", "1", "4", "5", "100", "106", "101"])


def test_topic_describe_of_an_unknown_topic_is_refused(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """An unknown topic is an error, not an empty table."""
    broker = fake_broker({METADATA: metadata(ErrorCode.unknown_topic_or_partition, orders=0)})
    code, out, err = fairlog("topic", "describe", "orders", "--bootstrap", broker.address)
    assert (code, out, err) == (
        1,
        "",
        "fairlog: describing topic orders: UNKNOWN_TOPIC_OR_PARTITION (there is no such topic or partition)\n",
    )


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
    broker = fake_broker({API_VERSIONS: lambda _request: old, METADATA: metadata()})
    assert fairlog("topic", "list", "--bootstrap", broker.address)[0] == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "closed the connection before it answered: does it want TLS or a sign-in? see --client-properties"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak Kafka's protocol"),
        (struct.pack(">ii", 4, 77), "sent an answer that does not belong to the request"),
        (struct.pack(">iih", 6, 1, 0), "could not be read as ApiVersionsResponse"),
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


# --- changes of topics that exist ------------------------------------------------------------------


def configs(error: ErrorCode = ErrorCode.none, **values: tuple[str | None, int]) -> Callable[[Any], Any]:
    """Answers these configs: value and source; `_` stands for the dot."""
    return lambda request: DescribeConfigsResponse(
        throttle_time=NO_THROTTLE,
        results=(
            DescribeConfigsResult(
                error_code=error,
                error_message=None if error is ErrorCode.none else "no such topic",
                resource_type=request.resources[0].resource_type,
                resource_name=request.resources[0].resource_name,
                configs=tuple(
                    described(name.replace("_", "."), value, source) for name, (value, source) in values.items()
                ),
            ),
        ),
    )


def altered(error: ErrorCode = ErrorCode.none, message: str | None = None) -> Callable[[Any], Any]:
    return lambda request: IncrementalAlterConfigsResponse(
        throttle_time=NO_THROTTLE,
        responses=(
            AlterConfigsResourceResponse(
                error_code=error,
                error_message=message,
                resource_type=request.resources[0].resource_type,
                resource_name=request.resources[0].resource_name,
            ),
        ),
    )


def test_topic_config_shows_values_and_where_they_come_from(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """By name, as a table and as JSON; nothing is changed by looking."""
    broker = fake_broker({DESCRIBE_CONFIGS: configs(retention_ms=("9", 1), cleanup_policy=("delete", 5), x=(None, 4))})
    code, out, _ = fairlog("topic", "config", "orders", "--bootstrap", broker.address)
    assert (code, [line.split() for line in out.splitlines()]) == (
        0,
        [
            ["config", "value", "source"],
            ["cleanup.policy", "delete", "default"],
            ["retention.ms", "9", "topic"],
            ["x", "-", "broker"],
        ],
    )
    out = fairlog("topic", "config", "orders", "--bootstrap", broker.address, "--json")[1]
    assert json.loads(out)["configs"][1] == {"name": "retention.ms", "value": "9", "source": "topic"}


def test_topic_config_changes_all_that_is_asked_for_in_one_request(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """Values are set as they stand behind the first =, names deleted; then what holds is shown."""
    broker = fake_broker({INCREMENTAL_ALTER: altered(), DESCRIBE_CONFIGS: configs(a=("b=c", 1))})
    code, out, _ = fairlog(
        "topic",
        "config",
        "orders",
        "--config",
        "a=b=c",
        "--delete",
        "d",
        "--config",
        "e=",
        "--bootstrap",
        broker.address,
    )
    assert (code, out.splitlines()[1].split()) == (0, ["a", "b=c", "topic"])
    ((resource,),) = (each.resources for each in broker.requests if hasattr(each, "validate_only"))
    assert (resource.resource_type, resource.resource_name) == (2, "orders")
    changes = [(each.name, each.config_operation, each.value) for each in resource.configs]
    assert changes == [("a", 0, "b=c"), ("e", 0, ""), ("d", 1, None)]


def test_topic_config_that_is_refused_shows_the_brokers_reason(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """For a bad config, and for a topic that is not there; a slip on the command line never reaches a broker."""
    broker = fake_broker(
        {
            INCREMENTAL_ALTER: altered(ErrorCode.invalid_config, "unknown topic config a"),
            DESCRIBE_CONFIGS: configs(ErrorCode.unknown_topic_or_partition),
        }
    )
    assert fairlog("topic", "config", "orders", "--config", "a=1", "--bootstrap", broker.address) == (
        1,
        "",
        "fairlog: changing the configs of topic orders: INVALID_CONFIG (unknown topic config a)\n",
    )
    assert fairlog("topic", "config", "orders", "--bootstrap", broker.address) == (
        1,
        "",
        "fairlog: asking the configs of topic orders: UNKNOWN_TOPIC_OR_PARTITION (no such topic)\n",
    )
    code, _, err = fairlog("topic", "config", "orders", "--config", "retention", "--bootstrap", "127.0.0.1:1")
    assert code == 2
    assert "'retention' is not KEY=VALUE" in err


def test_topic_partitions_asks_for_the_total(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """And shows it, or why there are not so many."""
    errors = [(ErrorCode.invalid_partitions, "topic orders has 6 partitions already"), (ErrorCode.none, None)] * 2
    broker = fake_broker(
        {
            CREATE_PARTITIONS: lambda request: CreatePartitionsResponse(
                throttle_time=NO_THROTTLE,
                results=(
                    CreatePartitionsTopicResult(
                        name=request.topics[0].name, error_code=errors[-1][0], error_message=errors.pop()[1]
                    ),
                ),
            )
        }
    )
    command = ("topic", "partitions", "orders", "6", "--bootstrap", broker.address)
    assert fairlog(*command) == (0, "topic orders now has 6 partitions\n", "")
    assert fairlog(*command) == (
        1,
        "",
        "fairlog: adding partitions to topic orders: INVALID_PARTITIONS (topic orders has 6 partitions already)\n",
    )
    assert fairlog(*command, "--json")[1] == '{"topic": "orders", "partitions": 6}\n'
    (topic,) = broker.requests[-1].topics
    assert (topic.name, topic.count, topic.assignments) == ("orders", 6, None)


def test_topic_trim_names_the_first_offset_to_keep(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """A number, or `end`; anything else is refused unasked."""
    errors = [ErrorCode.offset_out_of_range, ErrorCode.none, ErrorCode.none]
    broker = fake_broker(
        {
            METADATA: metadata(orders=2),
            DELETE_RECORDS: lambda request: DeleteRecordsResponse(
                throttle_time=NO_THROTTLE,
                topics=(
                    DeleteRecordsTopicResult(
                        name=request.topics[0].name,
                        partitions=(
                            DeleteRecordsPartitionResult(
                                partition_index=i32(1), low_watermark=i64(70), error_code=errors.pop()
                            ),
                        ),
                    ),
                ),
            ),
        }
    )
    at = ("--bootstrap", broker.address)
    assert fairlog("topic", "trim", "orders", "1", "70", *at) == (0, "orders-1 now begins at 70\n", "")
    assert fairlog("topic", "trim", "orders", "1", "end", "--json", *at)[1] == (
        '{"topic": "orders", "partition": 1, "start": 70}\n'
    )
    assert fairlog("topic", "trim", "orders", "1", "71", *at) == (
        1,
        "",
        "fairlog: deleting records of orders-1: OFFSET_OUT_OF_RANGE (the partition ends before this offset)\n",
    )
    offsets_asked = [
        request.topics[0].partitions[0].offset
        for request in broker.requests
        if isinstance(request, DeleteRecordsRequest)
    ]
    assert offsets_asked == [70, -1, 71]
    for text in ("-1", "ende", "1.5"):
        code, _, err = fairlog("topic", "trim", *at, "--", "orders", "1", text)
        assert (code, f"'{text}' is neither an offset nor end" in err) == (2, True)
