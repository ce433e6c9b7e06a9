"""`fairlog txn …`: what is asked, what is shown, and what is refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse, TopicData, TransactionState
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.response import Coordinator, FindCoordinatorResponse
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.list_transactions.v0.request import ListTransactionsRequest
from kio.schema.list_transactions.v0.response import ListTransactionsResponse
from kio.schema.list_transactions.v0.response import TransactionState as ListedState
from kio.schema.types import BrokerId, ProducerId, TopicName, TransactionalId
from kio.static.primitive import TZAware, i8, i16, i32, i32Timedelta

from fairlog.cli import transactions_admin
from fairlog.cli.describe_transactions import decode_answer_untrusted
from fairlog.edge.malformed import Malformed
from fairlog.kafka.handlers.api_65_describe_transactions import (
    PLACEMENTS_TAG,
    PlacedRecords,
    PlacedTransaction,
    encode_placements,
)
from fairlog.kafka.wire import Writer

FIND_COORDINATOR, INIT_PRODUCER_ID, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 10, 22, 65, 66
DESCRIBE_CONFIGS = 32
BROKER = 4
NO_THROTTLE = i32Timedelta.parse(timedelta(0))

Fairlog = Callable[..., tuple[int, str, str]]
StartBroker = Callable[..., Any]


def state(
    error: ErrorCode = ErrorCode.none,
    *,
    name: str = "Ongoing",
    started_ms: int = 1_760_000_000_000,
    topics: Mapping[str, tuple[int, ...]] = MappingProxyType({"orders": (0, 2)}),
    tags: tuple[tuple[int, bytes], ...] = (),
    timeouts_ms: Mapping[str, int] = MappingProxyType({}),
    lost: tuple[str, ...] = (),
) -> Callable[[Any], bytearray]:
    """Answers an id with an open transaction, or what the arguments make of it."""

    def answer(request: Any) -> bytearray:
        writer = Writer(flexible=True)

        def topic(entry: tuple[str, tuple[int, ...]]) -> None:
            writer.string(entry[0])
            writer.int32_array(entry[1])
            writer.end_of_fields()

        def one(transactional_id: str) -> None:
            code = ErrorCode.transactional_id_not_found if transactional_id in lost else error
            writer.int16(code.value)
            writer.string(transactional_id)
            writer.string(name)
            writer.int32(timeouts_ms.get(transactional_id, 60_000))
            writer.int64(started_ms)
            writer.int64(7)
            writer.int16(2)
            writer.array(topics.items(), topic)
            writer.tagged_fields(tags)

        writer.int32(0)
        writer.array(request.transactional_ids, one)
        writer.end_of_fields()
        return bytearray().join(writer.parts())

    return answer


def as_kafka_writes(request: Any) -> DescribeTransactionsResponse:
    """The same open transaction, written by another codec."""
    return DescribeTransactionsResponse(
        throttle_time=NO_THROTTLE,
        transaction_states=(
            TransactionState(
                error_code=ErrorCode.none,
                transactional_id=request.transactional_ids[0],
                transaction_state="Ongoing",
                transaction_timeout=i32Timedelta.parse(timedelta(minutes=1)),
                transaction_start_time=TZAware.parse(datetime.fromtimestamp(1_760_000_000, UTC)),
                producer_id=ProducerId(7),
                producer_epoch=i16(2),
                topics=(TopicData(topic=TopicName("orders"), partitions=(i32(0), i32(2))),),
            ),
        ),
    )


@pytest.fixture
def start(fake_broker: StartBroker) -> StartBroker:
    """Starts a broker that coordinates all ids itself."""

    def started(answers: Mapping[int, Callable[[Any], Any]]) -> Any:
        def coordinator(request: Any) -> FindCoordinatorResponse:
            assert request.key_type == 1
            found = Coordinator(
                key=request.coordinator_keys[0],
                node_id=BrokerId(1),
                host=broker.host,
                port=i32(broker.port),
                error_code=ErrorCode.none,
                error_message=None,
            )
            return FindCoordinatorResponse(throttle_time=NO_THROTTLE, coordinators=(found,))

        broker = fake_broker({FIND_COORDINATOR: coordinator, **answers})
        return broker

    return started


def separator_is(
    separator: str | None, node_id: int = 5, error: ErrorCode = ErrorCode.none
) -> Mapping[int, Callable[[Any], Any]]:
    """Answers what tells the transactional groups; None, if the broker does not know of them."""

    def configs(request: Any) -> DescribeConfigsResponse:
        (resource,) = request.resources
        assert (resource.resource_type, resource.resource_name) == (BROKER, str(node_id))
        (key,) = resource.configuration_keys
        assert key == "fairlog.transaction.group.separator"
        known = DescribeConfigsResourceResult(
            name=key,
            value=separator,
            read_only=True,
            is_sensitive=False,
            config_source=i8(4),
            synonyms=(),
            config_type=i8(2),
            documentation=None,
        )
        result = DescribeConfigsResult(
            error_code=error,
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=() if separator is None else (known,),
        )
        return DescribeConfigsResponse(throttle_time=NO_THROTTLE, results=(result,))

    return {DESCRIBE_CONFIGS: configs}


def test_txn_list_shows_ids_and_passes_the_states_on(start: StartBroker, fairlog: Fairlog) -> None:
    """The states are the broker's to filter by, in its own spelling; ids come sorted."""
    listed = ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        unknown_state_filters=(),
        transaction_states=tuple(
            ListedState(
                transactional_id=TransactionalId(name), producer_id=ProducerId(number), transaction_state="Ongoing"
            )
            for name, number in (("b::1", 1), ("a", 2))
        ),
    )
    broker = start({LIST_TRANSACTIONS: lambda _request: listed, **separator_is("::")})
    code, out, _ = fairlog("txn", "list", "--state", "ongoing", "--json", "--bootstrap", broker.address)
    assert (code, json.loads(out)) == (
        0,
        [
            {"transactional_id": "a", "producer_id": 2, "state": "Ongoing", "group": "a"},
            {"transactional_id": "b::1", "producer_id": 1, "state": "Ongoing", "group": "b"},
        ],
    )
    (asked,) = (request for request in broker.requests if isinstance(request, ListTransactionsRequest))
    assert asked.state_filters == ("Ongoing",)


