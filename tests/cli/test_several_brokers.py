"""Commands against a cluster of several brokers: who is asked what, and what is shown if one of them is down."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from kio.schema.delete_records.v2.request import DeleteRecordsRequest
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.response import Coordinator, FindCoordinatorResponse
from kio.schema.list_groups.v4.response import ListedGroup, ListGroupsResponse
from kio.schema.list_offsets.v5.response import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from kio.schema.list_transactions.v0.response import ListTransactionsResponse, TransactionState
from kio.schema.metadata.v9.response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.offset_commit.v8.request import OffsetCommitRequest
from kio.schema.types import BrokerId, GroupId, ProducerId, TopicName, TransactionalId
from kio.static.primitive import i32, i32Timedelta, i64

from tests.cli.test_group_commands import committed, described
from tests.cli.test_topic_commands import modes
from tests.cli.test_txn_commands import separator_is, state

LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 2, 3, 8, 9, 10
DESCRIBE_GROUPS, LIST_GROUPS, DELETE_RECORDS, DESCRIBE_CONFIGS = 15, 16, 21, 32
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66
NO_THROTTLE = i32Timedelta.parse(timedelta(0))

Fairlog = Callable[..., tuple[int, str, str]]
StartBroker = Callable[..., Any]


class Place(NamedTuple):
    host: str
    port: int


@pytest.fixture
def down() -> Place:
    """A broker that is down: nobody listens at its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return Place(*listener.getsockname())


def metadata(*brokers: Callable[[], Any]) -> Callable[[Any], MetadataResponse]:
    """Brokers with node ids from 5; each in its turn leads a partition of `orders`, if that is asked for."""

    def answer(request: Any) -> MetadataResponse:
        partitions = tuple(
            MetadataResponsePartition(
                error_code=ErrorCode.none,
                partition_index=i32(index),
                leader_id=BrokerId(5 + index),
                leader_epoch=i32(1),
            )
            for index in range(len(brokers))
        )
        return MetadataResponse(
            throttle_time=NO_THROTTLE,
            brokers=tuple(
                MetadataResponseBroker(node_id=BrokerId(5 + number), host=each().host, port=i32(each().port))
                for number, each in enumerate(brokers)
            ),
            topics=tuple(
                MetadataResponseTopic(error_code=ErrorCode.none, name=topic.name, partitions=partitions)
                for topic in request.topics
            ),
        )

    return answer


def with_second(fake_broker: StartBroker, second: Any, answers: dict[int, Any]) -> Any:
    """The broker that commands are told of, which names another one beside itself."""
    first: Any = fake_broker({METADATA: metadata(lambda: first, lambda: second), **answers})
    return first


def groups(*names: str) -> Callable[[Any], ListGroupsResponse]:
    found = tuple(ListedGroup(group_id=GroupId(it), protocol_type="consumer", group_state="Stable") for it in names)
    answer = ListGroupsResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none, groups=found)
    return lambda _request: answer


def transactions(*names: str) -> Callable[[Any], ListTransactionsResponse]:
    answer = ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        unknown_state_filters=(),
        transaction_states=tuple(
            TransactionState(
                transactional_id=TransactionalId(it), producer_id=ProducerId(7), transaction_state="Ongoing"
            )
            for it in names
        ),
    )
    return lambda _request: answer


def offsets(*not_yet: ErrorCode) -> Callable[[Any], ListOffsetsResponse]:
    """Every partition begins and ends at 105; answered with each of the errors first."""
    errors = list(not_yet)

    def answer(request: Any) -> ListOffsetsResponse:
        (topic,) = request.topics
        error = errors.pop(0) if errors else ErrorCode.none
        return ListOffsetsResponse(
            throttle_time=NO_THROTTLE,
            topics=(
                ListOffsetsTopicResponse(
                    name=TopicName("orders"),
                    partitions=tuple(
                        ListOffsetsPartitionResponse(
                            partition_index=each.partition_index,
                            error_code=error,
                            offset=i64(105),
                            leader_epoch=i32(1),
                        )
                        for each in topic.partitions
                    ),
                ),
            ),
        )

    return answer