def test_txn_list_of_a_user_who_may_not_see_configs_has_no_groups(start: StartBroker, fairlog: Fairlog) -> None:
    refused = separator_is(None, error=ErrorCode.cluster_authorization_failed)
    broker = start({LIST_TRANSACTIONS: listed("b::1"), **refused})
    code, out, err = fairlog("txn", "list", "--bootstrap", broker.address)
    assert (code, err) == (0, "")
    assert out.splitlines()[1].split() == ["b::1", "7", "Ongoing"]


@pytest.mark.parametrize(("separator", "has_groups"), [("::", True), (None, False)])
def test_txn_list_shows_the_groups_if_there_are_any(
    start: StartBroker, fairlog: Fairlog, separator: str | None, has_groups: bool
) -> None:
    """A broker that has no such config, as Kafka, has no groups."""
    broker = start({LIST_TRANSACTIONS: listed("b::1", "a"), **separator_is(separator)})
    heads, *rows = fairlog("txn", "list", "--bootstrap", broker.address)[1].splitlines()
    assert ("group" in heads.split()) == has_groups
    assert [row.split() for row in rows] == [
        ["a", "7", "Ongoing", "a"][: 3 + has_groups],
        ["b::1", "7", "Ongoing", "b"][: 3 + has_groups],
    ]


def test_txn_list_with_a_state_that_the_broker_does_not_know_is_refused(start: StartBroker, fairlog: Fairlog) -> None:
    """A misspelt state is not taken for one without transactions."""
    answer = ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        unknown_state_filters=("Onging",),
        transaction_states=(),
    )
    broker = start({LIST_TRANSACTIONS: lambda _request: answer})
    code, _, err = fairlog("txn", "list", "--state", "Onging", "--bootstrap", broker.address)
    assert (code, err) == (
        1,
        "fairlog: unknown transaction state Onging; Kafka's are CompleteAbort, CompleteCommit, Dead, "
        "Empty, Ongoing, PrepareAbort, PrepareCommit, PrepareEpochFence\n",
    )
    assert broker.requests[-1].state_filters == ("Onging",)


def listed(*ids: str) -> Callable[[Any], ListTransactionsResponse]:
    """Answers these ids, all with an open transaction."""
    answer = ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        unknown_state_filters=(),
        transaction_states=tuple(
            ListedState(transactional_id=TransactionalId(name), producer_id=ProducerId(7), transaction_state="Ongoing")
            for name in ids
        ),
    )
    return lambda _request: answer


NO_TIMEOUT_MS = 2_147_483_647


def test_txn_list_prepared_shows_open_transactions_without_a_timeout(start: StartBroker, fairlog: Fairlog) -> None:
    """Ids come sorted, with what the other system's note names; what times out, or has gone meanwhile, is left out."""
    timeouts_ms = dict.fromkeys(("shop", "gone", "bank"), NO_TIMEOUT_MS)
    broker = start(
        {
            LIST_TRANSACTIONS: listed("shop", "timed", "gone", "bank"),
            DESCRIBE_TRANSACTIONS: state(timeouts_ms=timeouts_ms, lost=("gone",)),
        }
    )
    code, out, _ = fairlog("txn", "list", "--prepared", "--json", "--bootstrap", broker.address)
    assert (code, json.loads(out)) == (
        0,
        [
            {
                "transactional_id": name,
                "producer_id": 7,
                "producer_epoch": 2,
                "started_ms": 1_760_000_000_000,
                "partitions": [{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 2}],
            }
            for name in ("bank", "shop")
        ],
    )
    assert broker.requests[-2].state_filters == ("Ongoing",)
    shown = fairlog("txn", "list", "--prepared", "--bootstrap", broker.address)[1].splitlines()
    assert shown[0].split() == ["transactional", "id", "producer", "id", "epoch", "open", "since", "partitions"]
    assert [line.split() for line in shown[1:]] == [
        [name, "7", "2", "2025-10-09", "08:53:20", "UTC", "orders-0,", "orders-2"] for name in ("bank", "shop")
    ]


@pytest.mark.parametrize("name", ["CompleteCommit", "Empty"])
def test_txn_list_prepared_leaves_out_what_has_ended_meanwhile(start: StartBroker, fairlog: Fairlog, name: str) -> None:
    """Between the list and the description its program may have ended it."""
    described = state(name=name, started_ms=-1, topics={}, timeouts_ms={"shop": NO_TIMEOUT_MS})
    broker = start({LIST_TRANSACTIONS: listed("shop"), DESCRIBE_TRANSACTIONS: described})
    assert fairlog("txn", "list", "--prepared", "--bootstrap", broker.address) == (
        0,
        "there is no open transaction without a time-out\n",
        "",
    )


def test_txn_list_prepared_of_a_broker_without_open_transactions_asks_no_more(
    start: StartBroker, fairlog: Fairlog
) -> None:
    """There is nothing to describe."""
    broker = start({LIST_TRANSACTIONS: listed()})
    assert fairlog("txn", "list", "--prepared", "--json", "--bootstrap", broker.address) == (0, "[]\n", "")


def test_txn_list_prepared_with_a_state_is_refused(fairlog: Fairlog) -> None:
    """The two ask for different things, and the command does not choose."""
    code, _, err = fairlog("txn", "list", "--prepared", "--state", "Empty")
    assert code == 2
    assert "cannot be used together" in err


def test_txn_list_prepared_of_an_answer_with_too_few_states_is_refused(start: StartBroker, fairlog: Fairlog) -> None:
    """A transaction that the broker says nothing of is not taken for one that times out."""
    describe = state()
    broker = start(
        {
            LIST_TRANSACTIONS: listed("bank", "shop"),
            DESCRIBE_TRANSACTIONS: lambda request: describe(replace(request, transactional_ids=("bank",))),
        }
    )
    code, _, err = fairlog("txn", "list", "--prepared", "--bootstrap", broker.address)
    assert (code, err) == (
        1,
        f"fairlog: the answer of {broker.address} describes 1 transactional ids of 2\n",
    )