def coordinator(found: Callable[[], Any]) -> Callable[[Any], FindCoordinatorResponse]:
    return lambda request: FindCoordinatorResponse(
        throttle_time=NO_THROTTLE,
        coordinators=(
            Coordinator(
                key=request.coordinator_keys[0],
                node_id=BrokerId(6),
                host=found().host,
                port=i32(found().port),
                error_code=ErrorCode.none,
                error_message=None,
            ),
        ),
    )


def not_there(down: Place, otherwise: str) -> str:
    """The line on standard error."""
    why = f"cannot reach a broker at {down.host}:{down.port}: Connection refused"
    return f"fairlog: broker 6 does not answer ({why}); {otherwise}\n"


def test_lists_have_what_all_brokers_know(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """Groups and transactional ids of both brokers, in one order."""
    second = fake_broker(
        {LIST_GROUPS: groups("a", "c"), LIST_TRANSACTIONS: transactions("x::1", "z"), **separator_is("::", node_id=6)}
    )
    own = {LIST_GROUPS: groups("b"), LIST_TRANSACTIONS: transactions("y"), **separator_is("::")}
    first = with_second(fake_broker, second, own)
    code, out, err = fairlog("group", "list", "--json", "--bootstrap", first.address)
    assert (code, [each["group"] for each in json.loads(out)], err) == (0, ["a", "b", "c"], "")
    code, out, err = fairlog("txn", "list", "--json", "--bootstrap", first.address)
    assert (code, [each["transactional_id"] for each in json.loads(out)], err) == (0, ["x::1", "y", "z"], "")
    assert [each["group"] for each in json.loads(out)] == ["x", "y", "z"]


def test_prepared_transactions_are_those_of_all_brokers(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """Each id is described by the broker that has listed it."""
    answers = [
        {LIST_TRANSACTIONS: transactions(name), DESCRIBE_TRANSACTIONS: state(timeouts_ms={name: 2**31 - 1})}
        for name in ("bank", "airline")
    ]
    first = with_second(fake_broker, fake_broker(answers[1]), answers[0])
    code, out, err = fairlog("txn", "list", "--prepared", "--json", "--bootstrap", first.address)
    assert (code, [each["transactional_id"] for each in json.loads(out)], err) == (0, ["airline", "bank"], "")


@pytest.mark.parametrize(
    ("command", "shown", "otherwise"),
    [
        (("group", "list"), "b ", "the groups that it coordinates are not shown"),
        (("txn", "list"), "y ", "the transactional ids that it coordinates are not shown"),
        (("txn", "list", "--prepared"), "y ", "the transactional ids that it coordinates are not shown"),
        (("topic", "describe", "orders"), "0  ", "the offsets in partitions that it leads are not known"),
        (("group", "describe", "billing"), "orders  ", "the lag in partitions that it leads is not known"),
    ],
)
@pytest.mark.parametrize("json_too", [(), ("--json",)])
def test_command_without_one_broker_shows_the_rest_and_names_it(
    fake_broker: StartBroker,
    fairlog: Fairlog,
    down: Place,
    command: tuple[str, ...],
    shown: str,
    otherwise: str,
    json_too: tuple[str, ...],
) -> None:
    """One line on standard error says which, and the exit code is 1."""
    first: Any = None
    first = with_second(
        fake_broker,
        down,
        {
            LIST_GROUPS: groups("b"),
            LIST_TRANSACTIONS: transactions("y"),
            DESCRIBE_TRANSACTIONS: state(timeouts_ms={"y": 2**31 - 1}),
            FIND_COORDINATOR: coordinator(lambda: first),
            DESCRIBE_GROUPS: described("Empty"),
            OFFSET_FETCH: committed({"orders": {0: 100, 1: 100}}),
            LIST_OFFSETS: offsets(),
            DESCRIBE_CONFIGS: configs,
        },
    )
    code, out, err = fairlog(*command, *json_too, "--bootstrap", first.address)
    assert (code, err) == (1, not_there(down, otherwise))
    if json_too:
        assert json.loads(out)
    else:
        assert any(line.strip().startswith(shown) for line in out.splitlines()), out


def configs(request: Any) -> Any:
    """The separator of groups, or a topic's mode: whatever is asked for."""
    (resource,) = request.resources
    if resource.resource_name == "orders":
        return modes(orders="journal")(request)
    return separator_is("::")[DESCRIBE_CONFIGS](request)


def test_offsets_come_from_each_partitions_leader(fake_broker: StartBroker, fairlog: Fairlog) -> None:
    """A leader that has not heard of a new topic yet is asked again."""
    second = fake_broker(
        {LIST_OFFSETS: offsets(ErrorCode.not_leader_or_follower, ErrorCode.unknown_topic_or_partition)}
    )
    own = {LIST_OFFSETS: offsets(), DESCRIBE_CONFIGS: modes(orders="journal")}
    first = with_second(fake_broker, second, own)
    code, out, err = fairlog("topic", "describe", "orders", "--json", "--bootstrap", first.address)
    assert (code, err) == (0, "")
    assert [(each["leader"], each["end"]) for each in json.loads(out)["partitions"]] == [(5, 105), (6, 105)]
    for broker, partition in ((first, 0), (second, 1)):
        asked = [request for request in broker.requests if hasattr(request, "isolation_level")]
        assert {each.partition_index for request in asked for each in request.topics[0].partitions} == {partition}


def test_unknown_offsets_are_null(fake_broker: StartBroker, fairlog: Fairlog, down: Place) -> None:
    """A program that reads JSON sees which partition's leader is down."""
    first = with_second(fake_broker, down, {LIST_OFFSETS: offsets(), DESCRIBE_CONFIGS: modes(orders="journal")})
    _, out, _ = fairlog("topic", "describe", "orders", "--json", "--bootstrap", first.address)
    assert [each["end"] for each in json.loads(out)["partitions"]] == [105, None]


def test_records_are_deleted_by_the_partitions_leader(fake_broker: StartBroker, fairlog: Fairlog, down: Place) -> None:
    """If it is down, the command says so and asks nobody else."""

    def deleted(request: Any) -> DeleteRecordsResponse:
        (topic,) = request.topics
        result = DeleteRecordsPartitionResult(partition_index=i32(1), low_watermark=i64(7), error_code=ErrorCode.none)
        return DeleteRecordsResponse(
            throttle_time=NO_THROTTLE, topics=(DeleteRecordsTopicResult(name=topic.name, partitions=(result,)),)
        )

    first = with_second(fake_broker, fake_broker({DELETE_RECORDS: deleted}), {})
    command = ("topic", "trim", "orders", "1", "7", "--bootstrap")
    assert fairlog(*command, first.address) == (0, "orders-1 now begins at 7\n", "")
    alone = with_second(fake_broker, down, {DELETE_RECORDS: deleted})
    expected = not_there(down, "it leads orders-1, which nothing was done to")
    assert fairlog(*command, alone.address) == (1, "", expected)
    assert not any(isinstance(request, DeleteRecordsRequest) for request in alone.requests)
    assert "has no partition 2" in fairlog("topic", "trim", "orders", "2", "7", "--bootstrap", alone.address)[2]


def test_reset_sets_nothing_if_a_leader_is_down(fake_broker: StartBroker, fairlog: Fairlog, down: Place) -> None:
    """A group that is set in some partitions only would read others twice."""
    first: Any = None
    first = with_second(
        fake_broker,
        down,
        {
            FIND_COORDINATOR: coordinator(lambda: first),
            DESCRIBE_GROUPS: described("Empty"),
            OFFSET_FETCH: committed({"orders": {0: 100, 1: 100}}),
            LIST_OFFSETS: offsets(),
            OFFSET_COMMIT: lambda _request: b"",
        },
    )
    command = ("group", "reset", "billing", "--to-earliest", "--execute", "--bootstrap", first.address)
    assert fairlog(*command) == (1, "", not_there(down, "no offset is set"))
    assert not any(isinstance(request, OffsetCommitRequest) for request in first.requests)


@pytest.mark.parametrize("command", [("group", "describe"), ("txn", "describe"), ("txn", "abort"), ("txn", "show")])
def test_coordinator_that_is_down_is_named(
    fake_broker: StartBroker, fairlog: Fairlog, down: Place, command: tuple[str, str]
) -> None:
    """With its address, and what it coordinates."""
    first = with_second(fake_broker, down, {FIND_COORDINATOR: coordinator(lambda: down)})
    code, _, err = fairlog(*command, "billing", "--bootstrap", first.address)
    assert code == 1
    assert "broker 6, which coordinates billing, does not answer (cannot reach" in err