@pytest.mark.parametrize("answer", [state(), as_kafka_writes])
def test_txn_describe_shows_producer_and_open_transaction(
    start: StartBroker, fairlog: Fairlog, answer: Callable[[Any], Any]
) -> None:
    """Everything that the broker says of the id is shown, whoever wrote it."""
    broker = start({DESCRIBE_TRANSACTIONS: answer})
    code, out, _ = fairlog("txn", "describe", "billing", "--json", "--bootstrap", broker.address)
    assert (code, json.loads(out)) == (
        0,
        {
            "transactional_id": "billing",
            "state": "Ongoing",
            "producer_id": 7,
            "producer_epoch": 2,
            "timeout_ms": 60_000,
            "started_ms": 1_760_000_000_000,
            "partitions": [{"topic": "orders", "partition": 0}, {"topic": "orders", "partition": 2}],
        },
    )
    out = fairlog("txn", "describe", "billing", "--bootstrap", broker.address)[1]
    assert "2025-10-09 08:53:20 UTC" in out
    assert "orders-0, orders-2" in out


def test_txn_describe_of_an_id_without_a_transaction_shows_no_start(start: StartBroker, fairlog: Fairlog) -> None:
    """-1 is Kafka's "never", not a second before 1970."""
    broker = start({DESCRIBE_TRANSACTIONS: state(name="Empty", started_ms=-1, topics={})})
    out = fairlog("txn", "describe", "billing", "--json", "--bootstrap", broker.address)[1]
    assert json.loads(out)["started_ms"] is None


def test_txn_describe_asks_the_coordinator_that_it_is_told(
    fake_broker: StartBroker, start: StartBroker, fairlog: Fairlog
) -> None:
    """In a cluster another broker may coordinate the id."""
    coordinator = start({DESCRIBE_TRANSACTIONS: state()})
    first = fake_broker(
        {
            FIND_COORDINATOR: lambda request: FindCoordinatorResponse(
                throttle_time=NO_THROTTLE,
                coordinators=(
                    Coordinator(
                        key=request.coordinator_keys[0],
                        node_id=BrokerId(2),
                        host=coordinator.host,
                        port=i32(coordinator.port),
                        error_code=ErrorCode.none,
                        error_message=None,
                    ),
                ),
            )
        }
    )
    assert fairlog("txn", "describe", "billing", "--bootstrap", first.address)[0] == 0
    assert coordinator.requests[-1].transactional_ids == ("billing",)


def test_txn_abort_takes_the_id_over_with_its_own_timeout(start: StartBroker, fairlog: Fairlog) -> None:
    """Aborting is what a new instance would do first; a transaction being decided is waited for."""
    outcomes = iter([ErrorCode.concurrent_transactions, ErrorCode.none])
    broker = start(
        {
            DESCRIBE_TRANSACTIONS: state(),
            INIT_PRODUCER_ID: lambda _request: InitProducerIdResponse(
                throttle_time=NO_THROTTLE,
                error_code=next(outcomes),
                producer_id=ProducerId(7),
                producer_epoch=i16(3),
            ),
        }
    )
    code, out, _ = fairlog("txn", "abort", "billing", "--json", "--bootstrap", broker.address)
    assert (code, json.loads(out)) == (0, {"transactional_id": "billing", "producer_epoch": 3})
    asked = broker.requests[-1]
    assert (asked.transactional_id, asked.transaction_timeout) == ("billing", timedelta(seconds=60))
    assert (asked.producer_id, asked.producer_epoch) == (-1, -1)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Ongoing", "aborted the open transaction of billing, and fenced its producer: the epoch is now 3\n"),
        ("CompleteCommit", "billing had no open transaction; its producer is fenced: the epoch is now 3\n"),
    ],
)
def test_txn_abort_says_whether_anything_was_open(
    start: StartBroker, fairlog: Fairlog, name: str, sentence: str
) -> None:
    """Fencing works in any case; that something was aborted is said only if it was."""
    broker = start(
        {
            DESCRIBE_TRANSACTIONS: state(name=name),
            INIT_PRODUCER_ID: lambda _request: InitProducerIdResponse(
                throttle_time=NO_THROTTLE,
                error_code=ErrorCode.none,
                producer_id=ProducerId(7),
                producer_epoch=i16(3),
            ),
        }
    )
    assert fairlog("txn", "abort", "billing", "--bootstrap", broker.address) == (0, sentence, "")


@pytest.mark.parametrize("command", ["abort", "describe", "show"])
def test_txn_command_on_an_unknown_id_is_refused(start: StartBroker, fairlog: Fairlog, command: str) -> None:
    """Aborting a misspelt id must not make that id: InitProducerId is not sent."""
    broker = start({DESCRIBE_TRANSACTIONS: state(ErrorCode.transactional_id_not_found)})
    code, out, err = fairlog("txn", command, "bilin", "--bootstrap", broker.address)
    assert (code, out, err) == (1, "", "fairlog: there is no transactional id bilin\n")


def test_txn_abort_of_a_transaction_that_stays_undecided_gives_up(
    start: StartBroker, fairlog: Fairlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends with the broker's reason rather than never."""
    monkeypatch.setattr(transactions_admin, "TIMEOUT_S", -1.0)
    broker = start(
        {
            DESCRIBE_TRANSACTIONS: state(),
            INIT_PRODUCER_ID: lambda _request: InitProducerIdResponse(
                throttle_time=NO_THROTTLE, error_code=ErrorCode.concurrent_transactions, producer_epoch=i16(-1)
            ),
        }
    )
    code, _, err = fairlog("txn", "abort", "billing", "--bootstrap", broker.address)
    assert (code, err) == (1, "fairlog: fencing transactional id billing: CONCURRENT_TRANSACTIONS\n")


def test_txn_show_lists_where_committed_records_are(start: StartBroker, fairlog: Fairlog) -> None:
    """Each partition of each committed transaction is a row with its first and last offset."""
    placements = encode_placements(
        [
            PlacedTransaction(7, 2, 0, (PlacedRecords("orders", 0, 10, 5), PlacedRecords("bills", 1, 0, 1))),
            PlacedTransaction(7, 2, 1, ()),
        ]
    )
    broker = start({DESCRIBE_TRANSACTIONS: state(tags=((9_999, b"?"), (PLACEMENTS_TAG, placements)))})
    code, out, _ = fairlog("txn", "show", "billing", "--json", "--bootstrap", broker.address)
    assert (code, json.loads(out)[0]) == (
        0,
        {
            "producer_id": 7,
            "producer_epoch": 2,
            "number": 0,
            "records": [
                {"topic": "orders", "partition": 0, "base_offset": 10, "count": 5},
                {"topic": "bills", "partition": 1, "base_offset": 0, "count": 1},
            ],
        },
    )
    rows = fairlog("txn", "show", "billing", "--bootstrap", broker.address)[1].splitlines()
    assert [row.split() for row in rows[1:]] == [
        ["7.2.0", "bills", "1", "0", "0", "1"],
        ["7.2.0", "orders", "0", "10", "14", "5"],
    ]


def test_txn_show_of_a_broker_that_tells_no_places_says_so(start: StartBroker, fairlog: Fairlog) -> None:
    """Any other broker has no such field, and that is no error."""
    broker = start({DESCRIBE_TRANSACTIONS: state()})
    assert fairlog("txn", "show", "billing", "--bootstrap", broker.address)[:2] == (
        0,
        "the broker remembers no committed transaction of billing\n",
    )


def test_txn_show_of_places_that_make_no_sense_is_refused(start: StartBroker, fairlog: Fairlog) -> None:
    """A field that cannot be read is an error with the broker's address, not a traceback."""
    broker = start({DESCRIBE_TRANSACTIONS: state(tags=((PLACEMENTS_TAG, b"\x05\x00"),))})
    code, _, err = fairlog("txn", "show", "billing", "--bootstrap", broker.address)
    assert code == 1
    assert f"the answer of {broker.address} describes no transaction: " in err


@given(st.binary(max_size=80))
def test_description_of_arbitrary_bytes_is_read_or_malformed(body: bytes) -> None:
    """Whatever a broker sends, the reader answers or raises Malformed."""
    with contextlib.suppress(Malformed):
        decode_answer_untrusted(body)
